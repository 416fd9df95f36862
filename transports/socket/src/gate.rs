//! The listening side: peers that prove the secret are let in.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::Duration;

use ccl_core::time::Instant;
use ccl_core::transport::{Address, TransportError};

use crate::address::Location;
use crate::connection::Connection;
use crate::hello::Hello;
use crate::shake::{Setup, SocketHandshake};
use crate::{interface, socket};

/// Limit on connections that have not proved the secret; further ones wait in the kernel's queue.
const HALF_OPEN_MAX: usize = 256;
/// Time within which a connection must name the gate's token, which only peers know. A connection
/// that has not named the token counts as a stranger.
const PROVE_WITHIN: Duration = Duration::from_secs(5);
/// Age from which a stranger may be replaced. If [`HALF_OPEN_MAX`] connections are half open, a new
/// connection replaces the oldest stranger, provided that the stranger has reached this age: the
/// new connection may come from a peer that mends its link.
const YIELD_AFTER: Duration = Duration::from_millis(250);
/// Extra time for a peer that has named the token and may be busy; also the time in which a peer
/// must make all connections of a link.
pub const BUSY_MAX: Duration = Duration::from_secs(600);

/// A connection whose two sides have proved the secret.
#[derive(Debug)]
pub struct AuthenticatedConnection {
    /// Hello of the connecting side.
    pub hello: Hello,
    /// Address of the peer, as text for errors and logs.
    pub peer: String,
    /// The connection.
    pub connection: Connection,
}

/// A listener for peers.
#[derive(Debug)]
pub struct Gate {
    socket: OwnedFd,
    location: Location,
    setup: Setup,
    half_open: Vec<(Instant, SocketHandshake)>,
    rejected: u64,
}

impl Gate {
    /// Listens on a free port, and offers peers the addresses of `interfaces`, a text that
    /// [`interface::Filter`] reads.
    ///
    /// # Errors
    ///
    /// When no interface is left, or the system does not let this process listen.
    pub fn open(interfaces: &str, setup: &Setup) -> Result<Gate, TransportError> {
        let filter = interface::Filter::parse(interfaces);
        let addresses = interface::addresses(&filter, interfaces)?;
        let (socket, port) = socket::listen()?;
        let addresses = addresses.into_iter().map(|ip| SocketAddr::new(ip, port)).collect();
        let location = Location { token: socket::random()?, addresses };
        let (setup, half_open) = (setup.clone(), Vec::new());
        Ok(Gate { socket, location, setup, half_open, rejected: 0 })
    }

    /// Makes this address the first that peers try, if the gate offers it.
    pub fn prefer(&mut self, address: IpAddr) {
        self.location.addresses.sort_by_key(|one| one.ip() != address);
    }

    /// Returns the address at which peers reach the gate.
    #[must_use]
    pub fn address(&self) -> Address {
        self.location.encode()
    }

    /// Accepts connections and advances their handshakes. Appends the connections on which the
    /// secret was proved.
    ///
    /// # Errors
    ///
    /// When listening itself has failed.
    pub fn pump(
        &mut self,
        now: Instant,
        proven: &mut Vec<AuthenticatedConnection>,
    ) -> Result<(), TransportError> {
        while self.half_open.len() < HALF_OPEN_MAX || self.has_yielding(now) {
            let Some(socket) = socket::accept(&self.socket)? else { break };
            if self.half_open.len() >= HALF_OPEN_MAX {
                self.yields();
            }
            match SocketHandshake::listener(socket, &self.setup, self.location.token) {
                Ok(shake) => self.half_open.push((now + PROVE_WITHIN, shake)),
                Err(error) => self.reject(&error),
            }
        }
        let mut index = 0;
        while let Some((until, shake)) = self.half_open.get_mut(index) {
            match shake.step() {
                Ok(false) if now < *until => index += 1,
                Ok(false) if shake.hello().is_some() && now < *until + BUSY_MAX => index += 1,
                Ok(true) => {
                    let (_, shake) = self.half_open.swap_remove(index);
                    let peer = shake.peer().to_owned();
                    let hello = shake.hello();
                    proven.extend(hello.map(|hello| {
                        let connection = shake.into_connection();
                        AuthenticatedConnection { hello, peer, connection }
                    }));
                }
                Ok(false) => {
                    let (_, shake) = self.half_open.swap_remove(index);
                    self.reject(&late(shake.peer()));
                }
                Err(error) => {
                    self.half_open.swap_remove(index);
                    self.reject(&error);
                }
            }
        }
        Ok(())
    }

    /// Returns the index and the deadline of the oldest stranger: a connection on which the gate's
    /// token was not named yet.
    fn oldest_stranger(&self) -> Option<(usize, Instant)> {
        let unchallenged = |(at, (until, shake)): (usize, &(Instant, SocketHandshake))| {
            shake.hello().is_none().then_some((at, *until))
        };
        self.half_open.iter().enumerate().filter_map(unchallenged).min_by_key(|(_, until)| *until)
    }

    fn has_yielding(&self, now: Instant) -> bool {
        let patience = PROVE_WITHIN.saturating_sub(YIELD_AFTER);
        self.oldest_stranger().is_some_and(|(_, until)| now + patience >= until)
    }

    fn yields(&mut self) {
        if let Some((at, _)) = self.oldest_stranger() {
            let (_, shake) = self.half_open.swap_remove(at);
            self.reject(&late(shake.peer()));
        }
    }

    /// Counts a connection that was dropped.
    pub fn reject(&mut self, error: &TransportError) {
        self.rejected += 1;
        tracing::debug!(%error, "dropped a connection");
    }

    /// Returns the number of connections dropped so far.
    #[must_use]
    pub fn rejected(&self) -> u64 {
        self.rejected
    }
}

fn late(peer: &str) -> TransportError {
    let peer = peer.to_owned();
    TransportError::Deadline { what: "the proof of the secret", peer, after: PROVE_WITHIN }
}
