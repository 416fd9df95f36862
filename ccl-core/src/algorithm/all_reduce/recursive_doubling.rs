//! Recursive doubling `all_reduce`: in each round, pairs of ranks exchange their whole partial
//! results. The two ranks of a pair are 1 apart in the first round, then 2, then 4, and so on.
//!
//! ```text
//!   0 ◄─► 1   2 ◄─► 3   4 ◄─► 5   6 ◄─► 7     sums of 2
//!   0 ◄─────► 2   1 ◄─────► 3   …             sums of 4
//!   0 ◄─────────────► 4   …                   sums of 8
//! ```
//!
//! Let c be the largest power of two that is at most the number of ranks. The ranks from c on, if
//! any, are extra ranks: each gives its input to a partner below c first and gets the result from
//! that partner last. Steps: log2 c (two more with extra ranks). Bytes sent per rank: log2 c times
//! the buffer, so the algorithm is for short messages. A partner of an extra rank sends one more
//! buffer. An extra rank sends only one buffer. Source: R. Thakur, R. Rabenseifner and W. Gropp,
//! "Optimization of collective communication operations in MPICH", 2005.

use crate::algorithm::common::{Role, core, fold_in, rounds};
use crate::algorithm::{Algorithm, Family, Order, Params};
use crate::schedule::{Builder, RankSchedule, input, output};
use crate::types::{Collective, Rank};

pub(super) const ALGORITHM: Algorithm = Algorithm {
    collective: Collective::AllReduce,
    family: Family::RecursiveDoubling,
    name: "recursive_doubling",
    summary: "exchange whole partial results at doubling distances; few steps, for short messages",
    schedule,
    order: Order::Unspecified,
    steps: |hosts| {
        rounds(core(hosts.ranks())) + if hosts.ranks() == core(hosts.ranks()) { 0 } else { 2 }
    },
};

fn schedule(params: &Params<'_>) -> RankSchedule {
    let Params { rank, ranks, .. } = *params;
    let mut b = Builder::new(rank, ranks, 1);
    match Role::of(rank, ranks) {
        Role::Extra { partner } => {
            b.send(partner, input(0));
            b.recv(partner, output(0));
        }
        Role::Core { .. } if ranks == 1 => b.reduce_last(output(0), &[input(0).into()]),
        Role::Core { extra } => exchange(&mut b, params, extra),
    }
    b.finish()
}

fn exchange(b: &mut Builder, params: &Params<'_>, extra: Option<Rank>) {
    let rounds = rounds(core(params.ranks));
    let mut mine = input(0);
    if let Some(extra) = extra {
        fold_in(b, extra, 32, output(0), mine, false);
        mine = output(0);
    }
    for (round, id) in (0..rounds).zip(0..) {
        let partner = params.rank ^ (1 << round);
        b.send(partner, mine);
        fold_in(b, partner, id, output(0), mine, round + 1 == rounds);
        mine = output(0);
    }
    if let Some(extra) = extra {
        b.send(extra, output(0));
    }
}
