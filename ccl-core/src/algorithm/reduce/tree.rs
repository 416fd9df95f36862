//! Binomial tree `reduce`: sums flow up the tree of the binomial `broadcast`.
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
//! Each rank folds the sums of all its children in one fold, which reads each sum in the slot where
//! the sum arrived. Steps: ⌈log2 n⌉. Bytes sent per rank: the buffer; received by the root:
//! ⌈log2 n⌉ times the buffer.

use crate::algorithm::common::{Binomial, reduce_up, rounds};
use crate::algorithm::{Algorithm, Family, Order, Params};
use crate::schedule::{Builder, RankSchedule, input, output};
use crate::types::Collective;

pub(super) const ALGORITHM: Algorithm = Algorithm {
    collective: Collective::Reduce,
    family: Family::Tree,
    name: "tree",
    summary: "up a binomial tree; fewest steps, for short messages",
    schedule,
    order: Order::Unspecified,
    steps: |hosts| rounds(hosts.ranks()),
};

fn schedule(params: &Params<'_>) -> RankSchedule {
    let Binomial { parent, children, .. } = Binomial::of(params.rank, params.ranks, params.root);
    let mut b = Builder::new(params.rank, params.ranks, 1);
    let children = children.iter().map(|child| child.rank);
    reduce_up(&mut b, 0, children, parent, input(0), output(0));
    b.finish()
}
