//! Direct `all_reduce` in two phases: rank r folds part r of every input, in rank order, and sends
//! the result to every other rank.
//!
//! ```text
//!   r ──► q:   part q of r's input             (for all q)
//!   part r of output = fold of part r of every input
//!   r ──► q:   part r of the output            (for all q)
//! ```
//!
//! Steps: 2. Bytes sent per rank: 2(n-1)/n of the buffer, as few as the ring's, but over all pairs
//! of ranks. The algorithm suits machines whose ranks are all equally near.

use crate::algorithm::common::{fold_in_rank_order, for_each_peer, for_each_peer_backwards};
use crate::algorithm::{Algorithm, Family, Order, Params};
use crate::schedule::{Builder, RankSchedule, input, output};
use crate::types::Collective;

pub(super) const ALGORITHM: Algorithm = Algorithm {
    collective: Collective::AllReduce,
    family: Family::Direct,
    name: "direct_two_phase",
    summary: "each rank folds one part of all inputs in rank order and sends it to all; two steps",
    schedule,
    order: Order::Rank,
    steps: |hosts| 2 * (hosts.ranks() - 1).min(1),
};

fn schedule(params: &Params<'_>) -> RankSchedule {
    let Params { rank, ranks, .. } = *params;
    let mut b = Builder::new(rank, ranks, ranks);
    for_each_peer(&mut b, params, |b, peer| b.send(peer, input(peer)));
    fold_in_rank_order(&mut b, params, output(rank), input(rank));
    for_each_peer(&mut b, params, |b, peer| b.send(peer, output(rank)));
    for_each_peer_backwards(&mut b, params, |b, peer| b.recv(peer, output(peer)));
    b.finish()
}
