//! The listening side: who proves the secret is let in, for a new link or to mend an old one.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ccl_core::time::Instant;
use ccl_core::transport::{Address, Connected, Listener, TransportError};

use crate::address::Place;
use crate::link::{Hello, Link, LinkId, Way};
use crate::shake::{Setup, Shake};
use crate::wire::Wire;
use crate::{interface, socket};

/// Connections that have proved nothing yet; more wait in the kernel's queue.
const HALF_OPEN_MAX: usize = 256;
/// How long a stranger may take to say what only peers are told: which listener is meant.
const PROVE_WITHIN: Duration = Duration::from_secs(5);
/// What of that everybody has: under pressure the oldest strangers then yield to newcomers, of
/// which one may be a peer that mends its link.
const YIELD_AFTER: Duration = Duration::from_millis(250);
/// How long a peer may take between two steps: it may be busy with other things.
const BUSY_MAX: Duration = Duration::from_secs(600);
/// Mended stripes that nobody has asked for yet.
const RESUMED_MAX: usize = 1024;

/// A link of which not all stripes have come yet.
#[derive(Debug)]
struct Joining {
    id: LinkId,
    text: Vec<u8>,
    peer: String,
    stripes: Vec<Option<Wire>>,
    until: Instant,
}

/// Takes connections for a listener, and later for the lanes of its links.
#[derive(Debug)]
pub(crate) struct Acceptor {
    socket: OwnedFd,
    place: Place,
    setup: Setup,
    /// Whether new links are wanted: the listener lives.
    listens: bool,
    half_open: Vec<(Instant, Shake)>,
    joining: Vec<Joining>,
    ready: VecDeque<Joining>,
    resumed: VecDeque<(LinkId, u16, Wire)>,
    rejected: u64,
}

impl Acceptor {
    /// Takes in whoever has come.
    pub(crate) fn pump(&mut self, now: Instant) -> Result<(), TransportError> {
        while self.half_open.len() < HALF_OPEN_MAX || self.has_yielding(now) {
            let Some(socket) = socket::accept(&self.socket)? else { break };
            if self.half_open.len() >= HALF_OPEN_MAX {
                self.yields();
            }
            match Shake::listener(socket, &self.setup, self.place.token) {
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
                    self.admit(shake, now);
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
        self.joining.retain(|joining| now < joining.until);
        Ok(())
    }

    /// The oldest of those who have not said yet what only peers are told.
    fn oldest_stranger(&self) -> Option<(usize, Instant)> {
        let untold = |(at, (until, shake)): (usize, &(Instant, Shake))| {
            shake.hello().is_none().then_some((at, *until))
        };
        self.half_open.iter().enumerate().filter_map(untold).min_by_key(|(_, until)| *until)
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

    /// Lets in who has proved the secret.
    fn admit(&mut self, shake: Shake, now: Instant) {
        let peer = shake.peer().to_owned();
        match shake.hello() {
            Some(hello) if hello.resumes => {
                self.resumed.retain(|(id, stripe, _)| (*id, *stripe) != (hello.link, hello.stripe));
                if self.resumed.len() == RESUMED_MAX {
                    self.resumed.pop_front();
                }
                self.resumed.push_back((hello.link, hello.stripe, shake.into_wire()));
            }
            Some(hello) if self.listens => self.join(hello, peer, shake.into_wire(), now),
            _ => {
                let reason = "this listener has been closed".to_owned();
                self.reject(&TransportError::Refused { peer, reason });
            }
        }
    }

    fn join(&mut self, hello: Hello, peer: String, wire: Wire, now: Instant) {
        let known = self.joining.iter().position(|joining| joining.id == hello.link);
        let index = known.unwrap_or_else(|| {
            let stripes = (0..hello.stripes).map(|_| None).collect();
            let until = now + BUSY_MAX;
            let text = hello.text;
            self.joining.push(Joining { id: hello.link, text, peer, stripes, until });
            self.joining.len() - 1
        });
        let joining = &mut self.joining[index];
        if let Some(stripe) = joining.stripes.get_mut(usize::from(hello.stripe)) {
            *stripe = Some(wire);
        }
        if joining.stripes.iter().all(Option::is_some) {
            let joined = self.joining.swap_remove(index);
            self.ready.push_back(joined);
        }
    }

    /// A stripe that has come back.
    pub(crate) fn take_resumed(&mut self, link: LinkId) -> Option<(u16, Wire)> {
        let at = self.resumed.iter().position(|(id, _, _)| *id == link)?;
        self.resumed.remove(at).map(|(_, stripe, wire)| (stripe, wire))
    }

    fn reject(&mut self, error: &TransportError) {
        self.rejected += 1;
        tracing::debug!(%error, "dropped a connection to the TCP listener");
    }
}

fn late(peer: &str) -> TransportError {
    let peer = peer.to_owned();
    TransportError::Deadline { what: "the proof of the secret", peer, after: PROVE_WITHIN }
}

/// An acceptor that may be shared.
pub(crate) fn lock(acceptor: &Mutex<Acceptor>) -> MutexGuard<'_, Acceptor> {
    // Whatever thread died with it: sockets are in one list or another.
    acceptor.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits for new links.
#[derive(Debug)]
pub(crate) struct TcpListener {
    device: u64,
    address: Address,
    acceptor: Arc<Mutex<Acceptor>>,
}

impl TcpListener {
    pub(crate) fn new(
        device: u64,
        interfaces: &str,
        setup: &Setup,
    ) -> Result<TcpListener, TransportError> {
        let filter = interface::Filter::parse(interfaces);
        let addresses = interface::addresses(&filter, interfaces)?;
        let (socket, port) = socket::listen()?;
        let addresses = addresses.into_iter().map(|ip| SocketAddr::new(ip, port)).collect();
        let place = Place { token: socket::random()?, addresses };
        let address = place.encode();
        let acceptor = Acceptor {
            socket,
            place,
            setup: setup.clone(),
            listens: true,
            half_open: Vec::new(),
            joining: Vec::new(),
            ready: VecDeque::new(),
            resumed: VecDeque::new(),
            rejected: 0,
        };
        Ok(TcpListener { device, address, acceptor: Arc::new(Mutex::new(acceptor)) })
    }
}

impl Listener for TcpListener {
    fn address(&self) -> Address {
        self.address.clone()
    }

    fn poll(&mut self, now: Instant) -> Result<Option<Connected>, TransportError> {
        let mut acceptor = lock(&self.acceptor);
        acceptor.pump(now)?;
        let Some(joined) = acceptor.ready.pop_front() else { return Ok(None) };
        let link = Link {
            device: self.device,
            id: joined.id,
            peer: joined.peer,
            stripes: joined.stripes.into_iter().flatten().collect(),
            way: Way::Accepted(Arc::clone(&self.acceptor)),
        };
        Ok(Some(Connected { hello: joined.text, inner: Box::new(link) }))
    }

    fn rejected(&self) -> u64 {
        lock(&self.acceptor).rejected
    }
}

impl Drop for TcpListener {
    fn drop(&mut self) {
        let mut acceptor = lock(&self.acceptor);
        acceptor.listens = false;
        acceptor.joining.clear();
        acceptor.ready.clear();
    }
}
