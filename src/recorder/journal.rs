//! Trace of every call of a rank, with the call's beginning and duration. `ferroccl trace` replays
//! traces. A trace is kept only if `FERROCCL_TRACE` asks for it, because tracing reads clocks on
//! the data path.

use std::fs::{File, OpenOptions};
use std::io::Write as _;

use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

use super::snapshot::Call;
use super::{Sent, Shown, Subject, json, now_ns};

/// Number of calls that are collected before they are written to the file.
const CALLS: usize = 4096;

/// A call that has ended.
#[derive(Debug)]
struct Timed {
    number: u64,
    shown: Shown,
    sent: Sent,
    begun_ns: u64,
    ended_ns: u64,
}

/// A rank's calls, collected in memory and written to a file.
#[derive(Debug)]
pub(super) struct Journal {
    path: String,
    /// The file; none after a failure to open or write it. Without a file, no calls are kept.
    file: Option<File>,
    subject: Subject,
    host: String,
    /// Fork generation of the process that records: a forked child writes nothing.
    generation: u32,
    /// Time of day minus the monotonic clock of the host, in nanoseconds.
    epoch_ns: u64,
    calls: Vec<Timed>,
    /// The call that has begun and not ended, with the time of its beginning in nanoseconds.
    open: Option<(u64, Shown, Sent, u64)>,
}

/// One line of the file, for at most [`CALLS`] calls.
#[derive(Serialize)]
struct Line<'a> {
    communicator: String,
    rank: u32,
    ranks: u32,
    process: u32,
    host: &'a str,
    operations: Vec<Operation>,
}

#[derive(Serialize)]
struct Operation {
    number: u64,
    sequence: u64,
    #[serde(flatten)]
    call: Call,
    algorithm: Option<&'static str>,
    bytes: u64,
    /// Messages of a group of sends and receives.
    #[serde(flatten)]
    sent: Sent,
    start_us: u64,
    duration_us: u64,
}

impl Journal {
    /// Makes a journal that writes to a file. `%p` in `name` stands for the process id, `%r` for
    /// the rank.
    pub(super) fn new(name: &str, subject: &Subject, host: String) -> Journal {
        let path = super::dump::path(name, subject.rank);
        // Only a file is opened: opening a pipe can block until another process reads the pipe.
        let is_else = std::fs::metadata(&path).is_ok_and(|about| !about.is_file());
        let opened = match is_else {
            true => Err(std::io::Error::other("it is not a file")),
            false => OpenOptions::new().create(true).append(true).open(&path),
        };
        let file = opened.map_err(|error| give_up(&path, &error)).ok();
        let world = clock_gettime(ClockId::Realtime);
        let world_ns = world.tv_sec as u64 * 1_000_000_000 + world.tv_nsec as u64;
        let epoch_ns = world_ns.saturating_sub(now_ns());
        let subject = subject.clone();
        let (calls, generation) = (Vec::with_capacity(CALLS), ccl_socket::fork::generation());
        Journal { path, file, subject, host, generation, epoch_ns, calls, open: None }
    }

    pub(super) fn begin(&mut self, number: u64, shown: Shown, sent: Sent) {
        self.open = Some((number, shown, sent, now_ns()));
    }

    pub(super) fn end(&mut self) {
        let Some((number, shown, sent, begun_ns)) = self.open.take() else { return };
        if self.file.is_none() {
            return;
        }
        self.calls.push(Timed { number, shown, sent, begun_ns, ended_ns: now_ns() });
        if self.calls.len() == CALLS {
            self.write();
        }
    }

    /// Writes the calls that are kept.
    fn write(&mut self) {
        let Some(file) = &mut self.file else { return };
        if self.generation != ccl_socket::fork::generation() {
            return;
        }
        let operation = |timed: &Timed| {
            let [kind, count, sequence, size] = timed.shown;
            Operation {
                number: timed.number,
                sequence,
                call: Call::of(sequence, kind, count),
                algorithm: super::page::algorithm_of(size),
                bytes: size >> 8,
                sent: timed.sent.clone(),
                start_us: (self.epoch_ns + timed.begun_ns) / 1000,
                duration_us: timed.ended_ns.saturating_sub(timed.begun_ns).div_ceil(1000),
            }
        };
        let line = Line {
            communicator: format!("{:016x}", self.subject.communicator),
            rank: self.subject.rank,
            ranks: self.subject.ranks,
            process: std::process::id(),
            host: &self.host,
            operations: self.calls.iter().map(operation).collect(),
        };
        // One write per line, so that the lines of different ranks do not mix.
        let written = json::line(&line).and_then(|line| file.write_all(&line));
        if let Err(error) = written {
            give_up(&self.path, &error);
            self.file = None;
        }
        self.calls.clear();
    }
}

/// Reports lost calls on standard error, because the program's log may be off.
fn give_up(path: &str, error: &std::io::Error) {
    let text = format!(
        "ferroccl: FERROCCL_TRACE: {path}: {error}; from now on no calls are recorded, and the \
         last line may be incomplete\n"
    );
    // A failure of this write can be reported nowhere.
    let _ = std::io::stderr().write_all(text.as_bytes());
}

impl Drop for Journal {
    fn drop(&mut self) {
        // A rank without calls gets a line, too.
        self.write();
    }
}
