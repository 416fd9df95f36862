//! Ends a wait for others from outside.

use super::BootstrapError;
use ccl_core::types::Rank;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// How often it is asked.
const EVERY: Duration = Duration::from_millis(50);

type Reason = dyn Fn() -> Option<String> + Send + Sync;

/// Whether to stop waiting for other ranks, and why. It is asked every 50 ms, on the thread that
/// waits, so it must not block; by default it never says so.
#[derive(Clone, Default)]
pub struct GiveUp(Option<Arc<Reason>>);

impl GiveUp {
    /// Stops the wait as soon as `reason` returns one.
    pub fn when(reason: impl Fn() -> Option<String> + Send + Sync + 'static) -> GiveUp {
        GiveUp(Some(Arc::new(reason)))
    }

    pub(crate) fn check(&self, rank: Rank) -> Result<(), BootstrapError> {
        match self.0.as_ref().and_then(|reason| reason()) {
            None => Ok(()),
            Some(reason) => Err(BootstrapError::GivenUp { rank, reason }),
        }
    }

    /// How long to wait before it is asked again.
    pub(super) fn every(&self) -> Duration {
        if self.0.is_some() { EVERY } else { Duration::MAX }
    }
}

impl fmt::Debug for GiveUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "GiveUp(asked)" } else { "GiveUp(never)" })
    }
}
