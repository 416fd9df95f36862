//! The engine of ferroccl without an operating system: what a collective is ([`types`]), how it
//! is written down ([`schedule`]) by which algorithms ([`algorithm`]), which one is taken
//! ([`select`]), proved right ([`verify`]), made ready to run ([`lower`]) and carried out
//! ([`execution`]); what joins ranks ([`transport`]) and how they find and trust each other
//! ([`bootstrap`]), which of them share a host ([`topology`]), how long that takes ([`cost`]), and
//! what is in flight between them ([`admission`]); every tunable ([`config`]). No clock, thread,
//! file, socket or environment is touched here.

#![forbid(unsafe_code)]

pub mod admission;
pub mod algorithm;
pub mod bootstrap;
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
