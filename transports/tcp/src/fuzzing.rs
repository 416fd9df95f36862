//! What is fuzzed of this crate: what comes over a connection, addresses and keys of other
//! processes. As in `ccl_core::fuzzing`.

use std::io::{IoSlice, Write};
use std::net::TcpStream;
use std::time::Duration;

use ccl_core::transport::{Address, LocalSlice, MrKey, RemoteKey, Secret};
use ccl_memory::Region;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::address::Place;
use crate::endpoint::Shared;
use crate::inbox::Inbox;
use crate::incoming::{Arrival, End, Incoming};
use crate::link::Hello;
use crate::shake::{Setup, Shake};
use crate::socket::{self, Got};
use crate::wire::Wire;

/// The address of a listener: what is read is written to the same bytes.
pub fn tcp_address(data: &[u8]) {
    if let Ok(place) = Place::decode(&Address(data.to_vec())) {
        assert_eq!(place.encode().0, data);
    }
}

/// What a connecting side says of itself: what is read is written to the same bytes.
pub fn tcp_hello(data: &[u8]) {
    if let Some(hello) = Hello::decode(data) {
        assert_eq!(hello.encode(), data);
    }
}

/// The key of memory: what is read is written so that it is read as the same.
pub fn tcp_key(data: &[u8]) {
    if let Some(shared) = Shared::decode(&RemoteKey(data.to_vec())) {
        assert_eq!(Shared::decode(&shared.encode()), Some(shared));
    }
}

/// What a stranger says to a listener: whatever it is, nobody is let in who does not know the
/// secret.
pub fn tcp_shake(data: &[u8]) {
    let _ = stranger(data);
}

fn stranger(data: &[u8]) -> Option<()> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").ok()?;
    let place = listener.local_addr().ok()?;
    let theirs = TcpStream::connect_timeout(&place, Duration::from_secs(1)).ok()?;
    let (ours, _) = listener.accept().ok()?;
    ours.set_nonblocking(true).ok()?;
    let secret = Secret(socket::random().ok()?);
    let setup = Setup { secret, tls: None, congestion: None };
    let mut shake = Shake::listener(ours.into(), &setup, [7; 16]).ok()?;
    for piece in data.chunks(100) {
        (&theirs).write_all(piece).ok()?;
        match shake.step() {
            Ok(proved) => assert!(!proved, "it was let in"),
            Err(_) => return None,
        }
    }
    Some(())
}

const SHARED_BYTES: usize = 256;
const UNTOUCHED: u8 = 0xaa;

/// What has come of a stream, and the memory that it could write to.
#[derive(Debug, PartialEq)]
struct Read {
    arrivals: Vec<Arrival>,
    /// Whether it was taken for nonsense.
    nonsense: bool,
    memory: Vec<u8>,
}

/// Frames in pieces of so many bytes.
fn read(stream: &[u8], piece: usize) -> Option<Read> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let pair = rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None);
    let (ours, theirs) = pair.ok()?;
    // Untouched, shared, untouched, where a part of the shared memory lies instead, untouched.
    let memory = Region::private(5 * SHARED_BYTES);
    memory.write(0, &[UNTOUCHED; 5 * SHARED_BYTES]).ok()?;
    let mut inbox = Inbox::default();
    inbox.share(MrKey(0), memory.part(SHARED_BYTES, SHARED_BYTES).ok()?);
    inbox.share(MrKey(1), memory.part(0, SHARED_BYTES).ok()?);
    inbox.withdraw(|key| key == MrKey(0));
    let elsewhere = LocalSlice { key: MrKey(0), offset: 16, bytes: SHARED_BYTES / 2 };
    let into = memory.part(3 * SHARED_BYTES, SHARED_BYTES / 2).ok()?;
    inbox.redirect(elsewhere, into, std::iter::empty())?.ok()?;
    let (mut wire, mut incoming, mut arrivals) = (Wire::plain(ours), Incoming::new(), Vec::new());
    let mut nonsense = false;
    for piece in stream.chunks(piece) {
        let written = socket::write(&theirs, &[IoSlice::new(piece)]);
        if !matches!(written, Got::Bytes(count) if count == piece.len()) {
            return None;
        }
        loop {
            match incoming.read(&mut wire, &mut inbox, &mut arrivals) {
                Ok(true) => {}
                Ok(false) => break,
                Err(End::Nonsense(_)) => {
                    nonsense = true;
                    break;
                }
                Err(End::Broken(reason)) => unreachable!("nobody has closed: {reason}"),
            }
        }
        if nonsense {
            break;
        }
    }
    let mut bytes = vec![0; 5 * SHARED_BYTES];
    memory.read(0, &mut bytes).ok()?;
    Some(Read { arrivals, nonsense, memory: bytes })
}

/// Frames of a peer that has proved itself: they write nowhere but where it may, and cut anywhere
/// the stream means the same.
pub fn tcp_frames(data: &[u8]) {
    let Some((&cut, stream)) = data.split_first() else { return };
    let (Some(whole), Some(pieces)) =
        (read(stream, stream.len().max(1)), read(stream, usize::from(cut).max(1)))
    else {
        return;
    };
    let (first, third) = (0..SHARED_BYTES, 2 * SHARED_BYTES..3 * SHARED_BYTES);
    for outside in [first, third, 7 * SHARED_BYTES / 2..5 * SHARED_BYTES] {
        assert!(whole.memory[outside].iter().all(|byte| *byte == UNTOUCHED), "{whole:?}");
    }
    assert_eq!(whole, pieces);
}

#[cfg(test)]
#[path = "../../../fuzz/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    use super::replay::replay;

    #[test]
    fn addresses() {
        replay("tcp_address", super::tcp_address);
    }

    #[test]
    fn hellos() {
        replay("tcp_hello", super::tcp_hello);
    }

    #[test]
    fn keys() {
        replay("tcp_key", super::tcp_key);
    }

    #[test]
    fn shakes() {
        replay("tcp_shake", super::tcp_shake);
    }

    #[test]
    fn frames() {
        replay("tcp_frames", super::tcp_frames);
    }
}
