//! The connecting side: one address after the other, without waiting long for any, then the
//! handshake with the first that answers to its hello. A listener may let that wait: its process is
//! busy. So may something else that listens at one of the addresses, for ever: the others are tried
//! meanwhile.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use ccl_core::time::Instant;
use ccl_core::transport::TransportError;
use rustix::io::Errno;

use crate::address::Location;
use crate::hello::Hello;
use crate::shake::{Setup, Shake};
use crate::socket;
use crate::wire::Wire;

/// How long an address has for itself before the next one is tried as well.
const STAGGER: Duration = Duration::from_millis(50);

/// A connection in the making.
#[derive(Debug)]
pub struct Dialler {
    location: Location,
    setup: Setup,
    hello: Vec<u8>,
    /// Addresses that were not dialled yet, the best last, and when the next one's turn is.
    waiting: Vec<SocketAddr>,
    next_at: Instant,
    dialled: Vec<(SocketAddr, OwnedFd)>,
    /// Those that were greeted. Only one at a time is answered, the first: a listener must not
    /// take two of them in for one.
    shakes: Vec<(SocketAddr, Shake)>,
    answering: bool,
    /// What became of each address that is out of the question.
    failures: Vec<String>,
    /// Whether some address might still lead somewhere: not all have said that nobody listens.
    hope: bool,
}

impl Dialler {
    /// Will try all addresses of a place, to say this there (at most
    /// [`TEXT_BYTES_MAX`](crate::TEXT_BYTES_MAX) bytes); `resumes` if the connection takes the
    /// place of one that broke.
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
            hope: false,
        }
    }

    /// The connection, once both sides have proved the secret, and where it leads.
    ///
    /// # Errors
    ///
    /// When the gate refuses, or no address is left.
    pub fn poll(&mut self, now: Instant) -> Result<Option<(SocketAddr, Wire)>, TransportError> {
        while let Some((address, shake)) = self.answer() {
            match shake.step() {
                Ok(false) => return Ok(None),
                Ok(true) => {
                    let (address, shake) = self.shakes.swap_remove(0);
                    return Ok(Some((address, shake.into_wire())));
                }
                // It is the listener meant, and wants nothing of this process: no other address
                // leads to a better one.
                Err(error @ TransportError::Refused { .. }) => return Err(error),
                Err(error) => {
                    self.hope = true;
                    self.answering = false;
                    self.shakes.swap_remove(0);
                    self.fail(address, &error.to_string());
                }
            }
        }
        self.dial(now);
        self.greet()?;
        Ok(None)
    }

    /// The first that has answered to its hello, which is then the first of all.
    fn answer(&mut self) -> Option<(SocketAddr, &mut Shake)> {
        if !self.answering {
            let found = self.shakes.iter().position(|(_, shake)| shake.hears())?;
            self.shakes.swap(0, found);
            self.answering = true;
        }
        self.shakes.first_mut().map(|(address, shake)| (*address, shake))
    }

    /// Dials the next address if its turn has come: when all before it have failed, or have not
    /// answered for a while.
    fn dial(&mut self, now: Instant) {
        let none = |all: &Dialler| all.dialled.is_empty() && all.shakes.is_empty();
        while none(self) || now >= self.next_at {
            let Some(address) = self.waiting.pop() else { return };
            self.next_at = now + STAGGER;
            match socket::dial(address) {
                Ok(socket) => self.dialled.push((address, socket)),
                Err(error) => self.fail_to_dial(address, error),
            }
        }
    }

    /// Greets the addresses that are connected.
    fn greet(&mut self) -> Result<(), TransportError> {
        let mut index = 0;
        while let Some((address, socket)) = self.dialled.get(index) {
            let address = *address;
            match socket::is_connected(socket) {
                Ok(false) => index += 1,
                Ok(true) => {
                    let (_, socket) = self.dialled.remove(index);
                    let mut shake = Shake::connector(socket, &self.setup, &self.hello)?;
                    match shake.greet() {
                        Ok(()) => self.shakes.push((address, shake)),
                        Err(error) => self.fail(address, &error.to_string()),
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

    /// Whether trying again later may help: somebody was there, or the way to there is broken.
    #[must_use]
    pub fn has_hope(&self) -> bool {
        self.hope
    }

    fn fail_to_dial(&mut self, address: SocketAddr, error: Errno) {
        self.hope |= error != Errno::CONNREFUSED;
        self.fail(address, &crate::text(error));
    }

    fn fail(&mut self, address: SocketAddr, reason: &str) {
        self.failures.push(format!("{address}: {reason}"));
    }

    /// Nothing is left to be tried.
    fn error(&self) -> TransportError {
        TransportError::Lost {
            peer: format!("TCP listener {}", self.location.text()),
            reason: format!(
                "none of its addresses answers: {}; choose interfaces that reach it with \
                 FERROCCL_SOCKET_IFNAME on its side, and look for a firewall",
                self.failures.join("; ")
            ),
        }
    }
}
