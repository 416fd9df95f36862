//! Algorithms of `all_reduce`: every rank gets the reduction of all inputs.

mod direct;
mod direct_two_phase;
mod double_tree;
mod halving_doubling;
mod hierarchical;
mod recursive_doubling;
mod ring;

use super::Algorithm;

pub(super) use direct::ALGORITHM as DIRECT;

pub(super) const ALGORITHMS: [Algorithm; 7] = [
    ring::ALGORITHM,
    double_tree::ALGORITHM,
    recursive_doubling::ALGORITHM,
    halving_doubling::ALGORITHM,
    direct::ALGORITHM,
    direct_two_phase::ALGORITHM,
    hierarchical::ALGORITHM,
];
