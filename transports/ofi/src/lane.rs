//! A lane: puts become messages, or writes whose remote CQ data carries the immediate. Completions
//! become events.

use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use ccl_clock::now;
use ccl_core::time::Instant;
use ccl_core::transport::{
    Caps, Connected, EndpointId, Event, Lane, LocalSlice, MemoryTable, MrKey, Registry, RemoteKey,
    RemoteMr, TransportError, WorkRequest, check_note, take,
};
use ccl_memory::Region;
use ccl_socket::{FAREWELL_WITHIN, Link, ShutdownWait};
use libfabric_sys::{FI_RECV, fi_context2};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::Pid;

use crate::memory::{Registered, Shared};
use crate::messages::{DEPTH_MAX, HEAD_BYTES, Head, Inbox, PART_BYTES, TOKEN_BYTES, part_bytes};
use crate::native::{
    Bell, COMPLETIONS_MAX, Completion, Completions, Domain, Endpoint, Failed, OfiError,
    transport_error,
};
use crate::peer::{Destination, Mode, Offer, Peer, PeerTimeouts, Waiting};
use crate::posted::{Posted, lock};
use crate::provider::eager_bytes;
use crate::requests::{Request, Requests, Write};
use crate::tag::Layout;

/// Largest number of reads of a completion queue in a row, so that a busy queue does not hold the
/// caller.
const TURNS_MAX: usize = 16;
/// Largest number of calls of [`OfiLane::drain`] in a row before a peer is lost, for messages of
/// [`PART_BYTES`]. For shorter messages, of which a call takes in fewer bytes, the number is larger
/// in proportion.
const DRAINS_MAX: usize = 64;
/// Interval of checks for notes and closed connections. While a link is being made or is about to
/// end, every poll makes this check.
const CHECK_EVERY: Duration = Duration::from_millis(1);
/// Pause between two checks of farewells.
const FAREWELL_PAUSE: Duration = Duration::from_micros(50);
/// Length of the first sleep of a lane that the provider does not wake. A lane with puts that the
/// provider has not taken yet sleeps for at most `NAP` at a time.
const NAP: Duration = Duration::from_micros(50);
/// Longest sleep if the provider does not wake the lane.
const NAP_MAX: Duration = Duration::from_millis(1);
/// Divisor: the next sleep of a lane that the provider does not wake is the time that the lane has
/// slept since the last completion, divided by `NAPS`. So a long wait uses little of the
/// processor's time, and lasts longer than necessary only by a small part of its length.
const NAPS: u32 = 32;

/// Number of the next lane of the process. Registrations are keyed by lane.
static LANES: AtomicU64 = AtomicU64::new(0);

/// A lane of a domain. Its peers are divided into groups, each with libfabric endpoints of its own.
/// If puts are writes, a group has at most as many peers as the remote CQ data of a write can tell
/// apart; if puts are messages, all peers are one group.
#[derive(Debug)]
pub(crate) struct OfiLane {
    domain: Arc<Domain>,
    posted: Arc<Mutex<Posted>>,
    /// Largest number of peers of a group.
    peers_max: usize,
    /// Process of the lane. The child of a fork has the same connections, and must send nothing on
    /// them.
    process: Pid,
    memory: MemoryTable<Arc<Registered>, Shared>,
    number: u64,
    /// Peers, indexed by the numbers of their [`EndpointId`]s. None for a detached peer, and for a
    /// number that was skipped because its group failed. Numbers are not used again.
    peers: Vec<Option<Peer>>,
    /// Number of the peer at which the last call of `pump_all` began.
    first: usize,
    /// True only if all peers were quiet ([`Peer::is_quiet`]) when they were looked at last, and
    /// nothing has changed that since then. Polls then skip the peers until the next
    /// [`OfiLane::check`].
    is_quiet: bool,
    layout: Layout,
    /// True if a put is done only when the peer has it.
    acknowledged: bool,
    /// True unless puts are writes of EFA. The provider may report other puts as done before the
    /// peer's provider has them. Such a put can be lost if an endpoint closes early, or if a
    /// connection of the provider breaks.
    is_done_early: bool,
    patience: PeerTimeouts,
    mode: Mode,
    /// Posted receives if puts are messages; none if puts are writes.
    inbox: Option<Inbox>,
    /// Largest number of bytes of a put in one message.
    part_bytes: usize,
    /// Lock that the lane holds for reading while it copies received bytes. Deregistration takes it
    /// for writing.
    fence: Arc<RwLock<()>>,
    /// Memory that peers may write to.
    shared: Vec<SharedMemory>,
    /// Receive buffers with puts that have arrived, until [`Lane::receive_buffer`] returns them.
    buffers: Vec<(EndpointId, u32, Region)>,
    done: Vec<u64>,
    /// Events that a peek has found, or that came during a farewell.
    deferred: Vec<Event>,
    checked: Instant,
    /// Time that the lane has slept since the last completion, if the provider does not wake it.
    slept: Duration,
    farewell: ShutdownWait,
}

