//! Algorithms of `scatter` and `scatter_v`: rank r gets block r of the root's input. Other ranks
//! have no input, and in `scatter_v` they know only the length of their own block. In a tree they
//! would forward blocks of unknown lengths, so only the direct algorithm serves `scatter_v`.

mod direct;
mod tree;

use super::Algorithm;
use crate::types::Collective::ScatterV;

pub(super) const ALGORITHMS: [Algorithm; 3] =
    [tree::ALGORITHM, direct::ALGORITHM, direct::ALGORITHM.also_for(ScatterV)];
