//! The handshake over a socket: messages, each preceded by two bytes with its length. Only the
//! proof inside TLS (see below), whose length is fixed, is sent without a length.
//!
//! When both sides have proved the secret, the listening side sends its terms: whether it encrypts.
//! If both sides encrypt, TLS begins, and each side proves the secret once more, over keys exported
//! from the TLS session. A man in the middle who has relayed the first proofs has a different
//! session with each side, and fails.

use std::fmt;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use ccl_core::transport::handshake::{
    ChannelKeys, ChannelProof, Handshake, Protocol, Refusal, message_bytes_max,
};
use ccl_core::transport::{Secret, TransportError};

use crate::address::Token;
use crate::connection::Connection;
use crate::hello::{HELLO_BYTES_MAX, Hello};
use crate::socket::{self, Got};
use crate::tls::Tls;
use crate::{CONGESTION, os};

/// Returns the identity of a protocol over these connections: its name, and a version that changes
/// whenever the format of the bytes sent after the handshake changes.
#[must_use]
pub const fn protocol(name: &'static str, version: u16) -> Protocol {
    Protocol { name, version, hello_bytes_max: HELLO_BYTES_MAX }
}

const MESSAGE_BYTES_MAX: usize = message_bytes_max(HELLO_BYTES_MAX);

/// Parameters of every connection of a device.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Protocol that is spoken over the connection.
    pub protocol: Protocol,
    /// Secret that both sides prove.
    pub secret: Secret,
    /// State for TLS sessions; none without encryption.
    pub tls: Option<Tls>,
    /// Name of the congestion control; none leaves the kernel's choice.
    pub congestion: Option<Arc<str>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Proof of the secret, in the clear.
    Proof,
    /// Wait for the terms of the listening side.
    Terms,
    /// TLS handshake.
    Keys,
    /// Proof of the secret, inside the TLS session.
    ChannelProof(ChannelKeys),
    Done,
}

/// A connection whose sides have not proved the secret yet.
pub struct SocketHandshake {
    connection: Connection,
    tls: Option<Tls>,
    stage: Stage,
    peer: String,
    handshake: Handshake,
    /// Token that the peer must name; set on the listening side.
    token: Option<Token>,
    /// Bytes of the message that is being read, its length included.
    incoming: Vec<u8>,
    outgoing: Vec<u8>,
}

impl SocketHandshake {
    /// Begins the handshake of the connecting side, over a connected socket.
    ///
    /// # Errors
    ///
    /// When the kernel has no randomness yet, or refuses an option of the socket.
    pub fn connector(
        socket: OwnedFd,
        setup: &Setup,
        hello: &[u8],
    ) -> Result<SocketHandshake, TransportError> {
        let (handshake, first) =
            Handshake::connector(setup.protocol, &setup.secret, socket::random()?, hello);
        let mut made = SocketHandshake::new(socket, handshake, setup, None)?;
        made.send(&first);
        Ok(made)
    }

    /// Begins the handshake of the listening side, over an accepted socket.
    ///
    /// # Errors
    ///
    /// When the kernel has no randomness yet, or refuses an option of the socket.
    pub fn listener(
        socket: OwnedFd,
        setup: &Setup,
        token: Token,
    ) -> Result<SocketHandshake, TransportError> {
        let handshake = Handshake::listener(setup.protocol, &setup.secret, socket::random()?);
        SocketHandshake::new(socket, handshake, setup, Some(token))
    }

    fn new(
        socket: OwnedFd,
        handshake: Handshake,
        setup: &Setup,
        token: Option<Token>,
    ) -> Result<SocketHandshake, TransportError> {
        let peer = socket::peer(&socket);
        socket::set_nodelay(&socket).map_err(|error| os("TCP_NODELAY", error, "try again"))?;
        socket::keep_alive(&socket).map_err(|error| os("SO_KEEPALIVE", error, "try again"))?;
        if let Some(name) = &setup.congestion {
            socket::congest(&socket, name)
                .map_err(|error| os("TCP_CONGESTION", error, CONGESTION))?;
        }
        let (connection, tls, stage) = (Connection::plain(socket), setup.tls.clone(), Stage::Proof);
        let (incoming, outgoing) = (Vec::new(), Vec::new());
        Ok(SocketHandshake { connection, tls, stage, peer, handshake, token, incoming, outgoing })
    }

