//! The deadline of the farewells of one lane.

use std::time::Duration;

use ccl_core::time::Instant;

/// The deadline that all farewells of a lane share: endpoints that are closed one after the other
/// are waited for together.
#[derive(Debug, Default)]
pub struct Farewell {
    until: Option<Instant>,
}

impl Farewell {
    /// Returns the deadline of a farewell that is said now: the deadline of farewells that are
    /// under way or were given up lately, else `within` from now.
    pub fn until(&mut self, now: Instant, within: Duration) -> Instant {
        let begun = self.until.filter(|until| now < *until + within);
        *self.until.insert(begun.unwrap_or(now + within))
    }

    /// Ends the deadline: all farewells have been heard.
    pub fn end(&mut self) {
        self.until = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn farewells_that_overlap_share_a_deadline() {
        let at = |ms| Instant::ZERO + Duration::from_millis(ms);
        let (mut farewell, within) = (Farewell::default(), Duration::from_millis(100));
        assert_eq!(farewell.until(at(10), within), at(110));
        assert_eq!(farewell.until(at(50), within), at(110));
        assert_eq!(farewell.until(at(150), within), at(110), "who is next need not wait as well");
        assert_eq!(farewell.until(at(300), within), at(400), "that was another time");
        farewell.end();
        assert_eq!(farewell.until(at(310), within), at(410));
    }
}
