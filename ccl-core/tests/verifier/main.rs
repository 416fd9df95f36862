//! Tests that the verifier accepts every algorithm, and that it rejects broken ones.
//!
//! `cargo test --release -p ccl-core --test verifier -- --nocapture` prints what was covered.
//! `FERROCCL_TEST_FULL=1` runs more ranks, lengths, trials and mutants.

mod crossings;
mod messages;
mod mutants;
mod numbers;
mod planted;
mod suite;

/// Returns whether the long run was asked for.
fn full() -> bool {
    std::env::var_os("FERROCCL_TEST_FULL").is_some()
}
