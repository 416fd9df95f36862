//! How two processes prove to each other that they know the secret, and exchange their rings.
//!
//! ```text
//! connector                         listener
//!   hello: version, nonce, text  ─▶
//!                                ◀─  challenge: version, nonce
//!   proof                        ─▶
//!                                ◀─  proof, then its ring (a descriptor)
//!   its ring (a descriptor)      ─▶
//! ```
//!
//! A proof is a keyed hash over the side, both nonces and the hello. The connector proves first,
//! so a stranger who connects learns nothing but a nonce. No descriptor is sent or taken before
//! the other side's proof.

use std::any::Any;
use std::os::fd::{AsFd, OwnedFd};

use ccl_core::transport::{Inner, Secret, TransportError};
use ccl_memory::Region;
use ccl_memory::slots::{Receiver, Sender, Shape};
use hmac::{Hmac, Mac};
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};
use sha2::Sha256;

use crate::credentials::Peer;
use crate::wire::{self, Received, Socket};
use crate::{memory, os};

/// Changes with every change of what the two sides send or map.
pub(crate) const VERSION: u16 = 1;

/// The longest hello.
pub(crate) const HELLO_BYTES_MAX: usize = 64;

/// The ring of immediates of one direction: a message is its header alone.
pub(crate) const RING: Shape = Shape { slots: 1024, slot_bytes: 0 };

const HELLO: &[u8] = b"ferroccl-shm hello";
const CHALLENGE: &[u8] = b"ferroccl-shm challenge";
const PROOF: &[u8] = b"ferroccl-shm proof";
const RING_FILE: &[u8] = b"ferroccl-shm ring";

/// A connection whose both sides have proved the secret.
#[derive(Debug)]
pub(crate) struct Link {
    /// The device it was made by.
    pub(crate) device: u64,
    /// Brings descriptors, and hangs up.
    pub(crate) socket: Socket,
    /// Who is at the other end.
    pub(crate) peer: Peer,
    /// Immediates to the peer.
    pub(crate) outgoing: Sender,
    /// Immediates from the peer.
    pub(crate) incoming: Receiver,
}

impl Inner for Link {
    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

/// Random bytes of the kernel.
pub(crate) fn random<const N: usize>() -> Result<[u8; N], TransportError> {
    let mut bytes = [0; N];
    match getrandom(&mut bytes[..], GetRandomFlags::NONBLOCK) {
        Ok(filled) if filled == N => Ok(bytes),
        Ok(_) => Err(os("getrandom", Errno::AGAIN, "try again")),
        Err(error) => Err(os("getrandom", error, "wait until the system has gathered randomness")),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Connector,
    Listener,
}

/// What is awaited next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Hello,
    Challenge,
    Proof,
    Ring,
}

/// A connection whose sides have not proved the secret yet.
#[derive(Debug)]
pub(crate) struct Handshake {
    side: Side,
    stage: Stage,
    device: u64,
    secret: Secret,
    socket: Socket,
    peer: Peer,
    connector_nonce: [u8; 32],
    listener_nonce: [u8; 32],
    hello: Vec<u8>,
    ring: Option<Region>,
}

impl Handshake {
    /// The connecting side, over a connected socket.
    pub(crate) fn connector(
        device: u64,
        socket: Socket,
        peer: Peer,
        secret: &Secret,
        hello: &[u8],
    ) -> Result<Handshake, TransportError> {
        let mut made = Handshake::new(Side::Connector, device, socket, peer, secret)?;
        made.hello = hello.to_vec();
        let version = VERSION.to_le_bytes();
        made.send(&[HELLO, &version, &made.connector_nonce, hello].concat(), None)?;
        Ok(made)
    }

    /// The listening side, over an accepted socket.
    pub(crate) fn listener(
        device: u64,
        socket: Socket,
        peer: Peer,
        secret: &Secret,
    ) -> Result<Handshake, TransportError> {
        Handshake::new(Side::Listener, device, socket, peer, secret)
    }

    fn new(
        side: Side,
        device: u64,
        socket: Socket,
        peer: Peer,
        secret: &Secret,
    ) -> Result<Handshake, TransportError> {
        let nonce = random()?;
        Ok(Handshake {
            side,
            stage: if side == Side::Connector { Stage::Challenge } else { Stage::Hello },
            device,
            secret: secret.clone(),
            socket,
            peer,
            connector_nonce: nonce,
            listener_nonce: nonce,
            hello: Vec::new(),
            ring: None,
        })
    }

    /// The peer's name in messages.
    pub(crate) fn peer(&self) -> &str {
        &self.peer.name
    }

    /// What the connecting side said of itself.
    pub(crate) fn hello(&self) -> &[u8] {
        &self.hello
    }

    /// Takes what has arrived. Yes means that both sides have proved the secret.
    pub(crate) fn step(&mut self) -> Result<Option<Shaken>, TransportError> {
        loop {
            let descriptors = self.stage == Stage::Ring;
            match wire::receive(self.socket.as_fd(), descriptors)? {
                Received::Nothing => return Ok(None),
                Received::Closed => return Err(self.closed()),
                Received::Malformed => return Err(self.refused("it sent a malformed message")),
                Received::Message(message, descriptor) => {
                    if let Some(shaken) = self.take(&message, descriptor)? {
                        return Ok(Some(shaken));
                    }
                }
            }
        }
    }