/// Memory that a peer may write to.
#[derive(Debug)]
struct SharedMemory {
    endpoint: EndpointId,
    key: MrKey,
    memory: Arc<Registered>,
    /// Offsets to which puts may stay in receive buffers.
    buffered: Range<u64>,
}

impl SharedMemory {
    /// Returns whether a message of so many bytes may stay in its receive buffer: the message is a
    /// whole put, with an immediate and to offsets for which this is permitted.
    fn may_stay(&self, head: &Head, bytes: usize) -> bool {
        let end = head.offset.saturating_add(bytes as u64);
        let is_inside = self.buffered.start <= head.offset && end <= self.buffered.end;
        bytes > 0 && bytes as u64 == head.total && head.immediate.is_some() && is_inside
    }
}

impl OfiLane {
    pub(crate) fn new(
        (domain, posted): (&Arc<Domain>, Arc<Mutex<Posted>>),
        registry: Arc<Registry<Arc<Registered>>>,
        fence: Arc<RwLock<()>>,
        caps: Caps,
        (mode, layout): (Mode, Layout),
        patience: PeerTimeouts,
    ) -> Result<OfiLane, TransportError> {
        let info = domain.info();
        let eager_bytes = eager_bytes(&info.provider(), mode.eager_limit.as_deref());
        let inbox = if mode.writes { None } else { Some(Inbox::new(domain)?) };
        // The head of a message has room for the number of any peer.
        let peers_max = if mode.writes { layout.peers_max() } else { usize::MAX };
        let mut lane = OfiLane {
            domain: Arc::clone(domain),
            posted,
            peers_max,
            process: rustix::process::getpid(),
            acknowledged: caps.acknowledged,
            is_done_early: !mode.writes || !info.is_efa(),
            patience,
            mode,
            memory: MemoryTable::new(registry, caps),
            number: LANES.fetch_add(1, Ordering::Relaxed),
            peers: Vec::new(),
            first: 0,
            is_quiet: false,
            layout,
            inbox,
            part_bytes: part_bytes(eager_bytes),
            fence,
            shared: Vec::new(),
            buffers: Vec::new(),
            done: Vec::new(),
            deferred: Vec::new(),
            checked: Instant::ZERO,
            slept: Duration::ZERO,
            farewell: ShutdownWait::default(),
        };
        // Receives may be posted from here on: the lane exists, so its `drop` will close the
        // endpoint before the inbox is freed.
        let posted = lock(&lane.posted);
        if let (Some(inbox), Some(own)) = (&mut lane.inbox, posted.endpoints.get(0)) {
            inbox.post(&own.data).map_err(transport_error)?;
        }
        drop(posted);
        Ok(lane)
    }

    /// Forgets memory that was shared with peers and is deregistered.
    fn refresh(&mut self) {
        if self.memory.refresh() {
            let registry = self.memory.registry();
            self.shared.retain(|shared| registry.find(shared.key).is_ok());
        }
    }

    fn peer(&mut self, id: EndpointId) -> Result<&mut Peer, TransportError> {
        let found = self.peers.get_mut(id.0 as usize).and_then(Option::as_mut);
        found.ok_or(TransportError::UnknownEndpoint(id))
    }

    /// Takes one put; returns false if the link takes no more.
    fn put(&mut self, request: &WorkRequest) -> Result<bool, TransportError> {
        let WorkRequest::Put { endpoint, remote_offset, is_control, immediate, id, .. } = *request;
        let resolved = self.memory.resolve(request)?;
        let peer = self.peers.get_mut(endpoint.0 as usize).and_then(Option::as_mut);
        let peer = peer.ok_or(TransportError::UnknownEndpoint(endpoint))?;
        if peer.lost.is_some() || peer.failing.is_some() {
            // A put to a lost peer is accepted and never completes.
            return Ok(true);
        }
        if peer.outstanding[usize::from(is_control)] >= DEPTH_MAX {
            return Ok(false);
        }
        let remote = (resolved.to.address + remote_offset as u64, resolved.to.key);
        let mut write = Write::new(endpoint, (id, is_control), immediate, remote);
        let slices = [Some(&resolved.source), resolved.tail.as_ref()];
        for slice in slices.into_iter().flatten().filter(|slice| slice.bytes > 0) {
            write.add(slice);
        }
        if self.inbox.is_none() && write.ranges().len() > 1 {
            // With remote CQ data, a device can write only one range.
            let Some(staged) = peer.staging.take(&self.domain, &write)? else { return Ok(false) };
            write.stage(staged);
        }
        if write.ranges().is_empty() {
            if immediate.is_none() {
                self.done.push(id);
                return Ok(true);
            }
            // Providers check the registration of an empty range, too.
            write.add(&resolved.source);
        }
        peer.outstanding[usize::from(is_control)] += 1;
        (peer.puts, write.put) = (peer.puts + 1, peer.puts);
        // Control puts and data do not wait for each other.
        let must_wait = peer.waiting.has(is_control);
        if (must_wait || !self.hand(endpoint, &mut write))
            && let Some(puts) = self.waiting(endpoint)
        {
            puts.push(write);
        }
        Ok(true)
    }

