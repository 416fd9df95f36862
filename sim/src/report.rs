//! What an experiment found, beside what was expected: as a table, as JSON, as a page.

use std::fmt::Write as _;

use serde::Serialize;

use crate::plot::Figure;

/// What should come out.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Expected {
    /// This, within a tenth.
    About(f64),
    /// No less.
    AtLeast(f64),
    /// No more.
    AtMost(f64),
    /// Between these.
    Between(f64, f64),
}

impl Expected {
    /// How far a value is from it: relative to the nearest value that would do, 0 if it does. Of
    /// `About` always relative to the value.
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

    /// Whether a value is as expected: within a tenth of a value or of a range; a bound is a bound.
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

/// What a value counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// How many times something.
    Ratio,
    /// A part of something, shown in percent.
    Part,
    /// Seconds.
    Seconds,
    /// Bytes.
    Bytes,
    /// How many.
    Count,
}

impl Unit {
    /// A value with its unit.
    #[must_use]
    pub fn text(self, value: f64) -> String {
        let scaled = |steps: &[(f64, &str)]| {
            let fits = steps.iter().find(|(size, _)| value.abs() >= *size);
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

/// One thing that was found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    /// What was measured.
    pub what: String,
    /// Its unit.
    pub unit: Unit,
    /// What came out.
    pub measured: f64,
    /// What should have.
    pub expected: Option<Expected>,
    /// How far the one is from the other ([`Expected::deviation`]).
    pub deviation: Option<f64>,
}

/// All that an experiment found.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Findings {
    /// In order.
    pub findings: Vec<Finding>,
    /// What is drawn of it.
    pub figures: Vec<Figure>,
    /// What a reader should know besides: what was assumed, and what was not reproduced.
    pub notes: Vec<String>,
}

impl Findings {
    /// One more, of which something was expected.
    pub fn expect(
        &mut self,
        what: impl Into<String>,
        unit: Unit,
        measured: f64,
        expected: Expected,
    ) {
        let deviation = Some(expected.deviation(measured));
        let (what, expected) = (what.into(), Some(expected));
        self.findings.push(Finding { what, unit, measured, expected, deviation });
    }

    /// One more, of which nothing was.
    pub fn note(&mut self, what: impl Into<String>, unit: Unit, measured: f64) {
        let (what, expected, deviation) = (what.into(), None, None);
        self.findings.push(Finding { what, unit, measured, expected, deviation });
    }

    /// A sentence for the reader.
    pub fn say(&mut self, sentence: impl Into<String>) {
        self.notes.push(sentence.into());
    }
}

/// An experiment with what it found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The experiment's name.
    pub name: String,
    /// What it shows.
    pub title: String,
    /// What its source says.
    pub source: String,
    /// The network that it ran on, unless that is its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on: Option<String>,
    /// The numbers that it ran with.
    pub parameters: Vec<(String, f64)>,
    /// The seed of all that was random.
    pub seed: u64,
    /// What it found.
    #[serde(flatten)]
    pub findings: Findings,
}

fn cells(finding: &Finding) -> [String; 4] {
    let expected = finding.expected.map_or_else(|| "–".to_owned(), |e| e.text(finding.unit));
    let deviation = match (finding.expected, finding.deviation) {
        (Some(expected), Some(deviation)) => {
            let mark = if expected.holds(finding.measured) { "" } else { " (!)" };
            // Not "-0.0".
            let percent = (deviation * 1000.0).round() / 10.0 + 0.0;
            format!("{percent:+.1} %{mark}")
        }
        _ => "–".to_owned(),
    };
    [finding.what.clone(), expected, finding.unit.text(finding.measured), deviation]
}

/// The report for a terminal.
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
    let _ = writeln!(text, "  with seed={} {}", report.seed, parameters.join(" "));
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

/// The report as a section of a page.
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
    fn deviations_are_relative_to_the_nearest_value_that_would_do() {
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
    fn a_report_shows_all_that_was_found() {
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
