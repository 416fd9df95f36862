//! `cargo xtask test`: runs the suites in order and reports their results.
//!
//! A slow suite does not fail: its time is printed beside its usual time. Only a hanging suite is
//! killed, and the suites after it still run.

mod binaries;
mod failures;
mod matrix;
mod record;
mod runner;
mod suites;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;

use crate::machine::{self, Provenance};
use crate::workspace::{self, cargo, target_dir};
use crate::{Outcome, SKIPPED, guest, libfabric, process, report, setup};
pub(crate) use binaries::Binary;
use failures::Failures;
use matrix::Cells;
use runner::{Conditions, Finished, Verdict};
use suites::{Guest, Program, SUITES, Step, Suite};

/// Multiple of a suite's usual time after which the suite counts as hanging and is killed.
const HANGS: u32 = 5;
/// Shortest time after which a suite counts as hanging.
const HANGS_AFTER: Duration = Duration::from_secs(600);
/// Longest time of one test on a machine of usual speed, in the quick tier and in the deep one.
const TEST_WITHIN: [Duration; 2] = [Duration::from_secs(300), Duration::from_secs(3600)];
/// Longest time of compiling all test binaries.
const BUILD_WITHIN: Duration = Duration::from_secs(3600);
/// Usual seconds of compiling all test binaries, from an empty target directory.
const BUILD_USUAL_S: u64 = 190;
/// Number of slowest tests that are printed for each suite.
const SLOWEST: usize = 5;

/// Flags of `cargo xtask test`.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Run the deep tier: every rank count, every seed, every cell of the fault matrix, sanitizers,
    /// fuzzers. Each suite that ran is recorded in docs/full-run.md, the fault matrix in
    /// docs/fault-matrix.md.
    #[arg(long)]
    full: bool,
    /// Run only this suite; may be given several times.
    #[arg(long, value_name = "NAME", value_parser = known_suite)]
    suite: Vec<String>,
    /// Print the suites with their tiers, and run nothing.
    #[arg(long)]
    list: bool,
    /// Run only tests whose names contain this text.
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
}

fn known_suite(name: &str) -> Result<String, String> {
    let known: Vec<&str> = SUITES.iter().map(|suite| suite.name).collect();
    if known.contains(&name) {
        Ok(name.to_owned())
    } else {
        Err(format!("the suites are {}", known.join(", ")))
    }
}

/// Builds every test binary.
pub(crate) fn binaries(within: Duration) -> Outcome<Vec<Binary>> {
    binaries::build(within)
}

/// Runs all RDMA tests over Soft-RoCE: the deep part of the suite `softroce`.
pub(crate) fn softroce() -> Outcome {
    run(&Options { full: true, suite: vec![suites::SOFTROCE.to_owned()], list: false, only: None })
}

/// Runs the deep parts of the suites that cover files changed since `base`.
pub(crate) fn changed(base: &str) -> Outcome {
    let files = workspace::changed_since(base)?;
    let suites = SUITES.iter().filter(|suite| files.iter().any(|file| suite.covers(file)));
    let suite: Vec<String> = suites.map(|suite| suite.name.to_owned()).collect();
    if suite.is_empty() {
        println!("No suite of the deep tier covers a file that has changed since {base}.");
        return Ok(());
    }
    println!("{} files changed since {base}; suites to run: {}", files.len(), suite.join(", "));
    run(&Options { full: true, suite, list: false, only: None })
}

/// Numbers of passed, failed and skipped tests; a skipped test does not count as passed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    passed: usize,
    failed: usize,
    skipped: usize,
    /// Number of tests skipped since libtest's previous result line. The next result line counts
    /// these tests as passed.
    unsettled: usize,
}

impl Counts {
    /// Adds the numbers of a line such as `test result: ok. 12 passed; 0 failed; ...`. Counts a
    /// skipped test if the line is about one.
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

    /// Records that a command has ended: its skipped tests do not affect the next command's result
    /// line.
    fn settle(&mut self) {
        self.unsettled = 0;
    }

