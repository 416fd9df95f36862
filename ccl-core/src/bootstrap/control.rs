//! The time after joining: who lives, who left, who failed, and small collective exchanges, over
//! a star with rank 0 in its centre. Payload never goes this way.

use super::frame::{Decoder, append_frame};
use super::message::{Failure, FailureReason, Message};
use super::{BLOB_BYTES_MAX, FRAME_BYTES_MAX};
use crate::time::Instant;
use crate::types::Rank;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use thiserror::Error;

/// When to speak and when to give up on a peer.
#[derive(Clone, Copy, Debug)]
pub struct ControlTiming {
    /// A sign of life is sent so often.
    pub heartbeat: Duration,
    /// A peer that was not heard of for so long is dead.
    pub silence: Duration,
}

impl Default for ControlTiming {
    fn default() -> ControlTiming {
        ControlTiming { heartbeat: Duration::from_millis(500), silence: Duration::from_secs(3) }
    }
}

/// Why an exchange cannot be had.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ControlError {
    /// A rank failed, and with it the communicator.
    #[error("{0}")]
    Failed(Failure),
    /// A rank left in good order and cannot take part any more.
    #[error(
        "rank {rank} has left the communicator in good order and takes no part in this: all \
         ranks must make the same calls"
    )]
    Left {
        /// Who.
        rank: Rank,
    },
    /// The contribution is too long.
    #[error("a contribution of {bytes} bytes is over the {BLOB_BYTES_MAX} of one exchange")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PeerState {
    Alive,
    /// Said goodbye.
    Left,
    /// Its connection is gone, or is to be.
    Gone,
}

#[derive(Debug)]
struct Peer {
    decoder: Decoder,
    outbox: Vec<u8>,
    heard: Instant,
    state: PeerState,
}

/// The exchange in progress.
#[derive(Debug, Default)]
struct Exchange {
    /// Number of the next exchange that this rank starts.
    next: u64,
    /// Rank 0: what came in, by exchange; a member may be one ahead.
    parts: BTreeMap<u64, BTreeMap<Rank, Vec<u8>>>,
    /// The last finished one.
    finished: Option<(u64, Vec<Vec<u8>>)>,
}

/// The state of the control connections of one rank.
#[derive(Debug)]
pub struct Control {
    rank: Rank,
    ranks: u32,
    timing: ControlTiming,
    peers: BTreeMap<Rank, Peer>,
    left: BTreeSet<Rank>,
    failure: Option<Failure>,
    exchange: Exchange,
    heartbeat_next: Instant,
    leaving: bool,
}

impl Control {
    /// The state right after joining: rank 0 is connected with all, every other rank with rank 0.
    #[must_use]
    pub fn new(rank: Rank, ranks: u32, timing: ControlTiming, now: Instant) -> Control {
        let peers = if rank == 0 { 1..ranks } else { 0..1 };
        let peer = |rank| {
            let decoder = Decoder::new(FRAME_BYTES_MAX);
            (rank, Peer { decoder, outbox: Vec::new(), heard: now, state: PeerState::Alive })
        };
        Control {
            rank,
            ranks,
            timing,
            peers: peers.map(peer).collect(),
            left: BTreeSet::new(),
            failure: None,
            exchange: Exchange::default(),
            heartbeat_next: now,
            leaving: false,
        }
    }

    /// The first failure that this rank learned of: the end of the communicator.
    #[must_use]
    pub fn failure(&self) -> Option<&Failure> {
        self.failure.as_ref()
    }

    /// The ranks known to have left in good order.
    #[must_use]
    pub fn left(&self) -> &BTreeSet<Rank> {
        &self.left
    }

    /// What waits to be sent to this peer.
    #[must_use]
    pub fn outbox(&self, peer: Rank) -> &[u8] {
        self.peers.get(&peer).map_or(&[], |peer| &peer.outbox)
    }

