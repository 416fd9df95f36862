//! Support for tests with several ranks, as threads of this process or as separate processes; test
//! networks; and misbehaving strangers. Every wait has a deadline.
//!
//! A test binary that starts ranks as processes has a test `rank` that calls [`processes::rank`].

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests may panic")]

pub mod capture;
pub mod command;
pub mod data;
pub mod netns;
pub mod processes;
pub mod stranger;
mod threads;

use ferroccl::{Communicator, Config};

pub use threads::{PATIENCE, config, joining, ranks_with};

use std::io::Write;
use std::time::Duration;

/// Prints the reason why a test is skipped, in a line that `cargo xtask test` counts.
pub fn skip(reason: &str) {
    // Not by `eprintln!`, whose output libtest captures.
    std::io::stderr().write_all(format!("\nSKIPPED: {reason}\n").as_bytes()).unwrap();
}

/// Returns whether the deep tier of tests runs.
pub fn full() -> bool {
    std::env::var_os("FERROCCL_TEST_FULL").is_some()
}

/// Scales a deadline, which is given for a machine of usual speed, to the speed of this machine.
/// `FERROCCL_TEST_SLOWNESS` says how many times slower this machine is, as measured by `cargo
/// xtask test`.
pub fn stretched(deadline: Duration) -> Duration {
    let slowness = std::env::var("FERROCCL_TEST_SLOWNESS").ok().and_then(|text| text.parse().ok());
    // The machine may have become slower since the measurement.
    deadline.mul_f64(2.0 * f64::max(slowness.unwrap_or(1.0), 1.0))
}

/// Returns the default configuration of tests, with `change` applied.
pub fn config_with(change: impl FnOnce(&mut Config)) -> Config {
    let mut config = config();
    change(&mut config);
    config
}

/// Runs `run` on every rank of a communicator of `n` threads; returns the results by rank.
pub fn ranks<T: Send + 'static>(
    n: u32,
    run: impl Fn(&mut Communicator) -> T + Send + Sync + 'static,
) -> Vec<T> {
    ranks_with(n, config(), run)
}
