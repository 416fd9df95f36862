//! Ring `all_gather`: each rank's block goes once around the ring.
//!
//! ```text
//!   block 2 of 4:   2 ──► 3 ──► 0 ──► 1
//! ```
//!
//! Steps: n-1. Bytes sent per rank: n-1 blocks, the least possible, all to one neighbour.

use crate::algorithm::common::{Ring, gather_around};
use crate::algorithm::{Algorithm, Family, Order, Params};
use crate::schedule::{Builder, RankSchedule, input, output};
use crate::types::Collective;

pub(super) const ALGORITHM: Algorithm = Algorithm {
    collective: Collective::AllGather,
    family: Family::Ring,
    name: "ring",
    summary: "each block once around a ring; least bytes, most steps",
    schedule,
    order: Order::None,
    steps: |hosts| hosts.ranks() - 1,
};

fn schedule(params: &Params<'_>) -> RankSchedule {
    let mut b = Builder::new(params.rank, params.ranks, 1);
    b.copy(output(params.rank), input(0));
    gather_around(&mut b, Ring::of(params));
    b.finish()
}
