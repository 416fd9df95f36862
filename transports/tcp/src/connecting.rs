//! A link in the making, on the connecting side: one stripe after the other.

use ccl_core::time::Instant;
use ccl_core::transport::{Connected, Connecting, HELLO_BYTES_MAX, TransportError};
use ccl_wire::{Dialler, Place, Setup, Wire, socket};

use crate::link::{Intent, Link, Way};

/// A link in the making.
#[derive(Debug)]
pub(crate) struct TcpConnecting {
    device: u64,
    place: Place,
    setup: Setup,
    intent: Intent,
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
        if text.len() > HELLO_BYTES_MAX {
            let bytes = text.len();
            return Err(TransportError::Usage(format!(
                "a hello of {bytes} bytes; at most {HELLO_BYTES_MAX} are allowed"
            )));
        }
        let intent = Intent { link: socket::random()?, stripe: 0, stripes, text: text.to_vec() };
        let dialler = Some(Dialler::new(place.clone(), setup, false, &intent.encode()));
        let setup = setup.clone();
        let (stripes, started) = (Vec::new(), None);
        Ok(TcpConnecting { device, place, setup, intent, dialler, stripes, started, deadline })
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
        if self.stripes.len() < usize::from(self.intent.stripes) {
            self.intent.stripe += 1;
            let (place, text) = (self.place.clone(), self.intent.encode());
            self.dialler = Some(Dialler::new(place, &self.setup, false, &text));
            return Ok(None);
        }
        let link = Link {
            device: self.device,
            id: self.intent.link,
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
