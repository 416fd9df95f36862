//! The time after joining: who lives, who left, who failed, what the survivors agree on, and small
//! collective exchanges, over an overlay in which every rank has a few neighbours. Payload never
//! goes this way. docs/adr/0004-control-plane.md describes the protocol.

use super::agreement::{Agreement, Out};
use super::caller::Caller;
use super::completed::Completed;
use super::exchange::{Exchange, Passed};
use super::facts::Facts;
use super::frame::append_frame;
use super::gate::{ConnectionId, Gate, Knock, Strays};
use super::handshake::Nonce;
use super::identity::Secret;
use super::link::{Link, Stage};
use super::message::{Failure, FailureReason, Message};
use super::verdict::Verdict;
use super::{BLOB_BYTES_MAX, overlay};
use crate::time::Instant;
use crate::types::Rank;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;

/// Most strangers at a control port at once.
const STRANGERS_MAX: usize = 64;
/// Most ranks that a coordinator looks for by itself at once.
const LOOKED_FOR_MAX: usize = 64;

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

/// Why there is no verdict, and will be none for this rank.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NoVerdict {
    /// The others go on without this rank.
    #[error(
        "this rank was declared dead by the others ({0}): it was stopped or cut off for too long, \
         and they go on without it; start it anew"
    )]
    Condemned(Failure),
    /// Too many are silent.
    #[error(
        "{living} ranks are here, but {silent} are silent and could live on behind a broken \
         network: the smaller side must not decide; restore the network and start anew"
    )]
    NoQuorum {
        /// Ranks that this one knows to live.
        living: usize,
        /// Ranks that are silent, but not known to have ended.
        silent: usize,
    },
}

/// The state of the control connections of one rank.
#[derive(Debug)]
pub struct Control {
    rank: Rank,
    ranks: u32,
    secret: Secret,
    timing: ControlTiming,
    gate: Gate,
    links: BTreeMap<ConnectionId, Link>,
    connections: ConnectionId,
    dials: VecDeque<(ConnectionId, Rank)>,
    facts: Facts,
    exchange: Exchange,
    agreement: Agreement,
    completed: Arc<Completed>,
    /// Neighbours from the start that have been connected.
    met: BTreeSet<Rank>,
    /// Parts for neighbours that are still to be met: others may have met all of theirs and begun.
    early: BTreeMap<Rank, Vec<u8>>,
    /// Ranks that could not be reached, and until when they are not tried again.
    shunned: BTreeMap<Rank, Instant>,
    heartbeat_next: Instant,
    ticked: Instant,
    leaving: bool,
}

impl Control {
    /// The state right after joining: nobody is connected yet. `secret` is the communicator's
    /// own; `completed` is set by the data path.
    #[must_use]
    pub fn new(
        rank: Rank,
        ranks: u32,
        secret: Secret,
        timing: ControlTiming,
        completed: Arc<Completed>,
        now: Instant,
    ) -> Control {
        let mut control = Control {
            rank,
            ranks,
            gate: Gate::new(secret.clone(), timing.silence, STRANGERS_MAX),
            secret,
            timing,
            links: BTreeMap::new(),
            connections: 0,
            dials: VecDeque::new(),
            facts: Facts::new(rank, ranks),
            exchange: Exchange::new(rank, ranks),
            agreement: Agreement::new(rank),
            completed,
            met: BTreeSet::new(),
            early: BTreeMap::new(),
            shunned: BTreeMap::new(),
            heartbeat_next: now + timing.heartbeat,
            ticked: now,
            leaving: false,
        };
        control.heal(now);
        control
    }

    /// The first failure that this rank learned of: the end of the communicator.
    #[must_use]
    pub fn failure(&self) -> Option<&Failure> {
        self.facts.first.as_ref()
    }

    /// Whether this rank is known to have left in good order.
    #[must_use]
    pub fn has_left(&self, rank: Rank) -> bool {
        self.facts.left.contains_key(&rank)
    }

    /// The connections at the control port that came to nothing.
    #[must_use]
    pub fn strays(&self) -> Strays {
        self.gate.strays
    }

    /// The neighbours from the start with whom there was no connection yet: joining is complete
    /// when there are none.
    #[must_use]
    pub fn unlinked(&self) -> Vec<Rank> {
        let missing = |rank: &Rank| !self.met.contains(rank) && !self.has_left(*rank);
        overlay::neighbours(self.rank, self.ranks).into_iter().filter(missing).collect()
    }

