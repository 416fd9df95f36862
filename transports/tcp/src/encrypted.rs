//! Tests of stripes and lanes over encrypted connections.

use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;
use std::time::Duration;

use ccl_core::time::Instant;
use ccl_core::transport::{Connected, EndpointId, Event, Lane, Registry, Secret};
use ccl_memory::Region;
use ccl_socket::{Connection, Got, Link, Location, Reconnector, Setup, Tls};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::Options;
use crate::device::PROTOCOL;
use crate::frame::{Header, Kind};
use crate::lane::TcpLane;
use crate::outgoing::Put;
use crate::stripe::Stripe;
use crate::writers::Writer;

/// Makes the two ends of an encrypted connection.
fn connections() -> [Connection; 2] {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let sockets = rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None);
    let (one, other) = sockets.unwrap();
    let tls = Tls::new().unwrap();
    let mut connections = [(one, true), (other, false)].map(|(socket, connects)| {
        let mut connection = Connection::plain(socket);
        connection.encrypt(tls.session(connects).unwrap());
        connection
    });
    let mut agreed = [false; 2];
    while agreed != [true; 2] {
        for (connection, agreed) in connections.iter_mut().zip(&mut agreed) {
            *agreed |= connection.agree().unwrap().is_some();
        }
    }
    connections
}

fn write(connection: &mut Connection, bytes: &[u8]) -> usize {
    match connection.write(&[IoSlice::new(bytes)]) {
        Got::Bytes(count) => count,
        Got::Nothing => 0,
        Got::End(reason) => panic!("{reason}"),
    }
}

fn read(connection: &mut Connection, bytes: usize) -> Vec<u8> {
    let mut into = vec![0; bytes];
    let count = match connection.read(&mut [IoSliceMut::new(&mut into)]) {
        Got::Bytes(count) => count,
        Got::Nothing => 0,
        Got::End(reason) => panic!("{reason}"),
    };
    into.truncate(count);
    into
}

#[test]
fn a_stripe_is_not_drained_before_the_socket_has_taken_all_bytes() {
    let [one, mut other] = connections();
    let mut stripe = Stripe::new(one, false, None);
    let bytes = 250_000;
    let header = Header { bytes: bytes as u32, ..Header::bare(Kind::Put, 0) };
    let source = Region::private(bytes);
    stripe.outgoing.push(Put {
        header,
        source,
        tail: None,
        id: Some(1),
        has_bytes: true,
        is_control: false,
    });
    stripe.write().unwrap();
    assert!(stripe.outgoing.is_drained(), "all bytes must be encrypted");
    assert!(!stripe.is_drained(), "some bytes must wait for the socket");
    let mut seen = 0;
    while !stripe.is_drained() {
        seen += read(&mut other, 50_000).len();
        stripe.write().unwrap();
    }
    while other.holds() || seen < bytes {
        seen += read(&mut other, 50_000).len();
    }
    assert!(seen > bytes);
}

#[test]
fn packets_keep_their_traffic_class_after_a_break() {
    let class = |stripe: &Stripe| {
        let socket = stripe.connection.as_ref().unwrap().socket();
        rustix::net::sockopt::ip_tos(socket).unwrap()
    };
    let connection = || {
        let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None);
        Connection::plain(socket.unwrap())
    };
    let mut stripe = Stripe::new(connection(), false, Some(104));
    assert_eq!(class(&stripe), 104);
    stripe.replace_connection(connection(), Instant::ZERO);
    assert_eq!(class(&stripe), 104);
}

#[test]
fn a_stripe_cannot_resume_if_the_peer_lacks_puts_that_were_reported_done() {
    for (received, outcome) in [(2, true), (1, false), (0, false)] {
        let [one, _other] = connections();
        let mut stripe = Stripe::new(one, true, None);
        let header = Header { bytes: 9, ..Header::bare(Kind::Put, 0) };
        for id in [7, 8] {
            let source = Region::private(64).part(0, 9).unwrap();
            stripe.outgoing.push(Put {
                header,
                source,
                tail: None,
                id: Some(id),
                has_bytes: true,
                is_control: false,
            });
        }
        stripe.write().unwrap();
        assert_eq!(stripe.outgoing.take_written().collect::<Vec<_>>(), [7, 8]);
        let [again, _other] = connections();
        stripe.replace_connection(again, Instant::ZERO);
        let mut done = Vec::new();
        let resumed = stripe.outgoing.resume(received, &mut done);
        assert_eq!(resumed.is_ok(), outcome, "{received} of 2 were received: {resumed:?}");
        assert!(done.is_empty(), "a put was reported done twice");
    }
}

