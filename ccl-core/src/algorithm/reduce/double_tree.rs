//! Double binary tree `reduce`: half of the buffer is reduced along one binary tree over the ranks
//! other than the root, and half along a second tree whose inner nodes are the leaves of the first.
//!
//! ```text
//!   half 0:  … ──► top of tree 0 ──► root
//!   half 1:  … ──► top of tree 1 ──► root
//! ```
//!
//! Steps: about 1 + log2 n, pipelined by chunks. Bytes sent per rank: the buffer. Source:
//! P. Sanders, J. Speck and J. L. Träff, "Two-tree algorithms for full bandwidth broadcast,
//! reduction and scan", 2009.

use crate::algorithm::common::{reduce_up, rooted_double_tree, rounds};
use crate::algorithm::{Algorithm, Family, Order, Params};
use crate::schedule::{Builder, RankSchedule, input, output};
use crate::types::Collective;

pub(super) const ALGORITHM: Algorithm = Algorithm {
    collective: Collective::Reduce,
    family: Family::Tree,
    name: "double_tree",
    summary: "each half up one of two binary trees; few steps, pipelined",
    schedule,
    order: Order::Unspecified,
    steps: |hosts| (hosts.ranks() - 1).min(1) + rounds(hosts.ranks() - 1),
};

fn schedule(params: &Params<'_>) -> RankSchedule {
    let mut b = Builder::new(params.rank, params.ranks, 2);
    for (half, tree) in (0..).zip(rooted_double_tree(params)) {
        let part = u32::from(half);
        reduce_up(&mut b, 4 * half, tree.children, tree.parent, input(part), output(part));
    }
    b.finish()
}
