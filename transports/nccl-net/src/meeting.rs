//! How two sides find each other: listening, connecting, and joining over what was connected.

use std::sync::Arc;
use std::time::Duration;

use ccl_core::spread::Policy;
use ccl_core::time::Instant;
use ccl_core::transport::{
    Address, Connected, Connecting, Device, Listener, Secret, TransportError,
};

use crate::comm::Settings;
use crate::comm::line::Way;
use crate::comm::receiver::Receiver;
use crate::comm::sender::Sender;
use crate::comm::wire::Note;
use crate::context::Context;
use crate::device::NetDevice;
use crate::error::NetError;
use crate::handle::{Handle, VERSION};

/// What the connecting side says first.
const HELLO: [u8; 5] = [b'n', b'c', b'c', b'l', VERSION];

/// How the way between processes of one host is called.
const SHARED_MEMORY: &str = "shared memory";

/// What is to be said of GPUs.
const HOST_MEMORY: &str = "; GPUDirect is off: this plugin offers memory of the host";

/// What all connections have in common.
#[derive(Clone, Debug)]
pub(crate) struct Manners {
    pub(crate) settings: Settings,
    /// How messages are spread over queue pairs.
    pub(crate) policy: Arc<Policy>,
    /// Whether a class of the environment's counts, whatever communicators want.
    pub(crate) has_class: bool,
    /// How long the two sides may take.
    pub(crate) join_within: Duration,
    /// This process, for its peers.
    pub(crate) who: String,
}

/// A listening communicator.
#[derive(Debug)]
pub(crate) struct Listening {
    /// With what each is listened, and how that is called.
    listeners: Vec<(Way, String, Box<dyn Listener>)>,
    manners: Manners,
    joining: Vec<(Instant, String, Box<Receiver>)>,
    /// Since when NCCL asks for a connection that has not come; none before it asks.
    asked: Option<Instant>,
    /// Strangers that have been told of.
    told: u64,
}

impl Manners {
    fn way(&self, device: &Arc<dyn Device>, home: &Arc<dyn Device>, context: &Context) -> Way {
        let traffic_class = context.traffic_class.filter(|_| !self.has_class);
        Way { device: Arc::clone(device), home: Arc::clone(home), traffic_class }
    }
}

impl Listening {
    pub(crate) fn new(
        device: &NetDevice,
        handle: &mut Handle,
        context: &Context,
        manners: Manners,
    ) -> Result<Listening, NetError> {
        let home = device.open()?;
        let secret = handle.secret();
        let listener = home.listen(&secret)?;
        handle.address = listener.address();
        let way = manners.way(&home, &home, context);
        let mut listeners = vec![(way, device.title(), listener)];
        if let Some((tag, near)) = &device.near {
            let listener = near.listen(&secret)?;
            handle.near = Some((*tag, listener.address()));
            let way = manners.way(near, &home, context);
            listeners.push((way, SHARED_MEMORY.to_owned(), listener));
        }
        Ok(Listening { listeners, manners, joining: Vec::new(), asked: None, told: 0 })
    }

    /// Returns a connection that is ready, if there is one.
    ///
    /// # Errors
    ///
    /// A listener is broken, or no connection became ready within the time for joining, counted
    /// from the first call and anew after each connection.
    pub(crate) fn accept(&mut self, now: Instant) -> Result<Option<Box<Receiver>>, NetError> {
        let asked = *self.asked.get_or_insert(now);
        let accepted = self.accept_in_time(now)?;
        if accepted.is_some() {
            self.asked = None;
        } else if now.since(asked) >= self.manners.join_within {
            let after = self.manners.join_within;
            return Err(NetError::remote(format!(
                "no peer has connected within {after:?}: look at its log, at NCCL_SOCKET_IFNAME \
                 and at firewalls, or raise FERROCCL_JOIN_TIMEOUT"
            )));
        }
        Ok(accepted)
    }

    fn accept_in_time(&mut self, now: Instant) -> Result<Option<Box<Receiver>>, NetError> {
        for (way, name, listener) in &mut self.listeners {
            while let Some(connected) = listener.poll(now)? {
                if connected.hello != HELLO {
                    tracing::warn!("a peer with another version was refused: use one everywhere");
                    continue;
                }
                // Who goes away before it has begun, or cannot be had, is nobody's loss: it tries
                // another way, or says so itself.
                match Receiver::new(way, connected, self.manners.settings, now) {
                    Ok(receiver) => {
                        let mut receiver = Box::new(receiver);
                        // That it cannot be told is noticed at the next look.
                        let _ = receiver.line().note(&Note::Peer(self.manners.who.clone()));
                        let until = now + self.manners.join_within;
                        self.joining.push((until, name.clone(), receiver));
                    }
                    Err(error) => tracing::warn!("a connection over {name} failed: {error}"),
                }
            }
        }
        self.tell_of_strangers();
        for at in 0..self.joining.len() {
            let (until, name, receiver) = &mut self.joining[at];
            if let Err(error) = receiver.pump(now) {
                receiver.line().cut(&error.text);
            }
            if receiver.is_ready() {
                let line = receiver.line();
                let how = line.describe(&self.manners.policy);
                tracing::info!("receiving from {} over {name}{how}", line.peer);
                return Ok(Some(self.joining.swap_remove(at).2));
            }
            let gone = receiver.line().lost.clone();
            if gone.is_some() || now >= *until {
                let reason = gone.unwrap_or_else(|| "it said nothing".to_owned());
                tracing::warn!("a connection ended before it was ready: {reason}");
                receiver.line().cut("it was not ready in time");
                self.joining.swap_remove(at);
                return Ok(None);
            }
        }
        Ok(None)
    }

