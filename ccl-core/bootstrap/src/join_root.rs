//! Joining from the side of rank 0, which lets in processes that prove that they know the secret,
//! and compares their introductions ([`Hello`]).

use super::frame::append_frame;
use super::gate::{ConnectionId, Gate, GateVerdict, Strays};
use super::handshake::Nonce;
use super::identity::Secret;
use super::message::{Hello, JoinFailure, MISSING_NAMED_MAX, Message, Referral, Roster, elders};
use ccl_core::time::Instant;
use ccl_core::types::Rank;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// Limits of joining: the time that rank 0 waits, and the number of strangers that it tolerates.
#[derive(Clone, Copy, Debug)]
pub struct JoinLimits {
    /// Time within which all ranks must have joined, counted from the start.
    pub deadline: Duration,
    /// Time within which a connection must have proved and introduced itself, counted from its
    /// start.
    pub half_open: Duration,
    /// Largest number of simultaneous connections that have not introduced themselves yet. A limit
    /// below the number of ranks is raised to that number.
    pub half_open_max: usize,
    /// Shortest interval at which the ranks that have joined are told which ranks are missing.
    pub waiting_every: Duration,
}

impl Default for JoinLimits {
    fn default() -> JoinLimits {
        JoinLimits {
            deadline: Duration::from_secs(60),
            half_open: Duration::from_secs(5),
            half_open_max: 64,
            waiting_every: Duration::from_secs(1),
        }
    }
}

/// Action for the driver, to be carried out in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RootAction {
    /// Bytes to send on a connection.
    Send(ConnectionId, Vec<u8>),
    /// Connection to close once all earlier bytes are sent.
    Close(ConnectionId),
}

#[derive(Debug)]
struct Joined {
    connection: ConnectionId,
    hello: Hello,
    nonce: Nonce,
}

/// The state of joining at rank 0.
#[derive(Debug)]
pub struct RootJoin {
    own: Hello,
    limits: JoinLimits,
    started: Instant,
    gate: Gate,
    joined: BTreeMap<Rank, Joined>,
    ranks_of: BTreeMap<ConnectionId, Rank>,
    /// Ranks that were refused.
    refused: BTreeSet<Rank>,
    actions: VecDeque<RootAction>,
    outcome: Option<Result<Roster, JoinFailure>>,
    waiting_next: Instant,
}

impl RootJoin {
    /// Starts to wait for ranks `1..own.ranks`.
    #[must_use]
    pub fn new(secret: Secret, own: Hello, limits: JoinLimits, now: Instant) -> RootJoin {
        // All ranks may connect at once, so the limit has room for all of them.
        let half_open_max = limits.half_open_max.max(own.ranks as usize);
        let mut join = RootJoin {
            own,
            limits,
            started: now,
            gate: Gate::new(secret, limits.half_open, half_open_max),
            joined: BTreeMap::new(),
            ranks_of: BTreeMap::new(),
            refused: BTreeSet::new(),
            actions: VecDeque::new(),
            outcome: None,
            waiting_next: now + limits.waiting_every,
        };
        join.finish_if_complete();
        join
    }

    /// Takes the next action.
    pub fn next_action(&mut self) -> Option<RootAction> {
        self.actions.pop_front()
    }

    /// Returns the outcome of joining, once it has ended. Actions may still be due.
    #[must_use]
    pub fn outcome(&self) -> Option<&Result<Roster, JoinFailure>> {
        self.outcome.as_ref()
    }

    /// Returns whether a connection is in the middle of introducing itself. After a failure the
    /// driver keeps such connections for a moment: a peer that proves the secret then gets the
    /// reason, instead of a closed connection that looks like a wrong secret.
    #[must_use]
    pub fn has_half_open(&self) -> bool {
        !self.gate.is_empty()
    }

    /// Returns true if joining failed because ranks were started wrongly, and some ranks have not
    /// got the reason yet. The driver then still listens for a while to tell those ranks;
    /// otherwise those ranks would look for rank 0 until their own deadline.
    #[must_use]
    pub fn has_unsent_answers(&self) -> bool {
        let failed = match &self.outcome {
            Some(Err(JoinFailure::Missing { .. } | JoinFailure::Died { .. }) | Ok(_)) | None => {
                false
            }
            Some(Err(_)) => true,
        };
        let is_told = |rank: Rank| self.joined.contains_key(&rank) || self.refused.contains(&rank);
        failed && (1..self.own.ranks).any(|rank| !is_told(rank))
    }

