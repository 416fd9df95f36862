//! Faults of a provider, injected by a software provider.

use std::time::Duration;

use ccl_clock::now;
use ccl_conformance::{Fixture, Proxy, join};
use ccl_core::transport::{DeviceId, Event};
use ccl_soft_ofi::sys::{FI_EOVERRUN, FI_MR_ENDPOINT};
use ccl_soft_ofi::{Condition, Fault, Limits, SoftProvider, functions};
use ccl_transport_ofi::{OfiTransport, Options};

use crate::mending::{Side, exchange, join_again, joined, joined_over, until};
use crate::soft::Soft;

/// Bytes of each side's memory. A put of all of them takes several messages, or many packets.
const BYTES: usize = 600_000;

/// Returns the properties ([`Limits`]) of three providers: one writes, one sends messages, and one
/// writes only to memory that is bound to an endpoint.
fn kinds(name: &'static str) -> [Limits; 3] {
    let asks = FI_MR_ENDPOINT | Limits::efa(0).mr_mode;
    [
        Limits { name: "efa", ..Limits::efa(3) },
        Limits { name, ..Limits::sockets(5) },
        Limits { name: "efa", mr_mode: asks, ..Limits::efa(7) },
    ]
}

/// Returns two sides over a provider. The returned provider and proxy must outlive the sides.
fn sides(limits: &Limits) -> ((SoftProvider, Proxy), [Side; 2]) {
    sides_with(limits, Options::default())
}

/// Returns what [`sides`] returns, with these options.
fn sides_with(limits: &Limits, options: Options) -> ((SoftProvider, Proxy), [Side; 2]) {
    let provider = SoftProvider::new(limits.clone());
    let options = Options { interfaces: "lo".to_owned(), ..options };
    let transport = OfiTransport::over(functions(), limits.name, options);
    let (sides, proxy) = joined(&transport, &provider.device(), BYTES);
    ((provider, proxy), sides)
}

/// Lets both sides leave. Polls them in turn, since one side may wait until the other side has
/// received all puts.
fn leave(sides: &mut [Side; 2]) {
    while sides.each_mut().map(|side| side.lane.poll_shutdown(None)) != [true; 2] {}
}

fn lost_to_both(sides: &mut [Side; 2], words: &str) {
    until(sides, "both lose the link", |sides| sides.iter().all(|side| side.lost().is_some()));
    let reasons = sides.each_ref().map(|side| side.lost().unwrap());
    assert!(reasons.iter().all(|reason| reason.contains(words)), "{reasons:?}");
}

/// Makes both sides' queues fail, closes the links, and connects the sides anew.
fn fail_and_join_again(provider: &SoftProvider, sides: &mut [Side; 2]) -> Proxy {
    provider.set(Condition::Broken(FI_EOVERRUN));
    lost_to_both(sides, "Queue has been overrun");
    provider.set(Condition::Good);
    sides.iter_mut().for_each(|side| side.lane.detach(side.at));
    join_again(sides)
}

/// Both sides lose the link, and the reason that each reports has the provider's text.
#[test]
fn a_put_that_fails_loses_the_link() {
    for fault in [Fault::Fails(libc::EIO), Fault::FailsLate(libc::ETIMEDOUT)] {
        for limits in kinds("soft-fails") {
            let ((provider, _proxy), mut sides) = sides(&limits);
            exchange(&mut sides, 1);
            provider.fail_next(fault);
            sides[0].put_bytes(7, BYTES);
            lost_to_both(&mut sides, "the provider says: the software provider was told to fail");
            let is_done = sides[0].has(&Event::Done { id: 7 });
            assert!(!is_done, "{fault:?}: the put is done although it failed");
        }
    }
}

