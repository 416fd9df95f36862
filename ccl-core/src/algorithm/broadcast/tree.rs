//! Binomial tree `broadcast`: in each step every rank that has the buffer sends it to another rank,
//! so the number of ranks that have it doubles.
//!
//! ```text
//!            0
//!       /    |   \
//!      4     2    1        ranks are numbered from the root
//!     / \    |
//!    6   5   3
//!    |
//!    7
//! ```
//!
//! Steps: ⌈log2 n⌉. Bytes sent by the root: ⌈log2 n⌉ times the buffer. Half of the ranks send
//! nothing.

use crate::algorithm::common::{Binomial, rounds};
use crate::algorithm::{Algorithm, Family, Order, Params};
use crate::schedule::{Builder, RankSchedule, input, output};
use crate::types::Collective;

pub(super) const ALGORITHM: Algorithm = Algorithm {
    collective: Collective::Broadcast,
    family: Family::Tree,
    name: "tree",
    summary: "down a binomial tree; fewest steps, for short messages",
    schedule,
    order: Order::None,
    steps: |hosts| rounds(hosts.ranks()),
};

fn schedule(params: &Params<'_>) -> RankSchedule {
    let Binomial { parent, children, .. } = Binomial::of(params.rank, params.ranks, params.root);
    let mut b = Builder::new(params.rank, params.ranks, 1);
    match parent {
        None => b.copy(output(0), input(0)),
        Some(parent) => b.recv(parent, output(0)),
    }
    children.iter().for_each(|child| b.send(child.rank, output(0)));
    b.finish()
}
