//! A lane: copies puts into the peer's memory, and sends immediates through a ring.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use ccl_core::time::Instant;
use ccl_core::transport::{
    Caps, Connected, EndpointId, Event, Imported, Lane, MemoryTable, MrKey, Registry, RemoteKey,
    RemoteMr, ResolvedPut, Slice, TransportError, WorkRequest, check_note, take,
};
use ccl_memory::Region;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::handshake::{CONTROL_SLOTS, DEPTH, Link, RING, random};
use crate::memory::{self, File};
use crate::wire::{self, Offer, Received};
use crate::{DESCRIPTORS, os};

/// Interval between checks of the peers' liveness and of their sockets.
const CHECK_EVERY: Duration = Duration::from_millis(10);
/// Period after an endpoint's first poll. During this period every poll reads the peer's socket, so
/// that offers of memory arrive before the first put.
const FRESH: Duration = Duration::from_millis(50);

/// Limit on a peer's offers of memory that are not mapped, including those whose mapping failed.
const OFFERS_MAX: usize = 1 << 16;

/// Limit on a peer's offers that each hold an open descriptor in this process. Unit tests have a
/// low limit, so that they reach it with few descriptors.
pub(crate) const WAITING_MAX: usize = if cfg!(test) { 32 } else { 1024 };

fn decode(key: &RemoteKey) -> Result<Offer, TransportError> {
    Offer::decode(&key.0).ok_or_else(|| {
        let bytes = key.0.len();
        TransportError::NoKey { bytes }
    })
}

/// Memory that a peer has offered over its socket.
#[derive(Debug)]
struct Offered {
    offer: Offer,
    /// Descriptor of the memory; none once an attempt to map the memory has failed.
    file: Option<OwnedFd>,
}

/// Imported memory of a peer, mapped into this process.
#[derive(Debug)]
struct Mapped {
    offer: Offer,
    region: Region,
}

impl Imported for Mapped {
    fn bytes(&self) -> u64 {
        self.region.bytes() as u64
    }
}

#[derive(Debug)]
struct Endpoint {
    link: Link,
    /// Keys of the memory that this side has shared.
    shared: BTreeMap<MrKey, RemoteKey>,
    /// Memory that the peer has shared and this side has not mapped, indexed by the number that the
    /// peer gave the memory.
    offered: BTreeMap<u64, Offered>,
    /// Number of offers that hold a descriptor.
    waiting: usize,
    /// Counts of puts that are done and not yet reported: of data puts, then of control puts.
    unreported: [u32; 2],
    /// Notes to the peer that the socket has not taken.
    unsaid: VecDeque<Vec<u8>>,
    /// Notes from the peer that are not yet reported.
    notes: Vec<Vec<u8>>,
    /// Time of the first poll.
    came: Option<Instant>,
    /// Reason why the peer is lost, once that is known.
    lost: Option<String>,
    /// True if the loss has been reported.
    reported: bool,
}

impl Endpoint {
    fn new(link: Link) -> Endpoint {
        Endpoint {
            link,
            shared: BTreeMap::new(),
            offered: BTreeMap::new(),
            waiting: 0,
            unreported: [0; 2],
            unsaid: VecDeque::new(),
            notes: Vec::new(),
            came: None,
            lost: None,
            reported: false,
        }
    }

    fn peer(&self) -> String {
        self.link.peer.name.clone()
    }

    fn refused(&self, reason: &str) -> TransportError {
        TransportError::Refused { peer: self.peer(), reason: reason.to_owned() }
    }

    fn check_present(&self) -> Result<(), TransportError> {
        match &self.lost {
            Some(reason) => Err(TransportError::Lost { peer: self.peer(), reason: reason.clone() }),
            None => Ok(()),
        }
    }

    fn share(
        &mut self,
        key: MrKey,
        bytes: usize,
        file: &OwnedFd,
    ) -> Result<RemoteKey, TransportError> {
        if let Some(known) = self.shared.get(&key) {
            return Ok(known.clone());
        }
        self.check_present()?;
        let offer = Offer { id: key.0, bytes, nonce: random()? };
        let message = offer.encode();
        let sent = wire::send(self.link.socket.as_fd(), &message, Some(file.as_fd()));
        sent.map_err(|error| match error {
            Errno::PIPE | Errno::CONNRESET => {
                let reason = "it closed the connection".to_owned();
                TransportError::Lost { peer: self.peer(), reason }
            }
            Errno::AGAIN | Errno::TOOMANYREFS => {
                os("sending a descriptor", error, "first let the peer import what you have shared")
            }
            error => os("sending a descriptor", error, DESCRIPTORS),
        })?;
        let remote = RemoteKey(message);
        self.shared.insert(key, remote.clone());
        Ok(remote)
    }

