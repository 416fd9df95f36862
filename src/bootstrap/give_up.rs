//! Cancellation of a wait for other ranks.

use super::BootstrapError;
use ccl_core::types::Rank;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Interval between checks of the condition.
const EVERY: Duration = Duration::from_millis(50);

type Reason = dyn Fn() -> Option<String> + Send + Sync;

/// Condition that makes a rank stop waiting for other ranks. The condition is checked every 50 ms,
/// on the thread that waits, so it must not block. The default value never stops a wait.
#[derive(Clone, Default)]
pub struct GiveUp(Option<Arc<Reason>>);

impl GiveUp {
    /// Stops the wait as soon as `reason` returns a text.
    pub fn when(reason: impl Fn() -> Option<String> + Send + Sync + 'static) -> GiveUp {
        GiveUp(Some(Arc::new(reason)))
    }

    pub(crate) fn check(&self, rank: Rank) -> Result<(), BootstrapError> {
        match self.0.as_ref().and_then(|reason| reason()) {
            None => Ok(()),
            Some(reason) => Err(BootstrapError::GivenUp { rank, reason }),
        }
    }

    /// Returns how long to wait before the next check.
    pub(super) fn every(&self) -> Duration {
        if self.0.is_some() { EVERY } else { Duration::MAX }
    }
}

impl fmt::Debug for GiveUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "GiveUp(when)" } else { "GiveUp(never)" })
    }
}
