//! Direct `scatter`: the root sends every rank its block.
//!
//! Steps: 1. Bytes sent by the root: n-1 blocks, the least possible.

use crate::algorithm::common::for_each_peer;
use crate::algorithm::{Algorithm, Family, Order, Params};
use crate::schedule::{Builder, RankSchedule, input, output};
use crate::types::Collective;

pub(super) const ALGORITHM: Algorithm = Algorithm {
    collective: Collective::Scatter,
    family: Family::Direct,
    name: "direct",
    summary: "the root sends each rank its block; one step",
    schedule,
    order: Order::None,
    steps: |hosts| (hosts.ranks() - 1).min(1),
};

fn schedule(params: &Params<'_>) -> RankSchedule {
    let Params { rank, ranks, root, .. } = *params;
    let mut b = Builder::new(rank, ranks, 1);
    if rank == root {
        for_each_peer(&mut b, params, |b, peer| b.send(peer, input(peer)));
        b.copy(output(0), input(root));
    } else {
        b.recv(root, output(0));
    }
    b.finish()
}
