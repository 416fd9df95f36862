//! Gate: the accepting side of the keyed challenge, in which both sides prove that they know the
//! secret. The gate decides which connections may enter, and how long a stranger may take to
//! introduce itself. Rank 0's rendezvous and every rank's control port stand behind a gate.

use super::frame::Decoder;
use super::handshake::{Nonce, Nonces, Role, proof, proves};
use super::identity::Secret;
use super::message::{JoinFailure, Message};
use super::{PROTOCOL_VERSION, STRANGER_FRAME_BYTES_MAX};
use ccl_core::time::Instant;
use std::collections::BTreeMap;
use std::time::Duration;

/// Number of a connection.
pub type ConnectionId = u64;

/// Connections that came to nothing, counted by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Strays {
    /// Connections that sent a malformed message or a message out of turn, or that closed early.
    pub malformed: u64,
    /// Connections that answered the challenge wrongly, because they have another secret.
    pub wrong_secret: u64,
    /// Connections that speak another version of the protocol.
    pub wrong_version: u64,
    /// Connections that this side closed before they had introduced themselves: they were too slow,
    /// the gate was full, or the gate was shut.
    pub slow: u64,
}

impl Strays {
    /// Returns the sum of all counts.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.malformed + self.wrong_secret + self.wrong_version + self.slow
    }
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

/// Verdict on a message of a connection at the gate.
#[derive(Debug)]
pub(super) enum GateVerdict {
    /// The connection gets this answer.
    Answer(Message),
    /// The connection gets this last message, and is to be closed.
    Refuse(Message),
    /// The connection is to be closed without a message.
    Drop,
    /// The connection enters: it has proved that it knows the secret, and this is its first
    /// message. The nonce is from the connection's challenge.
    Enter(Message, Nonce),
}

/// The connections that have not introduced themselves yet.
#[derive(Debug)]
pub(super) struct Gate {
    secret: Secret,
    patience: Duration,
    half_open_max: usize,
    half_open: BTreeMap<ConnectionId, HalfOpen>,
    pub(super) strays: Strays,
}

impl Gate {
    pub(super) fn new(secret: Secret, patience: Duration, half_open_max: usize) -> Gate {
        let (half_open, strays) = (BTreeMap::new(), Strays::default());
        Gate { secret, patience, half_open_max, half_open, strays }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.half_open.is_empty()
    }

    pub(super) fn contains(&self, connection: ConnectionId) -> bool {
        self.half_open.contains_key(&connection)
    }

    /// Returns the time when the next connection times out.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.half_open.values().map(|peer| peer.since + self.patience).min()
    }

    /// Returns whether there is room for a new connection now. At a full gate, the oldest
    /// connection yields once it is a second old; until then, newcomers wait to be accepted.
    pub(super) fn has_room(&self, now: Instant) -> bool {
        self.half_open.len() < self.half_open_max || self.yielding(now).is_some()
    }

    fn yielding(&self, now: Instant) -> Option<ConnectionId> {
        let patience = self.patience.min(Duration::from_secs(1));
        let (connection, peer) = self.half_open.iter().min_by_key(|(_, peer)| peer.since)?;
        (now.since(peer.since) >= patience).then_some(*connection)
    }

    /// Adds a connection to the gate, which must have room. Returns the connection, if any, that
    /// was evicted to make room; the caller must close it.
    pub(super) fn add_half_open(
        &mut self,
        connection: ConnectionId,
        nonce: Nonce,
        now: Instant,
    ) -> Option<ConnectionId> {
        let full = self.half_open.len() >= self.half_open_max;
        let evicted = full.then(|| self.yielding(now)).flatten();
        if let Some(oldest) = evicted {
            self.half_open.remove(&oldest);
            self.strays.slow += 1;
        }
        let decoder = Decoder::new(STRANGER_FRAME_BYTES_MAX);
        let peer = HalfOpen { decoder, since: now, nonce, stage: Stage::Silent };
        self.half_open.insert(connection, peer);
        evicted
    }

    /// Takes bytes up to the end of one message, and judges the message. Returns `None` if `bytes`
    /// ends before the message does, or if the connection is not at the gate (any more).
    pub(super) fn received(
        &mut self,
        connection: ConnectionId,
        bytes: &mut &[u8],
    ) -> Option<GateVerdict> {
        let peer = self.half_open.get_mut(&connection)?;
        let message = match peer.decoder.feed(bytes) {
            Ok(None) => return None,
            Ok(Some(frame)) => Message::decode(&frame).ok(),
            Err(_) => None,
        };
        let verdict = match message {
            Some(message) => self.judge(connection, message),
            None => self.malformed(),
        };
        if !matches!(verdict, GateVerdict::Answer(_)) {
            self.half_open.remove(&connection);
        }
        Some(verdict)
    }

    fn judge(&mut self, connection: ConnectionId, message: Message) -> GateVerdict {
        let Some(peer) = self.half_open.get_mut(&connection) else { return GateVerdict::Drop };
        match (peer.stage, message) {
            (Stage::Silent, Message::Open { protocol: PROTOCOL_VERSION, nonce }) => {
                peer.stage = Stage::Challenged(Nonces { connector: nonce, root: peer.nonce });
                GateVerdict::Answer(Message::Challenge { nonce: peer.nonce })
            }
            (Stage::Silent, Message::Open { protocol, .. }) => {
                self.strays.wrong_version += 1;
                let failure = JoinFailure::Protocol { root: PROTOCOL_VERSION, peer: protocol };
                GateVerdict::Refuse(Message::Refused(failure))
            }
            (Stage::Challenged(nonces), Message::Proof { proof: answer }) => {
                if !proves(&answer, &self.secret, Role::Connector, &nonces) {
                    self.strays.wrong_secret += 1;
                    return GateVerdict::Drop;
                }
                peer.stage = Stage::Proven;
                let own = proof(&self.secret, Role::Root, &nonces);
                GateVerdict::Answer(Message::RootProof { proof: own })
            }
            (Stage::Proven, message) => GateVerdict::Enter(message, peer.nonce),
            _ => self.malformed(),
        }
    }

    /// Counts a malformed message, or one that is out of turn, and drops its connection.
    pub(super) fn malformed(&mut self) -> GateVerdict {
        self.strays.malformed += 1;
        GateVerdict::Drop
    }

    /// Forgets a connection that its peer closed. Returns whether the connection was at the gate.
    pub(super) fn closed(&mut self, connection: ConnectionId) -> bool {
        let stood = self.half_open.remove(&connection).is_some();
        self.strays.malformed += u64::from(stood);
        stood
    }

    /// Removes the connections whose time is up, and returns them to be closed.
    pub(super) fn expire(&mut self, now: Instant) -> Vec<ConnectionId> {
        let patience = self.patience;
        self.send_away(|peer| now.since(peer.since) >= patience)
    }

    /// Removes all connections, and returns them to be closed.
    pub(super) fn shut(&mut self) -> Vec<ConnectionId> {
        self.send_away(|_| true)
    }

    fn send_away(&mut self, whom: impl Fn(&HalfOpen) -> bool) -> Vec<ConnectionId> {
        let chosen = |entry: &(&ConnectionId, &HalfOpen)| whom(entry.1);
        let slow: Vec<_> = self.half_open.iter().filter(chosen).map(|(id, _)| *id).collect();
        for connection in &slow {
            self.half_open.remove(connection);
        }
        self.strays.slow += slow.len() as u64;
        slow
    }
}
