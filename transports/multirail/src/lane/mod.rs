//! A lane over several lanes, one for each device.

mod failover;
mod recovery;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ccl_core::queue_pairs::{Flow, Striping};
use ccl_core::time::Instant;
use ccl_core::transport::{
    Address, Connected, EndpointId, Event, Lane, LocalSlice, MemoryTable, MrKey, RailState,
    RemoteKey, RemoteMr, Slice, TransportError, WorkRequest, check_note, take,
};
use ccl_memory::Region;
use ccl_socket::ShutdownWait;

use crate::failed::FailedLane;
use crate::link::Link;
use crate::memory::{Keys, LocalKeys, Theirs};
use crate::note::{Note, RailFailure};
use crate::rail::{NUMBER, Put, PutPath, Rail, Stage};
use crate::rendezvous::Gathered;
use crate::shared::Shared;

/// Interval between checks for rails that come back.
const CHECK_EVERY: Duration = Duration::from_millis(5);
/// Longest sleep on one lane while others may have events.
const NAP: Duration = Duration::from_micros(250);
/// Pause between two checks of farewells.
const FAREWELL_PAUSE: Duration = Duration::from_micros(50);
/// Longest time that an ending link waits until other rails have taken the puts of a failed rail.
/// Each lane below also waits for its own peers, and limits that wait itself. If a rail fails
/// after all waits have ended, no other rail takes the failed rail's puts.
const FAREWELL: Duration = Duration::from_secs(2);
/// Largest number of memory regions that a peer may share at a time.
const IMPORTS_MAX: usize = 1 << 20;
/// Largest number of polls before a rail or a link ends. These polls take in the last arrivals.
const LOOKS_MAX: usize = 1024;

const LINK_SHIFT: u32 = 44;
const RAIL_SHIFT: u32 = NUMBER.count_ones();
/// Bit that marks the ids of the lane's own puts, which test whether a recovered rail works.
const PROOF: u64 = 1 << (LINK_SHIFT - 1);

/// Link and rail that an endpoint of a lane below belongs to.
type Route = Option<(usize, usize)>;

/// A lane of several devices.
#[derive(Debug)]
pub(crate) struct RailsLane {
    with: Arc<Shared>,
    /// Lanes below, one for each device.
    lanes: Vec<Box<dyn Lane>>,
    /// Per lane below: the routes of its endpoints, indexed by the endpoint's number.
    routes: Vec<Vec<Route>>,
    /// Per lane below: the puts that are to be posted.
    batches: Vec<Vec<WorkRequest>>,
    /// Per lane below: its error, if the lane has failed.
    broken: Vec<Option<TransportError>>,
    memory: MemoryTable<LocalKeys, Theirs>,
    /// Links by number; none for a detached link. Numbers are not used again.
    links: Vec<Option<Link>>,
    below: Vec<Event>,
    /// Peers' reports of failed rails, each with the number of its link.
    rail_failures: Vec<(usize, RailFailure)>,
    /// Links that `end_links` gives up and reports as lost, with the reasons.
    ends: Vec<(usize, String)>,
    /// True if a put may be waiting for a rail.
    waits: bool,
    /// Events to be reported at the next poll.
    news: Vec<Event>,
    checked: Instant,
    farewell: ShutdownWait,
    /// The process that made the lane; a forked child must not use the lane.
    process: u32,
    /// Index of the lane below with the last arrival.
    busy: usize,
}