    /// Returns a peer's waiting puts, so that a put can be added, and makes the next poll hand them
    /// to the provider. None if the peer is lost.
    fn waiting(&mut self, endpoint: EndpointId) -> Option<&mut Waiting> {
        self.is_quiet = false;
        let peer = self.peer(endpoint).ok().filter(|peer| peer.lost.is_none());
        peer.map(|peer| &mut peer.waiting)
    }

    /// Hands a put to the provider. Returns false if the put must wait: the provider does not take
    /// all of it now, or the peer's addresses have not come. Returns true also if the peer is gone,
    /// or the put fails: the put then never completes.
    fn hand(&mut self, endpoint: EndpointId, write: &mut Write) -> bool {
        let OfiLane {
            posted,
            peers_max,
            peers,
            layout,
            inbox,
            part_bytes,
            acknowledged,
            is_quiet,
            ..
        } = self;
        let Posted { endpoints, requests, .. } = &mut *lock(posted);
        let number = endpoint.0 as usize;
        let Some(Some(peer)) = peers.get_mut(number) else { return true };
        let (Some(to), Some(own)) = (peer.to, endpoints.get(number / *peers_max)) else {
            return false;
        };
        let Destination { at: addresses, number, token } = to;
        let is_control = write.request.is_control;
        let (own, at) = own.route(addresses, is_control);
        let kind = usize::from(is_control);
        let handed = match inbox {
            _ if write.request.is_void() => Err(TransportError::Withdrawn),
            // EFA's provider takes at most 16 writes to peers that have not answered a first write;
            // this limit is for all these peers together. So such a peer gets no second write of
            // the same kind (control or data), and room is left for writes to other peers.
            None if peer.handed[kind] && !peer.answered[kind] => Ok(false),
            None => write_put(own, requests, *layout, (at, number), *acknowledged, write),
            Some(_) => {
                let how = (*part_bytes, *acknowledged);
                send_put(own, requests, (at, number), token, how, write)
            }
        };
        match handed {
            Ok(true) => {
                peer.handed[kind] = true;
                peer.traffic.sent += u64::from(write.immediate.is_some());
                true
            }
            Ok(false) => false,
            Err(error) => {
                *is_quiet = false;
                if *acknowledged {
                    peer.fail(error.to_string());
                } else {
                    peer.lose(error.to_string());
                }
                true
            }
        }
    }

    /// Hands the waiting puts of all peers to the provider: control of all peers, then data. Each
    /// call begins with another peer, since peers share the provider's room.
    fn pump_all(&mut self) {
        let count = self.peers.len();
        self.first = (self.first + 1) % count.max(1);
        for is_control in [true, false] {
            for number in (self.first..count).chain(0..self.first) {
                let next = |lane: &mut OfiLane| {
                    lane.peers[number].as_mut().and_then(|peer| peer.waiting.pop(is_control))
                };
                while let Some(mut write) = next(self) {
                    let endpoint = EndpointId(number as u32);
                    if self.hand(endpoint, &mut write) {
                        continue;
                    }
                    if let Some(puts) = self.waiting(endpoint) {
                        puts.put_back(write);
                    }
                    break;
                }
            }
        }
    }

    /// Takes in completions. Returns whether there were any completions or errors.
    fn drain(&mut self, events: &mut Vec<Event>) -> bool {
        let posted = Arc::clone(&self.posted);
        let Posted { endpoints, requests, is_withdrawn, .. } = &mut *lock(&posted);
        let mut any = false;
        for group in 0..endpoints.count() {
            let Some(own) = endpoints.get(group) else { continue };
            let mut is_failed = false;
            for endpoint in own.all() {
                match self.read(endpoint, group, requests, events) {
                    Ok(has_read) => any |= has_read,
                    Err(error) => {
                        (any, is_failed) = (true, true);
                        self.lose_group(group, &error);
                    }
                }
            }
            // If puts are messages, the one endpoint of all peers stays in use. Each later read of
            // its queue reports the error again, and so loses the peers that were attached since.
            if is_failed && self.inbox.is_none() {
                endpoints.fail(group);
                requests.give_up(|endpoint| endpoint.0 as usize / self.peers_max == group);
            }
        }
        if *is_withdrawn {
            self.lose_all(&TransportError::Withdrawn.to_string());
        }
        let (inbox, own) = (&mut self.inbox, endpoints.get(0));
        let posted = inbox.as_mut().zip(own).map(|(inbox, own)| inbox.post(&own.data));
        if let Some(Err(error)) = posted {
            // No message can arrive any more.
            self.lose_all(&error.to_string());
        }
        any
    }

