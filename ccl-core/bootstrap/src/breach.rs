//! Breaches of the protocol of the control plane.

use thiserror::Error;

use super::caller::MemberJoinError;
use super::frame::FrameError;
use ccl_core::encoding::MessageError;
use ccl_core::types::Rank;

/// Breach of the protocol by a connected rank. The breach ends the connection with that rank.
#[derive(Debug, Error)]
pub(super) enum Breach {
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error(transparent)]
    Message(#[from] MessageError),
    #[error(transparent)]
    Join(#[from] MemberJoinError),
    #[error("a message about a rank that is not among the {ranks} ranks")]
    UnknownRank { ranks: u32 },
    #[error("a part of exchange {sequence}, which is not in progress")]
    NotInProgress { sequence: u64 },
    #[error("a second part from rank {rank} in exchange {sequence}")]
    SecondPart { rank: Rank, sequence: u64 },
    #[error("a message that neighbours do not send each other")]
    NoNeighbours,
    #[error("a message out of turn")]
    OutOfTurn,
}
