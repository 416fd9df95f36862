//! The messages between ranks, and their bytes.

use super::PROTOCOL_VERSION;
use super::failure::Failure;
use super::handshake::{Nonce, Proof};
use super::notes::Noted;
use super::ranks::in_words;
use super::verdict::{Answer, Ask, Verdict};
use ccl_core::encoding::{List, MessageError, Text, decode, decode_first, encode};
use ccl_core::types::Rank;
use core::net::{IpAddr, Ipv6Addr};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use thiserror::Error;

/// Largest number of bytes of a library version.
const VERSION_BYTES_MAX: usize = 64;
/// Largest number of missing ranks that are named one by one; the others are only counted.
pub const MISSING_NAMED_MAX: usize = 16;
/// Largest number of members in a part of a roster; such a part is far below a frame's bound.
const PART_MEMBERS_MAX: usize = 4096;

/// Introduction of a rank, sent once the rank has proved that it knows the secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Rank of the sender.
    pub rank: Rank,
    /// Number of ranks, as the sender was told.
    pub ranks: u32,
    /// Version of the library; equal on all ranks.
    #[serde(with = "Text::<VERSION_BYTES_MAX>")]
    pub library: String,
    /// Digest of the configuration that the planner reads; equal on all ranks.
    pub configuration: [u8; 32],
    /// Host, process and control port of the rank.
    pub member: Member,
}

/// Host, process and control port of a rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Member {
    /// Opaque identity of the host: equal for ranks that share one.
    pub host: [u8; 16],
    /// Process id on that host.
    pub process: u32,
    /// Address of the control port.
    pub contact: Contact,
}

/// Address where a rank listens for control connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Contact {
    /// IPv6 address (IPv4 mapped). Zero stands for the address at which the connecting rank reaches
    /// rank 0. The listener is then rank 0, or a rank on rank 0's host.
    ip: [u8; 16],
    /// TCP port.
    pub port: u16,
}

impl Contact {
    /// Returns the contact of a port at `ip`. `None` stands for the address at which the connecting
    /// rank reaches rank 0.
    #[must_use]
    pub fn new(ip: Option<IpAddr>, port: u16) -> Contact {
        let ip = ip.map_or([0; 16], |ip| match ip {
            IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
            IpAddr::V6(ip) => ip.octets(),
        });
        Contact { ip, port }
    }

    /// Returns the address. `None` stands for the address at which the connecting rank reaches
    /// rank 0.
    #[must_use]
    pub fn ip(&self) -> Option<IpAddr> {
        (self.ip != [0; 16]).then(|| Ipv6Addr::from(self.ip).to_canonical())
    }
}

/// All ranks of a communicator, in order of rank.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roster {
    /// Value that distinguishes this communicator from all others with the same secret.
    pub session: [u8; 32],
    /// Members, one per rank.
    pub members: Vec<Member>,
}

impl Roster {
    /// Returns the number of different hosts.
    #[must_use]
    pub fn hosts(&self) -> usize {
        self.members.iter().map(|m| m.host).collect::<std::collections::BTreeSet<_>>().len()
    }

    /// Returns the roster as messages for a rank that asked for it.
    pub(super) fn parts(&self) -> impl Iterator<Item = Message> {
        (0..)
            .step_by(PART_MEMBERS_MAX)
            .zip(self.members.chunks(PART_MEMBERS_MAX))
            .map(|(first, members)| Message::Members { first, members: members.to_vec() })
    }
}

/// Message of rank 0 to each rank when all have joined: the ranks to ask for the roster. Rank 0
/// does not send the roster to all ranks, because the length of the roster grows with the number of
/// ranks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Referral {
    /// Value that distinguishes this communicator from all others with the same secret.
    pub session: [u8; 32],
    /// Ancestors of the receiver in the tree down which the roster passes, with their contacts: the
    /// parent of the receiver first, rank 0 last. Each ancestor gets the roster before the
    /// receiver.
    pub elders: Vec<(Rank, Contact)>,
}

