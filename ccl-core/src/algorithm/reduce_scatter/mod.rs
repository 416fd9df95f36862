//! Algorithms of `reduce_scatter` and `reduce_scatter_v`: rank r gets block r of the reduction.
//! Lengths are always those of the input's blocks. All ranks know the lengths of all blocks, so
//! both collectives have the same algorithms.

mod direct;
mod hierarchical;
mod recursive_halving;
mod ring;

use super::Algorithm;
use crate::types::Collective::ReduceScatterV;

pub(super) const ALGORITHMS: [Algorithm; 8] = [
    ring::ALGORITHM,
    recursive_halving::ALGORITHM,
    direct::ALGORITHM,
    ring::ALGORITHM.also_for(ReduceScatterV),
    recursive_halving::ALGORITHM.also_for(ReduceScatterV),
    direct::ALGORITHM.also_for(ReduceScatterV),
    hierarchical::ALGORITHM,
    hierarchical::ALGORITHM.also_for(ReduceScatterV),
];
