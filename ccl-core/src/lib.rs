//! The engine of ferroccl without an operating system: what a collective is ([`types`]) and how
//! time is told ([`time`]). No clock, thread, file, socket or environment is touched here.

#![forbid(unsafe_code)]

pub mod bootstrap;
pub mod time;
pub mod types;
