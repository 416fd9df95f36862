//! ferroccl: collective communication for clusters.

pub mod bootstrap;
mod clock;
pub mod communicator;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
pub mod launch;
pub mod log;
pub mod recorder;
mod run;
#[doc(hidden)]
pub mod tools;
#[doc(hidden)]
pub mod transports;

pub use ccl_core::config::{Config, NetworkCheck};
pub use ccl_core::types::{Collective, DataType, Rank, ReduceOp};
pub use communicator::{Communicator, Element, Error, Reduction};
pub use run::run;

/// The examples of the README are tested like any other.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
