//! How two sides find each other: listening, connecting, and joining over what was connected.

use std::sync::Arc;
use std::time::Duration;

use ccl_core::time::Instant;
use ccl_core::transport::{Connecting, Device, Listener, TransportError};

use crate::comm::Settings;
use crate::comm::receiver::Receiver;
use crate::comm::sender::Sender;
use crate::comm::wire::Note;
use crate::device::NetDevice;
use crate::error::NetError;
use crate::handle::{Handle, VERSION};

/// What the connecting side says first.
const HELLO: [u8; 5] = [b'n', b'c', b'c', b'l', VERSION];

/// What all connections have in common.
#[derive(Clone, Debug)]
pub(crate) struct Manners {
    pub(crate) settings: Settings,
    /// How long the two sides may take.
    pub(crate) join_within: Duration,
    /// This process, for its peers.
    pub(crate) who: String,
}

/// A listening communicator.
#[derive(Debug)]
pub(crate) struct Listening {
    device: Arc<dyn Device>,
    name: String,
    listener: Box<dyn Listener>,
    manners: Manners,
    joining: Vec<(Instant, Box<Receiver>)>,
    /// Strangers that have been told of.
    told: u64,
}

impl Listening {
    pub(crate) fn new(
        device: &NetDevice,
        handle: &mut Handle,
        manners: Manners,
    ) -> Result<Listening, NetError> {
        let opened = device.open()?;
        let listener = opened.listen(&handle.secret())?;
        handle.address = listener.address();
        let (name, joining) = (device.name().to_owned(), Vec::new());
        Ok(Listening { device: opened, name, listener, manners, joining, told: 0 })
    }

    /// A connection that is ready, if there is one.
    pub(crate) fn accept(&mut self, now: Instant) -> Result<Option<Box<Receiver>>, NetError> {
        while let Some(connected) = self.listener.poll(now)? {
            if connected.hello != HELLO {
                tracing::warn!("a peer with another version was refused: use one everywhere");
                continue;
            }
            let receiver = Receiver::new(&self.device, connected, self.manners.settings, now);
            let mut receiver = Box::new(receiver?);
            receiver.line().note(&Note::Peer(self.manners.who.clone()))?;
            self.joining.push((now + self.manners.join_within, receiver));
        }
        self.tell_of_strangers();
        for at in 0..self.joining.len() {
            let (until, receiver) = &mut self.joining[at];
            receiver.pump(now)?;
            if receiver.is_ready() {
                let (_, mut receiver) = self.joining.swap_remove(at);
                let peer = &receiver.line().peer;
                tracing::info!("receiving from {peer} over {}", self.name);
                return Ok(Some(receiver));
            }
            // Whoever goes away before it has begun is nobody's loss.
            let gone = receiver.line().lost.clone();
            if gone.is_some() || now >= *until {
                let reason = gone.unwrap_or_else(|| "it said nothing".to_owned());
                tracing::warn!("a connection ended before it was ready: {reason}");
                self.joining.swap_remove(at);
                return Ok(None);
            }
        }
        Ok(None)
    }

    fn tell_of_strangers(&mut self) {
        let rejected = self.listener.rejected();
        if rejected > self.told {
            let more = rejected - self.told;
            tracing::warn!(
                "{more} connections to a listener of {} were dropped: they did not prove that they \
                 belong to this job (a port scanner, or another job's ranks)",
                self.name
            );
            self.told = rejected;
        }
    }
}

/// A connection in the making.
#[derive(Debug)]
pub(crate) struct Attempt {
    device: Arc<dyn Device>,
    name: String,
    connecting: Option<Box<dyn Connecting>>,
    sender: Option<Box<Sender>>,
    manners: Manners,
    began: Instant,
}

impl Attempt {
    pub(crate) fn new(
        device: &NetDevice,
        handle: &Handle,
        manners: Manners,
        now: Instant,
    ) -> Result<Attempt, NetError> {
        if handle.transport != device.code {
            return Err(NetError::argument(format!(
                "the peer listens with another transport than {}; set FERROCCL_TRANSPORT alike on \
                 all hosts",
                device.name()
            )));
        }
        let opened = device.open()?;
        let until = now + manners.join_within;
        let connecting = opened.connect(&handle.address, &handle.secret(), &HELLO, until)?;
        let name = device.name().to_owned();
        let connecting = Some(connecting);
        Ok(Attempt { device: opened, name, connecting, sender: None, manners, began: now })
    }

    /// Whether nobody has asked for it for long.
    pub(crate) fn is_forgotten(&self, now: Instant) -> bool {
        now.since(self.began) > 2 * self.manners.join_within
    }

    /// The connection, once it is ready.
    pub(crate) fn poll(&mut self, now: Instant) -> Result<Option<Box<Sender>>, NetError> {
        if let Some(connecting) = &mut self.connecting {
            let Some(connected) = connecting.poll(now)? else { return Ok(None) };
            self.connecting = None;
            let sender = Sender::new(&self.device, connected, self.manners.settings, now)?;
            let sender = self.sender.insert(Box::new(sender));
            sender.line().note(&Note::Peer(self.manners.who.clone()))?;
        }
        let Some(sender) = &mut self.sender else { return Ok(None) };
        sender.pump(now)?;
        if sender.is_ready() {
            let peer = &sender.line().peer;
            tracing::info!("sending to {peer} over {}", self.name);
            return Ok(self.sender.take());
        }
        sender.line().check()?;
        if now.since(self.began) >= self.manners.join_within {
            let (what, peer) = ("joining", sender.line().peer.clone());
            return Err(
                TransportError::Deadline { what, peer, after: self.manners.join_within }.into()
            );
        }
        Ok(None)
    }
}
