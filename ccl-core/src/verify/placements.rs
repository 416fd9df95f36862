//! The ways to place ranks on hosts that an algorithm must be right for.

use crate::topology::Hosts;

/// All on one host, one on each, two hosts, dealt in turn to three, hosts of different sizes, and
/// hosts whose ranks lie anyhow; each once.
#[must_use]
pub fn placements(ranks: u32) -> Vec<Hosts> {
    let on_hosts = |host: &dyn Fn(u32) -> u32| Hosts::of(&(0..ranks).map(host).collect::<Vec<_>>());
    // Hosts of 3, 5 and 1 ranks, again and again.
    let uneven = |rank: u32| rank / 9 * 3 + [0, 0, 0, 1, 1, 1, 1, 1, 2][rank as usize % 9];
    let anyhow = |rank: u32| (rank * rank + rank / 3) % 7 % 4;
    let all = [
        Hosts::one(ranks),
        on_hosts(&|rank| rank),
        on_hosts(&|rank| 2 * rank / ranks.max(1)),
        on_hosts(&|rank| rank % 3),
        on_hosts(&uneven),
        on_hosts(&anyhow),
    ];
    let mut different: Vec<Hosts> = Vec::new();
    for hosts in all {
        if !different.contains(&hosts) {
            different.push(hosts);
        }
    }
    different
}
