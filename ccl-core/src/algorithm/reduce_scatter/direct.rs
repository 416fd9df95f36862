//! Direct `reduce_scatter`: every rank sends block q of its input to rank q, which folds the blocks
//! q of all ranks in rank order.
//!
//! Steps: 1. Bytes sent per rank: n-1 blocks, the least possible. Every pair of ranks has traffic.

use crate::algorithm::common::{fold_in_rank_order, for_each_peer};
use crate::algorithm::{Algorithm, Family, Order, Params};
use crate::schedule::{Builder, RankSchedule, input, output};
use crate::types::Collective;

pub(super) const ALGORITHM: Algorithm = Algorithm {
    collective: Collective::ReduceScatter,
    family: Family::Direct,
    name: "direct",
    summary: "each block to its rank; one fold there, in rank order; one step",
    schedule,
    order: Order::Rank,
    steps: |hosts| (hosts.ranks() - 1).min(1),
};

fn schedule(params: &Params<'_>) -> RankSchedule {
    let mut b = Builder::new(params.rank, params.ranks, 1);
    for_each_peer(&mut b, params, |b, peer| b.send(peer, input(peer)));
    fold_in_rank_order(&mut b, params, output(0), input(params.rank));
    b.finish()
}