    /// What the survivors agreed on, unless one of them has died since: then there will be
    /// another verdict.
    ///
    /// # Errors
    /// This rank will learn of none.
    pub fn verdict(&self) -> Result<Option<&Verdict>, NoVerdict> {
        if let Some(failure) = &self.facts.condemned {
            return Err(NoVerdict::Condemned(failure.clone()));
        }
        let stands = |verdict: &&Verdict| {
            !verdict.survivors.iter().any(|rank| self.facts.dead.contains_key(rank))
        };
        let verdict = self.facts.verdict.as_ref().filter(stands);
        if verdict.is_none() && !self.facts.has_quorum() {
            let living = self.facts.living().count();
            return Err(NoVerdict::NoQuorum { living, silent: self.facts.silent().count() });
        }
        Ok(verdict)
    }

    /// Whether this rank coordinates an agreement and the driver is to say where the survivors
    /// can meet.
    #[must_use]
    pub fn wants_meeting_port(&self) -> bool {
        self.agreement.wants_meeting_port()
    }

    /// Where the survivors can meet: a port of this rank (zero: nowhere).
    pub fn set_meeting_port(&mut self, port: u16, now: Instant) {
        self.agreement.meeting_port = Some(port);
        self.consider(false, now);
    }

    /// The next rank to connect to, and what the connection is called.
    pub fn next_dial(&mut self) -> Option<(ConnectionId, Rank)> {
        self.dials.pop_front()
    }

    /// What waits to be sent on this connection.
    #[must_use]
    pub fn outbox(&self, connection: ConnectionId) -> &[u8] {
        self.links.get(&connection).map_or(&[], |link| &link.outbox)
    }

    /// The first `bytes` of the outbox are sent.
    pub fn sent(&mut self, connection: ConnectionId, bytes: usize) {
        if let Some(link) = self.links.get_mut(&connection) {
            link.outbox.drain(..bytes.min(link.outbox.len()));
        }
    }

    /// Whether the driver is to close this connection now; then the machine has forgotten it.
    pub fn is_over(&mut self, connection: ConnectionId) -> bool {
        let over = |link: &Link| link.is_closing() && link.outbox.is_empty();
        if self.links.get(&connection).is_some_and(over) {
            self.links.remove(&connection);
        }
        !self.links.contains_key(&connection)
    }

    /// Whether no connection is left, so that nobody can be told anything.
    #[must_use]
    pub fn is_detached(&self) -> bool {
        self.links.is_empty()
    }

    /// All connections, those that are being made included.
    #[must_use]
    pub fn connections(&self) -> Vec<ConnectionId> {
        self.links.keys().copied().collect()
    }

    /// When [`Control::tick`] is due.
    #[must_use]
    pub fn poll_timeout(&self) -> Instant {
        let up = self.links.values().filter(|link| link.neighbour().is_some());
        let silent = up.map(|link| link.heard + self.timing.silence).min();
        let due = silent.into_iter().chain(self.gate.poll_timeout()).min();
        due.map_or(self.heartbeat_next, |due| due.min(self.heartbeat_next))
    }

    /// Whether a connection to the control port can be accepted now.
    #[must_use]
    pub fn has_room(&self, now: Instant) -> bool {
        self.gate.has_room(now)
    }

    /// A connection to the control port was accepted; `nonce` is fresh randomness. Returns what
    /// it is called.
    pub fn accepted(&mut self, nonce: Nonce, now: Instant) -> ConnectionId {
        let connection = self.enlist(Stage::AtGate, now);
        if let Some(evicted) = self.gate.stand(connection, nonce, now) {
            self.links.remove(&evicted);
        }
        connection
    }

    /// A connection that was asked for stands; `nonce` is fresh randomness.
    pub fn dialed(&mut self, connection: ConnectionId, nonce: Nonce, now: Instant) {
        let Some(link) = self.links.get_mut(&connection) else { return };
        let Stage::Dialing(rank) = link.stage else { return };
        let caller = Caller::new(self.secret.clone(), nonce);
        link.send(&caller.open());
        link.heard = now;
        link.stage = Stage::Calling(rank, caller);
    }

