//! Chain `broadcast`: the buffer goes from the root around the ring, and each rank forwards each
//! chunk as it arrives.
//!
//! ```text
//!   root ──► root+1 ──► root+2 ──► … ──► root-1
//! ```
//!
//! Steps: n-1, but a long buffer flows through all ranks at once. Bytes sent per rank: the buffer,
//! the least possible; the last rank sends nothing.

use crate::algorithm::common::Ring;
use crate::algorithm::{Algorithm, Family, Order, Params};
use crate::schedule::{Builder, RankSchedule, input, output};
use crate::types::Collective;

pub(super) const ALGORITHM: Algorithm = Algorithm {
    collective: Collective::Broadcast,
    family: Family::Ring,
    name: "ring",
    summary: "from the root along a chain, chunk after chunk; least bytes, most steps",
    schedule,
    order: Order::None,
    steps: |hosts| hosts.ranks() - 1,
};

fn schedule(params: &Params<'_>) -> RankSchedule {
    let Params { rank, ranks, root, .. } = *params;
    let Ring { next, prev, .. } = Ring::of(params);
    let mut b = Builder::new(rank, ranks, 1);
    if rank == root {
        b.copy(output(0), input(0));
    } else {
        b.recv(prev, output(0));
    }
    if next != root {
        b.send(next, output(0));
    }
    b.finish()
}