/// Requests are repeated while the provider takes none, even for seconds. Nothing is lost or
/// doubled.
#[test]
fn requests_wait_until_the_provider_takes_them() {
    for limits in kinds("soft-busy") {
        let ((provider, _proxy), mut sides) = sides(&limits);
        exchange(&mut sides, 1);
        for (condition, lasts_ms) in [(Condition::Busy, 2500), (Condition::Still, 50)] {
            provider.set(condition);
            for id in 100..120 {
                sides[0].put_bytes(id, BYTES);
            }
            let end = std::time::Instant::now() + Duration::from_millis(lasts_ms);
            while std::time::Instant::now() < end {
                for Side { lane, events, .. } in &mut sides {
                    lane.sleep(Duration::from_millis(1));
                    lane.poll(now(), events).unwrap();
                }
            }
            let early = sides[1].arrived();
            assert_eq!(early, [1], "{condition:?}");
            provider.set(Condition::Good);
            until(&mut sides, "all puts arrive", |sides| sides[1].arrived().len() == 21);
            let mut arrived = sides[1].arrived();
            arrived.sort_unstable();
            assert_eq!(arrived, Vec::from_iter([1].into_iter().chain(100..120)));
            sides[1].events.retain(|event| matches!(event, Event::Arrived { immediate: 1, .. }));
        }
        leave(&mut sides);
    }
}

/// Several adapters act as one only if their puts are not done too early. An adapter that cannot
/// write delivers messages before they are done, if it is asked to.
#[test]
fn acknowledged_messages_of_an_adapter_are_not_done_before_they_arrive() {
    let emulates = Limits { emulates_writes: true, is_done_early: true, ..Limits::efa(3) };
    let of_others = Soft::new(
        Limits { name: "soft-acknowledged", ..Limits::sockets(1) },
        &Options { acknowledged: true, ..Options::default() },
    );
    assert!(!of_others.device(0).caps().acknowledged, "other providers ignore the wish");
    for acknowledged in [false, true] {
        let options = Options { acknowledged, ..Options::default() };
        let ((provider, _proxy), mut sides) = sides_with(&emulates, options);
        assert_eq!(sides[0].device.caps().acknowledged, acknowledged);
        exchange(&mut sides, 1);
        provider.set(Condition::Still);
        (100..120).for_each(|id| sides[0].put(id));
        let Side { lane, events, .. } = &mut sides[0];
        (0..100).for_each(|_| lane.poll(now(), events).unwrap());
        let done = events.iter().filter(|event| matches!(event, Event::Done { id: 100.. })).count();
        assert_eq!(done == 0, acknowledged, "{done} puts are done early");
        provider.set(Condition::Good);
        until(&mut sides, "all puts arrive", |sides| sides[1].arrived().len() == 21);
        leave(&mut sides);
    }
}

/// Control puts of the low-latency traffic class arrive even while the provider takes no data.
/// EFA's provider has that class since libfabric 2.0, but does not report it before 2.7.
#[test]
fn control_puts_use_the_low_latency_class() {
    let silent = Limits { low_latency: false, version: 205, ..Limits::efa(3) };
    for limits in [Limits::efa(3), silent] {
        let ((provider, _proxy), mut sides) = sides(&limits);
        exchange(&mut sides, 1);
        provider.set(Condition::Congested);
        sides[0].put(7);
        sides[0].put_control(8);
        until(&mut sides, "the control put arrives", |sides| sides[1].arrived() == [1, 8]);
        provider.set(Condition::Good);
        until(&mut sides, "the data arrive, too", |sides| sides[1].arrived() == [1, 8, 7]);
        leave(&mut sides);
    }
}

/// Control puts overtake waiting data even if the provider of the sender or of the receiver has no
/// low-latency traffic class.
#[test]
fn control_puts_overtake_waiting_data() {
    let one_class = Limits { low_latency: false, version: 117, requests: 1, ..Limits::efa(3) };
    for (low_latency, version) in [(false, 117), (true, 207)] {
        let other = Limits { low_latency, version, ..one_class.clone() };
        let each = [&one_class, &other].map(|limits| SoftProvider::new(limits.clone()));
        let options = Options { interfaces: "lo".to_owned(), ..Options::default() };
        let transport = OfiTransport::over(functions(), "efa", options);
        let ids = each.each_ref().map(|provider| DeviceId(provider.device()));
        let (sides, _proxy) = joined_over(&transport, ids.each_ref(), BYTES);
        // Declared after the proxy, so that the sides are dropped before the proxy.
        let mut sides = sides;
        exchange(&mut sides, 1);
        for id in 0..2 {
            each.iter().for_each(|provider| provider.set(Condition::Busy));
            // Almost as many data puts as a link takes.
            (100..163).for_each(|immediate| sides[id].put(immediate));
            sides[id].put_control(8);
            each.iter().for_each(|provider| provider.set(Condition::Good));
            until(&mut sides, "all puts arrive", |sides| sides[1 - id].arrived().len() == 65);
            // Arrivals may be reported late. Completions show the order of the puts, since one put
            // is under way at a time.
            let done = sides[id].events.iter().filter_map(|event| match event {
                Event::Done { id } => Some(*id),
                _ => None,
            });
            assert_eq!(Vec::from_iter(done)[..2], [1, 8]);
        }
        leave(&mut sides);
    }
}

