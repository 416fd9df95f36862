//! Medians and ratios over the rounds.

use super::Sample;
use crate::Outcome;

/// Samples of one side of a comparison, in the order of the rounds.
#[derive(Debug, Default)]
pub(super) struct Series(Vec<Sample>);

impl Series {
    /// Adds the sample of the next round.
    pub(super) fn push(&mut self, sample: Sample) {
        self.0.push(sample);
    }

    /// Returns the median over the rounds of each round's median, in microseconds.
    pub(super) fn median_us(&self) -> Option<f64> {
        median(self.0.iter().map(|sample| sample.median_us).collect())
    }

    /// Returns the median over the rounds of each round's 99th percentile, in microseconds.
    pub(super) fn p99_us(&self) -> Option<f64> {
        median(self.0.iter().filter_map(|sample| sample.p99_us).collect())
    }
}

/// Measures ferroccl and another program in turn, in microseconds, and prints each round. `what`
/// names the measurement, and `other` names the other program.
pub(super) fn in_turn(
    rounds: u32,
    what: &str,
    other: &str,
    mut sides: [&mut dyn FnMut() -> Outcome<f64>; 2],
) -> Outcome<[Series; 2]> {
    let mut all = [Series::default(), Series::default()];
    for round in 1..=rounds {
        let mut told = [0.0; 2];
        for ((side, series), told) in sides.iter_mut().zip(&mut all).zip(&mut told) {
            *told = side()?;
            series.push(Sample { median_us: *told, p99_us: None });
        }
        let [own, theirs] = told;
        println!("{what}, round {round} of {rounds}: ours {own:.1} µs, {other} {theirs:.1} µs");
    }
    Ok(all)
}

/// Returns the ratio of the medians and, in brackets, the smallest and the largest of the rounds'
/// ratios.
pub(super) fn ratio(upper: &Series, lower: &Series) -> String {
    let (Some(a), Some(b)) = (upper.median_us(), lower.median_us()) else {
        return "-".to_owned();
    };
    let pairs = upper.0.iter().zip(&lower.0).map(|(a, b)| a.median_us / b.median_us);
    let (low, high) =
        pairs.fold((f64::MAX, 0.0_f64), |(low, high), ratio| (low.min(ratio), high.max(ratio)));
    format!("{:.2} ({low:.2}..{high:.2})", a / b)
}

/// Formats a number of bytes in the largest unit that divides it.
pub(crate) fn size(bytes: u64) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    let unit = units.iter().find(|(shift, _)| bytes > 0 && bytes.is_multiple_of(1_u64 << shift));
    unit.map_or_else(|| format!("{bytes} B"), |(shift, name)| format!("{} {name}", bytes >> shift))
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    let upper = *values.get(middle)?;
    if values.len() % 2 == 1 { Some(upper) } else { Some(f64::midpoint(values[middle - 1], upper)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(medians: &[f64]) -> Series {
        Series(medians.iter().map(|&median_us| Sample { median_us, p99_us: None }).collect())
    }

    #[test]
    fn the_median_shrugs_off_an_outlier() {
        assert_eq!(series(&[3.0, 900.0, 1.0]).median_us(), Some(3.0));
        assert_eq!(series(&[1.0, 2.0, 900.0, 4.0]).median_us(), Some(3.0));
        assert_eq!(series(&[]).median_us(), None);
        assert_eq!(series(&[1.0]).p99_us(), None);
    }

    #[test]
    fn a_ratio_divides_the_medians_and_shows_the_range_over_the_rounds() {
        assert_eq!(
            ratio(&series(&[2.0, 4.0, 3.0]), &series(&[2.0, 2.0, 2.0])),
            "1.50 (1.00..2.00)"
        );
        assert_eq!(ratio(&series(&[]), &series(&[])), "-");
    }
}
