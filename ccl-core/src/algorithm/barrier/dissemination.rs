//! Dissemination barrier: in round k, each rank sends one element to the rank 2^k after it, and
//! folds the element from the rank 2^k before it into its own.
//!
//! ```text
//!   round 0:  r hears from r-1          knows that 2 ranks have entered
//!   round 1:  r hears from r-2          knows of 4
//!   round 2:  r hears from r-4          knows of 8
//! ```
//!
//! In every round but the first, a rank sends the result of the previous round's fold. So a rank
//! waits for the message of each round before it sends in the next round. Steps: ⌈log2 n⌉, for any
//! n. Source: D. Hensgen, R. Finkel and U. Manber, "Two algorithms for barrier synchronization",
//! 1988.

use crate::algorithm::common::{after, before, fold_in, rounds};
use crate::algorithm::{Algorithm, Family, Order, Params};
use crate::schedule::{Builder, RankSchedule, input, output};
use crate::types::Collective;

pub(super) const ALGORITHM: Algorithm = Algorithm {
    collective: Collective::Barrier,
    family: Family::Bruck,
    name: "dissemination",
    summary: "tokens at doubling distances around the circle; few steps",
    schedule,
    order: Order::Unspecified,
    steps: |hosts| rounds(hosts.ranks()),
};

fn schedule(params: &Params<'_>) -> RankSchedule {
    let Params { rank, ranks, .. } = *params;
    let mut b = Builder::new(rank, ranks, 1);
    if ranks == 1 {
        b.reduce_last(output(0), &[input(0).into()]);
    }
    let mut mine = input(0);
    for (round, id) in (0..rounds(ranks)).zip(0..) {
        let last = round + 1 == rounds(ranks);
        b.send(after(rank, 1 << round, ranks), mine);
        fold_in(&mut b, before(rank, 1 << round, ranks), id, output(0), mine, last);
        mine = output(0);
    }
    b.finish()
}