/// Returns the ranks that have the roster before `rank` has it, nearest first: the ancestors of
/// `rank` in the binomial tree. The parent of a rank is its number with the lowest set bit cleared.
pub(super) fn elders(rank: Rank) -> impl Iterator<Item = Rank> {
    let parent = |rank: &Rank| (*rank > 0).then(|| rank & (rank - 1));
    std::iter::successors(parent(&rank), parent)
}

/// Reason why joining failed. [`JoinFailure::Protocol`] goes only to the peer of the other version,
/// and the other ranks can still join. Any other reason ends the joining: rank 0 sends it to every
/// rank that had joined, and to every rank that it refuses from then on.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
pub enum JoinFailure {
    /// A peer speaks another version of the joining protocol.
    #[error(
        "rank 0 speaks version {root} of the joining protocol, this process version {peer}: run \
         the same ferroccl release everywhere"
    )]
    Protocol {
        /// Version of rank 0.
        root: u16,
        /// Version of the peer.
        peer: u16,
    },
    /// A rank runs another release.
    #[error(
        "rank {rank} runs ferroccl {library}, rank 0 runs {root_library}: run the same release \
         everywhere"
    )]
    Library {
        /// Rank that runs another release.
        rank: Rank,
        /// Version that it runs.
        #[serde(with = "Text::<VERSION_BYTES_MAX>")]
        library: String,
        /// Version of rank 0.
        #[serde(with = "Text::<VERSION_BYTES_MAX>")]
        root_library: String,
    },
    /// A process joined as a rank that the communicator does not have.
    #[error("a process joined as rank {rank}, but there are {ranks} ranks, counted from 0")]
    RankOutOfRange {
        /// Rank that the process claims.
        rank: Rank,
        /// Number of ranks of the communicator, as rank 0 was told.
        ranks: u32,
    },
    /// A rank was told another number of ranks.
    #[error(
        "rank {rank} was started as one of {ranks} ranks, but rank 0 as one of {root_ranks}: start \
         all ranks with the same number of ranks"
    )]
    RanksDiffer {
        /// Rank that was told another number.
        rank: Rank,
        /// Number of ranks that it was told.
        ranks: u32,
        /// Number of ranks that rank 0 was told.
        root_ranks: u32,
    },
    /// Two processes claim one rank.
    #[error(
        "two processes joined as rank {rank}: process {first} and process {second}: give each \
         process a rank of its own"
    )]
    DuplicateRank {
        /// Rank that both claim.
        rank: Rank,
        /// Process id of the process that joined first.
        first: u32,
        /// Process id of the other process.
        second: u32,
    },
    /// Two ranks are configured differently.
    #[error(
        "the configuration of rank {rank} differs from that of rank 0: give all ranks the same \
         FERROCCL_* variables and configuration file"
    )]
    ConfigurationDiffers {
        /// Rank that differs from rank 0.
        rank: Rank,
    },
    /// Some ranks did not join in time.
    #[error(
        "{} did not join within {waited_ms} ms: check that every rank runs and can reach rank 0",
        in_words(.ranks, *.count)
    )]
    Missing {
        /// Lowest missing ranks, at most [`MISSING_NAMED_MAX`].
        #[serde(with = "List::<MISSING_NAMED_MAX>")]
        ranks: Vec<Rank>,
        /// Number of all missing ranks.
        count: u32,
        /// Time that rank 0 waited, in milliseconds.
        waited_ms: u32,
    },
    /// A rank ended while the others were still joining.
    #[error("rank {rank} hung up while the ranks were still joining: see that rank's messages")]
    Died {
        /// Rank that ended.
        rank: Rank,
    },
}

/// Encoding for `#[serde(with = "WithMagic")]`: the magic bytes of ferroccl, then the value.
struct WithMagic;

const MAGIC: [u8; 4] = *b"FCCL";

impl WithMagic {
    fn serialize<T: Serialize, S: Serializer>(value: &T, to: S) -> Result<S::Ok, S::Error> {
        (MAGIC, value).serialize(to)
    }

