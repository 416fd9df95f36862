//! The time that peers have to take what was sent to them before their links close.

use std::time::Duration;

use ccl_core::time::Instant;

/// The deadline that the farewells of a lane share: endpoints that are closed one after the other
/// are waited for together.
#[derive(Debug, Default)]
pub struct Farewell {
    until: Option<Instant>,
    /// Numbers of endpoints whose time is over.
    overdue: Vec<usize>,
}

impl Farewell {
    /// Returns whether nothing more is waited for: the endpoint `only`, or all endpoints that
    /// leave, have been heard, or have had `within` for it. `waiting` are the numbers of all
    /// endpoints that leave and have not been heard.
    pub fn is_over(
        &mut self,
        now: Instant,
        within: Duration,
        waiting: &[usize],
        only: Option<usize>,
    ) -> bool {
        self.overdue.retain(|number| waiting.contains(number));
        let mut timely = waiting.iter().filter(|number| !self.overdue.contains(number)).peekable();
        if timely.peek().is_none() {
            self.until = None;
            return true;
        }
        let until = *self.until.get_or_insert(now + within);
        if !timely.any(|number| only.is_none_or(|only| *number == only)) {
            return true;
        }
        if now >= until {
            self.until = None;
            self.overdue = waiting.to_vec();
        }
        now >= until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WITHIN: Duration = Duration::from_millis(100);

    #[test]
    fn endpoints_that_leave_at_a_time_share_a_deadline() {
        let at = |ms| Instant::ZERO + Duration::from_millis(ms);
        let mut farewell = Farewell::default();
        assert!(!farewell.is_over(at(10), WITHIN, &[1], Some(1)));
        assert!(!farewell.is_over(at(50), WITHIN, &[1, 2], Some(2)));
        assert!(!farewell.is_over(at(109), WITHIN, &[1, 2], Some(1)));
        assert!(farewell.is_over(at(110), WITHIN, &[1, 2], Some(1)));
        assert!(farewell.is_over(at(110), WITHIN, &[1, 2], Some(2)), "who is next has had as long");
        assert!(farewell.is_over(at(300), WITHIN, &[2], None));
    }

    #[test]
    fn who_leaves_later_has_its_own_time() {
        let at = |ms| Instant::ZERO + Duration::from_millis(ms);
        let mut farewell = Farewell::default();
        assert!(!farewell.is_over(at(0), WITHIN, &[1], Some(1)));
        assert!(farewell.is_over(at(100), WITHIN, &[1], Some(1)));
        assert!(!farewell.is_over(at(101), WITHIN, &[1, 3], Some(3)), "3 has only begun");
        assert!(!farewell.is_over(at(200), WITHIN, &[1, 3], None));
        assert!(farewell.is_over(at(200), WITHIN, &[1], None), "3 is heard");
        assert!(farewell.is_over(at(200), WITHIN, &[], None));
        assert!(!farewell.is_over(at(250), WITHIN, &[4], None));
        assert!(!farewell.is_over(at(349), WITHIN, &[4], None));
        assert!(farewell.is_over(at(350), WITHIN, &[4], None));
    }

    #[test]
    fn who_is_not_asked_for_is_not_waited_for() {
        let mut farewell = Farewell::default();
        assert!(farewell.is_over(Instant::ZERO, WITHIN, &[1, 2], Some(3)));
    }
}
