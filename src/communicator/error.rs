//! Errors of a communicator, worded so that the reader knows what to do.

use std::time::Duration;

use ccl_core::admission::AdmissionError;
use ccl_core::config::ConfigError;
use ccl_core::select::ChoiceError;
use ccl_core::transport::TransportError;
use ccl_core::types::Rank;

use crate::bootstrap::{BootstrapError, ExchangeError, VerdictError};
use crate::launch::LaunchError;
use crate::transports::UnknownTransport;

/// An error of a communicator. Unless the error [is harmless](Error::is_harmless), the communicator
/// is of no more use: later operations end with [`Error::Broken`], which is the same on all
/// survivors.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Arguments that cannot be right; nothing was sent, and the communicator is unharmed.
    #[error("{0}")]
    Usage(String),
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
        /// The failure, as it was noticed.
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
        /// Sentence on the rank that holds up the others, as all ranks say.
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
        /// The number of the last operation that all survivors completed, if they have agreed. Any
        /// that ended well after it is void.
        last_completed: Option<u64>,
    },
    /// No new communicator came of the ranks of another one.
    #[error("{doing}: {error}. {advice}")]
    Unmade {
        /// The attempt.
        doing: &'static str,
        /// The error. Ranks are those that the new communicator would have had.
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
        use Error::{Algorithm, Config, Forked, UnknownTransport, Unmade, Usage};
        matches!(
            self,
            Usage(_) | UnknownTransport(_) | Algorithm(_) | Config(_) | Forked | Unmade { .. }
        )
    }

    /// Returns the rank that is to blame, where one is.
    #[must_use]
    pub fn failed_rank(&self) -> Option<Rank> {
        match self {
            Error::RankFailed { rank, .. } | Error::Broken { rank, .. } => Some(*rank),
            _ => None,
        }
    }

    /// Returns the number of the last operation that all survivors completed, where they have
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
