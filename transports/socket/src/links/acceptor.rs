//! The listening side of links: lets in peers that prove the secret, for a new link or to mend an
//! old one.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ccl_core::time::Instant;
use ccl_core::transport::{Address, Connected, Listener, TransportError};

use super::{Intent, Link, LinkId, Reconnector, Side};
use crate::connection::Connection;
use crate::gate::{AuthenticatedConnection, BUSY_MAX, Gate};
use crate::shake::Setup;

/// Largest number of replacement connections that wait for their links to take them.
const RESUMED_MAX: usize = 1024;
/// Shortest interval between two polls of the gate on behalf of links. It applies to all links of a
/// listener together.
const PUMP_EVERY: Duration = Duration::from_millis(1);

/// A link whose connections have not all arrived yet.
#[derive(Debug)]
struct Joining {
    id: LinkId,
    text: Vec<u8>,
    peer: String,
    connections: Vec<Option<Connection>>,
    until: Instant,
}

/// The gate that a listener and its links share, and the connections that the gate has let in. The
/// links keep the acceptor after the listener is dropped.
#[derive(Debug)]
pub(super) struct Acceptor {
    gate: Gate,
    /// True while the listener lives and takes new links.
    listens: bool,
    proven: Vec<AuthenticatedConnection>,
    joining: Vec<Joining>,
    ready: VecDeque<Joining>,
    resumed: VecDeque<(LinkId, u16, Connection)>,
    /// Time at which a link last polled the gate.
    pumped: Instant,
}

impl Acceptor {
    /// Polls the gate and admits proven connections; drops links in the making that are overdue.
    fn pump(&mut self, now: Instant) -> Result<(), TransportError> {
        let pumped = self.gate.pump(now, &mut self.proven);
        for proven in std::mem::take(&mut self.proven) {
            self.admit(proven, now);
        }
        self.joining.retain(|joining| now < joining.until);
        pumped
    }

    /// Hands a proven connection to its link. Rejects one that names no link, or that would begin a
    /// link after the listener is closed.
    fn admit(&mut self, proven: AuthenticatedConnection, now: Instant) {
        let AuthenticatedConnection { hello, peer, connection } = proven;
        let reason = match Intent::decode(&hello.text) {
            Some(intent) if hello.resumes => return self.resume(&intent, connection),
            Some(intent) if self.listens => return self.join(intent, peer, connection, now),
            Some(_) => "this listener has been closed",
            None => "it does not name a link",
        };
        self.gate.reject(&TransportError::Refused { peer, reason: reason.to_owned() });
    }

    fn resume(&mut self, intent: &Intent, connection: Connection) {
        let (link, number) = (intent.link, intent.number);
        self.resumed.retain(|(id, other, _)| (*id, *other) != (link, number));
        if self.resumed.len() == RESUMED_MAX {
            self.resumed.pop_front();
        }
        self.resumed.push_back((link, number, connection));
    }

    fn join(&mut self, intent: Intent, peer: String, connection: Connection, now: Instant) {
        let known = self.joining.iter().position(|joining| joining.id == intent.link);
        let index = known.unwrap_or_else(|| {
            let connections = (0..intent.count).map(|_| None).collect();
            let until = now + BUSY_MAX;
            let text = intent.text;
            self.joining.push(Joining { id: intent.link, text, peer, connections, until });
            self.joining.len() - 1
        });
        let joining = &mut self.joining[index];
        if let Some(entry) = joining.connections.get_mut(usize::from(intent.number)) {
            *entry = Some(connection);
        }
        if joining.connections.iter().all(Option::is_some) {
            let joined = self.joining.swap_remove(index);
            self.ready.push_back(joined);
        }
    }
}

fn lock(acceptor: &Mutex<Acceptor>) -> MutexGuard<'_, Acceptor> {
    // A poisoned lock is used all the same: a panic leaves no list in a wrong state.
    acceptor.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes the connections by which the peer has replaced broken connections of a link.
pub(super) fn take_resumed(
    acceptor: &Mutex<Acceptor>,
    link: &LinkId,
    now: Instant,
) -> Vec<(u16, Connection)> {
    let mut acceptor = lock(acceptor);
    if now.since(acceptor.pumped) >= PUMP_EVERY {
        acceptor.pumped = now;
        // An error of the listening socket is ignored: the link's deadline still applies.
        let _ = acceptor.pump(now);
    }
    let mut taken = Vec::new();
    while let Some(at) = acceptor.resumed.iter().position(|(id, ..)| id == link) {
        taken.extend(
            acceptor.resumed.remove(at).map(|(_, number, connection)| (number, connection)),
        );
    }
    taken
}

/// A listener for the links of a device.
#[derive(Debug)]
pub struct LinkListener {
    device: u64,
    address: Address,
    acceptor: Arc<Mutex<Acceptor>>,
}

impl LinkListener {
    /// Listens on the interfaces that the filter `interfaces` takes. Peers try the address
    /// `preferred` first, if the listener offers it.
    ///
    /// # Errors
    ///
    /// When no interface is left, or no socket can be opened.
    pub fn new(
        device: u64,
        interfaces: &str,
        setup: &Setup,
        preferred: Option<IpAddr>,
    ) -> Result<LinkListener, TransportError> {
        let mut gate = Gate::open(interfaces, setup)?;
        preferred.into_iter().for_each(|address| gate.prefer(address));
        let address = gate.address();
        let acceptor = Acceptor {
            gate,
            listens: true,
            proven: Vec::new(),
            joining: Vec::new(),
            ready: VecDeque::new(),
            resumed: VecDeque::new(),
            pumped: Instant::ZERO,
        };
        Ok(LinkListener { device, address, acceptor: Arc::new(Mutex::new(acceptor)) })
    }
}

impl Listener for LinkListener {
    fn address(&self) -> Address {
        self.address.clone()
    }

    fn poll(&mut self, now: Instant) -> Result<Option<Connected>, TransportError> {
        let mut acceptor = lock(&self.acceptor);
        acceptor.pump(now)?;
        let Some(Joining { id, text, peer, connections, .. }) = acceptor.ready.pop_front() else {
            return Ok(None);
        };
        let connections = connections.into_iter().flatten().collect();
        let reconnector = Reconnector(Side::Accepted(Arc::clone(&self.acceptor)));
        let link = Link { device: self.device, id, peer, connections, reconnector };
        Ok(Some(Connected { hello: text, inner: Box::new(link) }))
    }

    fn rejected(&self) -> u64 {
        lock(&self.acceptor).gate.rejected()
    }
}

impl Drop for LinkListener {
    fn drop(&mut self) {
        let mut acceptor = lock(&self.acceptor);
        acceptor.listens = false;
        acceptor.joining.clear();
        acceptor.ready.clear();
    }
}
