//! Stall detection: after a stall of any cause, all waiting ranks end soon after the deadline, with
//! the same verdict. `ferroccl status` reports the verdict before the deadline.

use ccl_harness::processes::{Case, Ended, Processes, say};
use ccl_harness::stretched;
use ccl_harness::{config, joining};
use ferroccl::{Communicator, Config, Error, Reduction};
use rustix::process::Signal;
use std::process::Command;
use std::time::{Duration, Instant};

pub(crate) const CASES: &[Case] = &[("stuck", stuck)];

/// Variable that says how ranks behave after their first call.
const HOW: &str = "FERROCCL_TEST_HOW";
/// Variable with the number of the rank that computes if [`HOW`] is `computes`.
const WHO: &str = "FERROCCL_TEST_WHO";
const JOINED: Duration = Duration::from_secs(60);
/// Deadline of the operations.
const TIMEOUT: Duration = Duration::from_millis(1500);
/// Promised limit: all waiting ranks end within this time after the deadline.
const MORE: Duration = Duration::from_millis(1000);
/// Additional time for a machine with more ranks than cores.
const GRACE: Duration = Duration::from_millis(1500);

/// Placement of the ranks.
#[derive(Clone, Copy, Debug)]
enum Over {
    SharedMemory,
    Tcp,
    /// Shared memory within each of two hosts, and TCP between them.
    Both,
}

fn impatient(over: Over, rank: u32, check: bool) -> Config {
    let mut config = config();
    config.timeout = TIMEOUT;
    config.heartbeat = Duration::from_millis(100);
    config.check_calls = check;
    config.dump = "none".to_owned();
    config.host_id = match over {
        Over::SharedMemory => String::new(),
        Over::Tcp => format!("host {rank}"),
        Over::Both => format!("host {}", rank % 2),
    };
    config.socket_interfaces = "lo".to_owned();
    config
}

/// Returns the part of an error that must be the same on all ranks.
fn verdict(error: &str) -> &str {
    let from = error.find(". Rank ").map(|at| at + 2).unwrap_or_else(|| panic!("{error}"));
    let to = error.rfind(" (FERROCCL_TIMEOUT sets the limit)");
    &error[from..to.unwrap_or_else(|| panic!("{error}"))]
}

/// Runs `body` on threads after two calls that succeed. Returns the common verdict.
fn threads(
    n: u32,
    over: Over,
    check: bool,
    body: fn(&mut Communicator) -> Result<(), Error>,
) -> String {
    let warm_up = |communicator: &mut Communicator| {
        communicator.barrier().unwrap();
        let mut sum = [1u32; 3];
        communicator.all_reduce_in_place(&mut sum, Reduction::Sum).unwrap();
    };
    verdict_of(n, over, check, warm_up, body)
}

/// Runs `before` and `body` on threads. Returns the common verdict.
fn verdict_of(
    n: u32,
    over: Over,
    check: bool,
    before: fn(&mut Communicator),
    body: impl Fn(&mut Communicator) -> Result<(), Error> + Send + Sync + 'static,
) -> String {
    let errors = joining(
        n,
        move |rank| impatient(over, rank, check),
        move |communicator| {
            let mut communicator = communicator.unwrap();
            before(&mut communicator);
            let begun = Instant::now();
            let error = match body(&mut communicator) {
                Err(error) => error,
                // A rank whose `body` succeeded gets the error from a later call.
                Ok(()) => loop {
                    match communicator.barrier() {
                        Err(error) => break error,
                        Ok(()) => assert!(begun.elapsed() < JOINED, "barriers still succeed"),
                    }
                },
            };
            assert!(matches!(error, Error::Deadline { .. }), "{error}");
            (error.to_string(), begun.elapsed())
        },
    );
    for (error, took) in &errors {
        assert_eq!(verdict(error), verdict(&errors[0].0), "{errors:?}");
        assert!(*took < stretched(TIMEOUT + MORE + GRACE), "{took:?}: {error}");
    }
    verdict(&errors[0].0).to_owned()
}

