//! Clock of ferroccl, for code that passes the time to the core, or that waits outside the core.
//! The core never reads a clock.

use ccl_core::time::Instant;
use rustix::time::{ClockId, clock_gettime};

/// Returns the time of the host's monotonic clock, which all its processes share.
#[must_use]
pub fn now() -> Instant {
    let time = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    Instant::from_nanos(seconds.saturating_mul(1_000_000_000).saturating_add(nanos))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_does_not_go_back() {
        let earlier = now();
        assert!(earlier > Instant::ZERO && now() >= earlier);
    }
}
