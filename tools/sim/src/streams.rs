//! Streams of messages from port to port over queue pairs: a collective as the fabric sees it,
//! without the dependencies between ranks.

use std::collections::BTreeMap;

use ccl_core::queue_pairs::Order;

use crate::SimError;
use crate::flows::{Ended, Flows};
use crate::network::{Link, Network, Path, Port};
use crate::routing::{Key, Moment, Router, Scheme};

/// Traffic from one port to another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stream {
    /// Port of the sender.
    pub from: Port,
    /// Port of the receiver.
    pub to: Port,
    /// Bytes of the stream.
    pub bytes: f64,
    /// Number of the connection between the two ports.
    pub channel: u32,
    /// Group of the stream: a group is done when its last stream is done.
    pub group: u32,
}

/// Parameters of a run: how streams are cut into messages, and how messages use queue pairs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RunParams {
    /// Queue pairs of each stream.
    pub pairs: u32,
    /// Order in which messages take queue pairs.
    pub order: Order,
    /// Bytes of a message; infinite for one message per queue pair.
    pub message_bytes: f64,
    /// Largest number of messages that a stream has in flight at a time.
    pub in_flight: u32,
    /// Largest number of streams that a sender has in flight at a time; its other streams follow in
    /// the order in which they are given.
    pub peers: u32,
    /// Overhead of each work request in bytes on the wire: request, acknowledgement, and a partly
    /// filled last packet.
    pub request_bytes: f64,
    /// Least interval between two computations of the flows' rates, in seconds ([`Flows::new`]).
    pub settle_s: f64,
}

impl RunParams {
    /// Returns parameters with `pairs` queue pairs, each of which sends its share as one message.
    #[must_use]
    pub fn at_once(pairs: u32) -> RunParams {
        RunParams {
            pairs,
            order: Order::RoundRobin,
            message_bytes: f64::INFINITY,
            in_flight: pairs,
            peers: u32::MAX,
            request_bytes: 0.0,
            settle_s: 0.0,
        }
    }
}

/// Result of a run.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Time when each stream was done, in seconds.
    pub ends_s: Vec<f64>,
    /// Time when the last stream was done, in seconds.
    pub time_s: f64,
    /// Bytes that passed each link.
    pub carried_bytes: Vec<f64>,
    /// Per link: the sum of the weights with which queue pairs use the link. Each queue pair counts
    /// once, on the path that its first bytes take.
    pub flows: Vec<f64>,
    /// Number of work requests, and also of acknowledgements.
    pub requests: u64,
}

/// State of one stream.
#[derive(Clone, Debug, Default)]
struct State {
    /// Messages begun.
    begun: u64,
    messages: u64,
    message_bytes: f64,
    under_way: u32,
    /// Per queue pair: the time when a part of a message last ended on it, in seconds; none if no
    /// part has ended yet.
    left_s: Vec<Option<f64>>,
    /// Per queue pair: the bytes in flight.
    pair_bytes: Vec<f64>,
    /// Per queue pair: the number of parts of messages in flight.
    pair_parts: Vec<u32>,
    /// Messages in flight, each with the number of its parts in flight.
    parts: Vec<(u64, u32)>,
}

struct Run<'a> {
    network: &'a Network,
    router: &'a mut Router,
    streams: &'a [Stream],
    params: RunParams,
    states: Vec<State>,
    flows: Flows,
    path: Path,
    outcome: Outcome,
    /// Per sender: the streams that have not begun, in reverse order. The last stream of the list
    /// begins next.
    waiting: BTreeMap<Port, Vec<usize>>,
    /// Per tag of a flow: the stream, message, queue pair and bytes of the part that the flow
    /// carries. `free` has the tags of flows that have ended.
    parts: Vec<(u32, u64, u32, f64)>,
    free: Vec<u32>,
}