    /// The first `bytes` of the outbox of this peer are sent.
    pub fn sent(&mut self, peer: Rank, bytes: usize) {
        if let Some(peer) = self.peers.get_mut(&peer) {
            peer.outbox.drain(..bytes.min(peer.outbox.len()));
        }
    }

    /// Whether this connection is to be closed once its outbox is sent as far as possible. A
    /// member keeps its own open when rank 0 says goodbye: to close it would look like a death.
    #[must_use]
    pub fn is_closing(&self, peer: Rank) -> bool {
        match self.peers.get(&peer).map(|peer| peer.state) {
            None | Some(PeerState::Gone) => true,
            Some(PeerState::Left) => self.rank == 0 || self.leaving,
            Some(PeerState::Alive) => self.rank != 0 && self.leaving,
        }
    }

    /// Whether this peer failed, so that nothing needs to be sent to it any more.
    #[must_use]
    pub fn is_gone(&self, peer: Rank) -> bool {
        self.peers.get(&peer).is_none_or(|peer| peer.state == PeerState::Gone)
    }

    /// Whether everybody else has left or failed, so that nobody needs this rank any more.
    #[must_use]
    pub fn is_alone(&self) -> bool {
        self.peers.values().all(|peer| peer.state != PeerState::Alive)
    }

    /// When [`Control::tick`] is due.
    #[must_use]
    pub fn poll_timeout(&self) -> Instant {
        let silent = self.alive().map(|peer| peer.heard + self.timing.silence).min();
        silent.map_or(self.heartbeat_next, |silent| silent.min(self.heartbeat_next))
    }

    fn alive(&self) -> impl Iterator<Item = &Peer> {
        self.peers.values().filter(|peer| peer.state == PeerState::Alive)
    }

    /// Bytes arrived from this peer.
    pub fn received(&mut self, peer: Rank, mut bytes: &[u8], now: Instant) {
        while let Some(state) = self.peers.get_mut(&peer) {
            state.heard = now;
            let message = match state.decoder.feed(&mut bytes) {
                Ok(None) => return,
                Ok(Some(frame)) => Message::decode(&frame).map_err(|error| error.to_string()),
                Err(error) => Err(error.to_string()),
            };
            match message.and_then(|message| self.step(peer, message)) {
                Ok(()) => {}
                Err(text) => {
                    self.fail(Failure { rank: peer, reason: FailureReason::Protocol { text } });
                    self.gone(peer);
                    return;
                }
            }
        }
    }

    /// The connection to this peer closed or broke. Whatever had arrived must have been handed
    /// in before.
    pub fn hung_up(&mut self, peer: Rank) {
        let alive = self.peers.get(&peer).is_some_and(|peer| peer.state == PeerState::Alive);
        if !alive {
            return;
        }
        self.gone(peer);
        if self.rank == 0 || !self.leaving {
            self.fail(Failure { rank: peer, reason: FailureReason::HungUp });
        }
    }

    /// Time passed. Whatever had arrived must have been handed in before: a process that was
    /// itself stopped for a while finds the heartbeats of the others waiting.
    pub fn tick(&mut self, now: Instant) {
        let silence = self.timing.silence;
        let silent = self
            .peers
            .iter()
            .find(|(_, peer)| peer.state == PeerState::Alive && now.since(peer.heard) >= silence)
            .map(|(rank, peer)| (*rank, now.since(peer.heard)));
        if let Some((rank, silence)) = silent {
            let silence_ms = u32::try_from(silence.as_millis()).unwrap_or(u32::MAX);
            self.fail(Failure { rank, reason: FailureReason::Silent { silence_ms } });
            self.gone(rank);
        }
        if now >= self.heartbeat_next {
            self.heartbeat_next = now + self.timing.heartbeat;
            self.tell_all(&Message::Heartbeat);
        }
    }

