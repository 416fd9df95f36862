//! Trees over any number of ranks.

use super::{after, before};
use crate::algorithm::Params;
use crate::types::Rank;

/// Position of a rank in a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::algorithm) struct Tree {
    /// Neighbour towards the root; none for the root.
    pub(in crate::algorithm) parent: Option<Rank>,
    /// Neighbours away from the root.
    pub(in crate::algorithm) children: Vec<Rank>,
}

impl Tree {
    fn map(self, name: impl Fn(Rank) -> Rank) -> Tree {
        let children = self.children.into_iter().map(&name).collect();
        Tree { parent: self.parent.map(name), children }
    }
}

/// Node of a rank in the binomial tree around the root. The *position* of a rank is its number when
/// ranks are counted from the root, which has position 0.
///
/// Clearing the lowest set bit of a position gives the position's parent. The subtree of a position
/// is a range of positions; the position itself is the first of the range.
///
/// ```text
///            0
///       /    |   \
///      4     2    1        position 4 heads 4..8, position 6 heads 6..8
///     / \    |
///    6   5   3
///    |
///    7
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::algorithm) struct Binomial {
    /// This rank's position.
    pub(in crate::algorithm) position: u32,
    /// Number of positions in the subtree of this rank.
    pub(in crate::algorithm) size: u32,
    /// Parent of this rank; none for the root.
    pub(in crate::algorithm) parent: Option<Rank>,
    /// Children of this rank, the largest subtree first.
    pub(in crate::algorithm) children: Vec<Child>,
}

/// A child in a [`Binomial`] tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::algorithm) struct Child {
    /// Rank of the child.
    pub(in crate::algorithm) rank: Rank,
    /// First position of the child's subtree.
    pub(in crate::algorithm) position: u32,
    /// Number of positions in the child's subtree.
    pub(in crate::algorithm) size: u32,
}

impl Binomial {
    pub(in crate::algorithm) fn of(rank: Rank, ranks: u32, root: Rank) -> Binomial {
        let position = before(rank, root, ranks);
        let span = match position {
            0 => ranks.next_power_of_two(),
            _ => 1 << position.trailing_zeros(),
        };
        let child = |bit: u32| {
            let first = position + (1 << bit);
            (first < ranks).then(|| Child {
                rank: after(first, root, ranks),
                position: first,
                size: (1 << bit).min(ranks - first),
            })
        };
        Binomial {
            position,
            size: span.min(ranks - position),
            parent: (position > 0).then(|| after(position & (position - 1), root, ranks)),
            children: (0..span.trailing_zeros()).rev().filter_map(child).collect(),
        }
    }

    /// Returns the size of the largest subtree below the root: the widest message, in blocks.
    pub(in crate::algorithm) fn widest(ranks: u32) -> u32 {
        let half = ranks.next_power_of_two() / 2;
        (ranks - half).max(half / 2).max(1)
    }
}

/// Returns the position of `number` in the in-order binary tree. All odd numbers are leaves. Let
/// 2^b be the lowest set bit of an even number. The number's left child is the number minus
/// 2^(b-1). The number's right child is the number plus 2^a, where a is the largest value below b
/// that keeps the sum below `ranks`; if there is no such a, the number has no right child. The root
/// is 0. The root's only child, if any, is the largest power of two below `ranks`.
///
/// ```text
///    0
///     \
///        4
///      /   \
///     2     6
///    / \   / \
///   1   3 5   7
/// ```
fn in_order(number: u32, ranks: u32) -> Tree {
    let bit = match number {
        0 => ranks.next_power_of_two(),
        _ => 1 << number.trailing_zeros(),
    };
    let parent = (number > 0).then(|| {
        let below = number - bit;
        if below | (2 * bit) < ranks { below | (2 * bit) } else { below }
    });
    let left = (number > 0 && bit > 1).then(|| number - bit / 2);
    let right = (0..bit.trailing_zeros()).rev().map(|b| number + (1 << b)).find(|r| *r < ranks);
    Tree { parent, children: left.into_iter().chain(right).collect() }
}

