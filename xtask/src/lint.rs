//! `cargo xtask lint`: the checks, other than the tests, that a change must pass.

use std::time::{Duration, Instant};

use crate::workspace::cargo;
use crate::{Outcome, machine, process, report, tidy};

/// Usual seconds of all checks on 2 idle cores, from an empty target directory. A slower run does
/// not fail.
pub(crate) const USUAL_S: u64 = 150;
/// Longest time of one check on a machine of usual speed; a longer check counts as hanging.
const HANGS: Duration = Duration::from_secs(1200);

struct Check {
    name: &'static str,
    /// Arguments of `cargo`.
    args: &'static [&'static str],
    /// Variable that the check needs, with its value.
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
        args: &["clippy", "--workspace", "--locked", "--all-targets", "--", "-D", "warnings"],
        env: None,
        advice: "fix the warnings (or `rustup component add clippy` if it is missing)",
    },
    Check {
        name: "clippy without encryption",
        args: &[
            "clippy",
            "--locked",
            "--package=ferroccl",
            "--package=ccl-socket",
            "--package=ccl-transport-tcp",
            "--all-targets",
            "--no-default-features",
            "--",
            "-D",
            "warnings",
        ],
        env: None,
        advice: "add `#[cfg(feature = \"tls\")]` where the warnings are",
    },
    Check {
        name: "documentation",
        args: &["doc", "--workspace", "--locked", "--no-deps", "--document-private-items"],
        env: Some(("RUSTDOCFLAGS", "-D warnings")),
        advice: "fix the links and the text that rustdoc reports",
    },
];

/// Runs every check, even after one has failed, and prints a table of the results.
pub(crate) fn run() -> Outcome {
    let (start, slowness) = (Instant::now(), machine::slowness());
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
        note(check.name, since, run_check(check, HANGS.mul_f64(slowness)));
    }
    let since = Instant::now();
    if let Some(outcome) = licences(HANGS.mul_f64(slowness)) {
        note("licences and sources", since, outcome);
    } else {
        println!(
            "\nSKIPPED: licences and sources: cargo-deny is missing; run `cargo install cargo-deny`"
        );
    }
    let seconds = start.elapsed().as_secs();
    println!("\nlints: {seconds} s; usual: {USUAL_S} s");
    println!("\n{}", report::table(&["check", "time", "result"], &rows));
    if failed.is_empty() { Ok(()) } else { Err(format!("failed: {}", failed.join(", "))) }
}

/// Checks third-party crates by the rules in `deny.toml`; returns `None` if cargo-deny is missing.
/// Advisories are not checked: they need the network, and change independently of our code.
fn licences(deadline: Duration) -> Option<Outcome> {
    if !process::is_installed("cargo-deny") {
        return None;
    }
    let mut command = cargo(&["deny", "check", "licenses", "bans", "sources"]);
    println!("\n== licences and sources: $ {}", process::typed(&command));
    Some(process::run(&mut command, deadline, |line| println!("{line}")).and_then(|end| {
        if end.success() { Ok(()) } else { Err(format!("{}; see deny.toml", end.describe())) }
    }))
}

fn run_check(check: &Check, deadline: Duration) -> Outcome {
    let mut command = cargo(check.args);
    println!("\n== {}: $ {}", check.name, process::typed(&command));
    command.envs(check.env);
    let end = process::run(&mut command, deadline, |line| println!("{line}"))?;
    if end.success() { Ok(()) } else { Err(format!("{}; {}", end.describe(), check.advice)) }
}
