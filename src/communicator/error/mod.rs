//! Errors of a communicator, worded so that the reader knows what to do.

mod call;
mod derive;
mod exchange;
mod setup;

use std::time::Duration;

use ccl_core::admission::AdmissionError;
use ccl_core::config::ConfigError;
use ccl_core::select::ChoiceError;
use ccl_core::transport::TransportError;
use ccl_core::types::Rank;
use ccl_memory::RegionError;

use crate::bootstrap::{BootstrapError, ExchangeError, VerdictError};
use crate::launch::LaunchError;
use crate::transports::UnknownTransport;

pub use call::CallError;
pub use derive::DeriveError;
pub use exchange::{SharedMemoryError, StepError};
pub use setup::{SetupError, TableError};

/// An error of a communicator. After an error that is not [harmless](Error::is_harmless), the
/// communicator is broken: later operations end with [`Error::Broken`] or, after a stall, with
/// [`Error::Deadline`]. The cause is the same on all survivors.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Arguments of a call that cannot be right; nothing was sent, and the communicator is
    /// unharmed.
    #[error(transparent)]
    Call(#[from] CallError),
    /// An attempt to make a communicator from an existing communicator failed.
    #[error(transparent)]
    Derive(#[from] DeriveError),
    /// The configuration or the host does not allow the communicator.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// The ranks are at different steps of the user's program.
    #[error(transparent)]
    Step(#[from] StepError),
    /// The ranks of a host could not share memory.
    #[error(transparent)]
    SharedMemory(#[from] SharedMemoryError),
    /// A region is smaller than its owner said.
    #[error(transparent)]
    Memory(#[from] RegionError),
    /// A tunable that cannot be read.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// An algorithm that cannot be used.
    #[error(transparent)]
    Algorithm(#[from] ChoiceError),
    /// The launcher's environment is wrong.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// The ranks did not become a communicator.
    #[error(transparent)]
    Bootstrap(#[from] BootstrapError),
    /// An exchange among the ranks failed.
    #[error(transparent)]
    Exchange(#[from] ExchangeError),
    /// The survivors of a failure did not agree, or this rank is not among them.
    #[error(transparent)]
    Verdict(#[from] VerdictError),
    /// `FERROCCL_TRANSPORT` names no transport.
    #[error(transparent)]
    UnknownTransport(#[from] UnknownTransport),
    /// The transport failed.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// The links to other hosts failed.
    #[error(transparent)]
    Links(#[from] AdmissionError),
    /// The ranks did not make the same call.
    #[error(
        "the ranks disagree: rank {rank} calls {own}, but rank {peer} calls {theirs}. All ranks \
         must make the same calls in the same order"
    )]
    Mismatch {
        /// This rank.
        rank: Rank,
        /// The call of this rank.
        own: String,
        /// The rank that called something else.
        peer: Rank,
        /// The call of that rank.
        theirs: String,
    },
    /// A rank died, left, or aborted.
    #[error("{during}: rank {rank} failed: {reason}{}", so_far(*last_completed))]
    RankFailed {
        /// The failed rank: the one that all survivors name, once they have agreed.
        rank: Rank,
        /// The reason for the failure.
        reason: String,
        /// The number of the last operation that all survivors completed, if they have agreed.
        last_completed: Option<u64>,
        /// Activity of this rank.
        during: String,
    },
    /// An operation made no progress for too long.
    #[error(
        "{during}: no progress for {stalled:.1?}; waiting for {waiting}. {verdict} \
         (FERROCCL_TIMEOUT sets the limit){}",
        so_far(*last_completed)
    )]
    Deadline {
        /// Activity of this rank.
        during: String,
        /// Time for which nothing moved.
        stalled: Duration,
        /// Ranks that this rank waits for.
        waiting: String,
        /// Sentence that names the rank that holds up the others, the same on all ranks. If the
        /// ranks did not agree on it in time, or were still connecting: a hint on what to check.
        verdict: String,
        /// The number of the last operation that all survivors completed, if they have agreed.
        last_completed: Option<u64>,
    },
    /// This process is a forked child of the one that joined.
    #[error(
        "this process was forked from the rank that joined the communicator; only that rank can \
         use it. Join after the fork, or exec another program"
    )]
    Forked,
    /// The communicator was broken before this call, by an error of this rank or another.
    #[error(
        "{during}: the communicator is broken: rank {rank} failed: {reason}{}",
        so_far(*last_completed)
    )]
    Broken {
        /// Activity of this rank.
        during: String,
        /// The rank that is to blame.
        rank: Rank,
        /// The failure of that rank.
        reason: String,
        /// The number of the last operation that all survivors completed, if they have agreed.
        /// Later operations are void even where they succeeded.
        last_completed: Option<u64>,
    },
    /// A new communicator, or shared memory, could not be made; the existing communicator is
    /// unharmed.
    #[error("{doing}: {error}. {advice}")]
    Unmade {
        /// The attempt.
        doing: &'static str,
        /// The error. Its rank numbers are those of the new communicator, if one was to be made.
        error: Box<Error>,
        /// Advice on what to do now.
        advice: &'static str,
    },
}

fn so_far(last_completed: Option<u64>) -> String {
    last_completed.map_or_else(String::new, |number| {
        format!(" (the last operation that all survivors completed is #{number})")
    })
}

impl Error {
    /// Returns whether the communicator is unharmed.
    #[must_use]
    pub fn is_harmless(&self) -> bool {
        match self {
            Error::Call(_)
            | Error::Setup(_)
            | Error::SharedMemory(_)
            | Error::UnknownTransport(_)
            | Error::Algorithm(_)
            | Error::Config(_)
            | Error::Forked
            | Error::Unmade { .. } => true,
            Error::Derive(error) => !matches!(error, DeriveError::Exhausted),
            Error::Step(error) => matches!(error, StepError::Disagree { .. }),
            _ => false,
        }
    }

    /// Returns the failed rank, if the error names one.
    #[must_use]
    pub fn failed_rank(&self) -> Option<Rank> {
        match self {
            Error::RankFailed { rank, .. } | Error::Broken { rank, .. } => Some(*rank),
            _ => None,
        }
    }

    /// Returns the number of the last operation that all survivors completed, if they have
    /// agreed.
    #[must_use]
    pub fn last_completed(&self) -> Option<u64> {
        match self {
            Error::RankFailed { last_completed, .. }
            | Error::Broken { last_completed, .. }
            | Error::Deadline { last_completed, .. } => *last_completed,
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccl_core::encoding::MessageError;

    #[test]
    fn errors_after_which_ranks_may_be_out_of_step_are_not_harmless() {
        let malformed = MessageError { what: "it ends too early" };
        let error = StepError::Malformed { peer: 1, step: "split", error: malformed };
        assert!(!Error::from(error).is_harmless());
        let record = RegionError { offset: 64, bytes: 64, region_bytes: 64 };
        assert!(!Error::from(record).is_harmless(), "peers may wait for this record");
        assert!(Error::from(CallError::Range(record)).is_harmless(), "a wrong range does no harm");
        assert!(!Error::from(DeriveError::Exhausted).is_harmless());
        assert!(Error::from(DeriveError::NothingFailed).is_harmless());
        let error = StepError::Disagree { rank: 0, own: "split", peer: 1, theirs: "alloc" };
        assert!(Error::from(error).is_harmless(), "all ranks notice it together");
    }

    /// Checks that results of calls stay small: large errors, which are rare, must be boxed.
    #[test]
    fn an_error_is_no_larger_than_a_configuration_error() {
        assert!(size_of::<Error>() <= size_of::<ConfigError>());
    }
}
