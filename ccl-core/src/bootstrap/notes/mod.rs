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

use super::wire::{MessageError, Reader, Writer};
use crate::types::Rank;

/// Most bytes of the words for an operation.
const WHAT_BYTES_MAX: usize = 160;
/// Most peers that a note names as awaited.
pub const AWAITED_MAX: usize = 12;

/// What a rank is doing, as its own control thread sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    const ALL: [Doing; 5] =
        [Doing::Outside, Doing::Waiting, Doing::Moving, Doing::Undriven, Doing::Aside];

    /// Whether an operation is open.
    #[must_use]
    pub fn is_inside(self) -> bool {
        matches!(self, Doing::Waiting | Doing::Moving | Doing::Undriven)
    }
}

/// Whom an operation waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Awaited {
    /// The peer.
    pub peer: Rank,
    /// Whether a message from it is awaited; else room for one at it.
    pub receives: bool,
}

/// What one rank says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
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
    pub what: String,
    /// Steps of it that are done, and how many there are.
    pub steps: (u64, u64),
    /// For how long nothing of this has changed, in milliseconds; as exact as heartbeats are
    /// frequent.
    pub unchanged_ms: u32,
    /// Whom it waits for, the first [`AWAITED_MAX`] of them, in order.
    pub awaited: Vec<Awaited>,
}

/// A note on its way to the rank that asked.
#[derive(Clone, Debug, PartialEq, Eq)]
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

pub(super) fn encode_noted<'w>(w: &'w mut Writer, noted: &Noted) -> &'w mut Writer {
    let Noted { asker, attempt, rank, note } = noted;
    w.u32(*asker).u32(*attempt).u32(*rank);
    w.u8(note.doing as u8).u64(note.sequence).u64(note.call).text(&note.what, WHAT_BYTES_MAX);
    w.u64(note.steps.0).u64(note.steps.1).u32(note.unchanged_ms);
    let awaited = &note.awaited[..note.awaited.len().min(AWAITED_MAX)];
    w.count(awaited.len());
    awaited.iter().fold(w, |w, on| w.u32(on.peer).u8(on.receives.into()))
}

pub(super) fn decode_noted(r: &mut Reader<'_>) -> Result<Noted, MessageError> {
    let (asker, attempt, rank) = (r.u32()?, r.u32()?, r.u32()?);
    let doing = r.u8()?;
    let doing = Doing::ALL.into_iter().find(|known| *known as u8 == doing);
    let doing = doing.ok_or(MessageError { what: "what its rank does is unknown" })?;
    let (sequence, call, what) = (r.u64()?, r.u64()?, r.text(WHAT_BYTES_MAX)?);
    let (steps, unchanged_ms) = ((r.u64()?, r.u64()?), r.u32()?);
    let count = r.count(5)?;
    if count > AWAITED_MAX {
        return Err(MessageError { what: "a list of awaited ranks is too long" });
    }
    let awaited = (0..count).map(|_| decode_awaited(r)).collect::<Result<_, _>>()?;
    let note = Note { doing, sequence, call, what, steps, unchanged_ms, awaited };
    Ok(Noted { asker, attempt, rank, note })
}

fn decode_awaited(r: &mut Reader<'_>) -> Result<Awaited, MessageError> {
    let peer = r.u32()?;
    match r.u8()? {
        receives @ 0..=1 => Ok(Awaited { peer, receives: receives == 1 }),
        _ => Err(MessageError { what: "neither a message nor room" }),
    }
}
