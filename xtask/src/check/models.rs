//! Model checkers: `ccl-memory` built with the checkers' atomics in place of the real ones.

use super::{Verdict, cargo, show};
use crate::Outcome;

/// Texts that select loom's smallest tests by name. One of these tests runs models of slots, and
/// one runs a model of records. In the others, loom must reject a model that is broken on purpose,
/// by a weaker ordering or by missing credits.
const SMALLEST: [&str; 4] = [
    "payload_is_visible_with_its_sequence",
    "a_record_is_read_whole_or_not_at_all",
    "slots_need_",
    "records_need_",
];

/// Runs the models under `checker`, which is `loom` or `shuttle` and also names the `--cfg`. Loom
/// runs all models only with `full`. The checkers are crates, so nothing has to be installed.
pub(super) fn run(checker: &str, full: bool) -> Outcome<Verdict> {
    println!("   needs only Rust; installs nothing, skips nothing");
    let mut command = cargo(None, checker, &format!("--cfg {checker}"), full)?;
    command.args(["test", "--release", "--locked", "--package", "ccl-memory", "--lib"]);
    if checker == "loom" && !full {
        command.arg("--").args(SMALLEST);
    }
    // Models that must fail would print a backtrace for each failure.
    show(command.env("RUST_BACKTRACE", "0"))?;
    Ok(Verdict::Passed)
}
