//! A connection: a socket, encrypted if enabled.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::OwnedFd;

use ccl_core::transport::handshake::ChannelKeys;

use crate::end::ConnectionEnd;
use crate::socket::{self, Got};
use crate::tls::Session;

/// A socket, with a TLS session if the connection is encrypted.
#[derive(Debug)]
pub struct Connection {
    socket: OwnedFd,
    session: Option<Box<Session>>,
}

impl Connection {
    /// Creates a connection without encryption.
    #[must_use]
    pub fn plain(socket: OwnedFd) -> Connection {
        Connection { socket, session: None }
    }

    /// Encrypts all bytes from now on.
    pub fn encrypt(&mut self, session: Session) {
        self.session = Some(Box::new(session));
    }

    /// Advances the TLS handshake. Returns the keys exported from the session once the handshake is
    /// finished; none without encryption.
    ///
    /// # Errors
    ///
    /// When the connection has ended.
    pub fn agree(&mut self) -> Result<Option<ChannelKeys>, ConnectionEnd> {
        match &mut self.session {
            None => Ok(None),
            Some(session) => session.agree(&self.socket),
        }
    }

    /// Returns the socket of the connection.
    #[must_use]
    pub fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// Reads available bytes into several buffers, until these are full or nothing is left.
    pub fn read(&mut self, into: &mut [IoSliceMut<'_>]) -> Got {
        match &mut self.session {
            None => socket::read(&self.socket, into),
            Some(session) => session.read(&self.socket, into),
        }
    }

    /// Writes as many bytes as the socket takes. On an encrypted connection, the session buffers
    /// the bytes, and takes no more before the socket has all of the earlier ones.
    pub fn write(&mut self, from: &[IoSlice<'_>]) -> Got {
        match &mut self.session {
            None => socket::write(&self.socket, from),
            Some(session) => session.write(&self.socket, from),
        }
    }

    /// Writes to the socket the bytes that the session still buffers.
    ///
    /// # Errors
    ///
    /// When the connection has ended.
    pub fn flush(&mut self) -> Result<(), ConnectionEnd> {
        match &mut self.session {
            None => Ok(()),
            Some(session) => session.flush(&self.socket).map(drop),
        }
    }

    /// Returns whether the session buffers no bytes for the socket.
    #[must_use]
    pub fn is_flushed(&self) -> bool {
        self.session.as_ref().is_none_or(|session| session.is_flushed())
    }

    /// Returns whether a read would return something even if the socket is empty.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.session.as_ref().is_some_and(|session| session.holds())
    }
}
