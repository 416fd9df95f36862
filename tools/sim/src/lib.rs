//! Simulates how long collectives take on a fabric of switches.
//!
//! A network is a set of links ([`network`]): a variant of the network in Meta's paper on RoCE
//! ([`presets`]), or any cluster with a description ([`network::Plan::of`]). A flow takes a path of
//! links ([`routing`]) and shares each link with others ([`flows`], [`shares`]). Traffic is
//! simulated as one of these, from coarse to fine:
//!
//! * [`streams`]: messages from NIC to NIC, for questions about routing; [`workload`] derives the
//!   streams from the schedules of a collective;
//! * [`queues`]: flows as fluids that move from queue to queue, for questions about pauses and
//!   congestion control;
//! * [`collective`]: the messages of a collective's programs, run by all ranks, or by some that
//!   stand for all.
//!
//! [`scenario`] has the experiments; [`measure`] and [`report`] describe their results. Except for
//! the command line ([`run`]), no code here uses a clock or the operating system. The same seed
//! gives the same output, byte for byte.

#![forbid(unsafe_code)]

mod cli;
pub mod collective;
mod error;
pub mod flows;
pub mod measure;
pub mod network;
pub mod presets;
pub mod queues;
pub mod report;
pub mod routing;
pub mod scenario;
pub mod shares;
pub mod streams;
mod topology;
pub mod workload;

pub use cli::{Arguments, CliError, Files, run, said};
pub use error::SimError;