    fn take(
        &mut self,
        message: &[u8],
        descriptor: Option<OwnedFd>,
    ) -> Result<Option<Shaken>, TransportError> {
        match self.stage {
            Stage::Hello => self.take_hello(message)?,
            Stage::Challenge => self.take_challenge(message)?,
            Stage::Proof => self.take_proof(message)?,
            Stage::Ring => return self.take_ring(message, descriptor).map(Some),
        }
        Ok(None)
    }

    fn take_hello(&mut self, message: &[u8]) -> Result<(), TransportError> {
        let (version, rest) = self.versioned(message, HELLO)?;
        // The other version may say hello in another way, but must learn ours.
        let own = VERSION.to_le_bytes();
        self.send(&[CHALLENGE, &own, &self.listener_nonce].concat(), None)?;
        self.check_version(version)?;
        match rest.split_first_chunk() {
            Some((nonce, hello)) if hello.len() <= HELLO_BYTES_MAX => {
                self.connector_nonce = *nonce;
                self.hello = hello.to_vec();
                self.stage = Stage::Proof;
                Ok(())
            }
            _ => Err(self.refused("its hello has a wrong length")),
        }
    }

    fn take_challenge(&mut self, message: &[u8]) -> Result<(), TransportError> {
        let (version, rest) = self.versioned(message, CHALLENGE)?;
        self.check_version(version)?;
        self.listener_nonce =
            rest.try_into().map_err(|_| self.refused("its challenge has a wrong length"))?;
        let proof = self.proof(Side::Connector)?.finalize().into_bytes();
        self.send(&[PROOF, &proof].concat(), None)?;
        self.stage = Stage::Proof;
        Ok(())
    }

    fn take_proof(&mut self, message: &[u8]) -> Result<(), TransportError> {
        let other = match self.side {
            Side::Connector => Side::Listener,
            Side::Listener => Side::Connector,
        };
        let claimed = message.strip_prefix(PROOF).unwrap_or_default();
        // `verify_slice` takes the same time wherever the difference is.
        if self.proof(other)?.verify_slice(claimed).is_err() {
            return Err(self.refused("it does not know the secret of this communicator"));
        }
        if self.side == Side::Listener {
            let proof = self.proof(Side::Listener)?.finalize().into_bytes();
            self.send(&[PROOF, &proof].concat(), None)?;
        }
        let ring = memory::allocate(RING.link_bytes())?;
        self.send(RING_FILE, Some(&ring.file))?;
        self.ring = Some(ring.region);
        self.stage = Stage::Ring;
        Ok(())
    }

    fn take_ring(
        &mut self,
        message: &[u8],
        descriptor: Option<OwnedFd>,
    ) -> Result<Shaken, TransportError> {
        let (Some(file), Some(own), true) = (descriptor, self.ring.take(), message == RING_FILE)
        else {
            return Err(self.refused("it sent no ring"));
        };
        let theirs = memory::adopt(file, RING.link_bytes(), self.peer())?;
        let unusable = |error| TransportError::Usage(format!("a ring is not usable: {error}"));
        Ok(Shaken {
            outgoing: Sender::new(&theirs, RING).map_err(unusable)?,
            incoming: Receiver::new(&own, RING).map_err(unusable)?,
        })
    }

    /// The connection, after [`Handshake::step`] said yes.
    pub(crate) fn finish(self, shaken: Shaken) -> Link {
        let Shaken { outgoing, incoming } = shaken;
        let (device, socket, peer) = (self.device, self.socket, self.peer);
        Link { device, socket, peer, outgoing, incoming }
    }

    fn versioned<'a>(
        &self,
        message: &'a [u8],
        kind: &[u8],
    ) -> Result<(u16, &'a [u8]), TransportError> {
        let rest = message.strip_prefix(kind).and_then(<[u8]>::split_first_chunk);
        let (version, rest) =
            rest.ok_or_else(|| self.refused("it speaks no protocol that is known here"))?;
        Ok((u16::from_le_bytes(*version), rest))
    }

    fn check_version(&self, version: u16) -> Result<(), TransportError> {
        if version == VERSION {
            return Ok(());
        }
        Err(self.refused(&format!(
            "it speaks version {version} of the shared memory protocol and this process version \
             {VERSION}; run the same build on all ranks"
        )))
    }

    fn proof(&self, side: Side) -> Result<Hmac<Sha256>, TransportError> {
        let mut proof = <Hmac<Sha256> as Mac>::new_from_slice(&self.secret.0)
            .map_err(|_| self.refused("the secret is not usable"))?;
        let label: &[u8] = match side {
            Side::Connector => b"ferroccl-shm connector",
            Side::Listener => b"ferroccl-shm listener",
        };
        proof.update(label);
        proof.update(&VERSION.to_le_bytes());
        // All but the hello have fixed lengths, so no two inputs read alike.
        proof.update(&self.connector_nonce);
        proof.update(&self.listener_nonce);
        proof.update(&self.hello);
        Ok(proof)
    }

    fn send(&self, message: &[u8], descriptor: Option<&OwnedFd>) -> Result<(), TransportError> {
        let descriptor = descriptor.map(AsFd::as_fd);
        wire::send(self.socket.as_fd(), message, descriptor).map_err(|error| match error {
            Errno::PIPE | Errno::CONNRESET => self.closed(),
            error => os("sendmsg", error, crate::DESCRIPTORS),
        })
    }

    fn closed(&self) -> TransportError {
        if self.side == Side::Connector && self.stage == Stage::Proof {
            return self.refused(
                "it closed the connection when this process had answered its challenge: the \
                 secrets of the two differ",
            );
        }
        let reason = match self.stage {
            Stage::Ring => "it closed the connection before it was complete",
            _ => "it closed the connection before it had proved the secret",
        };
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
