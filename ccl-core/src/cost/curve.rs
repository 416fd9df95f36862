//! What was measured at some sizes, continued to all sizes.
//!
//! One line `T = a + B / W` does not describe a collective: below some size it is made of small
//! packets that carry their own flags and come at once, above it of large ones that must be waited
//! for. NCCL calls these protocols LL, LL128 and Simple. So a curve is several such lines, each for
//! sizes from the one before it on.

/// A line through what was measured with one protocol.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Regime {
    /// The protocol.
    pub name: &'static str,
    /// From this size on, in bytes.
    pub from_bytes: f64,
    /// Of a message of nothing.
    pub latency_s: f64,
    /// Of a message without end.
    pub bytes_per_s: f64,
}

impl Regime {
    /// `a + B / W`.
    #[must_use]
    pub fn time_s(&self, bytes: f64) -> f64 {
        self.latency_s + bytes / self.bytes_per_s
    }
}

/// What was measured with a protocol: at the least and the greatest size, in bytes and seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Span {
    /// The protocol.
    pub name: &'static str,
    /// At the least size.
    pub least: (f64, f64),
    /// At the greatest.
    pub greatest: (f64, f64),
}

/// Times by size.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve(Vec<Regime>);

impl Curve {
    /// Through what was measured, which comes in the order of sizes. One protocol gives way to the
    /// next in the middle between them (of logarithms).
    #[must_use]
    pub fn through(spans: &[Span]) -> Curve {
        let mut before: Option<f64> = None;
        let regimes = spans.iter().map(|span| {
            let ((least, fast), (greatest, slow)) = (span.least, span.greatest);
            let bytes_per_s = (greatest - least) / (slow - fast);
            let from_bytes = before.map_or(0.0, |before| (before * least).sqrt());
            before = Some(greatest);
            let latency_s = fast - least / bytes_per_s;
            Regime { name: span.name, from_bytes, latency_s, bytes_per_s }
        });
        Curve(regimes.collect())
    }

    /// The lines, by size.
    #[must_use]
    pub fn regimes(&self) -> &[Regime] {
        &self.0
    }

    /// The line that holds for a size.
    #[must_use]
    pub fn regime(&self, bytes: f64) -> Option<&Regime> {
        self.0.iter().rev().find(|regime| regime.from_bytes <= bytes)
    }

    /// How long so many bytes take; never, if nothing was measured.
    #[must_use]
    pub fn time_s(&self, bytes: f64) -> f64 {
        self.regime(bytes).map_or(f64::INFINITY, |regime| regime.time_s(bytes))
    }
}

/// all_reduce of eight A100 over NVLink by NCCL, bytes and microseconds. (Engineering book, "Real
/// network throughput".)
pub const A100_ALL_REDUCE: [(f64, f64); 20] = [
    (32_768.0, 43.83),
    (65_536.0, 46.80),
    (131_072.0, 51.76),
    (262_144.0, 61.38),
    (524_288.0, 80.40),
    (1_048_576.0, 101.9),
    (2_097_152.0, 101.4),
    (4_194_304.0, 101.5),
    (8_388_608.0, 133.5),
    (16_777_216.0, 276.6),
    (33_554_432.0, 424.0),
    (67_108_864.0, 684.6),
    (134_217_728.0, 1327.6),
    (268_435_456.0, 2420.6),
    (536_870_912.0, 4218.4),
    (1_073_741_824.0, 8203.9),
    (2_147_483_648.0, 16_240.0),
    (4_294_967_296.0, 32_136.0),
    (8_589_934_592.0, 64_074.0),
    (17_179_869_184.0, 127_997.0),
];

/// The rows of [`A100_ALL_REDUCE`] that the model is calibrated with, by protocol: the first and
/// the last of each. All other rows are predicted.
const A100_CALIBRATION: [(&str, usize, usize); 3] =
    [("LL", 0, 4), ("LL128", 5, 8), ("Simple", 9, 19)];

/// The model of [`A100_ALL_REDUCE`], from six of its rows.
#[must_use]
pub fn a100_all_reduce() -> Curve {
    let row = |row: usize| (A100_ALL_REDUCE[row].0, A100_ALL_REDUCE[row].1 * 1e-6);
    let spans = A100_CALIBRATION.map(|(name, first, last)| Span {
        name,
        least: row(first),
        greatest: row(last),
    });
    Curve::through(&spans)
}

#[cfg(test)]
mod tests {
    use super::super::about;
    use super::*;

    #[test]
    fn six_rows_tell_of_all_twenty() {
        let curve = a100_all_reduce();
        for (bytes, us) in A100_ALL_REDUCE {
            // The tolerance that the project sets itself: wider where latency rules.
            let tolerance = if bytes >= 64.0 * 1_048_576.0 { 0.15 } else { 0.35 };
            about(curve.time_s(bytes), us * 1e-6, tolerance);
        }
        let off = |time: &dyn Fn(f64) -> f64| {
            let off = |(bytes, us): &(f64, f64)| (time(*bytes) / (us * 1e-6) - 1.0).abs();
            A100_ALL_REDUCE.iter().map(off).sum::<f64>() / 20.0
        };
        let three_lines = off(&|bytes| curve.time_s(bytes));
        assert!(three_lines < 0.055, "{three_lines}");
        // The best that a single line does.
        let one_line = off(&|bytes| 59e-6 + bytes / 129e9);
        assert!((0.14..0.16).contains(&one_line), "{one_line}");
    }

    #[test]
    fn many_small_ones_take_longer_than_a_large_one() {
        let curve = a100_all_reduce();
        // Measured: 1257.165 against 374.391 Gb/s, 3.36 times.
        about(1000.0 * curve.time_s(4e6) / curve.time_s(4e9), 3.36, 0.15);
    }

    #[test]
    fn protocols_take_turns_by_size() {
        let curve = a100_all_reduce();
        let name = |bytes| curve.regime(bytes).map(|regime| regime.name);
        assert_eq!(name(0.0), Some("LL"));
        assert_eq!(name(2e6), Some("LL128"));
        assert_eq!(name(1e12), Some("Simple"));
        assert_eq!(Curve::through(&[]).time_s(8.0), f64::INFINITY);
    }
}
