//! Rank r gets block r of the root's input. Other ranks have no input, and know no block's length
//! but their own: only the direct way serves `scatter_v`.

mod direct;
mod tree;

use super::Algorithm;
use crate::types::Collective::ScatterV;

pub(super) const ALGORITHMS: [Algorithm; 3] =
    [tree::ALGORITHM, direct::ALGORITHM, direct::ALGORITHM.also_for(ScatterV)];