impl RailsLane {
    pub(crate) fn new(with: &Arc<Shared>) -> Result<RailsLane, TransportError> {
        let (mut lanes, mut broken) = (Vec::<Box<dyn Lane>>::new(), Vec::new());
        for (device, name) in with.devices.iter().zip(&with.names) {
            let (lane, error) = match device.lane() {
                Ok(lane) => (lane, None),
                Err(error) if error.is_own_shortage() => return Err(error),
                // Links can be made without a device that has failed.
                Err(error) => {
                    tracing::info!(device = name, %error, "a device has failed, and is left out");
                    (Box::new(FailedLane(error.clone())) as _, Some(error))
                }
            };
            lanes.push(lane);
            broken.push(error);
        }
        let count = lanes.len();
        let Some(busy) = broken.iter().position(Option::is_none) else {
            let error = broken.into_iter().flatten().next();
            return Err(
                error.unwrap_or(TransportError::Internal { what: "rails without a device" })
            );
        };
        Ok(RailsLane {
            with: Arc::clone(with),
            lanes,
            routes: vec![Vec::new(); count],
            batches: vec![Vec::new(); count],
            broken,
            memory: MemoryTable::new(Arc::clone(&with.registry), with.caps.clone()),
            links: Vec::new(),
            below: Vec::new(),
            rail_failures: Vec::new(),
            ends: Vec::new(),
            waits: false,
            news: Vec::new(),
            checked: Instant::ZERO,
            farewell: ShutdownWait::default(),
            process: std::process::id(),
            busy,
        })
    }

    fn link(&mut self, EndpointId(number): EndpointId) -> Result<&mut Link, TransportError> {
        match self.links.get_mut(number as usize) {
            Some(Some(link)) => Ok(link),
            _ => Err(TransportError::UnknownEndpoint(EndpointId(number))),
        }
    }

    fn route(&mut self, lane: usize, EndpointId(number): EndpointId, to: Route) {
        let (routes, at) = (&mut self.routes[lane], number as usize);
        if routes.len() <= at {
            routes.resize(at + 1, None);
        }
        routes[at] = to;
    }

    fn routed(&self, lane: usize, EndpointId(number): EndpointId) -> Route {
        self.routes[lane].get(number as usize).copied().flatten()
    }

    /// Takes one put. Returns false if the link takes no more.
    fn put(&mut self, now: Instant, request: &WorkRequest) -> Result<bool, TransportError> {
        let WorkRequest::Put { endpoint, is_control, .. } = *request;
        let RailsLane { memory, links, batches, with, .. } = self;
        let resolved = memory.resolve(request)?;
        let Some(Some(link)) = links.get_mut(endpoint.0 as usize) else {
            return Err(TransportError::UnknownEndpoint(endpoint));
        };
        if link.lost {
            // A put to a lost peer is accepted and never completes.
            return Ok(true);
        }
        if !link.takes(is_control, with.caps.depth_max) {
            return Ok(false);
        }
        link.begin(is_control);
        let keys = |slice: &Slice<'_, LocalKeys>| Arc::clone(&slice.registration.with);
        let put = Put {
            request: *request,
            local: keys(&resolved.source),
            tail: resolved.tail.as_ref().map(keys),
            to: resolved.to.number,
            bytes: resolved.bytes,
        };
        if let Some(put) = dispatch(link, batches, now, put) {
            link.waiting.push_back(put);
            self.waits = true;
        }
        Ok(true)
    }

    /// Handles the events of all lanes below, and hands waiting puts to rails that have room.
    fn advance(&mut self, now: Instant) {
        self.memory.refresh();
        self.listen_to_all(now);
        while let Some((number, down)) = self.rail_failures.pop() {
            self.answer(number, &down, now);
        }
        self.end_links(now);
        self.retry(now);
        self.ring(now);
    }

    /// Hands the batches to the lanes below. Queues the puts that a lane does not take.
    fn ring(&mut self, now: Instant) {
        for lane in 0..self.lanes.len() {
            let batch = &mut self.batches[lane];
            if batch.is_empty() {
                continue;
            }
            let posted = self.lanes[lane].post(now, batch);
            if posted.as_ref().is_ok_and(|taken| *taken == batch.len()) {
                batch.clear();
                continue;
            }
            let mut batch = std::mem::take(batch);
            let bad = batch.first().map(named);
            for request in batch.drain(posted.as_ref().map_or(0, |taken| *taken)..).rev() {
                let (number, rail, _) = named(&request);
                if let Some(Some(link)) = self.links.get_mut(number) {
                    let untaken = link.rails[rail].untake();
                    untaken.into_iter().for_each(|put| link.waiting.push_front(put));
                    self.waits = true;
                }
            }
            batch.clear();
            self.batches[lane] = batch;
            if let (Err(error), Some((number, ..))) = (posted, bad) {
                self.lose(number, &error.to_string());
            }
        }
    }

