//! Connections of the control plane: dialling, accepting or refusing peers, and choosing peers.

use super::Control;
use crate::breach::Breach;
use crate::caller::Caller;
use crate::failure::{Failure, FailureReason};
use crate::gate::{ConnectionId, GateVerdict};
use crate::handshake::Nonce;
use crate::link::{Link, Stage};
use crate::message::Message;
use crate::overlay;
use ccl_core::time::Instant;
use ccl_core::types::Rank;
use std::time::Duration;

/// Largest number of unresponsive ranks that the coordinator of an agreement tries to reach at the
/// same time.
const LOOKED_FOR_MAX: usize = 64;

impl Control {
    /// Returns whether a connection to the control port can be accepted now.
    #[must_use]
    pub fn has_room(&self, now: Instant) -> bool {
        self.gate.has_room(now)
    }

    /// Takes in a connection that was accepted at the control port; `nonce` is fresh randomness.
    /// Returns the number of the connection.
    pub fn accepted(&mut self, nonce: Nonce, now: Instant) -> ConnectionId {
        let connection = self.enlist(Stage::AtGate, now);
        if let Some(evicted) = self.gate.add_half_open(connection, nonce, now) {
            self.links.remove(&evicted);
        }
        connection
    }

    /// Takes in a connection that this rank has requested, and that is now made. `nonce` is fresh
    /// randomness.
    pub fn dialed(&mut self, connection: ConnectionId, nonce: Nonce, now: Instant) {
        let Some(link) = self.links.get_mut(&connection) else { return };
        let Stage::Dialing(rank) = link.stage else { return };
        let caller = Caller::new(self.secret.clone(), nonce);
        link.send(&caller.open());
        link.last_received = now;
        link.stage = Stage::Calling(rank, caller);
    }

    /// Handles a requested connection that failed: it was `refused`, or nobody answered.
    pub fn dial_failed(&mut self, connection: ConnectionId, refused: bool, now: Instant) {
        let Some(link) = self.links.remove(&connection) else { return };
        let Some(rank) = link.peer_rank() else { return };
        // A peer that refuses is dead, or has left in good order (and this rank does not know it
        // yet), or has gone on without this rank. The peer counts as dead in two cases. First,
        // while this rank's neighbours are still connecting: no rank can have left yet. Second,
        // while the agreement waits for the peer: a rank that has left never answers, and the
        // agreement might wait forever.
        let owed = self.agreement.late_ranks(&self.facts, self.timing.heartbeat * 3, now);
        let owed = owed.contains(&rank);
        if refused && (owed || !self.unlinked().is_empty()) {
            self.declare_dead(rank, FailureReason::Refused, None, now);
        } else if owed && now.since(link.last_received) >= self.timing.silence {
            self.declare_dead(rank, silent_for(now.since(link.last_received)), None, now);
        } else {
            let pause = if self.linked.contains(&rank) { 2 } else { 1 };
            self.dial_backoff.insert(rank, now + self.timing.heartbeat * pause);
            self.repair_overlay(now);
        }
    }

