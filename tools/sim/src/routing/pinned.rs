//! Path pinning by the destination's *slice*, the position of its NIC in its rack: uplink k carries
//! the traffic to every rack's downlink k.
//!
//! This is perfect where a job has whole racks and all links work: 16 NICs send to 16 slices of one
//! rack. Where a rack's hosts send to hosts of different racks, slices coincide. Uplinks that have
//! failed shift the slices of those after them onto others.

use super::Key;
use super::ecmp;
use crate::network::{Link, Network, Step};

/// Returns a function that chooses the uplink with the number of the destination's slice.
pub(super) fn chooser(
    network: &Network,
    key: &Key,
    seed: u64,
) -> impl FnMut(&Step, &[Link]) -> usize + use<> {
    let fabric = &network.plan().fabric;
    let hosts = u32::try_from(fabric.hosts_in_group(0)).unwrap_or(u32::MAX);
    let slice = key.to.host % hosts.max(1) * fabric.nics + key.to.nic;
    let mut hashed = ecmp::chooser(key, seed, false);
    move |step, links| {
        if step.tier == 0 || !step.up {
            return hashed(step, links);
        }
        slice as usize % links.len().max(1)
    }
}
