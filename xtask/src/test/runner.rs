//! Test runner: runs each test in a process and a temporary directory of its own, several at a
//! time. A hanging test is killed and reported with its output; the other tests go on. A test that
//! prints [`SKIPPED`] counts as skipped. A test fails if it leaves a process running, or a file in
//! its temporary directory.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use super::binaries::Binary;
use crate::SKIPPED;
use crate::process::{self, End};

/// Largest number of lines that are shown of a failed test's output. If the output is longer, one
/// half of the shown lines is from its start, the other half from its end.
const LINES_MAX: usize = 120;

/// Test of a binary.
#[derive(Clone, Debug)]
pub(crate) struct Test<'a> {
    pub(crate) binary: &'a Binary,
    pub(crate) name: String,
}

impl Test<'_> {
    /// Returns the names of the binary and the test, as the output shows them.
    pub(crate) fn title(&self) -> String {
        format!("{} {}", self.binary.target, self.name)
    }
}

/// Result of a test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Passed,
    /// The body of the test did not run, for this reason.
    Skipped(String),
    /// The test failed or was killed, for this reason.
    Failed(String),
}

/// Test that has ended.
#[derive(Clone, Debug)]
pub(crate) struct Finished {
    pub(crate) title: String,
    pub(crate) verdict: Verdict,
    pub(crate) took: Duration,
    pub(crate) output: Vec<String>,
}

/// Settings that all tests of a suite share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Conditions<'a> {
    /// Variables for every test.
    pub(crate) variables: &'a [(&'a str, String)],
    /// Time at which the suite counts as hanging: running tests are killed, and no more are
    /// started.
    pub(crate) deadline: Instant,
    /// Longest time of one test; a longer test counts as hanging and is killed.
    pub(crate) test_within: Duration,
    /// Number of tests that run at a time.
    pub(crate) width: usize,
}

/// Runs the tests and passes each to `on_end` when it ends. Returns the titles of tests that were
/// not started because the suite's deadline had passed or the run was interrupted.
pub(crate) fn run(
    tests: &[Test<'_>],
    conditions: Conditions<'_>,
    mut on_end: impl FnMut(Finished),
) -> Vec<String> {
    let next = AtomicUsize::new(0);
    let (send, receive) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..conditions.width.min(tests.len()) {
            let (send, next) = (send.clone(), &next);
            scope.spawn(move || {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(test) = tests.get(index) else { return };
                    if send.send(run_one(test, index, conditions)).is_err() {
                        return;
                    }
                }
            });
        }
        drop(send);
        let mut not_started = Vec::new();
        for ended in receive {
            match ended {
                Ok(finished) => on_end(finished),
                Err(title) => not_started.push(title),
            }
        }
        not_started
    })
}

/// Runs one test; an error is the title of a test that was not started.
fn run_one(test: &Test<'_>, index: usize, conditions: Conditions<'_>) -> Result<Finished, String> {
    let start = Instant::now();
    let title = test.title();
    let left = conditions.deadline.saturating_duration_since(start);
    if left.is_zero() || process::interrupted() {
        return Err(title);
    }
    let within = conditions.test_within.min(left);
    let mut output = Vec::new();
    let verdict = match Temporary::new(index) {
        Err(message) => Verdict::Failed(message),
        Ok(temporary) => {
            let mut command = Command::new(&test.binary.path);
            command.args(["--exact", &test.name, "--nocapture", "--test-threads", "1"]);
            command.current_dir(&test.binary.dir).env("TMPDIR", &temporary.0);
            command.envs(conditions.variables.iter().map(|(name, value)| (name, value)));
            let end = process::run(&mut command, within, |line| output.push(line.to_owned()));
            judge(end, &output, &temporary.0, start.elapsed())
        }
    };
    Ok(Finished { title, verdict, took: start.elapsed(), output })
}

/// Temporary directory of one test, removed when dropped. Its path is short, since the paths of
/// sockets have a length limit.
struct Temporary(PathBuf);

