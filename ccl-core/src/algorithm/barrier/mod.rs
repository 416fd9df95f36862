//! Algorithms of `barrier`: no rank leaves before every rank has entered. A barrier is an
//! `all_reduce` of one element. Its operator is the maximum, so it does no harm to count a rank
//! twice.

mod dissemination;

use super::{Algorithm, all_reduce};
use crate::types::Collective::Barrier;

pub(super) const ALGORITHMS: [Algorithm; 2] =
    [dissemination::ALGORITHM, all_reduce::DIRECT.also_for(Barrier)];
