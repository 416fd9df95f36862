//! Equal-cost multipath: each switch chooses by a hash of the fields that are the same in all
//! packets of a flow.
//!
//! All queue pairs of a connection have the same addresses and, as in Meta's paper on RoCE, the
//! same UDP ports. They take one path, unless the hash includes the destination's queue pair
//! (E-ECMP).

use super::{Key, flow_of};
use crate::network::{Link, Step};

/// Returns a function that chooses a link by a hash, which differs from switch to switch.
pub(super) fn chooser(
    key: &Key,
    seed: u64,
    with_pairs: bool,
) -> impl FnMut(&Step, &[Link]) -> usize + use<> {
    let flow = flow_of(key);
    move |step, links| {
        let salt = seed ^ switch(step);
        let hash = flow.hashed(salt, with_pairs);
        ((u128::from(hash) * links.len() as u128) >> 64) as usize
    }
}

/// Returns a number that identifies the switch and the direction of a step.
pub(super) fn switch(step: &Step) -> u64 {
    let (group, number) = step.at;
    let level = (step.tier as u64) << 1 | u64::from(step.up);
    (level << 60 | u64::from(group) << 30 | u64::from(number)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}
