//! Reports of experiments: results beside expectations, as a table, as JSON, as a page.

use std::fmt::Write as _;

use ccl_plot::Figure;
use serde::Serialize;

use crate::measure::{mean, standard_error};

/// Expected value.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Expected {
    /// This value, within a tenth.
    About(f64),
    /// This value or more.
    AtLeast(f64),
    /// This value or less.
    AtMost(f64),
    /// A value in this range, or outside of the range by at most a tenth.
    Between(f64, f64),
}

impl Expected {
    /// Returns the relative deviation of `measured` from the nearest expected value; 0 within a
    /// bound or a range. For `About` it is the deviation from the one expected value, even within
    /// the tenth.
    #[must_use]
    pub fn deviation(&self, measured: f64) -> f64 {
        let beyond = |bound: f64| if bound == 0.0 { measured } else { measured / bound - 1.0 };
        match *self {
            Expected::About(value) => beyond(value),
            Expected::AtLeast(least) if measured < least => beyond(least),
            Expected::AtMost(most) if measured > most => beyond(most),
            Expected::Between(least, _) if measured < least => beyond(least),
            Expected::Between(_, most) if measured > most => beyond(most),
            _ => 0.0,
        }
    }

    /// Returns whether `measured` is as expected. `About` and `Between` allow a tenth of deviation,
    /// `AtLeast` and `AtMost` none.
    #[must_use]
    pub fn holds(&self, measured: f64) -> bool {
        let slack =
            if matches!(self, Expected::About(_) | Expected::Between(..)) { 0.1 } else { 0.0 };
        measured.is_finite() && self.deviation(measured).abs() <= slack + 1e-9
    }

    fn text(&self, unit: Unit) -> String {
        match *self {
            Expected::About(value) => unit.text(value),
            Expected::AtLeast(least) => format!("≥ {}", unit.text(least)),
            Expected::AtMost(most) => format!("≤ {}", unit.text(most)),
            Expected::Between(least, most) => {
                format!("{} to {}", unit.text(least), unit.text(most))
            }
        }
    }
}

/// Unit of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Factor.
    Ratio,
    /// Part of a whole, shown in percent.
    Part,
    /// Seconds.
    Seconds,
    /// Bytes.
    Bytes,
    /// Number of things.
    Count,
}

impl Unit {
    /// Returns a value with its unit, as text.
    #[must_use]
    pub fn text(self, value: f64) -> String {
        self.text_beside(value, value)
    }

    /// Returns a value in the unit that suits the value `other`, as text.
    fn text_beside(self, value: f64, other: f64) -> String {
        let scaled = |steps: &[(f64, &str)]| {
            let fits = steps.iter().find(|(size, _)| other.abs() >= *size);
            fits.or(steps.last())
                .map_or_else(String::new, |(size, unit)| format!("{:.2} {unit}", value / size))
        };
        match self {
            Unit::Ratio => format!("{value:.3}×"),
            Unit::Part => format!("{:.1} %", value * 100.0),
            Unit::Seconds => scaled(&[(1.0, "s"), (1e-3, "ms"), (1e-6, "µs")]),
            Unit::Bytes => scaled(&[(1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B")]),
            Unit::Count => format!("{value:.0}"),
        }
    }
}

/// One result.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    /// Name of the measured quantity.
    pub what: String,
    /// Unit of the value.
    pub unit: Unit,
    /// Measured value; with several seeds, the mean over the seeds.
    pub measured: f64,
    /// Standard error of the mean; None for a single seed.
    pub standard_error: Option<f64>,
    /// Expected value.
    pub expected: Option<Expected>,
    /// Deviation of the measured from the expected value ([`Expected::deviation`]).
    pub deviation: Option<f64>,
}

/// All results of an experiment.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Findings {
    /// Results in order.
    pub findings: Vec<Finding>,
    /// Figures.
    pub figures: Vec<Figure>,
    /// Notes for the reader: assumptions, and claims that were not reproduced.
    pub notes: Vec<String>,
}

impl Findings {
    /// Adds a result with an expected value.
    pub fn expect(
        &mut self,
        what: impl Into<String>,
        unit: Unit,
        measured: f64,
        expected: Expected,
    ) {
        let deviation = Some(expected.deviation(measured));
        let (what, expected) = (what.into(), Some(expected));
        let standard_error = None;
        self.findings.push(Finding { what, unit, measured, standard_error, expected, deviation });
    }

