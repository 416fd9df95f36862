//! Direct `reduce`: every rank sends to the root, which folds all inputs in rank order.
//!
//! Steps: 1. Bytes sent per rank: the buffer; received by the root: n-1 times the buffer.

use crate::algorithm::common::fold_in_rank_order;
use crate::algorithm::{Algorithm, Family, Order, Params};
use crate::schedule::{Builder, RankSchedule, input, output};
use crate::types::Collective;

pub(super) const ALGORITHM: Algorithm = Algorithm {
    collective: Collective::Reduce,
    family: Family::Direct,
    name: "direct",
    summary: "all ranks send to the root; one fold there, in rank order; one step",
    schedule,
    order: Order::Rank,
    steps: |hosts| (hosts.ranks() - 1).min(1),
};

fn schedule(params: &Params<'_>) -> RankSchedule {
    let Params { rank, ranks, root, .. } = *params;
    let mut b = Builder::new(rank, ranks, 1);
    if rank == root {
        fold_in_rank_order(&mut b, params, output(0), input(0));
    } else {
        b.send(root, input(0));
    }
    b.finish()
}
