//! Tests of the striping of puts over queue pairs. The devices' traffic counters show the striping.

use std::time::Duration;

use ccl_core::queue_pairs::{Order, Striping};
use ccl_core::transport::{DeviceId, Event, LocalSlice, Secret, Transport, WorkRequest};
use ccl_soft_verbs::{Limits, SoftDevice, Traffic, functions};
use ccl_transport_verbs::{Options, VerbsTransport};

use crate::pair::{BYTES, End, go_on, joined, joined_in};

const CONTROL_CLASS: u8 = 184;

fn options(policy: &str) -> Options {
    let policy = policy.parse().unwrap();
    Options {
        policy,
        traffic_class: 8,
        control_traffic_class: Some(CONTROL_CLASS),
        ..Options::default()
    }
}

/// Sends puts from the first side to the second, one at a time: each put is posted when the
/// previous one is done and has arrived.
fn one_by_one(ends: &mut [End; 2], puts: &[WorkRequest]) {
    for put in puts {
        let posted = ends[0].lane.post(ccl_clock::now(), &[*put]).unwrap();
        assert_eq!(posted, 1);
        await_all(ends, 1);
    }
}

/// Polls both sides until `count` puts are done and have arrived.
fn await_all(ends: &mut [End; 2], count: usize) {
    go_on(ends, |[one, other]| {
        let done = one.events.iter().filter(|event| matches!(event, Event::Done { .. })).count();
        let arrived =
            other.events.iter().filter(|event| matches!(event, Event::Arrived { .. })).count();
        done >= count && arrived >= count
    });
    ends.iter_mut().for_each(|end| end.events.clear());
}

/// Lists the first side's queue pairs of traffic class `class` that have carried something. Each
/// entry has the numbers of writes and of bytes that one queue pair has carried.
fn carried(ends: &[End; 2], class: u8) -> Vec<(u64, u64)> {
    let carried = |traffic: &&Traffic| traffic.traffic_class == class && traffic.writes > 0;
    let traffic = ends[0].soft.traffic();
    traffic.iter().filter(carried).map(|traffic| (traffic.writes, traffic.bytes)).collect()
}

#[test]
fn whole_messages_use_the_queue_pairs_in_turn() {
    let mut ends = joined(&options("qps=4"));
    let puts: Vec<_> = (0..12).map(|at| ends[0].put(at * 4096, 4096, Some(at as u32))).collect();
    one_by_one(&mut ends, &puts);
    assert_eq!(carried(&ends, 8), [(3, 3 * 4096); 4]);
    assert_eq!(carried(&ends, CONTROL_CLASS), []);
}

#[test]
fn parts_of_a_message_are_equal_and_arrive_as_one() {
    let mut ends = joined(&options("qps=4 order=split chunk=64K"));
    let pattern: Vec<u8> = (0..BYTES).map(|at| (at * 7 + at / 251) as u8).collect();
    ends[0].region.write(0, &pattern).unwrap();
    let put = ends[0].put(0, BYTES, Some(5));
    ends[0].lane.post(ccl_clock::now(), &[put]).unwrap();
    go_on(&mut ends, |[_, other]| !other.events.is_empty());
    let arrived = Event::Arrived { endpoint: ends[1].endpoint, immediate: 5, bytes: BYTES };
    assert_eq!(ends[1].events, [arrived], "a message arrives once, with all bytes");
    let mut come = vec![0; BYTES];
    ends[1].region.read(0, &mut come).unwrap();
    assert!(come == pattern);
    assert_eq!(carried(&ends, 8), [(1, BYTES as u64 / 4); 4]);
    go_on(&mut ends, |[one, _]| one.events == [Event::Done { id: 7 }]);
    // A part has at least one chunk, 64 KiB: a put of one chunk and a byte stays whole; a put of
    // two chunks and a byte is cut in two.
    ends.iter_mut().for_each(|end| end.events.clear());
    let puts = [(64 << 10) + 1, (128 << 10) + 1].map(|bytes| ends[0].put(0, bytes, Some(1)));
    one_by_one(&mut ends, &puts);
    let writes: u64 = carried(&ends, 8).iter().map(|(writes, _)| writes).sum();
    assert_eq!(writes, 4 + 1 + 2);
}

