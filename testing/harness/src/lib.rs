//! Ranks to test with: threads of this process, or processes of their own; networks to put them
//! on, and strangers that disturb them. Nothing here waits without a deadline.
//!
//! A test binary that starts ranks as processes has a test `rank` that calls [`processes::rank`].

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails so")]

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

/// Says that a test does not run, so that `cargo xtask test` counts it as skipped.
pub fn skip(reason: &str) {
    // Not by `eprintln!`, which libtest keeps to itself.
    std::io::stderr().write_all(format!("\nSKIPPED: {reason}\n").as_bytes()).unwrap();
}

/// Whether this is the deep tier.
pub fn full() -> bool {
    std::env::var_os("FERROCCL_TEST_FULL").is_some()
}

/// A deadline that holds on a machine of usual speed, stretched for this one:
/// `FERROCCL_TEST_SLOWNESS` says how many times slower it is, as `cargo xtask test` measures.
pub fn stretched(deadline: Duration) -> Duration {
    let slowness = std::env::var("FERROCCL_TEST_SLOWNESS").ok().and_then(|text| text.parse().ok());
    // What was measured before may become worse.
    deadline.mul_f64(2.0 * f64::max(slowness.unwrap_or(1.0), 1.0))
}

/// The default configuration, changed.
pub fn config_with(change: impl FnOnce(&mut Config)) -> Config {
    let mut config = config();
    change(&mut config);
    config
}

/// Runs `run` on every rank of a communicator of `n` threads; returns what they return, by rank.
pub fn ranks<T: Send + 'static>(
    n: u32,
    run: impl Fn(&mut Communicator) -> T + Send + Sync + 'static,
) -> Vec<T> {
    ranks_with(n, config(), run)
}