    /// Maps the memory of an offer, closes its descriptor and forgets the offer. The mapping lives
    /// as long as the region that is returned.
    fn take(&mut self, offer: Offer) -> Result<Region, TransportError> {
        let closed = !self.offered.contains_key(&offer.id) && self.receive_offers()?;
        let peer = self.peer();
        let found = self.offered.get_mut(&offer.id).filter(|found| found.offer == offer);
        let Some(found) = found else {
            if closed {
                let reason = "it closed the connection without sharing this memory".to_owned();
                return Err(TransportError::Lost { peer, reason });
            }
            if self.is_full() {
                return Err(self.refused("it offers more memory regions than the limit"));
            }
            return Err(self.refused(
                "it has not shared the memory of this key over this connection, or this side has \
                 mapped the memory before; share memory with a peer before the peer gets the key, \
                 and keep the region that map() returns",
            ));
        };
        // The descriptor is taken even if mapping fails: memory refused once stays refused.
        let file = found.file.take().ok_or_else(|| TransportError::Refused {
            peer: peer.clone(),
            reason: "its memory was refused before".to_owned(),
        })?;
        self.waiting -= 1;
        let region = memory::adopt(file, offer.bytes, &peer)?;
        self.offered.remove(&offer.id);
        Ok(region)
    }

    /// Reads notes and offers from the socket while there is room for another offer. Returns true
    /// if the peer has closed the socket and all of the peer's messages are read.
    fn receive_offers(&mut self) -> Result<bool, TransportError> {
        while !self.is_full() {
            match wire::receive(self.link.socket.as_fd(), true)? {
                Received::Nothing => return Ok(false),
                Received::Closed => return Ok(true),
                Received::Malformed => return Err(self.refused("it sent a malformed message")),
                Received::Message(message, file) => match message.strip_prefix(wire::NOTE) {
                    Some(note) => self.notes.push(note.to_vec()),
                    None => self.take_offer(&message, file)?,
                },
            }
        }
        Ok(false)
    }

    /// Returns whether there is no room for another offer.
    fn is_full(&self) -> bool {
        self.waiting >= WAITING_MAX || self.offered.len() >= OFFERS_MAX
    }

    fn take_offer(&mut self, message: &[u8], file: Option<OwnedFd>) -> Result<(), TransportError> {
        let (Some(offer), Some(file)) = (Offer::decode(message), file) else {
            return Err(self.refused("it sent a message that is not an offer of memory"));
        };
        // A second offer with the same number is ignored.
        if let Entry::Vacant(vacant) = self.offered.entry(offer.id) {
            vacant.insert(Offered { offer, file: Some(file) });
            self.waiting += 1;
        }
        Ok(())
    }

    /// Appends the immediates that have arrived, in order.
    fn arrivals(&mut self, endpoint: EndpointId, events: &mut Vec<Event>) {
        let incoming = &mut self.link.incoming;
        // A peer that never stops sending must not block this call for ever.
        for _ in 0..RING.slots {
            if !incoming.ready() {
                return;
            }
            let (bytes, immediate) = incoming.head();
            let Ok(immediate) = u32::try_from(immediate) else {
                self.lost = Some(format!("{} sent an invalid immediate", self.link.peer.name));
                return;
            };
            events.push(Event::Arrived { endpoint, immediate, bytes });
            incoming.release();
        }
    }

    /// Sends queued notes, as many as the socket takes.
    fn say(&mut self) {
        while let Some(note) = self.unsaid.front() {
            match wire::send(self.link.socket.as_fd(), note, None) {
                Ok(()) => self.unsaid.pop_front(),
                Err(Errno::AGAIN) => return,
                // Other checks detect a lost peer.
                Err(_) => return self.unsaid.clear(),
            };
        }
    }

