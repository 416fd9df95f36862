//! Who is stuck: what each rank notes of itself, and how the ranks compare these notes when a
//! deadline has passed.
//!
//! [`Inquiry`] collects the notes, [`judge()`] says who holds up the others. Nothing here happens
//! while all is well.

mod inquiry;
mod judge;
#[cfg(test)]
mod tests;

pub(super) use inquiry::Inquiry;
pub use judge::{Sight, Stuck, judge};

use crate::encoding::{List, Text};
use crate::types::Rank;
use serde::{Deserialize, Serialize};

/// Most bytes of the words for an operation.
const WHAT_BYTES_MAX: usize = 160;
/// Most peers that a note names as awaited.
pub const AWAITED_MAX: usize = 12;

/// What a rank is doing, as its own control thread sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Doing {
    /// It is in no operation: its program computes.
    Outside,
    /// It is in an operation and looks for what it waits for.
    Waiting,
    /// It is in an operation that moves.
    Moving,
    /// An operation is open, but nobody drives it: the program does not come back to its request,
    /// or the thread does not run.
    Undriven,
    /// It is in a step that is no operation (a split, an allocation).
    Aside,
}

impl Doing {
    /// Whether an operation is open.
    #[must_use]
    pub fn is_inside(self) -> bool {
        matches!(self, Doing::Waiting | Doing::Moving | Doing::Undriven)
    }
}

/// Whom an operation waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Awaited {
    /// The peer.
    pub peer: Rank,
    /// Whether a message from it is awaited; else room for one at it.
    pub receives: bool,
}

/// What one rank says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// What it is doing.
    pub doing: Doing,
    /// Number of the last collective that it began, 0 before the first.
    pub sequence: u64,
    /// What tells its last operation from others of the same number; 0 for messages, which have
    /// none, and before the first.
    pub call: u64,
    /// Its last operation in words (or the step, if it is [`Doing::Aside`]); empty before the
    /// first.
    #[serde(with = "Text::<WHAT_BYTES_MAX>")]
    pub what: String,
    /// Steps of it that are done, and how many there are.
    pub steps: (u64, u64),
    /// For how long nothing of this has changed, in milliseconds; as exact as heartbeats are
    /// frequent.
    pub unchanged_ms: u32,
    /// Whom it waits for, the first [`AWAITED_MAX`] of them, in order.
    #[serde(with = "List::<AWAITED_MAX>")]
    pub awaited: Vec<Awaited>,
}

/// A note on its way to the rank that asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Noted {
    /// Who asked.
    pub asker: Rank,
    /// Which of its questions.
    pub attempt: u32,
    /// Whose note it is.
    pub rank: Rank,
    /// What it says.
    pub note: Note,
}