    pub(super) fn expire(&mut self, now: Instant) {
        for stranger in self.gate.expire(now) {
            self.links.remove(&stranger);
        }
        let silence = self.timing.silence;
        let late = |link: &Link| now.since(link.last_received) >= silence && !link.is_at_gate();
        let late: Vec<_> =
            self.links.iter().filter(|(_, link)| late(link)).map(|(id, _)| *id).collect();
        for connection in late {
            let Some(link) = self.links.get(&connection) else { continue };
            match link.neighbour() {
                Some(rank) if !self.leaving => {
                    let reason = silent_for(now.since(link.last_received));
                    self.declare_dead(rank, reason, None, now);
                    // `declare_dead` does nothing if the rank has left: the connection ends here.
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

    fn enlist(&mut self, stage: Stage, now: Instant) -> ConnectionId {
        self.connections += 1;
        self.links.insert(self.connections, Link::new(stage, now));
        self.connections
    }

    /// Handles a message from a connection at the gate.
    pub(super) fn attend(&mut self, connection: ConnectionId, verdict: GateVerdict, now: Instant) {
        let Some(link) = self.links.get_mut(&connection) else { return };
        link.last_received = now;
        match verdict {
            GateVerdict::Answer(message) => return link.send(&message),
            GateVerdict::Enter(Message::Link { from, to }, _)
                if to == self.rank && from != to && from < self.ranks =>
            {
                return self.welcome(connection, from);
            }
            GateVerdict::Refuse(message) => link.send(&message),
            GateVerdict::Enter(Message::Fetch, _) if !self.roster.is_empty() => {
                link.outbox.extend(&self.roster);
            }
            GateVerdict::Enter(..) => drop(self.gate.malformed()),
            GateVerdict::Drop => {}
        }
        link.stage = Stage::Closing;
    }

    fn welcome(&mut self, connection: ConnectionId, from: Rank) {
        let Some(link) = self.links.get_mut(&connection) else { return };
        let refusal = match self.facts.dead.get(&from) {
            Some(reason) => Some(Message::Dead(Failure { rank: from, reason: reason.clone() })),
            None if self.leaving => {
                // If `from` has had no neighbour yet, it does not know what ended the communicator.
                self.facts.cause().into_iter().for_each(|cause| link.send(cause));
                Some(Message::Left { rank: self.rank, exchanges: self.exchange.next })
            }
            None => None,
        };
        if let Some(refusal) = refusal {
            self.linked.insert(from);
            link.send(&refusal);
            link.stage = Stage::Closing;
            return;
        }
        link.set_authenticated(Stage::Up(from));
        link.send(&Message::Welcome);
        self.send_backlog(connection, from);
    }

    /// Sends a new neighbour the facts that it may have missed, and the parts of exchanges that
    /// were due to it before it connected.
    fn send_backlog(&mut self, connection: ConnectionId, rank: Rank) {
        self.linked.insert(rank);
        if let Some(link) = self.links.get_mut(&connection) {
            self.facts.log().iter().for_each(|fact| link.send(fact));
            link.outbox.extend(self.early.remove(&rank).unwrap_or_default());
        }
    }

    pub(super) fn handle(
        &mut self,
        connection: ConnectionId,
        message: Message,
        now: Instant,
    ) -> Result<(), Breach> {
        let Some(link) = self.links.get_mut(&connection) else { return Ok(()) };
        match (&mut link.stage, message) {
            (Stage::Calling(rank, caller), message) => {
                let rank = *rank;
                if let Some(answer) = caller.step(&message)? {
                    link.send(&answer);
                } else {
                    link.set_authenticated(Stage::Introduced(rank));
                    link.send(&Message::Link { from: self.rank, to: rank });
                }
            }
            (Stage::Introduced(rank), Message::Welcome) => {
                let rank = *rank;
                link.stage = Stage::Up(rank);
                self.send_backlog(connection, rank);
            }
            (
                Stage::Introduced(_),
                fact @ (Message::Dead(_) | Message::Failed(_) | Message::Left { .. }),
            ) => {
                // A fact that ended the communicator leaves the connection open, because the peer's
                // goodbye (`Left`) follows it.
                let is_cause = match &fact {
                    Message::Dead(failure) => failure.rank != self.rank,
                    fact => matches!(fact, Message::Failed(_)),
                };
                if !is_cause {
                    link.stage = Stage::Closing;
                }
                if self.facts.are_ranks(&fact) {
                    self.record_fact(fact, None, now);
                    self.drive_agreement(false, now);
                    self.repair_overlay(now);
                }
            }
            (Stage::Up(rank), message) => {
                let rank = *rank;
                return self.handle_from_neighbour(connection, rank, message, now);
            }
            _ => return Err(Breach::OutOfTurn),
        }
        Ok(())
    }

    /// Handles a peer that broke the protocol.
    pub(super) fn fail_peer(&mut self, connection: ConnectionId, breach: &Breach, now: Instant) {
        let neighbour = self.links.get(&connection).and_then(Link::neighbour);
        match neighbour {
            Some(rank) => {
                let reason = FailureReason::Protocol { text: breach.to_string() };
                self.declare_dead(rank, reason, None, now);
                // `declare_dead` does nothing if the rank has left: the connection ends here.
                if self.links.get(&connection).is_some_and(|link| !link.is_closing()) {
                    self.links.remove(&connection);
                }
            }
            // Another program probably listens at the rank's port. The breach counts as a refusal.
            None => self.dial_failed(connection, true, now),
        }
    }

    /// Ends the connections with dead ranks, or all connections if this rank counts as dead. The
    /// reason has been sent before: a rank that is alive after all learns why it is cut off.
    pub(super) fn close_dead_links(&mut self) {
        let condemned = self.facts.condemned.is_some();
        let facts = &self.facts;
        self.links.retain(|_, link| {
            let Some(rank) = link.peer_rank() else { return true };
            if !condemned && !facts.dead.contains_key(&rank) {
                return true;
            }
            let is_up = link.neighbour().is_some();
            link.stage = Stage::Closing;
            is_up
        });
    }

    /// Connects to the ranks that this rank needs and has no connection with. For each distance of
    /// the overlay (1, 2, 4, ...), this rank needs the first available rank at that distance or
    /// further. This rank also needs the available ranks for which the agreement has waited too
    /// long.
    pub(super) fn repair_overlay(&mut self, now: Instant) {
        if self.leaving || self.facts.condemned.is_some() {
            return;
        }
        let (facts, dial_backoff) = (&self.facts, &self.dial_backoff);
        let can_be_had = |rank| !facts.is_gone(rank) && !dial_backoff.contains_key(&rank);
        let mut peers = overlay::targets(self.rank, self.ranks, can_be_had);
        let linked = &self.linked;
        // Two ranks are each other's targets from the start if their distance is a power of two in
        // both directions of the ring. Until two such ranks have been linked, only the lower rank
        // connects, and the higher rank waits for the lower one.
        let comes_by_itself = |peer: Rank| {
            let by = overlay::before(self.rank, peer, self.ranks);
            !linked.contains(&peer) && by.is_power_of_two() && peer < self.rank
        };
        peers.retain(|peer| !comes_by_itself(*peer));
        let late_ranks = self.agreement.late_ranks(facts, self.timing.heartbeat * 3, now);
        peers.extend(late_ranks.into_iter().filter(|rank| can_be_had(*rank)).take(LOOKED_FOR_MAX));
        for rank in peers {
            if rank != self.rank && !self.links.values().any(|l| l.peer_rank() == Some(rank)) {
                let connection = self.enlist(Stage::Dialing(rank), now);
                self.dials.push_back((connection, rank));
            }
        }
    }
}

fn silent_for(silence: Duration) -> FailureReason {
    let silence_ms = u32::try_from(silence.as_millis()).unwrap_or(u32::MAX);
    FailureReason::Silent { silence_ms }
}
