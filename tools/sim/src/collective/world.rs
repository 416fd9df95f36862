//! World of a run: all links of the simulated ranks, and the time.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::sync::Arc;

use ccl_core::cost::engine::{self, Worker};
use ccl_core::execution::{Link, Message as Sent, Ports, Task};
use ccl_core::lower::Program;
use ccl_core::queue_pairs::Order;
use ccl_core::types::Rank;

use super::ends::Ends;
use super::folding::Folding;
use super::{Outcome, RunParams};
use crate::SimError;
use crate::flows::{Ended, Flows, rounded_s};
use crate::network::{Network, Path};
use crate::routing::{Key, Moment, Router, Scheme};
use crate::shares::Ordered;

/// An event at a point in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A message arrives.
    Arrive(u32),
    /// A sender gets credits. The values are the index of the link in `pipes`, the sender, and the
    /// number to pass to [`Ends::credit`].
    Credit(u32, Rank, u64),
    /// A message leaves: the fold that produced it is done.
    Leave(u32),
    /// A rank begins.
    Begin(Rank),
}

/// A message in flight.
#[derive(Clone, Copy, Debug, Default)]
struct Message {
    pipe: u32,
    from: Rank,
    to: Rank,
    channel: u32,
    number: u64,
    bytes: u32,
    /// Number of flows of the message that have not ended.
    parts: u32,
    /// Latest arrival among the message's flows that have ended, in seconds.
    at_s: f64,
}

/// Send queue of a rank, for all its NICs.
#[derive(Debug, Default)]
struct Nic {
    waiting: VecDeque<u32>,
    under_way_bytes: usize,
    messages: u32,
}

/// Times when a rank can send again inside its host, receive again there, and fold again.
#[derive(Clone, Copy, Debug, Default)]
struct Inside {
    out_s: f64,
    in_s: f64,
    folds_s: f64,
}

#[derive(Debug)]
pub(super) struct World<'a, E> {
    network: &'a Network,
    router: &'a mut Router,
    folding: Folding,
    params: &'a RunParams,
    ranks_per_host: u32,
    /// Per simulated rank: index of its first entry in `distances`. One more entry marks the end.
    first: Vec<u32>,
    /// Per simulated rank: distances to the ranks that it sends to, in ascending order.
    distances: Vec<u32>,
    /// Both ends of each link: for each entry of `distances`, one `E` per channel.
    pipes: Vec<E>,
    flows: Flows,
    events: BinaryHeap<Reverse<(Ordered, u64, Event)>>,
    sequence: u64,
    now_s: f64,
    messages: Vec<Message>,
    free: Vec<u32>,
    nics: Vec<Nic>,
    inside: Vec<Inside>,
    woken: VecDeque<Rank>,
    /// Per rank: links that became readable (true) or writable (false) since the rank last looked.
    heard: Vec<Vec<(Link, bool)>>,
    is_woken: Vec<bool>,
    has_begun: Vec<bool>,
    /// Per link and queue pair: number of flows in flight, and the time when the last byte left.
    /// Used only by `Scheme::Flowlet`, which detects pauses.
    pairs: BTreeMap<(u32, u32), (u32, f64)>,
    in_flight: Vec<u64>,
    path: Path,
    ended: Vec<Ended>,
    error: Option<SimError>,
    outcome: Outcome,
}

/// Returns the index of a number that is in an ascending list. Peers are mostly evenly spaced, so
/// the search begins near an interpolated index. For thousands of peers this saves half of the time
/// per message.
fn position(list: &[u32], wanted: u32) -> usize {
    let (Some(&first), Some(&last)) = (list.first(), list.last()) else { return 0 };
    let span = u64::from(last - first).max(1);
    let guess = u64::from(wanted.saturating_sub(first)) * (list.len() as u64 - 1) / span;
    let guess = (guess as usize).min(list.len() - 1);
    let (low, high) = (guess.saturating_sub(8), (guess + 8).min(list.len()));
    if list[low] <= wanted && wanted <= list[high - 1] {
        return low + list[low..high].binary_search(&wanted).unwrap_or(0);
    }
    list.binary_search(&wanted).unwrap_or(0)
}