    fn ran_or_skipped(&self) -> usize {
        self.passed + self.failed + self.skipped
    }
}

/// Result of a suite.
#[derive(Debug)]
struct Report {
    name: &'static str,
    elapsed: Duration,
    usual: Duration,
    counts: Counts,
    /// Number of skipped tests, keyed by the reason.
    skips: BTreeMap<String, usize>,
    /// Reason why the suite failed, if it did; of several reasons, the first.
    failure: Option<String>,
    /// Output of the failed tests.
    told: Vec<String>,
    slowest: Vec<(Duration, String)>,
    /// Lines that are held back until the suite has ended, since another suite prints meanwhile;
    /// `None` if the suite's lines are printed at once.
    held: Option<Vec<String>>,
}

impl Report {
    fn new(name: &'static str, usual: Duration) -> Report {
        Report {
            name,
            elapsed: Duration::ZERO,
            usual,
            counts: Counts::default(),
            skips: BTreeMap::new(),
            failure: None,
            told: Vec::new(),
            slowest: Vec::new(),
            held: None,
        }
    }

    fn say(&mut self, line: impl Into<String>) {
        match &mut self.held {
            Some(held) => held.push(line.into()),
            None => println!("{}", line.into()),
        }
    }

    /// Returns the counts of the suite's tests. A suite that fails without a failing test (it did
    /// not build, it was killed) counts as one failed test: "0 failed" must mean success.
    fn counts(&self) -> Counts {
        let mut counts = self.counts;
        if self.failure.is_some() {
            counts.failed = counts.failed.max(1);
        }
        counts
    }

    fn fail(&mut self, reason: impl Into<String>) {
        self.failure.get_or_insert(reason.into());
    }

    fn skip(&mut self, reason: &str) {
        *self.skips.entry(reason.to_owned()).or_default() += 1;
    }

    fn result(&self) -> String {
        let mut result = match &self.failure {
            Some(failure) => format!("FAILED: {failure}"),
            None => "ok".to_owned(),
        };
        if self.counts.skipped > 0 {
            result = format!("{result}; {} skipped", self.counts.skipped);
        }
        result
    }

    fn tests(&self) -> String {
        let Counts { passed, failed, .. } = self.counts;
        if passed + failed == 0 { "-".to_owned() } else { format!("{passed}/{failed}") }
    }

    fn row(&self) -> Vec<String> {
        vec![
            self.name.to_owned(),
            format!("{:.0} s", self.elapsed.as_secs_f64()),
            format!("{} s", self.usual.as_secs()),
            self.tests(),
            self.result(),
        ]
    }

    /// Adds a test that has ended, and prints its result.
    fn add(&mut self, test: &Finished) {
        let seconds = test.took.as_secs_f64();
        let title = &test.title;
        match &test.verdict {
            Verdict::Passed => {
                self.counts.passed += 1;
                self.say(format!("test {title} ... ok ({seconds:.1} s)"));
            }
            Verdict::Skipped(reason) => {
                self.counts.skipped += 1;
                self.skip(reason);
                self.say(format!("test {title} ... skipped: {reason}"));
            }
            Verdict::Failed(_) => {
                self.counts.failed += 1;
                let told = test.told();
                self.say(format!("test {title} ... FAILED\n{told}"));
                self.fail(format!("`{title}` and perhaps others"));
                self.told.push(told);
            }
        }
        self.slowest.push((test.took, title.clone()));
        self.slowest.sort_by(|a, b| b.cmp(a));
        self.slowest.truncate(SLOWEST);
    }
}

/// Context that all suites of a run share.
struct Run<'a> {
    deep: bool,
    only: Option<&'a str>,
    slowness: f64,
    binaries: &'a [Binary],
    cells: Mutex<Cells>,
}

