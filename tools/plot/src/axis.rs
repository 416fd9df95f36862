//! Axes: positions of values, ticks, and their text.

use std::ops::Range;

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};

/// Notation of the numbers of an axis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unit {
    /// Plain numbers.
    #[default]
    None,
    /// Bytes, in powers of two.
    Bytes,
    /// Microseconds, shown in the unit that suits the value (ns, µs, ms or s); for example, 20 ms.
    Microseconds,
}

/// Axis with its range and ticks.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Axis {
    /// Base of the logarithm, or none for a linear axis.
    base: Option<f64>,
    /// Least value shown; on a logarithmic axis, the exponent of that value.
    min: f64,
    /// Greatest value shown; on a logarithmic axis, the exponent of that value.
    max: f64,
    /// Ticks, each with its text.
    ticks: Vec<(f64, String)>,
}

impl Axis {
    /// Returns an axis for these values. Values that the axis cannot show are ignored.
    pub(crate) fn of(values: impl Iterator<Item = f64>, log: bool, unit: Unit) -> Axis {
        let base = log.then_some(if unit == Unit::Bytes { 2.0f64 } else { 10.0 });
        let usable = |value: &f64| value.is_finite() && (!log || *value > 0.0);
        let mapped = values.filter(usable).map(|value| base.map_or(value, |base| value.log(base)));
        let (low, high) = mapped
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(v), high.max(v)));
        let (low, high) = if low > high { (0.0, 1.0) } else { (low, high) };
        let (min, max, step) = match base {
            Some(_) => {
                // The slack is needed because the logarithm of a power is not always exact.
                let (min, max) = ((low + 1e-9).floor(), (high - 1e-9).ceil());
                let max = max.max(min + 1.0);
                (min, max, ((max - min) / 7.0).ceil().max(1.0))
            }
            None => {
                let high = if high > 0.0 { high } else { 1.0 };
                let low = low.min(0.0);
                let step = step(high.max(-low));
                let min = (low / step).floor() * step;
                (min, (high / step).ceil() * step, step)
            }
        };
        let count = ((max - min) / step + 1e-9).floor() as u32;
        let values = (0..=count).map(|number| min + f64::from(number) * step);
        let values = values.map(|at| base.map_or(at, |base| base.powf(at)));
        let ticks = values.map(|value| (value, label(value, unit))).collect();
        Axis { base, min, max, ticks }
    }

    /// Returns an axis of groups of width 1, each named at its middle.
    pub(crate) fn of_groups(names: &[String]) -> Axis {
        let ticks = (0u32..).zip(names).map(|(at, name)| (f64::from(at) + 0.5, name.clone()));
        Axis { base: None, min: 0.0, max: names.len().max(1) as f64, ticks: ticks.collect() }
    }

    /// Returns whether the axis can show the value.
    pub(crate) fn shows(&self, value: f64) -> bool {
        value.is_finite() && (self.base.is_none() || value > 0.0)
    }

    pub(crate) fn ticks(&self) -> usize {
        self.ticks.len()
    }
}

impl Ranged for Axis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (first, last): (i32, i32)) -> i32 {
        let mapped = self.base.map_or(*value, |base| value.log(base));
        let part = (mapped - self.min) / (self.max - self.min);
        first + (part * f64::from(last - first)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.ticks.iter().map(|(value, _)| *value).collect()
    }

    fn range(&self) -> Range<f64> {
        let of = |at: f64| self.base.map_or(at, |base| base.powf(at));
        of(self.min)..of(self.max)
    }
}

impl ValueFormatter<f64> for Axis {
    fn format_ext(&self, value: &f64) -> String {
        let text = self.ticks.iter().find(|(tick, _)| tick == value);
        text.map_or_else(String::new, |(_, text)| text.clone())
    }
}

/// Returns a round step that gives about five ticks up to this value.
fn step(high: f64) -> f64 {
    let magnitude = 10f64.powf((high / 5.0).log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * magnitude);
    steps.into_iter().find(|step| high / step <= 6.5).unwrap_or(high)
}

fn label(value: f64, unit: Unit) -> String {
    let (value, unit) = match unit {
        Unit::None => (value, ""),
        Unit::Bytes => match value {
            b if b >= 1024.0 * 1024.0 * 1024.0 => (b / 1024.0 / 1024.0 / 1024.0, " GiB"),
            b if b >= 1024.0 * 1024.0 => (b / 1024.0 / 1024.0, " MiB"),
            b if b >= 1024.0 => (b / 1024.0, " KiB"),
            b => (b, " B"),
        },
        Unit::Microseconds => match value {
            t if t >= 0.999e6 => (t / 1e6, " s"),
            t if t >= 999.0 => (t / 1e3, " ms"),
            t if t >= 0.999 => (t, " µs"),
            t => (t * 1e3, " ns"),
        },
    };
    format!("{}{unit}", number(value))
}

/// Formats a number with a few digits; how many depends on its magnitude.
fn number(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        v if !(1e-3..1e6).contains(&v) => format!("{value:.1e}").replace(".0e", "e"),
        v if v >= 10.0 || value.fract() == 0.0 => format!("{value:.0}"),
        v if v >= 1.0 => format!("{value:.1}"),
        _ => format!("{value:.4}").trim_end_matches('0').to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(values: &[f64], log: bool, unit: Unit) -> Vec<String> {
        let axis = Axis::of(values.iter().copied(), log, unit);
        axis.ticks.into_iter().map(|(_, text)| text).collect()
    }

    #[test]
    fn axes_have_a_few_ticks_at_round_values_around_the_data() {
        let sizes = texts(&[8.0, 67_108_864.0], true, Unit::Bytes);
        assert_eq!(sizes, ["8 B", "128 B", "2 KiB", "32 KiB", "512 KiB", "8 MiB"]);
        assert_eq!(
            texts(&[20.0, 3e4], true, Unit::Microseconds),
            ["10 µs", "100 µs", "1 ms", "10 ms", "100 ms"]
        );
        assert_eq!(texts(&[0.3, 11.2], false, Unit::None), ["0", "2", "4", "6", "8", "10", "12"]);
        assert_eq!(texts(&[0.3], false, Unit::None)[..4], ["0", "0.05", "0.1", "0.15"]);
        assert_eq!(texts(&[-0.3, 0.5], false, Unit::None).first().unwrap(), "-0.3");
        assert_eq!(texts(&[1.2e6], false, Unit::None)[4..], ["800000", "1e6", "1.2e6"]);
        assert_eq!(texts(&[1.5e-4], false, Unit::None)[2..], ["1e-4", "1.5e-4"]);
        assert_eq!(texts(&[-1000.0, 1.0], false, Unit::None).len(), 7);
        assert_eq!(texts(&[], true, Unit::None), ["1", "10"]);
        assert_eq!(texts(&[100.0, f64::NAN, 0.0], true, Unit::None), ["100", "1000"]);
        let axis = Axis::of([8.0, 1024.0].into_iter(), true, Unit::Bytes);
        assert_eq!((axis.map(&8.0, (0, 70)), axis.map(&1024.0, (0, 70))), (0, 70));
        assert!(axis.shows(1.0) && !axis.shows(0.0) && !axis.shows(f64::INFINITY));
    }
}
