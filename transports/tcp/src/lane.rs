//! A lane: turns puts into frames, and turns received frames into bytes in memory and into events.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use ccl_core::time::Instant;
use ccl_core::transport::{
    Caps, Connected, EndpointId, Event, Lane, LocalSlice, MemoryTable, MrKey, Registry, RemoteKey,
    RemoteMr, TransportError, WorkRequest, check_note, take,
};
use ccl_memory::Region;
use ccl_socket::{
    BreakLimits, Connection, DESCRIPTORS, FAREWELL_WITHIN, Got, Link, ShutdownWait, os, socket,
};
use rustix::event::{Timespec, epoll};
use rustix::process::Pid;

use crate::Options;
use crate::endpoint::{ACK_DELAY_MAX, Endpoint, Shared};
use crate::frame::{Header, Kind};
use crate::inbox::RedirectTarget;
use crate::memory;
use crate::outgoing::Put;
use crate::stripe::Stripe;
use crate::writers::Writer;

/// Largest number of bytes of one put.
pub(crate) const MESSAGE_BYTES_MAX: usize = 1 << 31;
/// Largest number of data puts outstanding on one endpoint.
pub(crate) const DEPTH_MAX: usize = 1024;
/// Number of sockets up to which a lane reads all its sockets, without asking epoll which of them
/// are ready.
const SOCKETS_TRIED: usize = 4;
/// Largest number of sockets that one epoll call finds ready; others have their turn at the next
/// call.
const READY_MAX: usize = 64;
/// Interval between checks for breaks that only the peer has noticed.
const CHECK_EVERY: Duration = Duration::from_millis(50);
/// Number of polls per read of the sockets while every poll has something to report.
const READ_EVERY: u32 = 8;
/// Largest number of times that one check of a farewell reads from a socket, to discard the bytes.
const UNHEARD_READS: usize = 64;
/// Pause between two checks of farewells.
const FAREWELL_PAUSE: Duration = Duration::from_micros(50);

/// A lane of TCP.
#[derive(Debug)]
pub(crate) struct TcpLane {
    memory: MemoryTable<(), Shared>,
    writer: Writer,
    limits: BreakLimits,
    done_when_written: bool,
    traffic_class: Option<u8>,
    /// True if TLS sessions may hold received bytes, which epoll does not report.
    encrypts: bool,
    /// Process that made the lane. The child of a fork has the same sockets, and must send nothing.
    process: Pid,
    epoll: Arc<OwnedFd>,
    /// Endpoints; the index is an endpoint's number, which is not used again. None once detached.
    endpoints: Vec<Option<Endpoint>>,
    sockets: usize,
    /// Endpoint and stripe of each socket that the last epoll call found ready.
    ready: Vec<u64>,
    checked: Instant,
    /// Number of polls in a row that had events even before the step that reads the sockets.
    unread: u32,
    /// True if a stripe is broken, or a lost peer has not been reported.
    troubled: bool,
    farewell: ShutdownWait,
}

