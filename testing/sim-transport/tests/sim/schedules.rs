//! Schedules to run: every algorithm, grouped sends and receives, and two reductions to rank 0.

use ccl_core::algorithm::{self, Algorithm, Params};
use ccl_core::schedule::{Builder, RankSchedule, Terms, input, output, scratch};
use ccl_core::types::Collective;

/// Returns every algorithm, one collective after the other, and then [`MESSAGES`].
pub(crate) fn all() -> Vec<&'static Algorithm> {
    algorithm::all().chain([&MESSAGES]).collect()
}

/// Group of sends and receives: each rank sends to all ranks and receives from all ranks, itself
/// included. The buffers are those of an all_to_all_v.
pub(crate) const MESSAGES: Algorithm = Algorithm {
    collective: Collective::AllToAllV,
    family: algorithm::Family::Direct,
    name: "send_recv",
    summary: "grouped messages between all ranks",
    schedule: messages,
    order: algorithm::Order::Rank,
    steps: |_| 1,
};

fn messages(params: &Params<'_>) -> RankSchedule {
    let all: Vec<u32> = (0..params.ranks).collect();
    algorithm::send_recv(params.rank, params.ranks, &all, &all).unwrap()
}

/// Returns the algorithms of `all_reduce`.
pub(crate) fn all_reduce() -> Vec<&'static Algorithm> {
    algorithm::of(Collective::AllReduce).collect()
}

/// Returns the `all_reduce` algorithm of that name.
pub(crate) fn find(name: &str) -> &'static Algorithm {
    algorithm::find(Collective::AllReduce, name).unwrap()
}

/// Reduction in which all other ranks send their whole input to the root, rank 0, at the same time.
pub(crate) const INCAST: Algorithm = Algorithm {
    collective: Collective::Reduce,
    family: algorithm::Family::Direct,
    name: "incast",
    summary: "all other ranks send rank 0 their whole input",
    schedule: incast,
    order: algorithm::Order::Rank,
    steps: |_| 1,
};

/// Reduction to which only rank 1 contributes.
pub(crate) const ONE_SENDER: Algorithm = Algorithm {
    name: "one_sender",
    summary: "rank 1 sends rank 0 everything",
    schedule: one_sender,
    ..INCAST
};

fn one_sender(params: &Params<'_>) -> RankSchedule {
    let mut b = Builder::new(params.rank, params.ranks, 1);
    match params.rank {
        0 => b.recv(1, output(0)),
        1 => b.send(0, input(0)),
        _ => {}
    }
    b.finish()
}

fn incast(params: &Params<'_>) -> RankSchedule {
    let mut b = Builder::new(params.rank, params.ranks, 1);
    if params.rank > 0 {
        b.send(0, input(0));
        return b.finish();
    }
    let mut terms: Vec<Terms> = vec![input(0).into()];
    for peer in 1..params.ranks {
        let theirs = scratch(0, peer, input(0));
        b.recv(peer, theirs);
        terms.push(theirs.into());
    }
    b.reduce_last(output(0), &terms);
    b.finish()
}