    /// Returns the connection of each joined rank.
    #[must_use]
    pub fn connections(&self) -> BTreeMap<Rank, ConnectionId> {
        self.joined.iter().map(|(rank, joined)| (*rank, joined.connection)).collect()
    }

    /// Returns the counts of the connections that came to nothing.
    #[must_use]
    pub fn strays(&self) -> Strays {
        self.gate.strays
    }

    /// Returns the time when [`RootJoin::tick`] is due.
    #[must_use]
    pub fn poll_timeout(&self) -> Instant {
        let deadline = (self.started + self.limits.deadline).min(self.waiting_next);
        self.gate.poll_timeout().map_or(deadline, |stale| stale.min(deadline))
    }

    /// Returns whether there is room for a new connection now. At the limit, the oldest half-open
    /// connection yields once it is a second old; until then, newcomers wait to be accepted.
    #[must_use]
    pub fn has_room(&self, now: Instant) -> bool {
        self.gate.has_room(now)
    }

    /// Takes in a new connection; `nonce` is fresh randomness for its challenge.
    pub fn accepted(&mut self, connection: ConnectionId, nonce: Nonce, now: Instant) {
        if matches!(self.outcome, Some(Ok(_))) || !self.has_room(now) {
            self.gate.strays.slow += 1;
            self.actions.push_back(RootAction::Close(connection));
            return;
        }
        let evicted = self.gate.add_half_open(connection, nonce, now);
        self.actions.extend(evicted.map(RootAction::Close));
    }

    /// Takes in bytes that arrived on a connection.
    pub fn received(&mut self, connection: ConnectionId, mut bytes: &[u8]) {
        if let Some(rank) = self.ranks_of.get(&connection) {
            // A joined rank must send nothing before rank 0 has sent it a `Referral`, which says
            // which ranks have the list of members.
            if !bytes.is_empty() && self.outcome.is_none() {
                self.finish(Err(JoinFailure::Died { rank: *rank }));
            }
            return;
        }
        while let Some(verdict) = self.gate.received(connection, &mut bytes) {
            self.attend(connection, verdict);
        }
        // Bytes after a `Hello` are out of turn.
        if !bytes.is_empty() && self.ranks_of.contains_key(&connection) {
            self.received(connection, bytes);
        }
    }

    /// Handles a connection that its peer closed, or that broke.
    pub fn closed(&mut self, connection: ConnectionId) {
        if self.gate.closed(connection) {
            self.actions.push_back(RootAction::Close(connection));
        } else if let Some(rank) = self.ranks_of.remove(&connection)
            && self.outcome.is_none()
        {
            self.joined.remove(&rank);
            self.finish(Err(JoinFailure::Died { rank }));
        }
    }

    /// Does what is due at this time: ends joining at the deadline, closes connections that are too
    /// slow, and tells the joined ranks which ranks are missing.
    pub fn tick(&mut self, now: Instant) {
        if self.outcome.is_some() {
            return;
        }
        let waited = now.since(self.started);
        if waited >= self.limits.deadline {
            let (ranks, count) = self.missing();
            let waited_ms = u32::try_from(waited.as_millis()).unwrap_or(u32::MAX);
            return self.finish(Err(JoinFailure::Missing { ranks, count, waited_ms }));
        }
        self.actions.extend(self.gate.expire(now).into_iter().map(RootAction::Close));
        if now >= self.waiting_next {
            self.waiting_next = now + self.limits.waiting_every;
            let (ranks, count) = self.missing();
            self.tell_joined(&Message::Waiting { ranks, count });
        }
    }

    fn attend(&mut self, connection: ConnectionId, verdict: GateVerdict) {
        match verdict {
            GateVerdict::Answer(message) => return self.send(connection, &message),
            GateVerdict::Enter(Message::Hello(hello), nonce) => {
                return self.admit(connection, hello, nonce);
            }
            GateVerdict::Refuse(message) => self.send(connection, &message),
            GateVerdict::Enter(..) => drop(self.gate.malformed()),
            GateVerdict::Drop => {}
        }
        self.actions.push_back(RootAction::Close(connection));
    }