impl TcpLane {
    pub(crate) fn new(
        registry: Arc<Registry<()>>,
        writer: Writer,
        options: &Options,
        encrypts: bool,
        caps: Caps,
    ) -> Result<TcpLane, TransportError> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(|error| os("epoll_create", error, DESCRIPTORS))?;
        Ok(TcpLane {
            memory: MemoryTable::new(registry, caps),
            writer,
            limits: BreakLimits {
                unreachable: options.resume_within,
                silent: options.silent_within,
            },
            done_when_written: options.done_when_written,
            traffic_class: None,
            encrypts,
            process: rustix::process::getpid(),
            epoll: Arc::new(epoll),
            endpoints: Vec::new(),
            sockets: 0,
            ready: Vec::with_capacity(READY_MAX),
            checked: Instant::ZERO,
            unread: 0,
            troubled: false,
            farewell: ShutdownWait::default(),
        })
    }

    fn endpoint(&mut self, id: EndpointId) -> Result<&mut Endpoint, TransportError> {
        let found = self.endpoints.get_mut(id.0 as usize).and_then(Option::as_mut);
        found.ok_or(TransportError::UnknownEndpoint(id))
    }

    /// Forgets memory that is no longer registered; peers can no longer write to it.
    fn refresh(&mut self) {
        if !self.memory.refresh() {
            return;
        }
        let registry = self.memory.registry();
        for endpoint in self.endpoints.iter_mut().flatten() {
            endpoint.withdraw(|key| registry.find(key).is_ok());
        }
    }

    /// Takes one put. Returns false if the endpoint takes no more.
    fn put(&mut self, request: &WorkRequest) -> Result<bool, TransportError> {
        let WorkRequest::Put { endpoint, remote_offset, immediate, is_control, id, .. } = *request;
        let resolved = self.memory.resolve(request)?;
        let header = Header {
            kind: Kind::Put,
            immediate,
            offset: remote_offset as u64,
            memory: resolved.to.memory,
            bytes: resolved.bytes as u32,
            acknowledged: 0,
        };
        let source = resolved.source.region()?;
        let tail = resolved.tail.map(|tail| tail.region()).transpose()?;
        let peer = self.endpoint(endpoint)?;
        if peer.lost.is_some() {
            // A put to a lost peer is accepted and never completes.
            return Ok(true);
        }
        // Control puts are not held back behind data, and need no limit here: each offers memory
        // of this side to the peer, and this memory bounds the number of control puts.
        if !is_control && peer.outstanding_data() >= DEPTH_MAX {
            return Ok(false);
        }
        peer.put(Put { header, source, tail, id: Some(id), has_bytes: true, is_control });
        Ok(true)
    }

    fn write(&mut self) {
        for endpoint in self.endpoints.iter_mut().flatten() {
            if !endpoint.is_drained() {
                endpoint.write();
            }
        }
    }

    /// Reads from every socket that may have something.
    fn read(&mut self, now: Instant, events: &mut Vec<Event>) {
        if self.sockets <= SOCKETS_TRIED {
            for (number, endpoint) in self.endpoints.iter_mut().enumerate() {
                let Some(endpoint) = endpoint else { continue };
                for stripe in 0..endpoint.stripes.len() {
                    endpoint.read(stripe, EndpointId(number as u32), now, events);
                }
            }
            return;
        }
        self.await_ready(Duration::ZERO);
        self.add_held();
        for data in self.ready.drain(..) {
            let (number, stripe) = ((data >> 16) as usize, (data & 0xffff) as usize);
            if let Some(Some(endpoint)) = self.endpoints.get_mut(number) {
                endpoint.read(stripe, EndpointId(number as u32), now, events);
            }
        }
    }

    /// Returns the stripes that hold received bytes in TLS sessions.
    fn held(&self) -> impl Iterator<Item = u64> + '_ {
        let endpoints = if self.encrypts { &self.endpoints[..] } else { &[] };
        endpoints.iter().enumerate().flat_map(|(number, endpoint)| {
            let stripes = endpoint.iter().flat_map(|endpoint| endpoint.stripes.iter().enumerate());
            let held = stripes.filter(|(_, stripe)| stripe.holds());
            held.map(move |(index, _)| (number << 16 | index) as u64)
        })
    }

    /// Adds to `ready` the stripes that hold received bytes in TLS sessions.
    fn add_held(&mut self) {
        let mut ready = std::mem::take(&mut self.ready);
        ready.extend(self.held());
        self.ready = ready;
    }

    /// Waits until a socket is ready, at most for `longest`.
    fn await_ready(&mut self, longest: Duration) {
        self.ready.clear();
        let timeout = Timespec::try_from(longest).ok();
        // An interruption is a wake-up like any other.
        let mut space = [MaybeUninit::uninit(); READY_MAX];
        if let Ok((ready, _)) = epoll::wait(&self.epoll, &mut space, timeout.as_ref()) {
            self.ready.extend(ready.iter().map(|event| event.data.u64()));
        }
    }

    /// Registers every socket with epoll, and updates the events that epoll watches.
    fn watch(&mut self) {
        for (number, endpoint) in self.endpoints.iter_mut().enumerate() {
            let Some(endpoint) = endpoint else { continue };
            for (index, stripe) in endpoint.stripes.iter_mut().enumerate() {
                watch(&self.epoll, stripe, (number << 16 | index) as u64);
            }
        }
    }

    /// Mends breaks, and reports peers that are gone.
    fn look_after(&mut self, now: Instant, events: &mut Vec<Event>) {
        let check = now.since(self.checked) >= CHECK_EVERY;
        if !check && !self.troubled {
            return;
        }
        self.checked = if check { now } else { self.checked };
        self.troubled = false;
        for (number, endpoint) in self.endpoints.iter_mut().enumerate() {
            let Some(endpoint) = endpoint else { continue };
            let broken = endpoint.stripes.iter().any(|stripe| stripe.broken.is_some());
            if endpoint.lost.is_none() && (broken || check) {
                endpoint.reconnect(now, &self.limits);
            }
            self.troubled |= endpoint.stripes.iter().any(|stripe| stripe.broken.is_some());
            if let (Some(reason), false) = (&endpoint.lost, endpoint.reported) {
                endpoint.reported = true;
                let endpoint = EndpointId(number as u32);
                events.push(Event::Lost { endpoint, reason: reason.clone() });
            }
        }
        self.watch();
    }

    /// Waits, for a bounded time, until the peer of one endpoint, or of every endpoint, has all
    /// bytes.
    fn wait_for_shutdown(&mut self, only: Option<EndpointId>) {
        while !self.poll_shutdown(only) {
            std::thread::sleep(FAREWELL_PAUSE);
        }
    }

    fn has_trouble(&self) -> bool {
        self.endpoints.iter().flatten().any(|endpoint| {
            let broken = endpoint.stripes.iter().any(|stripe| stripe.broken.is_some());
            broken || (endpoint.lost.is_some() && !endpoint.reported)
        })
    }
}

