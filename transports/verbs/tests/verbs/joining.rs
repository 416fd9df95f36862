//! Lanes that connect: choice of addresses, time limit, and breaks of the side connection (the TCP
//! connection that a link has beside its queue pairs).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use ccl_conformance::Proxy;
use ccl_core::transport::{DeviceId, Event, Secret, Transport};
use ccl_soft_verbs::{Limits, SoftDevice, functions};
use ccl_transport_verbs::{Options, VerbsTransport};
use rdma_sys::IBV_GID_TYPE_ROCE_V2;

use crate::pair::{Gids, go_on, joined, joined_after, joined_at, joined_through_proxy};

/// An interface may lose its address and get another one, in another row of the GID table, without
/// an event.
#[test]
fn an_address_that_has_changed_is_looked_up_again() {
    const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 79, 1, 2);
    let mut ends = joined_after(&Options::default(), None, |[_, moved]| {
        let gid = ADDRESS.to_ipv6_mapped().octets();
        moved.set_gids(vec![None, None, Some((gid, IBV_GID_TYPE_ROCE_V2))]);
    });
    let put = ends[0].put(0, 4096, Some(3));
    ends[0].lane.post(ccl_clock::now(), &[put]).unwrap();
    go_on(&mut ends, |[_, other]| !other.events.is_empty());
    let arrived = Event::Arrived { endpoint: ends[1].endpoint, immediate: 3, bytes: 4096 };
    assert_eq!(ends[1].events, [arrived]);
    let flows = ends[0].lane.flows(ends[0].endpoint);
    assert_eq!(flows[0].to, IpAddr::from(ADDRESS));
}

fn gids(ips: &[[u8; 4]]) -> Gids {
    let gid = |ip| Ipv4Addr::from(ip).to_ipv6_mapped().octets();
    ips.iter().map(|ip| Some((gid(*ip), IBV_GID_TYPE_ROCE_V2))).collect()
}

/// An address that is removed before the link is made is not used.
#[test]
fn sides_with_several_addresses_connect_in_a_common_subnet() {
    let own = [[10, 79, 1, 1], [192, 168, 9, 1]];
    let theirs = [[172, 16, 0, 2], [192, 168, 9, 2]];
    for (left, expected) in [(2, [own[1], theirs[1]]), (1, [own[0], theirs[0]])] {
        let tables = [gids(&own), gids(&theirs)];
        let mut ends = joined_at(tables, |[one, _]| one.set_gids(gids(&own[..left])));
        let put = ends[0].put(0, 4096, Some(3));
        ends[0].lane.post(ccl_clock::now(), &[put]).unwrap();
        go_on(&mut ends, |[_, other]| !other.events.is_empty());
        let flow = &ends[0].lane.flows(ends[0].endpoint)[0];
        let expected = expected.map(|ip| IpAddr::from(Ipv4Addr::from(ip)));
        assert_eq!([flow.from, flow.to], expected);
    }
}

#[test]
fn a_peer_that_sends_notes_but_never_connects_is_lost_within_the_limit() {
    let join_within = Duration::from_secs(20);
    let [one, other] = &mut joined(&Options { join_within, ..Options::default() });
    let start = ccl_clock::now();
    for at in 0..10 {
        // The other lane is not polled, so its queue pairs stay unconnected.
        other.lane.note(other.endpoint, b"soon").unwrap();
        one.lane.poll(start + at * Duration::from_secs(5), &mut one.events).unwrap();
    }
    let lost =
        |event: &Event| matches!(event, Event::Lost { reason, .. } if reason.contains("20s"));
    assert!(one.events.iter().any(lost), "{:?}", one.events);
}

/// A middlebox may forget the idle side connection; queue pairs do not need it.
#[test]
fn a_reset_of_the_side_connection_harms_no_queue_pair() {
    notes_survive(Proxy::cut, &[&[0, 1]]);
}

#[test]
fn a_reset_that_only_one_side_sees_harms_no_queue_pair() {
    // End 1 has dialled. It writes first, as it alone can dial again.
    notes_survive(|proxy| proxy.cut_side(0), &[&[1], &[0]]);
    notes_survive(|proxy| proxy.cut_side(1), &[&[1], &[0]]);
}

