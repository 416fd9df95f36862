//! After a failure: what the survivors agree on, and which operations may still end well.

use std::time::Duration;

use super::Communicator;
use super::engine::{Running, What};
use super::error::Error;
use super::watch::{deadline, sentence};
use crate::bootstrap::{Failure, FailureReason, NoVerdict, Verdict, VerdictError};

impl Communicator {
    /// What the survivors of a failure agree on: who is dead, why, and the last operation that
    /// all of them completed. It is the same on every survivor. Operations are counted from 1, in
    /// the order of the calls; whatever ended well beyond the last one is void. Takes as long as
    /// it takes to find silent ranks dead (`FERROCCL_DEAD_AFTER`) and a little more, at most
    /// `timeout`.
    ///
    /// # Errors
    ///
    /// When nothing has failed, when the others declared this rank dead, when too many ranks are
    /// silent to exclude that they live on behind a broken network, or when the time is up.
    pub fn agree(&self, timeout: Duration) -> Result<Verdict, Error> {
        self.not_forked()?;
        Ok(self.control.verdict(timeout)?)
    }

    /// Whether an operation that is done may end well: not after this rank has told the others
    /// how far it is.
    #[inline]
    pub(super) fn let_through(&self, running: &Running) -> Result<(), Error> {
        match running.what {
            What::Call(record) if !self.control.completed().finish(record.sequence) => {
                Err(self.too_late(running))
            }
            _ => Ok(()),
        }
    }

    #[cold]
    fn too_late(&self, running: &Running) -> Error {
        let during = format!("rank {} in {}", self.rank(), running.what);
        match self.control.failure() {
            Some(failure) => self.failed(&failure, during),
            // The question of a coordinator came before its reason.
            None => Error::RankFailed {
                rank: self.rank(),
                reason: "a rank has failed; agree() tells which".to_owned(),
                during,
            },
        }
    }

    /// The error of a call that comes after a failure, with what has been agreed so far.
    pub(super) fn failed(&self, failure: &Failure, during: String) -> Error {
        let (rank, cause) = (failure.rank, &failure.reason);
        if let FailureReason::Stuck { stalled_ms, .. } = cause {
            let stalled = Duration::from_millis(u64::from(*stalled_ms));
            return deadline(during, stalled, "nobody yet".to_owned(), &sentence(failure));
        }
        let reason = match self.control.verdict(Duration::ZERO) {
            Ok(verdict) => format!(
                "{cause} (the last operation that all survivors completed is #{})",
                verdict.last_completed
            ),
            Err(VerdictError::None(condemned @ NoVerdict::Condemned(_))) => condemned.to_string(),
            Err(_) => cause.to_string(),
        };
        Error::RankFailed { rank, reason, during }
    }
}
