//! What the survivors of a failure agree on, and the messages by which they do.

use super::RANKS_MAX;
use super::message::Failure;
use crate::encoding::RankSet;
use crate::types::Rank;
use serde::{Deserialize, Serialize};

/// What all survivors agree on after a failure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// How many verdicts the ranks of this communicator reached before this one.
    pub epoch: u64,
    /// The ranks that are dead, in order. Who left in good order is neither here nor among the
    /// survivors.
    #[serde(with = "RankSet::<RANKS_MAX>")]
    pub dead: Vec<Rank>,
    /// What ended the communicator.
    pub cause: Failure,
    /// The number of the last operation that every survivor had completed; later ones are void,
    /// even where they had ended well.
    pub last_completed: u64,
    /// The ranks that can go on together, in order.
    #[serde(with = "RankSet::<RANKS_MAX>")]
    pub survivors: Vec<Rank>,
    /// Where the lowest survivor listens for the others, in case they do: a port at its address.
    pub rendezvous_port: u16,
}

/// What a coordinator wants to know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Question {
    /// Promise to heed no lower coordinator, stop completing operations, and say how far you are.
    Collect,
    /// Accept this.
    Accept(Verdict),
}

/// A coordinator's message to all ranks. The coordinator's rank is its ballot: who coordinates
/// is the lowest living rank, so later ones are higher.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ask {
    /// Number of the verdict to be reached.
    pub epoch: u64,
    /// Who coordinates.
    pub coordinator: Rank,
    /// Counts the messages of this coordinator.
    pub attempt: u32,
    /// What it asks.
    pub question: Question,
    /// The verdict before, for those who have missed it.
    pub previous: Option<Verdict>,
}

/// What a rank answers; ranks in between pass it on to the coordinator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// Of the question.
    pub epoch: u64,
    /// Of the question.
    pub coordinator: Rank,
    /// Who answers.
    pub rank: Rank,
    /// The answer.
    pub vote: Vote,
}

/// An answer's content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Vote {
    /// To [`Question::Collect`].
    Promised {
        /// Number of the last operation that ended well here; it stays that.
        completed: u64,
        /// What this rank has accepted before, and from whom.
        accepted: Option<(Rank, Verdict)>,
    },
    /// To [`Question::Accept`].
    Accepted,
}
