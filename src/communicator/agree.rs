//! Behaviour after a failure: the agreement of the survivors, the check that a finished operation
//! may still return `Ok`, and the error of every later call.

use std::time::Duration;

use super::Communicator;
use super::engine::sentence;
use super::engine::{CallKind, Engine, Running};
use super::error::Error;
use crate::bootstrap::{FailureReason, NoVerdict, Verdict, VerdictError};

/// Longest wait of a failing call for the agreement of the survivors. The agreement needs a few
/// messages, and a second failure can delay it.
const AGREEMENT: Duration = Duration::from_secs(1);
/// Longest wait for the report of the control plane that explains a lost connection. A rank that
/// ends because of a failed peer reports that peer before it ends, but this rank's data path can
/// see the lost connection before the report arrives. Without the wait, this rank would then blame
/// the rank that ended.
pub(super) const FAILURE_WITHIN: Duration = Duration::from_secs(1);

/// Text for the awaited rank, in errors of a rank that knows of none.
const NOBODY: &str = "no other rank yet";
/// Text for the call, in errors of a rank that learns of a failure between two calls.
const NEW_CALL: &str = "a new call";

/// Cause of the end of a communicator.
struct Cause {
    error: Error,
    /// True if this rank's own first error is the cause.
    is_own: bool,
}

impl Communicator {
    /// Waits for the verdict that the survivors of a failure agree on: the dead ranks, the cause,
    /// and the last operation that all survivors completed. The verdict is the same on every
    /// survivor. Operations are counted from 1, in the order of the calls. Operations after the
    /// last operation that all survivors completed are void even where they succeeded. The wait is
    /// at most `timeout`. If ranks are silent, the verdict takes a little longer than
    /// `FERROCCL_DEAD_AFTER`, the time after which they count as dead.
    ///
    /// # Errors
    ///
    /// When nothing has failed, when the others declared this rank dead, when so many ranks are
    /// silent that they may be alive on the other side of a split network, or when the time is up.
    pub fn agree(&self, timeout: Duration) -> Result<Verdict, Error> {
        self.not_forked()?;
        Ok(self.control.verdict(timeout)?)
    }

    /// Checks that a finished operation may return `Ok`. After this rank has reported its progress
    /// to the agreement, no operation may return `Ok`.
    #[inline]
    pub(super) fn check_may_end(&self, running: &Running) -> Result<(), Error> {
        let completed = self.control.completed();
        let may_end = match running.what {
            CallKind::Call(record) => completed.finish(record.sequence),
            CallKind::Messages { .. } => !completed.is_frozen(),
        };
        if may_end { Ok(()) } else { Err(self.too_late(running)) }
    }

    #[cold]
    fn too_late(&self, running: &Running) -> Error {
        // The coordinator of the agreement (the lowest living rank) can ask for this rank's
        // progress before this rank knows of the failure.
        let failure = self.control.await_failure(AGREEMENT);
        let rank = failure.as_ref().map_or(self.rank(), |failure| failure.rank);
        let reason = failure.map(|failure| failure.reason.to_string()).unwrap_or_else(|| {
            "its operation ended after the rank had reported its progress to the survivors of a \
             failure, so the operation does not count"
                .to_owned()
        });
        let during = self.during(&running.what);
        Error::RankFailed { rank, reason, last_completed: None, during }
    }

    /// Returns the activity of this rank, for error messages.
    pub(super) fn during(&self, what: &dyn std::fmt::Display) -> String {
        format!("rank {} in {what}", self.rank())
    }

    pub(super) fn usable(&self) -> Result<(), Error> {
        self.not_forked()?;
        if self.is_broken() { Err(self.broken_before()) } else { Ok(()) }
    }

    pub(super) fn is_broken(&self) -> bool {
        self.broken.is_some() || self.control.has_failed()
    }

    /// Returns the error of a call that comes after the failure. The error is the same on all
    /// survivors, except that its field `during` names the survivor itself.
    #[cold]
    pub(super) fn broken_before(&self) -> Error {
        match self.cause() {
            Some(cause) => cause.error,
            None => Error::Broken {
                during: self.during(&NEW_CALL),
                rank: self.rank(),
                reason: self.broken.clone().unwrap_or_default(),
                last_completed: None,
            },
        }
    }