/// A peer gets only one write until it has answered, since EFA's provider has room for few writes
/// to peers that have not answered yet.
#[test]
fn a_peer_that_has_not_answered_is_written_to_once() {
    let ((provider, _proxy), mut sides) = sides(&Limits::efa(3));
    provider.set(Condition::Still);
    (0..5).for_each(|immediate| sides[0].put(immediate));
    until(&mut sides, "the peer is written to", |_| provider.under_way() > 0);
    for _ in 0..100 {
        sides[0].lane.poll(now(), &mut Vec::new()).unwrap();
        assert_eq!(provider.under_way(), 1);
    }
    provider.set(Condition::Good);
    until(&mut sides, "all puts arrive", |sides| sides[1].arrived().len() == 5);
    leave(&mut sides);
}

/// Internal packets of the provider, which belong to no request, fail when a peer has ended. Such a
/// failure loses no link.
#[test]
fn a_failed_internal_packet_of_the_provider_loses_no_link() {
    let ((provider, _proxy), mut sides) = sides(&Limits::efa(3));
    exchange(&mut sides, 1);
    let (endpoints, _) = provider.in_use();
    assert_eq!(provider.fail_packets(libc::EHOSTUNREACH), endpoints, "some endpoint got no error");
    exchange(&mut sides, 2);
    until(&mut sides, "the errors are read", |_| provider.unread_errors() == 0);
    assert_eq!(sides.each_ref().map(Side::lost), [None, None]);
    leave(&mut sides);
}

#[test]
fn a_queue_that_cannot_be_read_loses_all_links() {
    for limits in kinds("soft-broken") {
        let ((provider, _proxy), mut sides) = sides(&limits);
        exchange(&mut sides, 1);
        provider.set(Condition::Broken(FI_EOVERRUN));
        lost_to_both(&mut sides, "Queue has been overrun");
    }
}

