//! A lane: puts become writes, completions become events. Each link also has a side connection, a
//! TCP connection that carries notes and the farewell.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use ccl_clock::now;
use ccl_core::queue_pairs::{Flow, Striping};
use ccl_core::time::Instant;
use ccl_core::transport::{
    Caps, Connected, EndpointId, Event, Lane, MemoryTable, MrKey, Registry, RemoteKey, RemoteMr,
    Slice, TransportError, WorkRequest, check_note, take,
};
use ccl_memory::Region;
use ccl_socket::{DESCRIPTORS, FAREWELL_WITHIN, Link, ShutdownWait, SideMessage, os};
use rdma_sys::ibv_wc;
use rustix::event::{Timespec, epoll};
use rustix::process::Pid;

use crate::Options;
use crate::endpoint::{CompletionOutcome, Endpoint, WorkRequestId, completions};
use crate::load::Load;
use crate::memory::Shared;
use crate::native::{Memory, Queue, Sge};
use crate::port::Port;
use crate::queue_pair::Put;

/// Number of completions that are taken at once.
const AT_ONCE: usize = 32;
/// Largest number of batches of completions taken in a row, so that a busy lane does not hold its
/// caller.
const TURNS_MAX: usize = 8;
/// Interval between checks of side connections and device events, when all links are connected and
/// no messages move.
const CHECK_IDLE: Duration = Duration::from_millis(1);
/// Interval between checks of side connections and device events while messages move: each check
/// takes some system calls, and side messages of a working link can wait.
const CHECK_MOVING: Duration = Duration::from_millis(4);
/// Largest number of links that one check finds readable.
const READY_MAX: usize = 64;
/// Pause between two checks of a farewell.
const FAREWELL_PAUSE: Duration = Duration::from_micros(50);
/// Longest sleep of a lane that waits for its port's budget, which limits the bytes that all links
/// of the port have under way.
const BUDGET_NAP: Duration = Duration::from_micros(100);
/// Longest time that failed queue pairs may take to report earlier completions.
const LAST_WORDS: Duration = Duration::from_millis(20);
/// Data with which epoll reports the completion queue. For an endpoint, the data is its number.
const QUEUE: u64 = u64::MAX;

/// A lane of a port.
#[derive(Debug)]
pub(crate) struct VerbsLane {
    port: Arc<Port>,
    options: Options,
    memory: MemoryTable<Arc<Memory>, Shared>,
    /// Process that made the lane: the child of a fork has the same connections, and must send
    /// nothing on them.
    process: Pid,
    epoll: Arc<OwnedFd>,
    /// Endpoints; the index is an endpoint's number, which is not used again. None once detached.
    endpoints: Vec<Option<Endpoint>>,
    /// Numbers of endpoints with puts to post, in the order of their turns.
    active: Vec<usize>,
    load: Load,
    /// True if every poll must check the endpoints, because some may have failed, or may still be
    /// connecting.
    unsettled: bool,
    queue: Arc<Queue>,
    /// Number of completions that the queue has room for, minus the number that its queue pairs may
    /// cause.
    room: usize,
    /// Buffer for completions that are taken from the queue.
    space: Vec<ibv_wc>,
    /// Number of completions in `space` that were taken from the queue ahead of the next poll.
    stashed: usize,
    /// Ids of puts that are done and not reported yet.
    done: Vec<u64>,
    /// Events that came during a farewell.
    deferred: Vec<Event>,
    /// Numbers of endpoints whose side connections were readable at the last check.
    ready: Vec<u64>,
    words: Vec<SideMessage>,
    checked: Instant,
    /// True if anything has completed since `checked`.
    has_moved: bool,
    farewell: ShutdownWait,
}

