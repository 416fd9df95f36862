//! Algorithms of `gather` and `gather_v`: the root gets all inputs in rank order. Other ranks have
//! no output, and in `gather_v` they know only the length of their own block. In a tree they would
//! forward blocks of unknown lengths, so only the direct algorithm serves `gather_v`.

mod direct;
mod tree;

use super::Algorithm;
use crate::types::Collective::GatherV;

pub(super) const ALGORITHMS: [Algorithm; 3] =
    [tree::ALGORITHM, direct::ALGORITHM, direct::ALGORITHM.also_for(GatherV)];