    /// Ends the communicator for all ranks: `rank` is to blame, this rank or one it found failed.
    pub fn report(&mut self, rank: Rank, text: String) {
        let reason = if rank == self.rank {
            FailureReason::Aborted { text }
        } else {
            FailureReason::Reported { by: self.rank, text }
        };
        self.fail(Failure { rank, reason });
    }

    /// Leaves in good order: no more is wanted from the others. Rank 0 stays the centre until it
    /// is alone or its process ends.
    pub fn leave(&mut self) {
        if !self.leaving {
            self.leaving = true;
            self.tell_all(&Message::Goodbye);
        }
    }

    /// Starts the next exchange with this rank's part and returns its number.
    ///
    /// # Errors
    /// A rank failed or left, or the part is too long.
    pub fn contribute(&mut self, blob: Vec<u8>) -> Result<u64, ControlError> {
        if blob.len() > BLOB_BYTES_MAX {
            return Err(ControlError::TooLong { bytes: blob.len() });
        }
        let sequence = self.exchange.next;
        self.check(sequence)?;
        self.exchange.next += 1;
        if self.rank == 0 {
            self.exchange.parts.entry(sequence).or_default().insert(0, blob);
            self.finish_exchange(sequence);
        } else {
            self.exchange.parts.clear();
            self.tell(0, &Message::Contribution { sequence, blob });
        }
        Ok(sequence)
    }

    /// The parts of all ranks, in order of rank, once the exchange has ended; `None` before.
    ///
    /// # Errors
    /// A rank failed, or left without its part: the exchange cannot end any more.
    pub fn gathered(&mut self, sequence: u64) -> Result<Option<Vec<Vec<u8>>>, ControlError> {
        match self.exchange.finished.take() {
            Some((finished, parts)) if finished == sequence => return Ok(Some(parts)),
            _ => {}
        }
        self.check(sequence).map(|()| None)
    }

    /// The first rank whose part of this exchange is missing: known to rank 0 alone.
    #[must_use]
    pub fn awaited(&self, sequence: u64) -> Option<Rank> {
        let parts = self.exchange.parts.get(&sequence)?;
        (0..self.ranks).find(|rank| self.rank == 0 && !parts.contains_key(rank))
    }

    fn check(&self, sequence: u64) -> Result<(), ControlError> {
        if let Some(failure) = &self.failure {
            return Err(ControlError::Failed(failure.clone()));
        }
        let parts = self.exchange.parts.get(&sequence);
        let took_part = |rank: &Rank| parts.is_some_and(|parts| parts.contains_key(rank));
        match self.left.iter().find(|rank| !took_part(rank)) {
            Some(rank) => Err(ControlError::Left { rank: *rank }),
            None => Ok(()),
        }
    }

    fn step(&mut self, peer: Rank, message: Message) -> Result<(), String> {
        match (self.rank, message) {
            (_, Message::Heartbeat) => {}
            (_, Message::Goodbye) => self.goodbye(peer),
            (0, Message::Contribution { sequence, blob }) => {
                self.contribution(peer, sequence, blob)?;
            }
            (0, Message::Report(Failure { rank, reason })) => {
                if rank >= self.ranks {
                    return Err(format!("it reports rank {rank} of {}", self.ranks));
                }
                self.fail(Failure { rank, reason });
            }
            (0, _) => return Err("a message that members do not send".to_owned()),
            (_, Message::Gathered { sequence, rank, blob }) => {
                self.gather(sequence, rank, blob)?;
            }
            (_, Message::Left { rank }) => {
                self.left.insert(rank);
            }
            (_, Message::Verdict(failure)) => {
                self.failure.get_or_insert(failure);
            }
            _ => return Err("a message that rank 0 does not send".to_owned()),
        }
        Ok(())
    }

    fn goodbye(&mut self, rank: Rank) {
        self.left.insert(rank);
        if let Some(peer) = self.peers.get_mut(&rank) {
            peer.state = PeerState::Left;
        }
        if self.rank == 0 {
            self.tell_all(&Message::Left { rank });
        }
    }

