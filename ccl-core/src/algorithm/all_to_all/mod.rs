//! Algorithms of `all_to_all` and `all_to_all_v`: block j of rank i becomes block i of rank j. In
//! `all_to_all_v` a rank knows the lengths of the blocks that it sends and receives, but not the
//! lengths of blocks between other ranks, so only the direct algorithm serves `all_to_all_v`.

mod bruck;
mod direct;
mod hierarchical;

use super::Algorithm;
use crate::types::Collective::AllToAllV;

pub(super) const ALGORITHMS: [Algorithm; 4] = [
    bruck::ALGORITHM,
    direct::ALGORITHM,
    direct::ALGORITHM.also_for(AllToAllV),
    hierarchical::ALGORITHM,
];