/// A rank that computes is named even in the first call, when no link between hosts exists yet.
#[test]
fn a_rank_that_computes_before_the_first_call_is_named() {
    for (n, who) in [(2, 0), (2, 1), (5, 0)] {
        let body = move |c: &mut Communicator| {
            if c.rank() == who {
                busy();
            }
            c.all_reduce_in_place(&mut [1u32; 3], Reduction::Sum)
        };
        let verdict = verdict_of(n, Over::Tcp, false, |_| (), body);
        assert!(verdict.starts_with(&format!("Rank {who} is behind")), "{n} ranks: {verdict}");
    }
}

const ALL: [Over; 3] = [Over::SharedMemory, Over::Tcp, Over::Both];

fn busy() {
    let end = Instant::now() + TIMEOUT + MORE;
    while Instant::now() < end {
        std::hint::spin_loop();
    }
}

#[test]
fn a_rank_that_computes_is_named_by_all() {
    for over in ALL {
        let verdict = threads(4, over, true, |c| {
            if c.rank() == 2 {
                busy();
            }
            c.all_reduce_in_place(&mut [1.0f32; 5], Reduction::Sum)
        });
        let start = "Rank 2 is behind: it has been computing for ";
        assert!(verdict.starts_with(start), "{over:?}: {verdict}");
        assert!(verdict.contains("since it ended all_reduce #2 of 3 × uint32, sum; "), "{verdict}");
        let waits = "in all_reduce #3 of 5 × float, sum for ";
        assert!(verdict.contains(waits), "{over:?}: {verdict}");
    }
}

#[test]
fn many_ranks_that_wait_for_another_are_not_blamed() {
    for over in [Over::SharedMemory, Over::Both] {
        let verdict = threads(6, over, true, |c| {
            if c.rank() == 5 {
                std::thread::sleep(TIMEOUT + MORE);
                return Ok(());
            }
            c.broadcast(&mut vec![0u8; 3 << 20], 5)
        });
        assert!(verdict.starts_with("Rank 5 is behind: it has been computing"), "{verdict}");
    }
}

#[test]
fn the_rank_that_is_furthest_behind_is_named_first() {
    // Rank 3 makes no call, rank 2 waits for rank 3 in a receive, and the others wait for rank 2 in
    // barrier #3.
    let verdict = threads(4, Over::SharedMemory, true, |c| {
        let mut token = [0u8; 1];
        match c.rank() {
            3 => {
                std::thread::sleep(TIMEOUT + MORE);
                return Ok(());
            }
            2 => c.recv(&mut token, 3)?,
            _ => {}
        }
        c.barrier()
    });
    assert!(verdict.starts_with("Rank 3 is behind: it has been computing"), "{verdict}");
    let waits = "; rank 2 has been waiting for a message from it in a receive for ";
    assert!(verdict.contains(waits), "{verdict}");
}

#[test]
fn ranks_in_different_calls_are_told_apart_without_checks() {
    for over in ALL {
        // With checks off, messages do not name their call, and all have the same length. So only
        // the stall detector reveals the difference: it compares the calls of all ranks.
        let verdict = threads(4, over, false, |c| match c.rank() {
            1 => c.reduce(&[1u8; 8], &mut [0; 8], Reduction::Sum, 1),
            _ => c.broadcast(&mut [1u8; 8], 1),
        });
        let start = "Rank 1 makes another call than ranks 0, 2, 3: reduce #3 of 8 × uint8, sum, \
                     root 1 (for ";
        assert!(verdict.starts_with(start), "{over:?}: {verdict}");
        assert!(verdict.contains("instead of broadcast #3 of 8 × uint8, root 1; all ranks must"));
    }
}

#[test]
fn a_rank_in_another_collective_is_named() {
    let verdict = threads(3, Over::SharedMemory, false, |c| match c.rank() {
        2 => {
            c.gather(&[1u8; 8], &mut [0; 24], 2)?;
            std::thread::sleep(TIMEOUT + MORE);
            Ok(())
        }
        _ => c.all_reduce_in_place(&mut [1.0f32; 2], Reduction::Sum),
    });
    assert!(verdict.starts_with("Rank 2 makes another call than ranks 0, 1: gather"), "{verdict}");
    assert!(verdict.contains("instead of all_reduce #3 of 2 × float, sum; all ranks must"));
}

