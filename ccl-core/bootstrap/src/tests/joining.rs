//! Tests of joining: the state machine of rank 0 against those of the other ranks, with every byte
//! passed by hand.

use super::{at, frame, hello, secret};
use crate::*;
use std::collections::BTreeMap;
use std::time::Duration;

const DEADLINE: Duration = Duration::from_secs(2);

fn limits() -> JoinLimits {
    JoinLimits { deadline: DEADLINE, half_open_max: 4, ..JoinLimits::default() }
}

/// Rank 0 and the ranks that connect to it.
struct Star {
    root: RootJoin,
    members: BTreeMap<ConnectionId, MemberJoin>,
    closed: Vec<ConnectionId>,
    raw: BTreeMap<ConnectionId, Vec<u8>>,
}

impl Star {
    fn new(ranks: u32) -> Star {
        let root = RootJoin::new(secret(), hello(0, ranks), limits(), at(0));
        Star { root, members: BTreeMap::new(), closed: Vec::new(), raw: BTreeMap::new() }
    }

    fn connect(&mut self, id: ConnectionId, secret: Secret, hello: Hello) {
        self.root.accepted(id, [id as u8; 32], at(0));
        self.members.insert(id, MemberJoin::new(secret, hello, [200 + id as u8; 32]));
        self.settle();
    }

    fn settle(&mut self) {
        loop {
            let mut quiet = true;
            for (id, member) in &mut self.members {
                let bytes = member.take_outbox();
                quiet &= bytes.is_empty();
                if !self.closed.contains(id) {
                    self.root.received(*id, &bytes);
                }
            }
            while let Some(action) = self.root.next_action() {
                quiet = false;
                match action {
                    RootAction::Send(id, bytes) => match self.members.get_mut(&id) {
                        Some(member) => member.received(&mut &bytes[..]),
                        None => self.raw.entry(id).or_default().extend(bytes),
                    },
                    RootAction::Close(id) => {
                        self.closed.push(id);
                        if let Some(member) = self.members.get_mut(&id)
                            && member.outcome().is_none()
                        {
                            member.closed();
                        }
                    }
                }
            }
            if quiet {
                return;
            }
        }
    }

    fn raw(&mut self, id: ConnectionId, bytes: &[u8]) {
        self.root.accepted(id, [id as u8; 32], at(0));
        self.root.received(id, bytes);
        self.settle();
    }

    fn failure(&self, id: ConnectionId) -> MemberJoinError {
        self.members[&id].outcome().cloned().unwrap().unwrap_err()
    }
}

/// Checks that each rank is let in, and gets the contacts of its elders: the lower ranks that
/// result from clearing the lowest set bit of its rank again and again, down to rank 0.
#[test]
fn each_rank_is_let_in_and_gets_the_contacts_of_its_elders() {
    for ranks in [1, 2, 3, 8, 17, 5000] {
        let mut star = Star::new(ranks);
        for rank in (1..ranks).rev() {
            assert!(star.root.outcome().is_none());
            // Reads only this rank's outbox. `Star::connect` reads the outboxes of all members, for
            // each new member: that would take quadratic time.
            star.root.accepted(rank.into(), [1; 32], at(0));
            let mut member = MemberJoin::new(secret(), hello(rank, ranks), [2; 32]);
            for _ in 0..3 {
                star.root.received(rank.into(), &member.take_outbox());
                while let Some(RootAction::Send(id, bytes)) = star.root.next_action() {
                    let to = if id == u64::from(rank) {
                        &mut member
                    } else {
                        star.members.get_mut(&id).unwrap()
                    };
                    to.received(&mut &bytes[..]);
                }
            }
            star.members.insert(rank.into(), member);
        }
        let roster = star.root.outcome().unwrap().clone().unwrap();
        let processes: Vec<_> = roster.members.iter().map(|m| m.process).collect();
        assert_eq!(processes, (100..100 + ranks).collect::<Vec<_>>());
        assert_eq!(roster.hosts(), 1);
        assert_ne!(roster.session, [0; 32]);
        for (rank, member) in &star.members {
            let Some(Ok(Reply::Referred(referral))) = member.outcome() else {
                panic!("rank {rank} has no referral");
            };
            let Referral { session, elders } = referral;
            assert_eq!((session, elders.last().unwrap().0), (&roster.session, 0));
            let rank = *rank as u32;
            assert_eq!(elders.len() as u32, rank.count_ones());
            assert_eq!(elders[0].0, rank & (rank - 1));
            for (elder, contact) in elders {
                assert_eq!(*contact, roster.members[*elder as usize].contact);
            }
        }
    }
}

