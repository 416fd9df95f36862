//! Prediction of the time of collectives: the programs of all ranks run in virtual time
//! ([`engine`]), over links that are modelled as ports and latencies ([`walk`], [`predict`]), with
//! parameters that are known by name ([`figures`]).

pub mod engine;
pub mod figures;
mod load;
pub mod predict;
pub mod walk;