    /// Adds a result without an expected value.
    pub fn note(&mut self, what: impl Into<String>, unit: Unit, measured: f64) {
        let (what, standard_error, expected, deviation) = (what.into(), None, None, None);
        self.findings.push(Finding { what, unit, measured, standard_error, expected, deviation });
    }

    /// Adds a sentence for the reader.
    pub fn say(&mut self, sentence: impl Into<String>) {
        self.notes.push(sentence.into());
    }
}

/// An experiment with its results.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Name of the experiment.
    pub name: String,
    /// Title of the experiment.
    pub title: String,
    /// Published claim that the experiment tests; empty if there is none.
    pub source: String,
    /// Network that the experiment ran on; none if the experiment ran on its own network.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on: Option<String>,
    /// Parameters of the run.
    pub parameters: Vec<(String, f64)>,
    /// Seed of all that was random; with several seeds, the first one.
    pub seed: u64,
    /// Number of seeds.
    pub seeds: u32,
    /// Results.
    #[serde(flatten)]
    pub findings: Findings,
}

impl Report {
    /// Merges `others`, reports of the same experiment with other seeds, into this report: each
    /// number becomes the mean, with its standard error. The figures stay those of this report.
    #[must_use]
    pub fn with_others(mut self, others: &[Report]) -> Report {
        for (at, finding) in self.findings.findings.iter_mut().enumerate() {
            let of_others = others.iter().filter_map(|other| other.findings.findings.get(at));
            let of_others = of_others.map(|other| other.measured);
            let values: Vec<f64> = std::iter::once(finding.measured).chain(of_others).collect();
            finding.measured = mean(&values);
            finding.standard_error = standard_error(&values);
            finding.deviation = finding.expected.map(|e| e.deviation(finding.measured));
        }
        self.seeds += others.iter().map(|other| other.seeds).sum::<u32>();
        self
    }

    /// Returns the seeds, as text.
    fn seeds_text(&self) -> String {
        match self.seeds {
            0 | 1 => self.seed.to_string(),
            seeds => {
                let last = self.seed.wrapping_add(u64::from(seeds) - 1);
                format!("{} to {last}", self.seed)
            }
        }
    }
}

fn cells(finding: &Finding) -> [String; 4] {
    let expected = finding.expected.map_or_else(|| "–".to_owned(), |e| e.text(finding.unit));
    let deviation = match (finding.expected, finding.deviation) {
        // Within a bound or a range there is no deviation to show.
        (Some(expected), Some(0.0)) if !matches!(expected, Expected::About(_)) => {
            "within".to_owned()
        }
        (Some(expected), Some(deviation)) => {
            let mark = if expected.holds(finding.measured) { "" } else { " (!)" };
            // Adding 0.0 avoids "-0.0".
            let percent = (deviation * 1000.0).round() / 10.0 + 0.0;
            format!("{percent:+.1} %{mark}")
        }
        _ => "–".to_owned(),
    };
    [finding.what.clone(), expected, measured(finding), deviation]
}

/// Returns the measured value, with its standard error unless this error rounds to 0.
fn measured(finding: &Finding) -> String {
    let Finding { unit, measured, standard_error, .. } = finding;
    let text = |value| unit.text_beside(value, *measured);
    match standard_error.map(text).filter(|shown| *shown != text(0.0)) {
        Some(standard_error) => format!("{} ± {standard_error}", text(*measured)),
        None => text(*measured),
    }
}

/// Formats the report for a terminal.
#[must_use]
pub fn text(report: &Report) -> String {
    let mut text = format!("{}: {}\n", report.name, report.title);
    if !report.source.is_empty() {
        let _ = writeln!(text, "  source: {}", report.source);
    }
    if let Some(on) = &report.on {
        let _ = writeln!(text, "  on {on}");
    }
    let parameters: Vec<String> =
        report.parameters.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let _ = writeln!(text, "  with seed={} {}", report.seeds_text(), parameters.join(" "));
    let head = ["", "expected", "measured", "deviation"].map(str::to_owned);
    let rows: Vec<[String; 4]> =
        std::iter::once(head).chain(report.findings.findings.iter().map(cells)).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<usize> = (0..4).map(|column| width(column).unwrap_or(0)).collect();
    for [what, expected, measured, deviation] in &rows {
        let line = format!(
            "  {what:<0$}  {expected:>1$}  {measured:>2$}  {deviation:>3$}",
            widths[0], widths[1], widths[2], widths[3]
        );
        let _ = writeln!(text, "{}", line.trim_end());
    }
    for note in &report.findings.notes {
        let _ = writeln!(text, "  note: {note}");
    }
    text
}