impl VerbsLane {
    pub(crate) fn new(
        port: Arc<Port>,
        registry: Arc<Registry<Arc<Memory>>>,
        options: Options,
        caps: Caps,
    ) -> Result<VerbsLane, TransportError> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(|error| os("epoll_create", error, DESCRIPTORS))?;
        let room = options.completions.min(port.limits.max_cqe.max(1) as u32);
        let queue = Queue::new(&port.context, room)?;
        let data = epoll::EventData::new_u64(QUEUE);
        epoll::add(&epoll, queue.bell(), data, epoll::EventFlags::IN)
            .map_err(|error| os("epoll_ctl", error, DESCRIPTORS))?;
        let load = Load::new(&port.name());
        Ok(VerbsLane {
            memory: MemoryTable::new(registry, caps),
            port,
            options,
            process: rustix::process::getpid(),
            epoll: Arc::new(epoll),
            endpoints: Vec::new(),
            active: Vec::new(),
            load,
            unsettled: false,
            queue,
            room: room as usize,
            space: vec![ibv_wc::default(); AT_ONCE],
            stashed: 0,
            done: Vec::with_capacity(AT_ONCE),
            deferred: Vec::new(),
            ready: Vec::with_capacity(READY_MAX),
            words: Vec::new(),
            checked: Instant::ZERO,
            has_moved: false,
            farewell: ShutdownWait::default(),
        })
    }

    fn endpoint(&mut self, id: EndpointId) -> Result<&mut Endpoint, TransportError> {
        match self.endpoints.get_mut(id.0 as usize) {
            Some(Some(endpoint)) => Ok(endpoint),
            _ => Err(TransportError::UnknownEndpoint(id)),
        }
    }

    /// Takes one put. Returns false if the endpoint takes no more.
    fn put(&mut self, request: &WorkRequest) -> Result<bool, TransportError> {
        let WorkRequest::Put { endpoint, remote_offset, is_control, immediate, id, .. } = *request;
        let VerbsLane { memory, endpoints, active, load, done, .. } = self;
        let resolved = memory.resolve(request)?;
        let put = Put {
            source: sge(&resolved.source),
            tail: resolved.tail.as_ref().and_then(sge),
            to: (resolved.to.address + remote_offset as u64, resolved.to.key),
            is_control,
            immediate,
            id,
        };
        let number = endpoint.0 as usize;
        let Some(Some(peer)) = endpoints.get_mut(number) else {
            return Err(TransportError::UnknownEndpoint(endpoint));
        };
        if peer.has_ended() {
            // A put to a lost peer is accepted and never completes.
            return Ok(true);
        }
        if !peer.takes(&put) {
            return Ok(false);
        }
        let keep = |slice: &Slice<'_, Arc<Memory>>| Arc::clone(&slice.registration.with);
        let keeps = || [Some(keep(&resolved.source)), resolved.tail.as_ref().map(keep)];
        peer.put(&put, keeps, load, done);
        if !std::mem::replace(&mut peer.is_active, true) {
            active.push(number);
        }
        Ok(true)
    }

    /// Posts prepared writes and waiting puts to the device. Once the port's budget refuses a data
    /// put, the call admits no more data puts, and the next call begins with the endpoint of the
    /// refused put. If a data put was refused since the previous call began, endpoints take turns
    /// of one data put each.
    fn pump(&mut self) {
        if self.active.is_empty() {
            return;
        }
        let VerbsLane { endpoints, active, load, done, unsettled, .. } = self;
        let most = if load.ask_again() { 1 } else { usize::MAX };
        loop {
            let (mut moved, mut refused) = (false, None);
            let mut at = 0;
            active.retain(|number| {
                let Some(Some(endpoint)) = endpoints.get_mut(*number) else { return false };
                moved |= endpoint.pump(most, load, done);
                *unsettled |= endpoint.has_ended();
                endpoint.is_active = endpoint.waits();
                if endpoint.is_active && load.has_refused() {
                    refused.get_or_insert(at);
                }
                at += usize::from(endpoint.is_active);
                endpoint.is_active
            });
            active.rotate_left(refused.unwrap_or(0));
            if most == usize::MAX || !moved || load.has_refused() {
                return;
            }
        }
    }

    /// Handles completions. Returns whether there may be more.
    fn drain(&mut self, events: &mut Vec<Event>) -> Result<bool, TransportError> {
        for _ in 0..TURNS_MAX {
            if self.stashed == 0 {
                self.stash()?;
            }
            let count = std::mem::take(&mut self.stashed);
            self.has_moved |= count > 0;
            let space = std::mem::take(&mut self.space);
            space[..count].iter().for_each(|completion| self.completed(completion, events));
            self.space = space;
            if count < AT_ONCE {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn completed(&mut self, completion: &ibv_wc, events: &mut Vec<Event>) {
        let name = WorkRequestId::of(completion);
        let Some(Some(endpoint)) = self.endpoints.get_mut(name.endpoint) else { return };
        let told = endpoint.completed(name, completion, &mut self.load, &mut self.done);
        self.unsettled |= endpoint.has_ended();
        match told {
            CompletionOutcome::Nothing => {}
            CompletionOutcome::Arrived(immediate, bytes) => {
                let endpoint = EndpointId(name.endpoint as u32);
                events.push(Event::Arrived { endpoint, immediate, bytes });
            }
        }
    }

    /// Returns the time of the next check of the side connections.
    fn next_check(&self) -> Instant {
        self.checked + if self.has_moved { CHECK_MOVING } else { CHECK_IDLE }
    }

    /// Handles device events and side messages, reconnects broken side connections, and loses
    /// failed links.
    fn check(&mut self, now: Instant, events: &mut Vec<Event>) -> Result<(), TransportError> {
        (self.checked, self.unsettled, self.has_moved) = (now, true, false);
        self.port.look_after(now);
        let trouble = self.port.trouble(now, self.options.link_within);
        let (mut notes, mut ended) = (Vec::new(), Vec::new());
        self.await_ready(Duration::ZERO);
        for (number, endpoint) in self.endpoints.iter_mut().enumerate() {
            let Some(endpoint) = endpoint.as_mut().filter(|endpoint| endpoint.lost.is_none())
            else {
                continue;
            };
            if let Some(trouble) = &trouble {
                endpoint.fail(trouble.clone());
                continue;
            }
            if self.ready.contains(&(number as u64)) || !endpoint.side.is_flushed() {
                let heard =
                    endpoint.receive_messages(now, &mut self.words, &mut notes, &self.options);
                ended.extend(heard.err().map(|error| (number, error.to_string())));
                let at = EndpointId(number as u32);
                events.extend(notes.drain(..).map(|bytes| Event::Note { endpoint: at, bytes }));
            }
            if endpoint.look_after(now, &self.options) {
                endpoint.side.watch(&self.epoll, number as u64)?;
            }
        }
        for (number, reason) in ended {
            self.endpoints[number].iter_mut().for_each(|endpoint| endpoint.fail(reason.clone()));
        }
        self.lose_failed(events)
    }

    /// Loses the endpoints that have failed, after their earlier completions are handled.
    fn lose_failed(&mut self, events: &mut Vec<Event>) -> Result<(), TransportError> {
        if !self.endpoints.iter().flatten().any(Endpoint::is_failing) {
            return Ok(());
        }
        let until = now() + LAST_WORDS;
        loop {
            let may_have_more = self.drain(events)?;
            let mut failing = self.endpoints.iter().flatten().filter(|end| end.is_failing());
            // The queue is finite: it is always drained, even after the deadline.
            if !may_have_more && (failing.all(Endpoint::is_silent) || now() >= until) {
                break;
            }
            if !may_have_more {
                std::thread::sleep(FAREWELL_PAUSE);
            }
        }
        self.endpoints.iter_mut().flatten().for_each(Endpoint::lose_failed);
        self.refund();
        Ok(())
    }

    /// Subtracts the outstanding bytes of lost endpoints from the load.
    fn refund(&mut self) {
        for endpoint in self.endpoints.iter_mut().flatten().filter(|end| end.lost.is_some()) {
            self.load.done(std::mem::take(&mut endpoint.under_way));
        }
    }

    /// Waits for a side message or completion, at most `longest`. Returns whether a side connection
    /// is readable.
    fn await_ready(&mut self, longest: Duration) -> bool {
        self.ready.clear();
        let timeout = Timespec::try_from(longest).ok();
        let mut space = [MaybeUninit::uninit(); READY_MAX];
        // An interruption is a wake-up like any other.
        if let Ok((ready, _)) = epoll::wait(self.epoll.as_fd(), &mut space, timeout.as_ref()) {
            let numbers = ready.iter().map(|event| event.data.u64());
            self.ready.extend(numbers.filter(|number| *number != QUEUE));
        }
        !self.ready.is_empty()
    }

    fn report(&mut self, events: &mut Vec<Event>) {
        for (number, endpoint) in self.endpoints.iter_mut().enumerate() {
            let Some(endpoint) = endpoint else { continue };
            if let (Some(reason), false) = (&endpoint.lost, endpoint.reported) {
                endpoint.reported = true;
                // If the ended connection stayed in epoll, it would end every later sleep at once.
                endpoint.side.unwatch();
                let endpoint = EndpointId(number as u32);
                events.push(Event::Lost { endpoint, reason: reason.clone() });
            }
        }
    }

    fn has_news(&self) -> bool {
        let unreported = |e: &Endpoint| e.lost.is_some() && !e.reported;
        self.has_events() || self.endpoints.iter().flatten().any(unreported)
    }

    /// Returns whether events or completions for the next poll are known already.
    fn has_events(&self) -> bool {
        !self.done.is_empty() || !self.deferred.is_empty() || self.stashed > 0
    }

    /// Takes completions from the queue for the next poll. The caller ensures that none are stashed
    /// yet. Returns whether there are any.
    fn stash(&mut self) -> Result<bool, TransportError> {
        self.stashed = self.queue.poll(&mut self.space)?;
        Ok(self.stashed > 0)
    }

    /// Waits, for a bounded time, until the posted puts of one endpoint or of all are delivered.
    fn wait_for_shutdown(&mut self, only: Option<EndpointId>) {
        while !self.poll_shutdown(only) {
            std::thread::sleep(FAREWELL_PAUSE);
        }
    }

    /// Closes an endpoint.
    fn close(&mut self, mut endpoint: Endpoint) {
        if self.process == rustix::process::getpid() {
            endpoint.side.unwatch();
            endpoint.side.close();
        }
    }
}

/// Returns the memory of a slice; none if the slice is empty.
fn sge(slice: &Slice<'_, Arc<Memory>>) -> Option<Sge> {
    let Slice { registration, offset, bytes } = slice;
    if *bytes > 0 { registration.with.sge(*offset, *bytes) } else { None }
}

impl Lane for VerbsLane {
    fn attach(&mut self, connected: Connected) -> Result<EndpointId, TransportError> {
        let device = self.memory.registry().device();
        let link = connected.into_own(|link: &Link| link.device == device)?;
        let needed = completions(&self.port, &self.options);
        let number = self.endpoints.len();
        let id = EndpointId::next(number, 1 << 20)?;
        if needed > self.room {
            return Err(TransportError::Full {
                resource: "the completion queue of the RDMA device",
                room: self.room,
                needed,
                advice: "spread the ranks over more devices (FERROCCL_IB_HCA), or use \
                         FERROCCL_TRANSPORT=tcp",
            });
        }
        let mut endpoint = Endpoint::new(*link, number, &self.port, &self.queue, &self.options)?;
        endpoint.side.watch(&self.epoll, number as u64)?;
        self.room -= needed;
        self.unsettled = true;
        self.endpoints.push(Some(endpoint));
        Ok(id)
    }

    fn detach(&mut self, endpoint: EndpointId) {
        let number = endpoint.0 as usize;
        self.wait_for_shutdown(Some(endpoint));
        let Some(closed) = self.endpoints.get_mut(number).and_then(Option::take) else { return };
        self.load.done(closed.under_way);
        self.memory.forget(endpoint);
        self.close(closed);
        self.room += completions(&self.port, &self.options);
        self.deferred.retain(|event| event.endpoint() != Some(endpoint));
    }

    fn poll_shutdown(&mut self, only: Option<EndpointId>) -> bool {
        if self.process != rustix::process::getpid() {
            return true;
        }
        self.pump();
        let mut waiting = Vec::new();
        for (number, endpoint) in self.endpoints.iter_mut().enumerate() {
            let Some(endpoint) = endpoint else { continue };
            let is_meant = only.is_none_or(|only| only.0 as usize == number);
            endpoint.is_leaving |= is_meant;
            if endpoint.is_leaving {
                endpoint.flush();
                // An endpoint that is not connected yet has posted no writes.
                let undelivered = endpoint.is_live() && !endpoint.is_delivered();
                waiting.extend(undelivered.then_some(number));
            }
        }
        let only = only.map(|only| only.0 as usize);
        if self.farewell.is_over(now(), FAREWELL_WITHIN, &waiting, only) {
            return true;
        }
        let mut events = std::mem::take(&mut self.deferred);
        let went_on = self.drain(&mut events).and_then(|_| self.check(now(), &mut events));
        self.deferred = events;
        went_on.is_err()
    }

    fn abort(&mut self, endpoint: EndpointId) {
        if let Ok(peer) = self.endpoint(endpoint) {
            peer.lose("this side has aborted the link".to_owned());
        }
        self.detach(endpoint);
    }

    fn share(&mut self, endpoint: EndpointId, key: MrKey) -> Result<RemoteKey, TransportError> {
        let memory = self.memory.registry().find(key)?.with;
        let peer = self.endpoint(endpoint)?;
        if let Some(reason) = &peer.lost {
            let (peer, reason) = (peer.peer.clone(), reason.clone());
            return Err(TransportError::Lost { peer, reason });
        }
        let ((address, key), bytes) = (memory.remote(), memory.bytes() as u64);
        let shared = Shared { link: peer.id, dialled: peer.dialled, address, bytes, key };
        Ok(shared.encode())
    }

    fn import(&mut self, at: EndpointId, key: &RemoteKey) -> Result<RemoteMr, TransportError> {
        let shared = Shared::decode(key);
        let peer = self.endpoint(at)?;
        let shared = shared.filter(|shared| peer.is_theirs(shared)).ok_or_else(|| {
            let peer = peer.peer.clone();
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
        self.memory.refresh();
        let taken = take(work, |request| self.put(request));
        self.pump();
        taken
    }

    fn note(&mut self, endpoint: EndpointId, bytes: &[u8]) -> Result<(), TransportError> {
        check_note(bytes)?;
        let peer = self.endpoint(endpoint)?;
        if peer.lost.is_none() {
            peer.side.send(&SideMessage::Note(bytes.to_vec()));
        }
        Ok(())
    }

    fn set_traffic_class(&mut self, traffic_class: u8) {
        self.options.traffic_class = traffic_class;
    }

    fn set_striping(&mut self, endpoint: EndpointId, striping: &Striping) {
        if let Ok(peer) = self.endpoint(endpoint) {
            peer.apply(striping);
        }
    }

    fn flows(&self, endpoint: EndpointId) -> Vec<Flow> {
        let endpoint = self.endpoints.get(endpoint.0 as usize).and_then(Option::as_ref);
        endpoint.map_or_else(Vec::new, Endpoint::flows)
    }

    fn poll(&mut self, now: Instant, events: &mut Vec<Event>) -> Result<(), TransportError> {
        self.memory.refresh();
        if !self.deferred.is_empty() {
            events.append(&mut self.deferred);
        }
        self.drain(events)?;
        if self.unsettled || now >= self.next_check() {
            self.check(now, events)?;
        }
        self.pump();
        if self.unsettled {
            self.lose_failed(events)?;
        }
        if !self.done.is_empty() {
            events.extend(self.done.drain(..).map(|id| Event::Done { id }));
        }
        if self.unsettled {
            self.refund();
            self.report(events);
            let mut endpoints = self.endpoints.iter().flatten();
            self.unsettled = endpoints.any(|endpoint| !endpoint.is_live());
        }
        Ok(())
    }

    fn peek(&mut self) -> Option<bool> {
        let is_settled = !self.unsettled && self.active.is_empty() && !self.has_events();
        // The next poll reports errors of the queue.
        Some(!is_settled || self.stash().unwrap_or(true))
    }

    fn poll_timeout(&self) -> Option<Instant> {
        if self.has_news() {
            return Some(Instant::ZERO);
        }
        let watched = self.endpoints.iter().flatten().any(|endpoint| !endpoint.reported);
        watched.then(|| self.next_check())
    }

    fn is_drained(&self) -> bool {
        self.endpoints.iter().flatten().all(Endpoint::is_drained)
    }

    fn sleep(&mut self, longest: Duration) {
        if self.has_news() || self.queue.arm().is_err() {
            return;
        }
        // Completions from before the arming do not make the queue's descriptor readable.
        if !matches!(self.stash(), Ok(false)) {
            return;
        }
        // Puts of other lanes may complete, and free the budget, without an event on this lane.
        let longest = if self.load.has_refused() { longest.min(BUDGET_NAP) } else { longest };
        if self.await_ready(longest) {
            // The next poll then reads the side connections.
            self.checked = Instant::ZERO;
        }
    }
}

impl Drop for VerbsLane {
    fn drop(&mut self) {
        self.wait_for_shutdown(None);
        for endpoint in std::mem::take(&mut self.endpoints).into_iter().flatten() {
            self.close(endpoint);
        }
    }
}
