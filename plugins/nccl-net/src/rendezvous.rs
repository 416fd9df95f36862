//! Rendezvous of two sides: listening, connecting, and joining over the connection.

use std::sync::Arc;
use std::time::Duration;

use ccl_core::queue_pairs::Policy;
use ccl_core::time::Instant;
use ccl_core::transport::{
    Address, Connected, Connecting, Device, Listener, Secret, TransportError,
};

use crate::comm::connection::ConnectionSettings;
use crate::comm::receiver::Receiver;
use crate::comm::sender::Sender;
use crate::comm::wire::Note;
use crate::comm::{Communicator, Settings};
use crate::context::Context;
use crate::device::NetDevice;
use crate::error::NetError;
use crate::handle::{Handle, VERSION};

/// Hello of the connecting side.
const HELLO: [u8; 5] = [b'n', b'c', b'c', b'l', VERSION];

/// Name of the path between processes of one host.
const SHARED_MEMORY: &str = "shared memory";

/// Text about GPUs for the log.
const HOST_MEMORY: &str = "; GPUDirect is off: this plugin supports host memory only";

/// Options that all connections have in common.
#[derive(Clone, Debug)]
pub(crate) struct ConnectOptions {
    pub(crate) settings: Settings,
    /// Policy by which messages are spread over queue pairs.
    pub(crate) policy: Arc<Policy>,
    /// True if the environment sets a traffic class for RDMA; RDMA then ignores the
    /// communicator's class.
    pub(crate) has_class: bool,
    /// Longest time that joining may take.
    pub(crate) join_within: Duration,
    /// Name of this process, for its peers.
    pub(crate) who: String,
}

/// A listening communicator.
#[derive(Debug)]
pub(crate) struct Listening {
    /// Listeners, each with its settings and its name.
    listeners: Vec<(ConnectionSettings, String, Box<dyn Listener>)>,
    options: ConnectOptions,
    joining: Vec<(Instant, String, Box<Receiver>)>,
    /// Time of NCCL's first `accept` since the last connection; none if there was no such call.
    asked: Option<Instant>,
    /// Number of rejected connections reported so far.
    told: u64,
}

impl ConnectOptions {
    fn connection_settings(
        &self,
        device: &Arc<dyn Device>,
        mr_device: &Arc<dyn Device>,
        context: &Context,
    ) -> ConnectionSettings {
        let connection_settings = ConnectionSettings {
            device: Arc::clone(device),
            mr_device: Arc::clone(mr_device),
            traffic_class: None,
        };
        let is_set = self.has_class && connection_settings.has_queue_pairs();
        ConnectionSettings {
            traffic_class: context.traffic_class.filter(|_| !is_set),
            ..connection_settings
        }
    }
}

impl Listening {
    pub(crate) fn new(
        device: &NetDevice,
        handle: &mut Handle,
        context: &Context,
        options: ConnectOptions,
    ) -> Result<Listening, NetError> {
        let home = device.open()?;
        let secret = handle.secret();
        let listener = home.listen(&secret)?;
        handle.address = listener.address();
        let connection_settings = options.connection_settings(&home, &home, context);
        let mut listeners = vec![(connection_settings, device.title(), listener)];
        if let Some((tag, near)) = &device.near {
            let listener = near.listen(&secret)?;
            handle.near = Some((*tag, listener.address()));
            let connection_settings = options.connection_settings(near, &home, context);
            listeners.push((connection_settings, SHARED_MEMORY.to_owned(), listener));
        }
        Ok(Listening { listeners, options, joining: Vec::new(), asked: None, told: 0 })
    }

