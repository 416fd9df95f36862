//! ferroccl: collective communication for clusters.
//!
//! Ranks (processes) reduce and exchange buffers together, over shared memory, TCP and RDMA. Begin
//! with [`Communicator`]: its methods are the collectives. [`run()`] starts a program on several
//! ranks of this machine or, under a launcher, joins the ranks that the launcher started:
//!
//! ```no_run
//! use ferroccl::{Error, Reduction};
//!
//! fn main() -> std::process::ExitCode {
//!     ferroccl::run(4, |communicator| {
//!         let mut data = vec![communicator.rank() as f32; 1000];
//!         communicator.all_reduce_in_place(&mut data, Reduction::Sum)?;
//!         Ok::<(), Error>(())
//!     })
//! }
//! ```
//!
//! * Calls that do not block: [`Communicator::start_all_reduce`] and its siblings, and
//!   [`Communicator::scope`] for borrowed buffers.
//! * Messages between two ranks: [`Communicator::group`].
//! * After a failure: [`Communicator::agree`], [`Communicator::shrink`], [`Communicator::grow`].
//! * Buffers that stay registered with the network: [`Communicator::register`].
//! * Settings: [`Config`], read from `FERROCCL_*` variables by
//!   [`Communicator::from_environment`].
//! * Reasons for the algorithm of a call: [`communicator::explain`].
//! * Joining by hand: [`bootstrap`]; launchers: [`launch`].
//! * A transport of your own: [`transports::add`].
//! * Finding the rank that is stuck: [`recorder`].

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
pub mod transports;

pub use ccl_core::config::{Config, NetworkCheck};
pub use ccl_core::types::{Collective, DataType, Rank, ReduceOp};
pub use communicator::{Communicator, Element, Error, Reduction};
pub use run::run;

/// Examples of the README, which are tested as documentation examples.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