    /// Returns the peer's address, for errors and logs.
    #[must_use]
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// Returns the hello of the connecting side; none before it arrives. It must not be trusted
    /// before that side has proved the secret.
    #[must_use]
    pub fn hello(&self) -> Option<Hello> {
        Hello::decode(self.handshake.hello())
    }

    /// Returns the connection.
    #[must_use]
    pub fn into_connection(self) -> Connection {
        self.connection
    }

    /// Handles the bytes that have arrived. Returns true when the handshake is finished: both sides
    /// have proved the secret, and agree about encryption.
    ///
    /// # Errors
    ///
    /// When the peer is refused, refuses, or hangs up.
    pub fn step(&mut self) -> Result<bool, TransportError> {
        self.flush()?;
        loop {
            let done = match self.stage {
                Stage::Proof => self.prove()?,
                Stage::Terms => self.take_terms()?,
                Stage::Keys => self.agree()?,
                Stage::ChannelProof(keys) => self.prove_over_channel(&keys)?,
                Stage::Done => return Ok(true),
            };
            if !done {
                return Ok(false);
            }
        }
    }

    /// Handles the next message of the proof. Returns false if it has not arrived.
    fn prove(&mut self) -> Result<bool, TransportError> {
        // No byte past the handshake is read: frames follow it.
        let Some(message) = self.read()? else { return Ok(false) };
        match self.handshake.take(&message) {
            // The peer looks for another listener. This side hangs up before it sends a challenge,
            // so that the peer tries its next address. After a challenge, the peer would take the
            // hang-up for a refusal of its secret.
            Ok(_) if self.is_misled() => {
                Err(self.refused("it was looking for another listener".to_owned()))
            }
            Ok(answer) => {
                answer.send.iter().for_each(|message| self.send(message));
                if answer.proved && self.listens() {
                    self.send(&[u8::from(self.tls.is_some())]);
                }
                self.flush()?;
                match answer.proved {
                    true if self.listens() => self.agree_on_terms(self.is_to_be_encrypted())?,
                    true => self.stage = Stage::Terms,
                    false => {}
                }
                Ok(true)
            }
            Err(Refusal { reason, farewell }) => {
                farewell.iter().for_each(|message| self.send(message));
                // If this last message cannot be sent, the peer is refused all the same.
                let _ = self.flush();
                Err(self.refused(reason))
            }
        }
    }

    fn take_terms(&mut self) -> Result<bool, TransportError> {
        let Some(terms) = self.read()? else { return Ok(false) };
        self.agree_on_terms(terms == [1])?;
        Ok(true)
    }

    /// Begins TLS or ends the handshake, if both sides agree about encryption.
    fn agree_on_terms(&mut self, theirs: bool) -> Result<(), TransportError> {
        self.stage = match &self.tls {
            Some(tls) if theirs => {
                self.connection.encrypt(tls.session(!self.listens())?);
                Stage::Keys
            }
            None if !theirs => Stage::Done,
            own => {
                let encrypts = "encrypts what it sends (FERROCCL_TLS=1)";
                let (it, this) = match own {
                    None => (encrypts, "does not"),
                    Some(_) => ("does not encrypt what it sends", encrypts),
                };
                return Err(self.refused(format!(
                    "it {it}, this process {this}; set FERROCCL_TLS alike on all ranks"
                )));
            }
        };
        Ok(())
    }

    fn agree(&mut self) -> Result<bool, TransportError> {
        let Some(keys) = self.connection.agree().map_err(|end| self.without_channel(end))? else {
            return Ok(false);
        };
        self.outgoing = self.handshake.channel_proof(&keys).to_vec();
        self.flush()?;
        self.stage = Stage::ChannelProof(keys);
        Ok(true)
    }

