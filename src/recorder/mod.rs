//! The flight recorder: each rank's last operations, in memory that other processes can read while
//! the rank computes, waits, or is stopped (docs/adr/0005-flight-recorder.md).
//!
//! The data path only stores numbers (`Writer`). The control thread samples them whenever it wakes,
//! at least once per heartbeat, and records the time of their changes (`Recorder::sample`).

mod call;
mod dump;
mod journal;
mod json;
mod page;
mod scan;
mod signal;
mod snapshot;
mod words;

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use ccl_bootstrap::{Awaited, Note};
use ccl_core::config::Config;
use ccl_core::types::Rank;
use ccl_memory::{Region, RegionError, Words, record};
use rustix::time::{ClockId, clock_gettime};

use page::{BYTES, ENTRIES, ENTRY_SHOWN, ENTRY_WORDS, Page};

pub(crate) use call::CallRecord;
use journal::Journal;
pub use scan::{Member, Status, status};
pub use snapshot::{Call, Operation, Snapshot, WaitsFor};
pub(crate) use words::MESSAGES;

/// Name of a recording's memory among a process's descriptors.
const NAME: &str = "ferroccl-status";
/// Largest number of attempts to read a recording that is being written.
const LOOKS: u32 = 20;
const BETWEEN_LOOKS: Duration = Duration::from_millis(1);

/// Settings of a recorder.
#[derive(Clone, Debug)]
pub struct Settings {
    /// True if operations are recorded.
    pub is_on: bool,
    /// Target of dumps: `stderr`, `none`, or a file's name, in which `%p` stands for the process id
    /// and `%r` for the rank.
    pub dump: String,
    /// True if SIGUSR1 asks for a dump.
    pub signal: bool,
    /// Target of the trace of every call with its times: a file's name, with `%p` and `%r` as in
    /// `dump`; empty for no trace.
    pub trace: String,
}

impl Settings {
    /// Returns the settings of a configuration.
    #[must_use]
    pub fn of(config: &Config) -> Settings {
        let Config { recorder, dump, dump_signal, trace, .. } = config;
        Settings {
            is_on: *recorder || !trace.is_empty(),
            dump: dump.clone(),
            signal: *dump_signal,
            trace: trace.clone(),
        }
    }
}

impl Default for Settings {
    fn default() -> Settings {
        Settings::of(&Config::default())
    }
}

/// Identity of the rank that records.
#[derive(Clone, Debug)]
pub(crate) struct Subject {
    pub(crate) rank: Rank,
    pub(crate) ranks: u32,
    pub(crate) communicator: u64,
    pub(crate) heartbeat_ms: u64,
}

/// A rank's recording, for all code except the data path, which uses a [`Writer`].
pub(crate) struct Recorder {
    region: Region,
    live: Words<8>,
    sampled: Words<8>,
    ring: Words<{ ENTRY_WORDS * ENTRIES }>,
    settings: Settings,
    /// Findings of the last sample: number and progress of the newest operation, code of the step
    /// that `set_step` records (0 for none), and count of the data path's checks for progress.
    last: Mutex<[u64; 4]>,
    subject: Subject,
    /// Number of signals at the last check, or at the recorder's start; a greater number asks for a
    /// dump.
    signals: AtomicU64,
    /// True once the recording was dumped because the communicator broke.
    ended: AtomicBool,
    /// Descriptor by which other processes find the memory.
    _file: Option<OwnedFd>,
}

impl std::fmt::Debug for Recorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Recorder({:?})", self.region)
    }
}

/// Returns the nanoseconds of the clock that all processes of a host share.
fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

impl Recorder {
    pub(crate) fn new(subject: &Subject, settings: Settings) -> Result<Recorder, RegionError> {
        let (file, region) = match ccl_transport_shm::named_memory(NAME, BYTES) {
            Ok((file, region)) => (Some(file), region),
            Err(error) => {
                tracing::warn!(%error, "other processes cannot see the recording");
                (None, Region::private(BYTES))
            }
        };
        for (at, value) in [
            (page::PROCESS, u64::from(std::process::id())),
            (page::RANK, subject.rank.into()),
            (page::RANKS, subject.ranks.into()),
            (page::HEARTBEAT, subject.heartbeat_ms),
            (page::COMMUNICATOR, subject.communicator),
            (page::JOINED, now_ns()),
        ] {
            region.word64(at)?.store(value, Ordering::Relaxed);
        }
        let host = host();
        let host = &host.as_bytes()[..host.len().min(page::HOST_BYTES)];
        region.write(page::HOST, host)?;
        let recorder = Recorder {
            live: Words::new(&region, page::LIVE)?,
            sampled: Words::new(&region, page::SAMPLED)?,
            ring: Words::new(&region, page::RING)?,
            region,
            last: Mutex::new([u64::MAX; 4]),
            subject: subject.clone(),
            signals: AtomicU64::new(signal::count()),
            ended: AtomicBool::new(false),
            _file: file,
            settings,
        };
        if !recorder.settings.is_on {
            recorder.set_step("unrecorded calls");
        }
        if recorder.settings.signal && subject.ranks > 1 {
            signal::install();
        }
        recorder.sample();
        // Release: a reader that sees the magic number also sees all fields above.
        recorder.region.word64(0)?.store(page::MAGIC, Ordering::Release);
        Ok(recorder)
    }