impl<'a, E: Ends> engine::World for World<'a, E> {
    type Error = SimError;
    type Ports<'w>
        = RankPorts<'w, 'a, E>
    where
        Self: 'w;

    fn next(&mut self) -> Result<Option<Rank>, SimError> {
        loop {
            if let Some(rank) = self.woken.pop_front() {
                self.is_woken[rank as usize] = false;
                return Ok(Some(rank));
            }
            if !self.go_on()? {
                return Ok(None);
            }
        }
    }

    fn notify<M: Worker>(&mut self, rank: Rank, worker: &mut M) {
        let heard = self.heard[rank as usize].drain(..);
        heard.for_each(|(link, receives)| worker.link_ready(link, receives));
    }

    fn ports(&mut self, rank: Rank) -> RankPorts<'_, 'a, E> {
        RankPorts { world: self, rank }
    }

    /// Returns true: a rank can continue at once, because reductions delay only its sends.
    fn moved(&mut self, _: Rank) -> bool {
        true
    }

    fn done(&mut self, rank: Rank) {
        // The last fold of the rank may still be running.
        let folds_s = self.inside[rank as usize].folds_s;
        self.outcome.ends_s[rank as usize] = self.now_s.max(folds_s);
    }
}

impl<'a, E: Ends> World<'a, E> {
    pub(super) fn new(
        network: &'a Network,
        router: &'a mut Router,
        folding: Folding,
        params: &'a RunParams,
        programs: &[Arc<Program>],
        slots: u32,
    ) -> World<'a, E> {
        let ranks = programs.len();
        let (mut first, mut distances) = (vec![0], Vec::new());
        for program in programs {
            let from = distances.len();
            let peers = program.send_peers.iter();
            distances.extend(peers.map(|peer| folding.distance(program.rank, *peer)));
            distances[from..].sort_unstable();
            first.push(distances.len() as u32);
        }
        let channels = params.links.channels.max(1) as usize;
        let pipes = (0..distances.len() * channels).map(|_| E::new(slots)).collect();
        let peers = programs.iter().map(|program| program.recv_peers.len()).max().unwrap_or(0);
        let credits = peers * channels * slots as usize * params.links.slot_bytes;
        let mut world = World {
            network,
            router,
            folding,
            params,
            ranks_per_host: network.plan().ranks_per_host,
            first,
            distances,
            pipes,
            flows: Flows::new(network, params.settle_s),
            events: BinaryHeap::new(),
            sequence: 0,
            now_s: 0.0,
            messages: Vec::new(),
            free: Vec::new(),
            nics: (0..ranks).map(|_| Nic::default()).collect(),
            inside: vec![Inside::default(); ranks],
            woken: VecDeque::new(),
            heard: vec![Vec::new(); ranks],
            is_woken: vec![false; ranks],
            has_begun: vec![false; ranks],
            pairs: BTreeMap::new(),
            in_flight: vec![0; ranks],
            path: Path::default(),
            ended: Vec::new(),
            error: None,
            outcome: Outcome {
                ends_s: vec![0.0; ranks],
                credit_bytes_max: credits as u64,
                simulated: ranks as u32,
                ..Outcome::default()
            },
        };
        for rank in 0..ranks as Rank {
            let late = params.late.iter().find(|(late, _)| *late == rank);
            world.after(late.map_or(0.0, |(_, by_s)| *by_s), Event::Begin(rank));
        }
        world
    }

    pub(super) fn now_s(&self) -> f64 {
        self.now_s
    }

    pub(super) fn outcome(mut self) -> Outcome {
        self.outcome.time_s = self.outcome.ends_s.iter().copied().fold(0.0, f64::max);
        self.outcome.carried_bytes = self.flows.carried_bytes().to_vec();
        self.outcome.settled = self.flows.settled();
        self.outcome
    }

    /// Records that a link of a rank became ready, and wakes the rank.
    fn link_ready(&mut self, rank: Rank, peer: Rank, channel: u32, receives: bool) {
        self.heard[rank as usize].push((Link { peer, channel }, receives));
        self.wake(rank);
    }

    fn wake(&mut self, rank: Rank) {
        // A rank that has not begun is not woken: it looks at its links when it begins.
        let idle = self.has_begun[rank as usize] && !self.is_woken[rank as usize];
        if idle {
            self.is_woken[rank as usize] = true;
            self.woken.push_back(rank);
        }
    }

    /// Returns the index of the link between two ranks, or of the simulated link that stands for
    /// it.
    fn pipe(&self, from: Rank, to: Rank, channel: u32) -> usize {
        let sender = self.folding.of(from) as usize;
        let own = self.first[sender] as usize..self.first[sender + 1] as usize;
        let distance = self.folding.distance(from, to);
        (own.start + position(&self.distances[own.clone()], distance))
            * self.params.links.channels.max(1) as usize
            + channel as usize
    }

    pub(super) fn is_there(&self, from: Rank, to: Rank, channel: u32) -> bool {
        self.pipes[self.pipe(from, to, channel)].is_there()
    }

    pub(super) fn has_credit(&mut self, from: Rank, to: Rank, channel: u32) -> bool {
        let pipe = self.pipe(from, to, channel);
        self.pipes[pipe].has_credit()
    }

    /// Adds a reduction or copy of `bytes` bytes to the work of a rank's memory. Messages with the
    /// result leave when that work is done.
    pub(super) fn fold(&mut self, rank: Rank, bytes: usize) {
        if self.params.fold_bytes_per_s.is_finite() {
            let inside = &mut self.inside[rank as usize];
            let begins_s = inside.folds_s.max(self.now_s);
            inside.folds_s = begins_s + bytes as f64 / self.params.fold_bytes_per_s;
        }
    }

    pub(super) fn publish(&mut self, from: Rank, to: Rank, channel: u32, bytes: usize) {
        let pipe = self.pipe(from, to, channel);
        let number = self.pipes[pipe].send(bytes);
        self.outcome.messages += 1;
        self.outcome.message_bytes += bytes as u64;
        let receiver = self.folding.of(to) as usize;
        self.in_flight[receiver] += bytes as u64;
        let most = &mut self.outcome.in_flight_bytes_max;
        *most = (*most).max(self.in_flight[receiver]);
        let index = self.free.pop().unwrap_or_else(|| {
            self.messages.push(Message::default());
            self.messages.len() as u32 - 1
        });
        let (pipe, bytes) = (pipe as u32, bytes as u32);
        self.messages[index as usize] =
            Message { pipe, from, to, channel, number, bytes, parts: 0, at_s: 0.0 };
        let leaves_s = self.inside[from as usize].folds_s;
        if leaves_s > self.now_s {
            self.at(leaves_s, Event::Leave(index));
        } else {
            self.leave(index);
        }
    }

    pub(super) fn release(&mut self, from: Rank, to: Rank, channel: u32) {
        let pipe = self.pipe(from, to, channel);
        if let Some(below) = self.pipes[pipe].release() {
            let event = Event::Credit(pipe as u32, self.folding.of(from), below);
            self.after(self.latency_s(from, to), event);
        }
    }

    fn latency_s(&self, from: Rank, to: Rank) -> f64 {
        let plan = self.network.plan();
        let [from, to] = [from, to].map(|rank| rank / self.ranks_per_host);
        let nanos = match plan.fabric.meeting(from, to) {
            _ if from == to => plan.inner_latency_ns,
            tier => plan.fabric.latency_ns(tier.unwrap_or(0)),
        };
        nanos * 1e-9
    }

    fn at(&mut self, at_s: f64, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse((Ordered(rounded_s(at_s)), self.sequence, event)));
    }

    fn after(&mut self, delay_s: f64, event: Event) {
        self.at(self.now_s + delay_s, event);
    }

    /// Sends a message out of its rank: to another rank of the host, or to the NIC.
    fn leave(&mut self, index: u32) {
        let Message { from, to, bytes, .. } = self.messages[index as usize];
        if from / self.ranks_per_host != to / self.ranks_per_host {
            self.nics[from as usize].waiting.push_back(index);
            self.send(from);
            return;
        }
        let plan = self.network.plan();
        let receiver = self.folding.of(to) as usize;
        let begins_s =
            self.now_s.max(self.inside[from as usize].out_s).max(self.inside[receiver].in_s);
        let ends_s = begins_s + f64::from(bytes) / plan.inner_bytes_per_s;
        self.inside[from as usize].out_s = ends_s;
        self.inside[receiver].in_s = ends_s;
        self.at(ends_s + plan.inner_latency_ns * 1e-9, Event::Arrive(index));
    }

    /// Starts the flows of a rank's waiting messages, within the limits of its send queue.
    fn send(&mut self, rank: Rank) {
        let spread = self.params.spread;
        loop {
            let nic = &self.nics[rank as usize];
            let Some(index) = nic.waiting.front().copied() else { return };
            let message = self.messages[index as usize];
            let bytes = message.bytes as usize;
            let full = nic.under_way_bytes + bytes > spread.budget_bytes && nic.messages > 0;
            if full || nic.messages >= spread.in_flight.max(1) {
                return;
            }
            let nic = &mut self.nics[rank as usize];
            nic.waiting.pop_front();
            nic.under_way_bytes += bytes;
            nic.messages += 1;
            // Queue pairs of all NICs of the rank: pair p uses NIC p modulo the number of NICs.
            let pairs = spread.pairs.max(1).saturating_mul(self.network.rails());
            let (parts, first) = match spread.order {
                Order::Split => {
                    let most = (bytes / spread.chunk_bytes.max(1)).max(1);
                    (pairs.min(most as u32), 0)
                }
                _ => (1, (message.number % u64::from(pairs)) as u32),
            };
            self.messages[index as usize].parts = parts;
            for pair in first..first + parts {
                self.begin(index, pair, bytes as f64 / f64::from(parts));
            }
        }
    }

    fn begin(&mut self, index: u32, pair: u32, bytes: f64) {
        let Message { from, to, channel, pipe, .. } = self.messages[index as usize];
        let (out, into) = self.network.ports(from, to, pair % self.network.rails());
        let key = Key { from: out, to: into, channel, pair };
        let idle_since_s = self.is_sent(pipe, pair);
        let moment = Moment { now_s: self.now_s, idle_since_s };
        let load = self.flows.load();
        if let Err(error) = self.router.route(self.network, &key, moment, &load, &mut self.path) {
            self.error.get_or_insert(error);
            return;
        }
        self.folding.path(self.network, &mut self.path);
        let tag = u64::from(index) << 16 | u64::from(pair & 0xffff);
        self.flows.begin(&self.path, bytes, f64::INFINITY, tag);
    }

    /// Counts a send of a queue pair. Returns the time since which the pair has been idle, or the
    /// current time if the pair is busy. Returns `None` for the pair's first send, and for schemes
    /// other than flowlets.
    fn is_sent(&mut self, pipe: u32, pair: u32) -> Option<f64> {
        if !matches!(self.router.scheme(), Scheme::Flowlet { .. }) {
            return None;
        }
        let now_s = self.now_s;
        let known = self.pairs.entry((pipe, pair)).or_insert((0, f64::NAN));
        known.0 += 1;
        let idle_since_s = if known.0 > 1 { now_s } else { known.1 };
        (!idle_since_s.is_nan()).then_some(idle_since_s)
    }

    /// Advances to the time of the next event; returns false if there is none.
    fn go_on(&mut self) -> Result<bool, SimError> {
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        let event_s = self.events.peek().map(|Reverse((at, ..))| at.0);
        let flow_s = self.flows.next_s().map(|at_s| at_s.max(self.now_s));
        let Some(next_s) = [event_s, flow_s].into_iter().flatten().min_by(f64::total_cmp) else {
            return Ok(false);
        };
        self.now_s = next_s;
        let mut ended = std::mem::take(&mut self.ended);
        self.flows.advance(next_s, &mut ended);
        for Ended { tag, at_s } in ended.drain(..) {
            self.flow_ended(tag, at_s);
        }
        self.ended = ended;
        while let Some(Reverse((at, _, event))) = self.events.peek().copied() {
            if at.0 > next_s {
                break;
            }
            self.events.pop();
            self.happen(event);
        }
        Ok(true)
    }

    fn flow_ended(&mut self, tag: u64, at_s: f64) {
        let (index, pair) = ((tag >> 16) as u32, (tag & 0xffff) as u32);
        let message = &mut self.messages[index as usize];
        message.at_s = message.at_s.max(at_s);
        message.parts -= 1;
        let Message { pipe, from, bytes, parts, at_s, .. } = *message;
        if let Some((under_way, left_s)) = self.pairs.get_mut(&(pipe, pair)) {
            (*under_way, *left_s) = (*under_way - 1, self.now_s);
        }
        if parts == 0 {
            let nic = &mut self.nics[from as usize];
            nic.under_way_bytes -= bytes as usize;
            nic.messages -= 1;
            self.at(at_s, Event::Arrive(index));
            self.send(from);
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Begin(rank) => {
                self.has_begun[rank as usize] = true;
                self.wake(rank);
            }
            Event::Leave(index) => self.leave(index),
            Event::Credit(pipe, sender, below) => {
                self.pipes[pipe as usize].credit(below);
                let channels = self.params.links.channels.max(1);
                let distance = self.distances[(pipe / channels) as usize];
                let peer = (sender + distance) % self.folding.ranks;
                self.link_ready(sender, peer, pipe % channels, false);
            }
            Event::Arrive(index) => {
                let message = self.messages[index as usize];
                let Message { pipe, from, to, channel, number, bytes, .. } = message;
                self.free.push(index);
                self.pipes[pipe as usize].arrive(number);
                let receiver = self.folding.of(to);
                self.in_flight[receiver as usize] -= u64::from(bytes);
                // `receiver` stands for `to`, and gets the message from `peer`. The distance from
                // `peer` to `receiver` equals the distance from `from` to `to`.
                let ranks = self.folding.ranks;
                let peer = (receiver + ranks - self.folding.distance(from, to)) % ranks;
                self.link_ready(receiver, peer, channel, true);
                self.link_ready(from, to, channel, false);
            }
        }
    }
}