    /// Takes in the completions of an endpoint of the group. Returns whether there were any
    /// completions, or errors of requests or packets.
    ///
    /// # Errors
    ///
    /// When the completion queue itself has failed.
    fn read(
        &mut self,
        endpoint: &Endpoint,
        group: usize,
        requests: &mut Requests,
        events: &mut Vec<Event>,
    ) -> Result<bool, OfiError> {
        let (mut any, mut taken) = (false, Completions::room(COMPLETIONS_MAX));
        for _ in 0..TURNS_MAX {
            if let Err((failed, error)) = endpoint.take("a write", &mut taken) {
                any = true;
                match failed {
                    Failed::Queue => return Err(error),
                    Failed::Request(context) => self.failed(context, &error, requests),
                    Failed::Packet => {
                        tracing::warn!(%error, "a packet of libfabric's protocol failed");
                    }
                }
                continue;
            }
            let mut has_arrivals = false;
            for completion in taken.iter() {
                has_arrivals |= completion.is_arrival();
                self.completed(group, &completion, requests, events);
            }
            if !taken.is_empty() {
                (any, self.slept) = (true, Duration::ZERO);
            }
            // A software provider makes no progress in a read that finds completions. If this read
            // finds only completions of this side's puts, the next can find arrivals.
            if !taken.is_full() && (taken.is_empty() || has_arrivals) {
                break;
            }
        }
        Ok(any)
    }

    /// Loses all peers.
    fn lose_all(&mut self, reason: &str) {
        self.is_quiet = false;
        self.peers.iter_mut().flatten().for_each(|peer| peer.lose(reason.to_owned()));
    }

    /// Handles a completion of an endpoint of the group.
    fn completed(
        &mut self,
        group: usize,
        completion: &Completion,
        requests: &mut Requests,
        events: &mut Vec<Event>,
    ) {
        let Completion { flags, data, bytes, context } = *completion;
        if flags & FI_RECV != 0 {
            return self.received(context, bytes, events);
        }
        if completion.is_arrival() {
            if self.inbox.is_some() {
                // Puts are messages here, so no put arrives as a write.
                return;
            }
            let tag = self.layout.decode(data);
            let first = group.saturating_mul(self.peers_max) as u32;
            let (endpoint, immediate) = (EndpointId(first + tag.number), tag.immediate);
            let bytes = tag.bytes.unwrap_or(bytes);
            if let Ok(peer) = self.peer(endpoint)
                && peer.lost.is_none()
            {
                peer.traffic.arrived += 1;
                events.push(Event::Arrived { endpoint, immediate, bytes });
            }
            return;
        }
        let Some(ended) = requests.end(context) else { return };
        let is_last = ended.count_end();
        let Request { endpoint, id, is_control, .. } = ended;
        let Ok(peer) = self.peer(endpoint) else { return };
        peer.traffic.completed += 1;
        if is_last {
            let kind = usize::from(is_control);
            (peer.outstanding[kind], peer.answered[kind]) = (peer.outstanding[kind] - 1, true);
            // A put to a lost peer is never done, even if all its messages are.
            let is_done = peer.lost.is_none() && peer.failing.is_none();
            self.done.extend(is_done.then_some(id));
        }
    }

