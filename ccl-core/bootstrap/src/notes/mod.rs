//! Notes of each rank on its own progress. Ranks compare them when a deadline has passed, to find
//! the stuck rank.
//!
//! [`find_stuck()`] names the rank that holds up the others. The inquiry that collects the notes
//! (`control/inquiry.rs`) runs only after a deadline has passed.

mod judge;
#[cfg(test)]
mod tests;

pub use judge::{Observed, Stuck, find_stuck};

use ccl_core::encoding::{List, Text};
use ccl_core::types::Rank;
use serde::{Deserialize, Serialize};

/// Largest number of bytes of the text for an operation.
const WHAT_BYTES_MAX: usize = 160;
/// Largest number of peers that a note names as awaited.
pub const AWAITED_MAX: usize = 12;

/// Activity of a rank, as its own control thread sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Activity {
    /// The rank is in no operation: its program computes.
    Outside,
    /// The rank is in an operation and polls for messages or room.
    Waiting,
    /// The rank is in an operation that makes progress.
    Moving,
    /// An operation is open, but nothing drives it: the program neither tests its request nor waits
    /// for it, or the program's thread does not run.
    Undriven,
    /// The rank is in other work of the library, outside operations (a split, an allocation).
    Aside,
}

impl Activity {
    /// Returns whether an operation is open.
    #[must_use]
    pub fn is_inside(self) -> bool {
        matches!(self, Activity::Waiting | Activity::Moving | Activity::Undriven)
    }
}

/// Peer that an operation waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Awaited {
    /// Rank of the peer.
    pub peer: Rank,
    /// True if the operation awaits a message from the peer; false if it awaits room at the peer.
    pub receives: bool,
}

/// Note of one rank about itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// Activity of the rank.
    pub activity: Activity,
    /// Number of the last collective that the rank began, 0 before the first.
    pub sequence: u64,
    /// Value that distinguishes the last operation from others of the same number; 0 for
    /// point-to-point messages and before the first operation.
    pub call: u64,
    /// Last operation in words (or the other work, if the rank is [`Activity::Aside`]); empty
    /// before the first operation.
    #[serde(with = "Text::<WHAT_BYTES_MAX>")]
    pub what: String,
    /// Number of completed steps of the last operation, and number of all its steps.
    pub steps: (u64, u64),
    /// Time for which nothing of this note has changed, in milliseconds; accurate to one heartbeat
    /// interval.
    pub unchanged_ms: u32,
    /// First [`AWAITED_MAX`] peers that the operation waits for. Peers that owe a message come
    /// first.
    #[serde(with = "List::<AWAITED_MAX>")]
    pub awaited: Vec<Awaited>,
}

/// A note on its way to the rank that asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Noted {
    /// Rank that asked.
    pub asker: Rank,
    /// Number of the asker's question.
    pub attempt: u32,
    /// Rank that wrote the note.
    pub rank: Rank,
    /// The note.
    pub note: Note,
}
