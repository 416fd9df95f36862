//! Transport over simulated wires in virtual time.
//!
//! A [`World`] joins a few ranks by links with latency, bandwidth, jitter, loss, duplication,
//! reordering and delay spikes, all drawn from one seed. Ranks can be slow and can crash. Each rank
//! has a [`Device`](ccl_core::transport::Device) of its own, whose lanes move real bytes. Time
//! jumps from one event to the next, so virtual time in which nothing happens costs no real time.
//! The same seed gives the same run.
//!
//! A reliable transport hides loss and duplication, and so does this one: a lost put is sent again
//! after a timeout and arrives late, and a duplicate is dropped. Other effects are visible: puts
//! overtake each other (unless [`Conditions::ordered`]), peers vanish, and the local bytes of a put
//! are read as late as the contract allows, which exposes a caller that changes them too early.
//!
//! [`run()`] executes one operation on all ranks in virtual time, with a deadline.

#![forbid(unsafe_code)]

mod conditions;
mod connect;
mod device;
mod flight;
mod lane;
mod late;
mod mesh;
mod run;
mod state;
mod wire;
mod world;

pub use ccl_core::random::Random;
pub use conditions::{Conditions, Cut};
pub use device::SimTransport;
pub use mesh::mesh;
pub use run::{Operation, Outcome, Process, Step, run};
pub use state::Stats;
pub use world::World;
