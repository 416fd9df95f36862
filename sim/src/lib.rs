//! How long collectives take on a fabric of switches.
//!
//! A network is links ([`network`]); a flow takes some of them ([`routing`]) and shares them with
//! others ([`flows`], [`shares`]).

#![forbid(unsafe_code)]

pub mod collective;
mod error;
pub mod flows;
pub mod measure;
pub mod network;
pub mod plot;
pub mod presets;
pub mod queues;
pub mod report;
pub mod routing;
pub mod scenario;
pub mod shares;
pub mod streams;
pub mod workload;

pub use error::SimError;