/// Runs the suites and prints the table and the counts; an error if anything failed.
pub(crate) fn run(options: &Options) -> Outcome {
    if options.list {
        println!("{}", suites::list());
        return Ok(());
    }
    let before = workspace::status()?;
    let slowness = machine::slowness();
    introduce(slowness);
    println!("\n== build: compiles all tests and programs, with one profile");
    let start = Instant::now();
    let binaries = binaries::build(BUILD_WITHIN)?;
    let mut build = Report::new("build", Duration::from_secs(BUILD_USUAL_S));
    build.elapsed = start.elapsed();
    let run = Run {
        deep: options.full,
        only: options.only.as_deref(),
        slowness,
        binaries: &binaries,
        cells: Mutex::default(),
    };
    let named = |suite: &&Suite| {
        options.suite.is_empty() || options.suite.iter().any(|name| name == suite.name)
    };
    let chosen = |suite: &&Suite| named(suite) && !suite.steps(options.full).is_empty();
    let suites: Vec<&'static Suite> = SUITES.iter().filter(chosen).collect();
    let mut reports = vec![build];
    thread::scope(|scope| {
        let beside = |suite: &Suite| suite.waits && !options.full && suites.len() > 1;
        let start = |suite: &&'static Suite| {
            let suite = *suite;
            beside(suite).then(|| scope.spawn(|| run.suite(suite, Some(Vec::new()))))
        };
        let started: Vec<_> = suites.iter().map(start).collect();
        for (suite, started) in suites.iter().zip(started) {
            let report = match started {
                None => run.suite(suite, None)?,
                Some(started) => {
                    let report = started.join();
                    let mut report =
                        report.map_err(|_| format!("suite {} panicked", suite.name))??;
                    let held = report.held.take().unwrap_or_default();
                    held.iter().for_each(|line| println!("{line}"));
                    report
                }
            };
            if options.full && options.only.is_none() {
                record::update(&[row_of(&report)])?;
            }
            reports.push(report);
        }
        Ok::<(), String>(())
    })?;
    for report in reports.iter().filter(|report| !report.told.is_empty()) {
        println!("\n== failures in {}\n{}", report.name, report.told.join("\n"));
    }
    if !options.full {
        reports.push(traces(&before)?);
    }
    println!("\n{}", table(&reports));
    let mut recorded = Ok(());
    if options.full {
        recorded = run.cells.into_inner().unwrap_or_else(PoisonError::into_inner).record();
    } else {
        println!("The last runs of the deep tier (`cargo xtask test --full`):");
        record::ages().iter().for_each(|age| println!("  {age}"));
    }
    conclude(&reports)?;
    recorded
}

/// Checks that a run of the quick tier has not changed the working tree.
fn traces(before: &str) -> Outcome<Report> {
    let mut report = Report::new("traces", Duration::ZERO);
    let after = workspace::status()?;
    if after == before {
        report.counts.passed = 1;
    } else {
        report.fail(format!("the run changed the working tree: {}", after.trim()));
    }
    Ok(report)
}

fn introduce(slowness: f64) {
    println!("The tests need Rust and a C linker; each suite reports what it installs or skips.");
    println!("{}", setup::notice());
    println!("{}", machine::disk_notice());
    println!(
        "This machine takes {slowness:.1} times as long as a usual one; deadlines are longer by \
         this factor."
    );
}

fn row_of(report: &Report) -> record::Row {
    let [date, commit, machine] = Provenance::now().parts();
    let time = format!("{:.0} s", report.elapsed.as_secs_f64());
    // A bar would end the cell.
    let result = report.result().replace('|', "/");
    [report.name.to_owned(), date, commit, time, report.tests(), result, machine]
}

fn table(reports: &[Report]) -> String {
    let rows: Vec<Vec<String>> = reports.iter().map(Report::row).collect();
    report::table(&["suite", "time", "usual", "passed/failed", "result"], &rows)
}

