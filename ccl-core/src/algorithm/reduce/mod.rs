//! Algorithms of `reduce`: the root gets the reduction of all inputs. Other ranks have no output.

mod direct;
mod double_tree;
mod hierarchical;
mod ring;
mod tree;

use super::Algorithm;

pub(super) const ALGORITHMS: [Algorithm; 5] = [
    ring::ALGORITHM,
    tree::ALGORITHM,
    double_tree::ALGORITHM,
    direct::ALGORITHM,
    hierarchical::ALGORITHM,
];
