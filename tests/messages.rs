//! Sends and receives between two ranks, alone and in groups.

use ccl_core::config::Bytes;
use ccl_harness::data::bits;
use ccl_harness::{config_with, ranks, ranks_with};
use ferroccl::communicator::CallError;
use ferroccl::{Communicator, Error};
use std::time::Duration;

/// Returns the `index`th message from one rank to another.
fn message(from: u32, to: u32, index: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| bits(from as usize, to as usize * 64 + index, at) as u8).collect()
}

/// Length of a message that is larger than all slots of a link together.
const LARGE: usize = 3_000_001;

#[test]
fn large_messages_go_around_a_ring_in_groups() {
    for n in [1, 2, 3, 5] {
        ranks(n, move |c| {
            let (next, previous) = ((c.rank() + 1) % n, (c.rank() + n - 1) % n);
            let data = message(c.rank(), next, 0, LARGE);
            let mut got = vec![0; LARGE];
            c.group().send(&data, next).recv(&mut got, previous).run().unwrap();
            assert!(got == message(previous, c.rank(), 0, LARGE));
        });
    }
}

#[test]
fn small_sends_return_before_their_receives_begin() {
    ranks(3, |c| {
        let (next, previous) = ((c.rank() + 1) % 3, (c.rank() + 2) % 3);
        for index in 0..100 {
            let mut got = [0; 33];
            c.send(&message(c.rank(), next, index, 33), next).unwrap();
            c.recv(&mut got, previous).unwrap();
            assert_eq!(got, *message(previous, c.rank(), index, 33));
        }
    });
}

#[test]
fn a_group_sends_several_messages_to_one_peer_in_order() {
    let lengths = [5, 0, 400_000, 1, 131_072, 131_073, 0, 7];
    ranks(2, move |c| {
        let peer = 1 - c.rank();
        let data: Vec<_> =
            lengths.iter().enumerate().map(|(i, n)| message(c.rank(), peer, i, *n)).collect();
        let mut got: Vec<_> = lengths.iter().map(|n| vec![0; *n]).collect();
        let mut group = c.group();
        for (data, got) in data.iter().zip(&mut got) {
            group = group.send(data, peer).recv(got, peer);
        }
        group.run().unwrap();
        for (index, got) in got.iter().enumerate() {
            assert!(*got == message(peer, c.rank(), index, lengths[index]), "message {index}");
        }
    });
}

#[test]
fn a_group_that_is_never_run_leaves_nothing_to_the_next() {
    ranks(2, |c| {
        let peer = 1 - c.rank();
        let never = [0xff_u8; 9];
        drop(c.group().send(&never, peer));
        let (data, mut got) = (message(c.rank(), peer, 0, 5), vec![0; 5]);
        c.group().send(&data, peer).recv(&mut got, peer).run().unwrap();
        assert_eq!(got, message(peer, c.rank(), 0, 5));
    });
}

#[test]
fn a_rank_sends_to_itself() {
    for n in [1, 3] {
        ranks(n, |c| {
            let rank = c.rank();
            let (first, second) = (message(rank, rank, 0, 70_000), message(rank, rank, 1, 3));
            let (mut a, mut b) = (vec![0; 70_000], vec![0; 3]);
            c.group()
                .send(&first, rank)
                .send(&second, rank)
                .recv(&mut a, rank)
                .recv(&mut b, rank)
                .run()
                .unwrap();
            assert!(a == first && b == second);
        });
    }
}

/// Exchanges messages of many lengths between all ranks. Some pairs have no message, some have two.
fn irregular(c: &mut Communicator) {
    let (rank, n) = (c.rank(), c.ranks());
    for round in 0..20 {
        let length = |from: u32, to: u32, index: usize| match (bits(
            from as usize,
            to as usize,
            round * 2 + index,
        )) % 5
        {
            0 => None,
            1 => Some(0),
            2 => Some(13 + round),
            3 => Some(9001),
            _ => Some(50_000 + round),
        };
        let pairs = || (0..n).flat_map(|peer| (0..2).map(move |index| (peer, index)));
        let sends: Vec<_> = pairs()
            .filter_map(|(peer, i)| Some((peer, message(rank, peer, i, length(rank, peer, i)?))))
            .collect();
        let mut recvs: Vec<_> = pairs()
            .filter_map(|(peer, i)| Some((peer, i, vec![0; length(peer, rank, i)?])))
            .collect();
        let mut group = c.group();
        for (peer, data) in &sends {
            group = group.send(data, *peer);
        }
        for (peer, _, data) in &mut recvs {
            group = group.recv(data, *peer);
        }
        group.run().unwrap();
        for (peer, index, got) in recvs {
            assert!(
                got == message(peer, rank, index, got.len()),
                "wrong message from rank {peer} in round {round}"
            );
        }
    }
}

