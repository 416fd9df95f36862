//! One control connection between two ranks, from the first dialling to its end.

use super::caller::Caller;
use super::frame::{Decoder, append_frame};
use super::message::Message;
use super::{FRAME_BYTES_MAX, STRANGER_FRAME_BYTES_MAX};
use crate::time::Instant;
use crate::types::Rank;

/// How far a connection is.
#[derive(Debug)]
pub(super) enum Stage {
    /// The driver connects it.
    Dialing(Rank),
    /// Proves to the rank that was dialled.
    Calling(Rank, Caller),
    /// Has introduced itself, and waits for a welcome.
    Introduced(Rank),
    /// Accepted; who it is has to show.
    AtGate,
    /// A neighbour's.
    Up(Rank),
    /// To be closed once everything is sent.
    Closing,
}

/// A connection and what is under way on it.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) stage: Stage,
    pub(super) decoder: Decoder,
    pub(super) outbox: Vec<u8>,
    /// When something was heard last; before that, when it began.
    pub(super) heard: Instant,
}

impl Link {
    pub(super) fn new(stage: Stage, now: Instant) -> Link {
        let decoder = Decoder::new(STRANGER_FRAME_BYTES_MAX);
        Link { stage, decoder, outbox: Vec::new(), heard: now }
    }

    pub(super) fn send(&mut self, message: &Message) {
        append_frame(&mut self.outbox, &message.encode());
    }

    /// The other side has proved itself, and this side to it.
    pub(super) fn trust(&mut self, stage: Stage) {
        self.stage = stage;
        self.decoder.set_length_max(FRAME_BYTES_MAX);
    }

    /// The neighbour behind it.
    pub(super) fn neighbour(&self) -> Option<Rank> {
        match self.stage {
            Stage::Up(rank) => Some(rank),
            _ => None,
        }
    }

    /// The rank that it leads to, or is to lead to.
    pub(super) fn towards(&self) -> Option<Rank> {
        match self.stage {
            Stage::Dialing(rank)
            | Stage::Calling(rank, _)
            | Stage::Introduced(rank)
            | Stage::Up(rank) => Some(rank),
            Stage::AtGate | Stage::Closing => None,
        }
    }

    pub(super) fn is_at_gate(&self) -> bool {
        matches!(self.stage, Stage::AtGate)
    }

    pub(super) fn is_closing(&self) -> bool {
        matches!(self.stage, Stage::Closing)
    }
}