    /// Returns the data path's writer; none if recording is off. Only one writer may be in use.
    pub(crate) fn writer(&self) -> Option<Writer> {
        let awaited = self.region.part(page::AWAITED, record::bytes(page::AWAITED_WORDS)).ok()?;
        let (live, ring) = (self.live.clone(), self.ring.clone());
        let writer = Writer { ring, live, awaited, number: 0, notes: 0 };
        self.settings.is_on.then_some(writer)
    }

    /// Returns a writer that also records times, to be used instead of a plain one; none if calls
    /// are not traced. Ranks that do not trace use a plain writer, and so pay nothing for tracing.
    /// Only one writer may be in use.
    pub(crate) fn timed(&self) -> Option<Box<Timed>> {
        let trace = &self.settings.trace;
        let writer = self.writer().filter(|_| !trace.is_empty())?;
        let journal = Journal::new(trace, &self.subject, host());
        Some(Box::new(Timed { writer, journal }))
    }

    /// Records the step that the rank is in outside of operations, such as a split. An empty name
    /// ends the step. If recording is off, records `unrecorded calls` for any name.
    pub(crate) fn set_step(&self, step: &str) {
        let number =
            words::step_number(if self.settings.is_on { step } else { "unrecorded calls" });
        self.live.at(page::ASIDE).store(number, Ordering::Relaxed);
    }

    /// Checks for changes since the last sample, and records the time. The control thread calls
    /// this method, and so does each thread that dumps the recording.
    pub(crate) fn sample(&self) {
        let number = |index: usize| self.ring.at(ENTRY_WORDS * index).load(Ordering::Acquire);
        let newest = (0..ENTRIES).max_by_key(|index| number(*index)).unwrap_or(0);
        let progress = self.ring.at(ENTRY_WORDS * newest + page::PROGRESS).load(Ordering::Relaxed);
        let live = |index: usize| self.live.at(index).load(Ordering::Relaxed);
        let found = [number(newest), progress, live(page::ASIDE), live(page::LOOKS)];
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let now = now_ns();
        if found[..3] != last[..3] {
            self.sampled.at(page::CHANGED_AT).store(now, Ordering::Relaxed);
        }
        if found != *last {
            self.sampled.at(page::LOOKED_AT).store(now, Ordering::Relaxed);
        }
        self.sampled.at(page::SAMPLED_AT).store(now, Ordering::Relaxed);
        *last = found;
    }

    /// Returns two copies of the recording, made one after the other.
    fn copies(&self) -> Box<[[u8; BYTES]; 2]> {
        let mut copies = Box::new([[0; BYTES]; 2]);
        retry_until_consistent(|| {
            for copy in &mut *copies {
                // Acquire: the second copy is read after the first.
                std::sync::atomic::fence(Ordering::Acquire);
                // The read cannot fail: the region is as long as the copy.
                let _ = self.region.read(0, copy);
            }
            Page::new(&copies[0], &copies[1]).is_none_or(|page| !page.is_changing())
        });
        copies
    }

    /// Returns a note on the activity of this rank.
    pub(crate) fn note(&self) -> Option<Note> {
        self.sample();
        let copies = self.copies();
        Page::new(&copies[0], &copies[1]).map(|page| page.note(now_ns()))
    }

    /// Returns the activity of this rank, and its last operations.
    pub(crate) fn snapshot(&self) -> Option<Snapshot> {
        let copies = self.copies();
        Page::new(&copies[0], &copies[1]).map(|page| Snapshot::of(&page, now_ns()))
    }

    /// Records why the communicator ended.
    pub(crate) fn fail(&self, why: &str) {
        let why = &why.as_bytes()[..why.len().min(page::FAILURE_BYTES)];
        let _ = self.region.write(page::FAILURE, why);
    }

    /// Dumps the recording if a signal has asked for it since the last call.
    pub(crate) fn dump_on_signal(&self) {
        let count = signal::count();
        if self.signals.swap(count, Ordering::Relaxed) != count {
            self.dump();
        }
    }

    /// Dumps the recording after the communicator broke. The control thread and the thread of a
    /// failing call can both run this method; only the first run dumps.
    pub(crate) fn dump_end(&self) {
        if !self.ended.swap(true, Ordering::Relaxed) {
            self.dump();
        }
    }

    /// Writes the recording to the target of the settings.
    fn dump(&self) {
        self.sample();
        if let Some(snapshot) = self.snapshot() {
            dump::dump(&snapshot, &self.settings.dump);
        }
    }
}

