//! Lanes and devices that misbehave on request, as a broken transport or a hostile peer would.

use super::{
    Address, Caps, Connected, Connecting, Device, EndpointId, Event, Lane, Listener, LocalSlice,
    MrKey, RailState, RemoteKey, RemoteMr, Secret, TransportError, WorkRequest,
};
use crate::queue_pairs::{Flow, Striping};
use crate::time::Instant;
use ccl_memory::Region;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Faults in work and events on their way through a [`FaultInjector`]. The default methods change
/// nothing.
pub trait Faults: Send + fmt::Debug {
    /// Changes a request before the lane below gets it. Pushes onto `posted` the requests that the
    /// lane below gets instead. Pushes onto `events` what the next poll reports in addition to the
    /// events of the lane below.
    fn work(&mut self, work: WorkRequest, posted: &mut Vec<WorkRequest>, events: &mut Vec<Event>) {
        let _ = events;
        posted.push(work);
    }

    /// Returns whether the lane detaches and aborts endpoints.
    fn detaches(&self) -> bool {
        true
    }

    /// Returns whether the lane moves tails of puts ([`Lane::relocate`]).
    fn relocates(&self) -> bool {
        true
    }

    /// Returns whether [`Lane::poll_shutdown`] returns true once the lane below returns true.
    fn leaves(&mut self) -> bool {
        true
    }

    /// Returns whether the lane shares memory.
    fn shares(&self) -> bool {
        true
    }

    /// Returns whether the lane imports memory.
    fn imports(&self) -> bool {
        true
    }

    /// Returns whether the lane takes this work now.
    fn takes(&self, work: &WorkRequest) -> bool {
        let _ = work;
        true
    }

    /// Changes a redirection ([`Lane::redirect`]): returns the argument `into` for the lane below,
    /// or an outer `None` to report success without a call of the lane below.
    fn redirects(&mut self, into: Option<LocalSlice>) -> Option<Option<LocalSlice>> {
        Some(into)
    }

    /// Records a call of [`Lane::peek`].
    fn peeked(&mut self) {}

    /// Records a call of [`Lane::sleep`].
    fn sleeps(&mut self, longest: Duration) {
        let _ = longest;
    }

    /// Changes an event of the lane below. Pushes onto `seen` the events that are reported instead.
    fn event(&mut self, event: Event, seen: &mut Vec<Event>) {
        seen.push(event);
    }
}

/// A lane that wraps another lane and injects faults.
#[derive(Debug)]
pub struct FaultInjector<F> {
    lane: Box<dyn Lane>,
    faults: F,
    /// Work that this lane has taken, and that the lane below has not taken yet.
    pending: Vec<WorkRequest>,
    /// Events to report at the next poll.
    events: Vec<Event>,
    /// Buffer for the events of the lane below; empty between polls.
    below: Vec<Event>,
}

impl<F: Faults> FaultInjector<F> {
    /// Returns a lane that wraps `lane` and injects `faults`.
    #[must_use]
    pub fn new(lane: Box<dyn Lane>, faults: F) -> FaultInjector<F> {
        let (pending, events, below) = (Vec::new(), Vec::new(), Vec::new());
        FaultInjector { lane, faults, pending, events, below }
    }

    /// Returns the faults, for inspection.
    #[must_use]
    pub fn faults(&self) -> &F {
        &self.faults
    }

    fn push_down(&mut self, now: Instant) -> Result<(), TransportError> {
        if !self.pending.is_empty() {
            let taken = self.lane.post(now, &self.pending)?;
            self.pending.drain(..taken.min(self.pending.len()));
        }
        Ok(())
    }
}

impl<F: Faults> Lane for FaultInjector<F> {
    fn attach(&mut self, connected: Connected) -> Result<EndpointId, TransportError> {
        self.lane.attach(connected)
    }

    fn detach(&mut self, endpoint: EndpointId) {
        if self.faults.detaches() {
            self.lane.detach(endpoint);
        }
    }

    fn poll_shutdown(&mut self, endpoint: Option<EndpointId>) -> bool {
        self.lane.poll_shutdown(endpoint) && self.faults.leaves()
    }

