//! Tests with connections that fail authentication or violate the protocol.

use std::os::fd::OwnedFd;

use ccl_core::time::Instant;
use ccl_core::transport::{Connecting, Listener};
use hmac::{Hmac, Mac};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use sha2::Sha256;

use super::*;
use crate::address::{self, Namespace};
use crate::handshake::PROTOCOL;
use crate::wire::Received;

const VERSION: u16 = PROTOCOL.version;
const OTHER_SECRET: Secret = Secret([6; 32]);

fn raw_socket() -> OwnedFd {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
}

/// Makes a raw connection to a listener.
fn stranger(listener: &dyn Listener) -> OwnedFd {
    let name = address::decode(&listener.address(), Namespace::here().unwrap()).unwrap();
    let socket = raw_socket();
    rustix::net::connect(&socket, &name.socket().unwrap()).unwrap();
    socket
}

fn say(socket: &OwnedFd, parts: &[&[u8]], file: Option<&OwnedFd>) {
    wire::send(socket.as_fd(), &parts.concat(), file.map(AsFd::as_fd)).unwrap();
}

fn heard(socket: &OwnedFd) -> Option<Vec<u8>> {
    match wire::receive(socket.as_fd(), true).unwrap() {
        Received::Message(message, _) => Some(message),
        Received::Nothing => None,
        other => panic!("{other:?}"),
    }
}

fn proof(secret: &Secret, label: &[u8], parts: &[&[u8]]) -> Vec<u8> {
    let mut mac = <Hmac<Sha256> as Mac>::new_from_slice(&secret.0).unwrap();
    mac.update(label);
    mac.update(&VERSION.to_le_bytes());
    parts.iter().for_each(|part| mac.update(part));
    mac.finalize().into_bytes().to_vec()
}

fn dial(device: &ShmDevice, to: &dyn Listener, secret: &Secret) -> Box<dyn Connecting> {
    device.connect(&to.address(), secret, b"hi", now() + Duration::from_secs(10)).unwrap()
}

/// Polls both sides in turn: the listener 20 times, the connecting side only until it returns a
/// result.
fn settle(
    listener: &mut dyn Listener,
    coming: &mut dyn Connecting,
) -> (Result<Connected, TransportError>, Option<Connected>) {
    let (mut answer, mut accepted) = (None, None);
    for _ in 0..20 {
        accepted = listener.poll(now()).unwrap().or(accepted);
        if answer.is_none() {
            answer = coming.poll(now()).transpose();
        }
    }
    (answer.unwrap(), accepted)
}

fn still_open(device: &ShmDevice, listener: &mut dyn Listener) {
    let mut coming = dial(device, listener, &SECRET);
    let (answer, accepted) = settle(listener, &mut *coming);
    assert!(answer.is_ok() && accepted.is_some_and(|accepted| accepted.hello == b"hi"));
}

#[test]
fn a_wrong_secret_is_refused_on_both_sides() {
    let device = ShmDevice::open().unwrap();
    let mut listener = device.listen(&SECRET).unwrap();
    let mut coming = dial(&device, &*listener, &OTHER_SECRET);
    let (answer, accepted) = settle(&mut *listener, &mut *coming);
    let error = answer.unwrap_err();
    assert!(matches!(error, TransportError::Refused { .. }), "{error}");
    assert!(error.to_string().contains("different secrets"), "{error}");
    assert!(accepted.is_none());
    assert_eq!(listener.rejected(), 1);
    assert!(!format!("{coming:?}{listener:?}").contains("[6, 6"), "the secret is printed");
    still_open(&device, &mut *listener);
}

