//! Prediction of the time of collectives: [`engine`] runs the programs of all ranks in virtual
//! time, [`walk`] models links as ports and latencies, [`predict`] extrapolates to large calls, and
//! [`figures`] names the parameters.

pub mod engine;
pub mod figures;
mod load;
pub mod predict;
pub mod walk;