    fn abort(&mut self, endpoint: EndpointId) {
        if self.faults.detaches() {
            self.lane.abort(endpoint);
        }
    }

    fn share(&mut self, endpoint: EndpointId, key: MrKey) -> Result<RemoteKey, TransportError> {
        if !self.faults.shares() {
            return Err(TransportError::Injected { what: "the memory was not shared" });
        }
        self.lane.share(endpoint, key)
    }

    fn import(&mut self, at: EndpointId, key: &RemoteKey) -> Result<RemoteMr, TransportError> {
        if !self.faults.imports() {
            return Err(TransportError::Injected { what: "the memory was not imported" });
        }
        self.lane.import(at, key)
    }

    fn forget(&mut self, at: EndpointId, mr: RemoteMr) {
        self.lane.forget(at, mr);
    }

    fn map(&mut self, at: EndpointId, key: &RemoteKey) -> Result<Region, TransportError> {
        self.lane.map(at, key)
    }

    fn post(&mut self, now: Instant, work: &[WorkRequest]) -> Result<usize, TransportError> {
        self.push_down(now)?;
        if !self.pending.is_empty() {
            return Ok(0);
        }
        let mut taken = 0;
        for &request in work {
            if !self.faults.takes(&request) {
                return Ok(taken);
            }
            self.faults.work(request, &mut self.pending, &mut self.events);
            if let Err(error) = self.push_down(now) {
                // The request is dropped as a whole, as the lane below would drop it.
                self.pending.clear();
                return if taken == 0 { Err(error) } else { Ok(taken) };
            }
            taken += 1;
            if !self.pending.is_empty() {
                return Ok(taken);
            }
        }
        Ok(taken)
    }

    fn peek(&mut self) -> Option<bool> {
        self.faults.peeked();
        let is_quiet = self.pending.is_empty() && self.events.is_empty();
        if is_quiet { self.lane.peek() } else { Some(true) }
    }

    fn note(&mut self, endpoint: EndpointId, bytes: &[u8]) -> Result<(), TransportError> {
        self.lane.note(endpoint, bytes)
    }

    fn relocate(
        &mut self,
        endpoint: EndpointId,
        id: u64,
        to: LocalSlice,
    ) -> Result<(), TransportError> {
        if !self.faults.relocates() {
            return Ok(());
        }
        for WorkRequest::Put { endpoint: peer, tail, id: own, .. } in &mut self.pending {
            if (*peer, *own) == (endpoint, id) {
                *tail = tail.map(|_| to);
            }
        }
        self.lane.relocate(endpoint, id, to)
    }

    fn redirect(
        &mut self,
        endpoint: EndpointId,
        from: LocalSlice,
        into: Option<LocalSlice>,
    ) -> Result<bool, TransportError> {
        match self.faults.redirects(into) {
            Some(into) => self.lane.redirect(endpoint, from, into),
            None => Ok(true),
        }
    }

    fn set_striping(&mut self, endpoint: EndpointId, striping: &Striping) {
        self.lane.set_striping(endpoint, striping);
    }

    fn flows(&self, endpoint: EndpointId) -> Vec<Flow> {
        self.lane.flows(endpoint)
    }

    fn rails(&self, endpoint: EndpointId) -> Vec<RailState> {
        self.lane.rails(endpoint)
    }

    fn poll(&mut self, now: Instant, events: &mut Vec<Event>) -> Result<(), TransportError> {
        self.push_down(now)?;
        events.append(&mut self.events);
        let polled = self.lane.poll(now, &mut self.below);
        self.below.drain(..).for_each(|event| self.faults.event(event, events));
        polled
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.lane.poll_timeout()
    }

    fn is_acknowledged(&self) -> bool {
        self.pending.is_empty() && self.lane.is_acknowledged()
    }

    fn is_drained(&self) -> bool {
        self.pending.is_empty() && self.lane.is_drained()
    }

    fn set_traffic_class(&mut self, traffic_class: u8) {
        self.lane.set_traffic_class(traffic_class);
    }

