//! State of a world, and its single queue of future events.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::ops::Range;

use ccl_core::time::Instant;
use ccl_core::transport::{EndpointId, Event, Secret};
use ccl_memory::Region;

use crate::conditions::Conditions;
use crate::flight::Flight;
use crate::late::Late;
use ccl_core::random::Random;

/// Counters of a world.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Puts that lanes have sent; a put that is transmitted several times counts once.
    pub puts: u64,
    /// Lost transmissions. Each was repeated, unless the limit of retransmissions was reached.
    pub lost: u64,
    /// Duplicates that were dropped.
    pub duplicates: u64,
    /// Puts that arrived after a put that was posted later on the same endpoint.
    pub overtakings: u64,
    /// Puts that were dropped, because the connection had ended, the receiver had crashed, the
    /// sender had crashed before the put departed, or the put's memory was gone.
    pub void: u64,
    /// Puts whose local bytes changed before the put was done, which the contract forbids: a
    /// retransmission after a lost acknowledgement would have sent other bytes.
    pub changed: u64,
}

#[derive(Debug, Default)]
pub(crate) struct RankState {
    pub(crate) crashed: Option<Instant>,
    /// Number of further posts and events after which the rank crashes.
    pub(crate) crash_after: Option<u64>,
    /// True if the rank had an event since the last `take_dirty`.
    pub(crate) dirty: bool,
    /// Bytes under way towards the rank.
    pub(crate) towards_bytes: usize,
    pub(crate) towards_bytes_max: usize,
}

#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) rank: u32,
    pub(crate) region: Region,
}

/// Memory that one side of a connection has shared with the other side.
#[derive(Debug)]
pub(crate) struct Share {
    pub(crate) link: usize,
    /// Side that owns the memory.
    pub(crate) side: usize,
    pub(crate) key: u64,
    pub(crate) bytes: usize,
}

#[derive(Debug)]
pub(crate) struct Side {
    pub(crate) rank: u32,
    /// Lane and endpoint that the connection is attached to.
    pub(crate) lane: Option<(usize, EndpointId)>,
    /// Puts of data that were taken and are not done yet.
    pub(crate) outstanding: usize,
    /// Time at which the wire is free for the next put from this side.
    pub(crate) busy_until: Instant,
    /// Arrival time of the latest put from this side.
    pub(crate) last_arrival: Instant,
    /// Arrival time of the latest note to the other side.
    pub(crate) last_note: Instant,
    /// Highest flight number among the puts from this side that have arrived.
    pub(crate) last_number: u64,
}

#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) sides: [Side; 2],
    pub(crate) open: bool,
}

#[derive(Debug)]
pub(crate) struct LaneState {
    pub(crate) rank: u32,
    pub(crate) events: VecDeque<Event>,
    /// Connection and side of each endpoint; `None` once the endpoint is detached.
    pub(crate) endpoints: Vec<Option<(usize, usize)>>,
}

#[derive(Debug)]
pub(crate) struct Request {
    /// Number of a peer's connection attempt, the peer's rank and its secret; `None` if a stranger
    /// sent the request.
    pub(crate) from: Option<(u64, u32, Secret)>,
    pub(crate) hello: Vec<u8>,
}

#[derive(Debug)]
pub(crate) struct ListenerState {
    pub(crate) rank: u32,
    pub(crate) inbox: VecDeque<Request>,
}

#[derive(Clone, Debug)]
pub(crate) enum Attempt {
    Pending,
    Accepted { link: usize },
    Refused { reason: &'static str },
}

/// Future event.
#[derive(Debug)]
pub(crate) enum SimEvent {
    /// Some of a put's bytes are written before the others.
    Tear { flight: u64, part: Range<usize> },
    /// The bytes of a put are written.
    Deliver(u64),
    /// The receiver learns of a put.
    Arrive { flight: Box<Flight> },
    /// The sender learns that a put is done.
    Acknowledge { flight: Box<Flight>, digest: u64 },
    /// A duplicate arrives.
    Duplicate(u64),
    /// A connection breaks.
    Fail { link: usize, reason: &'static str },
    /// A side learns that the other side has closed the connection.
    Closed { link: usize, side: usize },
    /// A side receives a note.
    Note { link: usize, side: usize, bytes: Vec<u8> },
    /// A rank dies.
    Crash { rank: u32 },
    /// A peer requests a connection.
    Ask { listener: u64, request: Box<Request> },
    /// A peer receives the answer to its request.
    Answer { attempt: u64, answer: Attempt },
}

#[derive(Debug)]
struct Entry {
    at: Instant,
    number: u64,
    happening: SimEvent,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Entry) -> bool {
        (self.at, self.number) == (other.at, other.number)
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Entry) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Entry) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

/// State of a world.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) conditions: Conditions,
    pub(crate) random: Random,
    pub(crate) now: Instant,
    number: u64,
    queue: BinaryHeap<Reverse<Entry>>,
    pub(crate) ranks: Vec<RankState>,
    pub(crate) memory: BTreeMap<u64, Memory>,
    pub(crate) shares: Vec<Share>,
    pub(crate) links: Vec<Connection>,
    pub(crate) lanes: Vec<LaneState>,
    pub(crate) flights: BTreeMap<u64, Flight>,
    pub(crate) listeners: BTreeMap<u64, ListenerState>,
    pub(crate) attempts: BTreeMap<u64, Attempt>,
    pub(crate) stats: Stats,
    /// Buffer for bytes that are copied from one region to another.
    pub(crate) buffer: Vec<u8>,
    pub(crate) late: Late,
}

