//! Local ranks that this process starts, for example for `-g N` of the perf programs.

use super::LaunchError;
use super::descriptor::tie;
use crate::bootstrap::{Listening, Reach};
use crate::bootstrap::{random_bytes, socket};
use crate::transports;
use crossbeam::channel::{self, Receiver, Sender};
use rustix::event::PollFlags;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Largest number of ranks that are started on one host.
pub const LOCAL_RANKS_MAX: u32 = 512;
/// Time from the first bad end of a rank to SIGTERM for the ranks that still run. During this time,
/// these ranks can end by themselves, with errors of their own.
const GRACE: Duration = Duration::from_secs(5);
/// Time between SIGTERM and SIGKILL.
const LAST_GRACE: Duration = Duration::from_secs(2);
/// Longest wait for the last lines of ended ranks: a grandchild may hold their pipe open.
const DRAIN: Duration = Duration::from_secs(1);
/// Time after the first bad end within which a killed rank counts as the first to fail. The system
/// closes the connections of a killed rank before it reports the end of its process, so other ranks
/// may seem to end earlier.
const TOGETHER: Duration = Duration::from_millis(200);
const LINE_BYTES_MAX: u64 = 64 << 10;

/// Outcome of local ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalExit {
    /// Exit status: 0 if all ranks ended well, else that of the first rank that failed (its exit
    /// code, or 128 + the signal's number). Of ranks that ended at about the same time, a killed
    /// rank counts as the first.
    pub code: u8,
    /// The rank that ended with `code`; none if all ranks ended well.
    pub failed: Option<u32>,
}

/// Runs `program` with `arguments` as ranks `0..ranks` of this host and waits for them all.
///
/// The children find each other by `FERROCCL_*` variables, which the program must read (see
/// [`super::from_environment`]). Only rank 0's standard output is shown. Standard error of
/// the others is shown line by line, with the rank in front. The ranks get the variables that
/// transports ask for
/// ([`TransportKind::rank_environment`](ccl_core::registry::TransportKind::rank_environment)),
/// unless these variables are set. If a rank ends badly, the others have 5 s to end by themselves;
/// then signals end them. The kernel kills all ranks when the thread that called this function
/// ends, and so also when this process dies, for whatever reason.
///
/// # Errors
/// The number of ranks is out of range, or the program cannot be started. After an error, no rank
/// is left running.
pub fn spawn_local<S: AsRef<OsStr>>(
    ranks: u32,
    program: &Path,
    arguments: &[S],
) -> Result<LocalExit, LaunchError> {
    if ranks == 0 || ranks > LOCAL_RANKS_MAX {
        return Err(LaunchError::LocalRanks { ranks });
    }
    let Listening { id, listener } = Listening::new(&Reach::Loopback)?;
    let mut secret = String::new();
    for byte in random_bytes()? {
        // Writing to a String cannot fail.
        let _ = write!(secret, "{byte:02x}");
    }
    let mut listener = Some(OwnedFd::from(listener));
    let mut group = Group::new();
    for rank in 0..ranks {
        let mut command = Command::new(program);
        command
            .args(arguments)
            .env("FERROCCL_RANK", rank.to_string())
            .env("FERROCCL_RANKS", ranks.to_string())
            .env("FERROCCL_LOCAL_RANK", rank.to_string())
            .env("FERROCCL_LOCAL_RANKS", ranks.to_string())
            .env("FERROCCL_COMM_ID", id.endpoints[0].to_string())
            .env("FERROCCL_SECRET", &secret)
            .env_remove("FERROCCL_SECRET_FILE")
            .env_remove("FERROCCL_LISTEN_FD");
        let beneath = transports::all().into_iter().flat_map(|kind| kind.rank_environment);
        command.envs(beneath.copied().filter(|(name, _)| std::env::var_os(name).is_none()));
        let inherited = listener.take();
        if let Some(fd) = &inherited {
            command.env("FERROCCL_LISTEN_FD", fd.as_raw_fd().to_string());
        } else {
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        }
        tie(&mut command, inherited);
        let program = || program.to_owned();
        let spawned = command.spawn().and_then(|child| group.add(rank, child));
        spawned.map_err(|error| LaunchError::Spawn { program: program(), error })?;
    }
    Ok(group.wait())
}

/// The running children. Dropping the group ends them.
struct Group {
    running: Vec<Running>,
    readers: Receiver<()>,
    reader: Option<Sender<()>>,
    /// Ranks that ended badly, in the order in which this process saw their ends.
    failures: Vec<Failure>,
}

#[derive(Clone, Copy)]
struct Failure {
    rank: u32,
    code: u8,
    /// True if a signal ended the rank; false for SIGABRT, because a program may abort on an error
    /// that another rank has caused.
    killed: bool,
    seen: Instant,
}

struct Running {
    rank: u32,
    child: Child,
    /// Descriptor that is readable once the child has ended.
    ended: OwnedFd,
}

impl Group {
    fn new() -> Group {
        let (sender, readers) = channel::unbounded();
        Group { running: Vec::new(), readers, reader: Some(sender), failures: Vec::new() }
    }

    fn add(&mut self, rank: u32, mut child: Child) -> std::io::Result<()> {
        if let (Some(stderr), Some(reader)) = (child.stderr.take(), self.reader.clone()) {
            let name = format!("ferroccl-stderr-{rank}");
            let read = move || {
                pass_on(rank, stderr);
                drop(reader);
            };
            if let Err(error) = std::thread::Builder::new().name(name).spawn(read) {
                end(&mut child);
                return Err(error);
            }
        }
        match pidfd_open(Pid::from_child(&child), PidfdFlags::empty()) {
            Ok(ended) => {
                self.running.push(Running { rank, child, ended });
                Ok(())
            }
            Err(error) => {
                end(&mut child);
                Err(error.into())
            }
        }
    }

