//! Double binary tree `all_reduce`: half of the buffer is reduced up one tree and broadcast down
//! the same tree, the other half in a second tree whose inner nodes are the leaves of the first.
//!
//! ```text
//!   half 0:  0
//!             \
//!               4
//!             /   \
//!            2     6      up:    sum of the children and own input, to the parent
//!           / \   / \     down:  the parent's result, to the children
//!          1   3 5   7
//! ```
//!
//! The drawing shows half 0 for 8 ranks. In half 1, each rank r takes the position that another
//! rank has in half 0: rank n-1-r if the number n of ranks is even, rank r-1 (modulo n) if n is
//! odd. The odd ranks are leaves in half 0 and inner nodes in half 1.
//!
//! Steps: about 2 log2 n. Bytes sent per rank: at most twice the buffer. The reduction and the
//! broadcast overlap, chunk after chunk. Source: P. Sanders, J. Speck and J. L. Träff, "Two-tree
//! algorithms for full bandwidth broadcast, reduction and scan", 2009.

use crate::algorithm::common::{Tree, double_tree, reduce_up, rounds};
use crate::algorithm::{Algorithm, Family, Order, Params};
use crate::schedule::{Builder, RankSchedule, input, output};
use crate::types::Collective;

pub(super) const ALGORITHM: Algorithm = Algorithm {
    collective: Collective::AllReduce,
    family: Family::Tree,
    name: "double_tree",
    summary: "each half is reduced up and sent down one of two binary trees; few steps, pipelined",
    schedule,
    order: Order::Unspecified,
    steps: |hosts| 2 * rounds(hosts.ranks()),
};

fn schedule(params: &Params<'_>) -> RankSchedule {
    let mut b = Builder::new(params.rank, params.ranks, 2);
    for (half, tree) in (0..).zip(double_tree(params.rank, params.ranks)) {
        up_and_down(&mut b, half, &tree);
    }
    b.finish()
}

fn up_and_down(b: &mut Builder, half: u8, tree: &Tree) {
    let (mine, result) = (input(u32::from(half)), output(u32::from(half)));
    reduce_up(b, 4 * half, tree.children.iter().copied(), tree.parent, mine, result);
    if let Some(parent) = tree.parent {
        b.recv(parent, result);
    }
    tree.children.iter().for_each(|child| b.send(*child, result));
}