fn watch(epoll: &Arc<OwnedFd>, stripe: &mut Stripe, data: u64) {
    let room = stripe.wants_room();
    let Some(socket) = stripe.connection.as_ref().map(Connection::socket) else { return };
    let data = epoll::EventData::new_u64(data);
    let mut flags = epoll::EventFlags::IN;
    flags.set(epoll::EventFlags::OUT, room);
    // A socket that epoll does not accept stays new: the next call tries it again.
    if stripe.watched_by.is_none() {
        let is_watched = epoll::add(epoll, socket, data, flags).is_ok();
        stripe.watched_by = is_watched.then(|| Arc::clone(epoll));
    } else if stripe.watches_room != room {
        let _ = epoll::modify(epoll, socket, data, flags);
    }
    stripe.watches_room = room;
}

impl Lane for TcpLane {
    fn attach(&mut self, connected: Connected) -> Result<EndpointId, TransportError> {
        let device = self.memory.registry().device();
        let link = connected.into_own(|link: &Link| link.device == device)?;
        let id = EndpointId::next(self.endpoints.len(), u32::MAX as usize)?;
        self.sockets += link.connections.len();
        self.endpoints.push(Some(Endpoint::new(*link, self.done_when_written, self.traffic_class)));
        self.watch();
        Ok(id)
    }

    fn detach(&mut self, endpoint: EndpointId) {
        self.wait_for_shutdown(Some(endpoint));
        let found = self.endpoints.get_mut(endpoint.0 as usize).and_then(Option::take);
        if let Some(mut found) = found {
            // A forked child must remove no socket from epoll: the instance is also the parent's.
            if self.process == rustix::process::getpid() {
                found.stripes.iter_mut().for_each(|stripe| drop(stripe.drop_connection()));
            }
            self.memory.forget(endpoint);
            self.sockets -= found.stripes.len();
        }
    }

