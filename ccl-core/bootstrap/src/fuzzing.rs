//! Fuzz targets of this crate, as in `ccl_core::fuzzing`: frames, messages, and the state machines
//! behind them.

use crate::{
    Activity, Awaited, Contact, Control, ControlTiming, Decoder, FRAME_BYTES_MAX, Hello,
    JoinLimits, Member, MemberJoin, Message, Note, Reply, RootAction, RootJoin, Secret, UniqueId,
};
use ccl_core::time::Instant;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Bytes of the fuzzer, read as decisions. Once all bytes are read, every further decision is 0.
struct Script<'a>(&'a [u8]);

impl<'a> Script<'a> {
    fn byte(&mut self) -> u8 {
        self.0.split_off_first().copied().unwrap_or(0)
    }

    /// Takes a count from the next byte, and then this number of bytes, or all that are left.
    fn bytes(&mut self) -> &'a [u8] {
        let count = usize::from(self.byte()).min(self.0.len());
        let (front, rest) = self.0.split_at(count);
        self.0 = rest;
        front
    }
}

fn framed(body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).unwrap_or(u32::MAX);
    [&length.to_le_bytes()[..], body].concat()
}

/// Tests the body of a frame: a message that decodes must decode again from its encoding.
pub fn message(data: &[u8]) {
    if let Ok(message) = Message::decode(data) {
        assert_eq!(Message::decode(&message.encode()).as_ref(), Ok(&message));
        let _ = format!("{message:?}");
    }
}

/// Tests a stream of frames: cut anywhere, it gives the same frames or the same error.
pub fn frames(data: &[u8]) {
    let mut script = Script(data);
    let length_max = usize::from(script.byte());
    let cut = usize::from(script.byte()).max(1);
    let read = |chunks: &mut dyn Iterator<Item = &[u8]>| {
        let (mut decoder, mut found) = (Decoder::new(length_max), Vec::new());
        for mut chunk in chunks {
            loop {
                match decoder.feed(&mut chunk) {
                    Ok(Some(frame)) => {
                        assert!(frame.len() <= length_max);
                        found.push(frame);
                    }
                    Ok(None) => break,
                    Err(error) => return (found, Some(error)),
                }
            }
        }
        (found, None)
    };
    let whole = read(&mut std::iter::once(script.0));
    assert_eq!(read(&mut script.0.chunks(cut)), whole);
}

const RANKS: u32 = 3;

fn hello(rank: u32) -> Hello {
    Hello {
        rank,
        ranks: RANKS,
        library: "1".to_owned(),
        configuration: [7; 32],
        member: Member { host: [1; 16], process: rank, contact: Contact::default() },
    }
}

fn secret() -> Secret {
    Secret::from_bytes([5; 32])
}

/// Tests joining at rank 0: strangers send anything, while members behave correctly.
pub fn join_root(data: &[u8]) {
    let mut script = Script(data);
    let mut now = Instant::ZERO;
    let limits = JoinLimits { half_open_max: 4, ..JoinLimits::default() };
    let mut root = RootJoin::new(secret(), hello(0), limits, now);
    let mut members: BTreeMap<u64, MemberJoin> = BTreeMap::new();
    let (mut connections, mut ended) = (0u64, None);
    while !script.0.is_empty() {
        let what = script.byte();
        let connection = u64::from(what >> 3) % connections.max(1);
        match what & 7 {
            0 => {
                root.accepted(connections, [9; 32], now);
                connections += 1;
            }
            1 => {
                let rank = u32::from(script.byte());
                root.accepted(connections, [9; 32], now);
                members.insert(connections, MemberJoin::new(secret(), hello(rank), [8; 32]));
                connections += 1;
            }
            2 => root.received(connection, script.bytes()),
            3 => root.received(connection, &framed(script.bytes())),
            4 => root.closed(connection),
            5 => {
                now = now + Duration::from_millis(u64::from(script.byte()) * 10);
                root.tick(now);
            }
            _ => {
                let said = members.get_mut(&connection).map(MemberJoin::take_outbox);
                root.received(connection, &said.unwrap_or_default());
            }
        }
        while let Some(action) = root.next_action() {
            if let RootAction::Send(to, bytes) = action {
                assert!(bytes.len() <= FRAME_BYTES_MAX + 4);
                if let Some(member) = members.get_mut(&to) {
                    member.received(&mut &bytes[..]);
                }
            }
        }
        // Once joining has ended, its outcome stays the same.
        ended = ended.or_else(|| root.outcome().cloned());
        assert_eq!(root.outcome(), ended.as_ref());
        let _ = (root.poll_timeout(), root.has_room(now), root.connections(), root.strays());
    }
}

/// Tests a rank other than 0 that joins or asks for all members. The listener to which it connects
/// sends anything, before or after proving that it knows the secret.
pub fn join_member(data: &[u8]) {
    let mut script = Script(data);
    let stage = script.byte();
    let fetches = stage & 128 != 0;
    let mut member = match fetches {
        true => MemberJoin::fetch(secret(), RANKS, [8; 32]),
        false => MemberJoin::new(secret(), hello(1), [8; 32]),
    };
    let mut root = RootJoin::new(secret(), hello(0), JoinLimits::default(), Instant::ZERO);
    root.accepted(0, [9; 32], Instant::ZERO);
    // Stages of the listener: 0: a stranger; 1: it has challenged; 2: it has proved the secret.
    for _ in 0..stage % 3 {
        root.received(0, &member.take_outbox());
        while let Some(action) = root.next_action() {
            if let RootAction::Send(_, bytes) = action {
                member.received(&mut &bytes[..]);
            }
        }
    }
    let mut ended = None;
    while !script.0.is_empty() {
        match script.byte() & 3 {
            0 => member.received(&mut script.bytes()),
            3 => member.closed(),
            _ => member.received(&mut &framed(script.bytes())[..]),
        }
        // Once joining has ended, its outcome stays the same.
        ended = ended.or_else(|| member.outcome().cloned());
        assert_eq!(member.outcome(), ended.as_ref());
        let _ = (member.take_outbox(), member.missing(), member.is_introduced());
    }
    match ended {
        Some(Ok(Reply::Members(members))) => {
            assert!(fetches && members.len() == RANKS as usize);
        }
        Some(Ok(Reply::Referred(_))) => assert!(!fetches),
        _ => {}
    }
}

