//! A transport whose wires are a data structure and whose clock is a number.
//!
//! A [`World`] joins a few ranks by links with latency, bandwidth, jitter, loss, duplication,
//! reordering and delay spikes, all drawn from one seed; ranks can be slow, and crash. Each rank
//! has a [`Device`](ccl_core::transport::Device) of its own, whose lanes move real bytes. Time
//! passes only from one event to the next, so that a run of many virtual seconds takes real
//! microseconds, and the same seed gives the same run.
//!
//! What a reliable transport hides stays hidden: a lost put is sent again after a timeout and
//! arrives late, a duplicate is thrown away. What it does not hide is shown: puts overtake each
//! other (unless [`Conditions::ordered`]), peers vanish, and the local bytes of a put are read as
//! late as they may be, so that whoever changes them too early is found out.
//!
//! [`run()`] carries out one operation on all ranks in virtual time, with a deadline.

#![forbid(unsafe_code)]

mod conditions;
mod connect;
mod device;
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