    /// Tries the waiting puts again.
    fn retry(&mut self, now: Instant) {
        if !std::mem::take(&mut self.waits) {
            return;
        }
        for number in 0..self.links.len() {
            while let Some(Some(link)) = self.links.get_mut(number)
                && !link.lost
                && let Some(put) = link.waiting.pop_front()
            {
                let Some(put) = dispatch(link, &mut self.batches, now, put) else { continue };
                let may_go = link.may_take(&put);
                link.waiting.push_front(put);
                self.waits = true;
                if !may_go {
                    self.lose(number, "no remaining rail reaches the memory of both sides");
                }
                break;
            }
        }
    }

    /// Handles the events of all lanes below. Returns whether there were any.
    fn listen_to_all(&mut self, now: Instant) -> bool {
        (0..self.lanes.len()).fold(false, |any, lane| self.listen(lane, now) | any)
    }

    /// Handles the events of a lane below. Returns whether there were any.
    fn listen(&mut self, lane: usize, now: Instant) -> bool {
        if self.broken[lane].is_none() {
            match self.lanes[lane].poll(now, &mut self.below) {
                Ok(()) if self.below.is_empty() => return false,
                Ok(()) => {}
                Err(error) => self.broken[lane] = Some(error),
            }
        }
        let mut events = std::mem::take(&mut self.below);
        let any = !events.is_empty();
        for event in events.drain(..) {
            self.handle(lane, event, now);
        }
        self.below = events;
        if let Some(error) = &self.broken[lane] {
            let reason = error.to_string();
            let routes = self.routes[lane].clone();
            for (number, rail) in routes.into_iter().flatten() {
                self.fail(number, rail, reason.clone());
            }
        }
        any
    }

    fn handle(&mut self, lane: usize, event: Event, now: Instant) {
        match event {
            Event::Done { id } => {
                let (number, rail, count) = (link_of(id), rail_of(id), id & NUMBER);
                let Some(Some(link)) = self.links.get_mut(number) else { return };
                if id & PROOF != 0 {
                    if let Some(rail) = link.rails.get_mut(rail).filter(|r| r.is_epoch(count)) {
                        rail.proved();
                    }
                    return;
                }
                let done = link.rails.get_mut(rail).and_then(|rail| rail.done(count, now));
                self.news.extend(done.map(|request| link.done(request)));
            }
            Event::Arrived { endpoint, immediate, bytes } => {
                let Some((number, rail)) = self.routed(lane, endpoint) else { return };
                let Some(Some(link)) = self.links.get_mut(number) else { return };
                link.rails[rail].count_arrival(immediate);
                self.busy = lane;
                let endpoint = EndpointId(number as u32);
                self.news.push(Event::Arrived { endpoint, immediate, bytes });
            }
            Event::Note { endpoint, bytes } => {
                let Some((number, rail)) = self.routed(lane, endpoint) else { return };
                match Note::decode(&bytes) {
                    Some(note) => self.handle_note(number, rail, note, now),
                    None => self.lose(number, "it sent a note that cannot be decoded"),
                }
            }
            Event::Lost { endpoint, reason } => {
                if let Some((number, rail)) = self.routed(lane, endpoint) {
                    self.fail(number, rail, reason);
                }
            }
        }
    }