    /// Returns the cause of the communicator's end. If the survivors agree within [`AGREEMENT`],
    /// they all return the same cause; otherwise each returns the failure that it knows.
    fn cause(&self) -> Option<Cause> {
        let broken = |rank, reason: &dyn ToString, last_completed| Error::Broken {
            during: self.during(&NEW_CALL),
            rank,
            reason: reason.to_string(),
            last_completed,
        };
        let (failure, last_completed) = match self.control.verdict(AGREEMENT) {
            Ok(verdict) => (verdict.cause, Some(verdict.last_completed)),
            Err(VerdictError::None(condemned @ NoVerdict::Condemned(_))) => {
                let error = broken(self.rank(), &condemned, None);
                return Some(Cause { error, is_own: false });
            }
            Err(_) => (self.control.failure()?, None),
        };
        if let FailureReason::Stuck { stalled_ms, .. } = failure.reason {
            let error = Error::Deadline {
                during: self.during(&NEW_CALL),
                stalled: Duration::from_millis(u64::from(stalled_ms)),
                waiting: NOBODY.to_owned(),
                verdict: sentence(&failure),
                last_completed,
            };
            return Some(Cause { error, is_own: false });
        }
        let said = match &failure.reason {
            FailureReason::Aborted { text } if failure.rank == self.rank() => Some(text.as_str()),
            _ => None,
        };
        let is_own = said
            .is_some_and(|said| self.broken.as_ref().is_some_and(|error| error.starts_with(said)));
        Some(Cause { error: broken(failure.rank, &failure.reason, last_completed), is_own })
    }

    /// Records an error that ends the communicator, and reports it to the other ranks. Returns the
    /// error for the caller, with the cause that the survivors agree on. A harmless error is only
    /// returned, unchanged.
    #[cold]
    pub(super) fn broken(&mut self, error: Error, during: String) -> Error {
        if error.is_harmless() {
            return error;
        }
        if self.broken.is_none() {
            self.control.recorder().dump_end();
            self.engine.blame(&error);
            self.broken = Some(error.to_string());
        }
        let Some(cause) = self.cause() else { return error };
        let (rank, reason, last_completed) = match cause.error {
            Error::Broken { rank, reason, last_completed, .. } => (rank, reason, last_completed),
            stuck => return stuck_in(stuck, error, during),
        };
        // A mismatch in this rank's own call explains more than another rank's failure.
        let is_telling = matches!(error, Error::Mismatch { .. });
        let is_condemned = rank == self.rank() && !cause.is_own;
        match error {
            Error::RankFailed { during, .. } => {
                Error::RankFailed { rank, reason, last_completed, during }
            }
            Error::Deadline { during, stalled, waiting, verdict, .. } if !is_condemned => {
                Error::Deadline { during, stalled, waiting, verdict, last_completed }
            }
            _ if cause.is_own || (is_telling && !is_condemned) => error,
            _ => Error::RankFailed { rank, reason, last_completed, during },
        }
    }

    /// Returns `error`, which comes from a step that is no operation, such as `split`. If the
    /// communicator has failed, returns the result of [`Communicator::broken`] for `error`.
    pub(super) fn or_failure(&mut self, error: Error, doing: &str) -> Error {
        if self.control.has_failed() {
            let during = self.during(&doing);
            return self.broken(error, during);
        }
        error
    }
}

impl Engine {
    /// Reports the rank that is to blame, if no rank has reported a failure. Must be called before
    /// the call's memory is unbound: unbinding may close connections that still use the memory, and
    /// a peer takes a closed connection for a failure of this rank.
    pub(super) fn blame(&self, error: &Error) {
        if error.is_harmless() {
            return;
        }
        if let Error::RankFailed { rank, reason, .. } = error {
            if self.control.await_failure(FAILURE_WITHIN).is_none() {
                self.control.report(*rank, reason.as_str());
            }
        } else if self.control.failure().is_none() {
            self.control.report(self.rank, error.to_string());
        }
    }
}

/// Returns the error of a call after a stuck rank has ended the communicator. `stuck` is the cause,
/// whose `verdict` names that rank; `own` is the call's own error.
fn stuck_in(stuck: Error, own: Error, in_call: String) -> Error {
    let Error::Deadline { stalled, verdict, last_completed, .. } = stuck else { return own };
    let (during, waiting) = match own {
        // A mismatch in this rank's own call explains more than the verdict.
        Error::Mismatch { .. } => return own,
        Error::Deadline { during, waiting, .. } => (during, waiting),
        _ => (in_call, NOBODY.to_owned()),
    };
    Error::Deadline { during, stalled, waiting, verdict, last_completed }
}