    /// Reads notes and offers from the socket. If a read fails, the peer is lost.
    fn look(&mut self) {
        if let Err(error) = self.receive_offers() {
            self.lost.get_or_insert(error.to_string());
        }
    }

    /// Checks whether the peer is alive. One system call is enough if the peer lives and is silent.
    fn check_alive(&mut self) {
        let socket = self.link.socket.as_fd();
        let process = self.link.peer.process.as_ref();
        let watch_process = match process {
            Some(process) => PollFd::new(process, PollFlags::IN),
            None => PollFd::from_borrowed_fd(socket, PollFlags::RDHUP),
        };
        let flags = PollFlags::RDHUP | PollFlags::IN;
        let mut watched = [PollFd::from_borrowed_fd(socket, flags), watch_process];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        if !matches!(poll(&mut watched, Some(&at_once)), Ok(1..)) {
            return;
        }
        let [said, ended] = watched.map(|watched| watched.revents());
        let hung_up = said.intersects(PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR);
        let ended = !ended.is_empty() && process.is_some();
        // The messages that the peer has sent are read even if the peer has ended.
        if said.contains(PollFlags::IN) {
            self.look();
        }
        let name = &self.link.peer.name;
        if ended {
            self.lost = Some(format!("{name} has ended; look into its log for the reason"));
        } else if hung_up {
            self.lost = Some(format!("{name} has closed the connection, or was killed"));
        }
    }
}

/// A lane of shared memory.
#[derive(Debug)]
pub(crate) struct ShmLane {
    memory: MemoryTable<File, Mapped>,
    /// Endpoints, indexed by their numbers; none for a detached one. Numbers are not used again.
    endpoints: Vec<Option<Box<Endpoint>>>,
    /// Identifiers of puts that are done and not yet reported.
    done: Vec<u64>,
    checked: Option<Instant>,
}

impl ShmLane {
    pub(crate) fn new(registry: Arc<Registry<File>>, caps: Caps) -> ShmLane {
        ShmLane {
            memory: MemoryTable::new(registry, caps),
            endpoints: Vec::new(),
            done: Vec::new(),
            checked: None,
        }
    }

    fn endpoint(&mut self, id: EndpointId) -> Result<&mut Endpoint, TransportError> {
        let found = self.endpoints.get_mut(id.0 as usize).and_then(Option::as_deref_mut);
        found.ok_or(TransportError::UnknownEndpoint(id))
    }

    /// Forgets withdrawn registrations and the keys that were shared for them.
    fn refresh(&mut self) {
        if !self.memory.refresh() {
            return;
        }
        let registry = self.memory.registry();
        for endpoint in self.endpoints.iter_mut().flatten() {
            endpoint.shared.retain(|key, _| registry.find(*key).is_ok());
        }
    }

    /// Returns the memory already imported with this key, if any.
    fn imported(&self, at: EndpointId, offer: Offer) -> Option<RemoteMr> {
        self.memory.known(at, |known| known.offer == offer)
    }

    /// Executes one put. Returns false if the ring is full or too many puts are unreported.
    fn put(&mut self, request: &WorkRequest) -> Result<bool, TransportError> {
        let WorkRequest::Put { endpoint, remote_offset, is_control, immediate, id, .. } = *request;
        let ResolvedPut { source, tail, to, bytes, .. } = self.memory.resolve(request)?;
        let found = self.endpoints.get_mut(endpoint.0 as usize).and_then(Option::as_deref_mut);
        let Some(peer) = found else { return Err(TransportError::UnknownEndpoint(endpoint)) };
        if peer.lost.is_some() {
            // A put to a lost peer is accepted and never completes.
            return Ok(true);
        }
        let (unreported, depth, left_free) = match is_control {
            true => (&mut peer.unreported[1], RING.slots, 0),
            false => (&mut peer.unreported[0], DEPTH, CONTROL_SLOTS),
        };
        let is_full = immediate.is_some() && !peer.link.outgoing.has_room((left_free + 1).into());
        if is_full || *unreported >= depth {
            return Ok(false);
        }
        let copy = |at: usize, from: &Slice<'_, File>| {
            let region = &from.registration.region;
            to.region.copy_from(at, region, from.offset, from.bytes)
        };
        copy(remote_offset, &source)?;
        tail.map_or(Ok(()), |tail| copy(remote_offset + source.bytes, &tail))?;
        if let Some(immediate) = immediate {
            peer.link.outgoing.publish(bytes, immediate.into());
        }
        *unreported += 1;
        self.done.push(id);
        Ok(true)
    }
}

