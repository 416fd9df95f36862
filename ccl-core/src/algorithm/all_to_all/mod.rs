//! Block j of rank i becomes block i of rank j. In `all_to_all_v` a rank knows the lengths of what
//! it sends and what it gets, but not of what others exchange: only the direct way serves it.

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