/// Makes a lane of `sockets` sockets. The TLS session of the last socket holds a note: the note
/// arrived together with a byte, and only the byte was read.
fn lane_that_holds_a_note(sockets: usize) -> (TcpLane, Vec<Connection>) {
    let (mut stripes, mut others): (Vec<Connection>, Vec<Connection>) =
        (0..sockets).map(|_| connections()).map(|[one, other]| (one, other)).unzip();
    let (last, other) = (stripes.last_mut().unwrap(), others.last_mut().unwrap());
    write(other, &[&b"?"[..], &note("hello")].concat());
    assert_eq!(read(last, 1), b"?");
    (lane(stripes), others)
}

fn note(text: &str) -> Vec<u8> {
    let header = Header { bytes: text.len() as u32, ..Header::bare(Kind::Note, 0) };
    [&header.encode(), text.as_bytes()].concat()
}

/// Makes a lane with one endpoint over these sockets.
fn lane(stripes: Vec<Connection>) -> TcpLane {
    let registry = Arc::new(Registry::new());
    let secret = Secret([7; 32]);
    let setup = Setup { protocol: PROTOCOL, secret, tls: None, congestion: None };
    let location = Location { token: [0; 16], addresses: Vec::new() };
    let reconnector = Reconnector::dialled(location, setup);
    let (peer, connections) = ("a test".to_owned(), stripes);
    let link = Link { device: registry.device(), id: [0; 16], peer, connections, reconnector };
    let options = Options { resume_within: Duration::MAX, ..Options::default() };
    let mut lane =
        TcpLane::new(registry, Writer::default(), &options, true, crate::device::caps(&options))
            .unwrap();
    lane.attach(Connected { hello: Vec::new(), inner: Box::new(link) }).unwrap();
    lane
}

/// A side can no longer write to its closed peer, but still reads all bytes that the peer sent.
#[test]
fn bytes_sent_before_a_close_are_read_even_if_writes_fail() {
    let [one, mut other] = connections();
    let texts: Vec<String> = (0..1000).map(|number| format!("{number:>9}")).collect();
    let farewell = Header::bare(Kind::Farewell, 0).encode();
    let sent: Vec<u8> = texts.iter().flat_map(|text| note(text)).chain(farewell).collect();
    assert_eq!(write(&mut other, &sent), sent.len());
    let mut lane = lane(vec![one]);
    drop(other);
    let (mut events, begun) = (Vec::new(), std::time::Instant::now());
    while !events.iter().any(|event| matches!(event, Event::Lost { .. })) {
        assert!(begun.elapsed() < Duration::from_secs(20), "no loss after {} events", events.len());
        lane.note(EndpointId(0), b"thanks").unwrap();
        lane.poll(ccl_clock::now(), &mut events).unwrap();
    }
    let read = |event: &Event| match event {
        Event::Note { bytes, .. } => Some(String::from_utf8(bytes.to_vec()).unwrap()),
        _ => None,
    };
    assert_eq!(events.iter().filter_map(read).collect::<Vec<_>>(), texts);
    assert!(matches!(events.last(), Some(Event::Lost { reason, .. }) if reason.contains("closed")));
}

#[test]
fn a_lane_finds_messages_that_the_kernel_does_not_report() {
    for sockets in [1, 4, 5, 9] {
        let (mut lane, _others) = lane_that_holds_a_note(sockets);
        let mut events = Vec::new();
        assert_eq!(lane.poll_timeout(), Some(Instant::ZERO), "{sockets} sockets");
        let begun = std::time::Instant::now();
        lane.sleep(Duration::from_secs(60));
        assert!(begun.elapsed() < Duration::from_secs(10), "{sockets} sockets: the lane slept");
        lane.poll(ccl_clock::now(), &mut events).unwrap();
        let notes = events.iter().filter(|event| matches!(event, Event::Note { .. })).count();
        assert_eq!(notes, 1, "{sockets} sockets: {events:?}");
        assert_ne!(lane.poll_timeout(), Some(Instant::ZERO), "{sockets} sockets");
    }
}