    fn admit(&mut self, connection: ConnectionId, hello: Hello, nonce: Nonce) {
        let ended = self.outcome.as_ref().and_then(|outcome| outcome.as_ref().err()).cloned();
        if let Some(failure) = ended.or_else(|| self.objection(&hello)) {
            self.refused.insert(hello.rank);
            self.send(connection, &Message::Refused(failure.clone()));
            self.actions.push_back(RootAction::Close(connection));
            return self.finish(Err(failure));
        }
        self.ranks_of.insert(connection, hello.rank);
        self.joined.insert(hello.rank, Joined { connection, hello, nonce });
        self.finish_if_complete();
    }

    /// Returns the objection to a rank that knows the secret, if there is one. An objection means
    /// that the ranks were started wrongly; waiting cannot fix that.
    fn objection(&self, hello: &Hello) -> Option<JoinFailure> {
        let (own, rank) = (&self.own, hello.rank);
        if hello.library != own.library {
            let (library, root_library) = (hello.library.clone(), own.library.clone());
            return Some(JoinFailure::Library { rank, library, root_library });
        }
        if hello.ranks != own.ranks {
            let (ranks, root_ranks) = (hello.ranks, own.ranks);
            return Some(JoinFailure::RanksDiffer { rank, ranks, root_ranks });
        }
        if rank >= own.ranks {
            return Some(JoinFailure::RankOutOfRange { rank, ranks: own.ranks });
        }
        let earlier = self.joined.get(&rank).map(|joined| &joined.hello);
        if let Some(first) = earlier.or((rank == own.rank).then_some(own)) {
            let (first, second) = (first.member.process, hello.member.process);
            return Some(JoinFailure::DuplicateRank { rank, first, second });
        }
        (hello.configuration != own.configuration)
            .then_some(JoinFailure::ConfigurationDiffers { rank })
    }

    fn missing(&self) -> (Vec<Rank>, u32) {
        let missing = || (1..self.own.ranks).filter(|rank| !self.joined.contains_key(rank));
        let count = u32::try_from(missing().count()).unwrap_or(u32::MAX);
        (missing().take(MISSING_NAMED_MAX).collect(), count)
    }

    fn finish_if_complete(&mut self) {
        if self.joined.len() + 1 < self.own.ranks as usize {
            return;
        }
        let others = self.joined.values().map(|joined| joined.hello.member);
        let members = std::iter::once(self.own.member).chain(others).collect();
        // The session id is a hash of nonces, so it cannot be predicted or repeated.
        let mut session = Sha256::new();
        self.joined.values().for_each(|joined| session.update(joined.nonce));
        self.finish(Ok(Roster { session: session.finalize().into(), members }));
    }

    fn finish(&mut self, outcome: Result<Roster, JoinFailure>) {
        if self.outcome.is_some() {
            return;
        }
        match &outcome {
            Ok(roster) => {
                self.actions.extend(self.gate.shut().into_iter().map(RootAction::Close));
                self.refer(roster);
            }
            Err(failure) => {
                self.tell_joined(&Message::Refused(failure.clone()));
                let joined: Vec<_> = self.joined.values().map(|j| j.connection).collect();
                self.actions.extend(joined.into_iter().map(RootAction::Close));
            }
        }
        self.outcome = Some(outcome);
    }

    fn refer(&mut self, roster: &Roster) {
        let joined = |(rank, joined): (&Rank, &Joined)| (*rank, joined.connection);
        let connections: Vec<_> = self.joined.iter().map(joined).collect();
        for (rank, connection) in connections {
            let contact = |elder| Some((elder, roster.members.get(elder as usize)?.contact));
            let elders = elders(rank).filter_map(contact).collect();
            let referral = Referral { session: roster.session, elders };
            self.send(connection, &Message::Referral(referral));
        }
    }

    fn send(&mut self, connection: ConnectionId, message: &Message) {
        let mut bytes = Vec::new();
        append_frame(&mut bytes, &message.encode());
        self.actions.push_back(RootAction::Send(connection, bytes));
    }

    fn tell_joined(&mut self, message: &Message) {
        let connections: Vec<_> = self.joined.values().map(|joined| joined.connection).collect();
        connections.into_iter().for_each(|connection| self.send(connection, message));
    }
}