    /// A connection that was asked for failed: it was `refused`, or nobody answered.
    pub fn dial_failed(&mut self, connection: ConnectionId, refused: bool, now: Instant) {
        let Some(link) = self.links.remove(&connection) else { return };
        let Some(rank) = link.towards() else { return };
        // A rank listens as long as it lives. Who does not may have left in good order without
        // our knowledge, but not before it was connected, and a coordinator cannot wait for it.
        let owed = self.agreement.owing(&self.facts, self.timing.heartbeat * 3, now);
        let owed = owed.contains(&rank);
        if refused && (owed || !self.unlinked().is_empty()) {
            self.declare_dead(rank, FailureReason::Refused, None, now);
        } else if owed && now.since(link.heard) >= self.timing.silence {
            self.declare_dead(rank, silent_for(now.since(link.heard)), None, now);
        } else {
            let pause = if self.met.contains(&rank) { 2 } else { 1 };
            self.shunned.insert(rank, now + self.timing.heartbeat * pause);
            self.heal(now);
        }
    }

    /// Bytes arrived.
    pub fn received(&mut self, connection: ConnectionId, mut bytes: &[u8], now: Instant) {
        while self.gate.contains(connection) {
            let Some(knock) = self.gate.received(connection, &mut bytes) else { return };
            self.attend(connection, knock, now);
        }
        while let Some(link) = self.links.get_mut(&connection) {
            if link.is_closing() {
                return;
            }
            link.heard = now;
            let message = match link.decoder.feed(&mut bytes) {
                Ok(None) => return,
                Ok(Some(frame)) => Message::decode(&frame).map_err(|error| error.to_string()),
                Err(error) => Err(error.to_string()),
            };
            if let Err(text) = message.and_then(|message| self.hear(connection, message, now)) {
                self.object(connection, text, now);
            }
        }
    }

    /// The connection closed or broke. Whatever had arrived must have been handed in before.
    pub fn hung_up(&mut self, connection: ConnectionId, now: Instant) {
        if self.gate.closed(connection) {
            self.links.remove(&connection);
            return;
        }
        match self.links.get(&connection).map(|link| &link.stage) {
            Some(Stage::Up(rank)) => {
                let rank = *rank;
                self.links.remove(&connection);
                if !self.leaving {
                    self.declare_dead(rank, FailureReason::HungUp, None, now);
                }
            }
            Some(Stage::Closing) => drop(self.links.remove(&connection)),
            _ => self.dial_failed(connection, false, now),
        }
    }

    /// Time passed. Whatever had arrived must have been handed in before: a process that was
    /// itself stopped for a while finds the heartbeats of the others waiting.
    pub fn tick(&mut self, now: Instant) {
        // Who did not run cannot judge who was silent meanwhile: perhaps all were stopped.
        if now.since(self.ticked) > self.timing.silence / 2 + self.timing.heartbeat {
            self.links.values_mut().for_each(|link| link.heard = now);
        }
        self.ticked = now;
        self.expire(now);
        if now < self.heartbeat_next {
            return;
        }
        self.heartbeat_next = now + self.timing.heartbeat;
        if !self.leaving {
            self.flood(&Message::Heartbeat, None);
            self.shunned.retain(|_, until| now < *until);
            self.consider(true, now);
            self.heal(now);
        }
    }

    fn expire(&mut self, now: Instant) {
        for stranger in self.gate.expire(now) {
            self.links.remove(&stranger);
        }
        let silence = self.timing.silence;
        let late = |link: &Link| now.since(link.heard) >= silence && !link.is_at_gate();
        let late: Vec<_> =
            self.links.iter().filter(|(_, link)| late(link)).map(|(id, _)| *id).collect();
        for connection in late {
            let Some(link) = self.links.get(&connection) else { continue };
            match link.neighbour() {
                Some(rank) if !self.leaving => {
                    let reason = silent_for(now.since(link.heard));
                    self.declare_dead(rank, reason, None, now);
                    // One that has left is no death; nothing more comes from it either way.
                    if self.links.get(&connection).is_some_and(|link| !link.is_closing()) {
                        self.links.remove(&connection);
                    }
                }
                Some(_) => drop(self.links.remove(&connection)),
                None if link.is_closing() => drop(self.links.remove(&connection)),
                None => self.dial_failed(connection, false, now),
            }
        }
    }