    /// Takes in a message, if its sender may write to the memory that its head names. Copies the
    /// bytes there, or leaves them in the receive buffer.
    fn received(&mut self, context: *mut fi_context2, bytes: usize, events: &mut Vec<Event>) {
        let OfiLane { inbox, fence, memory, shared, peers, buffers, is_quiet, .. } = self;
        let Some(inbox) = inbox else { return };
        if !inbox.take(context) || bytes < HEAD_BYTES {
            return;
        }
        let mut head = [0; HEAD_BYTES];
        let is_read = inbox.taken().is_some_and(|message| message.read(0, &mut head).is_ok());
        if !is_read {
            return;
        }
        let (head, bytes) = (Head::decode(&head), bytes - HEAD_BYTES);
        let endpoint = EndpointId(head.number);
        let peer = peers.get_mut(head.number as usize).and_then(Option::as_mut);
        // Endpoints are not connected: only the token tells the peer from a stranger.
        let is_peers = |peer: &&mut Peer| peer.lost.is_none() && peer.token == head.token;
        let Some(peer) = peer.filter(is_peers) else { return };
        peer.traffic.parts += 1;
        let named = |shared: &&SharedMemory| (shared.endpoint, shared.key) == (endpoint, head.mr());
        let Some(named) = shared.iter().find(named) else {
            // If puts were writes, a write with this key would fail, too.
            *is_quiet = false;
            return peer.lose("a put names memory that is not shared with its sender".to_owned());
        };
        if named.may_stay(&head, bytes)
            && let Some(immediate) = head.immediate
            && let Some(region) = inbox.hold(bytes)
        {
            peer.traffic.arrived += 1;
            buffers.push((endpoint, immediate, region));
            return events.push(Event::Arrived { endpoint, immediate, bytes });
        }
        {
            let _fence = fence.read().unwrap_or_else(PoisonError::into_inner);
            let target = memory.registry().find(head.mr()).ok();
            if let (Some(target), Some(message), true) = (target, inbox.taken(), bytes > 0) {
                // Bytes outside the region are not written.
                let offset = usize::try_from(head.offset).unwrap_or(usize::MAX);
                let _ = target.region.copy_from(offset, message, HEAD_BYTES, bytes);
            }
        }
        match (inbox.count(endpoint, &head, bytes as u64), head.immediate) {
            (Ok(Some(bytes)), Some(immediate)) => {
                peer.traffic.arrived += 1;
                events.push(Event::Arrived { endpoint, immediate, bytes: bytes as usize });
            }
            (Ok(_), _) => {}
            (Err(reason), _) => {
                *is_quiet = false;
                peer.lose(reason.to_owned());
            }
        }
    }

    /// Loses the peers of a group whose completion queue has failed. If puts are writes, the next
    /// peer gets another group.
    fn lose_group(&mut self, group: usize, error: &OfiError) {
        self.is_quiet = false;
        let first = group.saturating_mul(self.peers_max);
        let end = first.saturating_add(self.peers_max);
        if self.inbox.is_none() && self.peers.len() < end {
            self.peers.resize_with(end, || None);
        }
        let peers = self.peers.iter_mut().skip(first).take(self.peers_max);
        peers.flatten().for_each(|peer| peer.lose(error.to_string()));
    }

    fn failed(&mut self, context: *mut fi_context2, error: &OfiError, requests: &mut Requests) {
        let Some(ended) = requests.end(context) else {
            self.inbox.iter_mut().for_each(|inbox| inbox.fail(&self.domain, context));
            return;
        };
        // Other messages of the same put may be under way: the put ends with the last one.
        let is_last = ended.count_end();
        self.is_quiet = false;
        if let Ok(peer) = self.peer(ended.endpoint) {
            peer.outstanding[usize::from(ended.is_control)] -= usize::from(is_last);
            peer.fail(error.to_string());
        }
    }

    /// Returns whether it is time for [`OfiLane::check`].
    fn needs_check(&self, now: Instant) -> bool {
        let is_due = now.since(self.checked) >= CHECK_EVERY;
        is_due || !self.is_quiet && self.peers.iter().flatten().any(Peer::is_unsettled)
    }

    /// Handles the peers' messages on TCP connections, and notices lost peers.
    fn check(&mut self, now: Instant, events: &mut Vec<Event>) {
        self.checked = now;
        self.is_quiet = false;
        self.close_groups();
        let (mut notes, mut ends) = (Vec::new(), Vec::new());
        let posted = lock(&self.posted);
        let endpoints = &posted.endpoints;
        // Errors of the provider's own packets are only logged: the request for which a packet was
        // sent has a completion or a failure of its own, and the TCP connection shows that a peer
        // has ended.
        let failures = endpoints.all().flat_map(Endpoint::failures);
        failures.for_each(|error| tracing::info!(error, "a packet of libfabric's protocol failed"));
        for (number, peer) in self.peers.iter_mut().enumerate() {
            let Some(peer) = peer else { continue };
            // If puts are writes, a group whose queue has failed has no endpoints. No group has
            // endpoints once memory was deregistered in the middle of a request
            // (`Posted::is_withdrawn`). In both cases, the group's peers are lost.
            if let Some(own) = endpoints.get(number / self.peers_max) {
                peer.receive_messages(now, &self.patience, (own, self.peers_max), &mut notes);
                if self.is_done_early {
                    peer.report_counts(now);
                    peer.miss(now);
                }
            }
            let endpoint = EndpointId(number as u32);
            events.extend(notes.drain(..).map(|bytes| Event::Note { endpoint, bytes }));
            ends.extend(peer.end(now).map(|reason| (number, reason)));
        }
        drop(posted);
        if ends.is_empty() {
            return;
        }
        // These peers may count as done what they have sent so far.
        for _ in 0..DRAINS_MAX * PART_BYTES.div_ceil(self.part_bytes) {
            if !self.drain(events) {
                break;
            }
        }
        for (number, reason) in ends {
            self.peers[number].iter_mut().for_each(|peer| peer.lose(reason.clone()));
        }
    }