impl Lane for ShmLane {
    fn attach(&mut self, connected: Connected) -> Result<EndpointId, TransportError> {
        let device = self.memory.registry().device();
        let link = connected.into_own(|link: &Link| link.device == device)?;
        let id = EndpointId::next(self.endpoints.len(), u32::MAX as usize)?;
        self.endpoints.push(Some(Box::new(Endpoint::new(*link))));
        Ok(id)
    }

    fn detach(&mut self, endpoint: EndpointId) {
        // Dropping the link shuts the socket down, which the peer notices.
        let found = self.endpoints.get_mut(endpoint.0 as usize).and_then(Option::take);
        if found.is_none() {
            return;
        }
        self.memory.forget(endpoint);
    }

    fn share(&mut self, endpoint: EndpointId, key: MrKey) -> Result<RemoteKey, TransportError> {
        self.refresh();
        let registration = self.memory.registry().find(key)?;
        let peer = self.endpoint(endpoint)?;
        let Some(file) = registration.with else {
            return Err(TransportError::Unsupported {
                what: "share memory that was not allocated with the device's allocate()",
                reason: "other processes cannot map such memory; share memory that allocate() \
                         returned",
            });
        };
        peer.share(key, registration.region.bytes(), &file)
    }

    fn import(&mut self, at: EndpointId, key: &RemoteKey) -> Result<RemoteMr, TransportError> {
        let offer = decode(key)?;
        if let Some(known) = self.imported(at, offer) {
            return Ok(known);
        }
        let region = self.endpoint(at)?.take(offer)?;
        Ok(self.memory.import(at, Mapped { offer, region }))
    }

    fn map(&mut self, at: EndpointId, key: &RemoteKey) -> Result<Region, TransportError> {
        let offer = decode(key)?;
        if let Some(known) = self.imported(at, offer) {
            return Ok(self.memory.remote(at, known)?.region.clone());
        }
        self.endpoint(at)?.take(offer)
    }

    fn post(&mut self, _now: Instant, work: &[WorkRequest]) -> Result<usize, TransportError> {
        self.refresh();
        take(work, |request| self.put(request))
    }

    fn note(&mut self, endpoint: EndpointId, bytes: &[u8]) -> Result<(), TransportError> {
        check_note(bytes)?;
        let peer = self.endpoint(endpoint)?;
        if peer.lost.is_none() {
            peer.unsaid.push_back([wire::NOTE, bytes].concat());
            peer.say();
        }
        Ok(())
    }

    fn poll(&mut self, now: Instant, events: &mut Vec<Event>) -> Result<(), TransportError> {
        self.refresh();
        events.extend(self.done.drain(..).map(|id| Event::Done { id }));
        let check = self.checked.is_none_or(|checked| now.since(checked) >= CHECK_EVERY);
        if check {
            self.checked = Some(now);
        }
        for (number, endpoint) in self.endpoints.iter_mut().enumerate() {
            let Some(endpoint) = endpoint else { continue };
            endpoint.unreported = [0; 2];
            if endpoint.reported {
                continue;
            }
            let is_fresh = now.since(*endpoint.came.get_or_insert(now)) < FRESH;
            // Check liveness before reading the ring: if the peer is dead, the ring then holds all
            // its puts.
            if (check || is_fresh) && endpoint.lost.is_none() {
                endpoint.say();
                endpoint.check_alive();
            }
            let id = EndpointId(number as u32);
            let notes = endpoint.notes.drain(..);
            events.extend(notes.map(|bytes| Event::Note { endpoint: id, bytes }));
            endpoint.arrivals(id, events);
            if let Some(reason) = &endpoint.lost {
                endpoint.reported = true;
                events.push(Event::Lost { endpoint: id, reason: reason.clone() });
            }
        }
        Ok(())
    }

    fn poll_timeout(&self) -> Option<Instant> {
        if !self.done.is_empty() {
            return Some(Instant::ZERO);
        }
        let watched = self.endpoints.iter().flatten().any(|endpoint| !endpoint.reported);
        watched.then(|| self.checked.map_or(Instant::ZERO, |checked| checked + CHECK_EVERY))
    }
}
