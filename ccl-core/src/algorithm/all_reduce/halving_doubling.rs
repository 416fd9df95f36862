//! Halving-doubling `all_reduce`: ranks exchange halves, quarters, eighths, … until each has one
//! part of the sum, and then gather the parts in the reverse order.
//!
//! ```text
//!   0 ◄─► 1   half of the parts     rank 0 keeps 0 2 4 6, rank 1 keeps 1 3 5 7
//!   0 ◄─► 2   a quarter             rank 0 keeps 0 4
//!   0 ◄─► 4   an eighth             rank 0 keeps 0: complete
//!   0 ◄─► 4   an eighth             rank 0 has 0 4
//!   0 ◄─► 2   a quarter             rank 0 has 0 2 4 6
//!   0 ◄─► 1   half of the parts     done
//! ```
//!
//! The nearest ranks exchange most. Let c be the largest power of two that is at most the number of
//! ranks. The ranks from c on, if any, are extra ranks: each gives its input to a partner below c
//! first and gets the result from that partner last. Steps: 2 log2 c (two more with extra ranks).
//! Bytes sent per rank: 2(c-1)/c of the buffer. A partner of an extra rank sends one more buffer.
//! An extra rank sends only one buffer.
//! Source: R. Rabenseifner, "Optimization of collective reduction operations", 2004.

use crate::algorithm::common::{Role, congruent, core, fold_in, rounds};
use crate::algorithm::{Algorithm, Family, Order, Params};
use crate::schedule::{Builder, Parts, RankSchedule, Slice, input, output};
use crate::types::{Collective, Rank};

pub(super) const ALGORITHM: Algorithm = Algorithm {
    collective: Collective::AllReduce,
    family: Family::RecursiveDoubling,
    name: "halving_doubling",
    summary: "exchange halves at doubling distances, then gather in reverse; few steps, few bytes",
    schedule,
    order: Order::Unspecified,
    steps: |hosts| {
        2 * rounds(core(hosts.ranks())) + if hosts.ranks() == core(hosts.ranks()) { 0 } else { 2 }
    },
};

fn schedule(params: &Params<'_>) -> RankSchedule {
    let Params { rank, ranks, .. } = *params;
    let parts = core(ranks);
    let whole = congruent(0, 1, parts);
    let mut b = Builder::new(rank, ranks, parts);
    b.widest_message(if ranks == parts { parts / 2 } else { parts });
    match Role::of(rank, ranks) {
        Role::Extra { partner } => {
            b.send(partner, input(whole));
            b.recv(partner, output(whole));
        }
        Role::Core { .. } if ranks == 1 => b.reduce_last(output(0), &[input(0).into()]),
        Role::Core { extra } => {
            halve(&mut b, rank, parts, extra);
            double(&mut b, rank, parts);
            if let Some(extra) = extra {
                b.send(extra, output(whole));
            }
        }
    }
    b.finish()
}

/// Reduces by halving until part `rank` of the output is complete.
fn halve(b: &mut Builder, rank: Rank, parts: u32, extra: Option<Rank>) {
    let mut mine: fn(Parts) -> Slice = input;
    if let Some(extra) = extra {
        let whole = congruent(0, 1, parts);
        fold_in(b, extra, 32, output(whole), input(whole), false);
        mine = output;
    }
    for (round, id) in (0..rounds(parts)).zip(0..) {
        let distance = 1 << round;
        let partner = rank ^ distance;
        let (keep, give) =
            (congruent(rank, 2 * distance, parts), congruent(partner, 2 * distance, parts));
        b.send(partner, mine(give));
        fold_in(b, partner, id, output(keep), mine(keep), 2 * distance == parts);
        mine = output;
    }
}

/// Gathers all parts by doubling, once part `rank` of the output is complete.
fn double(b: &mut Builder, rank: Rank, parts: u32) {
    for round in (0..rounds(parts)).rev() {
        let distance = 1 << round;
        let partner = rank ^ distance;
        b.send(partner, output(congruent(rank, 2 * distance, parts)));
        b.recv(partner, output(congruent(partner, 2 * distance, parts)));
    }
}
