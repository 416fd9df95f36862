//! Results of the points (demands on a plugin), as text for people and as JSON for programs.

use std::fmt::Write as _;

use serde::Serialize;

use crate::messages::{Held, Row, Verdict};
use crate::pair::Report;
use crate::points::{self, Kind, Point};

/// Largest number of the plugin's warnings that are shown for a failed point.
const WARNINGS_SHOWN: usize = 5;
/// Width of the table's first column, which has the names.
const NAME_COLUMNS: usize = 38;

/// One line of the table.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Line {
    point: &'static str,
    demand: &'static str,
    kind: &'static str,
    /// Outcome: `passed`, `failed`, `skipped` or `not_tried`.
    outcome: &'static str,
    why: Option<String>,
    notes: Vec<String>,
    warnings: Vec<String>,
    seconds: f64,
}

impl Line {
    /// Makes the line of a point that was run.
    pub(crate) fn of(point: &Point, report: &Report) -> Line {
        let (outcome, why) = match &report.verdict {
            Verdict::Passed | Verdict::PeerEnded => ("passed", None),
            Verdict::Failed(why) => ("failed", Some(why.clone())),
            Verdict::Skipped(why) => ("skipped", Some(why.clone())),
        };
        Line {
            point: point.name,
            demand: point.demand,
            kind: point.kind.name(),
            outcome,
            why,
            notes: report.notes.clone(),
            warnings: report.log.clone(),
            seconds: report.took.as_secs_f64(),
        }
    }

    /// Makes the line of a point that was not run because it depends on `base`, which did not pass.
    pub(crate) fn not_tried(point: &Point, base: &Line) -> Line {
        Line {
            point: point.name,
            demand: point.demand,
            kind: point.kind.name(),
            outcome: "not_tried",
            why: Some(base.as_reason()),
            notes: Vec::new(),
            warnings: Vec::new(),
            seconds: 0.0,
        }
    }

    /// Finds the line of a point that failed or was skipped, and on which `point` depends, directly
    /// or indirectly.
    pub(crate) fn missing<'a>(point: &Point, lines: &'a [Line]) -> Option<&'a Line> {
        let mut base = point.depends_on;
        while let Some(name) = base {
            let is_missing =
                |line: &&Line| line.point == name && matches!(line.outcome, "failed" | "skipped");
            if let Some(line) = lines.iter().find(is_missing) {
                return Some(line);
            }
            base = points::ALL.iter().find(|point| point.name == name)?.depends_on;
        }
        None
    }

    /// Returns the reason why points that depend on this one were not tried.
    pub(crate) fn as_reason(&self) -> String {
        let became = if self.has_failed() { "failed" } else { "was skipped" };
        format!("depends on {}, which {became}", self.point)
    }

    /// Returns whether the point failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.outcome == "failed"
    }

    /// Returns the line for people; for a failed point, also the demand and the plugin's warnings.
    pub(crate) fn text(&self) -> String {
        let name = self.point;
        let mut text = format!("{name:<NAME_COLUMNS$} ");
        match (&self.why, self.outcome) {
            (Some(why), "failed") => {
                let _ = write!(text, "FAILED: {why}\n    demanded: {}\n", self.demand);
                for warning in self.warnings.iter().take(WARNINGS_SHOWN) {
                    let _ = writeln!(text, "    the plugin warned: {warning}");
                }
                if self.warnings.len() > WARNINGS_SHOWN {
                    let more = self.warnings.len() - WARNINGS_SHOWN;
                    let _ = writeln!(text, "    further warnings: {more}");
                }
            }
            (Some(why), outcome) => {
                let _ = writeln!(text, "{}: {why}", outcome.replace('_', " "));
            }
            (None, _) if self.notes.is_empty() => text.push_str("passed\n"),
            (None, _) => {
                let _ = writeln!(text, "passed ({})", self.notes.join("; "));
            }
        }
        text
    }
}

/// All results.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Summary {
    /// File of the plugin.
    pub(crate) library: String,
    /// One line for each point.
    pub(crate) points: Vec<Line>,
    /// One row for each size.
    pub(crate) performance: Vec<Row>,
    /// Memory of a connection.
    pub(crate) connection_bytes: Option<Held>,
    /// Failure that prevented the measurement of performance, or ended it early.
    pub(crate) performance_failed: Option<String>,
    /// Reason why the measurement was skipped.
    pub(crate) performance_skipped: Option<String>,
}

impl Summary {
    /// Returns whether a point or the measurement failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.performance_failed.is_some() || self.points.iter().any(Line::has_failed)
    }

    /// Returns the last line: the number of points by outcome.
    pub(crate) fn verdict(&self) -> String {
        let count = |outcome| self.points.iter().filter(|line| line.outcome == outcome).count();
        let (passed, failed, skipped) = (count("passed"), count("failed"), count("skipped"));
        let not_tried = match count("not_tried") {
            0 => String::new(),
            count => format!(", {count} not tried"),
        };
        format!("{passed} passed, {failed} failed, {skipped} skipped{not_tried}\n")
    }
}

/// Returns the header of the rows of measurements.
pub(crate) fn columns() -> String {
    format!(
        "{:>12}  {:>12}  {:>12}  {:>12}\n{:>12}  {:>12}  {:>12}  {:>12}\n",
        "size", "latency", "p99 latency", "bandwidth", "(B)", "(us)", "(us)", "(GB/s)"
    )
}

/// Returns the row of one size.
pub(crate) fn row(row: &Row) -> String {
    let Row { bytes, latency_us, latency_p99_us, bandwidth_gbps } = row;
    format!("{bytes:>12}  {latency_us:>12.2}  {latency_p99_us:>12.2}  {bandwidth_gbps:>12.3}\n")
}

/// Describes the memory of a connection.
pub(crate) fn held(held: Held) -> String {
    let Held { receiver, sender } = held;
    let [receiver, sender] = [receiver, sender].map(|bytes| bytes.div_ceil(1 << 10));
    format!("\nMemory per connection: {sender} KiB at its sender, {receiver} KiB at its receiver\n")
}

/// Lists the points with their demands.
pub(crate) fn list(points: &[Point]) -> String {
    let mut text = String::new();
    for point in points {
        let kind = match point.kind {
            Kind::Contract => "",
            Kind::Robustness => " [left out by --contract-only]",
        };
        let _ = writeln!(text, "{}{kind}\n    {}", point.name, point.demand);
    }
    text
}
