//! Ring `reduce_scatter`: each block goes once around the ring, collects the contribution of each
//! rank on its way, and ends at its own rank.
//!
//! ```text
//!   block 2 of 4:   3 ──► 0 ──► 1 ──► 2
//! ```
//!
//! Steps: n-1. Bytes sent per rank: n-1 blocks, the least possible, all to one neighbour.

use crate::algorithm::common::{Ring, reduce_around};
use crate::algorithm::{Algorithm, Family, Order, Params};
use crate::schedule::{Builder, RankSchedule, output};
use crate::types::Collective;

pub(super) const ALGORITHM: Algorithm = Algorithm {
    collective: Collective::ReduceScatter,
    family: Family::Ring,
    name: "ring",
    summary: "each block once around a ring; least bytes, most steps",
    schedule,
    order: Order::Unspecified,
    steps: |hosts| hosts.ranks() - 1,
};

fn schedule(params: &Params<'_>) -> RankSchedule {
    let mut b = Builder::new(params.rank, params.ranks, 1);
    reduce_around(&mut b, Ring::of(params), output(0));
    b.finish()
}