    /// Returns a connection that is ready, if there is one.
    ///
    /// # Errors
    ///
    /// A listener is broken, or no connection became ready within the time for joining, counted
    /// from the first call since the last connection.
    pub(crate) fn accept(&mut self, now: Instant) -> Result<Option<Box<Receiver>>, NetError> {
        let asked = *self.asked.get_or_insert(now);
        let accepted = self.accept_in_time(now)?;
        if accepted.is_some() {
            self.asked = None;
        } else if now.since(asked) >= self.options.join_within {
            let after = self.options.join_within;
            return Err(NetError::remote(format!(
                "no peer has connected within {after:?}: check the peer's log, NCCL_SOCKET_IFNAME \
                 and firewalls, or raise FERROCCL_JOIN_TIMEOUT"
            )));
        }
        Ok(accepted)
    }

    fn accept_in_time(&mut self, now: Instant) -> Result<Option<Box<Receiver>>, NetError> {
        for (connection_settings, name, listener) in &mut self.listeners {
            while let Some(connected) = listener.poll(now)? {
                if connected.hello != HELLO {
                    tracing::warn!(
                        "a peer with another version of the plugin was refused: install the same \
                         version on all hosts"
                    );
                    continue;
                }
                // A peer whose connection fails here is dropped: it tries another path, or reports
                // the error itself.
                match Receiver::new(connection_settings, connected, self.options.settings, now) {
                    Ok(receiver) => {
                        let mut receiver = Box::new(receiver);
                        // The next poll notices if the note cannot be sent.
                        let _ = receiver.connection().note(&Note::Peer(self.options.who.clone()));
                        let until = now + self.options.join_within;
                        self.joining.push((until, name.clone(), receiver));
                    }
                    Err(error) => tracing::warn!("a connection over {name} failed: {error}"),
                }
            }
        }
        self.tell_of_strangers();
        for at in 0..self.joining.len() {
            let (until, name, receiver) = &mut self.joining[at];
            receiver.pump_or_abort(now);
            if receiver.is_ready() {
                let connection = receiver.connection();
                let how = connection.describe(&self.options.policy);
                tracing::info!("receiving from {} over {name}{how}", connection.peer);
                return Ok(Some(self.joining.swap_remove(at).2));
            }
            let gone = receiver.connection().lost.clone();
            if gone.is_some() || now >= *until {
                let reason = gone.unwrap_or_else(|| "the peer was not ready in time".to_owned());
                tracing::warn!("a connection ended before it was ready: {reason}");
                receiver.connection().abort("it was not ready in time");
                self.joining.swap_remove(at);
                return Ok(None);
            }
        }
        Ok(None)
    }

    /// Returns the connections that were not handed to NCCL.
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

/// A connection in the making. Dropping it must not wait: the progress thread drops the attempts
/// that NCCL no longer polls.
#[derive(Debug)]
pub(crate) struct Attempt {
    candidates: Vec<(ConnectionSettings, String, Address)>,
    context: Arc<Context>,
    secret: Secret,
    /// The transport's attempt to connect to the last of `candidates`, which is tried first.
    connecting: Option<Box<dyn Connecting>>,
    sender: Option<Box<Sender>>,
    options: ConnectOptions,
    began: Instant,
}

impl Drop for Attempt {
    fn drop(&mut self) {
        self.give_up();
    }
}

impl Attempt {
    pub(crate) fn new(
        device: &NetDevice,
        handle: &Handle,
        context: &Arc<Context>,
        options: ConnectOptions,
        now: Instant,
    ) -> Result<Attempt, NetError> {
        if handle.transport != device.kind.id {
            return Err(NetError::argument(format!(
                "the peer listens with another transport than that of {}; set FERROCCL_TRANSPORT \
                 to the same value on all hosts",
                device.name()
            )));
        }
        let home = device.open()?;
        let connection_settings = options.connection_settings(&home, &home, context);
        let mut candidates = vec![(connection_settings, device.title(), handle.address.clone())];
        if let (Some((own, near)), Some((tag, address))) = (&device.near, &handle.near)
            && own == tag
        {
            let connection_settings = options.connection_settings(near, &home, context);
            candidates.push((connection_settings, SHARED_MEMORY.to_owned(), address.clone()));
        }
        let secret = handle.secret();
        let (connecting, sender) = (None, None);
        let context = Arc::clone(context);
        Ok(Attempt { candidates, context, secret, connecting, sender, options, began: now })
    }

