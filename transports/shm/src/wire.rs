//! Messages on the socket between two processes. Each arrives whole or not at all, and carries at
//! most one descriptor.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ccl_core::encoding::{decode, encode};
use ccl_core::transport::{NOTE_BYTES_MAX, TransportError};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown,
};
use rustix::process::{Pid, getpid};
use serde::{Deserialize, Serialize};

use crate::{DESCRIPTORS, os};

/// A socket that is shut down when it is dropped, so that the peer notices even if a forked child
/// still holds a copy. A copy that a forked child drops is only closed.
#[derive(Debug)]
pub(crate) struct Socket {
    descriptor: OwnedFd,
    process: Pid,
}

impl Socket {
    /// Takes over a socket of this process.
    pub(crate) fn new(descriptor: OwnedFd) -> Socket {
        Socket { descriptor, process: getpid() }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if getpid() == self.process {
            let _ = rustix::net::shutdown(&self.descriptor, Shutdown::Both);
        }
    }
}

/// Prefix of a message that is a note.
pub(crate) const NOTE: &[u8] = b"note";
/// Length of the longest message (a note), in bytes.
pub(crate) const MESSAGE_BYTES: usize = NOTE.len() + NOTE_BYTES_MAX;

/// Result of a read of the socket.
#[derive(Debug)]
pub(crate) enum Received {
    /// Nothing has arrived yet.
    Nothing,
    /// The other side is gone.
    Closed,
    /// A message of at most [`MESSAGE_BYTES`], and the descriptor that came with it.
    Message(Vec<u8>, Option<OwnedFd>),
    /// A message of more bytes or descriptors than allowed. Its bytes are dropped, and its
    /// descriptors closed.
    Malformed,
}

/// Sends a message without waiting.
pub(crate) fn send(
    socket: BorrowedFd<'_>,
    message: &[u8],
    descriptor: Option<BorrowedFd<'_>>,
) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors: Vec<BorrowedFd<'_>> = descriptor.into_iter().collect();
    if !descriptors.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(&descriptors));
    }
    // NOSIGNAL: a dead peer is an error here, not the end of this process.
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::io::retry_on_intr(|| {
        rustix::net::sendmsg(socket, &[IoSlice::new(message)], &mut control, flags)
    })?;
    Ok(())
}

/// Receives the next message without waiting. If `descriptors` is false, the kernel closes the
/// descriptors attached to the message: a stranger's descriptors never enter this process.
pub(crate) fn receive(
    socket: BorrowedFd<'_>,
    descriptors: bool,
) -> Result<Received, TransportError> {
    let mut bytes = [0; MESSAGE_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let space = if descriptors { &mut space[..] } else { &mut [] };
    let mut control = RecvAncillaryBuffer::new(space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let mut take = || {
        rustix::io::retry_on_intr(|| {
            let mut buffer = [IoSliceMut::new(&mut bytes)];
            rustix::net::recvmsg(socket, &mut buffer, &mut control, flags)
        })
    };
    let answer = match take() {
        // If the peer closed the socket before it had read all messages of this side, one call
        // fails like this. The messages that the peer sent can still be read.
        Err(Errno::CONNRESET) => take(),
        answer => answer,
    };
    let answer = match answer {
        Ok(answer) => answer,
        Err(Errno::AGAIN) => return Ok(Received::Nothing),
        Err(Errno::CONNRESET | Errno::PIPE) => return Ok(Received::Closed),
        Err(error) => return Err(os("recvmsg", error, "the connection is not usable")),
    };
    // All descriptors are taken: the ones that are not returned are closed here.
    let mut taken: Vec<OwnedFd> = Vec::new();
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(some) = part {
            taken.extend(some);
        }
    }
    if descriptors && answer.flags.contains(ReturnFlags::CTRUNC) && taken.is_empty() {
        // The kernel dropped the descriptor although the buffer had room for it: this process has
        // no free descriptor.
        return Err(os("receiving a descriptor", Errno::MFILE, DESCRIPTORS));
    }
    if answer.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) || taken.len() > 1 {
        return Ok(Received::Malformed);
    }
    match bytes.get(..answer.bytes) {
        Some([]) | None => Ok(Received::Closed),
        Some(message) => Ok(Received::Message(message.to_vec(), taken.pop())),
    }
}

/// Offer of memory to the peer. The message with the offer also carries the memory's descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Offer {
    /// Number of the memory on the offering side, unique on its device.
    pub(crate) id: u64,
    /// Length of the memory in bytes.
    pub(crate) bytes: usize,
    /// Random bytes. The remote key of the memory, which the caller passes to the peer, has the
    /// same bytes; a key with other bytes is refused.
    pub(crate) nonce: [u8; 16],
}

impl Offer {
    const KIND: [u8; 5] = *b"offer";

    /// Encodes the offer, for the socket and for a remote key.
    pub(crate) fn encode(&self) -> Vec<u8> {
        encode(&(Self::KIND, self))
    }

    /// Decodes an offer; none if the bytes are anything else.
    pub(crate) fn decode(message: &[u8]) -> Option<Offer> {
        match decode(message).ok()? {
            (Self::KIND, offer) => Some(offer),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketFlags, SocketType};

    use super::*;

    fn pair() -> (OwnedFd, OwnedFd) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
    }

    fn open_descriptors() -> usize {
        std::fs::read_dir("/proc/self/fd").unwrap().count()
    }

    #[test]
    fn messages_come_whole_with_their_descriptor() {
        let (a, b) = pair();
        assert!(matches!(receive(b.as_fd(), true), Ok(Received::Nothing)));
        let offer = Offer { id: 7, bytes: 1 << 40, nonce: [3; 16] };
        send(a.as_fd(), &offer.encode(), Some(a.as_fd())).unwrap();
        let Ok(Received::Message(bytes, Some(_))) = receive(b.as_fd(), true) else { panic!() };
        assert_eq!(Offer::decode(&bytes), Some(offer));
        assert_eq!(Offer::decode(&bytes[1..]), None);
        assert_eq!(Offer::decode(&[&bytes[..], &[0]].concat()), None);
        assert_eq!(Offer::decode(&bytes[..20]), None);
        drop(a);
        assert!(matches!(receive(b.as_fd(), true), Ok(Received::Closed)));
        assert_eq!(send(b.as_fd(), b"x", None), Err(Errno::PIPE));
    }

    #[test]
    fn excess_bytes_and_descriptors_are_dropped_and_closed() {
        let (a, b) = pair();
        let before = open_descriptors();
        send(a.as_fd(), &[1; MESSAGE_BYTES + 1], None).unwrap();
        assert!(matches!(receive(b.as_fd(), true), Ok(Received::Malformed)));
        send(a.as_fd(), b"hello", Some(a.as_fd())).unwrap();
        let got = receive(b.as_fd(), false).unwrap();
        assert!(matches!(got, Received::Malformed), "an unexpected descriptor was accepted");
        let many = [a.as_fd(); 3];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&many)));
        let text = [IoSlice::new(b"many")];
        rustix::net::sendmsg(&a, &text, &mut control, SendFlags::empty()).unwrap();
        assert!(matches!(receive(b.as_fd(), true), Ok(Received::Malformed)));
        // Other tests open and close descriptors at the same time.
        let settled = (0..200).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(5));
            open_descriptors() <= before
        });
        assert!(settled, "descriptors leak");
    }
}
