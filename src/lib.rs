//! ferroccl: collective communication for clusters.

pub mod bootstrap;
pub mod communicator;
#[cfg(feature = "cli")]
pub mod cost;
#[cfg(feature = "cli")]
pub mod doctor;
#[cfg(feature = "cli")]
pub mod exchange;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
pub mod launch;
pub mod log;
#[cfg(feature = "cli")]
pub mod machine;
#[cfg(feature = "cli")]
pub mod perf;
#[cfg(feature = "cli")]
pub mod place;
#[cfg(feature = "cli")]
pub mod plan;
#[cfg(feature = "cli")]
mod quantity;
pub mod recorder;
#[cfg(feature = "cli")]
pub mod topology;
#[cfg(feature = "cli")]
pub mod tune;

pub use ccl_core::config::{Config, NetworkCheck};
pub use ccl_core::types::{Collective, DataType, Rank, ReduceOp};
pub use communicator::{Communicator, Element, Error, Reduction};

/// The examples of the README are tested like any other.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