impl Temporary {
    fn new(index: usize) -> Result<Temporary, String> {
        let name = format!("ferroccl-{}-{index}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path)
            .map_err(|error| format!("cannot make {}: {error}", path.display()))?;
        Ok(Temporary(path))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn judge(end: Result<End, String>, output: &[String], temporary: &Path, took: Duration) -> Verdict {
    match end {
        Err(message) => return Verdict::Failed(message),
        Ok(End::Deadline) => {
            let seconds = took.as_secs_f64();
            return Verdict::Failed(format!("hung: killed after {seconds:.0} s"));
        }
        Ok(end) if !end.success() => return Verdict::Failed(end.describe()),
        Ok(_) => {}
    }
    let entries = fs::read_dir(temporary).into_iter().flatten().flatten();
    let left: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    if !left.is_empty() {
        let left = left.join(", ");
        return Verdict::Failed(format!("did not empty its temporary directory: {left}"));
    }
    shown(output)
}

/// Returns the verdict on a process that ended with status 0. The verdict is a failure unless the
/// process's one test has passed or has skipped itself.
fn shown(output: &[String]) -> Verdict {
    if let Some(reason) = output.iter().find_map(|line| line.strip_prefix(SKIPPED)) {
        return Verdict::Skipped(reason.to_owned());
    }
    if output.iter().any(|line| line.contains("test result: ok. 1 passed; 0 failed")) {
        return Verdict::Passed;
    }
    Verdict::Failed("the process ended with status 0, but the test did not pass".to_owned())
}

impl Finished {
    /// Returns the output of a failed test: whole if it is short, else its start and its end.
    pub(crate) fn told(&self) -> String {
        let Finished { title, verdict, took, output } = self;
        let Verdict::Failed(why) = verdict else { return String::new() };
        let head = format!("---- {title}: {why} ({:.1} s)", took.as_secs_f64());
        let half = LINES_MAX / 2;
        let mut lines = vec![head];
        if output.len() <= LINES_MAX {
            lines.extend_from_slice(output);
        } else {
            lines.extend_from_slice(&output[..half]);
            lines.push(format!("… {} lines left out …", output.len() - 2 * half));
            lines.extend_from_slice(&output[output.len() - half..]);
        }
        lines.join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLANTED: &str = "FERROCCL_TEST_PLANTED";

    /// Passes, fails, hangs, skips, litters or leaves a process running, as [`PLANTED`] says; other
    /// tests run this one as their subject.
    #[test]
    fn planted() {
        match std::env::var(PLANTED).as_deref() {
            Ok("fail") => panic!("as planted"),
            Ok("hang") => {
                println!("waiting for nobody");
                thread::sleep(Duration::from_secs(3600));
            }
            Ok("skip") => println!("\n{SKIPPED}no reason"),
            Ok("litter") => {
                fs::create_dir(std::env::temp_dir().join("litter")).unwrap();
            }
            Ok("leave") => {
                Command::new("sh").args(["-c", "sleep 600 &"]).status().unwrap();
            }
            _ => {}
        }
    }

    fn run_planted(name: &str, what: &str, within: Duration) -> (Vec<Finished>, Vec<String>) {
        let binary = Binary {
            target: "xtask".to_owned(),
            is_unit: true,
            path: std::env::current_exe().unwrap(),
            dir: std::env::current_dir().unwrap(),
        };
        let tests = [Test { binary: &binary, name: name.to_owned() }];
        let conditions = Conditions {
            variables: &[(PLANTED, what.to_owned())],
            test_within: within,
            deadline: Instant::now() + within,
            width: 2,
        };
        let mut finished = Vec::new();
        let not_started = run(&tests, conditions, |test| finished.push(test));
        (finished, not_started)
    }

    #[test]
    fn each_outcome_of_a_test_is_distinguished() {
        const NAME: &str = "test::runner::tests::planted";
        let long = Duration::from_secs(100);
        let ended = |what: &str, within| run_planted(NAME, what, within).0.remove(0);
        assert_eq!(ended("pass", long).verdict, Verdict::Passed);
        assert_eq!(ended("skip", long).verdict, Verdict::Skipped("no reason".to_owned()));
        let failed = ended("fail", long);
        assert!(matches!(failed.verdict, Verdict::Failed(_)), "{failed:?}");
        assert!(failed.told().contains("as planted"), "{}", failed.told());
        let hung = ended("hang", Duration::from_secs(5));
        let told = hung.told();
        assert!(told.contains("hung") && told.contains("waiting for nobody"), "{told}");
        let litter = ended("litter", long);
        assert!(litter.told().contains("directory: litter"), "{litter:?}");
        let left = ended("leave", long);
        assert!(left.told().contains("left a process running"), "{left:?}");
        // A name that matches no test must not pass.
        let (none, _) = run_planted("no::such::test", "pass", long);
        assert!(matches!(none[0].verdict, Verdict::Failed(_)), "{none:?}");
        let (ran, late) = run_planted(NAME, "pass", Duration::ZERO);
        assert!(ran.is_empty() && late.len() == 1, "{late:?}");
    }

    #[test]
    fn a_long_output_keeps_its_start_and_its_end() {
        let finished = Finished {
            title: "t".to_owned(),
            verdict: Verdict::Failed("why".to_owned()),
            took: Duration::ZERO,
            output: (0..1000).map(|line| line.to_string()).collect(),
        };
        let told = finished.told();
        assert!(told.lines().count() == LINES_MAX + 2, "{told}");
        assert!(told.contains("\n0\n") && told.ends_with("\n999"), "{told}");
    }
}