#[test]
fn a_rank_with_a_wrong_secret_is_dropped_silently_and_counted() {
    let mut star = Star::new(2);
    star.connect(1, Secret::from_bytes([6; 32]), hello(1, 2));
    assert_eq!(star.failure(1), MemberJoinError::SecretRefused);
    assert_eq!(star.root.strays().wrong_secret, 1);
    star.connect(2, secret(), hello(1, 2));
    assert!(star.root.outcome().unwrap().is_ok(), "a rank with the right secret must join");
}

#[test]
fn a_root_without_the_secret_is_found_out() {
    let mut member = MemberJoin::new(secret(), hello(1, 2), [1; 32]);
    member.received(&mut &frame(&Message::Challenge { nonce: [2; 32] })[..]);
    let reflected = Message::RootProof { proof: [3; 32] };
    member.received(&mut &frame(&reflected)[..]);
    assert_eq!(member.outcome(), Some(&Err(MemberJoinError::RootUnproven)));
}

#[test]
fn another_protocol_version_is_refused_and_both_versions_are_named() {
    let mut star = Star::new(2);
    star.raw(1, &frame(&Message::Open { protocol: 9, nonce: [0; 32] }));
    let refused = JoinFailure::Protocol { root: PROTOCOL_VERSION, peer: 9 };
    assert_eq!(star.raw[&1], frame(&Message::Refused(refused.clone())));
    assert_eq!((star.root.strays().wrong_version, star.closed.as_slice()), (1, &[1][..]));
    assert!(star.root.outcome().is_none(), "a stranger must not end the joining");

    let mut member = MemberJoin::new(secret(), hello(1, 2), [1; 32]);
    member.received(&mut &star.raw[&1][..]);
    assert_eq!(member.outcome(), Some(&Err(MemberJoinError::Refused(refused))));
}

#[test]
fn strangers_learn_nothing_and_are_dropped_and_counted() {
    let http = b"GET / HTTP/1.1\r\n\r\n";
    let early = frame(&Message::Hello(hello(1, 2)));
    let mut opened = frame(&Message::Open { protocol: PROTOCOL_VERSION, nonce: [0; 32] });
    let mut star = Star::new(2);
    star.raw(1, http);
    star.raw(2, &early);
    star.raw(3, &frame(&Message::Heartbeat));
    assert!(star.raw.is_empty(), "{:?}", star.raw);
    opened.extend(&opened.clone());
    star.raw(4, &opened);
    assert_eq!(star.closed, [1, 2, 3, 4]);
    star.root.accepted(5, [0; 32], at(0));
    star.root.closed(5);
    assert_eq!(star.root.strays(), Strays { malformed: 5, ..Strays::default() });
    star.connect(6, secret(), hello(1, 2));
    assert!(star.root.outcome().unwrap().is_ok());
}

#[test]
fn slow_connections_time_out_and_make_room_for_new_ones() {
    let mut root = RootJoin::new(secret(), hello(0, 2), JoinLimits::default(), at(0));
    root.accepted(1, [0; 32], at(0));
    root.tick(at(4_999));
    assert_eq!(root.strays().slow, 0);
    root.tick(at(5_000));
    assert_eq!((root.strays().slow, root.next_action()), (1, Some(RootAction::Close(1))));

    let mut star = Star::new(2);
    for id in 1..=4 {
        star.root.accepted(id, [0; 32], at(id));
    }
    assert!(!star.root.has_room(at(500)), "young connections must not be closed");
    assert!(star.root.has_room(at(1_001)));
    star.root.accepted(5, [0; 32], at(1_001));
    assert_eq!(star.root.next_action(), Some(RootAction::Close(1)));
    assert_eq!(star.root.next_action(), None);
}

fn everyone_hears(star: &Star, ids: &[ConnectionId], failure: &JoinFailure) {
    assert_eq!(star.root.outcome(), Some(&Err(failure.clone())));
    for id in ids {
        assert_eq!(star.failure(*id), MemberJoinError::Refused(failure.clone()));
        assert!(star.closed.contains(id));
    }
}

#[test]
fn a_rank_started_wrongly_ends_the_joining_and_all_get_the_same_reason() {
    let differing: [(Hello, JoinFailure); 6] = [
        (hello(1, 4), JoinFailure::DuplicateRank { rank: 1, first: 101, second: 101 }),
        (hello(0, 4), JoinFailure::DuplicateRank { rank: 0, first: 100, second: 100 }),
        (hello(4, 4), JoinFailure::RankOutOfRange { rank: 4, ranks: 4 }),
        (hello(2, 8), JoinFailure::RanksDiffer { rank: 2, ranks: 8, root_ranks: 4 }),
        (
            Hello { library: "0.2.0".to_owned(), ..hello(2, 4) },
            JoinFailure::Library {
                rank: 2,
                library: "0.2.0".to_owned(),
                root_library: "0.1.0".to_owned(),
            },
        ),
        (
            Hello { configuration: [9; 32], ..hello(2, 4) },
            JoinFailure::ConfigurationDiffers { rank: 2 },
        ),
    ];
    for (other, failure) in differing {
        let mut star = Star::new(4);
        star.connect(1, secret(), hello(1, 4));
        star.connect(2, secret(), other);
        everyone_hears(&star, &[1, 2], &failure);
    }
}

