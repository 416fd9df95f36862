//! Joining from the side of every rank but 0. First, rank 0 lets the joining rank in. Then an
//! *elder*, a rank that has the list of members, sends the list to the joining rank. A
//! [`MemberJoin`] is one attempt at one of these two steps, on one connection.

use super::caller::{Caller, MemberJoinError};
use super::frame::{Decoder, append_frame};
use super::handshake::Nonce;
use super::identity::Secret;
use super::message::{Hello, Member, Message, Referral};
use super::ranks::in_words;
use super::{FRAME_BYTES_MAX, STRANGER_FRAME_BYTES_MAX};
use ccl_core::encoding::MessageError;
use ccl_core::types::Rank;

/// Request to the other side.
#[derive(Clone, Debug)]
enum Request {
    Join(Hello),
    /// Request for all members. The value is the number of members.
    Fetch(u32),
}

/// Reply to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Rank 0 let this rank in and names ranks that know the members.
    Referred(Referral),
    /// All members, in order of rank.
    Members(Vec<Member>),
}

/// The state of one attempt to join.
#[derive(Debug)]
pub struct MemberJoin {
    caller: Caller,
    request: Request,
    decoder: Decoder,
    outbox: Vec<u8>,
    members: Vec<Member>,
    missing: Option<(Vec<Rank>, u32)>,
    outcome: Option<Result<Reply, MemberJoinError>>,
}

impl MemberJoin {
    /// Starts joining on a fresh connection to rank 0; `nonce` is fresh randomness.
    #[must_use]
    pub fn new(secret: Secret, own: Hello, nonce: Nonce) -> MemberJoin {
        MemberJoin::begin(secret, Request::Join(own), nonce)
    }

    /// Starts to fetch the list of all `ranks` members, on a fresh connection to the control port
    /// of an elder. `secret` is the secret of the control connections.
    #[must_use]
    pub fn fetch(secret: Secret, ranks: u32, nonce: Nonce) -> MemberJoin {
        MemberJoin::begin(secret, Request::Fetch(ranks), nonce)
    }

    fn begin(secret: Secret, request: Request, nonce: Nonce) -> MemberJoin {
        let mut join = MemberJoin {
            caller: Caller::new(secret, nonce),
            request,
            decoder: Decoder::new(STRANGER_FRAME_BYTES_MAX),
            outbox: Vec::new(),
            members: Vec::new(),
            missing: None,
            outcome: None,
        };
        join.send(&join.caller.open());
        join
    }

    /// Takes the bytes to send.
    pub fn take_outbox(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.outbox)
    }

    /// Returns the outcome of the attempt, once it has ended.
    #[must_use]
    pub fn outcome(&self) -> Option<&Result<Reply, MemberJoinError>> {
        self.outcome.as_ref()
    }

    /// Returns whether both sides have proved that they know the secret. From then on, a joining
    /// rank waits only for the ranks that have not joined yet.
    #[must_use]
    pub fn is_introduced(&self) -> bool {
        self.caller.is_proven()
    }

    /// Returns the missing ranks in words, as rank 0 last reported them.
    #[must_use]
    pub fn missing(&self) -> Option<String> {
        let (ranks, count) = self.missing.as_ref()?;
        Some(in_words(ranks, *count).to_string())
    }

    /// Takes in bytes that arrived. Bytes after the end of joining stay in `bytes`.
    pub fn received(&mut self, bytes: &mut &[u8]) {
        while self.outcome.is_none() {
            match self.decoder.feed(bytes) {
                Ok(None) => return,
                Err(error) => return self.fail(MemberJoinError::AlienFrame(error)),
                Ok(Some(frame)) => match Message::decode(&frame) {
                    Ok(message) => self.step(message),
                    Err(error) => return self.fail(MemberJoinError::Alien(error)),
                },
            }
        }
    }

    /// Handles the end of the connection.
    pub fn closed(&mut self) {
        self.fail(match self.request {
            Request::Fetch(_) if self.caller.is_proven() => MemberJoinError::NoMembers,
            _ => self.caller.closed(),
        });
    }

    fn step(&mut self, message: Message) {
        if !self.caller.is_proven() {
            return self.prove(&message);
        }
        match (&self.request, message) {
            (Request::Join(_), Message::Waiting { ranks, count }) => {
                self.missing = Some((ranks, count));
            }
            (Request::Join(_), Message::Refused(failure)) => {
                self.fail(MemberJoinError::Refused(failure));
            }
            (Request::Join(_), Message::Referral(referral)) => {
                self.outcome = Some(Ok(Reply::Referred(referral)));
            }
            (Request::Fetch(ranks), Message::Members { first, members }) => {
                self.enlist(*ranks, first, members);
            }
            _ => self.fail(MemberJoinError::Alien(MessageError { what: "it is out of turn" })),
        }
    }

    fn prove(&mut self, message: &Message) {
        match self.caller.step(message) {
            Err(error) => self.fail(error),
            Ok(Some(answer)) => self.send(&answer),
            Ok(None) => {
                self.decoder.set_length_max(FRAME_BYTES_MAX);
                self.send(&match &self.request {
                    Request::Join(own) => Message::Hello(own.clone()),
                    Request::Fetch(_) => Message::Fetch,
                });
            }
        }
    }

    fn enlist(&mut self, ranks: u32, first: Rank, members: Vec<Member>) {
        let total = self.members.len() + members.len();
        if first as usize != self.members.len() || members.is_empty() || total > ranks as usize {
            let what = "it does not continue the list of members";
            return self.fail(MemberJoinError::Alien(MessageError { what }));
        }
        self.members.extend(members);
        if total == ranks as usize {
            self.outcome = Some(Ok(Reply::Members(std::mem::take(&mut self.members))));
        }
    }

    fn fail(&mut self, error: MemberJoinError) {
        self.outcome.get_or_insert(Err(error));
    }

    fn send(&mut self, message: &Message) {
        append_frame(&mut self.outbox, &message.encode());
    }
}
