//! The test suites, in the order in which they run: one table, one entry per suite.
//!
//! A new suite is one entry here, before `rest`, with a budget that keeps the sum within 45 minutes
//! on 2 cores from nothing. `build` compiles what the others run, so that their time is spent on
//! testing, and `rest` runs every integration test target that no other suite runs in full.

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
    /// Time that it may take on 2 cores, in seconds, on a usual day. What takes three times as much
    /// is killed.
    pub(crate) budget_s: u64,
    /// The fewest tests that it must run: a filter that matches nothing must not pass.
    pub(crate) tests_min: usize,
    /// Arguments of one `cargo` call each; [`REMAINING`] stands for targets. Prefer `--workspace
    /// --test NAME` to `--package`: for a package alone cargo may choose other features of its
    /// dependencies, and build them again.
    pub(crate) steps: &'static [&'static [&'static str]],
}

/// Stands for the integration test targets that no step of any suite names.
const REMAINING: &str = "{remaining}";

/// Builds what users are given, all but the chores of this repository.
pub(crate) const SHIPPED: &[&str] =
    &["build", "--workspace", "--exclude=xtask", "--release", "--bins", "--examples"];

/// Has cargo run a test binary in a guest, and tells the tests what it must be able to do.
const IN_GUEST: &str = "target.'cfg(all())'.runner = ['cargo', 'xtask', 'guest', '--or-skip', \
                        '--setup', 'veth', '--timeout', '300', '--', \
                        'env', 'FERROCCL_TEST_NETEM=1']";

/// The same for RDMA over devices in software, at the ends of two links.
const IN_GUEST_WITH_RDMA: &str = "target.'cfg(all())'.runner = ['cargo', 'xtask', 'guest', \
                                  '--setup', 'rxe-pair', '--timeout', '1000', '--', \
                                  'env', 'RUST_BACKTRACE=0', \
                                  'FERROCCL_TEST_RDMA=rxa:1,rxb:1,rxc:1,rxd:1']";

/// The suite that `cargo xtask softroce` runs.
pub(crate) const SOFTROCE: &str = "softroce";

const NOTHING: &str = "needs only Rust and a C linker; installs nothing, skips nothing";
const NAMESPACES: &str = "needs root and iproute2 for ranks in network namespaces of their own; \
    installs nothing; each test that cannot have them says SKIPPED and why";