    /// Sends farewells, and returns whether the wait for them is over. Sockets stay open meanwhile:
    /// if the peer wrote to a closed socket, bytes that this socket had not yet sent would be lost.
    fn poll_shutdown(&mut self, only: Option<EndpointId>) -> bool {
        if self.process != rustix::process::getpid() {
            return true;
        }
        let mut waiting = Vec::new();
        for (number, endpoint) in self.endpoints.iter_mut().enumerate() {
            let Some(endpoint) = endpoint else { continue };
            let is_meant = only.is_none_or(|only| only.0 as usize == number);
            endpoint.is_leaving |= is_meant;
            if !endpoint.is_leaving {
                continue;
            }
            for stripe in endpoint.stripes.iter_mut().filter(|stripe| stripe.connection.is_some()) {
                let is_written = stripe.write().is_ok();
                let is_said = stripe.say_farewell();
                let may_write = is_written && !stripe.write_failed && stripe.write().is_ok();
                if may_write && (has_more_to_give(stripe) || !is_said) {
                    waiting.push(number);
                }
            }
        }
        let only = only.map(|only| only.0 as usize);
        self.farewell.is_over(ccl_clock::now(), FAREWELL_WITHIN, &waiting, only)
    }

    /// Detaches the endpoint without a farewell. Bytes that the kernel does not have yet are
    /// dropped.
    fn abort(&mut self, endpoint: EndpointId) {
        let is_ours = self.process == rustix::process::getpid();
        if let (Ok(peer), true) = (self.endpoint(endpoint), is_ours) {
            peer.lose("this side has aborted the link".to_owned());
        }
        self.detach(endpoint);
    }

    fn share(&mut self, endpoint: EndpointId, key: MrKey) -> Result<RemoteKey, TransportError> {
        self.refresh();
        let region = self.memory.registry().find(key)?.region;
        self.endpoint(endpoint)?.share(key, region)
    }

    fn import(&mut self, at: EndpointId, key: &RemoteKey) -> Result<RemoteMr, TransportError> {
        let bytes = key.0.len();
        let shared = Shared::decode(key).ok_or(TransportError::NoKey { bytes })?;
        let peer = self.endpoint(at)?;
        if !peer.is_theirs(&shared) {
            let reason = "it has not shared this memory over this connection".to_owned();
            return Err(TransportError::Refused { peer: peer.peer.clone(), reason });
        }
        let known = self.memory.known(at, |known| *known == shared);
        Ok(known.unwrap_or_else(|| self.memory.import(at, shared)))
    }

    fn forget(&mut self, at: EndpointId, mr: RemoteMr) {
        self.memory.release_import(at, mr);
    }

    fn map(&mut self, at: EndpointId, _: &RemoteKey) -> Result<Region, TransportError> {
        let peer = &self.endpoint(at)?.peer;
        Err(TransportError::NotMapped { peer: peer.clone() })
    }

    fn post(&mut self, _now: Instant, work: &[WorkRequest]) -> Result<usize, TransportError> {
        self.refresh();
        let taken = take(work, |request| self.put(request));
        self.write();
        taken
    }

    fn note(&mut self, endpoint: EndpointId, bytes: &[u8]) -> Result<(), TransportError> {
        check_note(bytes)?;
        let source = Region::private(bytes.len());
        source.write(0, bytes)?;
        let header = Header { bytes: bytes.len() as u32, ..Header::bare(Kind::Note, 0) };
        let peer = self.endpoint(endpoint)?;
        if peer.lost.is_none() {
            // All notes take the first stripe, which keeps them in order.
            peer.stripes[0].outgoing.push(Put {
                header,
                source,
                tail: None,
                id: None,
                has_bytes: true,
                is_control: true,
            });
        }
        Ok(())
    }

    fn relocate(
        &mut self,
        endpoint: EndpointId,
        id: u64,
        tail: LocalSlice,
    ) -> Result<(), TransportError> {
        let to = self.memory.local(tail)?.region()?;
        self.endpoint(endpoint)?.relocate(id, &to)
    }

    fn redirect(
        &mut self,
        endpoint: EndpointId,
        from: LocalSlice,
        into: Option<LocalSlice>,
    ) -> Result<bool, TransportError> {
        // A redirect writes to memory: it copies bytes that have already arrived.
        let _writing = self.writer.begin();
        self.refresh();
        let other = |into: LocalSlice| {
            let region = self.memory.local(into)?.region()?;
            Ok::<_, TransportError>(RedirectTarget { key: into.key, region })
        };
        let into = into.map(other).transpose()?;
        let given = into.as_ref().map_or(from.bytes, |into| into.region.bytes());
        if given != from.bytes {
            return Err(TransportError::OtherLength { bytes: from.bytes, given });
        }
        let peer = self.endpoint(endpoint)?;
        if peer.lost.is_some() {
            // A lost peer sends no more bytes: only undoing a redirect succeeds.
            return Ok(into.is_none());
        }
        peer.redirect(from, into)
    }

