//! Table of the test suites in the order in which they run, with one entry per suite.
//!
//! Each suite has a quick part, a deep part, or both. `cargo xtask test` runs the quick parts,
//! `cargo xtask test --full` the deep ones. A part runs all tests of the binaries that it selects,
//! but the quick parts leave out the tests in [`DEEP`].

use super::binaries::Binary;
use super::runner::Test;
use crate::{Outcome, report};

/// Test suite.
#[derive(Debug)]
pub(crate) struct Suite {
    /// Name for `--suite`.
    pub(crate) name: &'static str,
    /// Subject of the suite, printed in its heading and in the list of suites.
    pub(crate) what: &'static str,
    /// Requirements beyond Rust and a C linker, and what the suite installs or skips.
    pub(crate) needs: &'static str,
    /// Tests of the suite in each tier; if the suite is in one tier only, the reason.
    pub(crate) tiers: &'static str,
    /// Usual seconds of the quick part and of the deep part, on 2 idle cores where the guest (the
    /// virtual machine of `cargo xtask guest`) is emulated. The summary of a run shows them beside
    /// the measured seconds. A suite is killed after [`HANGS`](super::HANGS) times as much, or
    /// [`HANGS_AFTER`](super::HANGS_AFTER) if that is longer.
    pub(crate) usual_s: [u64; 2],
    /// Least number of tests that a part must select, whether they run or are skipped: a part that
    /// selects no tests must not pass.
    pub(crate) tests_min: usize,
    /// True if the quick part runs beside the other suites, because it waits more than it computes.
    pub(crate) waits: bool,
    pub(crate) quick: &'static [Step],
    pub(crate) deep: &'static [Step],
    /// Directories that the deep part tests; `""` is the whole tree. After a change of a Rust file
    /// in them, `cargo xtask check --changed` runs the deep part.
    pub(crate) covers: &'static [&'static str],
}

/// Step of a suite.
#[derive(Debug)]
pub(crate) enum Step {
    /// Tests on this machine, each as a process of its own.
    Tests(Select),
    /// A `cargo` command whose output is parsed as libtest's.
    Cargo(&'static [&'static str]),
    /// A run of `cargo xtask` with these arguments, whose output is parsed as libtest's.
    Xtask(&'static [&'static str]),
    /// One boot of the guest that runs these programs one after the other.
    Guest(&'static Guest),
}

/// Selection of test binaries.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Select {
    /// Unit tests of every crate.
    Units,
    /// Integration tests of these cargo targets.
    Named(&'static [&'static str]),
    /// Integration tests that no suite names.
    Others,
}

/// Programs and settings of one boot of the guest.
#[derive(Debug)]
pub(crate) struct Guest {
    /// Argument of `cargo xtask guest --setup`.
    pub(crate) setup: &'static str,
    pub(crate) variables: &'static [(&'static str, &'static str)],
    pub(crate) programs: &'static [Program],
}

