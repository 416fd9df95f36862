//! Bounded wait for peers to receive the last bytes before their links close.

use std::collections::BTreeMap;
use std::time::Duration;

use ccl_core::time::Instant;

/// Longest wait for a peer to receive what was posted, before the link closes. A busy peer can go
/// without polling for a while, and a slow network or retries can delay delivery. A peer that is
/// known to be dead is not waited for. The wait is shorter than the time that a launcher grants to
/// ranks that end.
pub const FAREWELL_WITHIN: Duration = Duration::from_secs(4);

/// Bounded waits for the leaving endpoints of a lane to deliver their last bytes. Each endpoint has
/// its own deadline; the waits overlap.
#[derive(Debug, Default)]
pub struct ShutdownWait {
    /// Time at which each waiting endpoint began to wait; indexed by the endpoint's number.
    begun: BTreeMap<usize, Instant>,
}

impl ShutdownWait {
    /// Returns whether the wait is over for the endpoint `only`, or for every leaving endpoint if
    /// `only` is none. The wait for an endpoint is over when the endpoint has delivered its bytes,
    /// or has waited for `within`. `waiting` lists the leaving endpoints with undelivered bytes, in
    /// ascending order.
    pub fn is_over(
        &mut self,
        now: Instant,
        within: Duration,
        waiting: &[usize],
        only: Option<usize>,
    ) -> bool {
        self.begun.retain(|number, _| waiting.binary_search(number).is_ok());
        for number in waiting {
            self.begun.entry(*number).or_insert(now);
        }
        let is_asked = |number: &usize| only.is_none_or(|only| *number == only);
        let mut asked = self.begun.iter().filter(|(number, _)| is_asked(number));
        asked.all(|(_, begun)| now.since(*begun) >= within)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WITHIN: Duration = Duration::from_millis(100);

    fn at(ms: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(ms)
    }

    #[test]
    fn waits_that_begin_together_end_together() {
        let mut farewell = ShutdownWait::default();
        assert!(!farewell.is_over(at(10), WITHIN, &[1], Some(1)));
        assert!(!farewell.is_over(at(10), WITHIN, &[1, 2], Some(2)));
        assert!(!farewell.is_over(at(109), WITHIN, &[1, 2], Some(1)));
        assert!(farewell.is_over(at(110), WITHIN, &[1, 2], Some(1)));
        assert!(farewell.is_over(at(110), WITHIN, &[2], Some(2)));
    }

    #[test]
    fn a_wait_that_begins_later_has_its_own_time_limit() {
        let mut farewell = ShutdownWait::default();
        assert!(!farewell.is_over(at(0), WITHIN, &[1], Some(1)));
        assert!(!farewell.is_over(at(99), WITHIN, &[1, 3], Some(3)));
        assert!(farewell.is_over(at(100), WITHIN, &[1, 3], Some(1)));
        assert!(!farewell.is_over(at(198), WITHIN, &[1, 3], None));
        assert!(farewell.is_over(at(199), WITHIN, &[1, 3], None));
        assert!(farewell.is_over(at(150), WITHIN, &[], None), "a wait for nobody must be over");
        assert!(!farewell.is_over(at(250), WITHIN, &[1], None), "a second wait must start anew");
    }

    #[test]
    fn only_the_named_endpoint_is_waited_for() {
        let mut farewell = ShutdownWait::default();
        assert!(farewell.is_over(Instant::ZERO, WITHIN, &[1, 2], Some(3)));
    }
}
