//! The verifier over every algorithm, and the proof that it can fail.
//!
//! `cargo test --release -p ccl-core --test verifier -- --nocapture` prints what was covered.
//! `FERROCCL_TEST_FULL=1` takes the full product instead of a covering and more mutants.

mod planted;
