//! RDMA configurations that cannot work: each ends in an error that names the problem.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use super::faults::Down;
use super::{VERBS, devices};
use crate::cluster::{SECRET, WORK};
use ccl_harness::processes::{Processes, command, free_address};
use ccl_harness::{skip, stretched};

/// Runs a case on `ranks` ranks. `change` may change the command of each rank. Returns whether each
/// rank succeeded, and its output.
fn run(
    devices: &[String],
    ranks: u32,
    case: &str,
    change: impl Fn(u32, Command) -> Command,
) -> Vec<(bool, String)> {
    let address = free_address();
    let start = |rank: u32| {
        let mut command = command(case);
        command.env(WORK, "1000 2").env("FERROCCL_SECRET", SECRET);
        command.env("FERROCCL_RANK", rank.to_string()).env("FERROCCL_RANKS", ranks.to_string());
        command.env("FERROCCL_COMM_ID", &address).env("FERROCCL_TRANSPORT", VERBS);
        command.env("FERROCCL_SOCKET_IFNAME", "lo");
        command.env("FERROCCL_IB_HCA", format!("={}", devices.join(",")));
        change(rank, command)
    };
    let ended = Processes::start((0..ranks).map(start)).end(stretched(Duration::from_secs(60)));
    ended.into_iter().map(|ended| (ended.status.success(), ended.output)).collect()
}

/// Checks that no rank succeeds, and that the output holds each of the texts.
fn assert_said(ended: &[(bool, String)], texts: &[&str]) {
    let all = ended.iter().map(|(_, said)| said.as_str()).collect::<Vec<_>>().join("\n");
    assert!(ended.iter().all(|(succeeded, _)| !succeeded), "{all}");
    for text in texts {
        assert!(all.contains(text), "the output lacks {text:?}: {all}");
    }
}

#[test]
fn an_error_names_an_empty_gid_row_and_the_rows_that_have_an_address() {
    let Some((devices, _turn)) = devices() else { return };
    let ended = run(&devices, 2, "sums", |_, mut command| {
        command.env("FERROCCL_IB_GID_INDEX", "77");
        command
    });
    assert_said(&ended, &["row 77 of the GID table has no address; rows with an address: 0"]);
}

#[test]
fn a_port_that_is_down_is_named() {
    let Some((devices, _turn)) = devices() else { return };
    let _down = Down::new(&devices[1]);
    let ended = run(&devices, 2, "sums", |_, command| command);
    assert_said(&ended, &[&devices[1], "not active"]);
}

#[test]
fn ranks_with_different_policies_do_not_join() {
    let Some((devices, _turn)) = devices() else { return };
    let ended = run(&devices, 2, "sums", |rank, mut command| {
        command.env("FERROCCL_IB_POLICY", format!("qps={}", rank + 1));
        command
    });
    assert_said(&ended, &["configur"]);
}

/// The kernel limits the locked memory of processes without privileges.
#[test]
fn memory_that_may_not_be_locked_is_an_error_with_advice() {
    let Some((devices, _turn)) = devices() else { return };
    let ended = run(&devices, 2, "sums", |_, command| {
        let mut limited = Command::new("setpriv");
        limited.args(["--bounding-set", "-ipc_lock", "--inh-caps", "-ipc_lock"]);
        limited.args(["prlimit", "--memlock=65536:65536"]);
        limited.arg(command.get_program()).args(command.get_args());
        limited.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        limited.stdin(std::process::Stdio::null());
        limited
    });
    assert_said(&ended, &["ulimit -l"]);
}

/// Control group with a limit on the objects of RDMA devices, queue pairs among them.
struct Few(PathBuf);

impl Few {
    fn new(devices: &[String], objects: u32) -> Option<Few> {
        let root = PathBuf::from("/sys/fs/cgroup");
        if !root.join("cgroup.procs").exists() {
            Command::new("mount").args(["-t", "cgroup2", "none"]).arg(&root).status().ok()?;
        }
        fs::write(root.join("cgroup.subtree_control"), "+rdma").ok()?;
        let own = root.join("few-queue-pairs");
        fs::create_dir_all(&own).ok()?;
        for device in devices {
            let name = device.split_once(':').map_or(device.as_str(), |(name, _)| name);
            fs::write(own.join("rdma.max"), format!("{name} hca_object={objects}")).ok()?;
        }
        Some(Few(own))
    }
}

impl Drop for Few {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

/// Each rank of the `all_to_all` needs 17 queue pairs for each of the 7 other ranks.
#[test]
fn a_device_with_few_queue_pairs_is_an_error_with_advice() {
    let Some((devices, _turn)) = devices() else { return };
    let Some(few) = Few::new(&devices, 200) else {
        skip("this kernel does not limit the objects of RDMA devices");
        return;
    };
    let ended = run(&devices, 8, "work", |_, command| {
        let mut limited = Command::new("sh");
        let script = format!("echo $$ > {}/cgroup.procs && exec \"$@\"", few.0.display());
        limited.args(["-c", &script, "sh"]);
        limited.arg(command.get_program()).args(command.get_args());
        limited.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        limited.env(WORK, "all_to_all 1000").stdin(std::process::Stdio::null());
        limited
    });
    assert_said(&ended, &["FERROCCL_IB_POLICY"]);
}