    /// Those that had come and were not taken.
    pub(crate) fn into_joining(self) -> impl Iterator<Item = Box<Receiver>> {
        self.joining.into_iter().map(|(.., receiver)| receiver)
    }

    fn tell_of_strangers(&mut self) {
        let rejected = self.listeners.iter();
        let rejected = rejected.map(|(.., listener)| listener.rejected()).sum();
        if rejected > self.told {
            let more = rejected - self.told;
            tracing::warn!(
                "{more} connections to a listener were dropped: they did not prove that they \
                 belong to this job (a port scanner, or another job's ranks)"
            );
            self.told = rejected;
        }
    }
}

/// A connection in the making.
#[derive(Debug)]
pub(crate) struct Attempt {
    ways: Vec<(Way, String, Address)>,
    context: Arc<Context>,
    secret: Secret,
    /// Over the last of the ways.
    connecting: Option<Box<dyn Connecting>>,
    sender: Option<Box<Sender>>,
    manners: Manners,
    began: Instant,
}

impl Attempt {
    pub(crate) fn new(
        device: &NetDevice,
        handle: &Handle,
        context: &Arc<Context>,
        manners: Manners,
        now: Instant,
    ) -> Result<Attempt, NetError> {
        if handle.transport != device.kind as u8 {
            return Err(NetError::argument(format!(
                "the peer listens with another transport than {}; set FERROCCL_TRANSPORT alike on \
                 all hosts",
                device.name()
            )));
        }
        let home = device.open()?;
        let way = manners.way(&home, &home, context);
        let mut ways = vec![(way, device.title(), handle.address.clone())];
        if let (Some((own, near)), Some((tag, address))) = (&device.near, &handle.near)
            && own == tag
        {
            let way = manners.way(near, &home, context);
            ways.push((way, SHARED_MEMORY.to_owned(), address.clone()));
        }
        let secret = handle.secret();
        let (connecting, sender) = (None, None);
        let context = Arc::clone(context);
        Ok(Attempt { ways, context, secret, connecting, sender, manners, began: now })
    }

    /// Goes on connecting, over the next way if one leads nowhere.
    fn connect(&mut self, now: Instant) -> Result<Option<Connected>, TransportError> {
        let until = self.began + self.manners.join_within;
        loop {
            let connecting = match &mut self.connecting {
                Some(connecting) => connecting,
                None => {
                    let Some((way, _, address)) = self.ways.last() else { return Ok(None) };
                    match way.device.connect(address, &self.secret, &HELLO, until) {
                        Ok(connecting) => self.connecting.insert(connecting),
                        Err(error) if self.ways.len() == 1 => return Err(error),
                        // That of another host, mostly.
                        Err(_) => {
                            self.ways.pop();
                            continue;
                        }
                    }
                }
            };
            match connecting.poll(now) {
                Err(error) if self.ways.len() > 1 => {
                    tracing::info!("shared memory is not used: {error}");
                    self.connecting = None;
                    self.ways.pop();
                }
                polled => return polled,
            }
        }
    }

    /// Whether nobody has asked for it for long.
    pub(crate) fn is_forgotten(&self, now: Instant) -> bool {
        now.since(self.began) > 2 * self.manners.join_within
    }

    /// The connection, once it is ready.
    pub(crate) fn poll(&mut self, now: Instant) -> Result<Option<Box<Sender>>, NetError> {
        if self.sender.is_none() {
            let Some(connected) = self.connect(now)? else { return Ok(None) };
            self.connecting = None;
            let Some((way, ..)) = self.ways.last() else { return Ok(None) };
            let policy = Some(Arc::clone(&self.manners.policy));
            let does = (Arc::clone(&self.context), policy.filter(|_| way.has_queue_pairs()));
            let sender = Sender::new(way, connected, self.manners.settings, does, now)?;
            let sender = self.sender.insert(Box::new(sender));
            sender.line().note(&Note::Peer(self.manners.who.clone()))?;
        }
        let Some(sender) = &mut self.sender else { return Ok(None) };
        sender.pump(now)?;
        if sender.is_ready() {
            let name = self.ways.last().map_or("", |(_, name, _)| name);
            let line = sender.line();
            let how = line.describe(&self.manners.policy);
            tracing::info!("sending to {} over {name}{how}{HOST_MEMORY}", line.peer);
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
