//! Reasons why a link ends before or while it is connected.

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
    /// The peer's own reason for its end.
    #[error("{peer} says: {reason}")]
    Failed { peer: String, reason: String },
    #[error("{peer} spoke out of turn")]
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
    #[error("it offers queue pairs that cannot be")]
    NoOffer,
    #[error("it offers {theirs} queue pairs against {own} here; configure all ranks alike")]
    Pairs { theirs: usize, own: usize },
    #[error("one side is on InfiniBand and the other on Ethernet")]
    LinkLayers,
    #[error(
        "its address is {their} and this side's is {own}, of another family; set \
         FERROCCL_IB_ADDR_FAMILY alike on all ranks"
    )]
    Families { their: IpAddr, own: IpAddr },
    #[error("row {0} of addresses is beyond 255")]
    Row(u32),
    #[error(transparent)]
    Transport(#[from] TransportError),
}
