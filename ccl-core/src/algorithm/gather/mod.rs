//! The root gets all inputs in rank order. Other ranks have no output, and know no block's length
//! but their own: only the direct way serves `gather_v`.

mod direct;
mod tree;

use super::Algorithm;
use crate::types::Collective::GatherV;

pub(super) const ALGORITHMS: [Algorithm; 3] =
    [tree::ALGORITHM, direct::ALGORITHM, direct::ALGORITHM.also_for(GatherV)];
