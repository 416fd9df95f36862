//! Errors that end a link: on its side connection (the TCP connection over which the two sides
//! exchange their queue pairs and notes), or while its queue pairs are being connected.

use std::net::IpAddr;

use ccl_core::transport::TransportError;
use ccl_socket::LinkEnd;
use thiserror::Error;

/// Error that ends a link, found on its side connection.
#[derive(Debug, Error)]
pub(crate) enum EndpointError {
    #[error(transparent)]
    Side(#[from] LinkEnd),
    #[error("{peer}: {error}")]
    Connect { peer: String, error: ConnectError },
    /// Reason that the peer gives for ending the link.
    #[error("{peer} says: {reason}")]
    Failed { peer: String, reason: String },
    #[error("{peer} sent an unexpected message")]
    OutOfTurn { peer: String },
}

impl EndpointError {
    pub(crate) fn connect(peer: &str, error: ConnectError) -> EndpointError {
        EndpointError::Connect { peer: peer.to_owned(), error }
    }
}

/// Reason why queue pairs cannot be connected with those that the peer offers.
#[derive(Debug, Error)]
pub(crate) enum ConnectError {
    #[error("it sent an invalid offer of queue pairs")]
    NoOffer,
    #[error("it offers {theirs} queue pairs, and this side {own}; configure all ranks alike")]
    Pairs { theirs: usize, own: usize },
    #[error("one side's port is InfiniBand, and the other side's is Ethernet")]
    LinkLayers,
    #[error(
        "its address {their} and this side's address {own} are of different families; set \
         FERROCCL_IB_ADDR_FAMILY alike on all ranks"
    )]
    Families { their: IpAddr, own: IpAddr },
    #[error(
        "row {0} of the GID table is beyond 255, the last that a queue pair can use; \
         choose another row (FERROCCL_IB_GID_INDEX)"
    )]
    Row(u32),
    #[error(transparent)]
    Transport(#[from] TransportError),
}
