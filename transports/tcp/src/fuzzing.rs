//! Fuzz targets of this crate: frames and intents from a connection, and memory keys of other
//! processes. The targets follow the rules of `ccl_core::fuzzing`.

use std::io::IoSlice;

use ccl_core::transport::{LocalSlice, MrKey, RemoteKey};
use ccl_memory::Region;
use ccl_socket::{Connection, Got, Intent, socket};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::endpoint::Shared;
use crate::error::StripeEnd;
use crate::inbox::{Inbox, RedirectTarget};
use crate::incoming::{Arrival, Incoming};

/// Checks that the intent of a connecting side, once decoded, survives encoding and decoding.
pub fn tcp_intent(data: &[u8]) {
    if let Some(intent) = Intent::decode(data) {
        assert_eq!(Intent::decode(&intent.encode()), Some(intent));
    }
}

/// Checks that a key of memory, once decoded, survives encoding and decoding.
pub fn tcp_key(data: &[u8]) {
    if let Some(shared) = Shared::decode(&RemoteKey(data.to_vec())) {
        assert_eq!(Shared::decode(&shared.encode()), Some(shared));
    }
}

const SHARED_BYTES: usize = 256;
const UNTOUCHED: u8 = 0xaa;

/// The arrivals of a stream, and the content of all memory afterwards, shared or not.
#[derive(Debug, PartialEq)]
struct Read {
    arrivals: Vec<Arrival>,
    /// True if the stream broke the protocol.
    nonsense: bool,
    memory: Vec<u8>,
}

/// Reads a stream of frames that arrives in parts of `part` bytes.
fn read(stream: &[u8], part: usize) -> Option<Read> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let pair = rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None);
    let (ours, theirs) = pair.ok()?;
    // Of five blocks, the second is shared with key 0. The first was shared with key 1, and is
    // withdrawn. Half of the fourth is the target of a redirect. The rest is private.
    let memory = Region::private(5 * SHARED_BYTES);
    memory.write(0, &[UNTOUCHED; 5 * SHARED_BYTES]).ok()?;
    let mut inbox = Inbox::default();
    inbox.share(MrKey(0), memory.part(SHARED_BYTES, SHARED_BYTES).ok()?);
    inbox.share(MrKey(1), memory.part(0, SHARED_BYTES).ok()?);
    inbox.withdraw(|key| key == MrKey(0), std::iter::empty());
    let elsewhere = LocalSlice { key: MrKey(0), offset: 16, bytes: SHARED_BYTES / 2 };
    let region = memory.part(3 * SHARED_BYTES, SHARED_BYTES / 2).ok()?;
    let into = RedirectTarget { key: MrKey(2), region };
    inbox.redirect(elsewhere, into, std::iter::empty())?.ok()?;
    let (mut connection, mut incoming, mut arrivals) =
        (Connection::plain(ours), Incoming::new(), Vec::new());
    let mut nonsense = false;
    for part in stream.chunks(part) {
        let written = socket::write(&theirs, &[IoSlice::new(part)]);
        if !matches!(written, Got::Bytes(count) if count == part.len()) {
            return None;
        }
        loop {
            match incoming.read(&mut connection, &mut inbox, &mut arrivals) {
                Ok(true) => {}
                Ok(false) => break,
                Err(StripeEnd::Protocol(_)) => {
                    nonsense = true;
                    break;
                }
                Err(StripeEnd::Broken(end)) => unreachable!("nobody has closed: {end}"),
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

/// Checks that the frames of an authenticated peer write only to shared memory and to targets of
/// redirects, and that the stream reads the same wherever it is cut.
pub fn tcp_frames(data: &[u8]) {
    let Some((&cut, stream)) = data.split_first() else { return };
    let (Some(whole), Some(parts)) =
        (read(stream, stream.len().max(1)), read(stream, usize::from(cut).max(1)))
    else {
        return;
    };
    let (first, third) = (0..SHARED_BYTES, 2 * SHARED_BYTES..3 * SHARED_BYTES);
    for outside in [first, third, 7 * SHARED_BYTES / 2..5 * SHARED_BYTES] {
        assert!(whole.memory[outside].iter().all(|byte| *byte == UNTOUCHED), "{whole:?}");
    }
    assert_eq!(whole, parts);
}

#[cfg(test)]
#[path = "../../../fuzz/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    use super::replay::replay;

    #[test]
    fn intents() {
        replay("tcp_intent", super::tcp_intent);
    }

    #[test]
    fn keys() {
        replay("tcp_key", super::tcp_key);
    }

    #[test]
    fn frames() {
        replay("tcp_frames", super::tcp_frames);
    }
}
