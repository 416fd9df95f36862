//! Ranks that are killed or stopped, that leave, or that call too late or never. The other ranks
//! end soon, each with an error that names the failed rank, and leave nothing behind.

use ccl_harness::processes::{Case, Ended, Processes, arguments, command, say, was_killed};
use ccl_harness::stretched;
use ccl_harness::{config_with, ranks, ranks_with};
use ferroccl::{Communicator, Error, Reduction, launch};
use rustix::process::Signal;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::{Duration, Instant};

pub(crate) const CASES: &[Case] = &[("work", work), ("launched", launched), ("forks", forks)];

/// Variable with the collective of [`work`] and its buffer length in bytes.
pub(crate) const WORK: &str = "FERROCCL_TEST_WORK";
/// Variable with the number of calls of [`work`]; if it is not set, the calls never end.
const TURNS: &str = "FERROCCL_TEST_TURNS";
const JOINED: Duration = Duration::from_secs(60);
/// Promised longest time from a death to the end of all other ranks.
const ENDED: Duration = Duration::from_secs(5);

/// Repeats one kind of call.
pub(crate) fn work() -> Result<(), Error> {
    let mut communicator = Communicator::from_environment()?;
    let work = std::env::var(WORK).unwrap_or_default();
    let (collective, bytes) = work.split_once(' ').unwrap();
    let mut buffer = vec![1u8; bytes.parse().unwrap()];
    let mut output = buffer.clone();
    let turns = std::env::var(TURNS).map_or(u64::MAX, |turns| turns.parse().unwrap());
    for turn in 0..turns {
        match collective {
            "all_reduce" => communicator.all_reduce(&buffer, &mut output, Reduction::Max)?,
            "all_to_all" => communicator.all_to_all(&buffer, &mut output)?,
            "broadcast" => communicator.broadcast(&mut buffer, 1)?,
            "barrier" => communicator.barrier()?,
            other => panic!("unknown collective {other}"),
        }
        if turn == 20 {
            say("working");
        }
    }
    Ok(())
}

/// Starts four ranks as `-g 4` of a perf program does. Each of them runs [`work`].
#[expect(clippy::exit, reason = "the launcher's status is that of its ranks")]
fn launched() -> Result<(), Error> {
    if std::env::var_os("FERROCCL_RANK").is_some() {
        return work();
    }
    let exit = launch::spawn_local(4, &std::env::current_exe().unwrap(), &arguments())?;
    say(&format!("ended {exit:?}"));
    std::process::exit(i32::from(exit.code));
}

/// Forks in the middle of a call on borrowed memory. The child releases everything and ends.
fn forks() -> Result<(), Error> {
    let mut communicator = Communicator::from_environment()?;
    let mut buffer = vec![1u32; 2 << 20];
    // This call connects all ranks, so the next call has messages in flight as soon as it starts.
    communicator.all_reduce_in_place(&mut buffer, Reduction::Max)?;
    let mut child = -1;
    let result = communicator.scope(|scope| {
        let started = scope.start_all_reduce_in_place(&mut buffer, Reduction::Sum);
        // SAFETY: the child calls nothing but destructors and `_exit`; no lock that they take is
        // held by another thread of this process.
        child = unsafe { libc::fork() };
        started.map(drop)
    });
    if child == 0 {
        let is_told = matches!(result, Err(Error::Forked));
        // The child releases the buffer first. If its communicator still used the buffer, dropping
        // the communicator would fail.
        drop(buffer);
        drop(communicator);
        // SAFETY: `_exit` ends this process and nothing else.
        unsafe { libc::_exit(if is_told { 7 } else { 8 }) };
    }
    result??;
    assert!(buffer.iter().all(|sum| *sum == communicator.ranks()));
    let mut status = 0;
    // SAFETY: `child` is a child of this process, and the call writes only to `status`.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 7, "child status {status:#x}");
    communicator.all_reduce_in_place(&mut buffer, Reduction::Max)?;
    communicator.barrier()
}

#[test]
fn a_forked_child_does_not_disturb_the_communicator() {
    for transport in ["shm", "tcp"] {
        let ranks = Processes::ranks(2, "forks", |_, command| {
            command.env("FERROCCL_TRANSPORT", transport);
        });
        for ended in ranks.end(JOINED) {
            assert!(ended.status.success(), "{transport}: {}", ended.output);
        }
    }
}

