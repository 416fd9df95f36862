//! The handshake of two processes: they prove to each other that they know the secret, then each
//! sends the descriptor of its ring, the memory in which it receives immediates. No descriptor is
//! sent or taken before the other side's proof.

use std::any::Any;
use std::os::fd::{AsFd, OwnedFd};

use ccl_core::transport::handshake::{Handshake as Proof, Protocol};
use ccl_core::transport::{HELLO_BYTES_MAX, Inner, Secret, TransportError};
use ccl_memory::Region;
use ccl_memory::slots::{Receiver, Sender, Shape};
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};

use crate::credentials::Peer;
use crate::wire::{self, Received, Socket};
use crate::{memory, os};

/// Shape of the ring that carries the immediates of one direction. Its messages have a header and
/// no payload.
pub(crate) const RING: Shape = Shape { slots: 1024, slot_bytes: 0 };

/// Limit on data puts whose completion is not reported yet.
pub(crate) const DEPTH: u32 = RING.slots / 2;

/// Number of slots of the ring that are kept for credits and CTS; puts of data do not use them.
pub(crate) const CONTROL_SLOTS: u32 = RING.slots / 4;

/// Protocol of a connection; its version changes whenever the messages or the layout of the mapped
/// memory change.
pub(crate) const PROTOCOL: Protocol =
    Protocol { name: "ferroccl-shm", version: 2, hello_bytes_max: HELLO_BYTES_MAX };
const RING_FILE: &[u8] = b"ferroccl-shm ring";

/// A connection on which both sides have proved the secret.
#[derive(Debug)]
pub(crate) struct Link {
    /// Device that made the link.
    pub(crate) device: u64,
    /// Socket that carries descriptors and notes, and hangs up when the peer dies.
    pub(crate) socket: Socket,
    /// Process at the other end.
    pub(crate) peer: Peer,
    /// Ring of immediates to the peer.
    pub(crate) outgoing: Sender,
    /// Ring of immediates from the peer.
    pub(crate) incoming: Receiver,
}

impl Inner for Link {
    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

/// Returns random bytes from the kernel.
pub(crate) fn random<const N: usize>() -> Result<[u8; N], TransportError> {
    let mut bytes = [0; N];
    match getrandom(&mut bytes[..], GetRandomFlags::NONBLOCK) {
        Ok(filled) if filled == N => Ok(bytes),
        Ok(_) => Err(os("getrandom", Errno::AGAIN, "try again")),
        Err(error) => Err(os("getrandom", error, "wait until the system has gathered randomness")),
    }
}

/// A connection that is not complete yet.
#[derive(Debug)]
pub(crate) struct Handshake {
    device: u64,
    socket: Socket,
    peer: Peer,
    proof: Proof,
    /// Ring of this side, once both sides have proved the secret.
    ring: Option<Region>,
}

impl Handshake {
    /// Begins the handshake of the connecting side, over a connected socket.
    pub(crate) fn connector(
        device: u64,
        socket: Socket,
        peer: Peer,
        secret: &Secret,
        hello: &[u8],
    ) -> Result<Handshake, TransportError> {
        let (proof, first) = Proof::connector(PROTOCOL, secret, random()?, hello);
        let made = Handshake { device, socket, peer, proof, ring: None };
        made.send(&first, None)?;
        Ok(made)
    }

    /// Begins the handshake of the listening side, over an accepted socket.
    pub(crate) fn listener(
        device: u64,
        socket: Socket,
        peer: Peer,
        secret: &Secret,
    ) -> Result<Handshake, TransportError> {
        let proof = Proof::listener(PROTOCOL, secret, random()?);
        Ok(Handshake { device, socket, peer, proof, ring: None })
    }

    /// Returns the peer's name, for errors and logs.
    pub(crate) fn peer(&self) -> &str {
        &self.peer.name
    }

    /// Returns the hello of the connecting side.
    pub(crate) fn hello(&self) -> &[u8] {
        self.proof.hello()
    }

    /// Handles the messages that have arrived. Returns the rings once both sides have proved the
    /// secret and sent a ring.
    pub(crate) fn step(&mut self) -> Result<Option<Shaken>, TransportError> {
        loop {
            match wire::receive(self.socket.as_fd(), self.ring.is_some())? {
                Received::Nothing => return Ok(None),
                Received::Closed => return Err(self.closed()),
                Received::Malformed => return Err(self.refused("it sent a malformed message")),
                Received::Message(message, descriptor) if self.ring.is_some() => {
                    return self.take_ring(&message, descriptor).map(Some);
                }
                Received::Message(message, _) => self.take(&message)?,
            }
        }
    }

    fn take(&mut self, message: &[u8]) -> Result<(), TransportError> {
        match self.proof.take(message) {
            Ok(answer) => {
                answer.send.iter().try_for_each(|message| self.send(message, None))?;
                if answer.proved {
                    let ring = memory::allocate(RING.link_bytes())?;
                    self.send(RING_FILE, Some(&ring.file))?;
                    self.ring = Some(ring.region);
                }
                Ok(())
            }
            Err(refusal) => {
                // If this last message cannot be sent, the peer is refused all the same.
                let _ = refusal.farewell.iter().try_for_each(|message| self.send(message, None));
                Err(self.refused(&refusal.reason))
            }
        }
    }

    fn take_ring(
        &mut self,
        message: &[u8],
        descriptor: Option<OwnedFd>,
    ) -> Result<Shaken, TransportError> {
        let (Some(file), Some(own), true) = (descriptor, self.ring.take(), message == RING_FILE)
        else {
            return Err(self.refused("it did not send the memory of its ring"));
        };
        let theirs = memory::adopt(file, RING.link_bytes(), self.peer())?;
        Ok(Shaken { outgoing: Sender::new(&theirs, RING)?, incoming: Receiver::new(&own, RING)? })
    }

    /// Returns the connection, after [`Handshake::step`] has returned its rings.
    pub(crate) fn finish(self, shaken: Shaken) -> Link {
        let Shaken { outgoing, incoming } = shaken;
        let (device, socket, peer) = (self.device, self.socket, self.peer);
        Link { device, socket, peer, outgoing, incoming }
    }

    fn send(&self, message: &[u8], descriptor: Option<&OwnedFd>) -> Result<(), TransportError> {
        let descriptor = descriptor.map(AsFd::as_fd);
        wire::send(self.socket.as_fd(), message, descriptor).map_err(|error| match error {
            Errno::PIPE | Errno::CONNRESET => self.closed(),
            error => os("sendmsg", error, crate::DESCRIPTORS),
        })
    }

    fn closed(&self) -> TransportError {
        let (reason, refuses) = match &self.ring {
            None => self.proof.closed(),
            Some(_) => ("it closed the connection before the handshake was complete", false),
        };
        if refuses {
            return self.refused(reason);
        }
        TransportError::Lost { peer: self.peer.name.clone(), reason: reason.to_owned() }
    }

    fn refused(&self, reason: &str) -> TransportError {
        TransportError::Refused { peer: self.peer.name.clone(), reason: reason.to_owned() }
    }
}

/// The rings of a connection whose sides have proved the secret.
#[derive(Debug)]
pub(crate) struct Shaken {
    outgoing: Sender,
    incoming: Receiver,
}