/// The other rank computes and does not poll. It does so for longer than
/// [`Options::link_within`], the limit for peers that cannot be reached.
#[test]
fn a_reset_while_the_peer_computes_harms_no_queue_pair() {
    let silent_within = Duration::from_secs(600);
    for waiting in [0, 1] {
        let options = Options { silent_within, ..Options::default() };
        let (mut ends, proxy) = joined_through_proxy(&options);
        let arrived = |event: &Event| matches!(event, Event::Arrived { .. });
        // Once an end's queue pairs are connected, the end says so in a message on the side
        // connection. The other end posts no RDMA write before it has read that message. So a put
        // that arrives proves that its sender has read the receiver's message. Each end sends a
        // put, so both messages have been read before the side connection is cut.
        let puts = [0, 1].map(|side| ends[side].put(0, 64, Some(1)));
        for (end, put) in ends.iter_mut().zip(puts) {
            end.lane.post(ccl_clock::now(), &[put]).unwrap();
        }
        go_on(&mut ends, |ends| ends.iter().all(|end| end.events.iter().any(arrived)));
        ends[1].events.clear();
        proxy.cut();
        let start = ccl_clock::now();
        for at in 0..200 {
            let end = &mut ends[waiting];
            // The first 100 polls give end 1, if it is the waiting end, time to dial again. After
            // these polls, the time jumps by 20 seconds.
            let jump = Duration::from_secs(if at < 100 { 0 } else { 20 });
            end.lane.poll(start + at * Duration::from_millis(1) + jump, &mut end.events).unwrap();
            std::thread::sleep(Duration::from_millis(1));
            let lost = end.events.iter().any(|event| matches!(event, Event::Lost { .. }));
            assert!(!lost, "end {waiting} lost its link: {:?}", end.events);
        }
        ends[0].lane.post(ccl_clock::now(), &[puts[0]]).unwrap();
        go_on(&mut ends, |[_, other]| other.events.iter().any(arrived));
    }
}

/// Checks that notes and puts arrive once and in order after `cut` has broken the side connection.
/// Each group has the indices of ends that write notes at the same time; the groups write one after
/// the other.
fn notes_survive(cut: impl Fn(&Proxy), groups: &[&[usize]]) {
    let (mut ends, proxy) = joined_through_proxy(&Options::default());
    let put = ends[0].put(0, 64, Some(1));
    let arrived = |events: &[Event]| {
        let is = |event: &&Event| matches!(event, Event::Arrived { .. });
        events.iter().filter(is).count()
    };
    ends[0].lane.post(ccl_clock::now(), &[put]).unwrap();
    go_on(&mut ends, |[_, other]| arrived(&other.events) == 1);
    for round in 0..3u8 {
        assert_eq!(proxy.made(), u64::from(round) + 1, "wrong number of connections");
        cut(&proxy);
        ends[0].lane.post(ccl_clock::now(), &[put]).unwrap();
        for group in groups {
            for &at in *group {
                let endpoint = ends[at].endpoint;
                ends[at].lane.note(endpoint, &[round, at as u8]).unwrap();
            }
            go_on(&mut ends, |ends| {
                let noted = |events: &[Event]| {
                    let is = |event: &&Event| matches!(event, Event::Note { .. });
                    events.iter().filter(is).count()
                };
                group.iter().all(|at| noted(&ends[1 - at].events) == usize::from(round) + 1)
            });
        }
        go_on(&mut ends, |ends| arrived(&ends[1].events) == usize::from(round) + 2);
    }
    for (at, end) in ends.iter().enumerate() {
        let lost = end.events.iter().any(|event| matches!(event, Event::Lost { .. }));
        assert!(!lost, "end {at} lost its link: {:?}", end.events);
        let told = end.events.iter().filter_map(|event| match event {
            Event::Note { bytes, .. } => Some(bytes.clone()),
            _ => None,
        });
        let expected = Vec::from_iter((0..3).map(|round| vec![round, 1 - at as u8]));
        assert_eq!(Vec::from_iter(told), expected, "notes must arrive once, in order");
    }
}

/// The GID table of a port is filled again row by row when the port comes back up.
#[test]
fn a_routed_address_replaces_a_link_local_one_once_it_exists() {
    let [local, routed] = ["fe80::7", "::ffff:10.79.1.7"].map(|ip| {
        let ip: Ipv6Addr = ip.parse().unwrap();
        Some((ip.octets(), IBV_GID_TYPE_ROCE_V2))
    });
    let tables = [gids(&[[10, 79, 1, 1]]), vec![local]];
    let mut ends = joined_at(tables, |[_, other]| other.set_gids(vec![local, routed]));
    let put = ends[0].put(0, 4096, Some(3));
    ends[0].lane.post(ccl_clock::now(), &[put]).unwrap();
    go_on(&mut ends, |[_, other]| !other.events.is_empty());
    let flow = &ends[0].lane.flows(ends[0].endpoint)[0];
    assert_eq!(flow.to, IpAddr::from(Ipv4Addr::new(10, 79, 1, 7)));
}

/// A port without an address can listen, since it may have one again when peers connect.
#[test]
fn a_port_that_has_lost_its_address_can_listen() {
    let soft = SoftDevice::new(Limits::default());
    let options = Options { interfaces: "127.0.0.1".to_owned(), ..Options::default() };
    let transport = VerbsTransport::over(functions(), options);
    let device = transport.open(&DeviceId(format!("{}:1", soft.name()))).unwrap();
    soft.set_gids(Vec::new());
    device.listen(&Secret([7; 32])).unwrap();
}