#[test]
fn every_message_of_irregular_groups_arrives() {
    for n in [2, 5] {
        ranks(n, irregular);
    }
    for (slots, channels) in [(1, 1), (2, 2)] {
        let small = config_with(|config| {
            (config.slots, config.channels) = (slots, channels);
            config.slot_bytes = Bytes(4096);
        });
        ranks_with(3, small, irregular);
    }
}

#[test]
fn the_error_of_a_send_without_a_receive_names_the_awaited_rank() {
    let impatient = config_with(|config| config.timeout = Duration::from_millis(300));
    let errors = ranks_with(2, impatient, |c| {
        let peer = 1 - c.rank();
        c.send(&vec![0u8; LARGE], peer).unwrap_err()
    });
    // It suffices that one rank names the slot that it waits for. Possibly the other rank learns of
    // the failure before it has sent anything.
    let waits = |error: &Error| matches!(error, Error::Deadline { .. });
    let names_slot = |error: &Error| error.to_string().contains("waiting for a free slot at rank");
    assert!(errors.iter().any(|error| waits(error) && names_slot(error)), "{errors:?}");
}

#[test]
fn a_send_that_does_not_match_its_peers_call_is_an_error() {
    let errors = ranks(2, |c| match c.rank() {
        0 => c.send(&[1u8; 10], 1).and_then(|()| c.barrier()).unwrap_err().to_string(),
        _ => c.recv(&mut [0u8; 11], 0).unwrap_err().to_string(),
    });
    assert!(errors[1].contains("10 bytes") && errors[1].contains("11 bytes"), "{errors:?}");
    assert!(errors[0].contains("10 bytes"), "{errors:?}");
    let errors = ranks(2, |c| match c.rank() {
        // The first barrier may succeed: rank 1 enters that barrier before it sees the message.
        0 => {
            c.send(&[1u8; 10], 1).unwrap();
            c.barrier().and_then(|()| c.barrier()).unwrap_err().to_string()
        }
        _ => c.barrier().unwrap_err().to_string(),
    });
    assert!(errors[1].contains("a send of 10 bytes"), "{errors:?}");
}

#[test]
fn unknown_peers_and_self_sends_without_a_receive_are_refused() {
    let errors = ranks(2, |c| {
        let texts = [
            c.send(&[1u8], 2).unwrap_err(),
            c.recv(&mut [1u8], 7).unwrap_err(),
            c.send(&[1u8], c.rank()).unwrap_err(),
        ];
        c.barrier().unwrap();
        texts.map(|error| error.to_string())
    });
    assert!(errors[0][0].contains('2') && errors[0][1].contains('7'), "{errors:?}");
}

/// The ends of a link agree on the order of messages, not on their grouping.
#[test]
fn the_two_sides_may_group_differently() {
    ranks(2, |c| {
        let messages = [message(0, 1, 0, LARGE), message(0, 1, 1, LARGE / 3)];
        if c.rank() == 0 {
            messages.iter().for_each(|data| c.send(data, 1).unwrap());
        } else {
            let (mut first, mut second) = (vec![0; LARGE], vec![0; LARGE / 3]);
            c.group().recv(&mut first, 0).recv(&mut second, 0).run().unwrap();
            assert!(first == messages[0] && second == messages[1]);
        }
    });
}

/// The ends compare whole lengths. Here, each chunk that the receiver expects arrives with the
/// right length, so only the whole length shows that the message is longer than the receive.
#[test]
fn a_message_longer_than_its_receive_is_noticed() {
    let config = config_with(|config| config.slot_bytes = Bytes(4096));
    let errors = ranks_with(2, config, |c| {
        if c.rank() == 0 { c.send(&[1u8; 16384], 1) } else { c.recv(&mut [0u8; 8192], 0) }
    });
    let error = errors[1].as_ref().unwrap_err().to_string();
    assert!(error.contains("disagree"), "{error}");
}

#[test]
fn a_message_to_the_rank_itself_must_have_the_expected_length() {
    ranks(1, |c| {
        let mut got = [0u8; 64];
        let error = c.group().send(&[1u8; 3], 0).recv(&mut got, 0).run().unwrap_err();
        assert!(error.to_string().contains("to itself"), "{error}");
        let length = CallError::OwnMessage { rank: 0, sent: 3, expected: 64 };
        assert!(matches!(error, Error::Call(error) if error == length));
    });
}
