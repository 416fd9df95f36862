//! A link in the making, on the connecting side, which opens one connection after the other.

use ccl_core::time::Instant;
use ccl_core::transport::{Connected, Connecting, HELLO_BYTES_MAX, TransportError};

use super::{Intent, Link, Reconnector};
use crate::address::Location;
use crate::connection::Connection;
use crate::dialler::Dialler;
use crate::shake::Setup;
use crate::socket;

/// A link in the making.
#[derive(Debug)]
pub struct LinkConnecting {
    device: u64,
    location: Location,
    setup: Setup,
    intent: Intent,
    dialler: Option<Dialler>,
    connections: Vec<Connection>,
    started: Option<Instant>,
    deadline: Instant,
}

impl LinkConnecting {
    /// Begins a link of `count` connections. `text` is the hello that the other side's listener
    /// returns to its caller.
    ///
    /// # Errors
    ///
    /// When the text is too long, or the kernel has no randomness yet.
    pub fn new(
        device: u64,
        location: Location,
        setup: &Setup,
        text: &[u8],
        count: u16,
        deadline: Instant,
    ) -> Result<LinkConnecting, TransportError> {
        if text.len() > HELLO_BYTES_MAX {
            let (bytes, most) = (text.len(), HELLO_BYTES_MAX);
            return Err(TransportError::TooLong { what: "hello", bytes, most });
        }
        let intent = Intent { link: socket::random()?, number: 0, count, text: text.to_vec() };
        let dialler = Some(Dialler::new(location.clone(), setup, false, &intent.encode()));
        let setup = setup.clone();
        let (connections, started) = (Vec::new(), None);
        Ok(LinkConnecting {
            device,
            location,
            setup,
            intent,
            dialler,
            connections,
            started,
            deadline,
        })
    }

    fn advance(&mut self, now: Instant) -> Result<Option<Link>, TransportError> {
        let Some(mut dialler) = self.dialler.take() else {
            return Err(TransportError::HandedOut);
        };
        let Some((address, connection)) = dialler.poll(now)? else {
            self.dialler = Some(dialler);
            return Ok(None);
        };
        self.connections.push(connection);
        // All further connections, and all replacements, use the address of the first connection.
        self.location.addresses = vec![address];
        if self.connections.len() < usize::from(self.intent.count) {
            self.intent.number += 1;
            let (location, text) = (self.location.clone(), self.intent.encode());
            self.dialler = Some(Dialler::new(location, &self.setup, false, &text));
            return Ok(None);
        }
        let reconnector = Reconnector::dialled(self.location.clone(), self.setup.clone());
        let (id, peer) = (self.intent.link, address.to_string());
        let connections = std::mem::take(&mut self.connections);
        Ok(Some(Link { device: self.device, id, peer, connections, reconnector }))
    }
}

impl Connecting for LinkConnecting {
    fn poll(&mut self, now: Instant) -> Result<Option<Connected>, TransportError> {
        let started = *self.started.get_or_insert(now);
        if let Some(link) = self.advance(now)? {
            return Ok(Some(Connected { hello: Vec::new(), inner: Box::new(link) }));
        }
        if now < self.deadline {
            return Ok(None);
        }
        self.dialler = None;
        let (peer, after) = (self.location.text(), now.since(started));
        Err(TransportError::Deadline { what: "connecting", peer, after })
    }
}