    /// Handles a note that the peer has sent over a rail.
    fn handle_note(&mut self, number: usize, over: usize, note: Note, now: Instant) {
        let Some(Some(link)) = self.links.get_mut(number) else { return };
        match note {
            Note::Fragment { number: fragment, is_last, bytes } => {
                let mut whole = Vec::new();
                if !link.notes.receive_fragment(fragment, is_last, bytes, &mut whole) {
                    return self
                        .lose(number, "it sent a note fragment that is too long or too far ahead");
                }
                let heard = link.notes.heard();
                let endpoint = EndpointId(number as u32);
                let notes = whole.into_iter().map(|bytes| Event::Note { endpoint, bytes });
                self.news.extend(notes);
                self.send_notes(number, &[heard]);
            }
            Note::Acknowledged { below } => link.acknowledge(below),
            Note::RailFailure(down) => self.rail_failures.push((number, down)),
            Note::ArrivalReport(fate) => self.settle(number, &fate, now),
            Note::Keys(keys) => {
                if link.knows() + keys.len() > IMPORTS_MAX {
                    return self.lose(number, "it shares more than 2^20 memory regions");
                }
                let rail = &link.rails[over];
                let (lane, endpoint) = (rail.lane, rail.endpoint());
                for (memory, key) in keys {
                    let lane = &mut self.lanes[lane];
                    let mr = endpoint.and_then(|at| lane.import(at, &RemoteKey(key)).ok());
                    link.import(memory, over, mr);
                }
            }
            Note::Ready => {
                // The peer may have missed keys that this side sent before the peer reconnected.
                self.send_keys(number, over, Note::KeysSent);
                self.prove(number, over, now);
            }
            Note::KeysSent => link.rails[over].informed(),
            Note::Address { device, address } => self.learn(number, device, address, now),
            Note::Leaving => link.peer_leaves = true,
        }
    }

    /// Learns the address of a device of the peer. Rails that lacked this address are dialled
    /// soon.
    fn learn(&mut self, number: usize, device: u8, address: Address, now: Instant) {
        let Some(Some(link)) = self.links.get_mut(number) else { return };
        let Some(dial) = &mut link.dial else { return };
        let unknown = |at: &usize| dial.to(*at).is_none();
        let unknown: Vec<usize> = (0..link.rails.len()).filter(unknown).collect();
        if !dial.learn(device.into(), address) {
            return self.lose(number, "it sent the address of a device that it does not have");
        }
        for at in unknown.into_iter().filter(|at| dial.to(*at).is_some()) {
            link.rails[at].stage = Stage::Down { again: Some(now) };
        }
    }

    /// Sends notes to the peer over every rail, because any rail may have failed unnoticed. A
    /// repeated note has no effect.
    fn send_notes(&mut self, number: usize, notes: &[Note]) {
        let RailsLane { links, lanes, .. } = self;
        let Some(Some(link)) = links.get(number) else { return };
        let notes: Vec<Vec<u8>> = notes.iter().map(Note::encode).collect();
        for rail in &link.rails {
            let Some(endpoint) = rail.endpoint() else { continue };
            for note in &notes {
                // If the note cannot be sent, the next poll notices the failure.
                let _ = lanes[rail.lane].note(endpoint, note);
            }
        }
    }

    /// Marks the link `only` as leaving, or all links if `only` is none, and announces to the peers
    /// that this side leaves.
    fn begin_to_leave(&mut self, only: Option<usize>) {
        for number in 0..self.links.len() {
            let Some(link) = &mut self.links[number] else { continue };
            if only.is_none_or(|only| only == number) && !link.is_leaving {
                link.is_leaving = true;
                self.send_notes(number, &[Note::Leaving]);
            }
        }
    }

    /// Waits for the farewells of all rails together; each lane limits its own wait.
    fn wait_for_shutdown(&mut self, only: Option<EndpointId>) {
        while !self.poll_shutdown(only) {
            std::thread::sleep(FAREWELL_PAUSE);
        }
    }

    /// Makes the lanes below forget memory that no put names any more.
    fn forget_idle(&mut self, number: usize) {
        let RailsLane { links, lanes, .. } = self;
        let Some(Some(link)) = links.get_mut(number) else { return };
        for import in link.take_forgotten() {
            for (rail, mr) in link.rails.iter().zip(import) {
                if let (Some(endpoint), Some(mr)) = (rail.endpoint(), mr) {
                    lanes[rail.lane].forget(endpoint, mr);
                }
            }
        }
    }
}

impl Drop for RailsLane {
    fn drop(&mut self) {
        self.wait_for_shutdown(None);
    }
}