    /// Advances the connection to the last candidate. If that candidate fails and others are left,
    /// drops it and goes on with the one before it.
    fn connect(&mut self, now: Instant) -> Result<Option<Connected>, TransportError> {
        let until = self.began + self.options.join_within;
        loop {
            let connecting = match &mut self.connecting {
                Some(connecting) => connecting,
                None => {
                    let Some((connection_settings, _, address)) = self.candidates.last() else {
                        return Ok(None);
                    };
                    match connection_settings.device.connect(address, &self.secret, &HELLO, until) {
                        Ok(connecting) => self.connecting.insert(connecting),
                        Err(error) if self.candidates.len() == 1 => return Err(error),
                        // The usual reason: the address is from another host.
                        Err(_) => {
                            self.candidates.pop();
                            continue;
                        }
                    }
                }
            };
            match connecting.poll(now) {
                Err(error) if self.candidates.len() > 1 => {
                    tracing::info!("shared memory is not used: {error}");
                    self.connecting = None;
                    self.candidates.pop();
                }
                polled => return polled,
            }
        }
    }

    /// Cuts a connection that was not handed out: nobody waits for its messages.
    fn give_up(&mut self) {
        if let Some(mut sender) = self.sender.take() {
            sender.connection().abort("it was given up before it was ready");
        }
    }

    /// Returns whether the attempt is so old that NCCL no longer polls it.
    pub(crate) fn is_forgotten(&self, now: Instant) -> bool {
        now.since(self.began) > self.options.join_within.saturating_mul(2)
    }

    /// Returns the connection, once it is ready. Falls back to the network if shared memory fails
    /// after its handshake, as happens between containers that see different memory.
    pub(crate) fn poll(&mut self, now: Instant) -> Result<Option<Box<Sender>>, NetError> {
        match self.join(now) {
            Err(error) if self.candidates.len() > 1 && self.sender.is_some() => {
                tracing::info!("shared memory is not used: {error}");
                self.give_up();
                self.candidates.pop();
                Ok(None)
            }
            joined => joined,
        }
    }

