//! One control connection between two ranks, from the first dialling to its end.

use super::caller::Caller;
use super::frame::{Decoder, append_frame};
use super::message::Message;
use super::{FRAME_BYTES_MAX, STRANGER_FRAME_BYTES_MAX};
use ccl_core::time::Instant;
use ccl_core::types::Rank;
use std::time::Duration;

/// Stage of a connection.
#[derive(Debug)]
pub(super) enum Stage {
    /// The driver connects to the rank.
    Dialing(Rank),
    /// This side proves the secret to the rank that was dialled.
    Calling(Rank, Caller),
    /// This side has introduced itself to the rank, and waits for a welcome.
    Introduced(Rank),
    /// The connection was accepted, and its rank is not known yet.
    AtGate,
    /// The connection leads to a neighbour.
    Up(Rank),
    /// The connection is to be closed once everything is sent.
    Closing,
}

/// A connection: its stage, and the bytes under way in both directions.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) stage: Stage,
    pub(super) decoder: Decoder,
    pub(super) outbox: Vec<u8>,
    /// The latest of three times: when the peer's last bytes came, when the connection began, and
    /// when this rank's last stop ended (a rank that was stopped cannot judge a silence).
    pub(super) last_received: Instant,
    /// Lower bound of the time when the peer's last bytes arrived. This rank knows only a bound if
    /// it was stopped when the bytes arrived.
    silent_since: Instant,
    /// End of the peer's last long silence, if it had one.
    spoke_again: Option<Instant>,
}

impl Link {
    pub(super) fn new(stage: Stage, now: Instant) -> Link {
        let decoder = Decoder::new(STRANGER_FRAME_BYTES_MAX);
        Link {
            stage,
            decoder,
            outbox: Vec::new(),
            last_received: now,
            silent_since: now,
            spoke_again: None,
        }
    }

    /// Records bytes that are read `now` and that arrived at `arrived` or later. If the peer was
    /// silent for `long` or more before these bytes, remembers the end of that silence.
    pub(super) fn heard(&mut self, arrived: Instant, now: Instant, long: Duration) {
        self.last_received = now;
        if arrived.since(self.silent_since) >= long {
            self.spoke_again = Some(now);
        }
        self.silent_since = self.silent_since.max(arrived);
    }

    /// Returns whether the peer has been silent for `long` or more, or has ended such a silence
    /// less than `lately` ago.
    pub(super) fn was_silent(&self, now: Instant, long: Duration, lately: Duration) -> bool {
        now.since(self.silent_since) >= long
            || self.spoke_again.is_some_and(|ended| now.since(ended) < lately)
    }

    pub(super) fn send(&mut self, message: &Message) {
        append_frame(&mut self.outbox, &message.encode());
    }

    /// Moves to `stage`. Both sides have proved the secret, so the decoder now admits long frames.
    pub(super) fn set_authenticated(&mut self, stage: Stage) {
        self.stage = stage;
        self.decoder.set_length_max(FRAME_BYTES_MAX);
    }

    /// Returns the neighbour that the connection leads to, if it is up.
    pub(super) fn neighbour(&self) -> Option<Rank> {
        match self.stage {
            Stage::Up(rank) => Some(rank),
            _ => None,
        }
    }

    /// Returns the rank that the connection leads to, or is to lead to.
    pub(super) fn peer_rank(&self) -> Option<Rank> {
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
