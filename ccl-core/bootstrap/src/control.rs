//! Control plane after joining: liveness, leaving, failures, the agreement of the survivors, and
//! small collective exchanges, over an overlay in which every rank has a few neighbours. Payload
//! never uses the overlay. docs/adr/0004-control-plane.md describes the protocol.

mod inquiry;
mod linking;

use super::agreement::{Action, Agreement};
use super::breach::Breach;
use super::completed::Completed;
use super::exchange::{Exchange, Passed};
use super::facts::Facts;
use super::failure::{Failure, FailureReason};
use super::frame::append_frame;
use super::gate::{ConnectionId, Gate, Strays};
use super::identity::Secret;
use super::link::{Link, Stage};
use super::message::{Message, Roster};
use super::notes::Note;
use super::verdict::Verdict;
use super::{BLOB_BYTES_MAX, overlay};
use ccl_core::time::Instant;
use ccl_core::types::Rank;
use inquiry::Inquiry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;

/// Largest number of connections at a control port that have not introduced themselves yet.
const STRANGERS_MAX: usize = 64;

/// Timing of signs of life, and of giving up on a peer.
#[derive(Clone, Copy, Debug)]
pub struct ControlTiming {
    /// Interval between two signs of life.
    pub heartbeat: Duration,
    /// Silence after which a peer counts as dead.
    pub silence: Duration,
}

impl ControlTiming {
    /// Returns the shortest silence of a neighbour that counts as long. After a long silence, the
    /// network may be split, or the neighbour may be stopped. A neighbour that lives, or was killed
    /// just now, is silent for at most one heartbeat. A neighbour that counts this rank as dead has
    /// been silent for at least `silence` minus two heartbeats.
    fn long_silence(&self) -> Duration {
        self.silence / 2
    }
}

impl Default for ControlTiming {
    fn default() -> ControlTiming {
        ControlTiming { heartbeat: Duration::from_millis(500), silence: Duration::from_secs(3) }
    }
}

/// Error of an exchange.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ControlError {
    /// A rank failed, and with it the communicator.
    #[error("{0}")]
    Failed(Failure),
    /// A rank left in good order and cannot take part any more.
    #[error(
        "rank {rank} has left the communicator in good order and takes no part in this call: all \
         ranks must make the same calls"
    )]
    Left {
        /// Rank that left.
        rank: Rank,
    },
    /// The contribution is too long.
    #[error("a contribution of {bytes} bytes exceeds the {BLOB_BYTES_MAX} bytes of one exchange")]
    TooLong {
        /// Length of the contribution, in bytes.
        bytes: usize,
    },
}

/// Reason why this rank has no [`Verdict`].
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NoVerdict {
    /// The others go on without this rank.
    #[error(
        "this rank was declared dead by the others ({0}): it was stopped or cut off for too long, \
         and they go on without it; start it anew"
    )]
    Condemned(Failure),
    /// Too many ranks may be alive on the other side of a split network.
    #[error(
        "{living} ranks are alive but have no quorum: {silent} others cannot be heard and may be \
         alive on the other side of a split network; restore the network and start all ranks anew"
    )]
    NoQuorum {
        /// Number of ranks that this rank knows to live.
        living: usize,
        /// Number of ranks that cannot be heard, but are not known to have ended.
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
    inquiry: Inquiry,
    completed: Arc<Completed>,
    /// Roster as frames, for ranks that ask for it.
    roster: Vec<u8>,
    /// Initial neighbours that have been connected.
    linked: BTreeSet<Rank>,
    /// Parts of exchanges, kept for neighbours that have not connected yet. An exchange may start
    /// before all neighbours of this rank have connected.
    early: BTreeMap<Rank, Vec<u8>>,
    /// Ranks that could not be reached, with the earliest time of the next attempt.
    dial_backoff: BTreeMap<Rank, Instant>,
    heartbeat_next: Instant,
    ticked: Instant,
    leaving: bool,
}

