//! `ferroccl doctor`: finds faults of a machine that make collectives slow or keep them from
//! working. Each finding has its evidence and its remedy.
//!
//! A check is a function in `checks` from a [`Host`] to findings, and a line in [`CHECKS`]. Checks
//! change nothing. They read files only through [`Host`], so the machine can also be a copied tree,
//! or one that a test has planted.

mod checks;
mod ethtool;
mod finding;
mod host;
mod library;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam::channel::{self, Receiver, RecvTimeoutError};
use serde::Serialize;

pub use checks::CHECKS;
pub use finding::{Finding, Verdict};
pub use host::{Host, Job};

/// Time after which a check is given up. Checks that only read files take far less, but one that
/// waits for a silent device may never end.
const DEADLINE: Duration = Duration::from_secs(10);

/// A check: a name, and a function from a machine to findings.
#[derive(Debug)]
pub struct Check {
    /// Name, as in findings.
    pub name: &'static str,
    /// Description of what the check looks at.
    pub looks_at: &'static str,
    run: fn(&Host) -> Vec<Finding>,
}

/// Result of all checks on a machine.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Version of ferroccl.
    version: &'static str,
    /// Directory that was read as the machine's `/`.
    root: String,
    /// The worst verdict of all findings; `Unknown` counts as `Ok`.
    verdict: Verdict,
    /// Findings, the worst first.
    findings: Vec<Finding>,
}

/// Runs all checks on a machine.
#[must_use]
pub fn examine(host: Host) -> Report {
    let root = host.root().display().to_string();
    let mut findings = findings(&Arc::new(host), CHECKS, DEADLINE);
    // The sort is stable: findings of one verdict keep the order of `CHECKS`.
    findings.sort_by_key(|finding| finding.verdict.rank());
    let worst = findings.first().map_or(Verdict::Ok, |finding| finding.verdict);
    let verdict = if worst == Verdict::Unknown { Verdict::Ok } else { worst };
    Report { version: env!("CARGO_PKG_VERSION"), root, verdict, findings }
}

/// Runs each check on a thread of its own, so a check that waits for a device does not delay the
/// others. The thread of such a check is left behind at the deadline.
fn findings(host: &Arc<Host>, checks: &'static [Check], deadline: Duration) -> Vec<Finding> {
    let until = Instant::now() + deadline;
    let start = |check: &'static Check| {
        let (sender, answer) = channel::bounded(1);
        let host = Arc::clone(host);
        let work = move || drop(sender.send((check.run)(&host)));
        let thread = std::thread::Builder::new().name(format!("doctor-{}", check.name));
        let started = thread.spawn(work).map(|_| ());
        (check, answer, started)
    };
    let started: Vec<_> = checks.iter().map(start).collect();
    let mut all = Vec::new();
    for (check, answer, started) in started {
        let mut found = match started {
            Ok(()) => collect(&answer, until, deadline),
            Err(error) => vec![Finding::unknown(
                "",
                format!("no thread could be started for this check: {error}"),
                "raise the limit of processes: `ulimit -u`",
            )],
        };
        found.iter_mut().for_each(|finding| finding.check = check.name);
        all.append(&mut found);
    }
    all
}

fn collect(answer: &Receiver<Vec<Finding>>, until: Instant, deadline: Duration) -> Vec<Finding> {
    match answer.recv_timeout(until.saturating_duration_since(Instant::now())) {
        Ok(found) => found,
        Err(RecvTimeoutError::Timeout) => vec![Finding::unknown(
            "",
            format!("the check has not ended within {deadline:?}"),
            "a driver or a file system may hang: `dmesg` may say which; `ps -eLo pid,stat,comm` \
             shows the check's thread (doctor-...), in state D if no signal can end it",
        )],
        Err(RecvTimeoutError::Disconnected) => vec![Finding::unknown(
            "",
            "the check has ended without an answer, which is a mistake in ferroccl",
            "report this mistake, with the output on stderr",
        )],
    }
}

impl Report {
    /// Returns whether there is a fault or a warning; advice and unknown states do not count.
    #[must_use]
    pub fn is_wrong(&self) -> bool {
        self.verdict >= Verdict::Warning
    }

    /// Returns the findings, the worst first.
    #[must_use]
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }

    /// Keeps only faults and warnings.
    #[must_use]
    pub fn only_wrong(mut self) -> Report {
        self.findings.retain(|finding| finding.verdict >= Verdict::Warning);
        self
    }

    fn count(&self, verdict: Verdict) -> usize {
        self.findings.iter().filter(|finding| finding.verdict == verdict).count()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.findings.iter().try_for_each(|finding| finding.fmt(f))?;
        let verdicts = [
            (Verdict::Fault, "fault", "faults"),
            (Verdict::Warning, "warning", "warnings"),
            (Verdict::Advice, "piece of advice", "pieces of advice"),
            (Verdict::Unknown, "unknown", "unknown"),
            (Verdict::Ok, "ok", "ok"),
        ];
        let counted = verdicts.map(|(verdict, one, many)| match self.count(verdict) {
            0 => None,
            1 => Some(format!("1 {one}")),
            count => Some(format!("{count} {many}")),
        });
        let counted: Vec<String> = counted.into_iter().flatten().collect();
        match counted.as_slice() {
            [] => writeln!(f, "nothing is wrong"),
            _ => writeln!(f, "{}", counted.join(", ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// A check that answers, one that hangs, one that panics, and one that answers after these.
    const ODD: &[Check] = &[
        Check { name: "a", looks_at: "", run: |_| vec![Finding::ok("", "x")] },
        Check {
            name: "b",
            looks_at: "",
            run: |_| {
                std::thread::sleep(Duration::from_secs(20));
                Vec::new()
            },
        },
        Check { name: "c", looks_at: "", run: |_| panic!("planted") },
        Check { name: "d", looks_at: "", run: |_| vec![Finding::fault("y", "z", "w")] },
    ];

    #[test]
    fn a_check_that_hangs_or_panics_does_not_stop_the_others() {
        let host = Arc::new(Host::new(Path::new("/"), Job::default()).unwrap());
        let start = Instant::now();
        let found = findings(&host, ODD, Duration::from_secs(2));
        assert!(start.elapsed() < Duration::from_secs(10));
        let seen: Vec<_> = found.iter().map(|finding| (finding.check, finding.verdict)).collect();
        let unknown = Verdict::Unknown;
        let expected = [("a", Verdict::Ok), ("b", unknown), ("c", unknown), ("d", Verdict::Fault)];
        assert_eq!(seen, expected);
        assert!(found[1].evidence.contains("has not ended within 2s"), "{found:?}");
        assert!(found[2].evidence.contains("mistake in ferroccl"), "{found:?}");
    }

    #[test]
    fn advice_and_unknown_states_are_not_wrong() {
        let report = |findings: Vec<Finding>| {
            let verdict = findings.iter().map(|finding| finding.verdict).max();
            let verdict = verdict.unwrap_or(Verdict::Ok);
            Report { version: "", root: String::new(), verdict, findings }
        };
        let harmless = [Finding::advice("", "", ""), Finding::unknown("", "", "")];
        assert!(!report(harmless.to_vec()).is_wrong());
        assert_eq!(report(harmless.to_vec()).only_wrong().to_string(), "nothing is wrong\n");
        let one = report(vec![Finding::warning("", "", ""), Finding::ok("", "")]);
        assert!(one.is_wrong() && one.to_string().ends_with("1 warning, 1 ok\n"));
    }
}
