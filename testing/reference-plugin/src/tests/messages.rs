//! Messages arrive as they were sent.

use core::ffi::c_int;
use std::time::Duration;

use super::table::*;

/// Returns test bytes that depend on the seed.
fn bytes(count: usize, seed: usize) -> Vec<u8> {
    (0..count).map(|at| (at * 31 + at / 251 + seed * 17) as u8).collect()
}

#[test]
fn messages_of_all_sizes_arrive_unchanged() {
    let pair = Pair::new();
    for (seed, size) in [0, 1, 127, 128, 129, 4096, 1 << 20, 17 << 20].into_iter().enumerate() {
        let mut out = Buffer::new(pair.send, bytes(size, seed));
        let mut into = [Buffer::new(pair.receive, vec![0; size])];
        let received = irecv(pair.receive, &mut into, &[5]).unwrap();
        let sent = isend(pair.send, &mut out, 5).unwrap();
        let (mut sizes, mut is_sent) = (None, false);
        poll(|| {
            sizes = sizes.or_else(|| test(received).unwrap());
            is_sent = is_sent || test(sent).unwrap().is_some();
            (sizes.is_some() && is_sent).then_some(())
        });
        assert_eq!(sizes.unwrap()[0], size as c_int);
        assert!(into[0].bytes == out.bytes, "a message of {size} bytes arrived changed");
        deregister(pair.send, out.registration).unwrap();
        deregister(pair.receive, into[0].registration).unwrap();
    }
    pair.close();
}

#[test]
fn each_buffer_of_a_group_gets_the_next_message_of_its_tag() {
    let pair = Pair::new();
    let tags = [3, 1, 2, 1, 9, 8, 7, 1];
    let buffer = |seed| Buffer::new(pair.send, bytes(1000, seed));
    let mut into: Vec<Buffer> = (0..16).map(|_| Buffer::new(pair.receive, vec![0; 1000])).collect();
    let (first, second) = into.split_at_mut(8);
    let requests = [irecv(pair.receive, first, &tags), irecv(pair.receive, second, &tags)];
    // The first group's messages of tag 1 are sent before its other messages.
    let order = [(1, 1), (1, 3), (1, 7), (1, 9), (7, 6), (8, 5), (9, 4), (2, 2), (3, 0), (3, 8)];
    let rest = [(2, 10), (1, 11), (9, 12), (8, 13), (7, 14), (1, 15)];
    let mut sends = Vec::new();
    for (tag, seed) in order.into_iter().chain(rest) {
        let mut out = buffer(seed);
        let request = isend(pair.send, &mut out, tag).unwrap();
        sends.push((out, request));
    }
    for request in requests {
        assert_eq!(wait(request.unwrap()), [1000; 8]);
    }
    for (seed, buffer) in into.iter().enumerate() {
        assert!(buffer.bytes == bytes(1000, seed), "part {seed} has wrong bytes");
    }
    sends.iter().for_each(|(_, request)| assert_eq!(wait(*request)[0], 1000));
    pair.close();
}

#[test]
fn a_message_that_nobody_waits_for_lets_others_pass() {
    let pair = Pair::new();
    let mut early = Buffer::new(pair.send, bytes(300_000, 1));
    let mut late = Buffer::new(pair.send, bytes(10, 2));
    let sends = [isend(pair.send, &mut early, 1), isend(pair.send, &mut late, 2)];
    let mut into = [Buffer::new(pair.receive, vec![0; 10])];
    assert_eq!(wait(irecv(pair.receive, &mut into, &[2]).unwrap())[0], 10);
    assert_eq!(into[0].bytes, late.bytes);
    let mut into = [Buffer::new(pair.receive, vec![0; 300_000])];
    assert_eq!(wait(irecv(pair.receive, &mut into, &[1]).unwrap())[0], 300_000);
    assert!(into[0].bytes == early.bytes);
    sends.into_iter().for_each(|request| assert!(wait(request.unwrap())[0] > 0));
    pair.close();
}

