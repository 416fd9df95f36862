//! One connection: a lane of its own, the work to be posted to it, and the time of its last events.

use std::sync::Arc;

use ccl_core::queue_pairs::{Policy, Striping};
use ccl_core::time::Instant;
use ccl_core::transport::{
    Connected, Device, EndpointId, Event, Lane, LocalSlice, MrKey, NOTE_BYTES_MAX, RailState,
    RemoteKey, RemoteMr, TransportError, WorkRequest,
};
use ccl_memory::Region;

use super::wire::Note;
use crate::error::NetError;

/// Initial capacity of lists, so that calls need not allocate.
const AT_ONCE: usize = 64;

/// Registered memory that belongs to the connection.
#[derive(Debug)]
pub(crate) struct OwnedMemory {
    device: Arc<dyn Device>,
    pub(crate) region: Region,
    pub(crate) key: MrKey,
}

impl OwnedMemory {
    pub(crate) fn new(
        device: &Arc<dyn Device>,
        bytes: usize,
    ) -> Result<OwnedMemory, TransportError> {
        let (region, key) = device.allocate(bytes)?;
        Ok(OwnedMemory { device: Arc::clone(device), region, key })
    }
}

impl Drop for OwnedMemory {
    fn drop(&mut self) {
        // An error means that the key is unknown: nothing is left to deregister.
        let _ = self.device.deregister(self.key);
    }
}

/// Settings of a connection.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionSettings {
    pub(crate) device: Arc<dyn Device>,
    /// Device that the caller's memory is registered with.
    pub(crate) mr_device: Arc<dyn Device>,
    /// Traffic class of packets; `None` for the class of the device.
    pub(crate) traffic_class: Option<u8>,
}

impl ConnectionSettings {
    /// Returns whether messages are spread over queue pairs.
    pub(crate) fn has_queue_pairs(&self) -> bool {
        let caps = self.device.caps();
        !caps.mapped && !caps.redirects
    }
}

/// A connection to the other end of a communicator.
#[derive(Debug)]
pub(crate) struct Connection {
    // A struct that holds a connection and `OwnedMemory` declares the connection first, so that the
    // connection is dropped first: dropping the lane ends all writes to that memory.
    lane: Box<dyn Lane>,
    pub(crate) endpoint: EndpointId,
    pub(crate) device: Arc<dyn Device>,
    /// Device with which the caller's memory is registered. Over shared memory, `mr_device` is not
    /// `device`, since `device` can share only memory that it has allocated itself.
    pub(crate) mr_device: Arc<dyn Device>,
    outbox: Vec<WorkRequest>,
    events: Vec<Event>,
    /// Name that the other side gives itself.
    pub(crate) peer: String,
    /// Reason why the peer was lost.
    pub(crate) lost: Option<String>,
    /// Time of the last events.
    pub(crate) moved: Instant,
    /// Time of the last poll.
    pub(crate) pumped: Instant,
}

impl Connection {
    pub(crate) fn new(
        ConnectionSettings { device, mr_device, traffic_class }: &ConnectionSettings,
        connected: Connected,
        now: Instant,
    ) -> Result<Connection, TransportError> {
        let mut lane = device.lane()?;
        if let Some(class) = traffic_class {
            lane.set_traffic_class(*class);
        }
        let endpoint = lane.attach(connected)?;
        Ok(Connection {
            lane,
            endpoint,
            device: Arc::clone(device),
            mr_device: Arc::clone(mr_device),
            outbox: Vec::with_capacity(AT_ONCE),
            events: Vec::with_capacity(AT_ONCE),
            peer: "the peer".to_owned(),
            lost: None,
            moved: now,
            pumped: now,
        })
    }

    /// Lets the peer write to registered memory.
    pub(crate) fn share(&mut self, key: MrKey) -> Result<RemoteKey, TransportError> {
        self.lane.share(self.endpoint, key)
    }

    /// Imports the peer's memory.
    pub(crate) fn import(&mut self, key: &RemoteKey) -> Result<RemoteMr, TransportError> {
        self.lane.import(self.endpoint, key)
    }

    /// Maps the peer's memory, to write to it; none if the device does not map memory.
    pub(crate) fn map(&mut self, key: &RemoteKey) -> Result<Option<Region>, TransportError> {
        if !self.device.caps().mapped {
            return Ok(None);
        }
        self.lane.map(self.endpoint, key).map(Some)
    }

    /// Returns whether the peer can write to the caller's memory.
    pub(crate) fn reaches_caller_memory(&self) -> bool {
        Arc::ptr_eq(&self.device, &self.mr_device) && !self.device.caps().mapped
    }

    /// Returns whether the device can change the source and destination of puts under way.
    pub(crate) fn redirects(&self) -> bool {
        self.device.caps().redirects
    }

    /// Returns whether CPUs, not a device, copy the bytes of messages.
    pub(crate) fn copies(&self) -> bool {
        let caps = self.device.caps();
        caps.mapped || caps.redirects
    }

