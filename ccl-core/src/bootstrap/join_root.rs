//! Joining as rank 0 sees it: lets in who proves to know the secret, and compares what they say.

use super::frame::{Decoder, append_frame};
use super::handshake::{Nonce, Nonces, Proof, Role, proof, proves};
use super::identity::Secret;
use super::message::{Hello, JoinFailure, MISSING_NAMED_MAX, Message, Roster};
use super::{PROTOCOL_VERSION, STRANGER_FRAME_BYTES_MAX};
use crate::time::Instant;
use crate::types::Rank;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// A connection, by the number that the driver gave it.
pub type ConnectionId = u64;

/// Members of one roster message: 20 bytes each, far below the bound of a frame.
const ROSTER_MEMBERS_MAX: usize = 4096;

/// How long and how many strangers are borne with.
#[derive(Clone, Copy, Debug)]
pub struct JoinLimits {
    /// Everybody must have joined by then, counted from the start.
    pub deadline: Duration,
    /// A connection must have proved and introduced itself by then, counted from its start.
    pub half_open: Duration,
    /// Most connections that have not, at once.
    pub half_open_max: usize,
    /// At the most so often those who joined are told who is missing.
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

/// Connections that came to nothing, counted by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Strays {
    /// Sent what is no message of ours, out of turn, or closed early.
    pub malformed: u64,
    /// Answered the challenge wrongly: it has another secret.
    pub wrong_secret: u64,
    /// Speak another version of the protocol.
    pub wrong_version: u64,
    /// Did not say who they are in time, or were one too many.
    pub slow: u64,
}

impl Strays {
    /// All of them.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.malformed + self.wrong_secret + self.wrong_version + self.slow
    }
}

/// What the driver is to do, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RootAction {
    /// Send these bytes.
    Send(ConnectionId, Vec<u8>),
    /// Close once everything before is sent.
    Close(ConnectionId),
}

#[derive(Debug)]
struct HalfOpen {
    decoder: Decoder,
    since: Instant,
    nonce: Nonce,
    stage: Stage,
}

#[derive(Clone, Copy, Debug)]
enum Stage {
    Silent,
    Challenged(Nonces),
    Proven,
}

#[derive(Debug)]
struct Joined {
    connection: ConnectionId,
    hello: Hello,
}

/// Why a half-open connection is dropped.
enum Dropped {
    Malformed,
    WrongSecret,
    WrongVersion,
    Slow,
}

/// The state of joining at rank 0.
#[derive(Debug)]
pub struct RootJoin {
    secret: Secret,
    own: Hello,
    limits: JoinLimits,
    started: Instant,
    half_open: BTreeMap<ConnectionId, HalfOpen>,
    joined: BTreeMap<Rank, Joined>,
    ranks_of: BTreeMap<ConnectionId, Rank>,
    actions: VecDeque<RootAction>,
    outcome: Option<Result<Roster, JoinFailure>>,
    strays: Strays,
    waiting_next: Instant,
}

impl RootJoin {
    /// Starts to wait for ranks `1..own.ranks`.
    #[must_use]
    pub fn new(secret: Secret, own: Hello, limits: JoinLimits, now: Instant) -> RootJoin {
        let mut join = RootJoin {
            secret,
            own,
            limits,
            started: now,
            half_open: BTreeMap::new(),
            joined: BTreeMap::new(),
            ranks_of: BTreeMap::new(),
            actions: VecDeque::new(),
            outcome: None,
            strays: Strays::default(),
            waiting_next: now + limits.waiting_every,
        };
        join.finish_if_complete();
        join
    }

    /// The next thing to do.
    pub fn next_action(&mut self) -> Option<RootAction> {
        self.actions.pop_front()
    }

    /// How joining ended, once it has. Actions may still be due.
    #[must_use]
    pub fn outcome(&self) -> Option<&Result<Roster, JoinFailure>> {
        self.outcome.as_ref()
    }

    /// Whether somebody is in the middle of introducing itself. After a failure the driver bears
    /// with them for a moment: those who prove to know the secret hear why it failed, instead of
    /// a closed connection that would look like a wrong secret.
    #[must_use]
    pub fn has_half_open(&self) -> bool {
        !self.half_open.is_empty()
    }

