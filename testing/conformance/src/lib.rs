//! Conformance suite for transports: it checks the contract of the traits of
//! [`ccl_core::transport`] and the capabilities that a device claims, point by point.
//!
//! A transport's tests implement [`Fixture`] (two devices that can reach each other, a clock, and a
//! way to let time pass), call [`run()`] and assert [`Report::passed`]:
//!
//! ```no_run
//! # fn fixture() -> Box<dyn ccl_conformance::Fixture> { unimplemented!() }
//! let report = ccl_conformance::run(fixture);
//! assert!(report.passed(), "{report}");
//! ```
//!
//! Every point has a fixture of its own. No single wait is longer than the fixture's patience.

#![forbid(unsafe_code)]

mod claims;
mod connecting;
mod ending;
mod late;
mod links;
mod memory;
mod notes;
mod pair;
mod proxy;
mod putting;

pub use pair::join;
pub use proxy::{Proxy, first_location, instead_of};

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ccl_core::time::Instant;
use ccl_core::transport::{Address, Device, Lane};

/// Devices, clock and helpers that the suite needs to test a transport.
pub trait Fixture {
    /// Returns the device of side 0 or 1. The sides can reach each other; both may use one device.
    fn device(&self, side: usize) -> Arc<dyn Device>;

    /// Returns the present time of the clock that all deadlines use.
    fn now(&self) -> Instant;

    /// Lets a little time pass, so that work in flight makes progress.
    fn idle(&self);

    /// Returns how long the suite waits for an expected event.
    fn patience(&self) -> Duration {
        Duration::from_secs(10)
    }

    /// Wraps a lane of that side in middleware; returns the lane itself by default.
    fn wrap(&self, side: usize, lane: Box<dyn Lane>) -> Box<dyn Lane> {
        let _ = side;
        lane
    }

    /// Connects to a listener without its secret, sends these bytes and hangs up. Returns false if
    /// the transport has no listener that strangers can reach.
    fn stranger(&self, address: &Address, bytes: &[u8]) -> bool {
        let _ = (address, bytes);
        false
    }

    /// Returns whether a lane that ends a connection waits until the peer has all data. Fixtures in
    /// virtual time return false: a lane that waited would not call [`Fixture::idle`], so time
    /// would stand still and no data would arrive.
    fn awaits_farewells(&self) -> bool {
        true
    }

    /// Returns the largest number of bytes of a put that the lanes leave in a receive buffer, if
    /// they leave any there. Fixtures whose lanes send longer puts as several messages return less
    /// than by default.
    fn buffered_bytes_max(&self) -> usize {
        usize::MAX
    }

    /// Kills a side as a crash would, without a farewell. Returns false if that cannot be done; the
    /// suite then drops the side's lane.
    fn kill(&self, side: usize) -> bool {
        let _ = side;
        false
    }
}

/// Clock for fixtures that run in real time.
#[derive(Clone, Copy, Debug)]
pub struct WallClock(std::time::Instant);

impl WallClock {
    /// Returns a clock that starts now.
    #[must_use]
    pub fn start() -> WallClock {
        WallClock(std::time::Instant::now())
    }

    /// Returns the time since the start.
    #[must_use]
    pub fn now(&self) -> Instant {
        Instant::ZERO + self.0.elapsed()
    }

    /// Sleeps for a moment.
    pub fn idle(&self) {
        std::thread::sleep(Duration::from_micros(20));
    }
}

/// Result of a point of the suite.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The point holds.
    Passed,
    /// The point does not apply, for this reason.
    Skipped(&'static str),
    /// The point does not hold; the text says what was seen.
    Failed(String),
}

/// Result of a point's check; an error is the text of [`Verdict::Failed`].
pub(crate) type Outcome = Result<Verdict, String>;

pub(crate) const PASSED: Outcome = Ok(Verdict::Passed);

/// Point of the suite: the name of a requirement, and the function that checks it.
#[derive(Clone, Copy)]
struct Point {
    name: &'static str,
    check: fn(&dyn Fixture) -> Outcome,
}

/// Results of all points.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Names and verdicts, in the order of the suite.
    pub points: Vec<(&'static str, Verdict)>,
}

impl Report {
    /// Returns true if at least one point passed and none failed.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.failures().is_empty()
            && self.points.iter().any(|(_, verdict)| *verdict == Verdict::Passed)
    }

    /// Returns the names of the points that failed.
    #[must_use]
    pub fn failures(&self) -> Vec<&'static str> {
        let failed = |verdict: &Verdict| matches!(verdict, Verdict::Failed(_));
        self.points.iter().filter(|(_, v)| failed(v)).map(|(name, _)| *name).collect()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, verdict) in &self.points {
            match verdict {
                Verdict::Passed => writeln!(f, "passed   {name}")?,
                Verdict::Skipped(why) => writeln!(f, "skipped  {name}: {why}")?,
                Verdict::Failed(seen) => writeln!(f, "FAILED   {name}: {seen}")?,
            }
        }
        Ok(())
    }
}

/// Runs every point on a fixture of its own.
pub fn run(make: impl Fn() -> Box<dyn Fixture>) -> Report {
    run_only(make, |_| true)
}

/// Runs the points whose names `takes` accepts, each on a fixture of its own.
pub fn run_only(make: impl Fn() -> Box<dyn Fixture>, takes: impl Fn(&str) -> bool) -> Report {
    let points = points().filter(|point| takes(point.name)).map(|point| {
        let verdict = (point.check)(&*make()).unwrap_or_else(Verdict::Failed);
        (point.name, verdict)
    });
    Report { points: points.collect() }
}

fn points() -> impl Iterator<Item = &'static Point> {
    let families = [
        connecting::POINTS,
        memory::POINTS,
        putting::POINTS,
        claims::POINTS,
        late::POINTS,
        ending::POINTS,
        notes::POINTS,
        links::POINTS,
    ];
    families.into_iter().flatten()
}

/// Fails the point with a text unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($text:tt)+) => {
        if !$condition {
            return Err(format!($($text)+));
        }
    };
}
pub(crate) use ensure;

/// Returns a function that formats an error as a point's failure, with the action that failed.
pub(crate) fn failed<E: fmt::Display>(what: &'static str) -> impl Fn(E) -> String {
    move |error| format!("{what}: {error}")
}
