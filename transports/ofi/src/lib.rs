//! libfabric, opened at run time: its providers, what they can do ([`providers`]), whether they do
//! it ([`test_provider`]), and a transport over one of them ([`OfiTransport`]).
//!
//! # How it works
//!
//! A lane has one reliable datagram endpoint (`FI_EP_RDM`) for all its peers, or for each 16 of
//! them where the data of writes is short; nothing relies on an order. Over EFA, a put is a write
//! with data (`FI_RMA`, `FI_REMOTE_CQ_DATA`), which completes at both sides; the data tells the
//! peer and the immediate (see `tag`), the completion the length. Credits and CTS are written by an
//! endpoint of their own, in a traffic class of their own where there is one (see `endpoints`).
//! Endpoints are not connected, so each peer has keys of its own, which end with its link.
//!
//! Providers in software check the key of a write at its beginning only: the rest of a write
//! arrives in memory that was deregistered meanwhile. So it is with EFA's adapters that do not
//! write, for which its provider sends messages. Over verbs registrations are cached, and
//! completions need not tell the length. There, a put is messages, each with a head that has the
//! token of the link and says where its bytes go, and the receiver's lane copies them (see
//! `messages`).
//!
//! A TCP connection beside, whose two sides have proved the secret, carries addresses and notes,
//! and its end is the peer's: the side that leaves tells how many immediates it has sent, and the
//! other counts them.
//!
//! # What is missing
//!
//! Over the provider `shm` libfabric itself fails in some points of the conformance suite: 1.17
//! when a peer is inserted that has died, 2.5 when many messages go both ways within one process.

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
