//! The engine of ferroccl, independent of any operating system. The engine touches no clock,
//! thread, file, socket or environment.
//!
//! * Collectives ([`types`]): their schedules ([`schedule`]) and algorithms ([`algorithm`]), the
//!   selection of an algorithm ([`select`]), verification ([`verify`]), lowering ([`lower`]),
//!   execution ([`execution`]) and the cost model ([`cost`]).
//! * Ranks: transports ([`transport`]), the hosts that ranks share ([`topology`]), and the
//!   admission of messages ([`admission`]). Joining has its own crate, `ccl-bootstrap`.
//! * Tunables: [`config`].

#![forbid(unsafe_code)]

pub mod admission;
pub mod algorithm;
pub mod config;
pub mod cost;
pub mod encoding;
pub mod execution;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
pub mod lower;
pub mod queue_pairs;
pub mod random;
pub mod registry;
pub mod schedule;
pub mod select;
pub mod time;
pub mod topology;
pub mod transport;
pub mod types;
pub mod value;
pub mod verify;
