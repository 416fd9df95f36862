//! Conformance of the NCCL plugin over each transport, checked with `ferroccl netcheck`.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output};

// This import makes cargo build the plugin.
use nccl_net_ferroccl as _;

use crate::rdma::{self, VERBS};

/// Returns the path of the plugin, which cargo puts beside the tests.
fn plugin() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let plugin = test.parent().unwrap().join("libnccl_net_ferroccl.so");
    assert!(plugin.exists(), "{} does not exist", plugin.display());
    plugin
}

/// Runs `ferroccl netcheck`, which checks that the plugin keeps each point of NCCL's contract.
/// No point may fail. Apart from [`HOST_ONLY`], exactly the points in `skipped` must be skipped.
///
/// The time-out is 60 s unless `arguments` contains `--timeout`. The default of `ferroccl netcheck`
/// is shorter, but other tests run at the same time.
pub(crate) fn keeps_the_contract(arguments: &[&str], variables: &[(&str, &str)], skipped: &[&str]) {
    let mut command = Command::new(ccl_harness::command::program());
    command.arg("netcheck").arg(plugin()).args(arguments);
    command.arg("--skip-performance");
    if !arguments.contains(&"--timeout") {
        command.args(["--timeout", "60"]);
    }
    let Output { status, stdout, stderr } =
        command.envs(variables.iter().copied()).output().unwrap();
    let said = String::from_utf8_lossy(&stdout);
    println!("{said}{}", String::from_utf8_lossy(&stderr));
    if !status.success() {
        // Prints at once: an emulated machine may not live until all tests have ended.
        let lines = said.lines().filter(|line| !line.contains(" passed"));
        let _ = writeln!(std::io::stderr(), "{}", Vec::from_iter(lines).join("\n"));
    }
    assert!(status.success(), "netcheck failed: {arguments:?} {variables:?}");
    let found = said.lines().filter(|line| line.contains(" skipped: "));
    let found = found.filter_map(|line| line.split_whitespace().next());
    let found = found.filter(|point| !HOST_ONLY.contains(point));
    assert_eq!(BTreeSet::from_iter(found), BTreeSet::from_iter(skipped.iter().copied()));
}

/// Points about device memory and device offload, neither of which this plugin supports.
const HOST_ONLY: [&str; 3] = ["consumed_receives", "dma_buf_registration", "device_registration"];

/// Older API versions, each with the points that it lacks. The newest version is the default.
const VERSIONS: [(&str, &[&str]); 4] = [
    (
        "v8",
        &[
            V8_HAS_NO_PARTS,
            "attributes_accepted",
            "no_such_parts",
            "optional_completion",
            "profiled_requests",
            "init_finalize_cycles",
            "finalize_joins_threads",
        ],
    ),
    (
        "v9",
        &[
            "attributes_accepted",
            "profiled_requests",
            "init_finalize_cycles",
            "finalize_joins_threads",
        ],
    ),
    ("v10", &["attributes_accepted", "init_finalize_cycles", "finalize_joins_threads"]),
    ("v11", &[]),
];
/// Points that together take only seconds.
pub(crate) const SHORT: &str = "loads_and_names,properties,send_receive,zero_sizes,truncation,\
                                in_order,grouped_receives,thirty_two_in_flight,\
                                deregister_with_requests_in_flight";
/// Setting for three helper threads of the plugin. They send and receive long messages beside the
/// caller's thread; small machines have none by default.
const HELPERS: (&str, &str) = ("FERROCCL_NET_THREADS", "3");
/// Points that need a second device.
pub(crate) const ONE_DEVICE: [&str; 2] = ["cross_device", "several_devices_as_one"];
/// Point that version 8 lacks, because it has no virtual devices.
const V8_HAS_NO_PARTS: &str = "several_devices_as_one";

#[test]
fn over_tcp() {
    let tcp = ("FERROCCL_TRANSPORT", "tcp");
    keeps_the_contract(&[], &[tcp], &ONE_DEVICE);
    for (version, lacks) in VERSIONS {
        keeps_the_contract(&["--api", version], &[tcp], &[&ONE_DEVICE, lacks].concat());
    }
    let sockets = ("FERROCCL_SOCKETS", "3");
    keeps_the_contract(&["--contract-only"], &[tcp, HELPERS], &ONE_DEVICE);
    keeps_the_contract(&["--contract-only"], &[tcp, sockets], &ONE_DEVICE);
}