    /// The connection of each joined rank.
    #[must_use]
    pub fn connections(&self) -> BTreeMap<Rank, ConnectionId> {
        self.joined.iter().map(|(rank, joined)| (*rank, joined.connection)).collect()
    }

    /// The connections that came to nothing.
    #[must_use]
    pub fn strays(&self) -> Strays {
        self.strays
    }

    /// When [`RootJoin::tick`] is due.
    #[must_use]
    pub fn poll_timeout(&self) -> Instant {
        let deadline = (self.started + self.limits.deadline).min(self.waiting_next);
        let stale = self.half_open.values().map(|peer| peer.since + self.limits.half_open).min();
        stale.map_or(deadline, |stale| stale.min(deadline))
    }

    /// Whether a new connection has a place now: under pressure the oldest half-open one that had
    /// its second yields, younger ones are left alone and newcomers wait in the listener.
    #[must_use]
    pub fn has_room(&self, now: Instant) -> bool {
        self.half_open.len() < self.limits.half_open_max || self.yielding(now).is_some()
    }

    fn yielding(&self, now: Instant) -> Option<ConnectionId> {
        let patience = self.limits.half_open.min(Duration::from_secs(1));
        let (connection, peer) = self.half_open.iter().min_by_key(|(_, peer)| peer.since)?;
        (now.since(peer.since) >= patience).then_some(*connection)
    }

    /// A connection arrived; `nonce` is fresh randomness for its challenge.
    pub fn accepted(&mut self, connection: ConnectionId, nonce: Nonce, now: Instant) {
        if matches!(self.outcome, Some(Ok(_))) || !self.has_room(now) {
            self.strays.slow += 1;
            self.actions.push_back(RootAction::Close(connection));
            return;
        }
        if self.half_open.len() >= self.limits.half_open_max
            && let Some(oldest) = self.yielding(now)
        {
            self.drop_half_open(oldest, Dropped::Slow);
        }
        let decoder = Decoder::new(STRANGER_FRAME_BYTES_MAX);
        let peer = HalfOpen { decoder, since: now, nonce, stage: Stage::Silent };
        self.half_open.insert(connection, peer);
    }

    /// Bytes arrived.
    pub fn received(&mut self, connection: ConnectionId, mut bytes: &[u8]) {
        if let Some(rank) = self.ranks_of.get(&connection) {
            // Nothing is due from a joined rank before the roster.
            if !bytes.is_empty() && self.outcome.is_none() {
                self.finish(Err(JoinFailure::Died { rank: *rank }));
            }
            return;
        }
        while let Some(peer) = self.half_open.get_mut(&connection) {
            match peer.decoder.feed(&mut bytes) {
                Ok(None) => return,
                Err(_) => self.drop_half_open(connection, Dropped::Malformed),
                Ok(Some(frame)) => match Message::decode(&frame) {
                    Ok(message) => self.step(connection, message),
                    Err(_) => self.drop_half_open(connection, Dropped::Malformed),
                },
            }
        }
        // Bytes behind a Hello: out of turn.
        if !bytes.is_empty() && self.ranks_of.contains_key(&connection) {
            self.received(connection, bytes);
        }
    }

    /// A connection was closed by its peer, or broke.
    pub fn closed(&mut self, connection: ConnectionId) {
        if self.half_open.contains_key(&connection) {
            self.drop_half_open(connection, Dropped::Malformed);
        } else if let Some(rank) = self.ranks_of.remove(&connection)
            && self.outcome.is_none()
        {
            self.joined.remove(&rank);
            self.finish(Err(JoinFailure::Died { rank }));
        }
    }