    fn deserialize<'de, T, D>(from: D) -> Result<T, D::Error>
    where
        T: Deserialize<'de>,
        D: Deserializer<'de>,
    {
        match <([u8; 4], T)>::deserialize(from)? {
            (MAGIC, value) => Ok(value),
            _ => Err(D::Error::custom("not a ferroccl process")),
        }
    }
}

/// Index of the variant [`Message::Open`], with which the message's encoding begins.
const OPEN: u32 = 0;

/// One message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the fields say what they are; the variants say when they are sent")]
pub enum Message {
    /// First message of the connector: its version of the protocol, and its nonce, which is read as
    /// zero if the reader has another version.
    Open {
        #[serde(with = "WithMagic")]
        protocol: u16,
        nonce: Nonce,
    },
    /// Challenge to the connector, which must prove that it knows the secret.
    Challenge {
        #[serde(with = "WithMagic")]
        nonce: Nonce,
    },
    /// Proof of the connector.
    Proof { proof: Proof },
    /// Proof of the accepting side.
    RootProof { proof: Proof },
    /// Introduction of the connector.
    Hello(Hello),
    /// List of the ranks that are still missing, which rank 0 sends now and then.
    Waiting {
        #[serde(with = "List::<MISSING_NAMED_MAX>")]
        ranks: Vec<Rank>,
        count: u32,
    },
    /// Refusal that ends the joining.
    Refused(JoinFailure),
    /// Message of rank 0 when all ranks have joined: the ranks that know the members.
    Referral(Referral),
    /// Request on a control port: the connector is rank `from` and expects rank `to`.
    Link { from: Rank, to: Rank },
    /// Answer to `Link`: the acceptor is `to`, and the link is up.
    Welcome,
    /// Request for the members, from a connector on a control port.
    Fetch,
    /// Answer to `Fetch`: members, from rank `first` on.
    Members { first: Rank, members: Vec<Member> },
    /// Contribution of `rank` to an exchange.
    Part { sequence: u64, rank: Rank, blob: Vec<u8> },
    /// Sign of life.
    Heartbeat,
    /// Fact: `rank` left in good order after taking part in `exchanges` exchanges. From `rank`
    /// itself, this is a goodbye.
    Left { rank: Rank, exchanges: u64 },
    /// Fact: a rank is dead, or at least counts as dead.
    Dead(Failure),
    /// Fact: this failure ends the communicator. The rank to blame is not necessarily dead.
    Failed(Failure),
    /// Question of a coordinator.
    Ask(Ask),
    /// An answer on its way to the coordinator.
    Answer(Answer),
    /// Fact: the survivors have agreed on this verdict.
    Decided(Verdict),
    /// Question about what each rank is doing, because the deadline of `asker` has passed.
    Inquire { asker: Rank, attempt: u32 },
    /// Note of a rank, on its way to the asker.
    Noted(Noted),
}