#[test]
fn control_puts_have_a_queue_pair_and_a_class_of_their_own() {
    let mut ends = joined(&options("qps=3 order=split chunk=1"));
    let control = |bytes, name| {
        let mut put = ends[0].put(0, bytes, Some(name));
        let WorkRequest::Put { is_control, .. } = &mut put;
        *is_control = true;
        put
    };
    let puts: Vec<_> = (0..10).map(|name| control(name as usize % 2 * 40, name)).collect();
    one_by_one(&mut ends, &puts);
    assert_eq!(carried(&ends, CONTROL_CLASS), [(10, 5 * 40)]);
    assert_eq!(carried(&ends, 8), []);
}

#[test]
fn a_rule_with_a_class_has_queue_pairs_of_that_class() {
    let mut ends = joined(&options("bytes>=1M: qps=2 tc=32; qps=3"));
    let put = ends[0].put(0, 4096, Some(1));
    one_by_one(&mut ends, &[put; 6]);
    assert_eq!((carried(&ends, 8), carried(&ends, 32)), (vec![(2, 8192); 3], vec![]));
    let (endpoint, striping) = (ends[0].endpoint, Striping { pairs: 2, ..Striping::default() });
    ends[0].lane.set_striping(endpoint, &Striping { traffic_class: Some(32), ..striping });
    one_by_one(&mut ends, &[put; 6]);
    assert_eq!((carried(&ends, 8), carried(&ends, 32)), (vec![(2, 8192); 3], vec![(3, 12288); 2]));
    // This striping uses one of the three queue pairs of class 8.
    ends[0].lane.set_striping(endpoint, &Striping { pairs: 1, ..Striping::default() });
    one_by_one(&mut ends, &[put; 6]);
    assert_eq!(carried(&ends, 8)[0], (8, 8 * 4096));
}

#[test]
fn the_class_of_a_lane_applies_to_rules_without_a_class() {
    let mut ends = joined_in(&options("bytes>=1M: qps=1 tc=32; qps=2"), Some(96));
    let put = ends[0].put(0, 4096, Some(1));
    one_by_one(&mut ends, &[put; 4]);
    assert_eq!((carried(&ends, 96), carried(&ends, 8)), (vec![(2, 8192); 2], vec![]));
}

#[test]
fn the_least_loaded_queue_pair_carries_the_next_put() {
    let mut ends = joined(&options("qps=2 order=load_aware"));
    // All puts are posted at once: while the long put is under way on the first queue pair, the
    // short ones go over the second.
    let mut puts = vec![ends[0].put(0, 512 << 10, Some(0))];
    puts.extend((1..9).map(|at| ends[0].put(0, 4096, Some(at))));
    assert_eq!(ends[0].lane.post(ccl_clock::now(), &puts).unwrap(), 9);
    await_all(&mut ends, 9);
    assert_eq!(carried(&ends, 8), [(1, 512 << 10), (8, 8 * 4096)]);
}

#[test]
fn short_puts_of_several_sizes_do_not_wait_behind_a_long_put() {
    let mut ends = joined(&options("qps=2 order=load_aware"));
    let puts = [512 << 10, 4096, 8, 8].into_iter().zip(0..);
    let puts: Vec<_> = puts.map(|(bytes, at)| ends[0].put(0, bytes, Some(at))).collect();
    assert_eq!(ends[0].lane.post(ccl_clock::now(), &puts).unwrap(), 4);
    await_all(&mut ends, 4);
    assert_eq!(carried(&ends, 8), [(1, 512 << 10), (3, 4096 + 16)]);
}

