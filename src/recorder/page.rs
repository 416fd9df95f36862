//! The recording as bytes: its layout, and how a copy of it is read.
//!
//! ```text
//! 0     magic with version, process, rank, ranks, heartbeat, communicator, time of joining, host
//! 128   words of the data path: number of checks for progress, code of the rank's step outside
//!       operations (`words::step`)
//! 192   words of the control thread: time of its last sample, time of the last change that it
//!       found, and time of the last change or check for progress that it found
//! 256   ranks that the operation waits for, as a record (`ccl_memory::record`)
//! 512   the last operations: a ring of such records, each with its progress in word 5
//! 1536  reason why the communicator ended
//! ```

use ccl_bootstrap::{AWAITED_MAX, Activity, Awaited, Note};
use ccl_core::algorithm;
use ccl_core::types::Rank;

use super::call::CallRecord;
use super::words::{self, MESSAGES};

/// Bytes of a recording: one page.
pub(super) const BYTES: usize = 4096;
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"FCCLREC1");

pub(super) const PROCESS: usize = 8;
pub(super) const RANK: usize = 16;
pub(super) const RANKS: usize = 24;
pub(super) const HEARTBEAT: usize = 32;
pub(super) const COMMUNICATOR: usize = 40;
pub(super) const JOINED: usize = 56;
pub(super) const HOST: usize = 64;
pub(super) const HOST_BYTES: usize = 64;
pub(super) const LIVE: usize = 128;
/// Indices of the data path's own words.
pub(super) const LOOKS: usize = 0;
pub(super) const ASIDE: usize = 1;
pub(super) const SAMPLED: usize = 192;
/// Indices of the control thread's own words.
pub(super) const SAMPLED_AT: usize = 0;
pub(super) const CHANGED_AT: usize = 1;
pub(super) const LOOKED_AT: usize = 2;
pub(super) const AWAITED: usize = 256;
/// Words of the record of awaited ranks, after the record's own number: one with the operation's
/// number and progress, one with the operation's total of folds, one with the number of awaited
/// ranks, and one for each of the first [`AWAITED_MAX`] awaited ranks.
pub(super) const AWAITED_WORDS: usize = 3 + AWAITED_MAX;
pub(super) const RING: usize = 512;
pub(super) const ENTRIES: usize = 16;
/// Words of an entry: number; kind; count; sequence; size and algorithm, in one word; progress. The
/// rest is spare.
pub(super) const ENTRY_WORDS: usize = 8;
pub(super) const ENTRY_SHOWN: usize = 5;
/// Index of the word with an entry's progress, which is the number of folds done.
pub(super) const PROGRESS: usize = 5;
/// Progress of an operation that has ended.
pub(super) const ENDED: u64 = u64::MAX;
pub(super) const FAILURE: usize = RING + 8 * ENTRY_WORDS * ENTRIES;
pub(super) const FAILURE_BYTES: usize = 1400;

/// Slack in addition to a heartbeat: if the data path neither checks for progress nor moves for a
/// heartbeat plus this slack, the operation counts as undriven.
const SLACK_MS: u64 = 200;

/// An operation of the ring.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) number: u64,
    pub(super) kind: u64,
    pub(super) count: u64,
    pub(super) sequence: u64,
    size: u64,
    pub(super) progress: u64,
}

impl Entry {
    pub(super) fn bytes(&self) -> u64 {
        self.size >> 8
    }

    pub(super) fn has_ended(&self) -> bool {
        self.progress == ENDED
    }

    pub(super) fn algorithm(&self) -> Option<&'static str> {
        algorithm_of(self.size)
    }

    pub(super) fn what(&self) -> String {
        words::operation(self.sequence, self.kind, self.count)
    }

    /// Returns a hash by which calls of one sequence number are compared; 0 for messages.
    fn call(&self) -> u64 {
        let record = CallRecord::of(self.sequence, self.kind, self.count);
        record.filter(|_| self.kind != MESSAGES).map_or(0, |record| record.tag(true).max(1))
    }
}

/// Returns the name of the algorithm in an operation's size word.
pub(super) fn algorithm_of(size: u64) -> Option<&'static str> {
    let index = ((size & 0xff) as usize).checked_sub(1)?;
    algorithm::all().nth(index).map(|algorithm| algorithm.name)
}

/// Two copies of a recording, made one after the other. If a record has the same number in both
/// copies, and this number is not 0, the record's words in the first copy belong together. An
/// exception is the oldest operation of a full ring ([`Page::entries`]).
pub(super) struct Page<'a> {
    first: &'a [u8; BYTES],
    second: &'a [u8; BYTES],
}

fn word(bytes: &[u8; BYTES], at: usize) -> u64 {
    let word = bytes.get(at..at + 8).and_then(|word| word.try_into().ok());
    word.map_or(0, u64::from_le_bytes)
}

fn entry_at(index: usize) -> usize {
    RING + 8 * ENTRY_WORDS * index
}

