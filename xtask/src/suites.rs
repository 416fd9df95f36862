//! The test suites, in the order in which they run: one table, one entry per suite.
//!
//! A new suite is one entry here. Build its binaries in `build`, so that its own time is spent on
//! testing, and keep the sum of the budgets within 45 minutes on 2 cores from nothing.

use crate::workspace::Crate;

/// One suite: some `cargo` commands that share a time budget.
#[derive(Debug)]
pub(crate) struct Suite {
    /// What `--suite` calls it.
    pub(crate) name: &'static str,
    /// What it shows, for the reader of the output.
    pub(crate) what: &'static str,
    /// What it needs, installs or skips beyond Rust and a C linker, and why.
    pub(crate) needs: &'static str,
    /// Time that it may take on 2 cores, in seconds. Under `CI=true` more is a failure; twice as
    /// much is killed.
    pub(crate) budget_s: u64,
    /// The fewest tests that it must run: a filter that matches nothing must not pass.
    pub(crate) tests_min: usize,
    /// Arguments of one `cargo` call each.
    pub(crate) steps: &'static [&'static [&'static str]],
}

const NOTHING: &str = "needs only Rust and a C linker; installs nothing, skips nothing";

/// All suites.
pub(crate) const SUITES: &[Suite] = &[
    Suite {
        name: "build",
        what: "everything that is shipped (release) and everything that is tested",
        needs: NOTHING,
        budget_s: 420,
        tests_min: 0,
        steps: &[
            &["build", "--workspace", "--release", "--bins", "--examples"],
            &["test", "--workspace", "--no-run"],
        ],
    },
    Suite {
        name: "unit",
        what: "unit tests of every crate",
        needs: NOTHING,
        budget_s: 240,
        tests_min: 1,
        steps: &[&["test", "--workspace", "--no-fail-fast", "--lib", "--bins"]],
    },
    Suite {
        name: "rest",
        what: "integration tests (ranks as processes), and the examples in the documentation",
        needs: NOTHING,
        budget_s: 300,
        tests_min: 0,
        steps: &[
            &["test", "--package", "ferroccl", "--no-fail-fast", "--test", "integration"],
            &["test", "--workspace", "--no-fail-fast", "--doc"],
        ],
    },
];

/// Integration test targets, as directory of the crate and name, that no suite runs.
pub(crate) fn unlisted(crates: &[Crate]) -> Vec<(String, String)> {
    unlisted_in(SUITES, crates)
}

fn unlisted_in(suites: &[Suite], crates: &[Crate]) -> Vec<(String, String)> {
    let steps = || suites.iter().flat_map(|suite| suite.steps);
    let mut missing = Vec::new();
    for found in crates {
        let tests = found.tests.iter().filter(|test| !steps().any(|s| runs(s, &found.name, test)));
        missing.extend(tests.map(|test| (found.dir.clone(), test.clone())));
    }
    missing
}

/// Whether the `cargo` call runs that test target: it must name the package, or the workspace, and
/// select the target, or nothing at all.
fn runs(step: &[&str], package: &str, test: &str) -> bool {
    let step = step.split(|word| *word == "--").next().unwrap_or_default();
    let has = |word: &str| step.contains(&word);
    let value_is = |flags: [&str; 2], value: &str| {
        step.windows(2).any(|pair| flags.contains(&pair[0]) && pair[1] == value)
    };
    let selects = has("--tests")
        || value_is(["--test", "--test"], test)
        || !["--test", "--lib", "--bins", "--bin", "--doc", "--examples"].into_iter().any(has);
    let packaged = has("--workspace") || value_is(["--package", "-p"], package);
    step.first() == Some(&"test") && !has("--no-run") && packaged && selects
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unique_and_every_suite_does_something() {
        let names: BTreeSet<&str> = SUITES.iter().map(|suite| suite.name).collect();
        assert_eq!(names.len(), SUITES.len());
        assert!(SUITES.iter().all(|suite| !suite.steps.is_empty() && suite.budget_s > 0));
    }

    #[test]
    fn budgets_stay_within_45_minutes() {
        let total: u64 = SUITES.iter().map(|suite| suite.budget_s).sum();
        assert!(total + crate::lint::BUDGET_S <= 45 * 60, "{total} s");
    }

    #[test]
    fn a_test_target_that_no_suite_runs_is_found() {
        let found = Crate {
            name: "p".to_owned(),
            dir: "dir".to_owned(),
            dependencies: Vec::new(),
            tests: vec!["t".to_owned()],
        };
        let missing = |step: &'static [&'static str]| {
            let steps = Vec::leak(vec![step]);
            let suite = Suite { name: "s", what: "", needs: "", budget_s: 1, tests_min: 0, steps };
            unlisted_in(&[suite], std::slice::from_ref(&found)).len()
        };
        assert_eq!(missing(&["test", "--package", "p"]), 0);
        assert_eq!(missing(&["test", "-p", "p", "--test", "t", "--release"]), 0);
        assert_eq!(missing(&["test", "--workspace", "--tests"]), 0);
        assert_eq!(missing(&["test", "--workspace", "--lib", "--bins"]), 1);
        assert_eq!(missing(&["test", "--workspace", "--no-run"]), 1);
        assert_eq!(missing(&["test", "-p", "q"]), 1);
        assert_eq!(missing(&["test", "-p", "p", "--test", "u", "--", "--test", "t"]), 1);
        assert_eq!(missing(&["build", "--workspace"]), 1);
    }
}