/// Checks that each survivor has ended with an error of its own that names the victim.
pub(crate) fn assert_named(ended: &[Ended], victim: usize) {
    for (rank, ended) in ended.iter().enumerate() {
        if rank == victim {
            assert!(was_killed(ended), "{ended:?}");
            continue;
        }
        assert_eq!(ended.status.code(), Some(1), "{}", ended.output);
        let error = ended.error();
        assert!(error.starts_with(&format!("rank {rank} in ")), "{error}");
        assert!(error.contains(&format!(": rank {victim} failed: ")), "{error}");
    }
}

/// Resources that could outlive their processes.
struct Traces {
    pids: Vec<u32>,
    sockets: BTreeSet<String>,
}

impl Traces {
    /// Collects the resources of living processes, and checks that each process maps a memfd and
    /// uses no file under /dev/shm.
    fn of(pids: Vec<u32>) -> Traces {
        let mut inodes = BTreeSet::new();
        for pid in &pids {
            let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
            assert!(maps.contains("memfd:"), "no mapping is a memfd: {maps}");
            assert!(!maps.contains("/dev/shm"), "{maps}");
            for entry in fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten() {
                let Ok(target) = fs::read_link(entry.path()) else { continue };
                let target = target.to_string_lossy().into_owned();
                assert!(!target.starts_with("/dev/shm"), "{target}");
                let inode = target.strip_prefix("socket:[").and_then(|t| t.strip_suffix(']'));
                inodes.extend(inode.map(str::to_owned));
            }
        }
        let sockets = unix_sockets().into_iter().filter(|(inode, _)| inodes.contains(inode));
        Traces { pids, sockets: sockets.map(|(_, name)| name).collect() }
    }