impl State {
    pub(crate) fn new(ranks: u32, conditions: Conditions, seed: u64) -> State {
        State {
            conditions,
            random: Random::new(seed),
            now: Instant::ZERO,
            number: 0,
            queue: BinaryHeap::new(),
            ranks: (0..ranks).map(|_| RankState::default()).collect(),
            memory: BTreeMap::new(),
            shares: Vec::new(),
            links: Vec::new(),
            lanes: Vec::new(),
            flights: BTreeMap::new(),
            listeners: BTreeMap::new(),
            attempts: BTreeMap::new(),
            stats: Stats::default(),
            buffer: Vec::new(),
            late: Late::default(),
        }
    }

    /// Returns a number that is unique in this world.
    pub(crate) fn fresh(&mut self) -> u64 {
        self.number += 1;
        self.number
    }

    pub(crate) fn schedule(&mut self, at: Instant, happening: SimEvent) {
        let number = self.fresh();
        self.queue.push(Reverse(Entry { at: at.max(self.now), number, happening }));
    }

    pub(crate) fn next_event(&self) -> Option<Instant> {
        self.queue.peek().map(|Reverse(entry)| entry.at)
    }

    /// Executes all events until `to`.
    pub(crate) fn advance(&mut self, to: Instant) {
        while self.next_event().is_some_and(|at| at <= to) {
            if let Some(Reverse(entry)) = self.queue.pop() {
                self.now = self.now.max(entry.at);
                self.happen(entry.happening);
            }
        }
        self.now = self.now.max(to);
    }

    fn happen(&mut self, happening: SimEvent) {
        match happening {
            SimEvent::Tear { flight, part } => self.tear(flight, part),
            SimEvent::Deliver(flight) => self.deliver(flight),
            SimEvent::Arrive { flight } => self.arrive(&flight),
            SimEvent::Acknowledge { flight, digest } => self.acknowledge(&flight, digest),
            SimEvent::Duplicate(flight) => {
                // Delivery of the put has removed the flight of this number, so the duplicate finds
                // no flight to deliver again.
                debug_assert!(!self.flights.contains_key(&flight));
                self.stats.duplicates += 1;
            }
            SimEvent::Fail { link, reason } => self.fail(link, reason),
            SimEvent::Closed { link, side } => self.closed(link, side),
            SimEvent::Note { link, side, bytes } => self.noted(link, side, bytes),
            SimEvent::Crash { rank } => self.crash(rank),
            SimEvent::Ask { listener, request } => self.ask(listener, *request),
            SimEvent::Answer { attempt, answer } => {
                if let Some(state) = self.attempts.get_mut(&attempt) {
                    *state = answer;
                }
            }
        }
    }

    pub(crate) fn has_crashed(&self, rank: u32) -> bool {
        self.ranks.get(rank as usize).is_none_or(|rank| rank.crashed.is_some())
    }

    /// Marks a rank as having an event to look at, and counts the event.
    pub(crate) fn touch(&mut self, rank: u32) {
        if let Some(state) = self.ranks.get_mut(rank as usize) {
            state.dirty = true;
        }
        self.count(rank);
    }

    /// Counts a post or an event of a rank. The rank crashes when its `crash_after` reaches 0.
    pub(crate) fn count(&mut self, rank: u32) {
        let Some(state) = self.ranks.get_mut(rank as usize) else { return };
        if let Some(left) = &mut state.crash_after {
            *left = left.saturating_sub(1);
            if *left == 0 {
                self.crash(rank);
            }
        }
    }

    /// Crashes a rank: its lanes go silent, and no peer is told at once. The rank's connections
    /// fail after the keepalive time, unless the condition `silent_crashes` is set.
    pub(crate) fn crash(&mut self, rank: u32) {
        let now = self.now;
        let Some(state) = self.ranks.get_mut(rank as usize) else { return };
        if state.crashed.is_some() {
            return;
        }
        state.crashed = Some(now);
        state.crash_after = None;
        self.listeners.retain(|_, listener| listener.rank != rank);
        if self.conditions.silent_crashes {
            return;
        }
        let links: Vec<usize> = (0..self.links.len())
            .filter(|&link| self.links[link].sides.iter().any(|side| side.rank == rank))
            .collect();
        for link in links {
            let late = self.jitter();
            let at = now + self.conditions.keepalive.saturating_add(late);
            self.schedule(at, SimEvent::Fail { link, reason: "it no longer answers" });
        }
    }

    /// Breaks a connection and tells the sides that are attached.
    pub(crate) fn fail(&mut self, link: usize, reason: &str) {
        let Some(connection) = self.links.get_mut(link) else { return };
        if !std::mem::replace(&mut connection.open, false) {
            return;
        }
        for side in 0..2 {
            let Some((lane, endpoint)) = self.links[link].sides[side].lane else { continue };
            let reason = reason.to_owned();
            self.tell(lane, Event::Lost { endpoint, reason });
        }
    }

    /// Breaks the connections between two ranks.
    pub(crate) fn disconnect(&mut self, first: u32, other: u32) {
        let at = self.now + self.latency(first, other);
        for link in 0..self.links.len() {
            let Connection { sides, open } = &mut self.links[link];
            let ranks = sides.each_ref().map(|side| side.rank);
            let Some(side) = [[first, other], [other, first]].iter().position(|of| *of == ranks)
            else {
                continue;
            };
            if std::mem::replace(open, false) {
                self.closed(link, side);
                self.schedule(at, SimEvent::Closed { link, side: 1 - side });
            }
        }
    }

    /// Appends an event for a lane's owner.
    pub(crate) fn tell(&mut self, lane: usize, event: Event) {
        let Some(state) = self.lanes.get_mut(lane) else { return };
        let rank = state.rank;
        state.events.push_back(event);
        self.touch(rank);
    }
}