#[test]
fn random_bytes_are_dropped_and_counted() {
    let device = ShmDevice::open().unwrap();
    let mut listener = device.listen(&SECRET).unwrap();
    let mut kept = Vec::new();
    let noise: Vec<u8> = (0..600u32).map(|i| ((i * 197) >> 3) as u8).collect();
    for bytes in [1, 17, 53, 128, 129, 600] {
        let socket = stranger(&*listener);
        say(&socket, &[&noise[..bytes]], None);
        kept.push(socket);
    }
    // Hellos of a wrong length, and a hello with a descriptor.
    let hello: &[u8] = b"ferroccl-shm hello";
    let version = VERSION.to_le_bytes();
    for length in [31, 32 + HELLO_BYTES_MAX + 1] {
        kept.push(stranger(&*listener));
        say(kept.last().unwrap(), &[hello, &version, &noise[..length]], None);
    }
    let (pipe, _end) = rustix::pipe::pipe().unwrap();
    kept.push(stranger(&*listener));
    say(kept.last().unwrap(), &[hello, &version, &noise[..40]], Some(&pipe));
    drop(stranger(&*listener));
    assert!(listener.poll(now()).unwrap().is_none());
    assert_eq!(listener.rejected(), 10);
    still_open(&device, &mut *listener);
}

#[test]
fn silent_strangers_hold_few_connections_for_a_short_time() {
    let device = ShmDevice::open().unwrap();
    let mut listener = device.listen(&SECRET).unwrap();
    let _silent: Vec<OwnedFd> = (0..100).map(|_| stranger(&*listener)).collect();
    let begin = Instant::from_nanos(1);
    let mut coming = dial(&device, &*listener, &SECRET);
    let mut poll = |after_ms, listener: &mut dyn Listener| {
        // After `coming` has returned the connection, each further `coming.poll` returns an error,
        // which is ignored.
        let _ = coming.poll(begin);
        let got = listener.poll(begin + Duration::from_millis(after_ms)).unwrap();
        (got.is_some(), listener.rejected())
    };
    for after_ms in [0, 4999] {
        assert_eq!(poll(after_ms, &mut *listener), (false, 0));
    }
    assert_eq!(poll(5000, &mut *listener).1, 64);
    let accepted = (0..5).any(|_| poll(5001, &mut *listener).0);
    assert!(accepted, "a peer must get in while 36 strangers are silent");
    assert_eq!(poll(10_001, &mut *listener).1, 100);
}

#[test]
fn an_old_proof_proves_nothing() {
    let device = ShmDevice::open().unwrap();
    let mut listener = device.listen(&SECRET).unwrap();
    let nonce = [1; 32];
    let greet = |listener: &mut dyn Listener| {
        let socket = stranger(listener);
        let version = VERSION.to_le_bytes();
        say(&socket, &[b"ferroccl-shm hello", &version, &nonce, b"me"], None);
        assert!(listener.poll(now()).unwrap().is_none());
        let challenge = heard(&socket).unwrap();
        let challenge = challenge.strip_prefix(b"ferroccl-shm challenge").unwrap()[2..].to_vec();
        (socket, challenge)
    };
    let (good, challenge) = greet(&mut *listener);
    let label = b"ferroccl-shmconnector";
    let right = proof(&SECRET, label, &[&nonce, &challenge, b"me"]);
    say(&good, &[b"ferroccl-shm proof", &right], None);
    assert!(listener.poll(now()).unwrap().is_none());
    let answer = heard(&good).expect("the listener's own proof");
    assert_eq!(listener.rejected(), 0);
    let (replay, _) = greet(&mut *listener);
    say(&replay, &[b"ferroccl-shm proof", &right], None);
    // Wrong proofs: the listener's own proof, a truncated proof, and a proof over another hello.
    let (reflect, _) = greet(&mut *listener);
    say(&reflect, &[&answer], None);
    let (short, challenge) = greet(&mut *listener);
    let part = proof(&SECRET, label, &[&nonce, &challenge, b"me"]);
    say(&short, &[b"ferroccl-shm proof", &part[..31]], None);
    let (other, challenge) = greet(&mut *listener);
    let wrong_hello = proof(&SECRET, label, &[&nonce, &challenge, b"you"]);
    say(&other, &[b"ferroccl-shm proof", &wrong_hello], None);
    assert!(listener.poll(now()).unwrap().is_none());
    assert_eq!(listener.rejected(), 4);
    // The authenticated peer sends an unsealed ring.
    let unsealed = rustix::fs::memfd_create("x", MemfdFlags::empty()).unwrap();
    rustix::fs::ftruncate(&unsealed, RING.link_bytes() as u64).unwrap();
    say(&good, &[b"ferroccl-shm ring"], Some(&unsealed));
    assert!(listener.poll(now()).unwrap().is_none());
    assert_eq!(listener.rejected(), 5);
}

