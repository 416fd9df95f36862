//! How long a collective takes: the programs of all ranks run in virtual time ([`engine`]), over
//! links that are modelled as ports and latencies ([`walk`], [`predict`]), with numbers that are
//! known by name ([`figures`]).

pub mod engine;
pub mod figures;
mod load;
pub mod predict;
pub mod walk;