    /// Time passed.
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
        let stale = |peer: &HalfOpen| now.since(peer.since) >= self.limits.half_open;
        let slow: Vec<_> =
            self.half_open.iter().filter(|(_, peer)| stale(peer)).map(|(id, _)| *id).collect();
        slow.into_iter().for_each(|connection| self.drop_half_open(connection, Dropped::Slow));
        if now >= self.waiting_next {
            self.waiting_next = now + self.limits.waiting_every;
            let (ranks, count) = self.missing();
            self.tell_joined(&Message::Waiting { ranks, count });
        }
    }

    fn step(&mut self, connection: ConnectionId, message: Message) {
        let Some(peer) = self.half_open.get_mut(&connection) else { return };
        match (peer.stage, message) {
            (Stage::Silent, Message::Open { protocol: PROTOCOL_VERSION, nonce }) => {
                peer.stage = Stage::Challenged(Nonces { connector: nonce, root: peer.nonce });
                let challenge = Message::Challenge { nonce: peer.nonce };
                self.send(connection, &challenge);
            }
            (Stage::Silent, Message::Open { protocol, .. }) => {
                let failure = JoinFailure::Protocol { root: PROTOCOL_VERSION, peer: protocol };
                self.send(connection, &Message::Refused(failure));
                self.drop_half_open(connection, Dropped::WrongVersion);
            }
            (Stage::Challenged(nonces), Message::Proof { proof }) => {
                self.judge(connection, &nonces, &proof);
            }
            (Stage::Proven, Message::Hello(hello)) => self.admit(connection, hello),
            _ => self.drop_half_open(connection, Dropped::Malformed),
        }
    }

    fn judge(&mut self, connection: ConnectionId, nonces: &Nonces, answer: &Proof) {
        if !proves(answer, &self.secret, Role::Connector, nonces) {
            return self.drop_half_open(connection, Dropped::WrongSecret);
        }
        let own = proof(&self.secret, Role::Root, nonces);
        self.send(connection, &Message::RootProof { proof: own });
        if let Some(peer) = self.half_open.get_mut(&connection) {
            peer.stage = Stage::Proven;
        }
    }

    fn admit(&mut self, connection: ConnectionId, hello: Hello) {
        self.half_open.remove(&connection);
        let ended = self.outcome.as_ref().and_then(|outcome| outcome.as_ref().err()).cloned();
        if let Some(failure) = ended.or_else(|| self.objection(&hello)) {
            self.send(connection, &Message::Refused(failure.clone()));
            self.actions.push_back(RootAction::Close(connection));
            return self.finish(Err(failure));
        }
        self.ranks_of.insert(connection, hello.rank);
        self.joined.insert(hello.rank, Joined { connection, hello });
        self.finish_if_complete();
    }

    /// What speaks against a rank that knows the secret: then the ranks were started wrongly, and
    /// no waiting can mend it.
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
        self.finish(Ok(Roster { members }));
    }

    fn finish(&mut self, outcome: Result<Roster, JoinFailure>) {
        if self.outcome.is_some() {
            return;
        }
        match &outcome {
            Ok(roster) => {
                let strangers: Vec<_> = self.half_open.keys().copied().collect();
                for connection in strangers {
                    self.drop_half_open(connection, Dropped::Slow);
                }
                let ranks = self.own.ranks;
                for (index, part) in roster.members.chunks(ROSTER_MEMBERS_MAX).enumerate() {
                    let first = Rank::try_from(index * ROSTER_MEMBERS_MAX).unwrap_or(Rank::MAX);
                    self.tell_joined(&Message::Roster { ranks, first, members: part.to_vec() });
                }
            }
            Err(failure) => {
                self.tell_joined(&Message::Refused(failure.clone()));
                let joined: Vec<_> = self.joined.values().map(|j| j.connection).collect();
                self.actions.extend(joined.into_iter().map(RootAction::Close));
            }
        }
        self.outcome = Some(outcome);
    }

    fn drop_half_open(&mut self, connection: ConnectionId, why: Dropped) {
        self.half_open.remove(&connection);
        self.actions.push_back(RootAction::Close(connection));
        *match why {
            Dropped::Malformed => &mut self.strays.malformed,
            Dropped::WrongSecret => &mut self.strays.wrong_secret,
            Dropped::WrongVersion => &mut self.strays.wrong_version,
            Dropped::Slow => &mut self.strays.slow,
        } += 1;
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