    fn wait(mut self) -> LocalExit {
        let mut next = None;
        let mut signal = Signal::TERM;
        while !self.running.is_empty() {
            let left = next.map(|at: Instant| at.saturating_duration_since(Instant::now()));
            let fds: Vec<_> =
                self.running.iter().map(|one| (one.ended.as_fd(), PollFlags::IN)).collect();
            socket::wait(&fds, left.unwrap_or(Duration::from_secs(3600)));
            drop(fds);
            self.reap();
            if !self.failures.is_empty() && next.is_none() {
                next = Some(Instant::now() + GRACE);
            }
            if next.is_some_and(|at| Instant::now() >= at) {
                for one in &self.running {
                    eprintln!("[rank {}] did not end by itself, so a signal ends it", one.rank);
                    // The process id of a child that has ended stays taken until `reap`, so the
                    // signal reaches no other process.
                    let _ = kill_process(Pid::from_child(&one.child), signal);
                }
                signal = Signal::KILL;
                next = Some(Instant::now() + LAST_GRACE);
            }
        }
        self.reader = None;
        // Nobody sends, so this call always fails: as soon as the last reader has ended, or else
        // after `DRAIN`.
        let _ = self.readers.recv_timeout(DRAIN);
        match self.first() {
            Some(first) => LocalExit { code: first.code, failed: Some(first.rank) },
            None => LocalExit { code: 0, failed: None },
        }
    }

    /// Returns the failure that most likely caused the others.
    fn first(&self) -> Option<&Failure> {
        let first = self.failures.first()?;
        let together = |one: &&Failure| one.seen.duration_since(first.seen) < TOGETHER;
        let killed = self.failures.iter().take_while(together).find(|one| one.killed);
        killed.or(Some(first))
    }

    fn reap(&mut self) {
        let failures = &mut self.failures;
        let seen = Instant::now();
        self.running.retain_mut(|one| match one.child.try_wait() {
            Ok(None) => true,
            Ok(Some(status)) => {
                if !status.success() {
                    let by = status.signal();
                    let killed = by.is_some_and(|signal| signal != Signal::ABORT.as_raw());
                    failures.push(Failure { rank: one.rank, code: code(status), killed, seen });
                }
                false
            }
            Err(error) => {
                eprintln!(
                    "[rank {}] has ended, but its status is unknown ({error}), so it counts as \
                     failed; do not ignore SIGCHLD in this program",
                    one.rank
                );
                failures.push(Failure { rank: one.rank, code: 1, killed: false, seen });
                false
            }
        });
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.running.iter_mut().for_each(|one| end(&mut one.child));
    }
}

#[expect(clippy::disallowed_methods, reason = "the child was killed, so the wait ends at once")]
fn end(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}

fn code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

fn pass_on(rank: u32, stderr: ChildStderr) {
    let mut lines = BufReader::new(stderr);
    loop {
        let mut line = format!("[rank {rank}] ").into_bytes();
        match lines.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => {
                if line.last() != Some(&b'\n') {
                    line.push(b'\n');
                }
                // One write per line: lines of two ranks do not mix. Errors are ignored.
                let _ = std::io::stderr().write_all(&line);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{WaitOptions, waitpid};

    #[test]
    fn a_rank_whose_exit_status_is_unknown_counts_as_failed() {
        let mut group = Group::new();
        for (rank, program) in [(0, "true"), (1, "false")] {
            group.add(rank, Command::new(program).spawn().unwrap()).unwrap();
        }
        // Reaps the child, as the system does if SIGCHLD is ignored.
        let taken = Pid::from_child(&group.running[1].child);
        waitpid(Some(taken), WaitOptions::empty()).unwrap();
        assert_eq!(group.wait(), LocalExit { code: 1, failed: Some(1) });
    }

    /// Starts ranks that are shells, each with its script.
    fn shells(scripts: &[&str]) -> Group {
        let mut group = Group::new();
        for (rank, script) in scripts.iter().enumerate() {
            let child = Command::new("sh").args(["-c", script]).spawn().unwrap();
            group.add(rank as u32, child).unwrap();
        }
        group
    }

    /// Starts shells and waits until all have ended, so that one call of `reap` finds all ends. On
    /// a busy host, a launcher may find several ends at once, too.
    fn ended(scripts: &[&str]) -> Group {
        let group = shells(scripts);
        for one in &group.running {
            socket::wait(&[(one.ended.as_fd(), PollFlags::IN)], Duration::from_secs(10));
        }
        group
    }

    #[test]
    fn a_killed_rank_counts_as_the_first_of_ranks_that_end_together() {
        let group = ended(&["exit 1", "kill -9 $$", "exit 3"]);
        assert_eq!(group.wait(), LocalExit { code: 137, failed: Some(1) });
    }

    #[test]
    fn a_rank_that_aborts_does_not_count_as_killed() {
        let group = ended(&["exit 3", "kill -ABRT $$"]);
        assert_eq!(group.wait(), LocalExit { code: 3, failed: Some(0) });
    }

    #[test]
    fn a_rank_that_failed_long_before_another_was_killed_is_the_first() {
        let group = shells(&["sleep 4; kill -9 $$", "exit 3"]);
        assert_eq!(group.wait(), LocalExit { code: 3, failed: Some(1) });
    }
}