/// Tests the control connections of one rank: strangers and neighbours send anything, come and go.
/// The first connection is with a neighbour that has proved that it knows the secret.
pub fn control(data: &[u8]) {
    let mut script = Script(data);
    let rank = u32::from(script.byte()) % RANKS;
    let mut now = Instant::ZERO;
    let mut control = control_of(rank);
    let neighbour = connect(&mut control, &mut control_of((rank + 1) % RANKS), rank);
    let mut connections = neighbour + 1;
    while !script.0.is_empty() {
        let what = script.byte();
        let connection = u64::from(what >> 3) % connections;
        match what & 7 {
            0 => control.received(connection, script.bytes(), now),
            1 => {
                now = now + Duration::from_millis(u64::from(script.byte()) * 20);
                control.tick(now);
                if what >> 3 == 31 {
                    control.overdue(Duration::from_secs(1), now);
                }
            }
            2 if what >> 3 == 0 => control.leave(),
            2 => control.hung_up(connection, now),
            3 => connections = connections.max(control.accepted([9; 32], now) + 1),
            4 => match control.next_dial() {
                Some((dialed, _)) if what >> 3 == 0 => control.dial_failed(dialed, true, now),
                Some((dialed, _)) => control.dialed(dialed, [8; 32], now),
                None => drop(control.contribute(script.bytes().to_vec())),
            },
            5 => control.received(neighbour, &framed(script.bytes()), now),
            _ => control.received(connection, &framed(script.bytes()), now),
        }
        if control.wants_note() {
            control.note(note(), now);
        }
        connections = connections.max(control.connections().last().map_or(0, |last| last + 1));
        for connection in control.connections() {
            control.sent(connection, usize::MAX);
            control.is_over(connection);
        }
        let _ = (control.poll_timeout(), control.unlinked(), control.verdict().is_ok());
    }
}

fn note() -> Note {
    Note {
        activity: Activity::Waiting,
        sequence: 5,
        call: 6,
        what: "barrier #5".to_owned(),
        steps: (1, 2),
        unchanged_ms: 7,
        awaited: vec![Awaited { peer: 2, receives: true }],
    }
}

fn control_of(rank: u32) -> Control {
    let timing = ControlTiming::default();
    Control::new(rank, RANKS, secret(), timing, Arc::default(), Instant::ZERO)
}

/// Connects `one`, which is rank `rank`, with `other`, the next rank. Returns the number of the
/// connection in `one`.
fn connect(one: &mut Control, other: &mut Control, rank: u32) -> u64 {
    let dial = |from: &mut Control, to: u32| {
        std::iter::from_fn(|| from.next_dial()).find(|(_, rank)| *rank == to)
    };
    let (here, there) = match dial(one, (rank + 1) % RANKS) {
        Some((here, _)) => {
            one.dialed(here, [8; 32], Instant::ZERO);
            (here, other.accepted([9; 32], Instant::ZERO))
        }
        None => {
            let there = dial(other, rank).map_or(0, |(there, _)| there);
            other.dialed(there, [8; 32], Instant::ZERO);
            (one.accepted([9; 32], Instant::ZERO), there)
        }
    };
    for _ in 0..4 {
        let said = one.outbox(here).to_vec();
        one.sent(here, said.len());
        other.received(there, &said, Instant::ZERO);
        let said = other.outbox(there).to_vec();
        other.sent(there, said.len());
        one.received(here, &said, Instant::ZERO);
    }
    here
}

/// Tests the text of a unique id: an id that parses must parse from its own text as the same id.
pub fn unique_id(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    if let Ok(id) = text.parse::<UniqueId>() {
        let written = id.to_secret_string();
        let again = written.parse::<UniqueId>().map(|id| (id.to_secret_string(), id.endpoints));
        assert_eq!(again, Ok((written, id.endpoints)));
    }
}

#[cfg(test)]
#[path = "../../../fuzz/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    use super::replay::replay;

    #[test]
    fn messages() {
        replay("message", super::message);
    }

    #[test]
    fn frames() {
        replay("frames", super::frames);
    }

    #[test]
    fn joining_at_rank_0() {
        replay("join_root", super::join_root);
    }

    #[test]
    fn joining_at_other_ranks() {
        replay("join_member", super::join_member);
    }

    #[test]
    fn the_control_target_begins_with_a_connected_neighbour() {
        for rank in 0..super::RANKS {
            let mut control = super::control_of(rank);
            let neighbour = (rank + 1) % super::RANKS;
            super::connect(&mut control, &mut super::control_of(neighbour), rank);
            assert!(
                !control.unlinked().contains(&neighbour),
                "rank {rank} is not linked with rank {neighbour}"
            );
        }
    }

    #[test]
    fn control_connections() {
        replay("control", super::control);
    }

    #[test]
    fn unique_ids() {
        replay("unique_id", super::unique_id);
    }
}
