//! Fuzz targets of this crate: messages, addresses and keys of other processes. The targets follow
//! the rules of `ccl_core::fuzzing`.

use std::os::fd::{AsFd, OwnedFd};

use ccl_core::transport::{Address, Secret};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::address::{self, Namespace};
use crate::credentials::Peer;
use crate::handshake::Handshake;
use crate::wire::{self, Offer, Socket};

/// Checks that a decoded key of a region is the same after encoding and decoding.
pub fn shm_key(data: &[u8]) {
    if let Some(offer) = Offer::decode(data) {
        assert_eq!(Offer::decode(&offer.encode()), Some(offer));
    }
}

/// Checks that a decoded address of a listener is the same after encoding and decoding.
pub fn shm_address(data: &[u8]) {
    // Some inputs of the corpus name this namespace.
    let here = Namespace { boot: [1; 16], network: 2 };
    if let Ok(name) = address::decode(&Address(data.to_vec()), here) {
        assert_eq!(address::decode(&address::encode(name, here), here), Ok(name));
    }
}

fn side(socket: OwnedFd) -> (Socket, Peer) {
    (Socket::new(socket), Peer { name: "a test".to_owned(), process: None })
}

/// Feeds the messages in `data`, each preceded by its length, to one side of a handshake: from the
/// start, or after a few steps of both sides.
pub fn shm_handshake(data: &[u8]) {
    let Some((&first, mut rest)) = data.split_first() else { return };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let pair = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
    let Ok((ours, theirs)) = pair else { return };
    let Ok(theirs_too) = theirs.try_clone() else { return };
    let secret = Secret([7; 32]);
    let ((ours, our_peer), (theirs, their_peer)) = (side(ours), side(theirs));
    let connects = first & 1 == 1;
    let make = |connects: bool, socket, peer| match connects {
        true => Handshake::connector(1, socket, peer, &secret, b"hi"),
        false => Handshake::listener(1, socket, peer, &secret),
    };
    let Ok(mut tested) = make(connects, ours, our_peer) else { return };
    let Ok(mut other) = make(!connects, theirs, their_peer) else { return };
    for _ in 0..first >> 1 & 3 {
        let _ = other.step();
        if !matches!(tested.step(), Ok(None)) {
            return;
        }
    }
    while let Some((&length, behind)) = rest.split_first() {
        let (message, behind) = behind.split_at(usize::from(length).min(behind.len()));
        rest = behind;
        // Some messages carry a descriptor that is no memory.
        let file = (length % 5 == 4).then(|| theirs_too.as_fd());
        let _ = wire::send(theirs_too.as_fd(), message, file);
        match tested.step() {
            Ok(None) => {}
            Ok(Some(_)) => {
                unreachable!("no handshake completes, since no message carries shared memory")
            }
            Err(error) => return drop(error.to_string()),
        }
    }
}

#[cfg(test)]
#[path = "../../../fuzz/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    use super::replay::replay;

    #[test]
    fn keys() {
        replay("shm_key", super::shm_key);
    }

    #[test]
    fn addresses() {
        replay("shm_address", super::shm_address);
    }

    #[test]
    fn handshakes() {
        replay("shm_handshake", super::shm_handshake);
    }
}