    /// Ends the communicator for all ranks: `rank` is to blame, this rank or one it found failed.
    pub fn report(&mut self, rank: Rank, text: String, now: Instant) {
        let reason = if rank == self.rank {
            FailureReason::Aborted { text }
        } else {
            FailureReason::Reported { by: self.rank, text }
        };
        if self.facts.first.is_none() {
            self.learn(Message::Failed(Failure { rank, reason }), None, now);
            self.consider(false, now);
        }
    }

    /// Leaves in good order: no more is wanted from the others. They close the connections.
    pub fn leave(&mut self) {
        if self.leaving {
            return;
        }
        self.leaving = true;
        self.gate.shut();
        let goodbye = Message::Left { rank: self.rank, exchanges: self.exchange.next };
        self.links.retain(|_, link| {
            let known = matches!(link.stage, Stage::Up(_) | Stage::Introduced(_));
            if known {
                link.send(&goodbye);
            }
            known || link.is_closing()
        });
    }

    /// Starts the next exchange with this rank's part and returns its number.
    ///
    /// # Errors
    /// A rank failed or left, or the part is too long.
    pub fn contribute(&mut self, blob: Vec<u8>) -> Result<u64, ControlError> {
        if blob.len() > BLOB_BYTES_MAX {
            return Err(ControlError::TooLong { bytes: blob.len() });
        }
        self.check(self.exchange.next)?;
        let (sequence, passed) = self.exchange.contribute(blob);
        self.pass(passed);
        Ok(sequence)
    }

    /// The parts of all ranks, in order of rank, once the exchange has ended; `None` before.
    ///
    /// # Errors
    /// A rank failed, or left without its part: the exchange cannot end any more.
    pub fn gathered(&mut self, sequence: u64) -> Result<Option<Vec<Vec<u8>>>, ControlError> {
        match self.exchange.collect(sequence) {
            Some(parts) => Ok(Some(parts)),
            None => self.check(sequence).map(|()| None),
        }
    }

    /// The first rank whose part of this exchange is missing.
    #[must_use]
    pub fn awaited(&self, sequence: u64) -> Option<Rank> {
        self.exchange.awaited(sequence)
    }

    fn check(&self, sequence: u64) -> Result<(), ControlError> {
        if let Some(failure) = self.failure() {
            return Err(ControlError::Failed(failure.clone()));
        }
        match self.facts.left.iter().find(|(_, exchanges)| **exchanges <= sequence) {
            Some((rank, _)) => Err(ControlError::Left { rank: *rank }),
            None => Ok(()),
        }
    }

    fn enlist(&mut self, stage: Stage, now: Instant) -> ConnectionId {
        self.connections += 1;
        self.links.insert(self.connections, Link::new(stage, now));
        self.connections
    }

    /// A stranger, or what turns out not to be one.
    fn attend(&mut self, connection: ConnectionId, knock: Knock, now: Instant) {
        let Some(link) = self.links.get_mut(&connection) else { return };
        link.heard = now;
        match knock {
            Knock::Answer(message) => return link.send(&message),
            Knock::Enter(Message::Link { from, to }, _)
                if to == self.rank && from != to && from < self.ranks =>
            {
                return self.welcome(connection, from);
            }
            Knock::Refuse(message) => link.send(&message),
            Knock::Enter(..) => drop(self.gate.malformed()),
            Knock::Drop => {}
        }
        link.stage = Stage::Closing;
    }

    fn welcome(&mut self, connection: ConnectionId, from: Rank) {
        let Some(link) = self.links.get_mut(&connection) else { return };
        let refusal = match self.facts.dead.get(&from) {
            Some(reason) => Some(Message::Dead(Failure { rank: from, reason: reason.clone() })),
            None if self.leaving => {
                Some(Message::Left { rank: self.rank, exchanges: self.exchange.next })
            }
            None => None,
        };
        if let Some(refusal) = refusal {
            link.send(&refusal);
            link.stage = Stage::Closing;
            return;
        }
        link.trust(Stage::Up(from));
        link.send(&Message::Welcome);
        self.greet(connection, from);
    }

