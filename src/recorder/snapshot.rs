//! A recording in the form that people and programs read.

use std::fmt;

use ccl_bootstrap::{Activity, Awaited};
use serde::Serialize;

use super::call::{self, CallRecord};
use super::page::{self, Page};
use super::words;

/// Activity of a rank at one moment, and its last operations.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Snapshot {
    /// Name of the communicator.
    pub communicator: String,
    /// The rank.
    pub rank: u32,
    /// Number of ranks of the communicator.
    pub ranks: u32,
    /// Process id, as the process itself knows it.
    pub process: u32,
    /// Name of the host.
    pub host: String,
    /// Activity: `computing`, `waiting`, `moving`, `undriven` (an operation is open, but the
    /// program does not come back to it), `aside` (in a step that is no operation).
    pub state: &'static str,
    /// The last operation, or the step that the rank is in; empty before the first operation.
    pub last: String,
    /// Time since the last change of the operation, its progress or the step, in seconds.
    pub unchanged_s: f64,
    /// Time since the control thread's last sample, in seconds.
    pub sampled_s_ago: f64,
    /// Peers that the rank waits for, at most the first few.
    pub waits_for: Vec<WaitsFor>,
    /// The reason why the communicator ended, if it has.
    pub failure: Option<String>,
    /// The last operations, oldest first.
    pub operations: Vec<Operation>,
}

/// One peer that an operation waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct WaitsFor {
    /// The peer.
    pub rank: u32,
    /// Kind of wait: `message` for a message from the peer; `room` for a free slot at the peer, or
    /// for an acknowledgement from the peer.
    pub what: &'static str,
}

/// Description of an operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Call {
    /// The operation in words.
    pub what: String,
    /// The collective; none for sends and receives.
    pub collective: Option<&'static str>,
    /// Type of the elements; none for sends and receives.
    pub data_type: Option<&'static str>,
    /// Number of elements of each block; none if blocks have counts of their own.
    pub count: Option<u64>,
    /// The root, for collectives that have one.
    pub root: Option<u32>,
}

impl Call {
    pub(super) fn of(sequence: u64, kind: u64, count: u64) -> Call {
        let what = words::operation(sequence, kind, count);
        let record = CallRecord::of(sequence, kind, count).filter(|_| kind != words::MESSAGES);
        let Some(record) = record else {
            return Call { what, collective: None, data_type: None, count: None, root: None };
        };
        let CallRecord { collective, data_type, root, .. } = record;
        Call {
            what,
            collective: Some(collective.name()),
            data_type: Some(data_type.name()),
            count: (!call::takes_counts(collective)).then_some(count),
            root: collective.has_root().then_some(root),
        }
    }
}

/// An operation of the recording.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Operation {
    /// Number among all operations of the rank, from 1.
    pub number: u64,
    /// Number of the collective; for sends and receives, that of the last collective before them.
    pub sequence: u64,
    /// Description of the operation.
    #[serde(flatten)]
    pub call: Call,
    /// The algorithm of the operation, where there is one.
    pub algorithm: Option<&'static str>,
    /// Bytes of the larger buffer; for sends and receives, the bytes of all messages together.
    pub bytes: u64,
    /// True if the operation has ended.
    pub ended: bool,
    /// Number of bytes that are done, if known.
    pub bytes_done: Option<u64>,
    /// Number of steps done (a step of an operation is one fold); none if the operation has ended.
    pub step: Option<u64>,
    /// Number of all steps; known only while the operation waits.
    pub steps: Option<u64>,
}

impl Snapshot {
    pub(super) fn of(page: &Page<'_>, now_ns: u64) -> Snapshot {
        let note = page.note(now_ns);
        let age = |index: usize| now_ns.saturating_sub(page.sampled(index)) as f64 / 1e9;
        Snapshot {
            communicator: page.communicator(),
            rank: page.rank(),
            ranks: page.head(page::RANKS) as u32,
            process: page.head(page::PROCESS) as u32,
            host: page.host(),
            state: state(note.activity),
            unchanged_s: rounded(age(page::CHANGED_AT)),
            sampled_s_ago: rounded(age(page::SAMPLED_AT)),
            waits_for: note.awaited.iter().map(waits_for).collect(),
            failure: page.failure(),
            operations: page.entries().iter().map(|entry| operation(page, entry)).collect(),
            last: note.what,
        }
    }

    /// Returns the peers that the rank waits for, in words.
    #[must_use]
    pub fn waits_in_words(&self) -> String {
        let words = self.waits_for.iter().map(|on| {
            let preposition = if on.what == "message" { "from" } else { "at" };
            format!("{} {preposition} rank {}", on.what, on.rank)
        });
        words.collect::<Vec<_>>().join(", ")
    }
}

fn rounded(seconds: f64) -> f64 {
    (seconds * 1000.0).round() / 1000.0
}

fn state(activity: Activity) -> &'static str {
    match activity {
        Activity::Outside => "computing",
        Activity::Waiting => "waiting",
        Activity::Moving => "moving",
        Activity::Undriven => "undriven",
        _ => "aside",
    }
}

fn waits_for(on: &Awaited) -> WaitsFor {
    WaitsFor { rank: on.peer, what: if on.receives { "message" } else { "room" } }
}

fn operation(page: &Page<'_>, entry: &page::Entry) -> Operation {
    let ended = entry.has_ended();
    let folds = page.awaited(entry).map(|(folds, ..)| folds).filter(|folds| *folds > 0);
    let done = |folds: u64| {
        let done = u128::from(entry.bytes()) * u128::from(entry.progress) / u128::from(folds);
        u64::try_from(done).unwrap_or(u64::MAX).min(entry.bytes())
    };
    Operation {
        number: entry.number,
        sequence: entry.sequence,
        call: Call::of(entry.sequence, entry.kind, entry.count),
        algorithm: entry.algorithm(),
        bytes: entry.bytes(),
        ended,
        bytes_done: if ended { Some(entry.bytes()) } else { folds.map(done) },
        step: (!ended).then_some(entry.progress),
        steps: if ended { None } else { folds },
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Operation { number, call: Call { what, .. }, bytes, .. } = self;
        write!(f, "{number:>6}  {what}")?;
        if let Some(algorithm) = self.algorithm {
            write!(f, ", {algorithm}")?;
        }
        match (self.step, self.steps, self.bytes_done) {
            (None, ..) => write!(f, ": ended, {bytes} bytes"),
            (Some(step), Some(steps), Some(done)) => {
                write!(f, ": at step {step} of {steps}, {done} of {bytes} bytes done")
            }
            (Some(step), ..) => write!(f, ": at step {step}, {bytes} bytes in all"),
        }
    }
}

impl fmt::Display for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Snapshot { rank, ranks, process, host, state, unchanged_s, .. } = self;
        write!(f, "ferroccl: rank {rank} of {ranks}, process {process} on {host}, communicator ")?;
        write!(f, "{}: {state} for {unchanged_s:.1} s", self.communicator)?;
        if !self.waits_for.is_empty() {
            write!(f, ", waits for {}", self.waits_in_words())?;
        }
        writeln!(f)?;
        if let Some(failure) = &self.failure {
            writeln!(f, "ferroccl: the communicator has ended: {failure}")?;
        }
        for operation in &self.operations {
            writeln!(f, "ferroccl: {operation}")?;
        }
        Ok(())
    }
}
