//! libfabric, opened at run time: its providers and their features ([`providers`]), a test of a
//! provider ([`test_provider`]), and a transport over a provider ([`OfiTransport`]).
//!
//! # How it works
//!
//! A lane has reliable datagram endpoints (`FI_EP_RDM`). Nothing relies on the order in which puts
//! arrive. Over EFA, a put is a write with remote CQ data (`FI_RMA`, `FI_REMOTE_CQ_DATA`), which
//! completes at both sides. The CQ data carries the immediate, of at most 28 bits, and the number
//! by which the receiver knows the sender (see `tag`); the completion has the length. EFA's CQ data
//! has 32 bits, which leave four for the number, so the lane has an endpoint for every 16 peers.
//! Credits and CTS use an endpoint of their own if the provider has a low-latency traffic class
//! (see `endpoints`). Endpoints are not connected, so only keys protect memory from a peer: memory
//! has a key of its own for each peer, and the key is valid until the peer's link ends.
//!
//! Software providers check the key of a write only when the write begins: if the memory is
//! deregistered during the write, the rest still arrives there. The same holds for EFA adapters
//! without RDMA writes: for them, EFA's provider sends messages instead of writes. The provider
//! `verbs` caches registrations, so with this provider, too, the rest of a write may arrive;
//! moreover, completions of this provider may lack the length. Over all these providers and
//! adapters, one endpoint serves all peers of a lane, and a put is one or more messages. Each
//! message has a head with the destination of the message's bytes, and with a token that the
//! receiver has given the sender. The receiver's lane copies the bytes to that destination, or
//! leaves them in its receive buffer for the reader (see `messages`).
//!
//! An authenticated TCP connection between the two lanes carries addresses and notes; it ends when
//! the peer's process ends. A side that leaves reports how many immediates it has sent, and the
//! other side sends a confirmation when all of them have arrived.
//!
//! # What is missing
//!
//! Over the provider `shm`, libfabric itself crashes if two ranks of one process use it: at a put
//! to an endpoint that the process has closed and, in version 2.5, at long messages in both
//! directions. Ranks that are processes of their own do not crash. But in all versions except 2.5,
//! the provider's processes share locks: a rank that is killed or stopped while it holds such a
//! lock makes a call of another rank wait without a limit.

mod device;
mod endpoints;
mod kind;
mod lane;
mod memory;
mod messages;
mod native;
mod peer;
mod posted;
mod provider;
mod requests;
mod selftest;
mod staging;
mod tag;
mod transport;

pub use device::{OfiDevice, Options};
pub use kind::KIND;
pub use native::OfiError;
pub use provider::{Provider, providers};
pub use selftest::{Passed, TestError, test_provider};
pub use transport::OfiTransport;