    /// Tells a new neighbour all that it may have missed.
    fn greet(&mut self, connection: ConnectionId, rank: Rank) {
        self.met.insert(rank);
        if let Some(link) = self.links.get_mut(&connection) {
            self.facts.log().iter().for_each(|fact| link.send(fact));
            link.outbox.extend(self.early.remove(&rank).unwrap_or_default());
        }
    }

    fn hear(
        &mut self,
        connection: ConnectionId,
        message: Message,
        now: Instant,
    ) -> Result<(), String> {
        let Some(link) = self.links.get_mut(&connection) else { return Ok(()) };
        match (&mut link.stage, message) {
            (Stage::Calling(rank, caller), message) => {
                let rank = *rank;
                if let Some(answer) = caller.step(&message).map_err(|error| error.to_string())? {
                    link.send(&answer);
                } else {
                    link.trust(Stage::Introduced(rank));
                    link.send(&Message::Link { from: self.rank, to: rank });
                }
            }
            (Stage::Introduced(rank), Message::Welcome) => {
                let rank = *rank;
                link.stage = Stage::Up(rank);
                self.greet(connection, rank);
            }
            (Stage::Introduced(_), fact @ (Message::Dead(_) | Message::Left { .. })) => {
                link.stage = Stage::Closing;
                if self.facts.are_ranks(&fact) {
                    self.learn(fact, None, now);
                    self.consider(false, now);
                    self.heal(now);
                }
            }
            (Stage::Up(rank), message) => {
                let rank = *rank;
                return self.heed(connection, rank, message, now);
            }
            _ => return Err("a message out of turn".to_owned()),
        }
        Ok(())
    }

    fn heed(
        &mut self,
        connection: ConnectionId,
        peer: Rank,
        message: Message,
        now: Instant,
    ) -> Result<(), String> {
        if !self.facts.are_ranks(&message) {
            return Err(format!("a message about a rank that is not among the {}", self.ranks));
        }
        match message {
            Message::Heartbeat => return Ok(()),
            Message::Part { sequence, rank, blob } => {
                let passed = self.exchange.take(sequence, rank, blob)?;
                self.pass(passed);
                return Ok(());
            }
            Message::Left { rank, exchanges } => {
                self.learn(Message::Left { rank, exchanges }, Some(connection), now);
                if rank == peer
                    && let Some(link) = self.links.get_mut(&connection)
                {
                    link.stage = Stage::Closing;
                }
            }
            fact @ (Message::Dead(_) | Message::Failed(_)) => {
                self.learn(fact, Some(connection), now);
            }
            Message::Decided(verdict) => self.judge(verdict, Some(connection), now),
            Message::Ask(ask) if !self.leaving => {
                let (facts, completed) = (&self.facts, &self.completed);
                self.agreement.asked(ask, connection, facts, completed, now);
            }
            Message::Answer(answer) => self.agreement.answered(answer),
            Message::Ask(_) => {}
            _ => return Err("a message that no neighbour sends".to_owned()),
        }
        self.consider(false, now);
        Ok(())
    }

    /// A peer broke the protocol.
    fn object(&mut self, connection: ConnectionId, text: String, now: Instant) {
        let neighbour = self.links.get(&connection).and_then(Link::neighbour);
        match neighbour {
            Some(rank) => self.declare_dead(rank, FailureReason::Protocol { text }, None, now),
            // Something else than our rank listens where it did.
            None => self.dial_failed(connection, true, now),
        }
    }

    fn declare_dead(
        &mut self,
        rank: Rank,
        reason: FailureReason,
        source: Option<ConnectionId>,
        now: Instant,
    ) {
        self.learn(Message::Dead(Failure { rank, reason }), source, now);
        self.consider(false, now);
    }

    /// Takes in a fact and, if it is news, passes it on.
    fn learn(&mut self, fact: Message, source: Option<ConnectionId>, now: Instant) {
        if !self.facts.learn(&fact) {
            return;
        }
        self.flood(&fact, source);
        if matches!(fact, Message::Dead(_) | Message::Decided(_)) {
            self.cut();
            self.heal(now);
        }
    }

    fn judge(&mut self, verdict: Verdict, source: Option<ConnectionId>, now: Instant) {
        self.agreement.decided(&verdict);
        self.learn(Message::Decided(verdict), source, now);
    }