/// Program that the guest runs.
#[derive(Debug)]
pub(crate) enum Program {
    /// Test binary, named by its cargo target, and the arguments that libtest gets.
    Test(&'static str, &'static [&'static str]),
    /// Test binary as in [`Program::Test`], over each version of libfabric that `cargo xtask check
    /// ofi` installs.
    OverLibfabric(&'static str, &'static [&'static str]),
    /// Comparison of `cargo xtask compare-transports`, at three sizes.
    CompareTransports,
}

const NOTHING: &str = "needs only Rust and a C linker";
const NAMESPACES: &str = "tests of ranks in network namespaces need root and iproute2, and are \
    skipped without them";
const IN_GUEST: &str = "if run as root, installs missing packages (qemu-system-x86, \
    busybox-static, kmod, libibverbs, tcpdump); downloads a kernel into $XDG_CACHE_HOME or the \
    target directory; skipped if a package or the kernel is not available";

/// Variables of the guest's RDMA tests, such as the ports of the Soft-RoCE devices.
const DEVICES: [(&str, &str); 2] =
    [("FERROCCL_TEST_RDMA", "rxa:1,rxb:1,rxc:1,rxd:1"), ("RUST_BACKTRACE", "0")];

/// Guest boot of the quick tier.
const GUEST_QUICK: Guest = Guest {
    setup: "rxe-pair",
    variables: &DEVICES,
    programs: &[
        Program::Test("verbs", &["devices_of_this_machine"]),
        Program::Test(
            "integration",
            &[
                "rdma::families_over_rdma",
                "rdma::auto_takes_rdma",
                "rdma::packets::",
                "rdma::faults::ranks_over_rdma_name_a_killed_rank",
                "nccl_net::over_rdma_in_short",
            ],
        ),
        Program::CompareTransports,
    ],
};

/// Guest boot with all RDMA tests over Soft-RoCE.
const GUEST_RDMA: Guest = Guest {
    setup: "rxe-pair",
    variables: &DEVICES,
    programs: &[
        Program::Test("verbs", &["devices_of_this_machine"]),
        Program::Test("integration", &["rdma::", "nccl_net::over_rdma"]),
        Program::Test("plugin_allocations", &[]),
    ],
};

/// Guest boot for TCP over links that lose, delay and reorder.
const GUEST_NETEM: Guest = Guest {
    setup: "veth",
    variables: &[("FERROCCL_TEST_NETEM", "1")],
    programs: &[Program::Test("integration", &["network::netns_netem", "matrix::netem"])],
};

/// Guest boot for libfabric over links that lose, delay and reorder.
const GUEST_LIBFABRIC: Guest = Guest {
    setup: "veth",
    variables: &[("FERROCCL_TEST_NETEM", "1")],
    programs: &[Program::OverLibfabric("integration", &["matrix::ofi::netem"])],
};

/// Name of the suite that `cargo xtask softroce` runs.
pub(crate) const SOFTROCE: &str = "softroce";

/// Table of all suites.
pub(crate) const SUITES: &[Suite] = &[
    Suite {
        name: "verifier",
        what: "every algorithm proved, and mutants that must be rejected",
        needs: NOTHING,
        tiers: "quick: 1 to 8 ranks; deep: 1 to 17 ranks and some numbers up to 33, more lengths, \
                settings and mutants",
        usual_s: [5, 600],
        tests_min: 10,
        waits: false,
        quick: &[Step::Tests(Select::Named(&["verifier"]))],
        deep: &[Step::Tests(Select::Named(&["verifier"]))],
        covers: &["ccl-core"],
    },
    Suite {
        name: "simulator",
        what: "programs over a simulated network: loss, reordering, crashes, by seed",
        needs: NOTHING,
        tiers: "quick: a hundred seeds; deep: thousands of seeds, and every experiment of \
                docs/simulator.md",
        usual_s: [15, 1500],
        tests_min: 10,
        waits: false,
        quick: &[Step::Tests(Select::Named(&["sim", "scenarios"]))],
        deep: &[Step::Tests(Select::Named(&["sim", "scenarios"]))],
        covers: &["ccl-core", "testing/sim-transport", "tools/sim"],
    },
    Suite {
        name: "unit",
        what: "unit tests of every crate, fuzz targets over their corpus included",
        needs: NOTHING,
        tiers: "quick: all but the slow tests in DEEP (xtask/src/test/suites.rs); deep: all, with \
                more seeds and mutants",
        usual_s: [70, 400],
        tests_min: 400,
        waits: false,
        quick: &[Step::Tests(Select::Units)],
        deep: &[Step::Tests(Select::Units)],
        covers: &[""],
    },
    Suite {
        name: "models",
        what: "every interleaving of the lock-free code in small cases",
        needs: NOTHING,
        tiers: "quick: the two smallest models and their mutants; deep: all models",
        usual_s: [45, 300],
        tests_min: 2,
        waits: false,
        quick: &[Step::Xtask(&["check", "loom"])],
        deep: &[Step::Xtask(&["check", "loom", "shuttle"])],
        covers: &["ccl-core/memory"],
    },
    Suite {
        name: "transports",
        what: "conformance of the transports, the kernels and the plugins for NCCL",
        needs: NOTHING,
        tiers: "quick and deep alike",
        usual_s: [45, 200],
        tests_min: 20,
        waits: false,
        quick: &[Step::Tests(Select::Others)],
        deep: &[Step::Tests(Select::Others)],
        covers: &["transports", "kernels", "ccl-core"],
    },
    Suite {
        name: "libfabric",
        what: "all code that uses libfabric, over two versions of it",
        needs: "installs libfabric1 and libfabric-dev if run as root, and a newer version into \
                the target directory (needs python3, and PyPI once); skipped if it can install \
                neither; the deep part also needs the guest",
        tiers: "quick: all tests over the newer version, those of the transport over both; deep: \
                all over both, and the fault matrix",
        usual_s: [50, 1300],
        tests_min: 24,
        waits: false,
        quick: &[Step::Xtask(&["check", "ofi"])],
        deep: &[Step::Xtask(&["check", "ofi"]), Step::Guest(&GUEST_LIBFABRIC)],
        covers: &["transports/ofi"],
    },
    Suite {
        name: "library",
        what: "ranks as threads and processes, faults, the command, the perf programs",
        needs: NAMESPACES,
        tiers: "quick: all but the slow tests in DEEP (xtask/src/test/suites.rs); deep: all, and \
                every cell of the fault matrix",
        usual_s: [130, 1800],
        tests_min: 100,
        waits: false,
        quick: &[Step::Tests(Select::Named(&["integration", "allocations", "cli"]))],
        deep: &[Step::Tests(Select::Named(&["integration", "allocations", "cli"]))],
        covers: &[""],
    },
    Suite {
        name: "documentation",
        what: "the examples in doc comments",
        needs: NOTHING,
        tiers: "quick only: the examples are few and short",
        usual_s: [20, 0],
        tests_min: 1,
        waits: false,
        quick: &[Step::Cargo(&["test", "--workspace", "--locked", "--no-fail-fast", "--doc"])],
        deep: &[],
        covers: &[],
    },
    Suite {
        name: SOFTROCE,
        what: "RDMA over Soft-RoCE in a virtual machine",
        needs: IN_GUEST,
        tiers: "quick: one boot with conformance, a collective of each family, packet captures, \
                a killed rank, a short netcheck and compare-transports; deep: every test",
        usual_s: [140, 600],
        tests_min: 5,
        waits: true,
        quick: &[Step::Guest(&GUEST_QUICK)],
        deep: &[Step::Guest(&GUEST_RDMA)],
        covers: &["transports/verbs", "transports/multirail", "plugins/nccl-net", "ccl-core"],
    },
    Suite {
        name: "guest",
        what: "the virtual machine itself, and TCP over links that lose, delay and reorder packets",
        needs: IN_GUEST,
        tiers: "deep: each of its tests boots a virtual machine",
        usual_s: [0, 300],
        tests_min: 6,
        waits: false,
        quick: &[],
        deep: &[Step::Tests(Select::Named(&["guest"])), Step::Guest(&GUEST_NETEM)],
        covers: &["xtask", "transports/tcp", "transports/socket"],
    },
    Suite {
        name: "release",
        what: "the README's first command, the flight recorder's cost, and packages of the library",
        needs: "needs valgrind (`cargo xtask setup` installs it), else the cost is not measured",
        tiers: "deep: an optimised build takes 2 minutes; the quick tier runs the code unoptimised",
        usual_s: [0, 240],
        tests_min: 0,
        waits: false,
        quick: &[],
        deep: &[Step::Cargo(README_FIRST), Step::Xtask(&["check", "recorder", "packages"])],
        covers: &["src", "ccl-core", "kernels", "transports/shm"],
    },
    Suite {
        name: "dist",
        what: "what users install: libraries, exports, oldest glibc, `pip install`, netcheck",
        needs: "needs python3, and PyPI once, to install zig into the target directory; skipped \
                without them",
        tiers: "deep: needs an optimised build of its own, which zig links",
        usual_s: [0, 400],
        tests_min: 0,
        waits: false,
        quick: &[],
        deep: &[Step::Xtask(&["dist", "--or-skip"])],
        covers: &["transports", "xtask"],
    },
    Suite {
        name: "sanitizers",
        what: "AddressSanitizer and valgrind over the code that uses `unsafe`",
        needs: "needs the nightly toolchain and valgrind (`cargo xtask setup` installs both); \
                skipped without them",
        tiers: "deep: needs a build of its own; instructions take up to 20 times as long",
        usual_s: [0, 1500],
        tests_min: 0,
        waits: false,
        quick: &[],
        deep: &[Step::Xtask(&["check", "asan", "valgrind"])],
        covers: &["ccl-core/memory", "kernels", "transports", "src/recorder"],
    },
    Suite {
        name: "fuzzers",
        what: "libFuzzer over everything that reads bytes from outside",
        needs: "needs the nightly toolchain and a C++ compiler; skipped without them",
        tiers: "deep: needs a build of its own; the quick tier runs the targets over their corpus",
        usual_s: [0, 1500],
        tests_min: 0,
        waits: false,
        quick: &[],
        deep: &[Step::Xtask(&["check", "fuzz"])],
        covers: &[
            "fuzz",
            "ccl-core",
            "tools/model",
            "tools/traffic",
            "transports/socket",
            "transports/tcp",
        ],
    },
];

/// Tests that only the deep tier runs: target, start of the test's name, and the reason.
pub(crate) const DEEP: &[(&str, &str, &str)] = &[
    (
        "ccl_core",
        "algorithm::tests::irregular_hosts_may_use_up",
        "150 ranks on 61 hosts; the verifier runs the same algorithms on fewer",
    ),
    (
        "ccl_core",
        "algorithm::tests::programs_compute_every_output_over_two_slots",
        "the quick tier runs the programs over a single slot",
    ),
    (
        "ccl_sim",
        "cli::tests::the_examples_of_the_help_work",
        "a test of the command `ferroccl sim` runs the same examples",
    ),
    ("tcp", "conformance::tcp_with_several_sockets_passes", "another test uses them with TLS"),
    ("tcp", "conformance::tcp_with_tls_passes", "another test uses TLS on several sockets"),
    ("tcp", "conformance::tcp_over_detected_interfaces", "`hosts` runs over detected interfaces"),
    ("verbs", "conformance::puts_in_parts_pass", "conformance in the guest covers them"),
    ("integration", "network::an_oversubscribed", "measures for 15 s"),
    ("integration", "hosts::collectives_work_with_encryption", "minutes of unoptimised TLS"),
    (
        "integration",
        "hosts::messages_sent_from_the_callers",
        "two minutes; unit tests cover its parts",
    ),
    (
        "integration",
        "hosts::tcp_can_be_chosen_on_one_host",
        "two minutes; other tests of `hosts` cover it in short",
    ),
    ("integration", "hosts::few_slots_and_several_channels", "`collectives` covers both in short"),
    ("integration", "cluster::every_collective_runs_between", "`hosts` does this in short"),
    ("integration", "cluster::the_perf_programs_run_between", "`perf` runs them on one host"),
    ("integration", "cluster::a_port_scanner_and_10_000", "`a_crowd_of_strangers` is shorter"),
    ("integration", "nccl_net::over_tcp", "every API version; the quick tier runs `in_short`"),
    ("integration", "nccl_net::over_shared_memory", "every API version; quick tier: `in_short`"),
    ("integration", "nccl_net::over_the_best", "`netcheck --full`; quick tier: `in_short`"),
    ("integration", "nccl_net::few_and_short_slots", "the quick tier runs `in_short`"),
    ("faults", "faults::the_examples_of_the_help_work", "measures for minutes"),
    ("faults", "faults::the_reference_keeps_the_contract", "runs every version of the interface"),
    (
        "scenarios",
        "the_page_shows_the_measured_results",
        "every experiment of docs/simulator.md; unit tests cover parts of the experiments",
    ),
];

/// Arguments of the README's first command, reduced to a short measurement. The command compiles
/// only this example and its dependencies.
const README_FIRST: &[&str] = &[
    "run",
    "--release",
    "--locked",
    "--example",
    "all_reduce_perf",
    "--",
    "-b",
    "8",
    "-e",
    "64K",
    "-f",
    "2",
    "-g",
    "2",
    "-c",
    "1",
    "-n",
    "2",
    "-w",
    "1",
];

/// Returns the suites as a table.
pub(crate) fn list() -> String {
    let seconds = |seconds: u64| if seconds == 0 { "-".to_owned() } else { format!("{seconds} s") };
    let rows = SUITES.iter().map(|suite| {
        let [quick, deep] = suite.usual_s.map(seconds);
        let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        vec![suite.name.to_owned(), words(suite.what), words(suite.tiers), quick, deep]
    });
    let head = ["suite", "shows", "what each tier runs", "quick", "deep"];
    report::table(&head, &rows.collect::<Vec<_>>())
}

impl Suite {
    /// Returns the steps of a tier.
    pub(crate) fn steps(&self, deep: bool) -> &'static [Step] {
        if deep { self.deep } else { self.quick }
    }

    /// Returns whether `file`, relative to the root, is a Rust file that the deep part covers.
    pub(crate) fn covers(&self, file: &str) -> bool {
        let within = |dir: &&str| dir.is_empty() || file.starts_with(&format!("{dir}/"));
        file.ends_with(".rs") && self.covers.iter().any(within)
    }
}

impl Select {
    fn takes(self, binary: &Binary) -> bool {
        match self {
            Select::Units => binary.is_unit,
            Select::Named(targets) => !binary.is_unit && targets.contains(&binary.target.as_str()),
            Select::Others => !binary.is_unit && !is_named(&binary.target),
        }
    }

    /// Returns the selected tests; in the quick tier without those of [`DEEP`].
    pub(crate) fn tests<'a>(self, binaries: &'a [Binary], deep: bool) -> Outcome<Vec<Test<'a>>> {
        let mut tests = Vec::new();
        for binary in binaries.iter().filter(|binary| self.takes(binary)) {
            let names = binary.tests()?.into_iter();
            let names = names.filter(|name| deep || !is_deep(&binary.target, name));
            tests.extend(names.map(|name| Test { binary, name }));
        }
        Ok(tests)
    }
}

fn is_deep(target: &str, name: &str) -> bool {
    DEEP.iter().any(|(binary, start, _)| *binary == target && name.starts_with(start))
}

/// Returns whether a suite names this integration test.
fn is_named(target: &str) -> bool {
    let steps = SUITES.iter().flat_map(|suite| suite.quick.iter().chain(suite.deep));
    steps.into_iter().any(
        |step| matches!(step, Step::Tests(Select::Named(targets)) if targets.contains(&target)),
    )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn names_are_unique_and_every_suite_is_in_a_tier() {
        let names: BTreeSet<&str> = SUITES.iter().map(|suite| suite.name).collect();
        assert_eq!(names.len(), SUITES.len());
        assert!(SUITES.iter().all(|suite| !suite.quick.is_empty() || !suite.deep.is_empty()));
        assert!(SUITES.iter().all(|suite| suite.quick.is_empty() || suite.usual_s[0] > 0));
        // Changed files select deep parts, so exactly the suites with a deep part cover files.
        assert!(SUITES.iter().all(|suite| suite.deep.is_empty() == suite.covers.is_empty()));
    }

    #[test]
    fn the_quick_tier_takes_at_most_12_minutes_and_leaves_3_for_the_lints() {
        let total: u64 = SUITES.iter().map(|suite| suite.usual_s[0]).sum();
        assert!(total + super::super::BUILD_USUAL_S <= 12 * 60, "{total} s");
        const { assert!(crate::lint::USUAL_S <= 3 * 60) };
    }

    #[test]
    fn the_page_on_testing_has_the_table_of_suites() {
        let page = include_str!("../../../docs/testing.md");
        let lacks = "docs/testing.md lacks the output of `cargo xtask test --list`";
        assert!(page.contains(&list()), "{lacks}");
    }

    #[test]
    fn every_test_binary_is_in_a_suite_of_the_deep_tier() {
        let binary = |target: &str, is_unit| Binary {
            target: target.to_owned(),
            is_unit,
            path: PathBuf::new(),
            dir: PathBuf::new(),
        };
        let selects = || {
            SUITES.iter().flat_map(|suite| suite.deep).filter_map(|step| match step {
                Step::Tests(select) => Some(*select),
                _ => None,
            })
        };
        for (target, is_unit) in
            [("ccl_core", true), ("integration", false), ("verifier", false), ("new", false)]
        {
            let taken = selects().filter(|select| select.takes(&binary(target, is_unit))).count();
            assert_eq!(taken, 1, "{target}");
        }
    }

    #[test]
    fn a_changed_file_selects_the_suites_that_cover_it() {
        let names = |file: &str| -> Vec<&str> {
            SUITES.iter().filter(|suite| suite.covers(file)).map(|suite| suite.name).collect()
        };
        assert!(names("ccl-core/src/verify/mod.rs").contains(&"verifier"));
        assert!(names("transports/verbs/src/lane.rs").contains(&SOFTROCE));
        assert!(!names("tools/perf/src/lib.rs").contains(&"verifier"));
        assert!(names("README.md").is_empty());
    }
}
