//! libfabric, opened at run time: its providers, what they can do ([`providers`]), whether they do
//! it ([`test_provider`]), and a transport over one of them ([`OfiTransport`]).
//!
//! # How it works
//!
//! A lane has one reliable datagram endpoint (`FI_EP_RDM`) for all its peers. A put is a write with
//! data (`FI_RMA`, `FI_REMOTE_CQ_DATA`), which completes at both sides; nothing relies on an order.
//! The data tells the peer, the immediate and the length (see `tag`). Endpoints are not connected,
//! so each peer has keys of its own, which end with its link. A TCP connection beside, whose two
//! sides have proved the secret, carries addresses and notes, and its end is the peer's: the side
//! that leaves tells how many immediates it has sent, and the other counts them.
//!
//! # What is missing
//!
//! The registry of ferroccl does not list it yet. Providers in software check the key of a write at
//! its beginning only, so that memory that is deregistered may still be written by the rest: they
//! need messages in the place of writes. A connection beside that breaks is not made anew.
//! Nothing wakes a lane that sleeps.

mod device;
mod lane;
mod memory;
mod native;
mod peer;
mod provider;
mod requests;
mod selftest;
mod tag;
mod transport;

pub use device::{OfiDevice, Options};
pub use native::OfiError;
pub use provider::{Provider, providers};
pub use selftest::{Passed, TestError, test_provider};
pub use transport::OfiTransport;