    fn contribution(&mut self, peer: Rank, sequence: u64, blob: Vec<u8>) -> Result<(), String> {
        // A member starts an exchange only when it has all of the one before.
        let oldest = self.exchange.parts.keys().next().copied().unwrap_or(self.exchange.next);
        if sequence < oldest || sequence > self.exchange.next + 1 {
            return Err(format!("a part of exchange {sequence}, which is not in progress"));
        }
        let parts = self.exchange.parts.entry(sequence).or_default();
        if parts.insert(peer, blob).is_some() {
            return Err(format!("a second part of exchange {sequence}"));
        }
        self.finish_exchange(sequence);
        Ok(())
    }

    /// Rank 0: hands out the parts of an exchange once all are there.
    fn finish_exchange(&mut self, sequence: u64) {
        let complete = |parts: &BTreeMap<Rank, Vec<u8>>| parts.len() == self.ranks as usize;
        if !self.exchange.parts.get(&sequence).is_some_and(complete) {
            return;
        }
        let parts = self.exchange.parts.remove(&sequence).unwrap_or_default();
        let mut bytes = Vec::new();
        let mut all = Vec::with_capacity(parts.len());
        for (rank, blob) in parts {
            let message = Message::Gathered { sequence, rank, blob };
            append_frame(&mut bytes, &message.encode());
            if let Message::Gathered { blob, .. } = message {
                all.push(blob);
            }
        }
        for peer in self.peers.values_mut().filter(|peer| peer.state == PeerState::Alive) {
            peer.outbox.extend_from_slice(&bytes);
        }
        self.exchange.finished = Some((sequence, all));
    }

    /// A member: takes in one part of the exchange that it is waiting for.
    fn gather(&mut self, sequence: u64, rank: Rank, blob: Vec<u8>) -> Result<(), String> {
        // Not `sequence + 1`: a peer may send the last number there is.
        let awaited = self.exchange.next.checked_sub(1);
        if awaited.is_some_and(|awaited| sequence < awaited) {
            // This rank gave up waiting for it and went on.
            return Ok(());
        }
        let parts = self.exchange.parts.entry(sequence).or_default();
        if Some(sequence) != awaited || rank as usize != parts.len() {
            return Err(format!("the part of rank {rank} of exchange {sequence}, out of turn"));
        }
        parts.insert(rank, blob);
        if parts.len() == self.ranks as usize {
            let parts = self.exchange.parts.remove(&sequence).unwrap_or_default();
            self.exchange.finished = Some((sequence, parts.into_values().collect()));
        }
        Ok(())
    }

    /// The first failure counts; rank 0 tells it to all, the one to blame included (it may live),
    /// and a member tells rank 0 what it found itself.
    fn fail(&mut self, failure: Failure) {
        if self.failure.is_some() {
            return;
        }
        let message = if self.rank == 0 {
            Message::Verdict(failure.clone())
        } else {
            Message::Report(failure.clone())
        };
        self.failure = Some(failure);
        self.tell_all(&message);
    }

    fn gone(&mut self, rank: Rank) {
        if let Some(peer) = self.peers.get_mut(&rank) {
            peer.state = PeerState::Gone;
        }
    }

    fn tell(&mut self, rank: Rank, message: &Message) {
        if let Some(peer) = self.peers.get_mut(&rank) {
            // Rank 0 that said goodbye still listens while others finish.
            let listens = peer.state == PeerState::Left && self.rank != 0;
            if peer.state == PeerState::Alive || listens {
                append_frame(&mut peer.outbox, &message.encode());
            }
        }
    }

    fn tell_all(&mut self, message: &Message) {
        let ranks: Vec<_> = self.peers.keys().copied().collect();
        ranks.into_iter().for_each(|rank| self.tell(rank, message));
    }
}