/// World as one rank sees it.
#[derive(Debug)]
pub(super) struct RankPorts<'a, 'b, E> {
    world: &'a mut World<'b, E>,
    rank: Rank,
}

impl<E: Ends> Ports for RankPorts<'_, '_, E> {
    fn readable(&mut self, link: Link) -> bool {
        self.world.is_there(link.peer, self.rank, link.channel)
    }

    fn writable(&mut self, link: Link) -> bool {
        self.world.has_credit(self.rank, link.peer, link.channel)
    }

    fn accept(&mut self, _: Link, _: Sent) -> bool {
        // The verifier proves that lengths agree.
        true
    }

    fn fold(&mut self, task: &Task<'_>) {
        self.world.fold(self.rank, task.message_bytes);
    }

    fn publish(&mut self, link: Link, message: Sent) {
        self.world.publish(self.rank, link.peer, link.channel, message.bytes);
    }

    fn release(&mut self, link: Link) {
        self.world.release(link.peer, self.rank, link.channel);
    }
}

#[cfg(test)]
mod tests {
    use super::position;

    #[test]
    fn every_listed_number_is_found() {
        let even: Vec<u32> = (1..1000).map(|number| 8 * number).collect();
        let powers: Vec<u32> = (0..20).map(|power| 1 << power).collect();
        let ends: Vec<u32> = (1..8).chain(100..120).chain(5000..5007).collect();
        for list in [even, powers, ends, vec![7]] {
            let found = |(at, number): (usize, &u32)| position(&list, *number) == at;
            assert!(list.iter().enumerate().all(found));
        }
        assert_eq!(position(&[], 3), 0);
    }
}
