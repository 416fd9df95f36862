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
    /// Time when the last bytes came from the peer, or when the connection began, or when this rank
    /// last went on after a stop: then it cannot judge the silence before.
    pub(super) last_received: Instant,
    /// Time since which the peer may have been silent. It is not later than the arrival of the
    /// peer's last bytes, even if this rank was stopped when they arrived.
    silent_since: Instant,
    /// Last long silence of the peer, and its end.
    broken: (Duration, Instant),
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
            broken: (Duration::ZERO, now),
        }
    }

    /// Takes note of bytes that have arrived after `ticked`, when this rank was last known to run.
    /// A silence of at least `long` is kept in mind.
    pub(super) fn heard(&mut self, ticked: Instant, now: Instant, long: Duration) {
        self.last_received = now;
        let silence = ticked.since(self.silent_since);
        if silence >= long {
            self.broken = (silence, now);
        }
        self.silent_since = self.silent_since.max(ticked);
    }

    /// Returns the length of the peer's silence. A long one that has ended counts for `long` after
    /// its end.
    pub(super) fn silence(&self, now: Instant, long: Duration) -> Duration {
        let silence = now.since(self.silent_since);
        let (before, ended) = self.broken;
        if now.since(ended) < long { silence.max(before) } else { silence }
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
