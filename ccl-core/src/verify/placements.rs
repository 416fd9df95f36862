//! Placements of ranks on hosts that every algorithm must support.

use crate::topology::Hosts;

/// Returns the placements: all ranks on one host; one rank on each host; about half of the ranks on
/// each of two hosts; ranks dealt in turn to three hosts; hosts of different sizes; and ranks dealt
/// irregularly to up to four hosts. Equal placements are returned only once.
#[must_use]
pub fn placements(ranks: u32) -> Vec<Hosts> {
    let on_hosts = |host: &dyn Fn(u32) -> u32| Hosts::of(&(0..ranks).map(host).collect::<Vec<_>>());
    // Hosts of 3, 5 and 1 ranks, repeated.
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