/// Each rule has its own limit of puts under way; credits and CTS do not count.
#[test]
fn no_more_puts_are_under_way_than_the_current_rule_allows() {
    let mut ends = joined(&options("bytes>=1M: qps=1 in_flight=1; qps=2 in_flight=3"));
    assert_eq!(
        ends[0].device.caps().depth_max,
        1024,
        "the limit of one rule does not apply to all calls"
    );
    let puts: Vec<_> = (0..8).map(|at| ends[0].put(0, 4096, Some(at))).collect();
    one_by_one(&mut ends, &puts[..1]);
    let (endpoint, in_force) = (ends[0].endpoint, Striping { pairs: 2, ..Striping::default() });
    for in_flight in [3, 1, 1024] {
        let striping = Striping { order: Order::RoundRobin, in_flight, ..in_force };
        ends[0].lane.set_striping(endpoint, &striping);
        assert_eq!(ends[0].lane.post(ccl_clock::now(), &puts).unwrap(), puts.len());
        let most = puts.len().min(in_flight as usize) * 4096;
        let mut seen = ends[0].soft.under_way();
        assert!(seen <= most, "{seen} bytes under way with in_flight={in_flight}");
        let mut put = ends[0].put(0, 0, Some(99));
        let WorkRequest::Put { is_control, .. } = &mut put;
        *is_control = true;
        ends[0].lane.post(ccl_clock::now(), &[put]).unwrap();
        let all = 2 * (puts.len() + 1);
        let mut at = None;
        go_on(&mut ends, |[one, other]| {
            seen = seen.max(one.soft.under_way());
            let is_it = |event: &Event| matches!(event, Event::Arrived { immediate: 99, .. });
            at = at.or_else(|| other.events.iter().position(is_it));
            one.events.len() + other.events.len() == all
        });
        assert!(seen <= most, "{seen} bytes under way with in_flight={in_flight}");
        // Queue pairs advance in random order, so the credit's position varies; but if it had
        // waited behind all puts, it would arrive last.
        assert!(
            in_flight > 3 || at.unwrap() < puts.len(),
            "the credit arrived behind all puts, at position {at:?}"
        );
        ends.iter_mut().for_each(|end| end.events.clear());
    }
}

/// Each of the 16 queue pairs has room for a quarter of [`Options::writes`], not for a sixteenth:
/// some calls use one queue pair alone.
#[test]
fn one_of_sixteen_queue_pairs_has_room_for_sixteen_writes() {
    let mut ends = joined(&options("qps=16"));
    let puts: Vec<_> = (0..16).map(|at| ends[0].put(0, 4096, Some(at))).collect();
    one_by_one(&mut ends, &puts[..1]);
    let endpoint = ends[0].endpoint;
    ends[0].lane.set_striping(endpoint, &Striping { pairs: 1, ..Striping::default() });
    ends[0].lane.post(ccl_clock::now(), &puts).unwrap();
    // A poll of one software device may carry writes of any other, so tests that run in parallel
    // may already have carried some of this test's writes.
    assert!(ends[0].soft.under_way() > 8 * 4096, "only {} bytes", ends[0].soft.under_way());
    await_all(&mut ends, puts.len());
}

/// The policy's `budget=` limits the bytes under way from a port, but each lane may always have one
/// put under way. Further puts follow as earlier bytes are done.
#[test]
fn the_bytes_under_way_at_a_port_stay_within_its_budget() {
    for (policy, at_once) in [("qps=3 budget=10000", 2), ("qps=2 budget=1", 1), ("qps=2", 12)] {
        let mut ends = joined(&options(policy));
        // The first put connects the two sides.
        let first = ends[0].put(0, 8, Some(30));
        one_by_one(&mut ends, &[first]);
        let puts: Vec<_> =
            (0..12).map(|at| ends[0].put(at * 4096, 4096, Some(at as u32))).collect();
        assert_eq!(ends[0].lane.post(ccl_clock::now(), &puts).unwrap(), 12);
        // A poll of one software device may carry writes of any other, so tests that run in
        // parallel may already have carried some of this test's writes.
        let mut most = ends[0].soft.under_way();
        go_on(&mut ends, |[one, other]| {
            most = most.max(one.soft.under_way());
            one.events.len() + other.events.len() == 2 * puts.len()
        });
        assert!(most <= at_once * 4096, "{policy}: {most} bytes under way");
        ends.iter_mut().for_each(|end| end.events.clear());
        // The puts use up the budget until the sender is polled; a credit must not wait so long.
        let mut put = ends[0].put(0, 8, Some(20));
        let WorkRequest::Put { is_control, .. } = &mut put;
        *is_control = true;
        ends[0].lane.post(ccl_clock::now(), &puts).unwrap();
        ends[0].lane.post(ccl_clock::now(), &[put]).unwrap();
        let until = ccl_clock::now() + Duration::from_secs(20);
        while ends[1].events.len() <= at_once {
            ends[1].poll();
            assert!(ccl_clock::now() < until, "{policy}: {:?}", ends[1].events);
        }
        let is_control = |event: &Event| matches!(event, Event::Arrived { immediate: 20, .. });
        assert!(ends[1].events.iter().any(is_control), "{policy}: {:?}", ends[1].events);
    }
}

