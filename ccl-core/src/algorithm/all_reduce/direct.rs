//! Direct (one-shot) `all_reduce`: every rank sends its whole input to every other rank and folds
//! all inputs in rank order.
//!
//! ```text
//!   r ──► every other rank:  input
//!   output = input(0) ⊕ input(1) ⊕ … ⊕ input(n-1)
//! ```
//!
//! Steps: 1. Bytes sent per rank: n-1 times the buffer. For the smallest messages.

use crate::algorithm::common::{fold_in_rank_order, for_each_peer};
use crate::algorithm::{Algorithm, Family, Order, Params};
use crate::schedule::{Builder, RankSchedule, input, output};
use crate::types::Collective;

pub(in crate::algorithm) const ALGORITHM: Algorithm = Algorithm {
    collective: Collective::AllReduce,
    family: Family::Direct,
    name: "direct",
    summary: "each rank sends its input to all; one fold in rank order; one step, most bytes",
    schedule,
    order: Order::Rank,
    steps: |hosts| (hosts.ranks() - 1).min(1),
};

fn schedule(params: &Params<'_>) -> RankSchedule {
    let mut b = Builder::new(params.rank, params.ranks, 1);
    for_each_peer(&mut b, params, |b, peer| b.send(peer, input(0)));
    fold_in_rank_order(&mut b, params, output(0), input(0));
    b.finish()
}
