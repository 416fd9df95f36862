//! ferroccl: collective communication for clusters.

pub mod bootstrap;
pub mod launch;
#[cfg(feature = "cli")]
pub mod perf;