    fn join(&mut self, now: Instant) -> Result<Option<Box<Sender>>, NetError> {
        if self.sender.is_none() {
            let Some(connected) = self.connect(now)? else { return Ok(None) };
            self.connecting = None;
            let Some((connection_settings, ..)) = self.candidates.last() else { return Ok(None) };
            let policy = Some(Arc::clone(&self.options.policy));
            let does = (
                Arc::clone(&self.context),
                policy.filter(|_| connection_settings.has_queue_pairs()),
            );
            let sender =
                match Sender::new(connection_settings, connected, self.options.settings, does, now)
                {
                    Ok(sender) => self.sender.insert(Box::new(sender)),
                    Err(error) if self.candidates.len() > 1 => {
                        tracing::info!("shared memory is not used: {error}");
                        self.candidates.pop();
                        return Ok(None);
                    }
                    Err(error) => return Err(error),
                };
            sender.connection().note(&Note::Peer(self.options.who.clone()))?;
        }
        let Some(sender) = &mut self.sender else { return Ok(None) };
        sender.pump(now)?;
        if sender.is_ready() {
            let name = self.candidates.last().map_or("", |(_, name, _)| name);
            let connection = sender.connection();
            let how = connection.describe(&self.options.policy);
            tracing::info!("sending to {} over {name}{how}{HOST_MEMORY}", connection.peer);
            return Ok(self.sender.take());
        }
        sender.connection().check()?;
        if now.since(self.began) >= self.options.join_within {
            let (what, peer) = ("joining", sender.connection().peer.clone());
            return Err(
                TransportError::Deadline { what, peer, after: self.options.join_within }.into()
            );
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use ccl_core::transport::{Faults, FaultyDevice};
    use ccl_transport_multirail::RailsDevice;
    use ccl_transport_sim::{Conditions, World};

    use super::*;

    /// A lane that shares no memory, or imports none.
    #[derive(Debug)]
    struct Mean {
        shares: bool,
    }

    impl Faults for Mean {
        fn shares(&self) -> bool {
            self.shares
        }

        fn imports(&self) -> bool {
            !self.shares
        }
    }

    fn options(has_class: bool) -> ConnectOptions {
        let long = Duration::from_secs(600);
        let settings = Settings {
            slots: 8,
            slot_bytes: 1024,
            short_bytes: 1024,
            has_helpers: false,
            timeout: long,
            warn_after: long,
        };
        let (policy, who) = (Arc::default(), "a rank".to_owned());
        ConnectOptions { settings, policy, has_class, join_within: long, who }
    }

    /// Tests the fallback after the handshake: one side has another view of the memory.
    #[test]
    fn the_network_replaces_shared_memory_that_fails_late() {
        for (mean, shares) in [(0, false), (1, false), (0, true), (1, true)] {
            let world = World::new(4, Conditions::default(), 7);
            let device = |side: u32, is_near: bool| -> Arc<dyn Device> {
                let device = world.device(side + if is_near { 2 } else { 0 });
                match is_near && side == mean {
                    true => Arc::new(FaultyDevice::new(device).with_lanes(move || Mean { shares })),
                    false => device,
                }
            };
            let (context, secret) = (Arc::new(Context::default()), Secret([3; 32]));
            let candidates = |side: u32| {
                let home = device(side, false);
                let near = options(false).connection_settings(&device(side, true), &home, &context);
                let far = options(false).connection_settings(&home, &home, &context);
                [(far, "the network"), (near, SHARED_MEMORY)]
            };
            let mut listening = Listening {
                listeners: Vec::new(),
                options: options(false),
                joining: Vec::new(),
                asked: None,
                told: 0,
            };
            let mut attempt = Attempt {
                candidates: Vec::new(),
                context: Arc::clone(&context),
                secret: secret.clone(),
                connecting: None,
                sender: None,
                options: options(false),
                began: world.now(),
            };
            for ((here, name), (there, _)) in candidates(0).into_iter().zip(candidates(1)) {
                let listener = here.device.listen(&secret).unwrap();
                attempt.candidates.push((there, name.to_owned(), listener.address()));
                listening.listeners.push((here, name.to_owned(), listener));
            }
            let (mut sender, mut receiver) = (None, None);
            for _ in 0..100_000 {
                let now = world.now();
                if sender.is_none() {
                    sender = attempt.poll(now).unwrap_or_else(|error| panic!("{mean}: {error}"));
                }
                receiver = receiver.or(listening.accept(now).unwrap_or_else(|e| panic!("{e}")));
                if sender.is_some() && receiver.is_some() {
                    break;
                }
                world.step();
            }
            assert!(sender.is_some() && receiver.is_some(), "fault on side {mean}: no connection");
            assert_eq!(attempt.candidates.len(), 1, "fault on side {mean}: shared memory is used");
        }
    }

    /// Tests that a traffic class in `NCCL_IB_TC` keeps queue pairs from using the communicator's
    /// class, but does not keep TCP from using it.
    #[test]
    fn tcp_uses_the_communicators_traffic_class_even_if_the_environment_sets_one() {
        let context = Context::new(40);
        let world = World::new(2, Conditions { redirects: false, ..Conditions::default() }, 7);
        let like_tcp = World::new(2, Conditions { redirects: true, ..Conditions::default() }, 7);
        let rdma: Arc<dyn Device> =
            Arc::new(RailsDevice::new(vec![("sim0".to_owned(), world.device(0))]).unwrap());
        let class = |device: &Arc<dyn Device>, has_class| {
            options(has_class).connection_settings(device, device, &context).traffic_class
        };
        assert_eq!((class(&rdma, true), class(&rdma, false)), (None, Some(40)));
        assert_eq!(class(&like_tcp.device(0), true), Some(40));
    }
}
