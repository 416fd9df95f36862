//! ferroccl: collective communication for clusters.

#[cfg(feature = "cli")]
pub mod perf;
