//! Reasons for the end of a stripe: one of the TCP connections over which the bytes of a link are
//! striped.

use ccl_memory::RegionError;
use ccl_socket::ConnectionEnd;
use thiserror::Error;

/// Reason why a stripe is no longer read.
#[derive(Debug, Error)]
pub(crate) enum StripeEnd {
    /// The connection broke; it can be restored.
    #[error(transparent)]
    Broken(ConnectionEnd),
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
}

/// Reason to give up a peer: it breaks the protocol, or cannot go on after a break. In messages,
/// the peer's name precedes these texts.
#[derive(Debug, Error)]
pub(crate) enum ProtocolError {
    #[error("sent bytes that are not a frame")]
    NoFrame,
    #[error("wrote to memory that was not shared with it")]
    NotShared,
    #[error("acknowledged frames that were never sent")]
    NeverSent,
    #[error("resumed a connection that was not broken")]
    NotBroken,
    /// A broken connection has lost this number of messages, which cannot be sent again.
    #[error(
        "has not received {0} messages, which cannot be sent again because their memory was \
         released"
    )]
    GivenBack(usize),
    #[error("sent bytes that cannot be written to their target: {0}")]
    Memory(#[from] RegionError),
}