/// Formats the report as a section of a page.
#[must_use]
pub fn markdown(report: &Report) -> String {
    let mut text = format!("### {}: {}\n\n", report.name, report.title);
    if !report.source.is_empty() {
        let _ = writeln!(text, "> {}\n", report.source);
    }
    if let Some(on) = &report.on {
        let _ = writeln!(text, "On {on}.\n");
    }
    text.push_str("| | expected | measured | deviation |\n|---|---|---|---|\n");
    for finding in &report.findings.findings {
        let _ = writeln!(text, "| {} |", cells(finding).join(" | "));
    }
    for note in &report.findings.notes {
        let _ = write!(text, "\n{note}\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deviations_are_relative_to_the_nearest_expected_value() {
        let cases = [
            (Expected::About(2.0), 2.1, 0.05),
            (Expected::AtLeast(2.0), 3.0, 0.0),
            (Expected::AtLeast(2.0), 1.5, -0.25),
            (Expected::AtMost(2.0), 3.0, 0.5),
            (Expected::Between(0.4, 0.9), 0.3, -0.25),
            (Expected::Between(0.4, 0.9), 0.5, 0.0),
        ];
        for (expected, measured, deviation) in cases {
            let found = expected.deviation(measured);
            assert!((found - deviation).abs() < 1e-9, "{expected:?} {measured}: {found}");
        }
        assert!(Expected::About(2.0).holds(2.19) && !Expected::About(2.0).holds(2.3));
    }

    #[test]
    fn a_mean_is_shown_with_its_standard_error() {
        let found = |measured: f64| {
            let mut findings = Findings::default();
            let expected = Expected::Between(0.05, 0.10);
            findings.expect("gain", Unit::Part, measured, expected);
            findings.note("share", Unit::Part, 0.5 + measured * 1e-6);
            findings.note("time", Unit::Seconds, 1e-2 * (1.0 + measured));
            Report {
                name: "x".to_owned(),
                title: String::new(),
                source: String::new(),
                on: None,
                parameters: Vec::new(),
                seed: 3,
                seeds: 1,
                findings,
            }
        };
        let shown = markdown(&found(0.08));
        assert!(shown.contains("| gain | 5.0 % to 10.0 % | 8.0 % | within |"), "{shown}");
        let several = found(0.08).with_others(&[found(0.10), found(0.15)]);
        assert_eq!((several.seeds, several.seeds_text()), (3, "3 to 5".to_owned()));
        let shown = markdown(&several);
        // For 8, 10 and 15 the standard error is the standard deviation, 3.6, over the root of 3.
        assert!(shown.contains("| 11.0 % ± 2.1 % | +10.0 % |"), "{shown}");
        assert!(shown.contains("| share | – | 50.0 % | – |"), "{shown}");
        assert!(shown.contains("| time | – | 11.10 ms ± 0.21 ms | – |"), "{shown}");
    }

    #[test]
    fn a_report_shows_all_findings() {
        let mut findings = Findings::default();
        findings.expect("time", Unit::Seconds, 2e-3, Expected::AtMost(1e-3));
        findings.note("bytes", Unit::Bytes, 3e9);
        findings.say("Nothing else.");
        let report = Report {
            name: "x".to_owned(),
            title: "a title".to_owned(),
            source: "a source".to_owned(),
            on: Some("a network".to_owned()),
            parameters: vec![("links".to_owned(), 16.0)],
            seed: 1,
            seeds: 1,
            findings,
        };
        let shown = text(&report);
        for part in
            ["2.00 ms", "≤ 1.00 ms", "+100.0 % (!)", "3.00 GB", "links=16", "Nothing", "on a net"]
        {
            assert!(shown.contains(part), "{part}: {shown}");
        }
        assert!(markdown(&report).contains("| time | ≤ 1.00 ms | 2.00 ms | +100.0 % (!) |"));
    }
}