    /// Finds out whether all peers are quiet, unless they are known to be.
    fn look_at_peers(&mut self) {
        self.is_quiet = self.is_quiet || self.peers.iter().flatten().all(Peer::is_quiet);
    }

    fn report(&mut self, events: &mut Vec<Event>) {
        for (number, peer) in self.peers.iter_mut().enumerate() {
            let Some(peer) = peer else { continue };
            if let (Some(reason), false) = (&peer.lost, peer.is_reported) {
                let (endpoint, reason) = (EndpointId(number as u32), reason.clone());
                peer.is_reported = true;
                events.push(Event::Lost { endpoint, reason });
            }
        }
    }

    /// Waits until peers have what was posted, for at most [`FAREWELL_WITHIN`] per peer.
    fn wait_for_shutdown(&mut self, only: Option<EndpointId>) {
        while !self.poll_shutdown(only) {
            std::thread::sleep(FAREWELL_PAUSE);
        }
    }

    /// Ends a peer's access to memory, and its link.
    fn close(&mut self, endpoint: EndpointId) {
        let number = self.number;
        self.shared.retain(|shared| {
            let stays = shared.endpoint != endpoint;
            if !stays {
                shared.memory.unshare(number, endpoint);
            }
            stays
        });
        self.buffers.retain(|(at, ..)| *at != endpoint);
        self.inbox.iter_mut().for_each(|inbox| inbox.forget(endpoint));
        self.memory.forget(endpoint);
        if let Some(mut peer) = self.peers.get_mut(endpoint.0 as usize).and_then(Option::take)
            && self.process == rustix::process::getpid()
        {
            peer.side.close();
        }
    }

    /// Closes the endpoints of each full group whose peers are all detached. A full group has used
    /// all its peer numbers, so no new peer joins it.
    fn close_groups(&mut self) {
        let mut posted = lock(&self.posted);
        for (group, peers) in self.peers.chunks_exact(self.peers_max).enumerate() {
            if posted.endpoints.get(group).is_some() && peers.iter().all(Option::is_none) {
                posted.close_group(group, self.peers_max);
            }
        }
    }
}

/// Writes a put; returns false if the provider takes nothing now.
fn write_put(
    endpoint: &Endpoint,
    requests: &mut Requests,
    layout: Layout,
    (to, number): (u64, u32),
    acknowledged: bool,
    write: &mut Write,
) -> Result<bool, TransportError> {
    let data = write.immediate.map(|immediate| layout.encode(number, immediate, write.bytes()));
    let context = requests.add(write.next_request(true));
    // SAFETY: the request keeps the memory. Context and request live until the write has completed
    // or the endpoint is closed.
    let taken = unsafe {
        let (ranges, remote) = (write.ranges(), write.remote);
        endpoint.write_ranges(ranges, data, to, remote, acknowledged, context)
    };
    if taken != Ok(true) {
        write.take_back(requests.end(context));
    }
    taken.map_err(transport_error)
}

/// Sends what is left of a put; returns false if the provider does not take all of it now.
fn send_put(
    endpoint: &Endpoint,
    requests: &mut Requests,
    (to, number): (u64, u32),
    token: [u8; TOKEN_BYTES],
    (part_bytes, acknowledged): (usize, bool),
    write: &mut Write,
) -> Result<bool, TransportError> {
    let total = write.bytes();
    if write.handed == 0 {
        write.request.divide(total.div_ceil(part_bytes));
    }
    loop {
        let (offset, key) = write.remote;
        let head = Head {
            token,
            number,
            immediate: write.immediate,
            put: write.put,
            key,
            offset: offset + write.handed as u64,
            total: total as u64,
        };
        let rest = total - write.handed;
        let bytes = rest.min(part_bytes);
        let request = write.next_request(bytes == rest);
        let (context, head) = requests.add_message(request, &head.encode())?;
        let (ranges, count) = write.part(head, bytes);
        // SAFETY: as in `write_put`; the head stays with the request.
        let taken = unsafe { endpoint.send_ranges(&ranges[..count], to, acknowledged, context) };
        if taken != Ok(true) {
            write.take_back(requests.end(context));
            return taken.map_err(transport_error);
        }
        write.handed += bytes;
        if write.handed >= total {
            return Ok(true);
        }
    }
}