/// Prints the reasons of skipped tests, then the counts; an error names the failed suites.
fn conclude(reports: &[Report]) -> Outcome {
    let mut total = Counts::default();
    for counts in reports.iter().map(Report::counts) {
        total.passed += counts.passed;
        total.failed += counts.failed;
        total.skipped += counts.skipped;
    }
    let mut skips: BTreeMap<&str, usize> = BTreeMap::new();
    for (reason, count) in reports.iter().flat_map(|report| &report.skips) {
        *skips.entry(reason).or_default() += count;
    }
    skips.iter().for_each(|(reason, count)| println!("{count} skipped: {reason}"));
    println!("{} passed, {} failed, {} skipped", total.passed, total.failed, total.skipped);
    let failed: Vec<&str> =
        reports.iter().filter(|report| report.failure.is_some()).map(|r| r.name).collect();
    if failed.is_empty() {
        return Ok(());
    }
    let again: Vec<String> =
        failed.iter().map(|name| format!("`cargo xtask test --suite {name}`")).collect();
    let disk = machine::disk_advice().map_or_else(String::new, |advice| format!("; {advice}"));
    let failed = failed.join(", ");
    Err(format!("suites failed: {failed}{disk}; run one again with {}", again.join(", ")))
}

impl Run<'_> {
    /// Runs a suite and shows its lines, or collects them in `held`, if given.
    fn suite(&self, suite: &'static Suite, held: Option<Vec<String>>) -> Outcome<Report> {
        let usual = Duration::from_secs(suite.usual_s[usize::from(self.deep)]);
        let mut report = Report { held, ..Report::new(suite.name, usual) };
        if report.held.is_some() {
            println!(
                "\n== {} starts now, beside the other suites; its output comes later",
                suite.name
            );
        }
        report.say(format!("\n== {}: {}", suite.name, suite.what));
        report.say(format!("   {}; {}", suite.needs, suite.tiers));
        let start = Instant::now();
        let within = (HANGS * usual).max(HANGS_AFTER).mul_f64(self.slowness);
        for step in suite.steps(self.deep) {
            self.step(step, &mut report, start + within)?;
        }
        report.elapsed = start.elapsed();
        let slowest = report.slowest.iter();
        let slowest = slowest.map(|(took, title)| format!("{:.1} s {title}", took.as_secs_f64()));
        let slowest: Vec<String> = slowest.collect();
        let seconds = report.elapsed.as_secs_f64();
        let slowest = if slowest.is_empty() { "unknown".to_owned() } else { slowest.join(", ") };
        report.say(format!("   {seconds:.0} s; the slowest tests: {slowest}"));
        // A suite that selects too few tests must not pass, unless `--only` has left tests out.
        let ran = report.counts.ran_or_skipped();
        if self.only.is_none() && report.skips.is_empty() && ran < suite.tests_min {
            let least = suite.tests_min;
            report.fail(format!("ran or skipped {ran} tests, but at least {least} were expected"));
        }
        Ok(report)
    }

    fn step(&self, step: &Step, report: &mut Report, deadline: Instant) -> Outcome {
        match step {
            Step::Tests(select) => self.tests(*select, report, deadline),
            Step::Cargo(words) => {
                let command = cargo(words);
                let name = process::typed(&command);
                self.command(command, &name, report, deadline)
            }
            Step::Xtask(words) => {
                let mut command = std::process::Command::new(guest::own()?);
                command.args(*words);
                let name = format!("cargo xtask {}", words.join(" "));
                self.command(command, &name, report, deadline)
            }
            Step::Guest(guest) => {
                let name = format!("cargo xtask guest --setup {}", guest.setup);
                let Some(command) = self.guest(guest)? else {
                    let why = "no version of libfabric is installed";
                    let line = format!("{SKIPPED}{why}");
                    report.counts.add_line(&line);
                    report.skip(why);
                    report.say(line);
                    return Ok(());
                };
                self.command(command, &name, report, deadline)
            }
        }
    }

    /// Returns the environment variables of every test.
    fn variables(&self) -> Vec<(&'static str, String)> {
        let mut variables = vec![
            (machine::SLOWNESS, format!("{:.2}", self.slowness)),
            // All programs that the tests start are built already.
            ("FERROCCL_TEST_BUILT", "1".to_owned()),
        ];
        if self.deep {
            variables.push(("FERROCCL_TEST_FULL", "1".to_owned()));
        }
        variables
    }

    fn tests(&self, select: suites::Select, report: &mut Report, deadline: Instant) -> Outcome {
        let mut tests = select.tests(self.binaries, self.deep)?;
        if let Some(only) = self.only {
            tests.retain(|test| test.title().contains(only));
        }
        let variables = self.variables();
        let conditions = Conditions {
            variables: &variables,
            test_within: TEST_WITHIN[usize::from(self.deep)].mul_f64(self.slowness),
            deadline,
            width: machine::width(),
        };
        report.say(format!("   {} tests, {} at a time", tests.len(), conditions.width));
        let not_started = runner::run(&tests, conditions, |test| {
            test.output.iter().for_each(|line| self.add_cell(line));
            report.add(&test);
        });
        if process::interrupted() {
            return Err("interrupted".to_owned());
        }
        if let Some(first) = not_started.first() {
            let count = not_started.len();
            report.fail(format!("hung: {count} tests were not started, beginning with `{first}`"));
        }
        Ok(())
    }

    fn add_cell(&self, line: &str) {
        self.cells.lock().unwrap_or_else(PoisonError::into_inner).add_line(line);
    }

    /// Runs a command that prints lines as libtest does. If the command fails, the suite's failure
    /// shows the text `name` instead of the command.
    fn command(
        &self,
        mut command: std::process::Command,
        name: &str,
        report: &mut Report,
        deadline: Instant,
    ) -> Outcome {
        command.envs(self.variables());
        report.say(format!("   $ {}", process::typed(&command)));
        let mut failures = Failures::default();
        let mut running = Running::default();
        let left = deadline.saturating_duration_since(Instant::now());
        let end = process::run(&mut command, left, |line| {
            report.say(line);
            running.add_line(line);
            if let Some(reason) = line.strip_prefix(SKIPPED) {
                report.skip(reason);
            }
            report.counts.add_line(line);
            self.add_cell(line);
            failures.add_line(line);
        })?;
        report.counts.settle();
        if !end.success() {
            report.fail(format!("`{name}`: {}", end.describe()));
        }
        if end == process::End::Deadline {
            report.told.push(format!(
                "killed; tests that had run for over 60 s and had not ended: {}",
                running.0.join(", ")
            ));
        }
        report.told.extend(failures.told());
        Ok(())
    }

    /// Returns a command that boots the guest once and runs all programs, even after one fails.
    /// Returns none if there is nothing to run.
    fn guest(&self, guest: &Guest) -> Outcome<Option<std::process::Command>> {
        let own = guest::own()?;
        let out = target_dir()?.join("compare-transports");
        std::fs::create_dir_all(&out)
            .map_err(|error| format!("cannot make {}: {error}", out.display()))?;
        let mut lines = String::new();
        for program in guest.programs {
            for words in self.commands(program, &own, &out)? {
                lines += &format!("'{}' || status=1\n", words.join("' '"));
            }
        }
        if lines.is_empty() {
            return Ok(None);
        }
        let script = format!("status=0\n{lines}exit $status");
        let mut command = std::process::Command::new(own);
        command.args(["guest", "--or-skip", "--timeout", "3600", "--setup", guest.setup, "--rw"]);
        command.arg(out).args(["--", "sh", "-c", &script]);
        command.envs(guest.variables.iter().copied());
        Ok(Some(command))
    }

    /// Returns the words of the commands that a program of the guest consists of. `own` is the
    /// path of `xtask`, and `out` a directory for results.
    fn commands(&self, program: &Program, own: &Path, out: &Path) -> Outcome<Vec<Vec<String>>> {
        let path = |path: &Path| path.display().to_string();
        let test = |target: &str, arguments: &[&str]| -> Outcome<Vec<String>> {
            let found = self.binaries.iter().find(|one| !one.is_unit && one.target == target);
            let found = found.ok_or_else(|| format!("cargo built no test `{target}`"))?;
            let words = arguments.iter().chain(&["--test-threads", "2"]);
            let words = words.map(|word| (*word).to_owned());
            Ok(std::iter::once(path(&found.path)).chain(words).collect())
        };
        match program {
            Program::Test(target, arguments) => Ok(vec![test(target, arguments)?]),
            Program::OverLibfabric(target, arguments) => {
                let test = test(target, arguments)?;
                let over = |version: &libfabric::Version| {
                    let variables = version.variables().map(|(name, it)| format!("{name}={it}"));
                    let words = std::iter::once("env".to_owned()).chain(variables);
                    words.chain(test.iter().cloned()).collect()
                };
                Ok(libfabric::versions().0.iter().map(over).collect())
            }
            Program::CompareTransports => {
                let built = target_dir()?.join("debug/examples");
                let words = [&path(own), "compare-transports", "--built", &path(&built)];
                let more = ["--out", &path(out), "--rounds", "1", "--short"];
                Ok(vec![words.into_iter().chain(more).map(str::to_owned).collect()])
            }
        }
    }
}

