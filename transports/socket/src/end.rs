//! Reasons why a connection has ended, and why a broken one is not made anew.

use std::time::Duration;

use ccl_core::transport::TransportError;
use rustix::io::Errno;
use thiserror::Error;

/// Reason why a connection is no longer read or written. The texts say "it" for the peer: messages
/// name the peer before the text.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ConnectionEnd {
    /// End of the stream.
    #[error("it closed the connection without a farewell")]
    Closed,
    /// Error of the operating system.
    #[error("{}", crate::text(*.0))]
    System(Errno),
    /// End of the encrypted channel.
    #[error("it ended the encrypted channel")]
    ChannelEnded,
    /// Bytes that do not decrypt, with the error of TLS.
    #[error("the received bytes do not decrypt: {0}")]
    Forged(String),
    /// Another failure of TLS.
    #[error("{0}")]
    Tls(String),
}

/// Reason why a [`crate::SideConnection`] has ended.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SideEnd {
    /// The connection broke. It can be made anew, and no message is lost.
    #[error(transparent)]
    Broken(ConnectionEnd),
    /// The peer has ended the connection.
    #[error("it has closed the connection")]
    Farewell,
    /// The peer announces a message longer than the limit.
    #[error("it sent a message longer than the limit")]
    TooLong,
    /// The peer sends an unknown message, or one out of turn.
    #[error("it sent an unknown or unexpected message")]
    Nonsense,
}

/// Reason why a broken connection is not made anew. In the text of [`LinkEnd::Broken`], the reason
/// follows the words "the connection to … broke (…) and".
#[derive(Debug, Error)]
pub enum ReconnectError {
    /// The peer refuses the new connection.
    #[error("could not be made anew: {0}")]
    Refused(TransportError),
    /// No process listens at the peer's address.
    #[error("no process listens there any more: the peer ended, or a firewall refuses connections")]
    Gone,
    /// The peer has not resumed on a new connection within this time.
    #[error("did not come back within {0:?}")]
    Late(Duration),
}

/// Reason why a link's connection has ended for good.
#[derive(Debug, Error)]
pub enum LinkEnd {
    /// The connection has ended and is not made anew.
    #[error("{peer}: {end}")]
    Ended {
        /// Address of the peer.
        peer: String,
        /// Reason why the connection has ended.
        end: SideEnd,
    },
    /// The connection broke, and was not mended.
    #[error("the connection to {peer} broke ({end}) and {outcome}")]
    Broken {
        /// Address of the peer.
        peer: String,
        /// Reason why the connection broke.
        end: ConnectionEnd,
        /// Reason why the connection was not mended.
        outcome: ReconnectError,
    },
}