impl Lane for OfiLane {
    fn attach(&mut self, connected: Connected) -> Result<EndpointId, TransportError> {
        let device = self.memory.registry().device();
        let link = connected.into_own(|link: &Link| link.device == device)?;
        let endpoint = EndpointId(self.peers.len() as u32);
        let (own, number) = (self.peers.len() / self.peers_max, self.peers.len() % self.peers_max);
        let mut posted = lock(&self.posted);
        posted.grow(own + 1).map_err(transport_error)?;
        let Some(own) = posted.endpoints.get(own) else {
            return Err(TransportError::Withdrawn);
        };
        let addresses = own.addresses().map_err(transport_error)?;
        let token = ccl_socket::socket::random()?;
        let mode = self.mode.clone();
        let offer = Offer { addresses, number: number as u32, token, mode };
        let peer = Peer::new(*link, offer, self.acknowledged);
        let peer = peer.ok_or(TransportError::Internal { what: "a link without a connection" })?;
        drop(posted);
        self.peers.push(Some(peer));
        self.is_quiet = false;
        Ok(endpoint)
    }

    fn detach(&mut self, endpoint: EndpointId) {
        self.wait_for_shutdown(Some(endpoint));
        self.close(endpoint);
        self.deferred.retain(|event| event.endpoint() != Some(endpoint));
    }

    fn poll_shutdown(&mut self, only: Option<EndpointId>) -> bool {
        if self.process != rustix::process::getpid() {
            return true;
        }
        let mut events = std::mem::take(&mut self.deferred);
        self.drain(&mut events);
        self.check(now(), &mut events);
        self.pump_all();
        self.deferred = events;
        let mut waiting = Vec::new();
        for (number, peer) in self.peers.iter_mut().enumerate() {
            let Some(peer) = peer else { continue };
            if peer.lost.is_some() {
                continue;
            }
            let is_asked = only.is_none_or(|only| only.0 as usize == number);
            peer.is_leaving |= is_asked;
            if peer.is_leaving && peer.is_done() {
                peer.leave();
            }
            let waits_here = !peer.has_left(self.is_done_early);
            waiting.extend((peer.is_leaving && waits_here).then_some(number));
        }
        let only = only.map(|only| only.0 as usize);
        self.farewell.is_over(now(), FAREWELL_WITHIN, &waiting, only)
    }

    fn abort(&mut self, endpoint: EndpointId) {
        if let Ok(peer) = self.peer(endpoint) {
            peer.lose("this side has aborted the link".to_owned());
        }
        self.detach(endpoint);
    }

    fn share(&mut self, endpoint: EndpointId, key: MrKey) -> Result<RemoteKey, TransportError> {
        let memory = self.memory.registry().find(key)?.with;
        let peer = self.peer(endpoint)?;
        let (link, dialled) = (peer.id, peer.dialled);
        if let Some(reason) = &peer.lost {
            let (peer, reason) = (peer.name.clone(), reason.clone());
            return Err(TransportError::Lost { peer, reason });
        }
        let posted = lock(&self.posted);
        let Some(own) = posted.endpoints.get(endpoint.0 as usize / self.peers_max) else {
            return Err(TransportError::Withdrawn);
        };
        let (address, name) = match &self.inbox {
            None => memory.share(self.number, endpoint, |memory| own.data.expose(memory))?,
            Some(_) => (0, key.0),
        };
        let bytes = memory.bytes() as u64;
        if !self.shared.iter().any(|shared| (shared.endpoint, shared.key) == (endpoint, key)) {
            self.shared.push(SharedMemory { endpoint, key, memory, buffered: 0..0 });
        }
        Ok(Shared { link, dialled, address, bytes, key: name }.encode())
    }

    fn import(&mut self, at: EndpointId, key: &RemoteKey) -> Result<RemoteMr, TransportError> {
        let peer = self.peer(at)?;
        let theirs = |shared: &Shared| shared.link == peer.id && shared.dialled != peer.dialled;
        let shared = Shared::decode(key).filter(theirs).ok_or_else(|| {
            let peer = peer.name.clone();
            TransportError::ForeignKey { peer }
        })?;
        let known = self.memory.known(at, |known| *known == shared);
        Ok(known.unwrap_or_else(|| self.memory.import(at, shared)))
    }

    fn forget(&mut self, at: EndpointId, mr: RemoteMr) {
        self.memory.release_import(at, mr);
    }

    fn map(&mut self, _at: EndpointId, _key: &RemoteKey) -> Result<Region, TransportError> {
        Err(TransportError::NotMapped { peer: "another host".to_owned() })
    }

    fn post(&mut self, _now: Instant, work: &[WorkRequest]) -> Result<usize, TransportError> {
        self.refresh();
        take(work, |request| self.put(request))
    }

