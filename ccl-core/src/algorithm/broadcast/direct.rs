//! Direct `broadcast`: the root sends to all other ranks.
//!
//! Steps: 1. Bytes sent by the root: n-1 times the buffer.

use crate::algorithm::common::for_each_peer;
use crate::algorithm::{Algorithm, Family, Order, Params};
use crate::schedule::{Builder, RankSchedule, input, output};
use crate::types::Collective;

pub(super) const ALGORITHM: Algorithm = Algorithm {
    collective: Collective::Broadcast,
    family: Family::Direct,
    name: "direct",
    summary: "the root sends to all ranks; one step",
    schedule,
    order: Order::None,
    steps: |hosts| (hosts.ranks() - 1).min(1),
};

fn schedule(params: &Params<'_>) -> RankSchedule {
    let Params { rank, ranks, root, .. } = *params;
    let mut b = Builder::new(rank, ranks, 1);
    if rank == root {
        b.copy(output(0), input(0));
        for_each_peer(&mut b, params, |b, peer| b.send(peer, output(0)));
    } else {
        b.recv(root, output(0));
    }
    b.finish()
}
