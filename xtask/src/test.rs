//! `cargo xtask test`: the suites in order, each within its time budget.

use std::fs;
use std::time::{Duration, Instant};

use clap::Args;

use crate::failures::Failures;
use crate::machine::{self, Provenance};
use crate::matrix::Cells;
use crate::suites::{self, SUITES, Suite};
use crate::workspace::{self, Crate, cargo, root};
use crate::{Outcome, check, process, report, setup};

/// How much more time the longer runs may take.
const FULL_FACTOR: u64 = 8;
/// The longest compilation ahead of a suite.
const BUILD_WITHIN: Duration = Duration::from_secs(1200);
/// Where the last longer run is recorded, relative to the root.
const FULL_RECORD: &str = "docs/full-run.md";

/// Flags of `cargo xtask test`.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// The longer runs (more seeds, more ranks), recorded in docs/full-run.md; the fault matrix,
    /// also of a single suite, in docs/fault-matrix.md.
    #[arg(long)]
    full: bool,
    /// Run only this suite.
    #[arg(long, value_name = "NAME", value_parser = known_suite)]
    suite: Option<String>,
}

fn known_suite(name: &str) -> Result<String, String> {
    let known: Vec<&str> = SUITES.iter().map(|suite| suite.name).collect();
    if known.contains(&name) {
        Ok(name.to_owned())
    } else {
        Err(format!("the suites are {}", known.join(", ")))
    }
}

/// Runs the suite of RDMA in software, for which all is built first, outside its budget.
pub(crate) fn softroce() -> Outcome {
    let tests = ["test", "--workspace", "--test", "verbs", "--test", "integration", "--no-run"];
    for words in [&tests[..], suites::SHIPPED] {
        let mut command = cargo(words);
        println!("$ {}", process::typed(&command));
        process::capture(&mut command, BUILD_WITHIN)?;
    }
    run(&Options { full: false, suite: Some(suites::SOFTROCE.to_owned()) })
}

/// How a test says that it cannot run here, at the start of a line and with the reason after it: to
/// libtest it has passed.
const SKIPPED: &str = "SKIPPED: ";

/// Tests that passed and failed, as libtest counts them, less those that said they were skipped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    passed: usize,
    failed: usize,
    skipped: usize,
    /// Skipped since the last result of libtest, which counts them as passed.
    unsettled: usize,
}

impl Counts {
    /// Adds what a line such as `test result: ok. 12 passed; 0 failed; ...` says, or that a test
    /// was skipped.
    fn add_line(&mut self, line: &str) {
        if line.starts_with(SKIPPED) {
            self.skipped += 1;
            self.unsettled += 1;
        }
        let Some(rest) = line.trim_start().strip_prefix("test result: ") else { return };
        let rest = rest.split_once(". ").map_or(rest, |(_, rest)| rest);
        for part in rest.split("; ") {
            match part.trim().split_once(' ') {
                Some((number, "passed")) => {
                    let passed: usize = number.parse().unwrap_or(0);
                    self.passed += passed.saturating_sub(self.unsettled);
                }
                Some((number, "failed")) => self.failed += number.parse().unwrap_or(0),
                _ => {}
            }
        }
        self.unsettled = 0;
    }

    /// A command has ended: what it skipped as a whole has no result.
    fn settle(&mut self) {
        self.unsettled = 0;
    }

    fn ran_or_skipped(&self) -> usize {
        self.passed + self.failed + self.skipped
    }
}

/// How a suite went.
#[derive(Debug)]
struct Report {
    name: &'static str,
    elapsed: Duration,
    budget: Duration,
    counts: Counts,
    /// Why the suite as such is no success; `None` if it is.
    failure: Option<String>,
    /// Something the reader should know although it is no failure.
    warning: Option<String>,
    /// What the tests that failed said.
    told: Option<String>,
}

impl Report {
    /// The suite's tests. A suite that fails without a failing test (it did not build, it was
    /// killed) counts as one failed test: "0 failed" must mean success.
    fn counts(&self) -> Counts {
        let mut counts = self.counts;
        if self.failure.is_some() {
            counts.failed = counts.failed.max(1);
        }
        counts
    }

    fn row(&self) -> Vec<String> {
        let mut result = match (&self.failure, &self.warning) {
            (Some(failure), _) => format!("FAILED: {failure}"),
            (None, Some(warning)) => format!("ok, but {warning}"),
            (None, None) => "ok".to_owned(),
        };
        let Counts { passed, failed, skipped, .. } = self.counts;
        if skipped > 0 {
            result = format!("{result}; {skipped} skipped");
        }
        let tests =
            if passed + failed == 0 { "-".to_owned() } else { format!("{passed}/{failed}") };
        vec![
            self.name.to_owned(),
            format!("{:.0} s", self.elapsed.as_secs_f64()),
            format!("{} s", self.budget.as_secs()),
            tests,
            result,
        ]
    }
}