    /// Ends the connections with the dead, or all if this rank counts as dead. They have been
    /// told: who lives after all knows why it is alone.
    fn cut(&mut self) {
        let condemned = self.facts.condemned.is_some();
        let facts = &self.facts;
        self.links.retain(|_, link| {
            let Some(rank) = link.towards() else { return true };
            if !condemned && !facts.dead.contains_key(&rank) {
                return true;
            }
            let is_up = link.neighbour().is_some();
            link.stage = Stage::Closing;
            is_up
        });
    }

    fn flood(&mut self, message: &Message, except: Option<ConnectionId>) {
        let body = message.encode();
        for (connection, link) in &mut self.links {
            if link.neighbour().is_some() && Some(*connection) != except {
                append_frame(&mut link.outbox, &body);
            }
        }
    }

    fn pass(&mut self, (part, heirs): Passed) {
        if heirs.is_empty() {
            return;
        }
        let body = part.encode();
        for heir in heirs {
            let link = self.links.values_mut().find(|link| link.neighbour() == Some(heir));
            if let Some(link) = link {
                append_frame(&mut link.outbox, &body);
            } else if !self.met.contains(&heir) {
                append_frame(self.early.entry(heir).or_default(), &body);
            }
        }
    }

    fn consider(&mut self, regular: bool, now: Instant) {
        if self.leaving {
            return;
        }
        self.agreement.consider(&self.facts, &self.completed, regular, now);
        while let Some(out) = self.agreement.next_out() {
            match out {
                Out::Flood(message, except) => self.flood(&message, except),
                Out::Send(connection, message) => {
                    if let Some(link) = self.links.get_mut(&connection)
                        && link.neighbour().is_some()
                    {
                        link.send(&message);
                    }
                }
                Out::Learn(verdict, source) => self.judge(verdict, source, now),
            }
        }
    }

    /// Connects to whom this rank needs and has not: its neighbours at first, later the next ones
    /// behind those who are gone, and those whose answer a coordinator lacks.
    fn heal(&mut self, now: Instant) {
        if self.leaving || self.facts.condemned.is_some() {
            return;
        }
        let (facts, shunned) = (&self.facts, &self.shunned);
        let can_be_had = |rank| !facts.is_gone(rank) && !shunned.contains_key(&rank);
        let mut wanted = overlay::targets(self.rank, self.ranks, can_be_had);
        let met = &self.met;
        // Of two neighbours that want each other at the start, the lower one connects.
        let comes_by_itself = |peer: Rank| {
            let by = overlay::before(self.rank, peer, self.ranks);
            !met.contains(&peer) && by.is_power_of_two() && peer < self.rank
        };
        wanted.retain(|peer| !comes_by_itself(*peer));
        let owing = self.agreement.owing(facts, self.timing.heartbeat * 3, now);
        wanted.extend(owing.into_iter().filter(|rank| can_be_had(*rank)).take(LOOKED_FOR_MAX));
        for rank in wanted {
            if rank != self.rank && !self.links.values().any(|l| l.towards() == Some(rank)) {
                let connection = self.enlist(Stage::Dialing(rank), now);
                self.dials.push_back((connection, rank));
            }
        }
    }

    #[cfg(test)]
    pub(super) fn plant(&mut self, fault: super::agreement::Fault) {
        self.agreement.fault = Some(fault);
    }

    #[cfg(test)]
    pub(super) fn connection_with(&self, rank: Rank) -> Option<ConnectionId> {
        self.links.iter().find(|(_, link)| link.neighbour() == Some(rank)).map(|(id, _)| *id)
    }

    #[cfg(test)]
    pub(super) fn neighbours(&self) -> Vec<Rank> {
        self.links.values().filter_map(Link::neighbour).collect()
    }

    #[cfg(test)]
    pub(super) fn summary(&self) -> String {
        let Facts { dead, left, condemned, verdict, .. } = &self.facts;
        let agreement = &self.agreement;
        format!("dead {dead:?}, left {left:?}, {condemned:?}, {verdict:?}, {agreement:?}")
    }

    #[cfg(test)]
    pub(super) fn last_verdict(&self) -> Option<&Verdict> {
        self.facts.verdict.as_ref()
    }
}

fn silent_for(silence: Duration) -> FailureReason {
    let silence_ms = u32::try_from(silence.as_millis()).unwrap_or(u32::MAX);
    FailureReason::Silent { silence_ms }
}