#[test]
fn a_deadlock_is_called_a_circle() {
    for over in ALL {
        let verdict = threads(3, over, true, |c| {
            let next = (c.rank() + 1) % 3;
            c.recv(&mut [0u8; 8], next)?;
            c.send(&[0u8; 8], (c.rank() + 2) % 3)
        });
        let start = "Rank 0 is in a circle of 3 ranks that wait for each other: rank 0 waits \
                     in a receive for a message from rank 1 (for ";
        assert!(verdict.starts_with(start), "{over:?}: {verdict}");
        assert!(
            verdict.contains("rank 2 waits in a receive for a message from rank 0"),
            "{verdict}"
        );
    }
}

#[test]
fn a_deadlock_is_reported_rather_than_a_rank_that_computes() {
    let verdict = threads(5, Over::SharedMemory, true, |c| match c.rank() {
        4 => {
            std::thread::sleep(TIMEOUT + MORE);
            Ok(())
        }
        rank => c.recv(&mut [0u8; 8], rank ^ 1),
    });
    assert!(verdict.starts_with("Rank 0 is in a circle of 2 ranks"), "{verdict}");
}

#[test]
fn a_rank_that_does_not_wait_for_its_request_is_named() {
    let verdict = threads(3, Over::SharedMemory, true, |c| {
        let input = vec![1.0f32; 4 << 20];
        if c.rank() == 1 {
            let output = input.clone();
            let request = c.start_all_reduce(input, output, Reduction::Sum)?;
            std::thread::sleep(TIMEOUT + MORE);
            return c.wait(request, TIMEOUT).map(|_| ());
        }
        c.all_reduce(&input, &mut vec![0.0; 4 << 20], Reduction::Sum)
    });
    let start = "Rank 1 is behind: it began all_reduce #3 of 4194304 × float, sum and has not \
                 come back to it for ";
    assert!(verdict.starts_with(start), "{verdict}");
}

/// Makes one call, and then behaves as [`HOW`] and [`WHO`] define.
fn stuck() -> Result<(), Error> {
    let mut communicator = Communicator::from_environment()?;
    let mut sum = [1u32; 3];
    communicator.all_reduce_in_place(&mut sum, Reduction::Sum)?;
    say("working");
    let how = std::env::var(HOW).unwrap_or_default();
    let who = std::env::var(WHO).unwrap_or_default();
    let is_it = who == communicator.rank().to_string();
    match how.as_str() {
        "computes" if is_it => loop {
            std::hint::spin_loop();
        },
        "works" => loop {
            communicator.all_reduce_in_place(&mut sum, Reduction::Max)?;
        },
        _ => communicator.all_reduce_in_place(&mut sum, Reduction::Sum),
    }
}

fn processes(n: u32, how: &str, who: u32, more: &[(&str, &str)]) -> Processes {
    let ranks = Processes::ranks(n, "stuck", |_, command| {
        command.env(HOW, how).env(WHO, who.to_string());
        command.env("FERROCCL_HEARTBEAT", "100ms").envs(more.iter().copied());
    });
    for rank in 0..n as usize {
        ranks.await_text(rank, "working", JOINED);
    }
    ranks
}

fn ends_alike(ended: &[Ended], but: usize) -> String {
    let others: Vec<_> = (0..ended.len()).filter(|rank| *rank != but).collect();
    let first = verdict(ended[others[0]].error());
    for rank in others {
        assert_eq!(verdict(ended[rank].error()), first, "{}", ended[rank].output);
    }
    first.to_owned()
}

#[test]
fn a_rank_in_an_endless_loop_is_named() {
    let ranks = processes(3, "computes", 1, &[("FERROCCL_TIMEOUT", "1.5")]);
    for rank in [0, 2] {
        ranks.await_text(rank, "error: ", stretched(TIMEOUT + MORE + GRACE));
    }
    // The stuck rank dumps its recording although it computes.
    ranks.await_text(1, "ferroccl: rank 1 of 3, process ", stretched(MORE));
    ranks.signal(1, Signal::KILL);
    let ended = ranks.end(JOINED);
    let verdict = ends_alike(&ended, 1);
    assert!(verdict.starts_with("Rank 1 is behind: it has been computing for "), "{verdict}");
    // The recording is dumped with the error.
    let dumped = "ferroccl: rank 0 of 3, process ";
    assert!(ended[0].output.contains(dumped), "{}", ended[0].output);
    let operation = "all_reduce #2 of 3 × uint32, sum, ";
    assert!(ended[0].output.contains(operation), "{}", ended[0].output);
}

