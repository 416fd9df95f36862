//! Bruck's `all_gather`: on the circle of ranks, a rank receives from the ranks that follow it at
//! distances 1, 2, 4, and so on. Each sender sends all blocks that it has by then and that the
//! receiver lacks.
//!
//! ```text
//!   of 5 ranks, rank 3:   has 3
//!       from 4            has 3 4
//!       from 0            has 3 4 0 1
//!       from 2            has 3 4 0 1 2      (only what is missing)
//! ```
//!
//! Blocks go straight to their final position in the output, and ranges of blocks wrap at the end
//! of the output. So the output need not be rotated afterwards. Steps: ⌈log2 n⌉, for any n. Bytes
//! sent per rank: n-1 blocks.
//! Source: J. Bruck and others, "Efficient algorithms for all-to-all communications in multiport
//! message-passing systems", 1997.

use crate::algorithm::common::{after, before, rounds};
use crate::algorithm::{Algorithm, Family, Order, Params};
use crate::schedule::{Affine, Builder, Parts, RankSchedule, input, output};
use crate::types::{Collective, Rank};

pub(super) const ALGORITHM: Algorithm = Algorithm {
    collective: Collective::AllGather,
    family: Family::Bruck,
    name: "bruck",
    summary: "receive the missing blocks from ranks at doubling distances; fewest steps for any \
              number of ranks",
    schedule,
    order: Order::None,
    steps: |hosts| rounds(hosts.ranks()),
};

fn schedule(params: &Params<'_>) -> RankSchedule {
    let Params { rank, ranks, .. } = *params;
    let mut b = Builder::new(rank, ranks, 1);
    b.copy(output(rank), input(0));
    for round in 0..rounds(ranks) {
        let distance = 1 << round;
        let blocks = distance.min(ranks - distance);
        let range = |first: Rank| Parts::range(Affine::constant(first), blocks, ranks);
        let further = after(rank, distance, ranks);
        b.send(before(rank, distance, ranks), output(range(rank)));
        b.recv(further, output(range(further)));
    }
    b.finish()
}
