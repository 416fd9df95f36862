//! What the survivors of a failure agree on, and the messages by which they do.

use super::message::{Failure, decode_failure, encode_failure};
use super::wire::{MessageError, Reader, Writer};
use crate::types::Rank;

/// What all survivors agree on after a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// How many verdicts the ranks of this communicator reached before this one.
    pub epoch: u64,
    /// The ranks that are dead, in order. Who left in good order is neither here nor among the
    /// survivors.
    pub dead: Vec<Rank>,
    /// What ended the communicator.
    pub cause: Failure,
    /// The number of the last operation that every survivor had completed; later ones are void,
    /// even where they had ended well.
    pub last_completed: u64,
    /// The ranks that can go on together, in order.
    pub survivors: Vec<Rank>,
    /// Where the lowest survivor listens for the others, in case they do: a port at its address.
    pub meeting_port: u16,
}

/// What a coordinator wants to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    /// Promise to heed no lower coordinator, stop completing operations, and say how far you are.
    Collect,
    /// Accept this.
    Accept(Verdict),
}

/// A coordinator's message to all ranks. The coordinator's rank is its ballot: who coordinates
/// is the lowest living rank, so later ones are higher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Number of the verdict to be reached.
    pub epoch: u64,
    /// Who coordinates.
    pub coordinator: Rank,
    /// Counts the messages of this coordinator.
    pub attempt: u32,
    /// What it asks.
    pub question: Question,
    /// The verdict before, for those who have missed it.
    pub previous: Option<Verdict>,
}

/// What a rank answers; ranks in between pass it on to the coordinator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Of the question.
    pub epoch: u64,
    /// Of the question.
    pub coordinator: Rank,
    /// Who answers.
    pub rank: Rank,
    /// The answer.
    pub vote: Vote,
}

/// An answer's content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Vote {
    /// To [`Question::Collect`].
    Promised {
        /// Number of the last operation that ended well here; it stays that.
        completed: u64,
        /// What this rank has accepted before, and from whom.
        accepted: Option<(Rank, Verdict)>,
    },
    /// To [`Question::Accept`].
    Accepted,
}

fn encode_set(w: &mut Writer, ranks: &[Rank]) {
    // A rank of a large communicator is told in one bit: most ranks survive.
    let last = ranks.iter().max().map_or(0, |last| *last as usize + 1);
    let mut bits = vec![0u8; last.div_ceil(8)];
    for rank in ranks {
        bits[*rank as usize / 8] |= 1 << (rank % 8);
    }
    w.bytes(&bits);
}

fn decode_set(r: &mut Reader<'_>) -> Result<Vec<Rank>, MessageError> {
    let bits = r.bytes()?;
    if bits.len() > super::RANKS_MAX as usize / 8 || bits.last() == Some(&0) {
        return Err(MessageError { what: "a set of ranks that nobody would write" });
    }
    let holds = |rank: &usize| bits[rank / 8] & (1 << (rank % 8)) != 0;
    // Below RANKS_MAX: it fits.
    Ok((0..bits.len() * 8).filter(holds).map(|rank| rank as Rank).collect())
}

pub(super) fn encode_verdict<'w>(w: &'w mut Writer, verdict: &Verdict) -> &'w mut Writer {
    w.u64(verdict.epoch).u64(verdict.last_completed).u16(verdict.meeting_port);
    encode_set(w, &verdict.dead);
    encode_set(w, &verdict.survivors);
    encode_failure(w, &verdict.cause)
}

pub(super) fn decode_verdict(r: &mut Reader<'_>) -> Result<Verdict, MessageError> {
    Ok(Verdict {
        epoch: r.u64()?,
        last_completed: r.u64()?,
        meeting_port: r.u16()?,
        dead: decode_set(r)?,
        survivors: decode_set(r)?,
        cause: decode_failure(r)?,
    })
}

fn encode_option<'w, T>(
    w: &'w mut Writer,
    value: Option<&T>,
    encode: impl FnOnce(&'w mut Writer, &T) -> &'w mut Writer,
) -> &'w mut Writer {
    match value {
        None => w.u8(0),
        Some(value) => encode(w.u8(1), value),
    }
}

fn decode_option<T>(
    r: &mut Reader<'_>,
    decode: impl FnOnce(&mut Reader<'_>) -> Result<T, MessageError>,
) -> Result<Option<T>, MessageError> {
    match r.u8()? {
        0 => Ok(None),
        1 => decode(r).map(Some),
        _ => Err(MessageError { what: "neither there nor absent" }),
    }
}

pub(super) fn encode_ask<'w>(w: &'w mut Writer, ask: &Ask) -> &'w mut Writer {
    w.u64(ask.epoch).u32(ask.coordinator).u32(ask.attempt);
    let accept = match &ask.question {
        Question::Collect => None,
        Question::Accept(verdict) => Some(verdict),
    };
    encode_option(w, accept, encode_verdict);
    encode_option(w, ask.previous.as_ref(), encode_verdict)
}

pub(super) fn decode_ask(r: &mut Reader<'_>) -> Result<Ask, MessageError> {
    Ok(Ask {
        epoch: r.u64()?,
        coordinator: r.u32()?,
        attempt: r.u32()?,
        question: decode_option(r, decode_verdict)?.map_or(Question::Collect, Question::Accept),
        previous: decode_option(r, decode_verdict)?,
    })
}

pub(super) fn encode_answer<'w>(w: &'w mut Writer, answer: &Answer) -> &'w mut Writer {
    w.u64(answer.epoch).u32(answer.coordinator).u32(answer.rank);
    match &answer.vote {
        Vote::Accepted => w.u8(1),
        Vote::Promised { completed, accepted } => {
            let pair = |w: &'w mut Writer, (from, verdict): &(Rank, Verdict)| {
                encode_verdict(w.u32(*from), verdict)
            };
            encode_option(w.u8(2).u64(*completed), accepted.as_ref(), pair)
        }
    }
}

pub(super) fn decode_answer(r: &mut Reader<'_>) -> Result<Answer, MessageError> {
    Ok(Answer {
        epoch: r.u64()?,
        coordinator: r.u32()?,
        rank: r.u32()?,
        vote: match r.u8()? {
            1 => Vote::Accepted,
            2 => Vote::Promised {
                completed: r.u64()?,
                accepted: decode_option(r, |r| Ok((r.u32()?, decode_verdict(r)?)))?,
            },
            _ => return Err(MessageError { what: "its vote is unknown" }),
        },
    })
}