/// A lane that waits for budget sleeps only briefly: other lanes may free budget without waking it.
#[test]
fn a_lane_that_waits_for_budget_sleeps_only_briefly() {
    let mut ends = joined(&options("qps=2 budget=4K"));
    let puts: Vec<_> = (0..3).map(|at| ends[0].put(0, 4096, Some(at))).collect();
    one_by_one(&mut ends, &puts[..1]);
    // Software devices carry writes only when one of them is polled. This test polls no lane while
    // the first side's lane sleeps, so a completion can wake the lane only if another test polls.
    assert_eq!(ends[0].lane.post(ccl_clock::now(), &puts).unwrap(), 3);
    let (start, long) = (ccl_clock::now(), Duration::from_secs(60));
    ends[0].lane.sleep(long);
    assert!(ccl_clock::now().since(start) < long / 2);
    await_all(&mut ends, 3);
}

#[test]
fn queue_pairs_use_the_configured_mtu_and_rnr_retries() {
    // The ports of the devices have an MTU of 4096 bytes.
    for (mtu_bytes, mtu) in [(512, 2), (4096, 5)] {
        let options = Options { mtu_bytes, rnr_retries: 3, ..options("2") };
        let mut ends = joined(&options);
        let put = ends[0].put(0, 8, Some(1));
        one_by_one(&mut ends, &[put]);
        let traffic = ends[0].soft.traffic();
        assert!(traffic.iter().all(|pair| (pair.mtu, pair.rnr_retries) == (mtu, 3)));
    }
}

/// Two links of one lane take turns while the budget is short, even if one link posted first.
#[test]
fn links_share_a_budget_fairly() {
    const PUTS: usize = 40;
    let options = Options { interfaces: "127.0.0.1".to_owned(), ..options("qps=2 budget=4K") };
    let transport = VerbsTransport::over(functions(), options);
    let softs = [1, 2].map(|seed| SoftDevice::new(Limits { seed, ..Limits::default() }));
    let [one, other] = softs
        .each_ref()
        .map(|soft| transport.open(&DeviceId(format!("{}:1", soft.name()))).unwrap());
    let (mut sender, mut receiver) = (one.lane().unwrap(), other.lane().unwrap());
    let (_, source) = one.allocate(4096).unwrap();
    let (_, inbox) = other.allocate(4096).unwrap();
    let mut listener = other.listen(&Secret([5; 32])).unwrap();
    let mut ends = Vec::new();
    for _ in 0..2 {
        let deadline = ccl_clock::now() + Duration::from_secs(20);
        let secret = Secret([5; 32]);
        let mut dialling = one.connect(&listener.address(), &secret, b"", deadline).unwrap();
        let (mut accepted, mut connected) = (None, None);
        while accepted.is_none() || connected.is_none() {
            let now = ccl_clock::now();
            accepted = accepted.or_else(|| listener.poll(now).unwrap());
            connected = connected.or_else(|| dialling.poll(now).unwrap());
        }
        let here = sender.attach(connected.unwrap()).unwrap();
        let there = receiver.attach(accepted.unwrap()).unwrap();
        let key = receiver.share(there, inbox).unwrap();
        ends.push((here, sender.import(here, &key).unwrap(), there));
    }
    let put = |link: usize, at: usize| {
        let (endpoint, remote, _) = ends[link];
        WorkRequest::Put {
            endpoint,
            local: LocalSlice { key: source, offset: 0, bytes: 4096 },
            tail: None,
            is_control: false,
            remote,
            remote_offset: 0,
            immediate: Some(at as u32),
            id: at as u64,
        }
    };
    let work = Vec::from_iter((0..PUTS).map(|at| put(0, at)));
    let work = [work, (0..PUTS / 4).map(|at| put(1, at)).collect()].concat();
    assert_eq!(sender.post(ccl_clock::now(), &work).unwrap(), work.len());
    let mut arrived = [0; 2];
    let until = ccl_clock::now() + Duration::from_secs(20);
    for more in PUTS.. {
        let (mut news, now) = (Vec::new(), ccl_clock::now());
        assert!(now < until, "only {arrived:?} puts of the two links arrived");
        sender.poll(now, &mut Vec::new()).unwrap();
        // The first link gets new puts all the time; they must not delay those of the second link.
        sender.post(now, &[put(0, more)]).unwrap();
        receiver.poll(now, &mut news).unwrap();
        for event in news {
            let Event::Arrived { endpoint, .. } = event else { continue };
            arrived[ends.iter().position(|(.., there)| *there == endpoint).unwrap()] += 1;
        }
        if arrived[1] == PUTS / 4 {
            break;
        }
    }
    assert!(arrived[0] <= PUTS / 2, "the first link delayed the second: {arrived:?} puts");
}
