//! What lies between a socket and who reads or writes it, when that is encrypted.

use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;
use std::time::Duration;

use ccl_core::time::Instant;
use ccl_core::transport::handshake::ChannelKeys;
use ccl_core::transport::{Connected, Event, Lane, Registry, Secret};
use ccl_memory::Region;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::address::Place;
use crate::frame::{Header, Kind};
use crate::lane::TcpLane;
use crate::link::{Link, Way};
use crate::outgoing::Put;
use crate::shake::Setup;
use crate::socket::Got;
use crate::stripe::Stripe;
use crate::tls::Tls;
use crate::wire::Wire;

/// Two ends of a channel, and the keys that each has exported.
fn channel() -> [(Wire, ChannelKeys); 2] {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let sockets = rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None);
    let (one, other) = sockets.unwrap();
    let tls = Tls::new().unwrap();
    let mut wires = [(one, true), (other, false)].map(|(socket, connects)| {
        let mut wire = Wire::plain(socket);
        wire.encrypt(tls.session(connects).unwrap());
        wire
    });
    let mut keys = [None; 2];
    while keys.contains(&None) {
        for (wire, keys) in wires.iter_mut().zip(&mut keys) {
            *keys = keys.or(wire.agree().unwrap());
        }
    }
    let mut ends = wires.into_iter().zip(keys.map(Option::unwrap));
    [ends.next().unwrap(), ends.next().unwrap()]
}

fn wires() -> [Wire; 2] {
    channel().map(|(wire, _)| wire)
}

fn write(wire: &mut Wire, bytes: &[u8]) -> usize {
    match wire.write(&[IoSlice::new(bytes)]) {
        Got::Bytes(count) => count,
        Got::Nothing => 0,
        Got::End(reason) => panic!("{reason}"),
    }
}

fn read(wire: &mut Wire, bytes: usize) -> Vec<u8> {
    let mut into = vec![0; bytes];
    let count = match wire.read(&mut [IoSliceMut::new(&mut into)]) {
        Got::Bytes(count) => count,
        Got::Nothing => 0,
        Got::End(reason) => panic!("{reason}"),
    };
    into.truncate(count);
    into
}

#[test]
fn both_ends_export_the_same_keys_and_each_channel_has_its_own() {
    let [(_, one), (_, other)] = channel();
    assert_eq!(one, other);
    assert_ne!(one, channel()[0].1);
}

#[test]
fn nothing_secret_is_shown() {
    let [(wire, _), _] = channel();
    let setup = Setup { secret: Secret([7; 32]), tls: Some(Tls::new().unwrap()), congestion: None };
    assert!(format!("{wire:?}").ends_with("session: Some(Session(…)) }"), "{wire:?}");
    let shown = format!("{setup:?}");
    assert_eq!(shown, "Setup { secret: Secret(…), tls: Some(Tls(…)), congestion: None }");
}

#[test]
fn a_read_that_brings_less_than_it_has_room_for_has_brought_all() {
    let [mut one, mut other] = wires();
    let text = Vec::from_iter((0..100_000).map(|at| at as u8));
    assert_eq!(write(&mut one, &text), text.len());
    assert!(read(&mut other, 200_000) == text);
    assert!(!other.holds());
}

#[test]
fn what_is_left_behind_is_told_and_can_be_read_without_the_socket() {
    let [mut one, mut other] = wires();
    let text = Vec::from_iter((0..20_000).map(|at| at as u8));
    write(&mut one, &text);
    let mut seen = Vec::new();
    while seen.len() < text.len() {
        assert_eq!(other.holds(), !seen.is_empty(), "after {} bytes", seen.len());
        seen.extend(read(&mut other, 7_000));
    }
    assert!(seen == text && !other.holds());
}

#[test]
fn the_end_is_told_after_all_that_came_before_it() {
    let [mut one, mut other] = wires();
    write(&mut one, b"last words");
    drop(one);
    assert_eq!(read(&mut other, 100), b"last words");
    let mut into = [0; 100];
    let got = other.read(&mut [IoSliceMut::new(&mut into)]);
    let Got::End(reason) = got else { panic!("{got:?}") };
    assert!(reason.contains("without a farewell"), "{reason}");
}

#[test]
fn little_waits_for_a_socket_that_takes_nothing_and_all_of_it_arrives() {
    let [mut one, mut other] = wires();
    let text = Vec::from_iter((0..1_000_000).map(|at| (at / 3) as u8));
    let mut written = 0;
    while one.is_flushed() {
        written += write(&mut one, &text[written..]);
    }
    // The socket's own buffer, and what the session may keep.
    assert!(written < text.len(), "{written} bytes were taken");
    assert_eq!(write(&mut one, &text[written..]), 0);
    let mut seen = Vec::new();
    while seen.len() < text.len() {
        seen.extend(read(&mut other, 50_000));
        written += write(&mut one, &text[written..]);
    }
    assert!(seen == text && one.is_flushed());
}

#[test]
fn a_stripe_is_not_drained_before_the_socket_has_all() {
    let [one, mut other] = wires();
    let mut stripe = Stripe::new(one);
    let bytes = 250_000;
    let header = Header { bytes: bytes as u32, ..Header::bare(Kind::Put, 0) };
    stripe.outgoing.push(Put { header, source: Region::private(bytes), tail: None, id: Some(1) });
    stripe.write().unwrap();
    assert!(stripe.outgoing.is_drained(), "all of it is encrypted");
    assert!(!stripe.is_drained(), "and not all of it has gone");
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

/// A lane of so many sockets, to whose last one a note has come together with what was read before.
fn lane_that_holds_a_note(sockets: usize) -> (TcpLane, Vec<Wire>) {
    let (mut stripes, mut others): (Vec<Wire>, Vec<Wire>) =
        (0..sockets).map(|_| wires()).map(|[one, other]| (one, other)).unzip();
    let header = Header { bytes: 5, ..Header::bare(Kind::Note, 0) };
    let (last, other) = (stripes.last_mut().unwrap(), others.last_mut().unwrap());
    write(other, &[&b"?"[..], &header.encode(), b"hello"].concat());
    assert_eq!(read(last, 1), b"?");
    let registry = Arc::new(Registry::new());
    let setup = Setup { secret: Secret([7; 32]), tls: None, congestion: None };
    let place = Place { token: [0; 16], addresses: Vec::new() };
    let way = Way::Dialled { place, setup };
    let link =
        Link { device: registry.device(), id: [0; 16], peer: "a test".to_owned(), stripes, way };
    let mut lane = TcpLane::new(registry, Arc::default(), Duration::MAX, true).unwrap();
    lane.attach(Connected { hello: Vec::new(), inner: Box::new(link) }).unwrap();
    (lane, others)
}

#[test]
fn a_lane_finds_what_the_kernel_does_not_tell_of() {
    for sockets in [1, 4, 5, 9] {
        let (mut lane, _others) = lane_that_holds_a_note(sockets);
        let mut events = Vec::new();
        assert_eq!(lane.poll_timeout(), Some(Instant::ZERO), "{sockets} sockets");
        let begun = std::time::Instant::now();
        lane.sleep(Duration::from_secs(60));
        assert!(begun.elapsed() < Duration::from_secs(10), "{sockets} sockets");
        lane.poll(crate::now(), &mut events).unwrap();
        let notes = events.iter().filter(|event| matches!(event, Event::Note { .. })).count();
        assert_eq!(notes, 1, "{sockets} sockets: {events:?}");
        assert_ne!(lane.poll_timeout(), Some(Instant::ZERO), "{sockets} sockets");
    }
}