    fn flush_acknowledgements(&mut self, now: Instant) {
        self.lane.flush_acknowledgements(now);
    }

    fn sleep(&mut self, longest: Duration) {
        self.faults.sleeps(longest);
        self.lane.sleep(longest);
    }
}

/// Secret that gullible devices use instead of the given ones, so that they accept each other.
const ANY_SECRET: Secret = Secret([0; 32]);

/// Function that wraps a lane in another one.
type Wrap = dyn Fn(Box<dyn Lane>) -> Box<dyn Lane> + Send + Sync;
/// Function that refuses something by returning an error.
type Refuse = dyn Fn() -> Result<(), TransportError> + Send + Sync;

/// A device that wraps another device and injects faults; at first it injects none.
pub struct FaultyDevice {
    inner: Arc<dyn Device>,
    /// Capabilities that the device claims.
    pub caps: Caps,
    /// True for a device that ignores the given secrets and deadlines. Two such devices accept each
    /// other whatever secrets they are given.
    pub gullible: bool,
    wrap: Box<Wrap>,
    refuse: Box<Refuse>,
    refuse_lanes: Box<Refuse>,
}

impl FaultyDevice {
    /// Wraps `inner`.
    #[must_use]
    pub fn new(inner: Arc<dyn Device>) -> FaultyDevice {
        let (caps, gullible) = (inner.caps().clone(), false);
        FaultyDevice {
            inner,
            caps,
            gullible,
            wrap: Box::new(|lane| lane),
            refuse: Box::new(|| Ok(())),
            refuse_lanes: Box::new(|| Ok(())),
        }
    }

    /// Wraps every lane in a [`FaultInjector`].
    #[must_use]
    pub fn with_lanes<F: Faults + 'static>(
        self,
        faults: impl Fn() -> F + Send + Sync + 'static,
    ) -> FaultyDevice {
        let wrap: Box<Wrap> = Box::new(move |lane| Box::new(FaultInjector::new(lane, faults())));
        FaultyDevice { wrap, ..self }
    }

    /// Makes the device refuse to make lanes while `refuse` returns an error.
    #[must_use]
    pub fn with_refused_lanes(
        self,
        refuse: impl Fn() -> Result<(), TransportError> + Send + Sync + 'static,
    ) -> FaultyDevice {
        FaultyDevice { refuse_lanes: Box::new(refuse), ..self }
    }

    /// Makes the device refuse to allocate or register memory while `refuse` returns an error.
    #[must_use]
    pub fn with_memory(
        self,
        refuse: impl Fn() -> Result<(), TransportError> + Send + Sync + 'static,
    ) -> FaultyDevice {
        FaultyDevice { refuse: Box::new(refuse), ..self }
    }
}

impl fmt::Debug for FaultyDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FaultyDevice").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl Device for FaultyDevice {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn allocate(&self, bytes: usize) -> Result<(Region, MrKey), TransportError> {
        (self.refuse)().and_then(|()| self.inner.allocate(bytes))
    }

    fn register(&self, region: &Region) -> Result<MrKey, TransportError> {
        (self.refuse)().and_then(|()| self.inner.register(region))
    }

    fn deregister(&self, key: MrKey) -> Result<(), TransportError> {
        self.inner.deregister(key)
    }

    fn listen(&self, secret: &Secret) -> Result<Box<dyn Listener>, TransportError> {
        self.inner.listen(if self.gullible { &ANY_SECRET } else { secret })
    }

    fn connect(
        &self,
        address: &Address,
        secret: &Secret,
        hello: &[u8],
        deadline: Instant,
    ) -> Result<Box<dyn Connecting>, TransportError> {
        let secret = if self.gullible { &ANY_SECRET } else { secret };
        let deadline = if self.gullible { Instant::from_nanos(u64::MAX) } else { deadline };
        self.inner.connect(address, secret, hello, deadline)
    }

    fn lane(&self) -> Result<Box<dyn Lane>, TransportError> {
        (self.refuse_lanes)()?;
        self.inner.lane().map(&self.wrap)
    }
}