/// Hands a put to a rail of its link; returns the put if no rail takes it now.
fn dispatch(
    link: &mut Link,
    batches: &mut [Vec<WorkRequest>],
    now: Instant,
    put: Put,
) -> Option<Put> {
    let WorkRequest::Put { endpoint, local, tail, is_control, remote_offset, immediate, .. } =
        put.request;
    let number = endpoint.0 as usize;
    let Some(put_path) = link.put_path(&put, now) else { return Some(put) };
    let PutPath { rail: at, endpoint, remote, .. } = put_path;
    let rail = &mut link.rails[at];
    let tail = tail.zip(put_path.tail).map(|(tail, key)| LocalSlice { key, ..tail });
    let local = LocalSlice { key: put_path.local, ..local };
    let id = id(number, at, rail.take(put, now));
    batches[rail.lane].push(WorkRequest::Put {
        endpoint,
        local,
        tail,
        is_control,
        remote,
        remote_offset,
        immediate,
        id,
    });
    None
}

/// Returns the link, the rail and the put's number, from the id that the put has in a lane below.
fn named(WorkRequest::Put { id, .. }: &WorkRequest) -> (usize, usize, u64) {
    (link_of(*id), rail_of(*id), id & NUMBER)
}

fn id(link: usize, rail: usize, put: u64) -> u64 {
    (link as u64) << LINK_SHIFT | (rail as u64) << RAIL_SHIFT | put
}

fn link_of(id: u64) -> usize {
    (id >> LINK_SHIFT) as usize
}

fn rail_of(id: u64) -> usize {
    (id >> RAIL_SHIFT) as usize & 0x7f
}

impl Lane for RailsLane {
    fn attach(&mut self, connected: Connected) -> Result<EndpointId, TransportError> {
        let is_own = |gathered: &Gathered| Arc::ptr_eq(&gathered.with, &self.with);
        let gathered = connected.into_own(is_own)?;
        let Gathered { id, rails: parts, from, .. } = *gathered;
        let number = self.links.len();
        let endpoint = EndpointId::next(number, 1 << (64 - LINK_SHIFT))?;
        let (mut rails, mut failed) = (Vec::new(), None);
        for (at, part) in parts.into_iter().enumerate() {
            let lane = at % self.lanes.len();
            let load = &self.with.loads[lane];
            let mut rail = Rail::new(lane, self.with.devices[lane].caps(), load);
            let Some(part) = part else {
                rails.push(rail);
                continue;
            };
            match self.lanes[lane].attach(part) {
                Ok(endpoint) => {
                    rail.stage = Stage::Up(endpoint);
                    self.route(lane, endpoint, Some((number, at)));
                }
                // Other rails may suffice. This rail is tried again, like a rail that has failed.
                Err(error) => {
                    (rail.failures, rail.failure) = (1, Some(error.to_string()));
                    failed = Some(error);
                }
            }
            rails.push(rail);
        }
        if let (Some(error), false) = (failed, rails.iter().any(|rail| rail.endpoint().is_some())) {
            return Err(error);
        }
        let turn = self.with.links.fetch_add(1, Ordering::Relaxed);
        let link = Link::new(id, rails, from, turn);
        let addresses = link.addresses();
        self.links.push(Some(link));
        self.send_notes(number, &addresses);
        Ok(endpoint)
    }

    fn detach(&mut self, endpoint: EndpointId) {
        self.wait_for_shutdown(Some(endpoint));
        let link = self.links.get_mut(endpoint.0 as usize).and_then(Option::take);
        let Some(link) = link else { return };
        self.memory.forget(endpoint);
        for (lane, at) in link.rails.iter().map(|rail| (rail.lane, rail.endpoint())) {
            if let Some(at) = at {
                self.lanes[lane].detach(at);
                self.route(lane, at, None);
            }
        }
        self.news.retain(|event| event.endpoint() != Some(endpoint));
    }