    fn prove_over_channel(&mut self, keys: &ChannelKeys) -> Result<bool, TransportError> {
        if !self.read_until(size_of::<ChannelProof>())? {
            return Ok(false);
        }
        let claimed = std::mem::take(&mut self.incoming);
        let claimed = claimed.first_chunk().unwrap_or(&[0; 32]);
        self.handshake
            .take_channel_proof(keys, claimed)
            .map_err(|refusal| self.refused(refusal.reason))?;
        self.stage = Stage::Done;
        Ok(true)
    }

    /// Sends the hello, and reads nothing.
    pub(crate) fn greet(&mut self) -> Result<(), TransportError> {
        self.flush()
    }

    /// Returns whether the peer has sent something, or hung up.
    pub(crate) fn has_input(&self) -> bool {
        !self.incoming.is_empty() || socket::is_readable(self.connection.socket())
    }

    fn listens(&self) -> bool {
        self.token.is_some()
    }

    /// Returns whether the connecting side asks for encryption.
    fn is_to_be_encrypted(&self) -> bool {
        self.hello().is_some_and(|hello| hello.encrypts)
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
            match self.connection.write(&[IoSlice::new(&self.outgoing)]) {
                Got::Bytes(count) => drop(self.outgoing.drain(..count)),
                Got::Nothing => break,
                Got::End(_) => return Err(self.closed()),
            }
        }
        self.connection.flush().map_err(|_| self.closed())
    }

    /// Reads the next message; none if it has not arrived in full.
    fn read(&mut self) -> Result<Option<Vec<u8>>, TransportError> {
        loop {
            let want = match self.incoming.first_chunk() {
                None => 2,
                Some(length) => 2 + usize::from(u16::from_le_bytes(*length)),
            };
            if want > 2 + MESSAGE_BYTES_MAX {
                return Err(self.refused("it speaks no protocol that is known here".to_owned()));
            }
            let have = self.incoming.len();
            if have >= 2 && have == want {
                return Ok(Some(std::mem::take(&mut self.incoming).split_off(2)));
            }
            if !self.read_until(want)? {
                return Ok(None);
            }
        }
    }

    /// Reads until `incoming` holds exactly `want` bytes. Returns whether they have arrived.
    fn read_until(&mut self, want: usize) -> Result<bool, TransportError> {
        while self.incoming.len() < want {
            let have = self.incoming.len();
            self.incoming.resize(want, 0);
            let got = self.connection.read(&mut [IoSliceMut::new(&mut self.incoming[have..])]);
            let count = if let Got::Bytes(count) = got { count } else { 0 };
            self.incoming.truncate(have + count);
            match got {
                Got::Bytes(_) => {}
                Got::Nothing => return Ok(false),
                Got::End(_) => return Err(self.closed()),
            }
        }
        Ok(true)
    }

    fn closed(&self) -> TransportError {
        let peer = self.peer.clone();
        let reason = match self.stage {
            Stage::Proof => match self.handshake.closed() {
                // Sides that resume a broken connection share the secret, so a hang-up means that
                // the connection broke again, and not that the peer refuses.
                (reason, true) if !self.hello().is_some_and(|hello| hello.resumes) => {
                    return self.refused(reason.to_owned());
                }
                (reason, _) => reason,
            },
            Stage::Keys | Stage::ChannelProof(_) => return self.without_channel("it hung up"),
            Stage::Terms | Stage::Done => {
                "it closed the connection after both sides had proved the secret"
            }
        };
        TransportError::Lost { peer, reason: reason.to_owned() }
    }

    fn without_channel(&self, reason: impl fmt::Display) -> TransportError {
        let reason = format!("the handshake of the encrypted channel failed: {reason}");
        TransportError::Lost { peer: self.peer.clone(), reason }
    }

    fn refused(&self, reason: String) -> TransportError {
        TransportError::Refused { peer: self.peer.clone(), reason }
    }
}

impl fmt::Debug for SocketHandshake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The stage is left out, because it may hold keys.
        let SocketHandshake { peer, connection, .. } = self;
        f.debug_struct("SocketHandshake")
            .field("peer", peer)
            .field("connection", connection)
            .finish_non_exhaustive()
    }
}