/// Names of running tests that libtest has reported as long-running.
#[derive(Debug, Default)]
struct Running(Vec<String>);

impl Running {
    fn add_line(&mut self, line: &str) {
        let Some(rest) = line.strip_prefix("test ") else { return };
        if let Some((name, _)) = rest.split_once(" has been running for over ") {
            self.0.push(name.to_owned());
        } else if let Some((name, _)) = rest.split_once(" ... ") {
            self.0.retain(|running| running != name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(counts: Counts) -> Report {
        let elapsed = Duration::from_secs(100);
        Report { elapsed, counts, ..Report::new("s", Duration::from_secs(10)) }
    }

    fn counts(passed: usize, failed: usize) -> Counts {
        Counts { passed, failed, ..Counts::default() }
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
        assert!(report(counts).row()[4].ends_with("; 2 skipped"));
    }

    #[test]
    fn a_slow_suite_does_not_fail() {
        assert_eq!(conclude(&[report(counts(1, 0))]), Ok(()));
    }

    #[test]
    fn a_suite_that_fails_without_a_failed_test_counts_as_one_failed_test() {
        let mut killed = report(counts(4, 0));
        killed.fail("killed");
        assert_eq!(killed.counts(), counts(4, 1));
        let mut failing = report(counts(4, 3));
        failing.fail("exit status 101");
        assert_eq!(failing.counts(), counts(4, 3));
        let error = conclude(&[failing, report(counts(1, 0))]).unwrap_err();
        assert!(error.contains("--suite s"), "{error}");
    }

    #[test]
    fn a_test_counts_as_passed_skipped_or_failed() {
        let mut report = report(Counts::default());
        let ended = |verdict| Finished {
            title: "t".to_owned(),
            verdict,
            took: Duration::from_secs(1),
            output: Vec::new(),
        };
        report.add(&ended(Verdict::Passed));
        report.add(&ended(Verdict::Skipped("not root".to_owned())));
        assert!(report.failure.is_none());
        report.add(&ended(Verdict::Failed("why".to_owned())));
        let Counts { passed, failed, skipped, .. } = report.counts;
        assert_eq!((passed, failed, skipped), (1, 1, 1));
        assert!(report.failure.is_some() && report.told[0].contains("why"));
    }

    #[test]
    fn long_running_tests_are_known_until_they_end() {
        let mut running = Running::default();
        running.add_line("test a has been running for over 60 seconds");
        running.add_line("test b has been running for over 60 seconds");
        running.add_line("test a ... ok");
        assert_eq!(running.0, ["b"]);
    }
}