impl Message {
    /// Returns the body of the message's frame.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        encode(self)
    }

    /// Reads a message from the body of a frame.
    ///
    /// # Errors
    /// The bytes are no message of this protocol.
    pub fn decode(bytes: &[u8]) -> Result<Message, MessageError> {
        // The bytes after the version number of an `Open` depend on the version, so these bytes are
        // not read in an `Open` of another version.
        if let Ok(((OPEN, MAGIC, protocol), _)) = decode_first::<(u32, [u8; 4], u16)>(bytes)
            && protocol != PROTOCOL_VERSION
        {
            return Ok(Message::Open { protocol, nonce: [0; 32] });
        }
        decode(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TEXT_BYTES_MAX;
    use crate::failure::FailureReason;
    use crate::notes::{AWAITED_MAX, Activity, Awaited, Note};
    use crate::verdict::{Question, Vote};
    use crate::{FRAME_BYTES_MAX, STRANGER_FRAME_BYTES_MAX};
    use proptest::prelude::*;

    fn samples() -> Vec<Message> {
        let contact = Contact::new(Some("10.0.0.7".parse().unwrap()), 4);
        let member = Member { host: [3; 16], process: 77, contact };
        let text = || "x".repeat(TEXT_BYTES_MAX);
        let version = || "9".repeat(VERSION_BYTES_MAX);
        let hello = Hello { rank: 1, ranks: 2, library: version(), configuration: [4; 32], member };
        let mut all = vec![
            Message::Open { protocol: PROTOCOL_VERSION, nonce: [1; 32] },
            Message::Challenge { nonce: [2; 32] },
            Message::Proof { proof: [3; 32] },
            Message::RootProof { proof: [4; 32] },
            Message::Hello(hello),
            Message::Waiting { ranks: vec![1, 2], count: 9 },
            Message::Referral(Referral { session: [9; 32], elders: vec![(4, member.contact); 2] }),
            Message::Fetch,
            Message::Members { first: 1, members: vec![member; 2] },
            Message::Link { from: 5, to: 1 },
            Message::Welcome,
            Message::Part { sequence: 5, rank: 1, blob: vec![6; 7] },
            Message::Part { sequence: 5, rank: 1, blob: vec![] },
            Message::Heartbeat,
            Message::Left { rank: 3, exchanges: 2 },
        ];
        all.extend(agreeing());
        all.extend(comparing());
        for failure in [
            JoinFailure::Protocol { root: 1, peer: 2 },
            JoinFailure::Library { rank: 1, library: version(), root_library: version() },
            JoinFailure::RankOutOfRange { rank: 9, ranks: 4 },
            JoinFailure::RanksDiffer { rank: 1, ranks: 2, root_ranks: 3 },
            JoinFailure::DuplicateRank { rank: 1, first: 2, second: 3 },
            JoinFailure::ConfigurationDiffers { rank: 1 },
            JoinFailure::Missing { ranks: vec![1; 16], count: 20, waited_ms: 5 },
            JoinFailure::Died { rank: 1 },
        ] {
            all.push(Message::Refused(failure));
        }
        for reason in [
            FailureReason::HungUp,
            FailureReason::Withdrew { text: text() },
            FailureReason::Refused,
            FailureReason::Agreed,
            FailureReason::Silent { silence_ms: 3000 },
            FailureReason::Aborted { text: text() },
            FailureReason::Reported { by: 4, text: text() },
            FailureReason::Protocol { text: text() },
            FailureReason::Stuck { stalled_ms: 1000, text: text() },
        ] {
            all.push(Message::Dead(Failure { rank: 2, reason: reason.clone() }));
            all.push(Message::Failed(Failure { rank: 2, reason }));
        }
        all
    }

    fn agreeing() -> Vec<Message> {
        let cause = Failure { rank: 9, reason: FailureReason::HungUp };
        let (dead, survivors) = (vec![0, 9], vec![1, 2, 3, 17]);
        let verdict =
            Verdict { epoch: 1, dead, cause, last_completed: 7, survivors, rendezvous_port: 80 };
        let empty = Verdict { dead: vec![], survivors: vec![], ..verdict.clone() };
        let ask = |question, previous| {
            Message::Ask(Ask { epoch: 2, coordinator: 1, attempt: 3, question, previous })
        };
        let answer = |vote| Message::Answer(Answer { epoch: 2, coordinator: 1, rank: 17, vote });
        vec![
            ask(Question::Prepare, None),
            ask(Question::Accept(verdict.clone()), Some(empty.clone())),
            answer(Vote::Accepted),
            answer(Vote::Promised { completed: 6, accepted: None }),
            answer(Vote::Promised { completed: 6, accepted: Some((4, verdict.clone())) }),
            Message::Decided(verdict),
            Message::Decided(empty),
        ]
    }

    fn comparing() -> Vec<Message> {
        let note = |activity, awaited| Note {
            activity,
            sequence: 5,
            call: 6,
            what: "all_reduce #5".to_owned(),
            steps: (1, 2),
            unchanged_ms: 7,
            awaited,
        };
        let noted = |note| Message::Noted(Noted { asker: 1, attempt: 2, rank: 3, note });
        let both = [true, false].map(|receives| Awaited { peer: 9, receives });
        vec![
            Message::Inquire { asker: 1, attempt: 2 },
            noted(note(Activity::Outside, vec![])),
            noted(note(Activity::Waiting, both.to_vec())),
            noted(note(Activity::Aside, both.repeat(AWAITED_MAX / 2))),
        ]
    }

    #[test]
    fn a_contact_returns_the_address_that_it_was_made_of() {
        for ip in ["10.0.0.1", "fe80::2", "::1", "127.0.0.1"] {
            let ip: IpAddr = ip.parse().unwrap();
            assert_eq!(Contact::new(Some(ip), 1).ip(), Some(ip));
        }
        assert_eq!(Contact::new(None, 1).ip(), None);
    }

    #[test]
    fn every_message_survives_encoding_and_truncated_ones_are_refused() {
        for message in samples() {
            let bytes = message.encode();
            assert_eq!(Message::decode(&bytes).as_ref(), Ok(&message));
            for length in 0..bytes.len() {
                assert!(
                    Message::decode(&bytes[..length]).is_err(),
                    "the first {length} bytes of {message:?} are accepted"
                );
            }
            let longer = [&bytes[..], &[0]].concat();
            assert!(Message::decode(&longer).is_err(), "{message:?} is accepted with a byte more");
        }
    }

    #[test]
    fn messages_of_strangers_fit_the_bound_of_their_frames() {
        for message in samples() {
            use Message::{Challenge, Hello, Link, Open, Proof, RootProof};
            if matches!(message, Open { .. } | Challenge { .. } | Proof { .. } | RootProof { .. })
                || matches!(message, Hello(_) | Link { .. })
            {
                assert!(message.encode().len() <= STRANGER_FRAME_BYTES_MAX, "{message:?}");
            }
        }
    }

    #[test]
    fn the_largest_contribution_to_an_exchange_fits_a_frame() {
        let blob = vec![0; crate::BLOB_BYTES_MAX];
        let bytes = Message::Part { sequence: 0, rank: 0, blob }.encode();
        assert!(bytes.len() <= FRAME_BYTES_MAX);
    }

    #[test]
    fn another_protocol_version_is_read_whatever_follows_it() {
        let mut bytes = Message::Open { protocol: 700, nonce: [1; 32] }.encode();
        bytes.truncate(9);
        let read = Message::decode(&bytes).unwrap();
        assert_eq!(read, Message::Open { protocol: 700, nonce: [0; 32] });
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        let text = "é".repeat(TEXT_BYTES_MAX);
        let reason = FailureReason::Aborted { text };
        let bytes = Message::Failed(Failure { rank: 0, reason }).encode();
        match Message::decode(&bytes).unwrap() {
            Message::Failed(Failure { reason: FailureReason::Aborted { text }, .. }) => {
                assert_eq!(text, "é".repeat(TEXT_BYTES_MAX / 2));
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn missing_ranks_are_named() {
        let text = |ranks: Vec<Rank>, count| {
            JoinFailure::Missing { ranks, count, waited_ms: 2000 }.to_string()
        };
        assert!(text(vec![3], 1).starts_with("rank 3 did not join within 2000 ms"));
        assert!(text(vec![3, 5], 2).starts_with("ranks 3, 5 did not"));
        assert!(text(vec![3, 5], 40).starts_with("ranks 3, 5, ... (40 in all) did not"));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..200), kind in 0u8..36,
        ) {
            let _ = Message::decode(&bytes);
            if let Ok(message) = Message::decode(&[&[kind][..], &bytes].concat())
                && !matches!(message, Message::Open { .. }) {
                    prop_assert_eq!(Message::decode(&message.encode()), Ok(message));
                }
        }
    }
}