/// Runs streams to their end; all senders start at time 0.
///
/// # Errors
///
/// If the streams need more memory or work than the plan allows; if a stream has no path, or
/// nothing moves.
pub fn run(
    network: &Network,
    router: &mut Router,
    streams: &[Stream],
    params: RunParams,
) -> Result<Outcome, SimError> {
    check_memory(network, router, streams, &params)?;
    check_work(network, router, streams, &params)?;
    let pairs = params.pairs.max(1);
    let state = |stream: &Stream| {
        let most = stream.bytes / f64::from(pairs);
        let message_bytes = if params.message_bytes.is_finite() {
            params.message_bytes.min(stream.bytes)
        } else {
            most
        };
        State {
            messages: (stream.bytes / message_bytes.max(1.0)).ceil() as u64,
            message_bytes,
            left_s: vec![None; pairs as usize],
            pair_bytes: vec![0.0; pairs as usize],
            pair_parts: vec![0; pairs as usize],
            ..State::default()
        }
    };
    let mut run = Run {
        network,
        router,
        streams,
        params: RunParams { pairs, in_flight: params.in_flight.max(1), ..params },
        states: streams.iter().map(state).collect(),
        flows: Flows::new(network, params.settle_s),
        path: Path::default(),
        outcome: Outcome {
            ends_s: vec![0.0; streams.len()],
            flows: vec![0.0; network.links() as usize],
            ..Outcome::default()
        },
        waiting: BTreeMap::new(),
        parts: Vec::new(),
        free: Vec::new(),
    };
    for (index, stream) in streams.iter().enumerate().rev() {
        run.waiting.entry(stream.from).or_default().push(index);
    }
    let senders: Vec<Port> = run.waiting.keys().copied().collect();
    for sender in senders {
        let own = run.waiting.get(&sender).map_or(0, Vec::len) as u32;
        for _ in 0..params.peers.clamp(1, own.max(1)) {
            run.next_of(sender)?;
        }
    }
    run.finish()
}

impl Run<'_> {
    /// Begins the sender's next stream, if it has one.
    fn next_of(&mut self, sender: Port) -> Result<(), SimError> {
        while let Some(index) = self.waiting.get_mut(&sender).and_then(Vec::pop) {
            self.fill(index)?;
            if self.states[index].under_way > 0 {
                break;
            }
        }
        Ok(())
    }

    /// Begins messages of a stream until as many as allowed are in flight.
    fn fill(&mut self, index: usize) -> Result<(), SimError> {
        while self.states[index].under_way < self.params.in_flight
            && self.states[index].begun < self.states[index].messages
        {
            let (stream, state) = (&self.streams[index], &mut self.states[index]);
            let number = state.begun;
            let before = state.message_bytes * number as f64;
            let bytes = state.message_bytes.min(stream.bytes - before);
            state.begun += 1;
            state.under_way += 1;
            if self.params.order == Order::Split {
                let pairs = self.params.pairs;
                state.parts.push((number, pairs));
                for pair in 0..pairs {
                    self.send(index, number, pair, bytes / f64::from(pairs))?;
                }
            } else {
                state.parts.push((number, 1));
                let pair = self.pair(index, number);
                self.send(index, number, pair, bytes)?;
            }
        }
        Ok(())
    }

    /// Returns the queue pair of a message that is not split.
    fn pair(&self, index: usize, number: u64) -> u32 {
        let in_turn = (number % u64::from(self.params.pairs)) as u32;
        if self.params.order != Order::LoadAware {
            return in_turn;
        }
        let busy = |pair: &u32| self.states[index].pair_bytes[*pair as usize];
        let order = (0..self.params.pairs).map(|step| (in_turn + step) % self.params.pairs);
        order.min_by(|one, other| busy(one).total_cmp(&busy(other))).unwrap_or(in_turn)
    }

    fn send(&mut self, index: usize, number: u64, pair: u32, bytes: f64) -> Result<(), SimError> {
        let stream = &self.streams[index];
        // Every stream numbers its queue pairs from 0.
        let key = Key { from: stream.from, to: stream.to, channel: stream.channel, pair };
        let state = &mut self.states[index];
        let now_s = self.flows.now_s();
        // A queue pair with parts in flight is not idle.
        let is_busy = state.pair_parts[pair as usize] > 0;
        let idle_since_s = if is_busy { Some(now_s) } else { state.left_s[pair as usize] };
        let moment = Moment { now_s, idle_since_s };
        self.router.route(self.network, &key, moment, &self.flows.load(), &mut self.path)?;
        if idle_since_s.is_none() {
            for (link, weight) in &self.path.links {
                self.outcome.flows[*link as usize] += weight;
            }
        }
        state.pair_bytes[pair as usize] += bytes;
        state.pair_parts[pair as usize] += 1;
        self.outcome.requests += 1;
        let tag = self.free.pop().unwrap_or_else(|| {
            self.parts.push((0, 0, 0, 0.0));
            self.parts.len() as u32 - 1
        });
        self.parts[tag as usize] = (index as u32, number, pair, bytes);
        let bytes = bytes + self.params.request_bytes;
        self.flows.begin(&self.path, bytes, f64::INFINITY, u64::from(tag));
        Ok(())
    }

    fn finish(mut self) -> Result<Outcome, SimError> {
        let mut ended = Vec::new();
        while let Some(next_s) = self.flows.next_s() {
            self.flows.advance(next_s, &mut ended);
            for end in ended.drain(..) {
                self.done(end)?;
            }
        }
        let open = self.states.iter().position(|state| state.under_way > 0);
        if let Some(rank) = open {
            return Err(SimError::Stuck {
                after_s: self.flows.now_s(),
                open: self.states.iter().filter(|state| state.under_way > 0).count(),
                ranks: self.states.len(),
                rank: rank as u32,
                waiting: "bandwidth, but its links carry nothing".to_owned(),
            });
        }
        self.outcome.time_s = self.outcome.ends_s.iter().copied().fold(0.0, f64::max);
        self.outcome.carried_bytes = self.flows.carried_bytes().to_vec();
        Ok(self.outcome)
    }

    fn done(&mut self, Ended { tag, at_s }: Ended) -> Result<(), SimError> {
        let (index, number, pair, bytes) = self.parts[tag as usize];
        self.free.push(tag as u32);
        let index = index as usize;
        let state = &mut self.states[index];
        state.left_s[pair as usize] = Some(self.flows.now_s());
        state.pair_bytes[pair as usize] -= bytes;
        state.pair_parts[pair as usize] -= 1;
        if let Some(at) = state.parts.iter().position(|(known, _)| *known == number) {
            state.parts[at].1 -= 1;
            if state.parts[at].1 == 0 {
                state.parts.swap_remove(at);
                state.under_way -= 1;
            }
        }
        self.outcome.ends_s[index] = self.outcome.ends_s[index].max(at_s);
        self.fill(index)?;
        if self.states[index].under_way == 0 {
            self.next_of(self.streams[index].from)
        } else {
            Ok(())
        }
    }
}

