//! The model checkers: `ccl-memory` built with their atomics in the place of the real ones.

use super::{Verdict, cargo, show};
use crate::Outcome;

/// The smallest models of loom, of slots and of records, and what they must reject.
const SMALLEST: [&str; 4] = [
    "payload_is_there_with_its_sequence",
    "a_record_is_read_whole_or_not_at_all",
    "slots_need_",
    "records_need_",
];

/// Runs the models under `--cfg checker`; of loom all only in full. Needs nothing: the checkers are
/// crates.
pub(super) fn run(checker: &str, full: bool) -> Outcome<Verdict> {
    println!("   needs only Rust; installs nothing, skips nothing");
    let mut command = cargo(None, checker, &format!("--cfg {checker}"), full)?;
    command.args(["test", "--release", "--locked", "--package", "ccl-memory", "--lib"]);
    if checker == "loom" && !full {
        command.arg("--").args(SMALLEST);
    }
    // Failures that are planted would print their traces.
    show(command.env("RUST_BACKTRACE", "0"))?;
    Ok(Verdict::Passed)
}
