//! Failures of writes, of queue pairs, of a port's link and of whole devices, and their reports.

use std::time::Duration;

use ccl_core::time::Instant;
use ccl_core::transport::{Event, WorkRequest};
use ccl_transport_verbs::Options;
use rdma_sys::*;

use crate::pair::{End, go_on, joined};

/// Number of bytes of a put: too many to be inline.
const BYTES: usize = 4096;

fn options(policy: &str, acknowledged: bool) -> Options {
    Options { policy: policy.parse().unwrap(), acknowledged, ..Options::default() }
}

/// Returns the put `number`. Each put has memory of its own.
fn put(end: &End, number: u32) -> WorkRequest {
    let mut put = end.put(number as usize * BYTES, BYTES, Some(number));
    let WorkRequest::Put { id, .. } = &mut put;
    *id = number.into();
    put
}

fn post(end: &mut End, numbers: std::ops::Range<u32>) {
    let work: Vec<_> = numbers.map(|number| put(end, number)).collect();
    assert_eq!(end.lane.post(ccl_clock::now(), &work).unwrap(), work.len());
}

fn done(end: &End) -> Vec<u32> {
    let id = |event: &Event| match event {
        Event::Done { id } => Some(*id as u32),
        _ => None,
    };
    end.events.iter().filter_map(id).collect()
}

/// Returns the immediates of the puts that have arrived, and checks their bytes.
fn arrived(end: &End) -> Vec<u32> {
    let name = |event: &Event| match event {
        Event::Arrived { immediate, bytes, .. } => {
            assert_eq!(*bytes, BYTES);
            Some(*immediate)
        }
        _ => None,
    };
    let names: Vec<u32> = end.events.iter().filter_map(name).collect();
    assert!(names.iter().all(|number| byte(end, *number) == *number as u8 + 1));
    names
}

/// Returns the last byte of a put's memory.
fn byte(end: &End, number: u32) -> u8 {
    let mut byte = [0];
    end.region.read((number as usize + 1) * BYTES - 1, &mut byte).unwrap();
    byte[0]
}

/// Returns the reason of the link's loss, if it is lost. Checks that a loss is reported once.
fn lost(end: &End) -> Option<&str> {
    let mut reasons = end.events.iter().filter_map(|event| match event {
        Event::Lost { reason, .. } => Some(reason.as_str()),
        _ => None,
    });
    let reason = reasons.next();
    assert_eq!(reasons.next(), None, "the loss was reported twice");
    reason
}

/// Returns two sides after a put has shown that they are joined. The first side's memory is filled
/// for `puts` puts.
fn working(options: &Options, puts: u32) -> [End; 2] {
    let mut ends = joined(options);
    for number in 0..puts {
        let text = [number as u8 + 1; BYTES];
        ends[0].region.write(number as usize * BYTES, &text).unwrap();
    }
    post(&mut ends[0], 0..1);
    go_on(&mut ends, |[one, other]| done(one) == [0] && arrived(other) == [0]);
    ends
}

/// Polls until both sides have lost the link; then checks that nothing more happens.
fn lose(ends: &mut [End; 2]) {
    go_on(ends, |ends| ends.iter().all(|end| lost(end).is_some()));
    let events = ends.each_ref().map(|end| end.events.len());
    for _ in 0..200 {
        ends.iter_mut().for_each(End::poll);
    }
    assert_eq!(ends.each_ref().map(|end| end.events.len()), events);
}

#[test]
fn a_write_that_fails_ends_the_link_and_is_not_done() {
    for (status, meaning) in [
        (IBV_WC_LOC_QP_OP_ERR, "the device's own link went down"),
        (IBV_WC_LOC_PROT_ERR, "was not registered"),
        (IBV_WC_REM_ACCESS_ERR, "has revoked access to the memory"),
        (IBV_WC_RETRY_EXC_ERR, "the peer does not answer"),
        (IBV_WC_RNR_RETRY_EXC_ERR, "does not poll its completions"),
        (IBV_WC_FATAL_ERR, "the device has failed"),
    ] {
        for acknowledged in [false, true] {
            let mut ends = working(&options("1", acknowledged), 5);
            ends[0].soft.fail_next(status);
            post(&mut ends[0], 1..4);
            lose(&mut ends);
            assert_eq!(done(&ends[0]), [0], "{meaning}");
            assert_eq!(arrived(&ends[1]), [0], "{meaning}");
            assert!((1..4).all(|number| byte(&ends[1], number) == 0), "{meaning}");
            let [own, theirs] = ends.each_ref().map(|end| lost(end).unwrap());
            assert!(own.contains(meaning) && own.contains("a write to"), "{own}");
            assert!(theirs.contains("says: ") && theirs.contains("a write to"), "{theirs}");
            // A put to a lost peer is accepted and never completes.
            post(&mut ends[0], 4..5);
            (0..200).for_each(|_| ends.iter_mut().for_each(End::poll));
            assert_eq!((done(&ends[0]), arrived(&ends[1])), (vec![0], vec![0]));
        }
    }
}

