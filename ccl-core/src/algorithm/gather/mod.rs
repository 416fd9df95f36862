//! Algorithms of `gather` and `gather_v`: the root gets all inputs in rank order. Other ranks have
//! no output and know only the length of their own block, so only the direct algorithm serves
//! `gather_v`.

mod direct;
mod tree;

use super::Algorithm;
use crate::types::Collective::GatherV;

pub(super) const ALGORITHMS: [Algorithm; 3] =
    [tree::ALGORITHM, direct::ALGORITHM, direct::ALGORITHM.also_for(GatherV)];
