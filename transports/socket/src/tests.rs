//! Tests of encrypted connections.

use rustix::net::sockopt;
use std::io::{IoSlice, IoSliceMut};

use ccl_core::transport::Secret;
use ccl_core::transport::handshake::ChannelKeys;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::connection::Connection;
use crate::shake::{Setup, SocketHandshake, protocol};
use crate::socket::{Got, KEEPALIVE};
use crate::tls::Tls;

/// Returns the two ends of an encrypted channel, each with the keys that it has exported.
fn channel() -> [(Connection, ChannelKeys); 2] {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let sockets = rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None);
    let (one, other) = sockets.unwrap();
    let tls = Tls::new().unwrap();
    let mut connections = [(one, true), (other, false)].map(|(socket, connects)| {
        let mut connection = Connection::plain(socket);
        connection.encrypt(tls.session(connects).unwrap());
        connection
    });
    let mut keys = [None; 2];
    while keys.contains(&None) {
        for (connection, keys) in connections.iter_mut().zip(&mut keys) {
            *keys = keys.or(connection.agree().unwrap());
        }
    }
    let mut ends = connections.into_iter().zip(keys.map(Option::unwrap));
    [ends.next().unwrap(), ends.next().unwrap()]
}

fn connections() -> [Connection; 2] {
    channel().map(|(connection, _)| connection)
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
fn both_ends_export_the_same_keys_and_each_channel_has_its_own() {
    let [(_, one), (_, other)] = channel();
    assert_eq!(one, other);
    assert_ne!(one, channel()[0].1);
}

#[test]
fn debug_texts_show_neither_secrets_nor_keys() {
    let [(connection, _), _] = channel();
    let (protocol, secret, tls) = (protocol("p", 1), Secret([7; 32]), Tls::new().unwrap());
    let setup = Setup { protocol, secret, tls: Some(tls), congestion: None };
    assert!(format!("{connection:?}").ends_with("session: Some(Session(…)) }"), "{connection:?}");
    let shown = format!("{setup:?}");
    let end = "secret: Secret(…), tls: Some(Tls(…)), congestion: None }";
    assert!(shown.ends_with(end), "{shown}");
}

#[test]
fn a_short_read_returns_all_bytes_that_have_arrived() {
    let [mut one, mut other] = connections();
    let text = Vec::from_iter((0..100_000).map(|at| at as u8));
    assert_eq!(write(&mut one, &text), text.len());
    assert!(read(&mut other, 200_000) == text);
    assert!(!other.holds());
}

#[test]
fn bytes_held_by_the_session_are_reported_and_readable() {
    let [mut one, mut other] = connections();
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
fn the_end_is_reported_after_all_earlier_bytes() {
    let [mut one, mut other] = connections();
    write(&mut one, b"last words");
    drop(one);
    assert_eq!(read(&mut other, 100), b"last words");
    let mut into = [0; 100];
    let got = other.read(&mut [IoSliceMut::new(&mut into)]);
    let Got::End(reason) = got else { panic!("{got:?}") };
    assert_eq!(reason, crate::ConnectionEnd::Closed);
}

#[test]
fn a_full_socket_bounds_the_buffered_bytes_and_loses_none() {
    let [mut one, mut other] = connections();
    let text = Vec::from_iter((0..1_000_000).map(|at| (at / 3) as u8));
    let mut written = 0;
    while one.is_flushed() {
        written += write(&mut one, &text[written..]);
    }
    // Only the socket's buffer and the session's buffer are filled.
    assert!(written < text.len(), "all {written} bytes were taken");
    assert_eq!(write(&mut one, &text[written..]), 0);
    let mut seen = Vec::new();
    while seen.len() < text.len() {
        seen.extend(read(&mut other, 50_000));
        written += write(&mut one, &text[written..]);
    }
    assert!(seen == text && one.is_flushed());
}

/// Checks that keepalive is on. A probe makes a middlebox reset a connection that the middlebox has
/// forgotten.
#[test]
fn an_idle_connection_is_probed() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (at, within) = (listener.local_addr().unwrap(), std::time::Duration::from_secs(20));
    let socket = std::net::TcpStream::connect_timeout(&at, within).unwrap();
    let (protocol, secret) = (protocol("p", 1), Secret([7; 32]));
    let setup = Setup { protocol, secret, tls: None, congestion: None };
    let connection =
        SocketHandshake::listener(socket.into(), &setup, [0; 16]).unwrap().into_connection();
    assert!(sockopt::socket_keepalive(connection.socket()).unwrap());
    assert_eq!(sockopt::tcp_keepidle(connection.socket()).unwrap(), KEEPALIVE);
}