/// Reads any bytes as another process's recording, without a panic.
#[cfg(any(test, fuzzing))]
pub fn fuzzed(data: &[u8]) {
    let (mut first, mut second) = ([0; BYTES], [0; BYTES]);
    let (one, other) = data.split_at(data.len() / 2);
    first[8..][..one.len().min(BYTES - 8)].copy_from_slice(&one[..one.len().min(BYTES - 8)]);
    second.copy_from_slice(&first);
    // A change between the two copies.
    let changed = other.len().min(BYTES - 8);
    second[BYTES - changed..].copy_from_slice(&other[..changed]);
    for copy in [&mut first, &mut second] {
        copy[..8].copy_from_slice(&page::MAGIC.to_le_bytes());
    }
    if let Some(page) = Page::new(&first, &second) {
        let _ = (page.note(u64::MAX), page.failure(), page.host());
        let _ = Snapshot::of(&page, u64::MAX).to_string();
    }
}

/// Calls `look` until it returns true, at most [`LOOKS`] times: a writer can be preempted in the
/// middle of a change.
fn retry_until_consistent(mut look: impl FnMut() -> bool) {
    for _ in 0..LOOKS {
        if look() {
            return;
        }
        std::thread::sleep(BETWEEN_LOOKS);
    }
}

/// Words of an operation at its beginning: kind, count, sequence and size. A collective has the
/// kind and count of its call record, and its sequence is its number among the collectives. A group
/// of sends and receives has the kind `MESSAGES`. The group's count is the number of sends times
/// 2^32 plus the number of receives, and the group's sequence is the number of the last collective
/// before it. The size is the operation's bytes times 256, plus 1 + the algorithm's index in the
/// registry if the operation has an algorithm.
pub(crate) type Shown = [u64; 4];

/// The data path's side of a recording, which stores numbers and reads no clock.
#[derive(Debug)]
pub(crate) struct Writer {
    ring: Words<{ ENTRY_WORDS * ENTRIES }>,
    live: Words<8>,
    awaited: Region,
    /// Number of operations begun.
    number: u64,
    /// Number of writes of the record of awaited ranks.
    notes: u64,
}

impl Writer {
    /// Records the beginning of an operation.
    #[inline]
    pub(crate) fn begin(&mut self, [kind, count, sequence, size]: Shown) {
        self.number += 1;
        let shown: [u64; ENTRY_SHOWN] = [kind, count, sequence, size, 0];
        record::publish_at(&self.ring, self.entry(), self.number, shown);
    }

    #[inline]
    fn entry(&self) -> usize {
        ENTRY_WORDS * (self.number as usize % ENTRIES)
    }

    #[inline]
    fn progress(&self) -> &AtomicU64 {
        self.ring.at(self.entry() + page::PROGRESS)
    }

    /// Records the number of folds of the operation that are done.
    #[inline]
    pub(crate) fn moved(&self, folds: u64) {
        self.progress().store(folds, Ordering::Relaxed);
    }

    /// Records that the operation has ended well.
    #[inline]
    pub(crate) fn end(&self) {
        self.progress().store(page::ENDED, Ordering::Relaxed);
    }

    /// Records that the data path checks for progress. Returns the number of earlier checks.
    pub(crate) fn look(&self) -> u64 {
        self.live.at(page::LOOKS).fetch_add(1, Ordering::Relaxed)
    }

    /// Records the ranks that the operation waits for; the operation has `folds` folds in all.
    pub(crate) fn waits(&mut self, folds: u64, awaited: &[Awaited]) {
        let progress = self.progress().load(Ordering::Relaxed);
        let mut shown = [0; page::AWAITED_WORDS];
        shown[0] = self.number << 32 | progress & 0xffff_ffff;
        shown[1] = folds;
        shown[2] = awaited.len() as u64;
        for (word, on) in shown[3..].iter_mut().zip(awaited) {
            *word = u64::from(on.peer) << 1 | u64::from(on.receives);
        }
        self.notes += 1;
        // This cannot fail: the region is as long as the record.
        let _ = record::publish(&self.awaited, self.notes, shown);
    }
}

/// Messages of a group of sends and receives: peers and bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub(crate) struct Sent {
    /// Receiving peers, with bytes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) sends: Vec<(Rank, u64)>,
    /// Sending peers, with bytes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) recvs: Vec<(Rank, u64)>,
}

/// A [`Writer`] that also records the times of every call and the peers of messages.
#[derive(Debug)]
pub(crate) struct Timed {
    pub(crate) writer: Writer,
    journal: Journal,
}

impl Timed {
    /// Records the beginning of an operation.
    pub(crate) fn begin(&mut self, shown: Shown, sent: Sent) {
        self.writer.begin(shown);
        self.journal.begin(self.writer.number, shown, sent);
    }

    /// Records that the operation has ended well.
    pub(crate) fn end(&mut self) {
        self.writer.end();
        self.journal.end();
    }
}

#[cfg(test)]
mod tests;
