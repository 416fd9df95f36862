//! The engine of ferroccl without an operating system: what a collective is ([`types`]), how it
//! is done ([`algorithm`]), written down ([`schedule`]), made ready to run ([`lower`]) and carried
//! out ([`execution`]), over memory that ranks map or over messages ([`admission`]). No clock, thread,
//! file, socket or environment is touched here.

#![forbid(unsafe_code)]

pub mod admission;
pub mod algorithm;
pub mod execution;
pub mod lower;
pub mod schedule;
pub mod time;
pub mod transport;
pub mod types;
