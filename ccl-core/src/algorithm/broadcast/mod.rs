//! Algorithms of `broadcast`: every rank gets the root's input.

mod direct;
mod double_tree;
mod hierarchical;
mod ring;
mod scatter_all_gather;
mod tree;

use super::Algorithm;

pub(super) const ALGORITHMS: [Algorithm; 6] = [
    ring::ALGORITHM,
    tree::ALGORITHM,
    double_tree::ALGORITHM,
    scatter_all_gather::ALGORITHM,
    direct::ALGORITHM,
    hierarchical::ALGORITHM,
];