/// Every put that is reported as done has arrived, even if one put fails while others are under
/// way on other queue pairs.
#[test]
fn striped_puts_are_done_only_if_they_have_arrived() {
    for policy in ["3", "qps=4 order=split chunk=1K"] {
        for late in [false, true] {
            for round in 0..20 {
                let mut ends = working(&options(policy, true), 17);
                post(&mut ends[0], 1..9);
                (0..round).for_each(|_| ends.iter_mut().for_each(End::poll));
                let before = done(&ends[0]).len();
                match late {
                    false => ends[0].soft.fail_next(IBV_WC_RETRY_EXC_ERR),
                    true => ends[0].soft.fail_next_late(IBV_WC_RETRY_EXC_ERR),
                }
                post(&mut ends[0], 9..17);
                lose(&mut ends);
                let (done, arrived) = (done(&ends[0]), arrived(&ends[1]));
                assert!(
                    done.iter().all(|id| arrived.contains(id)),
                    "puts {done:?} are done, but only {arrived:?} have arrived"
                );
                assert!(
                    done.len() >= before && done.len() < 17,
                    "{before} to 16 puts must be done, but {done:?} are done"
                );
                assert!(late || arrived.len() < 17, "the failed put arrived: {arrived:?}");
            }
        }
    }
}

#[test]
fn a_queue_pair_that_fails_ends_its_link() {
    for (event, meaning) in [
        (IBV_EVENT_QP_FATAL, "says that it failed"),
        (IBV_EVENT_QP_REQ_ERR, "it received an invalid request"),
        (IBV_EVENT_QP_ACCESS_ERR, "a peer accessed memory that it may not access"),
    ] {
        for side in [0, 1] {
            let mut ends = working(&options("2", true), 2);
            ends[side].soft.raise(event);
            post(&mut ends[0], 1..2);
            lose(&mut ends);
            assert_eq!((done(&ends[0]), arrived(&ends[1])), (vec![0], vec![0]));
            let (own, name) = (lost(&ends[side]).unwrap(), ends[side].soft.name());
            assert!(own.contains("the queue pair had failed") && own.contains(&name), "{own}");
            assert!(own.contains(meaning), "{own}");
        }
    }
}

/// Checks that the links end whichever lane reads the event: libibverbs returns an event only once,
/// and the transport's `Port` keeps the failure for all its lanes.
#[test]
fn a_device_that_fails_ends_its_links() {
    for (event, meaning) in [
        (IBV_EVENT_DEVICE_FATAL, "the device failed"),
        (IBV_EVENT_CQ_ERR, "a completion queue overflowed"),
    ] {
        for side in [0, 1] {
            let mut ends = working(&options("1", true), 3);
            post(&mut ends[0], 1..2);
            ends[side].soft.raise(event);
            lose(&mut ends);
            let [own, theirs] = [side, 1 - side].map(|side| lost(&ends[side]).unwrap());
            let name = ends[side].soft.name();
            assert!(own.contains(meaning) && own.contains(&name), "{own}");
            assert!(theirs.contains("says: ") && theirs.contains(meaning), "{theirs}");
            let (done, arrived) = (done(&ends[0]), arrived(&ends[1]));
            assert!(
                done.iter().all(|id| arrived.contains(id)),
                "puts {done:?} are done, but only {arrived:?} have arrived"
            );
        }
    }
}

#[test]
fn events_of_changed_addresses_and_partitions_end_no_link() {
    let mut ends = working(&options("1", true), 2);
    for event in [IBV_EVENT_LID_CHANGE, IBV_EVENT_GID_CHANGE, IBV_EVENT_PKEY_CHANGE] {
        ends[0].soft.raise(event);
    }
    std::thread::sleep(Duration::from_millis(2));
    post(&mut ends[0], 1..2);
    go_on(&mut ends, |[one, other]| done(one) == [0, 1] && arrived(other) == [0, 1]);
    assert_eq!(ends.each_ref().map(lost), [None; 2]);
}

/// Polls both sides often, with the time `now`.
fn poll_at(ends: &mut [End; 2], now: Instant) {
    for _ in 0..200 {
        for end in ends.iter_mut() {
            end.lane.poll(now, &mut end.events).unwrap();
        }
    }
}

#[test]
fn a_port_whose_link_comes_back_in_time_keeps_its_connections() {
    let (patience, moment) = (Options::default().link_within, Duration::from_millis(10));
    for side in [0, 1] {
        let mut ends = working(&options("1", true), 2);
        let since = ccl_clock::now() + moment;
        ends[side].soft.set_link(false);
        post(&mut ends[0], 1..2);
        poll_at(&mut ends, since);
        poll_at(&mut ends, since + (patience - moment));
        assert_eq!(ends.each_ref().map(lost), [None; 2]);
        assert_eq!((done(&ends[0]), arrived(&ends[1])), (vec![0], vec![0]));
        ends[side].soft.set_link(true);
        go_on(&mut ends, |[one, other]| done(one) == [0, 1] && arrived(other) == [0, 1]);
        poll_at(&mut ends, since + 3 * patience);
        assert_eq!(
            ends.each_ref().map(lost),
            [None; 2],
            "a connection was lost after the port's link came back"
        );
    }
}

#[test]
fn a_port_whose_link_stays_down_loses_its_connections() {
    let (patience, moment) = (Options::default().link_within, Duration::from_millis(10));
    for side in [0, 1] {
        let mut ends = working(&options("1", true), 2);
        let since = ccl_clock::now() + moment;
        ends[side].soft.raise(IBV_EVENT_PORT_ERR);
        poll_at(&mut ends, since);
        poll_at(&mut ends, since + patience);
        // The other side receives the reason.
        poll_at(&mut ends, since + patience + moment);
        let [own, theirs] = [side, 1 - side].map(|side| lost(&ends[side]).unwrap());
        assert!(own.contains("the port lost its link 3.0s ago"), "{own}");
        assert!(theirs.contains("says: ") && theirs.contains("lost its link"), "{theirs}");
    }
}
