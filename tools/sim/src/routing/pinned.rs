//! Path pinning by the destination's *slice*, the position of its NIC in its rack: uplink k of a
//! rack carries all traffic to NICs at position k of other racks.
//!
//! Pinned paths are perfect if a job has whole racks and all links work: for example, 16 NICs of a
//! rack send to the 16 slices of one other rack, each over an uplink of its own. If a rack's hosts
//! send to hosts of different racks, several destinations can have the same slice, and their
//! traffic then shares one uplink. If uplink k fails, the slices from k on move to other uplinks.

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
