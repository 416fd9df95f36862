//! Simulates how long collectives take on a fabric of switches.
//!
//! A network is links ([`network`]), of a zone ([`presets`]) or of any cluster that is described
//! ([`network::Plan::of`]); a flow takes some of them ([`routing`]) and shares them with others
//! ([`flows`], [`shares`]). Traffic, from coarse to fine:
//!
//! * [`streams`]: messages from NIC to NIC, for questions about routing; [`workload`] makes them of
//!   the schedules of a collective;
//! * [`queues`]: fluids from queue to queue, for questions about pauses and congestion control;
//! * [`collective`]: the messages of the real executions of all ranks, or of some that stand for
//!   all.
//!
//! [`scenario`] has the experiments; [`measure`] and [`report`] describe their results. Nothing
//! here knows a clock or the operating system (but the command line, feature `cli`); the same seed
//! gives the same bytes.

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
