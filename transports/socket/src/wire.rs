//! A connection as frames see it: a socket, and what encrypts it, if anything does.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::OwnedFd;

use ccl_core::transport::handshake::ChannelKeys;

use crate::socket::{self, Got};
use crate::tls::Session;

/// A connection.
#[derive(Debug)]
pub struct Wire {
    socket: OwnedFd,
    session: Option<Box<Session>>,
}

impl Wire {
    /// Nothing is encrypted.
    #[must_use]
    pub fn plain(socket: OwnedFd) -> Wire {
        Wire { socket, session: None }
    }

    /// From here on everything is encrypted.
    pub fn encrypt(&mut self, session: Session) {
        self.session = Some(Box::new(session));
    }

    /// The keys of the encrypted channel, once both ends have them. An error is the end of the
    /// connection.
    ///
    /// # Errors
    ///
    /// Why it ended.
    pub fn agree(&mut self) -> Result<Option<ChannelKeys>, String> {
        match &mut self.session {
            None => Ok(None),
            Some(session) => session.agree(&self.socket),
        }
    }

    /// Its socket.
    #[must_use]
    pub fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// Reads what is there into several places: they are full, or nothing is left.
    pub fn read(&mut self, into: &mut [IoSliceMut<'_>]) -> Got {
        match &mut self.session {
            None => socket::read(&self.socket, into),
            Some(session) => session.read(&self.socket, into),
        }
    }

    /// Writes what is taken, which may be less than the socket has room for.
    pub fn write(&mut self, from: &[IoSlice<'_>]) -> Got {
        match &mut self.session {
            None => socket::write(&self.socket, from),
            Some(session) => session.write(&self.socket, from),
        }
    }

    /// Gives the socket what was taken and not passed on. An error is the end of the connection.
    ///
    /// # Errors
    ///
    /// Why it ended.
    pub fn flush(&mut self) -> Result<(), String> {
        match &mut self.session {
            None => Ok(()),
            Some(session) => session.flush(&self.socket).map(drop),
        }
    }

    /// Whether the socket has all that was taken.
    #[must_use]
    pub fn is_flushed(&self) -> bool {
        self.session.as_ref().is_none_or(|session| session.is_flushed())
    }

    /// Whether a read would find something even if the socket has nothing.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.session.as_ref().is_some_and(|session| session.holds())
    }
}