/// Runs the suites, prints the table and the counts; an error if anything failed.
pub(crate) fn run(options: &Options) -> Outcome {
    introduce();
    let crates = workspace::crates()?;
    let chosen = |suite: &&Suite| options.suite.as_deref().is_none_or(|name| name == suite.name);
    let mut reports = Vec::new();
    let mut cells = Cells::default();
    for suite in SUITES.iter().filter(chosen) {
        let report = run_suite(suite, &crates, options.full, &mut cells)?;
        // Whatever comes after a broken build would only repeat its errors.
        let stop = suite.name == "build" && report.failure.is_some();
        reports.push(report);
        if stop {
            println!("\nThe build failed: the suites after it were not run.");
            break;
        }
    }
    for (name, told) in reports.iter().filter_map(|r| Some((r.name, r.told.as_ref()?))) {
        println!("\n== what failed in {name}\n{told}");
    }
    let table = table(&reports);
    println!("\n{table}");
    if options.full {
        cells.record()?;
    }
    if options.full && options.suite.is_none() {
        record(&table)?;
    }
    conclude(&reports, machine::is_ci())
}

fn introduce() {
    println!("The tests need Rust and a C linker; what a suite installs or skips, it says.");
    println!("{}", setup::notice());
    println!("{}", machine::disk_notice());
}

fn table(reports: &[Report]) -> String {
    let rows: Vec<Vec<String>> = reports.iter().map(Report::row).collect();
    report::table(&["suite", "time", "budget", "passed/failed", "result"], &rows)
}

/// Prints the closing line, alone on its line and the last of the output. A suite's slow hour is
/// made up for by the others: what must hold, where it is `strict`, is the budget of all, on a slow
/// day.
fn conclude(reports: &[Report], strict: bool) -> Outcome {
    let mut total = Counts::default();
    for counts in reports.iter().map(Report::counts) {
        total.passed += counts.passed;
        total.failed += counts.failed;
        total.skipped += counts.skipped;
    }
    let failed: Vec<&str> =
        reports.iter().filter(|report| report.failure.is_some()).map(|r| r.name).collect();
    if total.skipped > 0 {
        println!("{} skipped, each with its reason in a line `{SKIPPED}...`", total.skipped);
    }
    let elapsed: Duration = reports.iter().map(|report| report.elapsed).sum();
    let budget: Duration = reports.iter().map(|report| report.budget).sum();
    let late = strict && elapsed > budget.mul_f64(machine::SLOW_DAY);
    total.failed += usize::from(late && failed.is_empty());
    println!("{} passed, {} failed", total.passed, total.failed);
    if late {
        let (elapsed, budget) = (elapsed.as_secs(), budget.as_secs());
        return Err(format!("the suites took {elapsed} s of {budget} s: make some faster"));
    }
    if failed.is_empty() {
        return Ok(());
    }
    let again: Vec<String> =
        failed.iter().map(|name| format!("`cargo xtask test --suite {name}`")).collect();
    let disk = machine::disk_advice().map_or_else(String::new, |advice| format!("; {advice}"));
    let failed = failed.join(", ");
    Err(format!("suites failed: {failed}{disk}; run one again with {}", again.join(", ")))
}

fn run_suite(
    suite: &'static Suite,
    crates: &[Crate],
    full: bool,
    cells: &mut Cells,
) -> Outcome<Report> {
    let budget = Duration::from_secs(suite.budget_s * if full { FULL_FACTOR } else { 1 });
    println!("\n== {}: {}", suite.name, suite.what);
    println!("   {}; budget {} s", suite.needs, budget.as_secs());
    let start = Instant::now();
    let mut counts = Counts::default();
    let mut failure = None;
    let mut skipped = Vec::new();
    let mut failures = Failures::default();
    for words in suites::commands(suite, crates) {
        let mut command = cargo(&words);
        if full {
            command.env("FERROCCL_TEST_FULL", "1");
        }
        println!("   $ {}", process::typed(&command));
        let left = (machine::HANGS * budget).saturating_sub(start.elapsed());
        let end = process::run(&mut command, left, |line| {
            println!("{line}");
            counts.add_line(line);
            cells.add_line(line);
            failures.add_line(line);
            skipped.extend(line.strip_prefix(check::SKIPPED).map(str::to_owned));
        })?;
        counts.settle();
        if !end.success() {
            let step = process::typed(&command);
            failure.get_or_insert(format!("`{step}`: {}", end.describe()));
        }
        if end == process::End::Deadline {
            break;
        }
    }
    let report = Report {
        name: suite.name,
        elapsed: start.elapsed(),
        budget,
        counts,
        failure,
        warning: (!skipped.is_empty()).then(|| format!("SKIPPED {}", skipped.join("; "))),
        told: failures.told(),
    };
    Ok(judge(report, suite.tests_min))
}

