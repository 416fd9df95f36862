//! Recursive halving `reduce_scatter`: ranks exchange halves, quarters, eighths, … of the blocks
//! until each rank has its own.
//!
//! ```text
//!   0 ◄─► 1   half of the blocks    rank 0 keeps 0 2 4 6, rank 1 keeps 1 3 5 7
//!   0 ◄─► 2   a quarter             rank 0 keeps 0 4
//!   0 ◄─► 4   an eighth             rank 0 keeps 0: complete
//! ```
//!
//! Let c be the largest power of two that is at most the number n of ranks. The ranks from c on, if
//! any, are extra ranks: each gives its input to a partner first (rank c+j to rank j). In the
//! exchanges, block c+j goes to the same ranks as block j. At the end, rank j sends the sum of
//! block c+j to rank c+j. Steps: log2 c (two more with extra ranks). Bytes sent per rank: n-1
//! blocks (extra ranks: n blocks). Source: R. Thakur, R. Rabenseifner and W. Gropp, "Optimization
//! of collective communication operations in MPICH", 2005.

use crate::algorithm::common::{Role, congruent, core, fold_in, rounds};
use crate::algorithm::{Algorithm, Family, Order, Params};
use crate::schedule::{Builder, Parts, RankSchedule, Slice, input, output, scratch};
use crate::types::{Collective, Rank};

pub(super) const ALGORITHM: Algorithm = Algorithm {
    collective: Collective::ReduceScatter,
    family: Family::RecursiveDoubling,
    name: "recursive_halving",
    summary: "exchange halves at doubling distances; few steps",
    schedule,
    order: Order::Unspecified,
    steps: |hosts| {
        rounds(core(hosts.ranks())) + if hosts.ranks() == core(hosts.ranks()) { 0 } else { 2 }
    },
};

/// Returns scratch for partial sums, numbered like the blocks of the input.
fn sums(blocks: Parts) -> Slice {
    scratch(0, blocks, input(blocks))
}

fn schedule(params: &Params<'_>) -> RankSchedule {
    let Params { rank, ranks, .. } = *params;
    let whole = congruent(0, 1, ranks);
    let mut b = Builder::new(rank, ranks, 1);
    b.widest_message(if ranks == core(ranks) { ranks / 2 } else { ranks });
    match Role::of(rank, ranks) {
        Role::Extra { partner } => {
            b.send(partner, input(whole));
            b.recv(partner, output(0));
        }
        Role::Core { .. } if ranks == 1 => b.reduce_last(output(0), &[input(0).into()]),
        Role::Core { extra } => halve(&mut b, params, extra),
    }
    b.finish()
}

fn halve(b: &mut Builder, params: &Params<'_>, extra: Option<Rank>) {
    let Params { rank, ranks, .. } = *params;
    let mut mine: fn(Parts) -> Slice = input;
    if let Some(extra) = extra {
        let whole = congruent(0, 1, ranks);
        fold_in(b, extra, 40, sums(whole), input(whole), false);
        mine = sums;
    }
    let last = rounds(core(ranks)) - 1;
    for (round, id) in (0..last).zip(1..) {
        let distance = 1 << round;
        let partner = rank ^ distance;
        let keep = congruent(rank, 2 * distance, ranks);
        b.send(partner, mine(congruent(partner, 2 * distance, ranks)));
        fold_in(b, partner, id, sums(keep), mine(keep), false);
        mine = sums;
    }
    complete(b, params, extra, mine);
}

/// Writes the last exchange: the blocks of both partners, and those of their extra ranks, if any.
fn complete(b: &mut Builder, params: &Params<'_>, extra: Option<Rank>, mine: fn(Parts) -> Slice) {
    let Params { rank, ranks, .. } = *params;
    let partner = rank ^ (core(ranks) / 2);
    b.send(partner, mine(partner.into()));
    if let Role::Core { extra: Some(theirs) } = Role::of(partner, ranks) {
        b.send(partner, mine(theirs.into()));
    }
    fold_in(b, partner, 41, output(0), mine(rank.into()), true);
    if let Some(extra) = extra {
        let sum = scratch(42, 0, input(extra));
        fold_in(b, partner, 43, sum, mine(extra.into()), true);
        b.send(extra, sum);
    }
}