    fn poll(&mut self, now: Instant, events: &mut Vec<Event>) -> Result<(), TransportError> {
        let _writing = self.writer.begin();
        self.refresh();
        // Frames are acknowledged here, not right after the read below. If the caller posts a
        // credit between two polls, the credit's frame also acknowledges what the earlier poll has
        // read, and the later poll sends no separate acknowledgement.
        for endpoint in self.endpoints.iter_mut().flatten() {
            endpoint.acknowledge(now);
        }
        self.write();
        let before = events.len();
        if self.done_when_written {
            let endpoints = self.endpoints.iter_mut().flatten();
            endpoints.for_each(|endpoint| endpoint.tell_written(events));
        }
        // A caller that got events polls again, so this poll can save the system calls of a read.
        self.unread = if events.len() > before { self.unread + 1 } else { 0 };
        if self.unread.is_multiple_of(READ_EVERY) {
            self.read(now, events);
        }
        self.troubled |= self.has_trouble();
        self.look_after(now, events);
        Ok(())
    }

    fn poll_timeout(&self) -> Option<Instant> {
        if self.troubled || self.held().next().is_some() {
            return Some(Instant::ZERO);
        }
        let stripes = self.endpoints.iter().flatten().flat_map(|endpoint| &endpoint.stripes);
        if self.done_when_written && stripes.clone().any(|stripe| stripe.outgoing.has_written()) {
            return Some(Instant::ZERO);
        }
        let unacknowledged = stripes.filter_map(|stripe| stripe.unacknowledged_since).min();
        let check = (self.sockets > 0).then(|| self.checked + CHECK_EVERY);
        unacknowledged.map(|since| since + ACK_DELAY_MAX).into_iter().chain(check).min()
    }

    fn is_drained(&self) -> bool {
        self.endpoints.iter().flatten().all(|endpoint| endpoint.has_left())
    }

    fn set_traffic_class(&mut self, traffic_class: u8) {
        self.traffic_class = Some(traffic_class);
    }

    fn is_acknowledged(&self) -> bool {
        let mut open = self.endpoints.iter().flatten().filter(|peer| peer.lost.is_none());
        open.all(|peer| peer.is_acknowledged())
    }

    fn flush_acknowledgements(&mut self, _now: Instant) {
        self.endpoints.iter_mut().flatten().for_each(Endpoint::acknowledge_long_frames);
        self.write();
    }

    fn sleep(&mut self, longest: Duration) {
        self.watch();
        if self.held().next().is_some() {
            return;
        }
        let longest = if self.troubled { longest.min(Duration::from_millis(1)) } else { longest };
        // Received frames are acknowledged soon, even if nothing else arrives.
        let mut stripes = self.endpoints.iter().flatten().flat_map(|endpoint| &endpoint.stripes);
        let is_unacknowledged = stripes.any(|stripe| stripe.unacknowledged_since.is_some());
        let longest = if is_unacknowledged { longest.min(ACK_DELAY_MAX) } else { longest };
        self.await_ready(longest);
    }
}

impl Drop for TcpLane {
    fn drop(&mut self) {
        self.wait_for_shutdown(None);
    }
}

/// Returns whether a stripe has bytes that the peer's kernel has not received; false if the
/// connection has ended.
fn has_more_to_give(stripe: &Stripe) -> bool {
    let Some(socket) = stripe.connection.as_ref().map(Connection::socket) else { return false };
    // Read and discard: closing with unread bytes would reset the connection.
    let mut unheard = [0; 4096];
    for _ in 0..UNHEARD_READS {
        match socket::read(socket, &mut [IoSliceMut::new(&mut unheard)]) {
            Got::Bytes(_) => {}
            Got::Nothing => break,
            Got::End(_) => return false,
        }
    }
    !stripe.is_drained() || memory::unacknowledged(socket) > 0
}
