//! `cargo xtask lint`: what a change must fulfil beyond its tests.

use std::time::{Duration, Instant};

use crate::machine::{HANGS, SLOW_DAY, is_ci};
use crate::workspace::cargo;
use crate::{Outcome, process, report, tidy};

/// Time that all of it may take on 2 cores from nothing, in seconds.
pub(crate) const BUDGET_S: u64 = 150;

struct Check {
    name: &'static str,
    /// Arguments of `cargo`.
    args: &'static [&'static str],
    /// A variable that it needs.
    env: Option<(&'static str, &'static str)>,
    advice: &'static str,
}

const CHECKS: [Check; 4] = [
    Check {
        name: "format",
        args: &["fmt", "--all", "--", "--check"],
        env: None,
        advice: "run `cargo fmt --all` (and `rustup component add rustfmt` if it is missing)",
    },
    Check {
        name: "clippy",
        args: &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"],
        env: None,
        advice: "fix the warnings (or `rustup component add clippy` if it is missing)",
    },
    Check {
        name: "clippy without encryption",
        args: &[
            "clippy",
            "--package=ferroccl",
            "--package=ccl-wire",
            "--package=ccl-transport-tcp",
            "--all-targets",
            "--no-default-features",
            "--features=ferroccl/cli",
            "--",
            "-D",
            "warnings",
        ],
        env: None,
        advice: "say `#[cfg(feature = \"tls\")]` where the warnings are",
    },
    Check {
        name: "documentation",
        args: &["doc", "--workspace", "--no-deps", "--document-private-items"],
        env: Some(("RUSTDOCFLAGS", "-D warnings")),
        advice: "fix the links and the text that rustdoc names",
    },
];

/// Runs every check, also after one has failed, and prints a table of them.
pub(crate) fn run() -> Outcome {
    let start = Instant::now();
    let mut rows = Vec::new();
    let mut failed = Vec::new();
    let mut note = |name: &'static str, since: Instant, outcome: Outcome| {
        let result = match outcome {
            Ok(()) => "ok".to_owned(),
            Err(message) => {
                failed.push(name);
                format!("FAILED: {message}")
            }
        };
        let seconds = since.elapsed().as_secs_f64();
        rows.push(vec![name.to_owned(), format!("{seconds:.0} s"), result]);
    };
    println!("== tidy: the rules in CONTRIBUTING.md");
    note("tidy", start, tidy::run());
    for check in &CHECKS {
        let since = Instant::now();
        let budget = Duration::from_secs(BUDGET_S);
        let left = (HANGS * budget).saturating_sub(start.elapsed());
        note(check.name, since, run_check(check, left));
    }
    let since = Instant::now();
    note("budget", since, within_budget(start.elapsed()));
    println!("\n{}", report::table(&["check", "time", "result"], &rows));
    if failed.is_empty() { Ok(()) } else { Err(format!("failed: {}", failed.join(", "))) }
}

fn run_check(check: &Check, deadline: Duration) -> Outcome {
    let mut command = cargo(check.args);
    println!("\n== {}: $ {}", check.name, process::typed(&command));
    command.envs(check.env);
    let end = process::run(&mut command, deadline, |line| println!("{line}"))?;
    if end.success() { Ok(()) } else { Err(format!("{}; {}", end.describe(), check.advice)) }
}

/// Over budget is a warning; over that of a slow day, a failure under CI.
fn within_budget(elapsed: Duration) -> Outcome {
    let seconds = elapsed.as_secs();
    if seconds <= BUDGET_S {
        return Ok(());
    }
    let message = format!("{seconds} s, more than the budget of {BUDGET_S} s");
    if is_ci() && elapsed > Duration::from_secs(BUDGET_S).mul_f64(SLOW_DAY) {
        return Err(message);
    }
    println!("warning: {message}");
    Ok(())
}