/// A message that the provider loses is noticed, although the provider reports no failure: the
/// sides tell each other how many puts they have sent, and how many have arrived.
#[test]
fn a_message_that_the_provider_loses_silently_is_noticed() {
    let (lacks, stays) = ("1 of its puts have not arrived", "puts to it are not done");
    for (fault, is_done, side, what) in [
        (Fault::Vanishes, true, 1, lacks),
        (Fault::Hangs, false, 1, lacks),
        (Fault::HangsLate, false, 0, stays),
    ] {
        let ((provider, _proxy), mut sides) = sides(&kinds("soft-vanishes")[1]);
        exchange(&mut sides, 1);
        provider.fail_next(fault);
        sides[0].put(7);
        // The time is an argument of `poll`. Here it runs ten times as fast.
        let begun = now();
        while sides[side].lost().is_none() {
            assert!(
                now().since(begun) < Duration::from_secs(60),
                "{fault:?}: {:?}",
                sides[1].events
            );
            for Side { lane, events, .. } in &mut sides {
                lane.poll(begun + now().since(begun) * 10, events).unwrap();
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        assert_eq!(sides[0].has(&Event::Done { id: 7 }), is_done, "{fault:?}");
        let reason = sides[side].lost().unwrap();
        assert!(reason.contains(what), "{fault:?}: {reason}");
        assert!(reason.contains("libfabric's provider has lost messages"), "{fault:?}: {reason}");
    }
}

/// A side that does not poll for longer than the other side reports still notices the loss of a
/// message when it polls again.
#[test]
fn a_lost_message_is_noticed_after_a_long_pause() {
    let ((provider, _proxy), mut sides) = sides(&kinds("soft-pauses")[1]);
    exchange(&mut sides, 1);
    provider.fail_next(Fault::Vanishes);
    sides[0].put(7);
    // The time is an argument of `poll`. Here each poll is 50 ms later than the one before.
    let begun = now();
    for poll in 0..10_000 {
        let time = begun + Duration::from_millis(50) * poll;
        let is_paused = time < begun + Duration::from_secs(100);
        for Side { lane, events, .. } in sides.iter_mut().take(if is_paused { 1 } else { 2 }) {
            lane.poll(time, events).unwrap();
        }
        if sides[1].lost().is_some() {
            break;
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    let reason = sides[1].lost().expect("the loss is not noticed");
    assert!(reason.contains("1 of its puts have not arrived"), "{reason}");
}

/// A connected peer that never sends its endpoint's address is lost after a time limit.
#[test]
fn a_peer_that_never_joins_is_lost() {
    for limits in kinds("soft-silent") {
        let fixture = Soft::new(limits, &Options::default());
        // The other end of the connection stays open, and is never attached.
        let [accepted, _connected] = join(&fixture, b"").unwrap();
        let mut lane = fixture.device(0).lane().unwrap();
        lane.attach(accepted).unwrap();
        let (begun, mut events) = (now(), Vec::new());
        while events.is_empty() {
            assert!(now().since(begun) < Duration::from_secs(60));
            lane.poll(begun + now().since(begun) * 100, &mut events).unwrap();
        }
        let [Event::Lost { reason, .. }] = &events[..] else { panic!("{events:?}") };
        assert!(reason.contains("did not send its endpoint's address within 20s"), "{reason}");
    }
}

/// Two sides that move bytes in different modes both report the difference. A mode consists of the
/// provider, its version over `shm`, the choice of writes or messages, and the eager limit.
#[test]
fn a_peer_with_another_mode_is_lost_with_the_reason() {
    let efa = Limits::efa(1);
    let emulates = Limits { emulates_writes: true, ..Limits::efa(1) };
    let other = Limits { name: "soft-other", ..Limits::sockets(1) };
    let rxm = |version| Limits { name: "tcp;ofi_rxm", version, ..Limits::sockets(1) };
    let [old, new] = [117, 205].map(|version| Limits { name: "shm", version, ..Limits::efa(1) });
    let limit = |bytes: &str| Options { eager_limit: bytes.to_owned(), ..Options::default() };
    let alike = |limits| (limits, Options::default());
    let (settings, versions) = ("set FERROCCL_OFI_PROVIDER", "use the same provider and libfabric");
    for (sides, differs, advice) in [
        ([alike(efa.clone()), alike(emulates)], "messages of efa", settings),
        ([alike(efa), alike(other)], "soft-other", settings),
        ([alike(old), alike(new)], "messages of shm of version 117.0", versions),
        (
            [(rxm(117), limit("524288")), (rxm(117), limit(""))],
            "FI_OFI_RXM_EAGER_LIMIT=524288",
            settings,
        ),
        (
            [(rxm(117), limit("524288")), (rxm(118), limit("524288"))],
            "FI_OFI_RXM_EAGER_LIMIT=524288",
            versions,
        ),
    ] {
        let fixture = Soft::unlike(sides);
        let connected = join(&fixture, b"").unwrap();
        let mut lanes = [0, 1].map(|side| fixture.device(side).lane().unwrap());
        for (lane, connected) in lanes.iter_mut().zip(connected) {
            lane.attach(connected).unwrap();
        }
        let (begun, mut events) = (now(), [Vec::new(), Vec::new()]);
        while events.iter().any(Vec::is_empty) {
            assert!(now().since(begun) < Duration::from_secs(60));
            for (lane, events) in lanes.iter_mut().zip(&mut events) {
                lane.poll(now(), events).unwrap();
            }
        }
        for events in events {
            let [Event::Lost { reason, .. }] = &events[..] else { panic!("{events:?}") };
            let is_named = reason.contains("it moves data by") && reason.contains(differs);
            assert!(is_named, "{reason}");
            assert!(reason.contains(advice), "{reason}");
        }
    }
}

/// Memory that is deregistered during a send is not read any more: the links of the sending lane
/// end.
#[test]
fn deregistered_memory_is_not_sent() {
    let conditions = [Condition::Still, Condition::Busy];
    let all =
        conditions.into_iter().flat_map(|it| kinds("soft-withdrawn").map(|limits| (it, limits)));
    for (condition, limits) in all {
        let ((provider, _proxy), mut sides) = sides(&limits);
        exchange(&mut sides, 1);
        sides[0].memory.write(0, &[1; BYTES]).unwrap();
        sides[1].memory.write(0, &[2; BYTES]).unwrap();
        provider.set(condition);
        for id in 0..40 {
            sides[0].put_bytes(id, BYTES);
        }
        assert_eq!(provider.under_way() > 0, condition == Condition::Still);
        sides[0].device.deregister(sides[0].key).unwrap();
        assert_eq!(provider.under_way(), 0, "{limits:?}");
        sides[0].memory.write(0, &[9; BYTES]).unwrap();
        provider.set(Condition::Good);
        lost_to_both(&mut sides, "memory was deregistered while it was being sent");
        sides[0].lane.poll(now(), &mut Vec::new()).unwrap();
        assert_eq!(
            sides[0].lane.peek(),
            Some(false),
            "a lane has news although all its links are lost"
        );
        let mut there = vec![0; BYTES];
        sides[1].memory.read(0, &mut there).unwrap();
        assert!(there.iter().all(|byte| *byte != 9), "deregistered memory was read");
    }
}

/// Everything that was opened is closed after a failure.
#[test]
fn nothing_is_left_of_a_link_that_failed() {
    for limits in kinds("soft-leaks") {
        let ((provider, _proxy), mut sides) = sides(&limits);
        exchange(&mut sides, 1);
        provider.fail_next(Fault::Fails(libc::EIO));
        sides[0].put(7);
        lost_to_both(&mut sides, "the provider says");
        drop(sides);
        assert_eq!(provider.in_use(), (0, 0));
        assert_eq!(provider.under_way(), 0);
    }
}

/// Peers that come and go, as on a rail that fails again and again, leave no endpoints behind.
#[test]
fn endpoints_whose_peers_have_left_are_closed() {
    for limits in kinds("soft-come-and-go") {
        let ((provider, mut proxy), mut sides) = sides(&limits);
        let (endpoints, _) = provider.in_use();
        for number in 1..20 {
            exchange(&mut sides, number);
            leave(&mut sides);
            sides.iter_mut().for_each(|side| side.lane.detach(side.at));
            drop(std::mem::replace(&mut proxy, join_again(&mut sides)));
        }
        until(&mut sides, "the endpoints close", |_| provider.in_use().0 == endpoints);
        drop(sides);
        assert_eq!(provider.in_use(), (0, 0));
    }
}

#[test]
fn a_link_that_follows_a_queue_failure_gets_new_endpoints() {
    for limits in [Limits::efa(3), Limits::efa(9)] {
        let ((provider, _proxy), mut sides) = sides(&limits);
        let (endpoints, _) = provider.in_use();
        exchange(&mut sides, 1);
        let _proxy = fail_and_join_again(&provider, &mut sides);
        exchange(&mut sides, 2);
        assert_eq!(
            provider.in_use().0,
            2 * endpoints,
            "failed endpoints must stay beside the new ones"
        );
        drop(sides);
        assert_eq!(provider.in_use(), (0, 0));
    }
}

/// Deregisters the memory of a request that was given up because its endpoint had failed. Only the
/// failed endpoints of that request's lane close.
#[test]
fn deregistering_memory_of_a_given_up_request_closes_only_failed_endpoints() {
    let ((provider, _proxy), mut sides) = sides(&Limits::efa(11));
    exchange(&mut sides, 1);
    let (endpoints, _) = provider.in_use();
    let (_other, key) = sides[0].device.allocate(64).unwrap();
    provider.set(Condition::Still);
    let own = std::mem::replace(&mut sides[0].key, key);
    sides[0].put(2);
    sides[0].key = own;
    let _proxy = fail_and_join_again(&provider, &mut sides);
    exchange(&mut sides, 3);
    assert_eq!(provider.in_use().0, 2 * endpoints);
    sides[0].device.deregister(key).unwrap();
    exchange(&mut sides, 4);
    assert_eq!(provider.in_use().0, 3 * endpoints / 2, "one side's failed endpoints must close");
}
