//! The handshake over a socket: messages with their length in two bytes before them.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::OwnedFd;

use ccl_core::transport::handshake::{Handshake, Protocol, Refusal, message_bytes_max};
use ccl_core::transport::{Secret, TransportError};

use crate::address::Token;
use crate::link::{HELLO_BYTES_MAX, Hello};
use crate::os;
use crate::socket::{self, Got};

/// Its version changes with every change of what is sent on a stripe.
const PROTOCOL: Protocol =
    Protocol { name: "ferroccl-tcp", version: 2, hello_bytes_max: HELLO_BYTES_MAX };
const MESSAGE_BYTES_MAX: usize = message_bytes_max(HELLO_BYTES_MAX);

/// A connection whose sides have not proved the secret yet.
#[derive(Debug)]
pub(crate) struct Shake {
    socket: OwnedFd,
    peer: String,
    handshake: Handshake,
    /// The listener that must be meant, on its side.
    token: Option<Token>,
    /// Of the message that is being read, its length included.
    incoming: Vec<u8>,
    outgoing: Vec<u8>,
}

impl Shake {
    /// The connecting side, over a connected socket.
    pub(crate) fn connector(
        socket: OwnedFd,
        secret: &Secret,
        hello: &[u8],
    ) -> Result<Shake, TransportError> {
        let (handshake, first) = Handshake::connector(PROTOCOL, secret, socket::random()?, hello);
        let mut made = Shake::new(socket, handshake, None)?;
        made.send(&first);
        Ok(made)
    }

    /// The listening side, over an accepted one.
    pub(crate) fn listener(
        socket: OwnedFd,
        secret: &Secret,
        token: Token,
    ) -> Result<Shake, TransportError> {
        let handshake = Handshake::listener(PROTOCOL, secret, socket::random()?);
        Shake::new(socket, handshake, Some(token))
    }

    fn new(
        socket: OwnedFd,
        handshake: Handshake,
        token: Option<Token>,
    ) -> Result<Shake, TransportError> {
        let peer = socket::peer(&socket);
        socket::hurry(&socket).map_err(|error| os("TCP_NODELAY", error, "try again"))?;
        let (incoming, outgoing) = (Vec::new(), Vec::new());
        Ok(Shake { socket, peer, handshake, token, incoming, outgoing })
    }

    /// The peer's address, for messages.
    pub(crate) fn peer(&self) -> &str {
        &self.peer
    }

    /// What the connecting side says of itself, once both have proved.
    pub(crate) fn hello(&self) -> Option<Hello> {
        Hello::decode(self.handshake.hello())
    }

    pub(crate) fn into_socket(self) -> OwnedFd {
        self.socket
    }

    /// Takes what has arrived. Yes means that both sides have proved the secret.
    pub(crate) fn step(&mut self) -> Result<bool, TransportError> {
        self.flush()?;
        // Not a byte more is read than belongs to the handshake: frames follow it.
        while let Some(message) = self.read()? {
            match self.handshake.take(&message) {
                // Before this side proves anything: who means another listener must try another.
                Ok(_) if self.is_misled() => {
                    return Err(self.refused("it means another listener than this".to_owned()));
                }
                Ok(answer) => {
                    answer.send.iter().for_each(|message| self.send(message));
                    self.flush()?;
                    if answer.proved {
                        return Ok(true);
                    }
                }
                Err(Refusal { reason, farewell }) => {
                    farewell.iter().for_each(|message| self.send(message));
                    // It may not arrive: the peer is refused all the same.
                    let _ = self.flush();
                    return Err(self.refused(reason));
                }
            }
        }
        Ok(false)
    }

    /// Says hello, and reads nothing.
    pub(crate) fn greet(&mut self) -> Result<(), TransportError> {
        self.flush()
    }

    /// Whether the peer has said something, or hung up.
    pub(crate) fn hears(&self) -> bool {
        !self.incoming.is_empty() || socket::is_readable(&self.socket)
    }

    fn is_misled(&self) -> bool {
        self.token.is_some_and(|token| self.hello().is_none_or(|hello| hello.token != token))
    }

    fn send(&mut self, message: &[u8]) {
        self.outgoing.extend_from_slice(&(message.len() as u16).to_le_bytes());
        self.outgoing.extend_from_slice(message);
    }

    fn flush(&mut self) -> Result<(), TransportError> {
        while !self.outgoing.is_empty() {
            match socket::write(&self.socket, &[IoSlice::new(&self.outgoing)]) {
                Got::Bytes(count) => drop(self.outgoing.drain(..count)),
                Got::Nothing => break,
                Got::End(_) => return Err(self.closed()),
            }
        }
        Ok(())
    }

    /// The next message if all of it is there.
    fn read(&mut self) -> Result<Option<Vec<u8>>, TransportError> {
        loop {
            let have = self.incoming.len();
            let want = match self.incoming.first_chunk() {
                None => 2,
                Some(length) => 2 + usize::from(u16::from_le_bytes(*length)),
            };
            if want > 2 + MESSAGE_BYTES_MAX {
                return Err(self.refused("it speaks no protocol that is known here".to_owned()));
            }
            if have >= 2 && have == want {
                return Ok(Some(std::mem::take(&mut self.incoming).split_off(2)));
            }
            self.incoming.resize(want, 0);
            let got =
                socket::read(&self.socket, &mut [IoSliceMut::new(&mut self.incoming[have..])]);
            let count = if let Got::Bytes(count) = got { count } else { 0 };
            self.incoming.truncate(have + count);
            match got {
                Got::Bytes(_) => {}
                Got::Nothing => return Ok(None),
                Got::End(_) => return Err(self.closed()),
            }
        }
    }

    fn closed(&self) -> TransportError {
        match self.handshake.closed() {
            (reason, true) => self.refused(reason.to_owned()),
            (reason, false) => {
                TransportError::Lost { peer: self.peer.clone(), reason: reason.to_owned() }
            }
        }
    }

    fn refused(&self, reason: String) -> TransportError {
        TransportError::Refused { peer: self.peer.clone(), reason }
    }
}