impl<'a> Page<'a> {
    /// Returns the recording, if these are copies of one.
    pub(super) fn new(first: &'a [u8; BYTES], second: &'a [u8; BYTES]) -> Option<Page<'a>> {
        (word(first, 0) == MAGIC && word(second, 0) == MAGIC).then_some(Page { first, second })
    }

    /// Returns whether the record of awaited ranks was being written during the copies.
    pub(super) fn is_changing(&self) -> bool {
        let [one, other] = [self.first, self.second].map(|copy| word(copy, AWAITED));
        // During a write the number is 0. It is 0 before the first write, too, but then word 1 is 0
        // as well; the first write makes word 1 nonzero for good.
        one != other || (one == 0 && word(self.second, AWAITED + 8) != 0)
    }

    pub(super) fn head(&self, at: usize) -> u64 {
        word(self.first, at)
    }

    pub(super) fn sampled(&self, index: usize) -> u64 {
        word(self.second, SAMPLED + 8 * index)
    }

    pub(super) fn rank(&self) -> Rank {
        self.head(RANK) as Rank
    }

    pub(super) fn communicator(&self) -> String {
        format!("{:016x}", self.head(COMMUNICATOR))
    }

    pub(super) fn host(&self) -> String {
        text(&self.first[HOST..HOST + HOST_BYTES])
    }

    pub(super) fn failure(&self) -> Option<String> {
        let failure = text(&self.second[FAILURE..FAILURE + FAILURE_BYTES]);
        (!failure.is_empty()).then_some(failure)
    }

    /// Returns the last operations, oldest first.
    pub(super) fn entries(&self) -> Vec<Entry> {
        let mut entries: Vec<Entry> = (0..ENTRIES).filter_map(|index| self.entry(index)).collect();
        // The oldest entry of a full ring is left out. In the ring, this entry follows the newest
        // one, so the writer may have been changing it (`record::publish_at`).
        let newest = (0..ENTRIES).map(|index| word(self.second, entry_at(index))).max();
        let stands = |entry: &Entry| entry.number + ENTRIES as u64 - 1 > newest.unwrap_or(0);
        entries.retain(|entry| entry.number <= u64::MAX >> 1 && stands(entry));
        entries.sort_unstable_by_key(|entry| entry.number);
        entries
    }

    fn entry(&self, index: usize) -> Option<Entry> {
        let at = entry_at(index);
        let read = |word_index: usize| word(self.first, at + 8 * word_index);
        let number = read(0);
        if number == 0 || number != word(self.second, at) {
            return None;
        }
        let (kind, count, sequence, size) = (read(1), read(2), read(3), read(4));
        Some(Entry { number, kind, count, sequence, size, progress: read(PROGRESS) })
    }

    /// Returns an operation's total of folds, the number of ranks that it awaits, and the first
    /// [`AWAITED_MAX`] of these ranks; `None` if the operation has moved since the record of
    /// awaited ranks was written.
    pub(super) fn awaited(&self, entry: &Entry) -> Option<(u64, u64, Vec<Awaited>)> {
        let read = |index: usize| word(self.first, AWAITED + 8 * index);
        let is_whole = read(0) == word(self.second, AWAITED);
        // The record's number counts the writes of the record, so that no number is used twice.
        // Word 1 has the operation's number and progress.
        if !is_whole || read(0) == 0 || read(1) != entry.number << 32 | entry.progress & 0xffff_ffff
        {
            return None;
        }
        let (folds, all) = (read(2), read(3));
        let awaited = (0..(all as usize).min(AWAITED_MAX)).map(|index| {
            let packed = read(4 + index);
            Awaited { peer: (packed >> 1) as Rank, receives: packed & 1 == 1 }
        });
        Some((folds, all, awaited.collect()))
    }

    /// Returns a note on the activity of the rank at this time.
    pub(super) fn note(&self, now_ns: u64) -> Note {
        let unchanged_ms = now_ns.saturating_sub(self.sampled(CHANGED_AT)) / 1_000_000;
        let unchanged_ms = u32::try_from(unchanged_ms).unwrap_or(u32::MAX);
        // Returns the time from the last change (`CHANGED_AT`) or check (`LOOKED_AT`) to the last
        // sample. The time since that sample does not count: later progress of the data path is not
        // sampled yet.
        let stood =
            |index: usize| self.sampled(SAMPLED_AT).saturating_sub(self.sampled(index)) / 1_000_000;
        let aside = word(self.second, LIVE + 8 * ASIDE);
        let mut note = Note {
            activity: Activity::Outside,
            sequence: 0,
            call: 0,
            what: String::new(),
            steps: (0, 0),
            unchanged_ms,
            awaited: Vec::new(),
        };
        if let Some(entry) = self.entries().last() {
            let awaited = self.awaited(entry);
            note.sequence = entry.sequence;
            note.call = entry.call();
            note.what = entry.what();
            if !entry.has_ended() {
                let stands = self.head(HEARTBEAT).saturating_add(SLACK_MS);
                let is_looking = stood(LOOKED_AT) < stands;
                let has_stood = stood(CHANGED_AT) >= stands;
                note.activity = match &awaited {
                    _ if !is_looking && has_stood => Activity::Undriven,
                    None if !has_stood => Activity::Moving,
                    _ => Activity::Waiting,
                };
                let (folds, _, awaited) = awaited.unwrap_or_default();
                note.steps = (entry.progress, folds);
                note.awaited = awaited;
            }
        }
        if aside != 0 && !note.activity.is_inside() {
            note.activity = Activity::Aside;
            words::step(aside).clone_into(&mut note.what);
        }
        note
    }
}

fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_are_no_recording_are_not_read() {
        assert!(Page::new(&[0; BYTES], &[0; BYTES]).is_none());
    }

    #[test]
    fn any_bytes_are_read_without_a_panic() {
        let mut state = 1u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            // Small numbers are often valid values, large ones never are.
            if state >> 62 == 0 { state >> 60 } else { state }
        };
        for round in 0..2_000 {
            let mut page = [0; BYTES];
            for at in page.chunks_exact_mut(8) {
                at.copy_from_slice(&random().to_le_bytes());
            }
            page[..8].copy_from_slice(&MAGIC.to_le_bytes());
            let mut other = page;
            if round % 2 == 0 {
                other[RING..].fill(1);
            }
            let page = Page::new(&page, &other).unwrap();
            let _ = (page.note(u64::MAX), page.failure(), page.host());
            let _ = super::super::snapshot::Snapshot::of(&page, u64::MAX).to_string();
        }
    }
}