    fn use_receive_buffers(&mut self, memory: LocalSlice) -> bool {
        // A device writes to the memory that a put names.
        let Some(inbox) = &mut self.inbox else { return false };
        if let Err(error) = inbox.permit_hold(&self.domain) {
            tracing::debug!(%error, "messages are copied: no memory for further receive buffers");
            return false;
        }
        let LocalSlice { key, offset, bytes } = memory;
        let range = offset as u64..offset.saturating_add(bytes) as u64;
        let shared = self.shared.iter_mut().filter(|shared| shared.key == key);
        shared.for_each(|shared| shared.buffered = range.clone());
        true
    }

    fn receive_buffer(&mut self, endpoint: EndpointId, immediate: u32) -> Option<Region> {
        let found =
            self.buffers.iter().position(|(at, of, _)| (*at, *of) == (endpoint, immediate))?;
        Some(self.buffers.remove(found).2)
    }

    fn note(&mut self, endpoint: EndpointId, bytes: &[u8]) -> Result<(), TransportError> {
        check_note(bytes)?;
        let peer = self.peer(endpoint)?;
        if peer.lost.is_none() {
            peer.side.send(&ccl_socket::SideMessage::Note(bytes.to_vec()));
        }
        Ok(())
    }

    fn poll(&mut self, now: Instant, events: &mut Vec<Event>) -> Result<(), TransportError> {
        self.refresh();
        let has_deferred = !self.deferred.is_empty();
        events.append(&mut self.deferred);
        // Events that came before this poll are passed on at once. But the check below may lose a
        // peer, and before that check, all that the peer has sent must be taken in.
        if !has_deferred || self.needs_check(now) {
            self.drain(events);
        }
        if !self.is_quiet {
            self.pump_all();
        }
        if self.needs_check(now) {
            self.check(now, events);
            self.pump_all();
        }
        events.extend(self.done.drain(..).map(|id| Event::Done { id }));
        if !self.is_quiet {
            self.report(events);
            self.look_at_peers();
        }
        Ok(())
    }

    fn peek(&mut self) -> Option<bool> {
        self.refresh();
        if !self.is_quiet {
            return None;
        }
        if self.deferred.is_empty() {
            let mut events = std::mem::take(&mut self.deferred);
            self.drain(&mut events);
            self.deferred = events;
            self.look_at_peers();
        }
        Some(!self.is_quiet || !self.deferred.is_empty() || !self.done.is_empty())
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let any = self.peers.iter().flatten().any(|peer| !peer.is_reported);
        any.then(|| self.checked + CHECK_EVERY)
    }

    fn is_drained(&self) -> bool {
        self.peers.iter().flatten().all(|peer| peer.is_done() || peer.lost.is_some())
    }

    fn sleep(&mut self, longest: Duration) {
        if !self.done.is_empty() || !self.deferred.is_empty() {
            return;
        }
        // Puts that the provider did not take are tried again soon.
        let waits = self.peers.iter().flatten().any(|peer| !peer.waiting.is_empty());
        let longest = if waits { longest.min(NAP) } else { longest };
        let posted = lock(&self.posted);
        let bells = posted.endpoints.all().map(Endpoint::bell);
        let bells = Vec::from_iter(bells);
        drop(posted);
        if bells.iter().any(|bell| matches!(bell, Bell::Silent)) {
            let nap = (self.slept / NAPS).clamp(NAP, NAP_MAX).min(longest);
            self.slept += nap;
            return std::thread::sleep(nap);
        }
        if bells.iter().any(|bell| matches!(bell, Bell::Busy)) {
            return;
        }
        let hears = |peer: &&Peer| peer.ended.is_none() && peer.lost.is_none();
        let sides = self.peers.iter().flatten().filter(hears);
        let sides = sides.filter_map(|peer| peer.side.socket());
        let sockets = sides.map(AsFd::as_fd);
        let descriptors = bells.iter().filter_map(|bell| match bell {
            Bell::Rings(descriptor) => Some(descriptor.as_fd()),
            Bell::Silent | Bell::Busy => None,
        });
        let fds = descriptors.chain(sockets);
        let mut fds = Vec::from_iter(fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        let longest = Timespec {
            tv_sec: longest.as_secs().min(i32::MAX as u64) as _,
            tv_nsec: longest.subsec_nanos().into(),
        };
        // A signal may end the sleep early, which does no harm.
        if rustix::event::poll(&mut fds, Some(&longest)).is_ok_and(|ready| ready > 0) {
            // The next poll checks the connections.
            self.checked = Instant::ZERO;
        }
    }
}

impl Drop for OfiLane {
    fn drop(&mut self) {
        if self.process != rustix::process::getpid() {
            // The provider's state is the parent's.
            return;
        }
        self.wait_for_shutdown(None);
        for number in 0..self.peers.len() {
            self.close(EndpointId(number as u32));
        }
        // The device may hold `posted` a moment longer than this lane, and the inbox is freed with
        // the lane. So the endpoints must close now.
        lock(&self.posted).close();
    }
}
