//! Double binary tree `broadcast`: half of the buffer goes down one binary tree over the ranks
//! other than the root, and half down a second tree whose inner nodes are the leaves of the first.
//!
//! ```text
//!   half 0:  root ──► top of tree 0 ──► two children ──► …
//!   half 1:  root ──► top of tree 1 ──► two children ──► …
//! ```
//!
//! Steps: about 1 + log2 n, pipelined by chunks. Bytes sent per rank: about the buffer. Source:
//! P. Sanders, J. Speck and J. L. Träff, "Two-tree algorithms for full bandwidth broadcast,
//! reduction and scan", 2009.

use crate::algorithm::common::{rooted_double_tree, rounds};
use crate::algorithm::{Algorithm, Family, Order, Params};
use crate::schedule::{Builder, RankSchedule, input, output};
use crate::types::Collective;

pub(super) const ALGORITHM: Algorithm = Algorithm {
    collective: Collective::Broadcast,
    family: Family::Tree,
    name: "double_tree",
    summary: "each half down one of two binary trees; few steps, pipelined",
    schedule,
    order: Order::None,
    steps: |hosts| (hosts.ranks() - 1).min(1) + rounds(hosts.ranks() - 1),
};

fn schedule(params: &Params<'_>) -> RankSchedule {
    let mut b = Builder::new(params.rank, params.ranks, 2);
    for (half, tree) in (0..).zip(rooted_double_tree(params)) {
        match tree.parent {
            None => b.copy(output(half), input(half)),
            Some(parent) => b.recv(parent, output(half)),
        }
        tree.children.iter().for_each(|child| b.send(*child, output(half)));
    }
    b.finish()
}