    /// Makes the data that the peer puts at `from` arrive at `into` instead; `None` ends the
    /// redirect. Returns false, and changes nothing, if too much of the data has arrived, or if the
    /// data reaches beyond `from`.
    pub(crate) fn redirect(
        &mut self,
        from: LocalSlice,
        into: Option<LocalSlice>,
    ) -> Result<bool, TransportError> {
        self.lane.redirect(self.endpoint, from, into)
    }

    /// Sets how later puts are spread over queue pairs.
    pub(crate) fn set_striping(&mut self, striping: &Striping) {
        self.lane.set_striping(self.endpoint, striping);
    }

    /// Returns the rails of the connection; none if it cannot have several.
    pub(crate) fn rails(&self) -> Vec<RailState> {
        self.lane.rails(self.endpoint)
    }

    /// Returns a description of rails, queue pairs and policy for the log; empty if there is
    /// nothing to add to the device's name.
    pub(crate) fn describe(&self, policy: &Policy) -> String {
        let rails = self.rails();
        let up = rails.iter().filter(|rail| rail.is_up).count();
        let rails = match rails.len() {
            0 | 1 => String::new(),
            all => format!(", {up} of {all} rails up so far"),
        };
        let flows = self.lane.flows(self.endpoint);
        let flows = flows.first().map_or_else(String::new, |flow| {
            format!(
                ", from {} to {} by {} queue pairs of traffic class {}, policy `{policy}`",
                flow.from,
                flow.to,
                flows.len(),
                flow.traffic_class
            )
        });
        rails + &flows
    }

    /// Forgets imported memory. Later puts must not name it.
    pub(crate) fn forget(&mut self, mr: RemoteMr) {
        self.lane.forget(self.endpoint, mr);
    }

    /// Queues a request, to be posted with the next [`Connection::flush`].
    pub(crate) fn post(&mut self, request: WorkRequest) {
        if self.lost.is_none() {
            self.outbox.push(request);
        }
    }

    pub(crate) fn note(&mut self, note: &Note) -> Result<(), TransportError> {
        let mut bytes = note.encode();
        bytes.truncate(NOTE_BYTES_MAX);
        self.lane.note(self.endpoint, &bytes)
    }

    /// Posts as many of the queued requests as the lane takes.
    pub(crate) fn flush(&mut self, now: Instant) -> Result<(), TransportError> {
        if !self.outbox.is_empty() {
            let taken = self.lane.post(now, &self.outbox)?;
            self.outbox.drain(..taken);
        }
        Ok(())
    }

    /// Polls the lane. Returns its events; [`Connection::give_back`] takes the list back for reuse.
    pub(crate) fn poll(&mut self, now: Instant) -> Result<Vec<Event>, TransportError> {
        self.pumped = now;
        let mut events = std::mem::take(&mut self.events);
        self.lane.poll(now, &mut events)?;
        if !events.is_empty() {
            self.moved = now;
        }
        Ok(events)
    }

    pub(crate) fn give_back(&mut self, mut events: Vec<Event>) {
        events.clear();
        self.events = events;
    }

    /// Returns whether all requests have left this process, so that none needs another poll; true
    /// also if the peer is gone.
    pub(crate) fn is_drained(&self) -> bool {
        self.lost.is_some() || (self.outbox.is_empty() && self.lane.is_drained())
    }

    /// Returns whether the peer has everything that was posted; true also if the peer is gone.
    pub(crate) fn is_acknowledged(&self) -> bool {
        self.lost.is_some() || (self.outbox.is_empty() && self.lane.is_acknowledged())
    }

    /// Advances the farewell to the peer. Returns whether the farewell is over; until then,
    /// dropping the connection blocks.
    pub(crate) fn poll_shutdown(&mut self) -> bool {
        self.lane.poll_shutdown(None)
    }

    /// Tells the lane that the next poll may be much later. The lane then acknowledges long puts at
    /// once: the peer may be waiting to reuse the memory of these puts.
    pub(crate) fn flush_acknowledgements(&mut self, now: Instant) {
        self.lane.flush_acknowledgements(now);
    }

    /// Ends the connection at once, even with transfers under way. When this returns, the caller's
    /// memory is neither read nor written any more.
    pub(crate) fn abort(&mut self, reason: &str) {
        if self.lost.is_none() {
            self.lane.abort(self.endpoint);
            self.lose(reason.to_owned());
        }
    }

    /// Marks the peer as gone. The first reason is kept.
    pub(crate) fn lose(&mut self, reason: String) {
        self.lost.get_or_insert(reason);
        self.outbox.clear();
    }

    /// Returns an error if the peer is gone.
    pub(crate) fn check(&self) -> Result<(), NetError> {
        match &self.lost {
            Some(reason) => Err(NetError::remote(format!("{} is gone: {reason}", self.peer))),
            None => Ok(()),
        }
    }
}