#[test]
fn a_rank_about_to_introduce_itself_learns_why_joining_failed() {
    let mut star = Star::new(4);
    star.root.accepted(1, [1; 32], at(0));
    let mut late = MemberJoin::new(secret(), hello(3, 4), [2; 32]);
    star.root.received(1, &late.take_outbox());
    star.connect(2, secret(), hello(2, 9));
    assert!(star.root.outcome().is_some() && star.root.has_half_open());
    late.received(&mut &star.raw[&1][..]);
    star.members.insert(1, late);
    star.settle();
    let failure = JoinFailure::RanksDiffer { rank: 2, ranks: 9, root_ranks: 4 };
    everyone_hears(&star, &[1, 2], &failure);
    assert!(!star.root.has_half_open());
    // Rank 1 has no answer yet: its connection has the number 3, below.
    assert!(star.root.has_unsent_answers());
    star.connect(3, secret(), hello(1, 4));
    everyone_hears(&star, &[3], &failure);
    assert!(!star.root.has_unsent_answers());
}

#[test]
fn at_the_deadline_joined_ranks_learn_which_ranks_are_missing() {
    let mut star = Star::new(5);
    star.connect(1, secret(), hello(1, 5));
    star.connect(2, secret(), hello(4, 5));
    star.root.tick(at(1_000));
    star.settle();
    assert_eq!(star.members[&1].missing().as_deref(), Some("ranks 2, 3"));
    star.root.tick(at(1_999));
    assert!(star.root.outcome().is_none());
    assert_eq!(star.root.poll_timeout(), at(2_000));
    star.root.tick(at(2_000));
    star.settle();
    let missing = JoinFailure::Missing { ranks: vec![2, 3], count: 2, waited_ms: 2_000 };
    everyone_hears(&star, &[1, 2], &missing);
    // The missing ranks get no answer: they had time to connect until the deadline.
    assert!(!star.root.has_unsent_answers());
}

#[test]
fn a_rank_that_ends_or_talks_out_of_turn_while_joining_is_named() {
    for talks in [false, true] {
        let mut star = Star::new(4);
        star.connect(1, secret(), hello(1, 4));
        star.connect(2, secret(), hello(2, 4));
        if talks {
            star.root.received(2, &[0]);
        } else {
            star.root.closed(2);
        }
        star.settle();
        everyone_hears(&star, &[1], &JoinFailure::Died { rank: 2 });
    }
}

#[test]
fn the_error_for_a_closed_connection_depends_on_its_stage() {
    let after = |count: usize, mut member: MemberJoin| {
        let mut star = Star::new(3);
        star.root.accepted(1, [1; 32], at(0));
        for _ in 0..count {
            star.root.received(1, &member.take_outbox());
            while let Some(RootAction::Send(_, bytes)) = star.root.next_action() {
                member.received(&mut &bytes[..]);
            }
        }
        member.closed();
        member.outcome().cloned().unwrap().unwrap_err()
    };
    let stages = |count| after(count, MemberJoin::new(secret(), hello(1, 3), [2; 32]));
    assert_eq!(stages(0), MemberJoinError::ClosedEarly);
    assert!(stages(0).is_passing());
    assert_eq!(stages(1), MemberJoinError::SecretRefused);
    assert_eq!(stages(2), MemberJoinError::Refused(JoinFailure::Died { rank: 0 }));
    let fetching = MemberJoin::fetch(secret(), 3, [2; 32]);
    assert_eq!(after(2, fetching), MemberJoinError::NoMembers);
}

#[test]
fn a_member_reports_a_peer_that_is_not_ferroccl() {
    for bytes in [&b"220 mail.example.org ESMTP\r\n"[..], &frame(&Message::Heartbeat)] {
        let mut member = MemberJoin::new(secret(), hello(1, 2), [1; 32]);
        member.received(&mut &bytes[..]);
        let error = member.outcome().cloned().unwrap().unwrap_err();
        assert!(error.to_string().contains("no ferroccl rank"), "{error}");
        assert!(!error.is_passing());
    }
}