    fn poll_shutdown(&mut self, only: Option<EndpointId>) -> bool {
        if self.process != std::process::id() {
            return true;
        }
        let now = ccl_clock::now();
        let only = only.map(|only| only.0 as usize);
        self.begin_to_leave(only);
        self.advance(now);
        let RailsLane { links, lanes, .. } = self;
        let mut is_over = true;
        if let Some(number) = only {
            let Some(Some(link)) = links.get(number) else { return true };
            for rail in &link.rails {
                if let Some(at) = rail.endpoint() {
                    is_over &= lanes[rail.lane].poll_shutdown(Some(at));
                }
            }
        } else {
            lanes.iter_mut().for_each(|lane| is_over &= lane.poll_shutdown(None));
        }
        // A rail may have failed meanwhile. Its puts go over the other rails at the next call.
        self.listen_to_all(now);
        let waits = |link: &Link| link.is_leaving && link.has_untaken();
        let numbers = 0..self.links.len();
        let waiting: Vec<usize> =
            numbers.filter(|number| self.links[*number].as_ref().is_some_and(waits)).collect();
        self.farewell.is_over(now, FAREWELL, &waiting, only) && is_over
    }

    fn abort(&mut self, endpoint: EndpointId) {
        self.lose(endpoint.0 as usize, "this side has aborted the link");
        self.detach(endpoint);
    }

    fn share(&mut self, endpoint: EndpointId, key: MrKey) -> Result<RemoteKey, TransportError> {
        let registration = self.with.registry.find(key)?;
        self.link(endpoint)?;
        let RailsLane { links, lanes, with, .. } = self;
        let Some(Some(link)) = links.get_mut(endpoint.0 as usize) else {
            return Err(TransportError::UnknownEndpoint(endpoint));
        };
        let is_registered = |key| with.registry.find(key).is_ok();
        let number = link.share(key, is_registered);
        let bytes = registration.region.bytes() as u64;
        let mut keys = Keys { memory: Theirs { number, bytes }, rails: Vec::new() };
        let mut failed = None;
        for rail in &link.rails {
            let own = registration.with[rail.lane];
            let shared = rail.endpoint().zip(own).map(|(at, own)| lanes[rail.lane].share(at, own));
            keys.rails.push(match shared {
                Some(Ok(key)) => Some(key),
                Some(Err(error)) => {
                    failed = Some(error);
                    None
                }
                None => None,
            });
        }
        if keys.rails.iter().all(Option::is_none) {
            return Err(failed.unwrap_or_else(|| TransportError::Lost {
                peer: "a multi-rail peer".to_owned(),
                reason: format!("no rail to it can reach this memory: {}", link.reasons()),
            }));
        }
        Ok(keys.encode())
    }

    fn import(&mut self, at: EndpointId, key: &RemoteKey) -> Result<RemoteMr, TransportError> {
        let keys = Keys::decode(key).ok_or(TransportError::NoKey { bytes: key.0.len() })?;
        self.link(at)?;
        let RailsLane { links, lanes, memory, .. } = self;
        let Some(Some(link)) = links.get_mut(at.0 as usize) else {
            return Err(TransportError::UnknownEndpoint(at));
        };
        let (mut failed, mut any) = (None, false);
        for (rail, key) in keys.rails.iter().enumerate().take(link.rails.len()) {
            let (Some(key), lane) = (key, link.rails[rail].lane) else { continue };
            let Some(endpoint) = link.rails[rail].endpoint() else { continue };
            match lanes[lane].import(endpoint, key) {
                Ok(mr) => {
                    link.import(keys.memory.number, rail, Some(mr));
                    any = true;
                }
                Err(error) => failed = Some(error),
            }
        }
        if let (Some(error), false) = (failed, any) {
            return Err(error);
        }
        link.forgotten.retain(|number| *number != keys.memory.number);
        let known = memory.known(at, |known| *known == keys.memory);
        Ok(known.unwrap_or_else(|| memory.import(at, keys.memory)))
    }

    fn forget(&mut self, at: EndpointId, mr: RemoteMr) {
        let Ok(number) = self.memory.remote(at, mr).map(|memory| memory.number) else { return };
        self.memory.release_import(at, mr);
        // Puts that are under way may have to be repeated, so the lanes below keep the memory until
        // these puts are done.
        if let Some(Some(link)) = self.links.get_mut(at.0 as usize) {
            link.forgotten.push(number);
        }
        self.forget_idle(at.0 as usize);
    }

