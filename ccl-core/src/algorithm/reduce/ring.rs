//! Chain `reduce`: the sum goes from the rank before the root backwards around the ring, and each
//! rank adds its input, chunk after chunk.
//!
//! ```text
//!   root-1 ──► root-2 ──► … ──► root+1 ──► root
//! ```
//!
//! Steps: n-1, but a long buffer flows through all ranks at once. Bytes sent per rank: the buffer,
//! the least possible.

use crate::algorithm::common::{Ring, reduce_up};
use crate::algorithm::{Algorithm, Family, Order, Params};
use crate::schedule::{Builder, RankSchedule, input, output};
use crate::types::Collective;

pub(super) const ALGORITHM: Algorithm = Algorithm {
    collective: Collective::Reduce,
    family: Family::Ring,
    name: "ring",
    summary: "along a chain to the root, chunk after chunk; least bytes, most steps",
    schedule,
    order: Order::Unspecified,
    steps: |hosts| hosts.ranks() - 1,
};

fn schedule(params: &Params<'_>) -> RankSchedule {
    let Params { rank, ranks, root, .. } = *params;
    let Ring { next, prev, .. } = Ring::of(params);
    let mut b = Builder::new(rank, ranks, 1);
    let child = (next != root).then_some(next);
    let parent = (rank != root).then_some(prev);
    reduce_up(&mut b, 0, child, parent, input(0), output(0));
    b.finish()
}