#[test]
fn thirty_two_messages_arrive_before_any_request_is_tested() {
    let pair = Pair::new();
    let mut out: Vec<Buffer> =
        (0..32).map(|seed| Buffer::new(pair.send, bytes(100_000, seed))).collect();
    let mut into: Vec<Buffer> =
        (0..32).map(|_| Buffer::new(pair.receive, vec![0; 100_000])).collect();
    let receives: Vec<Pointer> =
        into.chunks_mut(1).map(|one| irecv(pair.receive, one, &[0]).unwrap()).collect();
    let sends: Vec<Pointer> = out.iter_mut().map(|one| isend(pair.send, one, 0).unwrap()).collect();
    // No request is tested, yet the last bytes must arrive.
    let last = into[31].bytes.as_ptr();
    let is_there = |expected: u8| {
        // SAFETY: `into` keeps the byte alive; a test may read it while another thread writes it.
        let seen = unsafe { last.wrapping_add(99_999).read_volatile() };
        (seen == expected).then_some(())
    };
    poll(|| is_there(out[31].bytes[99_999]));
    for ((receive, send), at) in receives.iter().zip(&sends).zip(0..) {
        assert_eq!((wait(*receive)[0], wait(*send)[0]), (100_000, 100_000));
        assert!(into[at].bytes == out[at].bytes, "message {at} arrived changed");
    }
    pair.close();
}

#[test]
fn a_communicator_takes_32_requests_and_no_more() {
    let pair = Pair::new();
    let mut nothing = [Buffer::new(pair.receive, Vec::new())];
    let taken: Vec<Pointer> =
        (0..33).map(|_| irecv(pair.receive, &mut nothing, &[0]).unwrap()).collect();
    assert!(taken[..32].iter().all(|request| !request.is_null()) && taken[32].is_null());
    for request in &taken[..32] {
        let mut empty = Buffer::new(pair.send, Vec::new());
        assert_eq!(wait(isend(pair.send, &mut empty, 0).unwrap())[0], 0);
        assert_eq!(wait(*request)[0], 0);
    }
    pair.close();
}

#[test]
fn a_message_longer_than_its_buffer_is_truncated() {
    let pair = Pair::new();
    for (sent, room) in [(200_000, 1000), (129, 128), (130, 129), (100, 7), (100, 0)] {
        let mut out = Buffer::new(pair.send, bytes(sent, 1));
        let mut into = [Buffer::new(pair.receive, vec![0xee; room])];
        let received = irecv(pair.receive, &mut into, &[1]).unwrap();
        let request = isend(pair.send, &mut out, 1).unwrap();
        assert_eq!(wait(received)[0], room as c_int);
        assert_eq!(into[0].bytes, out.bytes[..room]);
        wait(request);
    }
    pair.close();
}

#[test]
fn a_message_posted_before_the_close_still_arrives() {
    let pair = Pair::new();
    let size = 24 << 20;
    let mut out = Buffer::new(pair.send, bytes(size, 3));
    let expected = out.bytes.clone();
    assert!(!isend(pair.send, &mut out, 1).unwrap().is_null());
    close_send(pair.send).unwrap();
    out.bytes.fill(0);
    let mut into = [Buffer::new(pair.receive, vec![0; size])];
    assert_eq!(wait(irecv(pair.receive, &mut into, &[1]).unwrap())[0], size as c_int);
    assert!(into[0].bytes == expected);
    close_receive(pair.receive).unwrap();
    finalize(pair.context).unwrap();
}

#[test]
fn memory_is_not_written_after_its_deregistration() {
    let pair = Pair::new();
    let size = 24 << 20;
    let mut out = Buffer::new(pair.send, bytes(size, 3));
    let mut into = [Buffer::new(pair.receive, vec![0; size])];
    let received = irecv(pair.receive, &mut into, &[1]).unwrap();
    deregister(pair.receive, into[0].registration).unwrap();
    let sent = isend(pair.send, &mut out, 1).unwrap();
    deregister(pair.send, out.registration).unwrap();
    out.bytes.fill(0);
    assert_eq!(wait(sent)[0], size as c_int);
    std::thread::sleep(Duration::from_millis(20));
    assert!(into[0].bytes.iter().all(|byte| *byte == 0) && test(received).is_err());
    pair.close();
}