/// All suites.
pub(crate) const SUITES: &[Suite] = &[
    Suite {
        name: "build",
        what: "everything that is shipped (release) and everything that is tested",
        needs: NOTHING,
        budget_s: 480,
        tests_min: 0,
        // The latter for tests that start programs: tests are not given a package's examples.
        steps: &[SHIPPED, &["build", "--workspace", "--examples"]],
    },
    Suite {
        name: "unit",
        what: "unit tests of every crate",
        needs: NOTHING,
        budget_s: 80,
        tests_min: 1,
        steps: &[&["test", "--workspace", "--no-fail-fast", "--lib", "--bins"]],
    },
    Suite {
        name: "checks",
        what: "model checkers, AddressSanitizer, valgrind and fuzzers, each for a short while",
        needs: "needs the nightly toolchain and valgrind (`cargo xtask setup` installs both); \
                without one of them it says SKIPPED and why",
        budget_s: 690,
        // The models at least need no tool.
        tests_min: 10,
        steps: &[&["xtask", "check", "loom", "shuttle", "asan", "valgrind", "recorder", "fuzz"]],
    },
    Suite {
        name: "verifier",
        what: "every algorithm proved for 1 to 17 ranks, and mutants that must be rejected",
        needs: NOTHING,
        budget_s: 85,
        tests_min: 1,
        steps: &[&[
            "test",
            "--workspace",
            "--exclude=xtask",
            "--release",
            "--no-fail-fast",
            "--test",
            "verifier",
        ]],
    },
    Suite {
        name: "simulator",
        what: "the same programs over a simulated network: loss, reordering, crashes, by seed",
        needs: NOTHING,
        budget_s: 50,
        tests_min: 1,
        steps: &[&[
            "test",
            "--workspace",
            "--exclude=xtask",
            "--release",
            "--no-fail-fast",
            "--test",
            "sim",
        ]],
    },
    Suite {
        name: "faults",
        what: "ranks as processes that are killed, stopped, cut off, disturbed, or never come",
        needs: NAMESPACES,
        budget_s: 85,
        tests_min: 1,
        steps: &[&[
            "test",
            "--workspace",
            "--no-fail-fast",
            "--test",
            "integration",
            "--",
            "faults",
        ]],
    },
    Suite {
        name: "guest",
        what: "a virtual machine for what this kernel may lack: loss and delay on a link",
        needs: "as root installs qemu-system-x86, busybox-static and kmod if they are missing, and \
                downloads a kernel beside the build; skipped where it cannot",
        budget_s: 140,
        tests_min: 2,
        steps: &[
            &["test", "--workspace", "--no-fail-fast", "--test", "guest"],
            &[
                "test",
                "--workspace",
                "--no-fail-fast",
                "--test",
                "integration",
                "--config",
                IN_GUEST,
                "--",
                "network::netns_netem",
                "matrix::netem",
            ],
        ],
    },
    Suite {
        name: SOFTROCE,
        what: "RDMA between devices in software, in that machine: conformance, collectives, perf \
               programs, packets, faults, the plugin for NCCL",
        needs: "the same, and libibverbs and tcpdump; where it cannot install them, it fails: \
                nothing else sees packets of RDMA",
        budget_s: 350,
        tests_min: 10,
        steps: &[
            // What one of the tests runs.
            SHIPPED,
            &[
                "test",
                "--workspace",
                "--no-fail-fast",
                "--test",
                "verbs",
                "--test",
                "integration",
                "--config",
                IN_GUEST_WITH_RDMA,
                "--",
                "devices_of_this_machine",
                "rdma::",
                "nccl_net::over_rdma",
            ],
        ],
    },
    Suite {
        name: "rest",
        what: "conformance of the transports and of plugins for NCCL, ranks as threads and \
               processes, documentation",
        needs: NAMESPACES,
        budget_s: 570,
        tests_min: 1,
        steps: &[
            &[
                "test",
                "--workspace",
                "--no-fail-fast",
                "--test",
                "integration",
                "--",
                "--skip",
                "faults",
            ],
            &["test", "--workspace", "--no-fail-fast", REMAINING],
            &["test", "--workspace", "--no-fail-fast", "--doc"],
        ],
    },
];

/// The `cargo` calls of a suite, in order. Those of `build` are followed by the compilation of what
/// all suites run.
pub(crate) fn commands(suite: &Suite, crates: &[Crate]) -> Vec<Vec<String>> {
    commands_in(SUITES, suite, crates)
}

fn commands_in(suites: &[Suite], suite: &Suite, crates: &[Crate]) -> Vec<Vec<String>> {
    let remaining = remaining(suites, crates);
    let mut commands: Vec<_> =
        suite.steps.iter().filter_map(|step| expand(step, &remaining)).collect();
    if suite.name == "build" {
        let steps = suites.iter().flat_map(|suite| suite.steps);
        for command in steps.filter_map(|step| expand(step, &remaining)) {
            let compile = compile_only(command);
            commands.extend(compile.filter(|compile| !commands.contains(compile)));
        }
    }
    commands
}

/// The call that compiles what a test call runs; `None` where there is nothing to do in advance.
fn compile_only(mut command: Vec<String>) -> Option<Vec<String>> {
    let is_test = command.first().is_some_and(|word| word == "test");
    if !is_test || command.iter().any(|word| word == "--doc") {
        return None;
    }
    let end = command.iter().position(|word| word == "--").unwrap_or(command.len());
    command.truncate(end);
    command.retain(|word| word != "--no-fail-fast");
    command.push("--no-run".to_owned());
    Some(command)
}

/// The step with the remaining targets in their place; `None` if it is about them and there are
/// none.
fn expand(step: &[&str], remaining: &[String]) -> Option<Vec<String>> {
    if step.contains(&REMAINING) && remaining.is_empty() {
        return None;
    }
    let mut command = Vec::new();
    for word in step {
        if *word == REMAINING {
            let tests = remaining.iter().flat_map(|test| ["--test".to_owned(), test.clone()]);
            command.extend(tests);
        } else {
            command.push((*word).to_owned());
        }
    }
    Some(command)
}

