//! Direct `all_gather`: every rank sends its block to every other rank.
//!
//! Steps: 1. Bytes sent per rank: n-1 blocks, the least possible. Every pair of ranks has traffic.

use crate::algorithm::common::{for_each_peer, for_each_peer_backwards};
use crate::algorithm::{Algorithm, Family, Order, Params};
use crate::schedule::{Builder, RankSchedule, input, output};
use crate::types::Collective;

pub(super) const ALGORITHM: Algorithm = Algorithm {
    collective: Collective::AllGather,
    family: Family::Direct,
    name: "direct",
    summary: "each block from its rank to all; one step",
    schedule,
    order: Order::None,
    steps: |hosts| (hosts.ranks() - 1).min(1),
};

fn schedule(params: &Params<'_>) -> RankSchedule {
    let Params { rank, ranks, .. } = *params;
    let mut b = Builder::new(rank, ranks, 1);
    b.copy(output(rank), input(0));
    for_each_peer(&mut b, params, |b, peer| b.send(peer, output(rank)));
    for_each_peer_backwards(&mut b, params, |b, peer| b.recv(peer, output(peer)));
    b.finish()
}
