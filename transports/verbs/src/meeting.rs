//! How two devices meet: over connections beside the hardware, which prove the secret.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ccl_core::time::Instant;
use ccl_core::transport::handshake::Protocol;
use ccl_core::transport::{
    Address, Connected, Connecting, HELLO_BYTES_MAX, Listener, TransportError,
};
use ccl_wire::{Dialler, Gate, Place, Proven, Setup, Wire, protocol, socket};

use crate::endpoint::Link;
use crate::memory::LinkId;

/// Its version changes with every change of what the two sides tell each other.
pub(crate) const PROTOCOL: Protocol = protocol("ferroccl-verbs", 3);

/// Connections made anew that no link has asked for yet.
const RESUMED_MAX: usize = 1024;

/// Takes connections for a listener, and later for its links: those that broke are made anew.
#[derive(Debug)]
pub(crate) struct Acceptor {
    gate: Gate,
    /// Whether new links are wanted: the listener lives.
    listens: bool,
    proven: Vec<Proven>,
    arrived: VecDeque<(LinkId, Proven)>,
    resumed: VecDeque<(LinkId, Wire)>,
}

impl Acceptor {
    fn pump(&mut self, now: Instant) -> Result<(), TransportError> {
        let pumped = self.gate.pump(now, &mut self.proven);
        for proven in std::mem::take(&mut self.proven) {
            self.admit(proven);
        }
        pumped
    }

    fn admit(&mut self, proven: Proven) {
        let reason = match proven.hello.text.first_chunk().copied() {
            Some(id) if proven.hello.resumes => {
                self.resumed.retain(|(known, _)| *known != id);
                if self.resumed.len() == RESUMED_MAX {
                    self.resumed.pop_front();
                }
                return self.resumed.push_back((id, proven.wire));
            }
            Some(id) if self.listens => return self.arrived.push_back((id, proven)),
            Some(_) => "this listener has been closed",
            None => "it does not say which link it wants",
        };
        let (peer, reason) = (proven.peer, reason.to_owned());
        self.gate.reject(&TransportError::Refused { peer, reason });
    }
}

fn lock(acceptor: &Mutex<Acceptor>) -> MutexGuard<'_, Acceptor> {
    // Whatever thread died with it: connections are in one list or another.
    acceptor.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes the connection that a link's peer has made anew, if it has.
pub(crate) fn take_resumed(acceptor: &Mutex<Acceptor>, link: LinkId, now: Instant) -> Option<Wire> {
    let mut acceptor = lock(acceptor);
    // A gate that fails lets nobody in: that is noticed by its deadline.
    let _ = acceptor.pump(now);
    let at = acceptor.resumed.iter().position(|(id, _)| *id == link)?;
    acceptor.resumed.remove(at).map(|(_, wire)| wire)
}

/// How the connection beside the queue pairs is made anew.
#[derive(Clone, Debug)]
pub(crate) enum Way {
    /// The peer connects again, to this.
    Accepted(Arc<Mutex<Acceptor>>),
    /// This side connects again, there.
    Dialled { place: Place, setup: Setup },
}

/// Waits for peers.
#[derive(Debug)]
pub(crate) struct VerbsListener {
    device: u64,
    address: Address,
    acceptor: Arc<Mutex<Acceptor>>,
}

impl VerbsListener {
    pub(crate) fn new(
        device: u64,
        interfaces: &str,
        own: IpAddr,
        setup: &Setup,
    ) -> Result<VerbsListener, TransportError> {
        let mut gate = Gate::open(interfaces, setup)?;
        // What ends with the device should take no other way with it.
        gate.prefer(own);
        let address = gate.address();
        let acceptor = Acceptor {
            gate,
            listens: true,
            proven: Vec::new(),
            arrived: VecDeque::new(),
            resumed: VecDeque::new(),
        };
        Ok(VerbsListener { device, address, acceptor: Arc::new(Mutex::new(acceptor)) })
    }
}

impl Listener for VerbsListener {
    fn address(&self) -> Address {
        self.address.clone()
    }

    fn poll(&mut self, now: Instant) -> Result<Option<Connected>, TransportError> {
        let mut acceptor = lock(&self.acceptor);
        acceptor.pump(now)?;
        let Some((id, proven)) = acceptor.arrived.pop_front() else { return Ok(None) };
        let Proven { hello, peer, wire } = proven;
        let hello = hello.text.get(size_of::<LinkId>()..).unwrap_or_default().to_vec();
        let way = Way::Accepted(Arc::clone(&self.acceptor));
        let link = Link { device: self.device, id, way, peer, wire };
        Ok(Some(Connected { hello, inner: Box::new(link) }))
    }

    fn rejected(&self) -> u64 {
        lock(&self.acceptor).gate.rejected()
    }
}

impl Drop for VerbsListener {
    fn drop(&mut self) {
        let mut acceptor = lock(&self.acceptor);
        acceptor.listens = false;
        acceptor.arrived.clear();
    }
}

/// A link in the making.
#[derive(Debug)]
pub(crate) struct VerbsConnecting {
    device: u64,
    place: Place,
    setup: Setup,
    id: LinkId,
    dialler: Option<Dialler>,
    started: Option<Instant>,
    deadline: Instant,
}

impl VerbsConnecting {
    pub(crate) fn new(
        device: u64,
        place: Place,
        setup: &Setup,
        text: &[u8],
        deadline: Instant,
    ) -> Result<VerbsConnecting, TransportError> {
        if text.len() > HELLO_BYTES_MAX {
            let bytes = text.len();
            return Err(TransportError::Usage(format!(
                "a hello of {bytes} bytes; at most {HELLO_BYTES_MAX} are allowed"
            )));
        }
        let id: LinkId = socket::random()?;
        let dialler = Dialler::new(place.clone(), setup, false, &[&id[..], text].concat());
        let (setup, dialler, started) = (setup.clone(), Some(dialler), None);
        Ok(VerbsConnecting { device, place, setup, id, dialler, started, deadline })
    }
}

impl Connecting for VerbsConnecting {
    fn poll(&mut self, now: Instant) -> Result<Option<Connected>, TransportError> {
        let started = *self.started.get_or_insert(now);
        let Some(dialler) = &mut self.dialler else {
            let text = "this connection has already been handed out, or has failed".to_owned();
            return Err(TransportError::Usage(text));
        };
        match dialler.poll(now) {
            Ok(Some((address, wire))) => {
                self.dialler = None;
                let (device, id, peer) = (self.device, self.id, address.to_string());
                // It is made anew the way that was found.
                let place = Place { addresses: vec![address], ..self.place.clone() };
                let way = Way::Dialled { place, setup: self.setup.clone() };
                let link = Link { device, id, way, peer, wire };
                Ok(Some(Connected { hello: Vec::new(), inner: Box::new(link) }))
            }
            Ok(None) if now < self.deadline => Ok(None),
            Ok(None) => {
                self.dialler = None;
                let (peer, after) = (self.place.text(), now.since(started));
                Err(TransportError::Deadline { what: "connecting", peer, after })
            }
            Err(error) => {
                self.dialler = None;
                Err(error)
            }
        }
    }
}