/// Returns the error that a connecting side gets if a listener answers its hello with `answer`.
fn answered(answer: impl Fn(&[u8]) -> Vec<Vec<u8>>) -> String {
    let device = ShmDevice::open().unwrap();
    let name = address::Name(crate::handshake::random().unwrap());
    let socket = raw_socket();
    rustix::net::bind(&socket, &name.socket().unwrap()).unwrap();
    rustix::net::listen(&socket, 1).unwrap();
    let address = address::encode(name, Namespace::here().unwrap());
    let mut coming =
        device.connect(&address, &SECRET, b"", now() + Duration::from_secs(5)).unwrap();
    assert!(coming.poll(now()).unwrap().is_none());
    let accepted = rustix::net::accept(&socket).unwrap();
    let hello = heard(&accepted).unwrap();
    for message in answer(&hello) {
        say(&accepted, &[&message], None);
    }
    coming.poll(now()).unwrap_err().to_string()
}

#[test]
fn a_false_listener_is_refused_with_the_reason() {
    let challenge: &[u8] = b"ferroccl-shm challenge";
    let text = answered(|_| vec![b"HTTP/1.1 400 Bad Request".to_vec()]);
    assert!(text.contains("no protocol"), "{text}");
    let text = answered(|hello| vec![hello.to_vec()]);
    assert!(text.contains("no protocol"), "{text}");
    let text = answered(|_| vec![[challenge, &(VERSION + 1).to_le_bytes(), &[0; 99]].concat()]);
    assert!(text.contains("the same build"), "{text}");
    let text = answered(|_| vec![[challenge, &VERSION.to_le_bytes(), &[0; 31]].concat()]);
    assert!(text.contains("length"), "{text}");
    let text = answered(|_| {
        let honest = [challenge, &VERSION.to_le_bytes(), &[0; 32]].concat();
        vec![honest, [&b"ferroccl-shm proof"[..], &[0; 32]].concat()]
    });
    assert!(text.contains("does not know the secret"), "{text}");
}

#[test]
fn a_peer_of_another_version_learns_this_version() {
    let device = ShmDevice::open().unwrap();
    let mut listener = device.listen(&SECRET).unwrap();
    let socket = stranger(&*listener);
    say(&socket, &[b"ferroccl-shm hello", &9u16.to_le_bytes(), b"in another way"], None);
    assert!(listener.poll(now()).unwrap().is_none());
    assert_eq!(listener.rejected(), 1);
    let answer = heard(&socket).unwrap();
    assert_eq!(answer["ferroccl-shm challenge".len()..][..2], VERSION.to_le_bytes());
}

#[test]
fn a_missing_or_silent_listener_is_an_error() {
    let device = ShmDevice::open().unwrap();
    let listener = device.listen(&SECRET).unwrap();
    let begin = now();
    let until = begin + Duration::from_secs(7);
    let mut silent = device.connect(&listener.address(), &SECRET, b"", until).unwrap();
    assert!(silent.poll(begin).unwrap().is_none());
    assert!(silent.poll(begin + Duration::from_millis(6999)).unwrap().is_none());
    let error = silent.poll(until).unwrap_err();
    let TransportError::Deadline { after, peer, .. } = &error else { panic!("{error}") };
    assert_eq!((after.as_secs(), peer.contains("process")), (7, true), "{error}");
    let mut late = device.connect(&listener.address(), &SECRET, b"", until).unwrap();
    drop(listener);
    let error = late.poll(begin).unwrap_err();
    assert!(matches!(error, TransportError::Lost { .. }), "{error}");
    let far = Namespace { boot: [9; 16], network: 0 };
    let elsewhere = address::encode(address::Name([1; 16]), far);
    let error = device.connect(&elsewhere, &SECRET, b"", until).unwrap_err();
    assert!(matches!(error, TransportError::Refused { .. }), "{error}");
}
