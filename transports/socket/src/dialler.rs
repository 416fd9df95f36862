//! The connecting side. It dials the addresses of a [`Location`] a short time apart, then does the
//! handshake with the first address that answers. It does not wait for an answer before it dials
//! the next address: a busy listener may answer late, and another program at an address may never
//! answer.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use ccl_core::time::Instant;
use ccl_core::transport::TransportError;
use rustix::io::Errno;

use crate::address::Location;
use crate::connection::Connection;
use crate::hello::Hello;
use crate::shake::{Setup, SocketHandshake};
use crate::{DESCRIPTORS, os, socket};

/// Time after which the next address is tried as well.
const STAGGER: Duration = Duration::from_millis(50);

/// A connection in the making.
#[derive(Debug)]
pub struct Dialler {
    location: Location,
    setup: Setup,
    hello: Vec<u8>,
    /// Addresses not dialled yet, the best last.
    waiting: Vec<SocketAddr>,
    /// Time at which the next address is dialled, unless all dialled addresses fail earlier.
    next_at: Instant,
    dialled: Vec<(SocketAddr, OwnedFd)>,
    /// Sockets on which the hello was sent. Only the first in the list goes on with the handshake,
    /// so that the listener cannot admit two connections.
    shakes: Vec<(SocketAddr, SocketHandshake)>,
    answering: bool,
    /// Reasons why addresses have failed.
    failures: Vec<String>,
    /// True if a later attempt may succeed: an address has failed for another reason than a refused
    /// connection (`ECONNREFUSED`), or this process lacked descriptors or memory.
    is_retryable: bool,
}

impl Dialler {
    /// Creates a dialler of all addresses of a location. Its hello carries `text`, of at most
    /// [`TEXT_BYTES_MAX`](crate::TEXT_BYTES_MAX) bytes. `resumes` is true if the connection
    /// replaces one that broke.
    #[must_use]
    pub fn new(location: Location, setup: &Setup, resumes: bool, text: &[u8]) -> Dialler {
        let (token, encrypts) = (location.token, setup.tls.is_some());
        let hello = Hello { token, encrypts, resumes, text: text.to_vec() };
        Dialler {
            waiting: location.addresses.iter().rev().copied().collect(),
            next_at: Instant::ZERO,
            location,
            setup: setup.clone(),
            hello: hello.encode(),
            dialled: Vec::new(),
            shakes: Vec::new(),
            answering: false,
            failures: Vec::new(),
            is_retryable: false,
        }
    }

    /// Advances the attempt. Returns the connection and its address once both sides have proved the
    /// secret.
    ///
    /// # Errors
    ///
    /// When the listener refuses, or no address is left.
    pub fn poll(
        &mut self,
        now: Instant,
    ) -> Result<Option<(SocketAddr, Connection)>, TransportError> {
        while let Some((address, shake)) = self.answer() {
            match shake.step() {
                Ok(false) => return Ok(None),
                Ok(true) => {
                    let (address, shake) = self.shakes.swap_remove(0);
                    return Ok(Some((address, shake.into_connection())));
                }
                // A refusal ends the attempt: the listener would refuse at its other addresses too.
                Err(error @ TransportError::Refused { .. }) => return Err(error),
                Err(error) => {
                    self.is_retryable = true;
                    self.answering = false;
                    self.shakes.swap_remove(0);
                    self.fail(address, &error.to_string());
                }
            }
        }
        self.dial(now)?;
        self.greet()?;
        Ok(None)
    }

    /// Returns the first connection on which the hello was answered, and moves it to the front.
    fn answer(&mut self) -> Option<(SocketAddr, &mut SocketHandshake)> {
        if !self.answering {
            let found = self.shakes.iter().position(|(_, shake)| shake.has_input())?;
            self.shakes.swap(0, found);
            self.answering = true;
        }
        self.shakes.first_mut().map(|(address, shake)| (*address, shake))
    }

    /// Dials the next address if all dialled ones have failed, or if the latest was dialled at
    /// least [`STAGGER`] ago. Returns an error if this process lacks descriptors or memory.
    fn dial(&mut self, now: Instant) -> Result<(), TransportError> {
        let none = |all: &Dialler| all.dialled.is_empty() && all.shakes.is_empty();
        while none(self) || now >= self.next_at {
            let Some(address) = self.waiting.pop() else { return Ok(()) };
            self.next_at = now + STAGGER;
            match socket::dial(address) {
                Ok(socket) => self.dialled.push((address, socket)),
                Err(error @ (Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)) => {
                    self.is_retryable = true;
                    return Err(os("socket", error, DESCRIPTORS));
                }
                Err(error) => self.fail_to_dial(address, error),
            }
        }
        Ok(())
    }

    /// Sends the hello to the addresses that are connected.
    fn greet(&mut self) -> Result<(), TransportError> {
        let mut index = 0;
        while let Some((address, socket)) = self.dialled.get(index) {
            let address = *address;
            match socket::is_connected(socket) {
                Ok(false) => index += 1,
                Ok(true) => {
                    let (_, socket) = self.dialled.remove(index);
                    let shake = SocketHandshake::connector(socket, &self.setup, &self.hello);
                    // An error here is of this process, and says nothing of the peer.
                    self.is_retryable |= shake.is_err();
                    let mut shake = shake?;
                    match shake.greet() {
                        Ok(()) => self.shakes.push((address, shake)),
                        Err(error) => {
                            self.is_retryable = true;
                            self.fail(address, &error.to_string());
                        }
                    }
                }
                Err(error) => {
                    self.dialled.remove(index);
                    self.fail_to_dial(address, error);
                }
            }
        }
        let over = self.dialled.is_empty() && self.shakes.is_empty() && self.waiting.is_empty();
        if over { Err(self.error()) } else { Ok(()) }
    }

    /// Returns whether a connection is open whose handshake is not finished.
    pub(crate) fn is_connected(&self) -> bool {
        !self.shakes.is_empty()
    }

    /// Returns whether a later attempt may succeed: an address has failed for another reason than a
    /// refused connection (`ECONNREFUSED`), or this process could not make or set up a socket. For
    /// example, a handshake broke off, or the path to the host is broken. A refusal by the listener
    /// ([`TransportError::Refused`]) does not count.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        self.is_retryable
    }

    fn fail_to_dial(&mut self, address: SocketAddr, error: Errno) {
        self.is_retryable |= error != Errno::CONNREFUSED;
        self.fail(address, &crate::text(error));
    }

    fn fail(&mut self, address: SocketAddr, reason: &str) {
        self.failures.push(format!("{address}: {reason}"));
    }

    /// Returns the error for a dialler that has no address left to try.
    fn error(&self) -> TransportError {
        TransportError::Lost {
            peer: format!("TCP listener {}", self.location.text()),
            reason: format!(
                "none of its addresses answers: {}; set FERROCCL_SOCKET_IFNAME on that \
                 host to interfaces that this host reaches, and look for a firewall",
                self.failures.join("; ")
            ),
        }
    }
}