/// Returns a rank's positions in two binary trees over all ranks. Inner nodes of one tree are
/// leaves of the other (except rank 0 if the number of ranks is odd), so that the two trees
/// together load all ranks about equally.
pub(in crate::algorithm) fn double_tree(rank: Rank, ranks: u32) -> [Tree; 2] {
    let other = if ranks.is_multiple_of(2) {
        in_order(ranks - 1 - rank, ranks).map(|number| ranks - 1 - number)
    } else {
        in_order(before(rank, 1, ranks), ranks).map(|number| after(number, 1, ranks))
    };
    [in_order(rank, ranks), other]
}

/// Returns a rank's positions in two trees below a given root: the root is the parent of the roots
/// of a [`double_tree`] over all other ranks.
pub(in crate::algorithm) fn rooted_double_tree(params: &Params<'_>) -> [Tree; 2] {
    let Params { rank, ranks, root, .. } = *params;
    if ranks == 1 {
        return [0, 1].map(|_| Tree { parent: None, children: Vec::new() });
    }
    let others = ranks - 1;
    let name = |number: u32| after(number + 1, root, ranks);
    if rank == root {
        let second = if others.is_multiple_of(2) { others - 1 } else { 1 % others };
        return [0, second].map(|top| Tree { parent: None, children: vec![name(top)] });
    }
    double_tree(before(rank, root, ranks) - 1, others).map(|tree| {
        let tree = tree.map(name);
        Tree { parent: tree.parent.or(Some(root)), ..tree }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::Hosts;

    /// Checks that only the root has no parent, that the lists of children agree with the parents,
    /// and that the tree is connected.
    fn check(trees: &[Tree], root: Rank) {
        for (rank, tree) in (0..).zip(trees) {
            assert_eq!(tree.parent.is_none(), rank == root, "rank {rank}: {trees:?}");
            for child in &tree.children {
                assert_eq!(trees[*child as usize].parent, Some(rank), "rank {child}: {trees:?}");
            }
            let mut at = rank;
            for _ in 0..trees.len() {
                at = trees[at as usize].parent.unwrap_or(at);
            }
            assert_eq!(at, root, "{trees:?}");
        }
        let edges: usize = trees.iter().map(|tree| tree.children.len()).sum();
        assert_eq!(edges, trees.len() - 1);
    }

    #[test]
    fn every_tree_is_connected() {
        for ranks in 1..70 {
            let hosts = Hosts::one(ranks);
            for half in 0..2 {
                let trees: Vec<Tree> =
                    (0..ranks).map(|rank| double_tree(rank, ranks)[half].clone()).collect();
                let root = trees.iter().position(|tree| tree.parent.is_none()).unwrap() as Rank;
                check(&trees, root);
                assert!(trees.iter().all(|tree| tree.children.len() <= 2));
            }
            for root in 0..ranks {
                let params = |rank| Params { rank, ranks, root, hosts: &hosts };
                for half in 0..2 {
                    let tree = |rank| rooted_double_tree(&params(rank))[half].clone();
                    check(&(0..ranks).map(tree).collect::<Vec<_>>(), root);
                }
                let binomial = |rank| {
                    let node = Binomial::of(rank, ranks, root);
                    let children = node.children.iter().map(|child| child.rank).collect();
                    Tree { parent: node.parent, children }
                };
                check(&(0..ranks).map(binomial).collect::<Vec<_>>(), root);
            }
        }
    }

    #[test]
    fn inner_nodes_of_one_tree_are_leaves_of_the_other() {
        for ranks in 1..70u32 {
            let inner_twice = (0..ranks)
                .filter(|rank| double_tree(*rank, ranks).iter().all(|t| !t.children.is_empty()))
                .count();
            assert!(inner_twice <= usize::from(ranks % 2 == 1), "{ranks} ranks: {inner_twice}");
        }
    }

    #[test]
    fn widest_is_the_size_of_the_largest_subtree_below_the_root() {
        for ranks in 1..70 {
            let root = Binomial::of(0, ranks, 0);
            let widest = root.children.iter().map(|child| child.size).max().unwrap_or(1);
            assert_eq!(Binomial::widest(ranks), widest, "{ranks}");
        }
    }
}