/// Names of the integration test targets that no step runs in full.
fn remaining(suites: &[Suite], crates: &[Crate]) -> Vec<String> {
    let steps = || suites.iter().flat_map(|suite| suite.steps);
    let mut missing = Vec::new();
    for found in crates {
        let tests = found.tests.iter().filter(|test| !steps().any(|s| runs(s, &found.name, test)));
        missing.extend(tests.cloned());
    }
    missing.sort();
    missing.dedup();
    missing
}

/// Whether the `cargo` call runs all of that test target, but for tests that it skips by name: it
/// must name the package, or the workspace, and select the target, or nothing at all.
fn runs(step: &[&str], package: &str, test: &str) -> bool {
    let mut halves = step.splitn(2, |word| *word == "--");
    let cargo = halves.next().unwrap_or_default();
    let libtest = halves.next().unwrap_or_default();
    let has = |word: &str| cargo.contains(&word);
    let value_is = |flags: [&str; 2], value: &str| {
        cargo.windows(2).any(|pair| flags.contains(&pair[0]) && pair[1] == value)
    };
    let selectors = ["--test", "--lib", "--bins", "--bin", "--doc", "--examples", REMAINING];
    let selects = value_is(["--test", "--test"], test) || !selectors.into_iter().any(has);
    let packaged = has("--workspace") || value_is(["--package", "-p"], package);
    cargo.first() == Some(&"test") && packaged && selects && !has_filter(libtest)
}

/// Whether the arguments of libtest name tests to run: a word that is no flag and follows no flag
/// with a value.
fn has_filter(libtest: &[&str]) -> bool {
    let values = ["--skip", "--test-threads"];
    let mut before = "";
    libtest.iter().any(|word| {
        let filter = !word.starts_with('-') && !values.contains(&before);
        before = word;
        filter
    })
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

    fn suite(name: &'static str, steps: &[&'static [&'static str]]) -> Suite {
        let steps = Vec::leak(steps.to_vec());
        Suite { name, what: "", needs: "", budget_s: 1, tests_min: 0, steps }
    }

    fn package() -> Crate {
        Crate {
            name: "p".to_owned(),
            dir: "dir".to_owned(),
            dependencies: Vec::new(),
            tests: vec!["t".to_owned()],
        }
    }

    #[test]
    fn a_test_target_that_no_step_runs_in_full_remains() {
        let remains = |step: &'static [&'static str]| {
            !remaining(&[suite("s", &[step])], &[package()]).is_empty()
        };
        assert!(!remains(&["test", "--package", "p"]));
        assert!(!remains(&["test", "-p", "p", "--test", "t", "--release"]));
        assert!(!remains(&["test", "--workspace", "--test", "t", "--", "--skip", "faults"]));
        assert!(remains(&["test", "--workspace", "--test", "t", "--", "faults"]));
        assert!(remains(&["test", "--workspace", "--lib", "--bins"]));
        assert!(remains(&["test", "-p", "q"]));
        assert!(remains(&["test", "-p", "p", "--test", "u", "--", "--skip", "t"]));
        assert!(remains(&["build", "--workspace"]));
    }

    #[test]
    fn the_rest_is_named_target_by_target_and_built_in_advance() {
        let suites = [
            suite("build", &[&["build"]]),
            suite(
                "u",
                &[&["test", "--workspace", "--test", "u", "--release", "--", "--skip", "x"]],
            ),
            suite("rest", &[&["test", "--workspace", REMAINING], &["test", "--doc"]]),
        ];
        let calls = |at: usize, crates: &[Crate]| -> Vec<String> {
            let commands = commands_in(&suites, &suites[at], crates);
            commands.iter().map(|words| words.join(" ")).collect()
        };
        assert_eq!(calls(2, &[package()]), ["test --workspace --test t", "test --doc"]);
        assert_eq!(calls(2, &[]), ["test --doc"]);
        let build = [
            "build",
            "test --workspace --test u --release --no-run",
            "test --workspace --test t --no-run",
        ];
        assert_eq!(calls(0, &[package()]), build);
    }
}