#[test]
fn over_shared_memory() {
    let shm = ("FERROCCL_TRANSPORT", "shm");
    // Shared memory has no port that a stranger could find.
    let skipped = [&ONE_DEVICE[..], &["stranger_on_port"]].concat();
    keeps_the_contract(&[], &[shm], &skipped);
    keeps_the_contract(&["--contract-only"], &[shm, HELPERS], &skipped);
    for (version, lacks) in VERSIONS {
        keeps_the_contract(&["--api", version], &[shm], &[&skipped[..], lacks].concat());
    }
}

/// Short form of the tests above, for the quick tier.
#[test]
fn over_each_transport_in_short() {
    for transport in ["tcp", "shm"] {
        let transport = ("FERROCCL_TRANSPORT", transport);
        keeps_the_contract(&["--only", SHORT], &[transport], &[]);
        keeps_the_contract(&["--only", SHORT], &[transport, HELPERS], &[]);
    }
}

#[test]
fn a_connection_takes_little_memory() {
    for transport in ["tcp", "shm"] {
        let mut command = Command::new(ccl_harness::command::program());
        command.arg("netcheck").arg(plugin()).args(["--performance-only", "--sizes", "8"]);
        let output = command.args(["--json", "-"]).env("FERROCCL_TRANSPORT", transport).output();
        let said: serde_json::Value = serde_json::from_slice(&output.unwrap().stdout).unwrap();
        for end in ["sender", "receiver"] {
            let bytes = said["connection_bytes"][end].as_u64().unwrap();
            assert!((1..512 << 10).contains(&bytes), "{transport}: a {end} takes {bytes} bytes");
        }
    }
}

/// Checks that the plugin loads and reports 0 devices if no device can be used. NCCL then uses its
/// own transport.
#[test]
fn a_plugin_that_finds_no_device_loads_and_reports_none() {
    let mut command = Command::new(ccl_harness::command::program());
    command.arg("netcheck").arg(plugin()).args(["--only", "loads_and_names"]);
    let nothing = [("FERROCCL_TRANSPORT", VERBS), ("FERROCCL_IB_HCA", "none")];
    let Output { status, stdout, .. } = command.envs(nothing).output().unwrap();
    let said = String::from_utf8_lossy(&stdout);
    assert!(status.success() && said.contains("reports 0 devices"), "{said}");
}

#[test]
fn over_the_best_available_transport() {
    keeps_the_contract(&["--full"], &[("FERROCCL_IB_HCA", "none")], &ONE_DEVICE);
}

/// Short form of the next test, for the quick tier.
#[test]
fn over_rdma_in_short() {
    let Some((devices, _turn)) = rdma::devices() else { return };
    let devices = devices.join(",");
    let variables = [("FERROCCL_TRANSPORT", VERBS), ("FERROCCL_IB_HCA", devices.as_str())];
    let points = format!("{SHORT},several_devices_as_one");
    keeps_the_contract(&["--timeout", "180", "--only", &points], &variables, &[]);
}

/// Only the newest API version is tested: the versions differ only in code above the transports,
/// and each run takes minutes on emulated processors.
#[test]
fn over_rdma() {
    let Some((devices, _turn)) = rdma::devices() else { return };
    let verbs = ("FERROCCL_TRANSPORT", VERBS);
    let devices = devices.join(",");
    let devices = ("FERROCCL_IB_HCA", devices.as_str());
    // On emulated processors, a single point can take a minute.
    let patient = ["--timeout", "180"];
    keeps_the_contract(&patient, &[verbs, devices], &[]);
    // The longest message that NCCL sends, 1 GiB, needs as much memory on each side.
    keeps_the_contract(&["--timeout", "300", "--only", "large", "--full"], &[verbs, devices], &[]);
    // Uses both devices as one virtual device.
    let both = [&patient[..], &["--device", "0+1", "--contract-only"]].concat();
    keeps_the_contract(&both, &[verbs, devices], &[]);
}

#[test]
fn few_and_short_slots_suffice() {
    let few = [("FERROCCL_NET_SLOTS", "2"), ("FERROCCL_NET_SLOT_BYTES", "64")];
    for transport in ["shm", "tcp"] {
        let transport = ("FERROCCL_TRANSPORT", transport);
        let only = "send_receive,truncation,in_order,grouped_receives,equal_tags_in_a_group,\
                    tags_interleaved_over_groups,wrong_tag_waits,thirty_two_in_flight,zero_sizes";
        let variables = [few[0], few[1], transport];
        // Over shared memory, a message of 300 kB travels in 4,700 chunks through two slots. On a
        // busy machine, the sender may wait for the scheduler after every two chunks, so these
        // points may take minutes.
        keeps_the_contract(&["--only", only, "--timeout", "300"], &variables, &[]);
    }
}