    fn map(&mut self, _at: EndpointId, _key: &RemoteKey) -> Result<Region, TransportError> {
        Err(TransportError::NotMapped { peer: "a multi-rail peer".to_owned() })
    }

    fn post(&mut self, now: Instant, work: &[WorkRequest]) -> Result<usize, TransportError> {
        self.memory.refresh();
        let taken = take(work, |request| self.put(now, request));
        self.ring(now);
        taken
    }

    fn note(&mut self, endpoint: EndpointId, bytes: &[u8]) -> Result<(), TransportError> {
        check_note(bytes)?;
        let link = self.link(endpoint)?;
        if !link.lost {
            let notes = link.notes.enqueue(bytes);
            self.send_notes(endpoint.0 as usize, &notes);
        }
        Ok(())
    }

    fn set_traffic_class(&mut self, traffic_class: u8) {
        self.lanes.iter_mut().for_each(|lane| lane.set_traffic_class(traffic_class));
    }

    fn set_striping(&mut self, endpoint: EndpointId, striping: &Striping) {
        let RailsLane { links, lanes, .. } = self;
        let Some(Some(link)) = links.get_mut(endpoint.0 as usize) else { return };
        link.striping = Some(*striping);
        for rail in &link.rails {
            if let Some(at) = rail.endpoint() {
                lanes[rail.lane].set_striping(at, striping);
            }
        }
    }

    fn flows(&self, endpoint: EndpointId) -> Vec<Flow> {
        let Some(Some(link)) = self.links.get(endpoint.0 as usize) else { return Vec::new() };
        let flows = |rail: &Rail| rail.endpoint().map(|at| self.lanes[rail.lane].flows(at));
        link.rails.iter().filter_map(flows).flatten().collect()
    }

    fn rails(&self, endpoint: EndpointId) -> Vec<RailState> {
        let Some(Some(link)) = self.links.get(endpoint.0 as usize) else { return Vec::new() };
        link.rails.iter().map(|rail| rail.state(&self.with.names[rail.lane])).collect()
    }

    fn poll(&mut self, now: Instant, events: &mut Vec<Event>) -> Result<(), TransportError> {
        self.advance(now);
        if now.since(self.checked) >= CHECK_EVERY {
            self.check(now);
        }
        if !self.news.is_empty() {
            events.append(&mut self.news);
        }
        match self.broken.iter().all(Option::is_some) {
            true => self.broken[0].clone().map_or(Ok(()), Err),
            false => Ok(()),
        }
    }

    fn peek(&mut self) -> Option<bool> {
        let known = self.waits || !self.news.is_empty();
        self.lanes.iter_mut().try_fold(known, |any, lane| Some(any || lane.peek()?))
    }

    fn poll_timeout(&self) -> Option<Instant> {
        if !self.news.is_empty() {
            return Some(Instant::ZERO);
        }
        let is_down = |rail: &Rail| !matches!(rail.stage, Stage::Up(_));
        let mut links = self.links.iter().flatten().filter(|link| !link.lost);
        let check = links.any(|link| link.rails.iter().any(is_down));
        let check = check.then(|| self.checked + CHECK_EVERY);
        self.lanes.iter().filter_map(|lane| lane.poll_timeout()).chain(check).min()
    }

    fn is_drained(&self) -> bool {
        !self.links.iter().flatten().any(Link::has_untaken)
            && self.lanes.iter().all(|lane| lane.is_drained())
    }

    fn is_acknowledged(&self) -> bool {
        let mut links = self.links.iter().flatten().filter(|link| !link.lost);
        links.all(Link::is_acknowledged) && self.lanes.iter().all(|lane| lane.is_acknowledged())
    }

    fn flush_acknowledgements(&mut self, now: Instant) {
        self.lanes.iter_mut().for_each(|lane| lane.flush_acknowledgements(now));
    }

    fn sleep(&mut self, longest: Duration) {
        if !self.news.is_empty() {
            return;
        }
        let longest = if self.lanes.len() > 1 { longest.min(NAP) } else { longest };
        self.lanes[self.busy].sleep(longest);
    }
}