#[test]
fn a_rank_that_is_stopped_is_named() {
    for victim in [0, 1, 2] {
        let more = [("FERROCCL_TIMEOUT", "1"), ("FERROCCL_DEAD_AFTER", "20s")];
        let ranks = processes(3, "works", 0, &more);
        ranks.signal(victim, Signal::STOP);
        for rank in (0..3).filter(|rank| *rank != victim) {
            ranks.await_text(rank, "error: ", stretched(TIMEOUT + MORE + GRACE));
        }
        ranks.signal(victim, Signal::CONT);
        let ended = ranks.end(JOINED);
        let verdict = ends_alike(&ended, victim);
        let start = format!("Rank {victim} does not answer: it is stopped, overloaded or cut off");
        assert!(verdict.starts_with(&start), "{verdict}");
        // When the victim wakes up, it gets the same verdict.
        assert_eq!(self::verdict(ended[victim].error()), verdict);
    }
}

mod status {
    use super::*;
    use serde_json::Value;

    fn ferroccl(arguments: &[&str]) -> String {
        let out = Command::new(ccl_harness::command::program()).args(arguments).output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    }

    /// Returns these processes' communicator. The status lists communicators of other tests, too.
    fn group_of(ranks: &Processes, n: usize) -> Value {
        let all: Value = serde_json::from_str(&ferroccl(&["status", "--json"])).unwrap();
        let pids: Vec<_> = (0..n).map(|rank| Value::from(ranks.id(rank))).collect();
        let groups = all["communicators"].as_array().unwrap();
        let ours = |group: &&Value| group["members"][0]["pid"] == pids[0];
        let group = groups.iter().find(ours).unwrap_or_else(|| panic!("{all}")).clone();
        let members = group["members"].as_array().unwrap();
        assert_eq!(members.iter().map(|m| m["pid"].clone()).collect::<Vec<_>>(), pids);
        group
    }

    fn rows(ranks: &Processes) -> String {
        let all = ferroccl(&["status"]);
        let pid = format!(" {} ", ranks.id(0));
        let ours = all.split("communicator ").find(|group| group.contains(&pid));
        ours.unwrap_or_else(|| panic!("{all}")).to_owned()
    }

