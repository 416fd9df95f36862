//! The connecting side: one address after the other, without waiting long for any, then the
//! handshake with the first that answers to its hello. A listener may let that wait: its process is
//! busy. So may something else that listens at one of the addresses, for ever: the others are tried
//! meanwhile.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use ccl_core::time::Instant;
use ccl_core::transport::{Connected, Connecting, TransportError};
use rustix::io::Errno;

use crate::address::Place;
use crate::link::{Hello, Link, TEXT_BYTES_MAX, Way};
use crate::shake::{Setup, Shake};
use crate::socket;
use crate::wire::Wire;

/// How long an address has for itself before the next one is tried as well.
const STAGGER: Duration = Duration::from_millis(50);

/// One stripe in the making.
#[derive(Debug)]
pub(crate) struct Dialler {
    place: Place,
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
    pub(crate) fn new(place: Place, setup: &Setup, hello: &Hello) -> Dialler {
        Dialler {
            waiting: place.addresses.iter().rev().copied().collect(),
            next_at: Instant::ZERO,
            place,
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
    pub(crate) fn poll(
        &mut self,
        now: Instant,
    ) -> Result<Option<(SocketAddr, Wire)>, TransportError> {
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
    pub(crate) fn has_hope(&self) -> bool {
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
            peer: format!("TCP listener {}", self.place.text()),
            reason: format!(
                "none of its addresses answers: {}; choose interfaces that reach it with \
                 FERROCCL_SOCKET_IFNAME on its side, and look for a firewall",
                self.failures.join("; ")
            ),
        }
    }
}

/// A link in the making.
#[derive(Debug)]
pub(crate) struct TcpConnecting {
    device: u64,
    place: Place,
    setup: Setup,
    hello: Hello,
    dialler: Option<Dialler>,
    stripes: Vec<Wire>,
    started: Option<Instant>,
    deadline: Instant,
}

impl TcpConnecting {
    pub(crate) fn new(
        device: u64,
        place: Place,
        setup: &Setup,
        text: &[u8],
        stripes: u16,
        deadline: Instant,
    ) -> Result<TcpConnecting, TransportError> {
        if text.len() > TEXT_BYTES_MAX {
            let bytes = text.len();
            return Err(TransportError::Usage(format!(
                "a hello of {bytes} bytes; at most {TEXT_BYTES_MAX} are allowed"
            )));
        }
        let hello = Hello {
            token: place.token,
            link: socket::random()?,
            stripe: 0,
            stripes,
            resumes: false,
            encrypts: setup.tls.is_some(),
            text: text.to_vec(),
        };
        let dialler = Some(Dialler::new(place.clone(), setup, &hello));
        let setup = setup.clone();
        let (stripes, started) = (Vec::new(), None);
        Ok(TcpConnecting { device, place, setup, hello, dialler, stripes, started, deadline })
    }

    fn advance(&mut self, now: Instant) -> Result<Option<Connected>, TransportError> {
        let Some(mut dialler) = self.dialler.take() else {
            let text = "this connection has already been handed out, or has failed".to_owned();
            return Err(TransportError::Usage(text));
        };
        let Some((address, wire)) = dialler.poll(now)? else {
            self.dialler = Some(dialler);
            return Ok(None);
        };
        self.stripes.push(wire);
        // All stripes take the way that the first has found, and so will those that mend them.
        self.place.addresses = vec![address];
        if self.stripes.len() < usize::from(self.hello.stripes) {
            self.hello.stripe += 1;
            self.dialler = Some(Dialler::new(self.place.clone(), &self.setup, &self.hello));
            return Ok(None);
        }
        let link = Link {
            device: self.device,
            id: self.hello.link,
            peer: address.to_string(),
            stripes: std::mem::take(&mut self.stripes),
            way: Way::Dialled { place: self.place.clone(), setup: self.setup.clone() },
        };
        Ok(Some(Connected { hello: Vec::new(), inner: Box::new(link) }))
    }
}

impl Connecting for TcpConnecting {
    fn poll(&mut self, now: Instant) -> Result<Option<Connected>, TransportError> {
        let started = *self.started.get_or_insert(now);
        let connected = self.advance(now)?;
        if connected.is_none() && now >= self.deadline {
            self.dialler = None;
            let (peer, after) = (self.place.text(), now.since(started));
            return Err(TransportError::Deadline { what: "connecting", peer, after });
        }
        Ok(connected)
    }
}