/// Applies what a suite must fulfil beyond the success of its commands.
fn judge(mut report: Report, tests_min: usize) -> Report {
    let ran = report.counts.ran_or_skipped();
    if ran < tests_min {
        let message = format!("ran or skipped {ran} tests, at least {tests_min} were expected");
        report.failure.get_or_insert(message);
    }
    if report.elapsed > report.budget {
        let before = report.warning.take().map(|before| format!("{before}; "));
        report.warning = Some(before.unwrap_or_default() + "over its time budget");
    }
    report
}

fn record(table: &str) -> Outcome {
    let text = format!(
        "# The last full run\n\nWritten by `cargo xtask test --full`: {}.\n\n{table}",
        Provenance::now().sentence()
    );
    let path = root().join(FULL_RECORD);
    fs::create_dir_all(root().join("docs"))
        .and_then(|()| fs::write(&path, text))
        .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    println!("recorded in {FULL_RECORD}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(passed: usize, failed: usize) -> Counts {
        Counts { passed, failed, ..Counts::default() }
    }

    fn report(elapsed_s: u64, counts: Counts) -> Report {
        Report {
            name: "s",
            elapsed: Duration::from_secs(elapsed_s),
            budget: Duration::from_secs(10),
            counts,
            failure: None,
            warning: None,
            told: None,
        }
    }

    #[test]
    fn result_lines_are_summed() {
        let mut counts = Counts::default();
        counts.add_line("test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured");
        counts.add_line("test result: FAILED. 3 passed; 2 failed; 0 ignored; finished in 1.00s");
        counts.add_line("test says_test_result ... ok");
        assert_eq!((counts.passed, counts.failed, counts.skipped), (15, 2, 0));
    }

    #[test]
    fn a_skipped_test_is_not_counted_as_passed() {
        let mut counts = Counts::default();
        counts.add_line("SKIPPED: not root");
        counts.add_line("test said SKIPPED: in the middle ... ok");
        counts.add_line("test result: ok. 3 passed; 0 failed; 0 ignored");
        counts.add_line("test result: ok. 3 passed; 0 failed; 0 ignored");
        assert_eq!((counts.passed, counts.skipped), (5, 1));
        counts.add_line("SKIPPED: no guest, so there is no result line");
        counts.settle();
        counts.add_line("test result: ok. 1 passed; 0 failed; 0 ignored");
        assert_eq!((counts.passed, counts.skipped), (6, 2));
        assert!(report(1, counts).row()[4].ends_with("; 2 skipped"));
    }

    #[test]
    fn a_suite_may_skip_all_its_tests() {
        let counts = Counts { skipped: 1, ..Counts::default() };
        assert!(judge(report(1, counts), 1).failure.is_none());
    }

    #[test]
    fn the_budget_of_all_is_enforced_under_ci_and_a_suites_own_is_a_warning() {
        let judged = |elapsed_s| judge(report(elapsed_s, counts(1, 0)), 1);
        assert!(judged(11).failure.is_none() && judged(11).warning.is_some());
        assert!(judged(9).failure.is_none() && judged(9).warning.is_none());
        let slow = (10.0 * machine::SLOW_DAY) as u64;
        assert!(conclude(&[judged(slow), judged(slow)], true).is_ok());
        let error = conclude(&[judged(slow + 1), judged(slow + 1)], true).unwrap_err();
        assert!(error.contains(&format!("{} s of 20 s", 2 * slow + 2)), "{error}");
        assert!(conclude(&[judged(slow + 1), judged(slow + 1)], false).is_ok());
    }

    #[test]
    fn a_suite_that_runs_nothing_fails_and_counts_as_failed() {
        let empty = judge(report(1, Counts::default()), 1);
        assert!(empty.failure.is_some());
        assert_eq!(empty.counts(), counts(0, 1));
        assert!(conclude(&[empty], true).is_err());
    }

    #[test]
    fn failing_tests_are_not_counted_twice() {
        let mut failing = report(1, counts(4, 3));
        failing.failure = Some("exit status 101".to_owned());
        assert_eq!(failing.counts(), counts(4, 3));
        assert!(conclude(&[failing, report(1, counts(1, 0))], true).is_err());
        assert!(conclude(&[report(1, counts(1, 0))], true).is_ok());
    }
}