    #[test]
    fn it_shows_who_computes_and_who_waits() {
        let ranks = processes(3, "computes", 1, &[]);
        std::thread::sleep(Duration::from_millis(1500));
        let group = group_of(&ranks, 3);
        let verdict = group["verdict"].as_str().unwrap();
        let computing =
            verdict.strip_prefix("rank 1 is behind: it has been computing for ").unwrap();
        let seconds: f64 = computing.split(' ').next().unwrap().parse().unwrap();
        assert!(seconds >= 1.0, "{verdict}");
        let states: Vec<_> = (0..3).map(|rank| group["members"][rank]["state"].clone()).collect();
        assert_eq!(states, ["waiting", "computing", "waiting"]);
        let first = &group["members"][0];
        assert_eq!(first["operations"][0]["ended"], true);
        assert_eq!(first["operations"][1]["what"], "all_reduce #2 of 3 × uint32, sum");
        assert_eq!(first["operations"][1]["bytes"], 12);
        assert!(first["waits_for"].to_string().contains(r#""rank":1,"what":"message""#), "{first}");
        let text = rows(&ranks);
        assert!(text.contains("computing"), "{text}");
        assert!(text.contains("rank 1 is behind: it has been computing"), "{text}");
        assert!(text.contains("all_reduce #2 of 3 × uint32, sum"), "{text}");
        // Status of a single process.
        let one = ferroccl(&["status", "--pid", &ranks.id(1).to_string()]);
        assert!(one.contains("1 of 3 ranks are here") && one.contains("computing"), "{one}");
    }

    #[test]
    fn it_shows_stopped_processes_and_working_ones() {
        let ranks = processes(2, "works", 0, &[("FERROCCL_DEAD_AFTER", "60s")]);
        let group = group_of(&ranks, 2);
        assert_eq!(group["verdict"], Value::Null, "{group}");
        ranks.signal(1, Signal::STOP);
        std::thread::sleep(Duration::from_millis(1500));
        let group = group_of(&ranks, 2);
        assert_eq!(group["members"][1]["stopped"], true);
        assert_eq!(group["members"][0]["stopped"], false);
        let verdict = group["verdict"].as_str().unwrap();
        assert!(verdict.starts_with("rank 1 does not answer: it is stopped"), "{verdict}");
        assert!(rows(&ranks).contains("  stopped  "), "{}", rows(&ranks));
        ranks.signal(1, Signal::KILL);
    }

    #[test]
    fn the_examples_of_the_help_work_and_bad_arguments_are_explained() {
        let ranks = processes(2, "works", 0, &[]);
        let help = ferroccl(&["status", "--help"]);
        let examples: Vec<_> =
            help.lines().filter_map(|line| line.strip_prefix("  ferroccl ")).collect();
        assert_eq!(examples.len(), 3, "{help}");
        for example in examples {
            let pid = ranks.id(0).to_string();
            let example = example.replace("4711", &pid);
            let said = ferroccl(&example.split(' ').collect::<Vec<_>>());
            assert!(said.contains(&pid), "{said}");
        }
        let failing = |pid: u32| {
            let mut command = Command::new(ccl_harness::command::program());
            let out = command.args(["status", "--pid", &pid.to_string()]).output().unwrap();
            assert_eq!(out.status.code(), Some(2));
            String::from_utf8(out.stderr).unwrap()
        };
        assert!(failing(u32::MAX).contains("there is no process 4294967295"));
        assert!(failing(std::os::unix::process::parent_id()).contains("has no rank"));
    }

    #[test]
    fn a_signal_causes_a_dump_even_while_the_caller_computes() {
        let file = std::env::temp_dir().join(format!("ferroccl-dump-{}-%r.json", ranks_id()));
        let name = file.to_str().unwrap();
        let ranks = processes(2, "computes", 1, &[("FERROCCL_DUMP", name)]);
        ranks.signal(1, Signal::USR1);
        let path = name.replace("%r", "1");
        let start = Instant::now();
        let dump = loop {
            match std::fs::read_to_string(&path) {
                Ok(text) if text.ends_with('\n') => break text,
                _ => assert!(start.elapsed() < JOINED, "{}", ranks.output(1)),
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        // Ends the ranks before the file is removed: a rank dumps once more when its peer ends.
        drop(ranks);
        std::fs::remove_file(&path).unwrap();
        let dump: Value = serde_json::from_str(&dump).unwrap();
        assert_eq!((&dump["rank"], &dump["state"]), (&Value::from(1), &Value::from("computing")));
        // By default, the dump goes to standard error.
        let ranks = processes(2, "computes", 1, &[]);
        ranks.signal(1, Signal::USR1);
        ranks.await_text(1, "ferroccl: rank 1 of 2, process ", JOINED);
    }

    fn ranks_id() -> String {
        let bytes = ferroccl::bootstrap::random_bytes().unwrap();
        format!("{}-{}", std::process::id(), u32::from_le_bytes([bytes[0], bytes[1], bytes[2], 0]))
    }

    #[test]
    fn the_library_handles_no_signal_if_the_dump_signal_is_0() {
        let ranks = processes(2, "computes", 1, &[("FERROCCL_DUMP_SIGNAL", "0")]);
        ranks.signal(1, Signal::USR1);
        let ended = std::iter::repeat_with(|| ranks.output(0)).find(|output| {
            std::thread::sleep(Duration::from_millis(10));
            output.contains("error: ")
        });
        // The library has no handler for this signal, so the signal ends the process.
        assert!(ended.unwrap().contains("rank 1 failed: died"), "{}", ranks.output(0));
    }
}
