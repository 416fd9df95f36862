//! Local ranks as processes. In `local_ranks_join_each_other`, the ranks run this test binary; in
//! the other tests, all ranks are shells.

use ccl_harness::stretched;
use ferroccl::launch::{LaunchError, LocalExit, from_environment, spawn_local};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

const TASK: &str = "FERROCCL_TEST_LAUNCH";
const SOON: Duration = Duration::from_secs(20);

fn shells(ranks: u32, script: &str) -> LocalExit {
    spawn_local(ranks, Path::new("/bin/sh"), &["-c", script]).unwrap()
}

#[test]
fn the_status_is_0_if_all_ranks_succeed() {
    assert_eq!(shells(3, "exit 0"), LocalExit { code: 0, failed: None });
}

#[test]
fn the_status_is_that_of_the_first_failed_rank() {
    let script = "if [ $FERROCCL_RANK = 2 ]; then exit 7; fi; sleep 3; exit $FERROCCL_RANK";
    assert_eq!(shells(4, script), LocalExit { code: 7, failed: Some(2) });
    let script = "if [ $FERROCCL_RANK = 1 ]; then kill -9 $$; fi; sleep 3";
    assert_eq!(shells(2, script), LocalExit { code: 137, failed: Some(1) });
}

#[test]
fn ranks_that_do_not_end_after_a_failure_are_killed() {
    let start = Instant::now();
    let script = "if [ $FERROCCL_RANK = 1 ]; then exit 3; fi; trap '' TERM; \
                  while :; do sleep 0.1; done";
    assert_eq!(shells(3, script), LocalExit { code: 3, failed: Some(1) });
    let took = start.elapsed();
    assert!(took > Duration::from_secs(6) && took < stretched(Duration::from_secs(12)), "{took:?}");
}

/// The launcher sets an environment variable of libfabric, the library beneath the transport `ofi`,
/// for its ranks, unless the user has set the variable.
#[test]
fn the_launcher_sets_a_variable_of_libfabric_unless_the_user_has_set_it() {
    let script = "echo limit $FI_OFI_RXM_EAGER_LIMIT";
    let limit = |command: &mut Command| text(&command.output().unwrap()).0;
    let unset = limit(launched(script).env_remove("FI_OFI_RXM_EAGER_LIMIT"));
    assert!(unset.contains("limit 524288"), "{unset}");
    let set = limit(launched(script).env("FI_OFI_RXM_EAGER_LIMIT", "7"));
    assert!(set.contains("limit 7\n"), "{set}");
}

#[test]
fn a_program_that_cannot_be_started_is_an_error() {
    let none = Path::new("/nonexistent/program");
    let error = spawn_local::<&str>(2, none, &[]).unwrap_err();
    assert!(error.to_string().starts_with("cannot start /nonexistent/program"), "{error}");
    for ranks in [0, 10_000] {
        let error = spawn_local::<&str>(ranks, none, &[]).unwrap_err();
        assert!(matches!(error, LaunchError::LocalRanks { .. }), "{error}");
    }
}

/// Starts local ranks and prints how they ended. [`launched`] returns the command that runs this
/// function in a process of its own.
#[test]
fn launcher() {
    let Ok(task) = std::env::var(TASK) else { return };
    if std::env::var_os("FERROCCL_RANK").is_some() {
        return;
    }
    let exit = match task.as_str() {
        "join" => {
            let arguments = ["--exact", "launch::rank", "--nocapture"];
            spawn_local(4, &std::env::current_exe().unwrap(), &arguments).unwrap()
        }
        script => shells(3, script),
    };
    println!("\nended {exit:?}");
}

/// Runs one of the ranks that [`launcher`] starts.
#[test]
fn rank() {
    if std::env::var_os(TASK).is_none() || std::env::var_os("FERROCCL_RANK").is_none() {
        return;
    }
    let launch = from_environment().unwrap().unwrap();
    assert_eq!((launch.local_rank, launch.local_ranks), (Some(launch.rank), Some(launch.ranks)));
    let plane = launch.rendezvous(SOON).unwrap().join().unwrap();
    let parts = plane.all_gather(vec![launch.rank as u8], SOON).unwrap();
    println!("\njoined {parts:?}");
}

fn launched(task: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "launch::launcher", "--nocapture"]).env(TASK, task);
    command
}

fn text(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

#[test]
fn local_ranks_join_each_other() {
    let (stdout, stderr) = text(&launched("join").output().unwrap());
    assert!(stdout.contains("\njoined [[0], [1], [2], [3]]"), "{stdout}{stderr}");
    assert_eq!(stdout.matches("joined").count(), 1, "stdout has another rank's output: {stdout}");
    assert!(stdout.contains("ended LocalExit { code: 0, failed: None }"), "{stdout}{stderr}");
}

#[test]
fn ranks_other_than_0_lose_stdout_and_get_a_prefix_on_stderr() {
    let script = "echo out $FERROCCL_RANK; echo err $FERROCCL_RANK >&2; printf half >&2";
    let (stdout, stderr) = text(&launched(script).output().unwrap());
    assert!(stdout.contains("out 0") && !stdout.contains("out 1"), "{stdout}");
    for line in ["err 0", "[rank 1] err 1\n", "[rank 2] err 2\n", "[rank 2] half\n"] {
        assert!(stderr.contains(line), "{stderr}");
    }
}

#[test]
fn ranks_die_with_their_launcher() {
    let mut launcher = launched("echo pid $$; exec sleep 60");
    let mut child = launcher.stdout(Stdio::piped()).spawn().unwrap();
    // Only rank 0's standard output is forwarded, so the ranks are found as the launcher's
    // children.
    let list = format!("/proc/{}/task", child.id());
    let start = Instant::now();
    let ranks = loop {
        let children: Vec<u32> = std::fs::read_dir(&list)
            .unwrap()
            .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("children")).ok())
            .flat_map(|pids| pids.split(' ').filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
            .collect();
        if children.len() == 3 {
            break children;
        }
        assert!(start.elapsed() < stretched(SOON), "{children:?}");
        std::thread::sleep(Duration::from_millis(20));
    };
    std::thread::sleep(Duration::from_millis(100));
    child.kill().unwrap();
    while child.try_wait().unwrap().is_none() {
        std::thread::yield_now();
    }
    let lives = |pid: &&u32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // A zombie that its new parent has not reaped yet is dead.
        !status.is_empty() && !status.contains(") Z ")
    };
    while let Some(pid) = ranks.iter().find(lives) {
        assert!(start.elapsed() < stretched(SOON), "process {pid} outlives its launcher");
        std::thread::sleep(Duration::from_millis(20));
    }
}
