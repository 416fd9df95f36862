//! Nobody leaves before everybody has entered: an `all_reduce` of one element whose operator does
//! not mind counting a rank twice (maximum).

mod dissemination;

use super::{Algorithm, all_reduce};
use crate::types::Collective::Barrier;

pub(super) const ALGORITHMS: [Algorithm; 2] =
    [dissemination::ALGORITHM, all_reduce::DIRECT.also_for(Barrier)];
