//! Algorithms of `all_gather` and `all_gather_v`: every rank gets all inputs. Lengths are always
//! taken from the output's blocks, which all ranks know, so both collectives have the same
//! algorithms.

mod bruck;
mod direct;
mod hierarchical;
mod recursive_doubling;
mod ring;

use super::Algorithm;
use crate::types::Collective::AllGatherV;

pub(super) const ALGORITHMS: [Algorithm; 10] = [
    ring::ALGORITHM,
    recursive_doubling::ALGORITHM,
    bruck::ALGORITHM,
    direct::ALGORITHM,
    ring::ALGORITHM.also_for(AllGatherV),
    recursive_doubling::ALGORITHM.also_for(AllGatherV),
    bruck::ALGORITHM.also_for(AllGatherV),
    direct::ALGORITHM.also_for(AllGatherV),
    hierarchical::ALGORITHM,
    hierarchical::ALGORITHM.also_for(AllGatherV),
];