/// Refuses streams that need too much memory, by an estimate from streams, queue pairs, and flows
/// in flight at once.
fn check_memory(
    network: &Network,
    router: &Router,
    streams: &[Stream],
    params: &RunParams,
) -> Result<(), SimError> {
    let RunParams { pairs, order, in_flight, peers, .. } = *params;
    let (mut under_way, mut own) = (0.0, 0);
    // Assumes that streams of a sender are adjacent; otherwise the estimate is too high.
    for (at, stream) in streams.iter().enumerate() {
        let is_next = at > 0 && streams[at - 1].from == stream.from;
        own = if is_next { own + 1 } else { 1 };
        under_way += if own <= peers { 1.0 } else { 0.0 };
    }
    let parts = if order == Order::Split { pairs } else { 1 };
    let flows = under_way * f64::from(in_flight) * f64::from(parts);
    let links = links_passed(network, router.scheme());
    let each = 250.0 + 24.0 * f64::from(pairs) + 16.0 * f64::from(in_flight);
    let bytes = streams.len() as f64 * each + flows * (250.0 + 24.0 * links);
    let what = format!("{} streams, {flows:.0} flows at once", streams.len());
    SimError::if_over(what, bytes, network.plan().memory_mib)
}

/// Refuses streams that need too much work. The estimate is the number of messages times the most
/// links that a message takes. The estimate leaves out the computation of rates, which takes more
/// work if messages end one by one.
fn check_work(
    network: &Network,
    router: &Router,
    streams: &[Stream],
    params: &RunParams,
) -> Result<(), SimError> {
    let pairs = f64::from(params.pairs.max(1));
    let messages = |stream: &Stream| {
        let whole = (stream.bytes / params.message_bytes.max(1.0)).ceil().max(1.0);
        match params.order {
            _ if !params.message_bytes.is_finite() => pairs,
            Order::Split => whole * pairs,
            _ => whole,
        }
    };
    let messages: f64 = streams.iter().map(messages).sum();
    let what = format!("{messages:.0} messages of {} streams", streams.len());
    let steps = messages * links_passed(network, router.scheme());
    SimError::if_long(what, steps, network.plan().work_millions)
}

