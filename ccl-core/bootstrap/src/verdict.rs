//! Verdict of the survivors of a failure, and the messages by which they agree on it.

use super::RANKS_MAX;
use super::failure::Failure;
use ccl_core::encoding::RankSet;
use ccl_core::types::Rank;
use serde::{Deserialize, Serialize};

/// Verdict on which all survivors agree after a failure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// Number of verdicts that the ranks of this communicator reached before this one.
    pub epoch: u64,
    /// Ranks that are dead, in order. A rank that left in good order is neither here nor among the
    /// survivors.
    #[serde(with = "RankSet::<RANKS_MAX>")]
    pub dead: Vec<Rank>,
    /// Failure that ended the communicator.
    pub cause: Failure,
    /// Number of the last operation that every survivor had completed. Later operations are void,
    /// even those that ended well on some ranks.
    pub last_completed: u64,
    /// Ranks that can go on together, in order.
    #[serde(with = "RankSet::<RANKS_MAX>")]
    pub survivors: Vec<Rank>,
    /// Port at which the lowest survivor listens for the others, in case they go on.
    pub rendezvous_port: u16,
}

/// Question of a coordinator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Question {
    /// Request to stop completing operations, to report how far the rank is, and to promise to heed
    /// no lower coordinator.
    Prepare,
    /// Request to accept this verdict.
    Accept(Verdict),
}

/// Message of a coordinator to all ranks. The coordinator's rank serves as the ballot number of
/// Paxos: the lowest living rank coordinates, so later coordinators are higher.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ask {
    /// Number of the verdict to be reached.
    pub epoch: u64,
    /// Rank that coordinates.
    pub coordinator: Rank,
    /// Number of this message among those of the coordinator.
    pub attempt: u32,
    /// The question.
    pub question: Question,
    /// Verdict of the epoch before, if any, for ranks that have missed that verdict.
    pub previous: Option<Verdict>,
}

/// Answer of a rank to the coordinator. Ranks pass the answer back along the route of the question.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// Epoch of the question.
    pub epoch: u64,
    /// Coordinator of the question.
    pub coordinator: Rank,
    /// Rank that answers.
    pub rank: Rank,
    /// Content of the answer.
    pub vote: Vote,
}

/// Content of an answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Vote {
    /// Answer to [`Question::Prepare`].
    Promised {
        /// Number of the last operation that ended well on this rank; the number is now frozen.
        completed: u64,
        /// Verdict that this rank has accepted before, and the coordinator that asked for it.
        accepted: Option<(Rank, Verdict)>,
    },
    /// Answer to [`Question::Accept`].
    Accepted,
}