    /// Waits until all processes have ended, and checks that their sockets are gone.
    fn assert_gone(&self) {
        let start = Instant::now();
        for pid in &self.pids {
            // A process that has ended stays a zombie (state Z) until it is reaped.
            while fs::read_to_string(format!("/proc/{pid}/stat"))
                .is_ok_and(|stat| !stat.contains(") Z "))
            {
                assert!(start.elapsed() < stretched(ENDED), "process {pid} is left running");
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        let left: Vec<_> =
            unix_sockets().into_values().filter(|name| self.sockets.contains(name)).collect();
        assert!(left.is_empty(), "sockets are left: {left:?}");
    }
}

/// Returns a map from the inode to the name of each named Unix socket of this host.
fn unix_sockets() -> BTreeMap<String, String> {
    let table = fs::read_to_string("/proc/net/unix").unwrap();
    let named = |line: &str| {
        let mut words = line.split_whitespace().skip(6);
        Some((words.next()?.to_owned(), words.next()?.to_owned()))
    };
    table.lines().filter_map(named).collect()
}

pub(crate) fn working(n: u32, work: &str, more: &[(&str, &str)]) -> Processes {
    let ranks = Processes::ranks(n, "work", |_, command| {
        command.env(WORK, work).envs(more.iter().copied());
    });
    for rank in 0..n as usize {
        ranks.await_text(rank, "working", JOINED);
    }
    ranks
}

fn killed(work: &str, victims: &[usize]) {
    for &victim in victims {
        let ranks = working(4, work, &[]);
        let traces = Traces::of((0..4).map(|rank| ranks.id(rank)).collect());
        ranks.signal(victim, Signal::KILL);
        assert_named(&ranks.end(stretched(ENDED)), victim);
        traces.assert_gone();
    }
}

#[test]
fn a_rank_killed_in_a_large_all_reduce_is_named() {
    killed("all_reduce 1048576", &[0, 1, 3]);
}

#[test]
fn a_rank_killed_in_a_small_all_reduce_is_named() {
    killed("all_reduce 8", &[0, 1, 3]);
}

#[test]
fn a_rank_killed_in_an_all_to_all_is_named() {
    killed("all_to_all 400000", &[0, 3]);
}

/// Checks that the root of a broadcast, rank 1, also learns of a death, although the root waits for
/// no rank as long as slots are free.
#[test]
fn a_rank_killed_in_a_broadcast_is_named() {
    killed("broadcast 300000", &[0, 1, 3]);
    killed("broadcast 8", &[1, 2]);
}

/// Returns a map from the rank to the process id of each child of a process.
fn children(parent: u32) -> BTreeMap<usize, u32> {
    let tasks = fs::read_dir(format!("/proc/{parent}/task")).unwrap().flatten();
    let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    let pids: Vec<u32> = lists
        .flat_map(|list| list.split(' ').filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect();
    let rank = |pid: &u32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
        let mut variables = environment.split(|byte| *byte == 0);
        let rank = variables.find_map(|variable| variable.strip_prefix(b"FERROCCL_RANK="))?;
        String::from_utf8_lossy(rank).parse().ok()
    };
    pids.into_iter().filter_map(|pid| Some((rank(&pid)?, pid))).collect()
}

#[test]
fn a_rank_killed_under_the_launcher_is_named() {
    for (victim, work) in [(0, "all_reduce 1048576"), (1, "all_reduce 8"), (3, "broadcast 100000")]
    {
        let mut launcher = command("launched");
        launcher.env(WORK, work);
        let launcher = Processes::start([launcher]);
        let start = Instant::now();
        while launcher.output(0).matches("working").count() < 4 {
            assert!(start.elapsed() < JOINED, "{}", launcher.output(0));
            std::thread::sleep(Duration::from_millis(5));
        }
        let ranks = children(launcher.id(0));
        assert_eq!(ranks.len(), 4, "{ranks:?}");
        let traces = Traces::of(ranks.values().copied().collect());
        let pid = rustix::process::Pid::from_raw(ranks[&victim] as i32).unwrap();
        rustix::process::kill_process(pid, Signal::KILL).unwrap();
        let ended = launcher.end(stretched(ENDED)).remove(0);
        let text = format!("ended LocalExit {{ code: 137, failed: Some({victim}) }}");
        assert!(ended.output.contains(&text), "{}", ended.output);
        assert_eq!(ended.status.code(), Some(137));
        for rank in (0..4).filter(|rank| *rank != victim) {
            let front = if rank == 0 { String::new() } else { format!("[rank {rank}] ") };
            let start = format!("{front}error: rank {rank} in ");
            let line = ended.output.lines().find(|line| line.starts_with(&start));
            let line = line.unwrap_or_else(|| panic!("no line with {start:?}: {}", ended.output));
            assert!(line.contains(&format!(": rank {victim} failed: ")), "{line}");
        }
        traces.assert_gone();
    }
}

const SHORT_LIVES: [(&str, &str); 2] =
    [("FERROCCL_HEARTBEAT", "100ms"), ("FERROCCL_DEAD_AFTER", "1s")];

#[test]
fn a_rank_that_is_stopped_for_long_counts_as_dead() {
    for victim in [0, 2] {
        let ranks = working(4, "all_reduce 100000", &SHORT_LIVES);
        ranks.signal(victim, Signal::STOP);
        for rank in (0..4).filter(|rank| *rank != victim) {
            ranks.await_text(rank, "error: ", stretched(ENDED));
        }
        ranks.signal(victim, Signal::CONT);
        for (rank, ended) in ranks.end(stretched(ENDED)).iter().enumerate() {
            assert_eq!(ended.status.code(), Some(1), "{}", ended.output);
            let named = format!("rank {victim} failed: ");
            assert!(rank == victim || ended.error().contains(&named), "{}", ended.output);
            assert!(rank != victim || ended.error().contains("failed"), "{}", ended.output);
        }
    }
}

#[test]
fn a_rank_that_is_stopped_for_a_moment_goes_on() {
    let ranks = working(3, "all_reduce 4000", &[(TURNS, "20000")]);
    ranks.signal(1, Signal::STOP);
    std::thread::sleep(Duration::from_secs(1));
    ranks.signal(1, Signal::CONT);
    for ended in ranks.end(JOINED) {
        assert!(ended.status.success() && ended.output.contains("\nwell"), "{}", ended.output);
    }
}

#[test]
fn a_rank_that_leaves_is_named() {
    for leaver in [0, 1] {
        let errors = ranks(3, move |c| {
            if c.rank() == leaver {
                return String::new();
            }
            let mut value = [1.0f32];
            c.all_reduce_in_place(&mut value, Reduction::Sum).unwrap_err().to_string()
        });
        for (rank, error) in errors.iter().enumerate().filter(|(rank, _)| *rank != leaver as usize)
        {
            assert!(error.contains(&format!("rank {leaver} ")), "rank {rank}: {error}");
            assert!(error.contains("left the communicator"), "rank {rank}: {error}");
        }
    }
}

/// A rank that leaves after its part of a reduce, while the root waits for a late rank, has not
/// failed.
#[test]
fn a_rank_that_leaves_after_its_part_of_a_reduce_does_not_count_as_failed() {
    ranks(3, |c| {
        if c.rank() == 0 {
            std::thread::sleep(Duration::from_millis(500));
        }
        let mut sum = [0u32; 5];
        c.reduce(&[c.rank() + 1; 5], &mut sum, Reduction::Sum, 2).unwrap();
        assert!(c.rank() != 2 || sum == [6; 5]);
    });
}

/// A deadline's error names only a rank whose message is missing.
#[test]
fn a_deadline_names_only_ranks_whose_message_is_missing() {
    let impatient = config_with(|config| config.timeout = Duration::from_secs(2));
    let errors = ranks_with(6, impatient, |c| {
        if c.rank() == 5 {
            std::thread::sleep(Duration::from_secs(5));
            return String::new();
        }
        let mut sum = [0u8];
        match c.reduce(&[1], &mut sum, Reduction::Sum, 0) {
            Ok(()) => String::new(),
            Err(error) => error.to_string(),
        }
    });
    assert!(errors[0].contains("waiting for a message from rank 5."), "{}", errors[0]);
}

#[test]
fn a_rank_that_calls_too_late_is_named() {
    let impatient = config_with(|config| config.timeout = Duration::from_secs(1));
    let errors = ranks_with(3, impatient, |c| {
        let begun = Instant::now();
        if c.rank() == 2 {
            std::thread::sleep(Duration::from_secs(2));
        }
        let error = c.barrier().unwrap_err().to_string();
        (error, begun.elapsed())
    });
    for (error, took) in &errors[..2] {
        assert!(error.contains("a message from rank 2"), "{error}");
        assert!(*took < stretched(ENDED), "{took:?}");
    }
    // Ranks 0 and 1 both wait for rank 2. The rank that reaches its deadline first reports a
    // failure, which ends the other rank's call too, perhaps in less than 1 s.
    let longest = errors[0].1.max(errors[1].1);
    assert!(longest > Duration::from_millis(900), "{longest:?}");
    let (late, _) = &errors[2];
    assert!(late.contains("no progress for"), "the late rank does not learn the reason: {late}");
}

/// Every call after a failure ends at once with the same cause.
#[test]
fn a_broken_communicator_stays_broken_and_says_why() {
    let errors = ranks(2, |c| {
        if c.rank() == 1 {
            return Vec::new();
        }
        (0..3).map(|_| c.barrier().unwrap_err()).collect()
    });
    let what = |error: &Error| (error.failed_rank(), error.last_completed());
    for error in &errors[0][1..] {
        assert!(matches!(error, Error::Broken { .. }), "{error}");
        assert_eq!(error.to_string(), errors[0][1].to_string());
        assert_eq!((what(error), what(error)), (what(&errors[0][0]), (Some(1), Some(0))));
        assert!(error.to_string().contains("left the communicator"), "{error}");
    }
}

/// All survivors of a failure report the same cause and the same last completed operation.
#[test]
fn survivors_agree_on_the_last_operation() {
    let agreed = ranks(4, |c| {
        for _ in 0..3 {
            c.barrier().unwrap();
        }
        std::thread::sleep(Duration::from_secs(1));
        if c.rank() == 1 {
            c.abort_handle().abort("disk full");
        }
        let verdict = c.agree(stretched(ENDED)).unwrap();
        let error = c.barrier().unwrap_err().to_string();
        (verdict, error)
    });
    for (verdict, error) in &agreed {
        assert_eq!(verdict, &agreed[0].0);
        assert_eq!((verdict.last_completed, verdict.survivors.as_slice()), (3, &[0, 1, 2, 3][..]));
        assert!(error.contains("disk full"), "{error}");
        assert!(error.contains("the last operation that all survivors completed is #3"), "{error}");
    }
}