impl Control {
    /// Returns the state right after joining: no neighbour is connected yet. `secret` is the secret
    /// of this session's control connections; the data path sets `completed`.
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
            inquiry: Inquiry::new(rank),
            completed,
            roster: Vec::new(),
            linked: BTreeSet::new(),
            early: BTreeMap::new(),
            dial_backoff: BTreeMap::new(),
            heartbeat_next: now + timing.heartbeat,
            ticked: now,
            leaving: false,
        };
        control.repair_overlay(now);
        control
    }

    /// Sets the roster that ranks get when they ask for it.
    pub fn set_roster(&mut self, roster: &Roster) {
        self.roster.clear();
        roster.parts().for_each(|part| append_frame(&mut self.roster, &part.encode()));
    }

    /// Returns the first failure that this rank learned of. This failure ends the communicator.
    #[must_use]
    pub fn failure(&self) -> Option<&Failure> {
        self.facts.first.as_ref()
    }

    /// Returns whether a rank is known to have left in good order.
    #[must_use]
    pub fn has_left(&self, rank: Rank) -> bool {
        self.facts.left.contains_key(&rank)
    }

    /// Returns how many connections at the control port came to nothing, by reason.
    #[must_use]
    pub fn strays(&self) -> Strays {
        self.gate.strays
    }

    /// Returns the initial neighbours that have neither connected yet nor left. Joining is complete
    /// when there are none.
    #[must_use]
    pub fn unlinked(&self) -> Vec<Rank> {
        let missing = |rank: &Rank| !self.linked.contains(rank) && !self.has_left(*rank);
        overlay::neighbours(self.rank, self.ranks).into_iter().filter(missing).collect()
    }

    /// Returns the verdict of the survivors, unless one of them has died since: then there will be
    /// another verdict.
    ///
    /// # Errors
    /// The others declared this rank dead, or too many ranks are silent.
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
            return Err(NoVerdict::NoQuorum { living, silent: self.facts.maybe_alive().count() });
        }
        Ok(verdict)
    }

    /// Returns the verdict if all its survivors are still here: only then can they go on together.
    /// Returns `None` if there is no verdict or a survivor has left. In the second case, starts
    /// another agreement if this rank is the lowest living one.
    ///
    /// # Errors
    /// Returns the errors of [`Control::verdict`].
    pub fn reconvene(&mut self, now: Instant) -> Result<Option<&Verdict>, NoVerdict> {
        let left = &self.facts.left;
        let has_left = |rank: &Rank| left.contains_key(rank);
        if self.verdict()?.is_some_and(|verdict| verdict.survivors.iter().any(has_left)) {
            let leads = self.facts.living().next() == Some(self.rank);
            self.facts.reconvenes = leads;
            self.drive_agreement(false, now);
            return Ok(None);
        }
        self.verdict()
    }

    /// Returns whether one of these ranks is dead or has left.
    #[must_use]
    pub fn has_lost(&self, members: &[Rank]) -> bool {
        members.iter().any(|rank| self.facts.is_gone(*rank))
    }

    /// Returns whether this rank coordinates an agreement and needs a port from the driver
    /// ([`Control::set_rendezvous_port`]).
    #[must_use]
    pub fn wants_rendezvous_port(&self) -> bool {
        self.agreement.wants_rendezvous_port()
    }

    /// Sets the port of this rank where the survivors can meet (zero: nowhere).
    pub fn set_rendezvous_port(&mut self, port: u16, now: Instant) {
        self.agreement.rendezvous_port = Some(port);
        self.drive_agreement(false, now);
    }

    /// Records that this rank's operation has stalled past its deadline. The ranks then compare
    /// their [`Note`]s of what they are doing, and report as failed the rank that holds up the
    /// others.
    pub fn overdue(&mut self, stalled: Duration, now: Instant) {
        let stalled_ms = u32::try_from(stalled.as_millis()).unwrap_or(u32::MAX);
        self.inquiry.overdue(stalled_ms, now);
        self.flush_inquiry(now);
    }

    /// Returns whether this rank must say what it is doing.
    #[must_use]
    pub fn wants_note(&self) -> bool {
        self.inquiry.wants_note()
    }

    /// Takes this rank's note of what it is doing.
    pub fn note(&mut self, note: Note, now: Instant) {
        self.inquiry.note(note);
        self.flush_inquiry(now);
    }

    /// Takes the next rank to connect to, and the number of the connection.
    pub fn next_dial(&mut self) -> Option<(ConnectionId, Rank)> {
        self.dials.pop_front()
    }

    /// Returns whether a connection leads to a neighbour. A neighbour has proved that it knows the
    /// secret.
    #[must_use]
    pub fn is_neighbour(&self, connection: ConnectionId) -> bool {
        self.links.get(&connection).is_some_and(|link| link.neighbour().is_some())
    }

    /// Returns the bytes that wait to be sent on this connection.
    #[must_use]
    pub fn outbox(&self, connection: ConnectionId) -> &[u8] {
        self.links.get(&connection).map_or(&[], |link| &link.outbox)
    }

    /// Removes the first `bytes` of the outbox, which have been sent.
    pub fn sent(&mut self, connection: ConnectionId, bytes: usize) {
        if let Some(link) = self.links.get_mut(&connection) {
            link.outbox.drain(..bytes.min(link.outbox.len()));
        }
    }

    /// Returns whether the driver must close this connection now. If so, `Control` forgets the
    /// connection.
    pub fn is_over(&mut self, connection: ConnectionId) -> bool {
        let over = |link: &Link| link.is_closing() && link.outbox.is_empty();
        if self.links.get(&connection).is_some_and(over) {
            self.links.remove(&connection);
        }
        !self.links.contains_key(&connection)
    }

    /// Returns true if the communicator has ended and a living neighbour, which perhaps does not
    /// know the reason, has not connected yet. The neighbour awaits this rank, so this rank should
    /// stay until the neighbour has connected.
    #[must_use]
    pub fn is_awaited(&self) -> bool {
        let is_there = |rank: &Rank| !self.facts.is_gone(*rank);
        self.facts.first.is_some() && self.unlinked().iter().any(is_there)
    }

    /// Returns whether no connection is left, so that no rank can be told anything.
    #[must_use]
    pub fn is_detached(&self) -> bool {
        self.links.is_empty()
    }

    /// Returns all connections, including those being made.
    #[must_use]
    pub fn connections(&self) -> Vec<ConnectionId> {
        self.links.keys().copied().collect()
    }

    /// Returns the time when [`Control::tick`] is due.
    #[must_use]
    pub fn poll_timeout(&self) -> Instant {
        let up = self.links.values().filter(|link| link.neighbour().is_some());
        let silent = up.map(|link| link.last_received + self.timing.silence).min();
        let due = silent.into_iter().chain(self.gate.poll_timeout());
        let due = due.chain(self.inquiry.poll_timeout()).min();
        due.map_or(self.heartbeat_next, |due| due.min(self.heartbeat_next))
    }

    /// Takes in bytes that arrived on a connection.
    pub fn received(&mut self, connection: ConnectionId, mut bytes: &[u8], now: Instant) {
        while self.gate.contains(connection) {
            let Some(verdict) = self.gate.received(connection, &mut bytes) else { return };
            self.attend(connection, verdict, now);
        }
        let arrived = self.arrived(now);
        while let Some(link) = self.links.get_mut(&connection) {
            if link.is_closing() {
                return;
            }
            link.heard(arrived, now, self.timing.long_silence());
            let message = match link.decoder.feed(&mut bytes) {
                Ok(None) => return,
                Ok(Some(frame)) => Message::decode(&frame).map_err(Breach::from),
                Err(error) => Err(error.into()),
            };
            if let Err(breach) = message.and_then(|message| self.handle(connection, message, now)) {
                self.fail_peer(connection, &breach, now);
            }
        }
    }

    /// Handles a connection that closed or broke. Before this, hand in all bytes that have arrived.
    pub fn hung_up(&mut self, connection: ConnectionId, now: Instant) {
        if self.gate.closed(connection) {
            self.links.remove(&connection);
            return;
        }
        match self.links.get(&connection).map(|link| &link.stage) {
            Some(Stage::Up(rank)) => {
                let rank = *rank;
                // The connection of a killed process closes. But if the network was split until
                // just now, the rank may be alive: a side of a split network closes its connections
                // with the ranks that it counts as dead.
                let reason = match self.may_be_split(now) {
                    true => FailureReason::ClosedInDoubt,
                    false => FailureReason::HungUp,
                };
                self.links.remove(&connection);
                if !self.leaving {
                    self.declare_dead(rank, reason, None, now);
                }
            }
            Some(Stage::Closing) => drop(self.links.remove(&connection)),
            _ => self.dial_failed(connection, false, now),
        }
    }

    /// Estimates when the bytes that are read `now` arrived: `now` if this rank ran at most a
    /// heartbeat ago, else the time when this rank last ran. The bytes did not arrive earlier than
    /// that, or at most by a heartbeat.
    fn arrived(&self, now: Instant) -> Instant {
        if now.since(self.ticked) <= self.timing.heartbeat { now } else { self.ticked }
    }

    /// Returns whether the network may be split, or was until lately: some rank counts as dead by
    /// silence, or a neighbour is silent or was silent lately.
    fn may_be_split(&self, now: Instant) -> bool {
        #[cfg(test)]
        if self.agreement.is_planted(super::agreement::Fault::TrustCloses) {
            return false;
        }
        let long = self.timing.long_silence();
        let mut up = self.links.values().filter(|link| link.neighbour().is_some());
        up.any(|link| link.was_silent(now, long, self.timing.silence)) || self.facts.has_doubts()
    }

    /// Does everything that is due. Before this, hand in all bytes that have arrived: after a stop
    /// of this process, the heartbeats of the others are among them.
    pub fn tick(&mut self, now: Instant) {
        // A rank that did not run cannot judge its peers' silence: perhaps all ranks were stopped.
        let away = (self.timing.silence / 2).saturating_add(self.timing.heartbeat);
        if now.since(self.ticked) > away {
            self.links.values_mut().for_each(|link| link.last_received = now);
        }
        self.ticked = now;
        self.expire(now);
        self.compare(now);
        if now < self.heartbeat_next {
            return;
        }
        self.heartbeat_next = now + self.timing.heartbeat;
        if !self.leaving {
            self.flood(&Message::Heartbeat, None);
            self.dial_backoff.retain(|_, until| now < *until);
            self.drive_agreement(true, now);
            self.repair_overlay(now);
        }
    }

    /// Ends the communicator for all ranks, and blames `rank`: this rank, or another rank whose
    /// failure this rank has noticed. Does nothing if a failure is known already.
    pub fn report(&mut self, rank: Rank, text: String, now: Instant) {
        let reason = if rank == self.rank {
            FailureReason::Aborted { text }
        } else {
            FailureReason::Reported { by: self.rank, text }
        };
        if self.facts.first.is_none() {
            self.record_fact(Message::Failed(Failure { rank, reason }), None, now);
            self.drive_agreement(false, now);
        }
    }

    /// Gives up because this rank's application aborts the communicator. If no rank has failed yet,
    /// reports the abort as the failure of this rank. After a failure, the other survivors learn
    /// that this rank does not go on with them.
    pub fn give_up(&mut self, text: String, now: Instant) {
        let rank = self.rank;
        if self.facts.first.is_none() {
            return self.report(rank, text, now);
        }
        let reason = FailureReason::Withdrew { text };
        self.record_fact(Message::Failed(Failure { rank, reason }), None, now);
    }

    /// Returns the failure of a rank that gave up after the first failure.
    #[must_use]
    pub fn withdrawn(&self, rank: Rank) -> Option<&Failure> {
        self.facts.withdrawn.get(&rank)
    }

    /// Returns the reason, if any, why these ranks cannot all go on together: one of them is dead,
    /// has left or has given up since the failure, or the others count this rank as dead. `members`
    /// is in ascending order.
    #[must_use]
    pub fn obstacle(&self, members: &[Rank]) -> Option<String> {
        let is_member = |rank: &Rank| members.binary_search(rank).is_ok();
        if let Some(failure) = &self.facts.condemned {
            return Some(NoVerdict::Condemned(failure.clone()).to_string());
        }
        let mut dead = self.facts.dead.iter().filter(|(rank, _)| is_member(rank));
        if let Some((rank, reason)) = dead.next() {
            return Some(Failure { rank: *rank, reason: reason.clone() }.to_string());
        }
        let mut withdrawn = self.facts.withdrawn.values();
        if let Some(failure) = withdrawn.find(|failure| is_member(&failure.rank)) {
            return Some(failure.to_string());
        }
        let left = self.facts.left.keys().find(|rank| is_member(rank));
        left.map(|rank| format!("rank {rank} has left the communicator"))
    }

    /// Leaves in good order: says goodbye to the other ranks, which then close the connections.
    /// Call this when this rank needs nothing more from the others.
    pub fn leave(&mut self) {
        if self.leaving {
            return;
        }
        self.leaving = true;
        let awaited = self.is_awaited();
        if !awaited {
            self.gate.shut();
        }
        let goodbye = Message::Left { rank: self.rank, exchanges: self.exchange.next };
        self.links.retain(|_, link| {
            let known = matches!(link.stage, Stage::Up(_) | Stage::Introduced(_));
            if known {
                link.send(&goodbye);
            }
            known || link.is_closing() || (awaited && link.is_at_gate())
        });
    }

    /// Starts the next exchange with this rank's part and returns the number of the exchange.
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

    /// Returns the parts of all ranks, in order of rank, once the exchange has ended; `None`
    /// before.
    ///
    /// # Errors
    /// A rank failed, or left before it handed in its part: the exchange cannot end any more.
    pub fn gathered(&mut self, sequence: u64) -> Result<Option<Vec<Vec<u8>>>, ControlError> {
        match self.exchange.collect(sequence) {
            Some(parts) => Ok(Some(parts)),
            None => self.check(sequence).map(|()| None),
        }
    }

    /// Returns the first rank whose part of this exchange is missing.
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

    fn handle_from_neighbour(
        &mut self,
        connection: ConnectionId,
        peer: Rank,
        message: Message,
        now: Instant,
    ) -> Result<(), Breach> {
        if !self.facts.are_ranks(&message) {
            return Err(Breach::UnknownRank { ranks: self.ranks });
        }
        match message {
            Message::Heartbeat => return Ok(()),
            Message::Part { sequence, rank, blob } => {
                let passed = self.exchange.take(sequence, rank, blob)?;
                self.pass(passed);
                return Ok(());
            }
            Message::Left { rank, exchanges } => {
                self.record_fact(Message::Left { rank, exchanges }, Some(connection), now);
                if rank == peer
                    && let Some(link) = self.links.get_mut(&connection)
                {
                    link.stage = Stage::Closing;
                }
            }
            fact @ (Message::Dead(_) | Message::Failed(_)) => {
                self.record_fact(fact, Some(connection), now);
            }
            Message::Decided(verdict) => self.learn_verdict(verdict, Some(connection), now),
            Message::Ask(ask) if !self.leaving => {
                let (facts, completed) = (&self.facts, &self.completed);
                self.agreement.asked(ask, connection, facts, completed, now);
            }
            Message::Answer(answer) => self.agreement.answered(answer),
            Message::Ask(_) | Message::Inquire { .. } if self.leaving => {}
            Message::Inquire { asker, attempt } => {
                self.inquiry.asked((asker, attempt), connection, &self.facts, now);
                self.flush_inquiry(now);
            }
            Message::Noted(noted) => {
                self.inquiry.answered(noted);
                self.flush_inquiry(now);
            }
            _ => return Err(Breach::NoNeighbours),
        }
        self.drive_agreement(false, now);
        Ok(())
    }

    fn declare_dead(
        &mut self,
        rank: Rank,
        reason: FailureReason,
        source: Option<ConnectionId>,
        now: Instant,
    ) {
        // A rank that has left in good order is not declared dead.
        if self.has_left(rank) {
            return;
        }
        self.record_fact(Message::Dead(Failure { rank, reason }), source, now);
        self.drive_agreement(false, now);
    }

    /// Takes in a fact and, if it is news, passes it on.
    fn record_fact(&mut self, fact: Message, source: Option<ConnectionId>, now: Instant) {
        if !self.facts.insert(&fact) {
            return;
        }
        self.flood(&fact, source);
        if matches!(fact, Message::Dead(_) | Message::Decided(_)) {
            self.close_dead_links();
            self.repair_overlay(now);
        }
    }

    fn learn_verdict(&mut self, verdict: Verdict, source: Option<ConnectionId>, now: Instant) {
        self.agreement.decided(&verdict);
        self.record_fact(Message::Decided(verdict), source, now);
    }

    fn flood(&mut self, message: &Message, except: Option<ConnectionId>) {
        let body = message.encode();
        for (connection, link) in &mut self.links {
            if link.neighbour().is_some() && Some(*connection) != except {
                append_frame(&mut link.outbox, &body);
            }
        }
    }

    fn pass(&mut self, (part, next_hops): Passed) {
        if next_hops.is_empty() {
            return;
        }
        let body = part.encode();
        for successor in next_hops {
            let link = self.links.values_mut().find(|link| link.neighbour() == Some(successor));
            if let Some(link) = link {
                append_frame(&mut link.outbox, &body);
            } else if !self.linked.contains(&successor) {
                append_frame(self.early.entry(successor).or_default(), &body);
            }
        }
    }

    fn drive_agreement(&mut self, regular: bool, now: Instant) {
        if self.leaving {
            return;
        }
        self.agreement.drive(&self.facts, &self.completed, regular, now);
        while let Some(out) = self.agreement.next_action() {
            self.carry_out(out, now);
        }
    }

    /// Continues the comparison of notes, if there is one.
    fn compare(&mut self, now: Instant) {
        if self.leaving {
            return;
        }
        let links = &self.links;
        let silent = |rank: Rank| {
            let link = links.values().find(|link| link.neighbour() == Some(rank))?;
            Some(now.since(link.last_received))
        };
        self.inquiry.drive(&self.facts, &silent, now);
        self.flush_inquiry(now);
    }

    fn flush_inquiry(&mut self, now: Instant) {
        while let Some(out) = self.inquiry.next_action() {
            self.carry_out(out, now);
        }
    }

    fn carry_out(&mut self, out: Action, now: Instant) {
        match out {
            Action::Flood(message, except) => self.flood(&message, except),
            Action::Send(connection, message) => {
                if let Some(link) = self.links.get_mut(&connection)
                    && link.neighbour().is_some()
                {
                    link.send(&message);
                }
            }
            Action::Learn(verdict, source) => self.learn_verdict(verdict, source, now),
            Action::Fail(failure) => {
                self.record_fact(Message::Failed(failure), None, now);
                self.drive_agreement(false, now);
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
        format!(
            "dead {dead:?}, left {left:?}, condemned {condemned:?}, verdict {verdict:?}, \
             {agreement:?}"
        )
    }

    #[cfg(test)]
    pub(super) fn last_verdict(&self) -> Option<&Verdict> {
        self.facts.verdict.as_ref()
    }
}
