//! Failure of a rank, as the ranks report it to each other.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::TEXT_BYTES_MAX;
use ccl_core::encoding::Text;
use ccl_core::types::Rank;

/// Failure of a rank, with the reason. A failure of any rank ends the communicator.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
#[error("rank {rank} {reason}")]
pub struct Failure {
    /// The rank that is to blame.
    pub rank: Rank,
    /// Reason of the failure.
    pub reason: FailureReason,
}

/// Reason why a rank failed.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
pub enum FailureReason {
    /// The connection of the rank closed without a goodbye.
    #[error("died: its connection closed without a goodbye")]
    HungUp,
    /// The rank has been silent for too long.
    #[error("has been silent for {silence_ms} ms: it is stopped, overloaded or cut off")]
    Silent {
        /// Length of the silence, in milliseconds.
        silence_ms: u32,
    },
    /// Nothing listens at the rank's control port any more: the rank died, or has gone on in
    /// another communicator, without the rank that reports this.
    #[error("died or has left: nobody listens at its control port any more")]
    Refused,
    /// The survivors agreed that the rank is dead.
    #[error("counts as dead by agreement of the survivors")]
    Agreed,
    /// The rank gave up by itself.
    #[error("gave up: {text}")]
    Aborted {
        /// Reason in the rank's own words.
        #[serde(with = "Text::<TEXT_BYTES_MAX>")]
        text: String,
    },
    /// The rank failed, as another rank reported.
    #[error("failed, says rank {by}: {text}")]
    Reported {
        /// Rank that reports the failure.
        by: Rank,
        /// Reason in the words of that rank.
        #[serde(with = "Text::<TEXT_BYTES_MAX>")]
        text: String,
    },
    /// The rank's own program has given up for good after a failure: the rank does not go on with
    /// the survivors.
    #[error("gave up after the failure: {text}")]
    Withdrew {
        /// Reason in the rank's own words.
        #[serde(with = "Text::<TEXT_BYTES_MAX>")]
        text: String,
    },
    /// The rank holds up the others. The ranks found this by comparing notes after a deadline.
    #[error("{text}")]
    Stuck {
        /// Time for which the overdue operation had made no progress, in milliseconds.
        stalled_ms: u32,
        /// Description of how the rank holds up the others, to be read after "rank N".
        #[serde(with = "Text::<TEXT_BYTES_MAX>")]
        text: String,
    },
    /// The rank sent a message that breaks the protocol.
    #[error("broke the protocol of the control connection: {text}")]
    Protocol {
        /// Description of the breach.
        #[serde(with = "Text::<TEXT_BYTES_MAX>")]
        text: String,
    },
    /// The connection of the rank closed without a goodbye, during or soon after a silence: the
    /// rank died, or lives on the other side of a network that was split.
    #[error("died or was cut off: its connection closed soon after a silence")]
    ClosedInDoubt,
}

impl FailureReason {
    /// Returns whether the rank may live on the other side of a split network.
    pub(super) fn is_doubt(&self) -> bool {
        matches!(self, FailureReason::Silent { .. } | FailureReason::ClosedInDoubt)
    }

    /// Returns whether the rank is known to have no part in the communicator any more.
    pub(super) fn is_proof(&self) -> bool {
        !self.is_doubt() && !matches!(self, FailureReason::Refused | FailureReason::Agreed)
    }
}
