//! Statistics per peer: messages sent and received, and the time that sends waited for credits.

use std::time::Duration;

use serde::Serialize;

use crate::time::Instant;

/// Binary logarithm of the number of histogram classes per power of two.
const STEPS_BITS: u32 = 2;
/// Binary logarithm of the longest time in nanoseconds, 18 minutes; longer times are clamped.
const LONGEST_BITS: u32 = 40;
const CLASSES: usize = ((LONGEST_BITS - STEPS_BITS + 1) << STEPS_BITS) as usize;

/// A histogram of waiting times, with four classes per power of two.
#[derive(Clone, PartialEq, Eq)]
pub struct WaitHistogram([u32; CLASSES]);

impl Default for WaitHistogram {
    fn default() -> WaitHistogram {
        WaitHistogram([0; CLASSES])
    }
}

impl std::fmt::Debug for WaitHistogram {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (p50, p99) = (self.percentile(50), self.percentile(99));
        write!(f, "{} waits, p50 {p50:?}, p99 {p99:?}", self.count())
    }
}

fn class(nanos: u64) -> usize {
    let nanos = nanos.min((1 << LONGEST_BITS) - 1);
    let power = (nanos | 1 << STEPS_BITS).ilog2() - STEPS_BITS;
    ((u64::from(power) << STEPS_BITS) + (nanos >> power)) as usize
}

/// Returns the longest time of a class.
fn longest(class: usize) -> Duration {
    let next = class as u64 + 1;
    let power = (next >> STEPS_BITS).saturating_sub(1);
    let steps = next - (power << STEPS_BITS);
    Duration::from_nanos((steps << power) - 1)
}

impl WaitHistogram {
    /// Counts a wait.
    pub(super) fn add(&mut self, wait: Duration) {
        let nanos = u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX);
        let count = &mut self.0[class(nanos)];
        *count = count.saturating_add(1);
    }

    /// Returns the number of waits.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.iter().map(|count| u64::from(*count)).sum()
    }

    /// Returns a percentile of the waits, at most 25 % too high; none if there were no waits.
    #[must_use]
    pub fn percentile(&self, of_100: u32) -> Option<Duration> {
        let all = self.count();
        let rank = (all * u64::from(of_100.min(100))).div_ceil(100).max(1);
        let mut below = 0;
        let found = self.0.iter().position(|count| {
            below += u64::from(*count);
            below >= rank
        });
        found.map(longest)
    }
}

impl Serialize for WaitHistogram {
    /// Writes the count, and the percentiles in microseconds.
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct as _;
        let micros = |of_100| self.percentile(of_100).map(|wait| wait.as_secs_f64() * 1e6);
        let mut waits = serializer.serialize_struct("WaitHistogram", 3)?;
        waits.serialize_field("count", &self.count())?;
        waits.serialize_field("p50_us", &micros(50))?;
        waits.serialize_field("p99_us", &micros(99))?;
        waits.end()
    }
}

/// Statistics of the links to one peer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PeerStatistics {
    /// Messages published to the peer.
    pub sent: u64,
    /// Bytes of these messages, with headers.
    pub sent_bytes: u64,
    /// Messages received from the peer.
    pub received: u64,
    /// Messages that were sent from the caller's memory, without a copy.
    pub zero_copy_sent: u64,
    /// Messages that were placed directly in the caller's memory, without a copy.
    pub zero_copy_received: u64,
    /// Bytes, with headers, of messages to the peer that were published and are not yet done.
    pub in_flight_bytes: u64,
    /// Highest value that `in_flight_bytes` ever had.
    pub in_flight_bytes_max: u64,
    /// Number of times that a link to the peer became unable to send, for lack of a credit or of a
    /// staging slot.
    pub stalls: u64,
    /// Durations for which sends waited for a credit.
    pub credit_waits: WaitHistogram,
}

impl PeerStatistics {
    /// Counts a message of `bytes` bytes as in flight.
    pub(super) fn sent(&mut self, bytes: usize) {
        self.sent += 1;
        self.sent_bytes += bytes as u64;
        self.in_flight_bytes += bytes as u64;
        self.in_flight_bytes_max = self.in_flight_bytes_max.max(self.in_flight_bytes);
    }

    /// Counts `bytes` bytes as done.
    pub(super) fn done(&mut self, bytes: usize) {
        self.in_flight_bytes = self.in_flight_bytes.saturating_sub(bytes as u64);
    }

    /// Counts the wait for a credit that has come.
    pub(super) fn granted(&mut self, waited_since: Option<Instant>, now: Option<Instant>) {
        if let (Some(since), Some(now)) = (waited_since, now) {
            self.credit_waits.add(now.since(since));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_follow_each_other_without_a_gap() {
        for class_of in 0..CLASSES {
            let most = longest(class_of).as_nanos() as u64;
            assert_eq!(class(most), class_of, "{most}");
            assert_eq!(class(most + 1), (class_of + 1).min(CLASSES - 1), "{most}");
        }
        assert_eq!(class(u64::MAX), CLASSES - 1);
    }

    #[test]
    fn percentiles_are_at_most_a_quarter_too_long() {
        let mut waits = WaitHistogram::default();
        assert_eq!((waits.count(), waits.percentile(50)), (0, None));
        for micros in 1..=1000 {
            waits.add(Duration::from_micros(micros));
        }
        assert_eq!(waits.count(), 1000);
        for (of_100, exact) in [(0, 1), (1, 10), (50, 500), (99, 990), (100, 1000), (200, 1000)] {
            let exact = Duration::from_micros(exact);
            let said = waits.percentile(of_100).unwrap();
            assert!(said >= exact && said <= exact * 5 / 4, "p{of_100}: {said:?}, not {exact:?}");
        }
    }
}
