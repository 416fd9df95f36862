//! The model checkers: `ccl-memory` built with their atomics in the place of the real ones.

use super::{Verdict, cargo, show};
use crate::Outcome;

/// Runs the models under `--cfg checker`. Needs nothing: the checkers are crates.
pub(super) fn run(checker: &str, full: bool) -> Outcome<Verdict> {
    println!("   needs only Rust; installs nothing, skips nothing");
    let mut command = cargo(None, checker, &format!("--cfg {checker}"), full)?;
    // Failures that are planted would print their traces.
    command.args(["test", "--release", "--package", "ccl-memory", "--lib"]);
    show(command.env("RUST_BACKTRACE", "0"))?;
    Ok(Verdict::Passed)
}
