//! How two devices meet: over connections beside the hardware, which prove the secret.

use std::net::IpAddr;

use ccl_core::time::Instant;
use ccl_core::transport::handshake::Protocol;
use ccl_core::transport::{
    Address, Connected, Connecting, HELLO_BYTES_MAX, Listener, TransportError,
};
use ccl_wire::{Dialler, Gate, Place, Proven, Setup, protocol, socket};

use crate::endpoint::Link;
use crate::memory::LinkId;

/// Its version changes with every change of what the two sides tell each other.
pub(crate) const PROTOCOL: Protocol = protocol("ferroccl-verbs", 2);

/// Waits for peers.
#[derive(Debug)]
pub(crate) struct VerbsListener {
    device: u64,
    gate: Gate,
    proven: Vec<Proven>,
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
        Ok(VerbsListener { device, gate, proven: Vec::new() })
    }
}

impl Listener for VerbsListener {
    fn address(&self) -> Address {
        self.gate.address()
    }

    fn poll(&mut self, now: Instant) -> Result<Option<Connected>, TransportError> {
        self.gate.pump(now, &mut self.proven)?;
        while !self.proven.is_empty() {
            let Proven { hello, peer, wire } = self.proven.remove(0);
            let Some((id, text)) = hello.text.split_first_chunk() else {
                let reason = "it does not say which link it wants".to_owned();
                self.gate.reject(&TransportError::Refused { peer, reason });
                continue;
            };
            let link = Link { device: self.device, id: *id, dialled: false, peer, wire };
            return Ok(Some(Connected { hello: text.to_vec(), inner: Box::new(link) }));
        }
        Ok(None)
    }

    fn rejected(&self) -> u64 {
        self.gate.rejected()
    }
}

/// A link in the making.
#[derive(Debug)]
pub(crate) struct VerbsConnecting {
    device: u64,
    place: Place,
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
        let (dialler, started) = (Some(dialler), None);
        Ok(VerbsConnecting { device, place, id, dialler, started, deadline })
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
                let link = Link { device, id, dialled: true, peer, wire };
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
