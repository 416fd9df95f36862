//! Direct `gather`: every rank sends its block to the root.
//!
//! Steps: 1. Bytes sent per rank: a block, the least possible.

use crate::algorithm::common::for_each_peer;
use crate::algorithm::{Algorithm, Family, Order, Params};
use crate::schedule::{Builder, RankSchedule, input, output};
use crate::types::Collective;

pub(super) const ALGORITHM: Algorithm = Algorithm {
    collective: Collective::Gather,
    family: Family::Direct,
    name: "direct",
    summary: "each rank sends its block to the root; one step",
    schedule,
    order: Order::None,
    steps: |hosts| (hosts.ranks() - 1).min(1),
};

fn schedule(params: &Params<'_>) -> RankSchedule {
    let Params { rank, ranks, root, .. } = *params;
    let mut b = Builder::new(rank, ranks, 1);
    if rank == root {
        b.copy(output(root), input(0));
        for_each_peer(&mut b, params, |b, peer| b.recv(peer, output(peer)));
    } else {
        b.send(root, input(0));
    }
    b.finish()
}
