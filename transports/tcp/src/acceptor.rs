//! The listening side: who proves the secret is let in, for a new link or to mend an old one.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ccl_core::time::Instant;
use ccl_core::transport::{Address, Connected, Listener, TransportError};
use ccl_wire::{BUSY_MAX, Gate, Proven, Setup, Wire};

use crate::link::{Intent, Link, LinkId, Way};

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
    gate: Gate,
    /// Whether new links are wanted: the listener lives.
    listens: bool,
    proven: Vec<Proven>,
    joining: Vec<Joining>,
    ready: VecDeque<Joining>,
    resumed: VecDeque<(LinkId, u16, Wire)>,
}

impl Acceptor {
    /// Takes in whoever has come.
    pub(crate) fn pump(&mut self, now: Instant) -> Result<(), TransportError> {
        let pumped = self.gate.pump(now, &mut self.proven);
        for proven in std::mem::take(&mut self.proven) {
            self.admit(proven, now);
        }
        self.joining.retain(|joining| now < joining.until);
        pumped
    }

    /// Lets in who has proved the secret.
    fn admit(&mut self, proven: Proven, now: Instant) {
        let Proven { hello, peer, wire } = proven;
        let reason = match Intent::decode(&hello.text) {
            Some(intent) if hello.resumes => return self.resume(&intent, wire),
            Some(intent) if self.listens => return self.join(intent, peer, wire, now),
            Some(_) => "this listener has been closed",
            None => "it says of no stripe that it is one",
        };
        self.gate.reject(&TransportError::Refused { peer, reason: reason.to_owned() });
    }

    fn resume(&mut self, intent: &Intent, wire: Wire) {
        let (link, stripe) = (intent.link, intent.stripe);
        self.resumed.retain(|(id, index, _)| (*id, *index) != (link, stripe));
        if self.resumed.len() == RESUMED_MAX {
            self.resumed.pop_front();
        }
        self.resumed.push_back((link, stripe, wire));
    }

    fn join(&mut self, intent: Intent, peer: String, wire: Wire, now: Instant) {
        let known = self.joining.iter().position(|joining| joining.id == intent.link);
        let index = known.unwrap_or_else(|| {
            let stripes = (0..intent.stripes).map(|_| None).collect();
            let until = now + BUSY_MAX;
            let text = intent.text;
            self.joining.push(Joining { id: intent.link, text, peer, stripes, until });
            self.joining.len() - 1
        });
        let joining = &mut self.joining[index];
        if let Some(stripe) = joining.stripes.get_mut(usize::from(intent.stripe)) {
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
        let gate = Gate::open(interfaces, setup)?;
        let address = gate.address();
        let acceptor = Acceptor {
            gate,
            listens: true,
            proven: Vec::new(),
            joining: Vec::new(),
            ready: VecDeque::new(),
            resumed: VecDeque::new(),
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
        lock(&self.acceptor).gate.rejected()
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
