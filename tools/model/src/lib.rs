//! Models of machines and networks, for planning and prediction: topologies, cost of communication,
//! plans, placement, and the traces that other tools write and read.

pub mod cost;
pub mod exchange;
pub mod place;
pub mod plan;
pub mod quantity;
pub mod topology;

/// Fuzz targets of this crate, as in `ccl_core::fuzzing`.
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
