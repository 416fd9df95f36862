//! Bruck's `all_to_all`: a block for the rank at distance i travels in hops. The lengths of the
//! hops are the powers of two that add up to i. Blocks that make the same hop share a message.
//!
//! ```text
//!   block for the rank at distance 5 = 4 + 1:   r ──► r+1 ──► r+5
//!   round 0:  blocks 1 3 5 7 … to r+1
//!   round 1:  blocks 2 3 6 7 … to r+2
//!   round 2:  blocks 4 5 6 7 … to r+4
//! ```
//!
//! Blocks under way lie in scratch. The number of a block there is its initial distance from its
//! destination, and stays the same while the block travels. Steps: ⌈log2 n⌉. Bytes sent per rank:
//! about ½ n log2 n blocks, so the algorithm is for short blocks. Source: J. Bruck and others,
//! "Efficient algorithms for all-to-all communications in multiport message-passing systems", 1997.

use crate::algorithm::common::{after, before, rounds};
use crate::algorithm::{Algorithm, Family, Order, Params};
use crate::schedule::{Affine, Builder, Parts, RankSchedule, Slice, input, output, scratch};
use crate::types::Collective;

pub(super) const ALGORITHM: Algorithm = Algorithm {
    collective: Collective::AllToAll,
    family: Family::Bruck,
    name: "bruck",
    summary: "blocks travel together at doubling distances; few messages, for short blocks",
    schedule,
    order: Order::None,
    steps: |hosts| rounds(hosts.ranks()),
};

fn schedule(params: &Params<'_>) -> RankSchedule {
    let Params { rank, ranks, .. } = *params;
    let mut b = Builder::new(rank, ranks, 1);
    let all = Parts::range(Affine::constant(0), ranks, 0);
    let upwards = Parts::range(Affine::constant(rank), ranks, ranks);
    let downwards = Parts::runs(Affine::constant(rank), 1, ranks - 1, ranks).wrapping(ranks);
    b.copy(under_way(all), input(upwards));
    for round in 0..rounds(ranks) {
        let travellers = under_way(with_bit(round, ranks));
        b.send(after(rank, 1 << round, ranks), travellers);
        b.recv(before(rank, 1 << round, ranks), travellers);
    }
    b.copy(output(downwards), under_way(all));
    b.finish()
}

/// Returns the blocks in scratch with these distances. All blocks have the same length, so the
/// extent is that of an equal number of blocks of the input.
fn under_way(distances: Parts) -> Slice {
    scratch(0, distances, input(distances))
}

/// Returns the distances below `ranks` that have bit `bit` set.
fn with_bit(bit: u32, ranks: u32) -> Parts {
    let run = 1 << bit;
    let rest = (ranks % (2 * run)).saturating_sub(run);
    Parts::runs(Affine::constant(run), run, 2 * run, ranks / (2 * run) * run + rest)
}
