//! `cargo xtask check` looks for faults that ordinary tests do not show. The checks are model
//! checkers for lock-free code, AddressSanitizer and valgrind for code that touches `unsafe`, an
//! instruction count of the flight recorder, fuzzers for code that reads bytes from outside, tests
//! over libfabric, and builds of the library's packages. A check whose tool is missing prints
//! `SKIPPED` and the reason.

mod fuzz;
mod models;
mod ofi;
mod packages;
mod recorder;
mod sanitizers;

use std::io::ErrorKind;
use std::process::Command;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};

use crate::workspace::target_dir;
use crate::{Outcome, SKIPPED, machine, process, report, workspace};

/// Longest time of one command, in seconds.
const COMMAND_S: u64 = 3600;

/// Flags of `cargo xtask check`.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Checks to run; all if none is named.
    names: Vec<Check>,
    /// Run the longer versions of the checks.
    #[arg(long)]
    full: bool,
    /// Run the suites of the deep tier that cover changes since this commit, in place of the
    /// checks. The results are recorded in docs/full-run.md.
    #[arg(long, value_name = "BASE", conflicts_with = "names")]
    changed: Option<String>,
}

/// One check, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Check {
    /// Every interleaving of the lock-free code in small cases.
    Loom,
    /// Random interleavings of the lock-free code in longer cases.
    Shuttle,
    /// AddressSanitizer over the tests of code that touches `unsafe`.
    Asan,
    /// Valgrind's memcheck over some tests of code that touches `unsafe`.
    Valgrind,
    /// Instructions per operation that the flight recorder costs.
    Recorder,
    /// Fuzzers over everything that reads bytes from outside.
    Fuzz,
    /// Tests of code that uses libfabric, over two versions of libfabric.
    Ofi,
    /// Packages of the library, each built by itself.
    Packages,
}

impl Check {
    fn run(self, full: bool) -> Outcome<Verdict> {
        match self {
            Check::Loom => models::run("loom", full),
            Check::Shuttle => models::run("shuttle", full),
            Check::Asan => sanitizers::address(full),
            Check::Valgrind => sanitizers::valgrind(full),
            Check::Recorder => recorder::run(),
            Check::Fuzz => fuzz::run(full),
            Check::Ofi => ofi::run(full),
            Check::Packages => packages::run(),
        }
    }

    fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }
}

/// Result of a check that did not fail.
#[derive(Debug)]
enum Verdict {
    Passed,
    /// The check did not run, for this reason.
    Skipped(String),
}

/// Runs the chosen checks, even after one has failed, and prints a table of the results.
pub(crate) fn run(options: &Options) -> Outcome {
    if let Some(base) = &options.changed {
        return crate::test::changed(base);
    }
    // `cargo xtask test --full` sets this variable for all commands that it starts.
    let full = options.full || std::env::var_os("FERROCCL_TEST_FULL").is_some();
    let chosen = if options.names.is_empty() { Check::value_variants() } else { &options.names };
    let (mut rows, mut failed) = (Vec::new(), Vec::new());
    for check in chosen {
        let (name, since) = (check.name(), Instant::now());
        println!("\n== check {name}");
        let result = match check.run(full) {
            Ok(Verdict::Passed) => {
                if machine::is_ci() {
                    remove_build_dir(&name)?;
                }
                "ok".to_owned()
            }
            Ok(Verdict::Skipped(why)) => {
                println!("{SKIPPED}{name}: {why}");
                format!("SKIPPED: {why}")
            }
            Err(message) => {
                failed.push(name.clone());
                format!("FAILED: {message}")
            }
        };
        rows.push(vec![name, format!("{:.0} s", since.elapsed().as_secs_f64()), result]);
    }
    println!("\n{}", report::table(&["check", "time", "result"], &rows));
    if failed.is_empty() { Ok(()) } else { Err(format!("checks failed: {}", failed.join(", "))) }
}

/// Removes a check's build directory. The directory is as large as that of the tests, nothing uses
/// the directory again, and later suites need the disk space.
fn remove_build_dir(place: &str) -> Outcome {
    let built = target_dir()?.join(place);
    match std::fs::remove_dir_all(&built) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(format!("cannot remove {}: {error}", built.display()))
        }
        _ => Ok(()),
    }
}

/// Returns a cargo command that builds into a directory of the check's own, named `place`: in the
/// common build directory, the check's flags would cause a rebuild of everything. `toolchain`
/// selects another toolchain, such as `+nightly`.
fn cargo(toolchain: Option<&str>, place: &str, flags: &str, full: bool) -> Outcome<Command> {
    // `cargo` is rustup's proxy, which obeys `toolchain`; `$CARGO` is a single toolchain's cargo.
    let mut command = workspace::cargo(&Vec::from_iter(toolchain));
    command.env("CARGO_TARGET_DIR", target_dir()?.join(place)).env("RUSTFLAGS", flags);
    // Incremental builds only help repeated builds, and take most of the disk space.
    command.env("CARGO_INCREMENTAL", "0");
    command.env_remove("RUSTUP_TOOLCHAIN").env_remove("CARGO").env_remove("RUSTC");
    if full {
        command.env("FERROCCL_TEST_FULL", "1");
    }
    Ok(command)
}

/// Runs a command and prints its output.
fn show(command: &mut Command) -> Outcome {
    println!("$ {}", process::typed(command));
    let end = process::run(command, Duration::from_secs(COMMAND_S), |line| println!("{line}"))?;
    if end.success() {
        Ok(())
    } else {
        Err(format!("`{}`: {}", process::typed(command), end.describe()))
    }
}

/// Returns the reason and the remedy if the nightly toolchain is missing.
fn nightly_missing() -> Option<String> {
    let mut look = Command::new("rustc");
    look.args(["+nightly", "--version"]).env_remove("RUSTUP_TOOLCHAIN");
    let mut said = String::new();
    let end = process::run(&mut look, Duration::from_secs(60), |line| said.push_str(line));
    if end.is_ok_and(process::End::success) {
        return None;
    }
    let how = "`rustup toolchain install nightly --profile minimal`, or `cargo xtask setup`";
    Some(format!("there is no nightly toolchain; {how}"))
}

/// Returns the target triple of this machine. Sanitizers need an explicit `--target`: cargo then
/// builds build scripts and macros without the sanitizer.
fn host() -> String {
    format!("{}-unknown-linux-gnu", std::env::consts::ARCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_check_has_a_name_to_call_it_by() {
        let names: Vec<_> = Check::value_variants().iter().map(|check| check.name()).collect();
        let all = ["loom", "shuttle", "asan", "valgrind", "recorder", "fuzz", "ofi", "packages"];
        assert_eq!(names, all);
    }

    #[test]
    fn variables_of_our_toolchain_are_not_passed_to_another() {
        let command = cargo(Some("+nightly"), "place", "-Zx", false).unwrap();
        assert_eq!(process::typed(&command), "cargo +nightly");
        let gone =
            |name: &str| command.get_envs().any(|(key, value)| key == name && value.is_none());
        assert!(gone("RUSTUP_TOOLCHAIN") && gone("CARGO"));
    }
}