/// Returns the most links that a message takes.
pub(crate) fn links_passed(network: &Network, scheme: Scheme) -> f64 {
    match scheme {
        Scheme::Spray => sprayed_links(network),
        _ => 2.0 * network.tiers() as f64,
    }
}

/// Returns the most links that a sprayed flow takes.
fn sprayed_links(network: &Network) -> f64 {
    let fabric = &network.plan().fabric;
    let (mut links, mut here) = (0.0, 1.0f64);
    for (number, tier) in fabric.tiers.iter().enumerate() {
        let wide = here * f64::from(fabric.uplinks(number, 0));
        links += 2.0 * wide;
        here = wide.min(f64::from(tier.switches));
    }
    links
}

/// Returns the *roofline* in seconds: the time that the streams would take if nothing but NICs, and
/// the total uplink bandwidth of each rack or zone, limited them.
///
/// Compares the bytes in each direction with the bandwidth of the uplinks, for each NIC of a host
/// and for each child of a higher tier (a rack, a zone).
#[must_use]
pub fn roofline_s(network: &Network, streams: &[Stream]) -> f64 {
    below_s(network, streams, network.tiers())
}

/// Returns the time that the streams would take if nothing but NICs limited them, in seconds.
#[must_use]
pub fn ports_s(network: &Network, streams: &[Stream]) -> f64 {
    below_s(network, streams, 1)
}

/// Returns the roofline that the lowest `tiers` tiers set, in seconds.
fn below_s(network: &Network, streams: &[Stream], tiers: usize) -> f64 {
    let mut worst = 0.0f64;
    for tier in 0..tiers.min(network.tiers()) {
        let children = network.children(tier) as usize;
        let nics = if tier == 0 { network.plan().fabric.nics as usize } else { 1 };
        let mut bytes = vec![[0.0f64; 2]; children * nics];
        for stream in streams {
            let ends = [stream.from, stream.to].map(|port| network.child(tier, port.host));
            let inside = ends[0] == ends[1] && (tier > 0 || stream.from.nic == stream.to.nic);
            if inside {
                continue;
            }
            for (way, port) in [stream.from, stream.to].iter().enumerate() {
                let nic = if tier == 0 { port.nic as usize } else { 0 };
                bytes[ends[way] as usize * nics + nic][way] += stream.bytes;
            }
        }
        for (at, both) in bytes.iter().enumerate().filter(|(_, both)| **both != [0.0; 2]) {
            let child = (at / nics) as u32;
            let below = if tier == 0 { at % nics..at % nics + 1 } else { 0..below(network, tier) };
            let links: Vec<Link> =
                below.flat_map(|below| network.uplinks(tier, child, below as u32)).collect();
            for (way, bytes) in both.iter().enumerate() {
                let carry = |link: &Link| network.capacity()[(*link + way as u32) as usize];
                let capacity: f64 = links.iter().map(carry).sum();
                if *bytes > 0.0 {
                    worst = worst.max(bytes / capacity);
                }
            }
        }
    }
    worst
}

fn below(network: &Network, tier: usize) -> usize {
    network.plan().fabric.below(tier) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::presets::{GBPS_400, Zone};

    #[test]
    fn a_queue_pair_with_parts_in_flight_is_not_idle() {
        // Uplinks so slow that messages of the two queue pairs end at different times.
        let zone = Zone { uplink_bytes_per_s: GBPS_400 / 4.0, ..Zone::default() };
        let network = Network::new(zone.plan().unwrap()).unwrap();
        let (from, to) = network.ports(0, 16, 0);
        let stream = Stream { from, to, bytes: 200e6, channel: 0, group: 0 };
        let mut router = Router::new(Scheme::Flowlet { gap_s: 5e-6 }, 1);
        let params = RunParams { message_bytes: 1e6, in_flight: 5, ..RunParams::at_once(2) };
        let outcome = run(&network, &mut router, &[stream], params).unwrap();
        let carries = |link: &Link| outcome.carried_bytes[*link as usize] > 0.0;
        // Both queue pairs are always busy, so they keep their paths.
        assert_eq!(network.uplinks(1, 0, 0).filter(carries).count(), 2);
    }
}
