//! Event-driven simulation of flows on links, with the rates of [`Shares`]: finds each flow's end.
//!
//! Rates are recomputed when flows begin or end, but at most once per interval of
//! [`Flows::settle_s`]. Until the rates are recomputed, a new flow gets the capacity left on its
//! links, including that of ended flows. The other flows keep their rates, so no link exceeds its
//! capacity. With an interval of 0 the result is exact. If thousands of flows end one after
//! another, a longer interval makes the simulation much faster, even if the interval is much
//! shorter than the duration of one flow.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::network::{Link, Network, Path};
use crate::shares::{Ordered, Shares};

/// A flow that has ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ended {
    /// Tag with which the flow was begun.
    pub tag: u64,
    /// Arrival of the flow's last byte, in seconds.
    pub at_s: f64,
}

/// Load of links, for routing schemes that compare it.
#[derive(Clone, Copy, Debug)]
pub struct Load<'a> {
    /// Per link: sum of the weights of its flows. A weight is the part of a flow on the link.
    flows: &'a [f64],
    /// Capacity of each link, in bytes per second.
    capacity: &'a [f64],
}

impl Load<'_> {
    /// Returns the sum of the flows' weights on a link, divided by the link's bytes per second. A
    /// busier link has a larger ratio, also among links of different speeds.
    #[must_use]
    pub fn of(&self, link: Link) -> f64 {
        let link = link as usize;
        self.flows[link] / self.capacity[link].max(1.0)
    }
}

#[derive(Clone, Debug, Default)]
struct Flow {
    links: Vec<(Link, f64)>,
    latency_s: f64,
    bytes: f64,
    left: f64,
    rate: f64,
    /// Time to which `left` refers, in seconds.
    since_s: f64,
    limit: f64,
    tag: u64,
    /// Index in the list of active flows.
    at: u32,
    /// Version of the rate; a predicted end with another version is stale.
    version: u32,
}

/// Flows in flight on the links of a network; see the module's text.
#[derive(Debug)]
pub struct Flows {
    capacity: Vec<f64>,
    /// Sum of the rates on each link.
    used: Vec<f64>,
    /// Sum of the weights of the flows on each link.
    weights: Vec<f64>,
    /// Bytes of ended flows that each link has carried.
    carried: Vec<f64>,
    flows: Vec<Flow>,
    free: Vec<u32>,
    /// Indices of flows in flight.
    active: Vec<u32>,
    /// Predicted ends: time, index of the flow, and version of its rate.
    ends: BinaryHeap<Reverse<(Ordered, u32, u32)>>,
    shares: Shares,
    rates: Vec<f64>,
    now_s: f64,
    settled_s: f64,
    dirty: bool,
    settle_s: f64,
    settled: u64,
}

/// Largest number of remaining bytes that counts as 0: rounding may leave such a remainder.
const NOTHING_BYTES: f64 = 1e-6;

impl Flows {
    /// Creates an empty set of flows on the links of a network. Rates are recomputed at most every
    /// `settle_s` seconds.
    #[must_use]
    pub fn new(network: &Network, settle_s: f64) -> Flows {
        let links = network.links() as usize;
        Flows {
            capacity: network.capacity().to_vec(),
            used: vec![0.0; links],
            weights: vec![0.0; links],
            carried: vec![0.0; links],
            flows: Vec::new(),
            free: Vec::new(),
            active: Vec::new(),
            ends: BinaryHeap::new(),
            shares: Shares::default(),
            rates: Vec::new(),
            now_s: 0.0,
            settled_s: f64::NEG_INFINITY,
            dirty: false,
            settle_s,
            settled: 0,
        }
    }

    /// Returns the simulated time, in seconds.
    #[must_use]
    pub fn now_s(&self) -> f64 {
        self.now_s
    }

    /// Returns the shortest time between two computations of the rates, in seconds.
    #[must_use]
    pub fn settle_s(&self) -> f64 {
        self.settle_s
    }

    /// Returns the number of flows in flight.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.active.len()
    }

    /// Returns how often rates were recomputed.
    #[must_use]
    pub fn settled(&self) -> u64 {
        self.settled
    }

    /// Returns the current load of the links.
    #[must_use]
    pub fn load(&self) -> Load<'_> {
        Load { flows: &self.weights, capacity: &self.capacity }
    }

    /// Returns the bytes of ended flows that each link has carried.
    #[must_use]
    pub fn carried_bytes(&self) -> &[f64] {
        &self.carried
    }

    /// Begins a flow of `bytes` bytes now, on `path`, no faster than `limit` bytes per second.
    pub fn begin(&mut self, path: &Path, bytes: f64, limit: f64, tag: u64) {
        let index = self.free.pop().unwrap_or_else(|| {
            self.flows.push(Flow::default());
            self.flows.len() as u32 - 1
        });
        let flow = &mut self.flows[index as usize];
        flow.links.clear();
        flow.links.extend_from_slice(&path.links);
        flow.latency_s = path.latency_s;
        (flow.bytes, flow.left) = (bytes, bytes.max(0.0));
        (flow.rate, flow.since_s) = (0.0, self.now_s);
        (flow.limit, flow.tag) = (limit, tag);
        flow.at = self.active.len() as u32;
        flow.version = flow.version.wrapping_add(1);
        self.active.push(index);
        let mut spare = limit;
        for (link, weight) in &path.links {
            let link = *link as usize;
            self.weights[link] += weight;
            spare = spare.min((self.capacity[link] - self.used[link]) / weight);
        }
        if self.settle_s > 0.0 && spare.is_finite() && spare > 0.0 {
            self.set_rate(index, spare);
        } else if flow_is_nothing(&self.flows[index as usize]) {
            self.predict(index);
        }
        self.dirty = true;
    }

    fn set_rate(&mut self, index: u32, rate: f64) {
        let flow = &mut self.flows[index as usize];
        flow.left -= flow.rate * (self.now_s - flow.since_s);
        flow.since_s = self.now_s;
        let change = rate - flow.rate;
        flow.rate = rate;
        for (link, weight) in &flow.links {
            self.used[*link as usize] += change * weight;
        }
        self.predict(index);
    }

    fn predict(&mut self, index: u32) {
        let flow = &mut self.flows[index as usize];
        flow.version = flow.version.wrapping_add(1);
        let takes_s = if flow_is_nothing(flow) { 0.0 } else { flow.left / flow.rate };
        if takes_s.is_finite() {
            let end = Ordered(rounded_s(flow.since_s + takes_s));
            self.ends.push(Reverse((end, index, flow.version)));
        }
    }

    /// Returns the time of the next event, in seconds; None if no flow moves.
    pub fn next_s(&mut self) -> Option<f64> {
        if self.dirty && self.active.is_empty() {
            self.dirty = false;
        }
        let settle = self.dirty.then(|| self.now_s.max(self.settled_s + self.settle_s));
        while let Some(Reverse((end, index, version))) = self.ends.peek() {
            if self.flows[*index as usize].version == *version {
                let end = end.0.max(self.now_s);
                return Some(settle.map_or(end, |settle| settle.min(end)));
            }
            self.ends.pop();
        }
        settle
    }

    /// Advances to a time no later than [`Flows::next_s`]. Appends ended flows to `ended`.
    pub fn advance(&mut self, to_s: f64, ended: &mut Vec<Ended>) {
        self.now_s = to_s;
        while let Some(Reverse((end, index, version))) = self.ends.peek().copied() {
            if self.flows[index as usize].version != version {
                self.ends.pop();
            } else if end.0 <= to_s {
                self.ends.pop();
                ended.push(self.end(index, end.0));
            } else {
                break;
            }
        }
        if self.dirty && to_s >= self.settled_s + self.settle_s {
            self.settle();
        }
    }

    fn end(&mut self, index: u32, at_s: f64) -> Ended {
        let flow = &mut self.flows[index as usize];
        flow.version = flow.version.wrapping_add(1);
        let place = flow.at as usize;
        for (link, weight) in &flow.links {
            let link = *link as usize;
            self.used[link] = (self.used[link] - flow.rate * weight).max(0.0);
            self.weights[link] = (self.weights[link] - weight).max(0.0);
            self.carried[link] += flow.bytes * weight;
        }
        let ended = Ended { tag: flow.tag, at_s: at_s + flow.latency_s };
        self.active.swap_remove(place);
        if let Some(moved) = self.active.get(place) {
            self.flows[*moved as usize].at = place as u32;
        }
        self.free.push(index);
        self.dirty = true;
        ended
    }

    /// Recomputes all rates.
    fn settle(&mut self) {
        self.dirty = false;
        self.settled_s = self.now_s;
        self.settled += 1;
        let Flows { shares, rates, active, flows, capacity, .. } = self;
        let flow = |index: usize| {
            let flow = &flows[active[index] as usize];
            (flow.links.as_slice(), flow.limit)
        };
        shares.fill(capacity, active.len(), flow, rates);
        self.used.fill(0.0);
        // Most predicted ends are stale now, so all are computed again.
        self.ends.clear();
        for (index, rate) in self.active.iter().zip(&self.rates) {
            let flow = &mut self.flows[*index as usize];
            flow.left -= flow.rate * (self.now_s - flow.since_s);
            (flow.since_s, flow.rate) = (self.now_s, *rate);
            for (link, weight) in &flow.links {
                self.used[*link as usize] += rate * weight;
            }
        }
        for at in 0..self.active.len() {
            self.predict(self.active[at]);
        }
    }
}

/// Rounds a time to whole picoseconds, so that simultaneous events coincide despite earlier
/// rounding.
pub(crate) fn rounded_s(at_s: f64) -> f64 {
    (at_s * 1e12).round() / 1e12
}

fn flow_is_nothing(flow: &Flow) -> bool {
    flow.left <= NOTHING_BYTES
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::presets::Zone;

    fn network() -> Network {
        Network::new(
            Zone { nic_bytes_per_s: 1.0, uplink_bytes_per_s: 1.0, ..Zone::default() }
                .plan()
                .unwrap(),
        )
        .unwrap()
    }

    fn path(links: &[Link]) -> Path {
        Path { links: links.iter().map(|link| (*link, 1.0)).collect(), latency_s: 0.0 }
    }

    /// Runs all flows to their end. Returns the end of each flow in seconds, and the simulation.
    fn ends(flows: &[(Vec<Link>, f64)], settle_s: f64) -> (Vec<f64>, Flows) {
        let mut under_way = Flows::new(&network(), settle_s);
        for (tag, (links, bytes)) in flows.iter().enumerate() {
            under_way.begin(&path(links), *bytes, f64::INFINITY, tag as u64);
        }
        let (mut ended, mut at) = (Vec::new(), vec![f64::NAN; flows.len()]);
        while let Some(next) = under_way.next_s() {
            under_way.advance(next, &mut ended);
            let over = under_way.used.iter().zip(&under_way.capacity);
            assert!(over.into_iter().all(|(used, capacity)| *used <= capacity * (1.0 + 1e-9)));
            for Ended { tag, at_s } in ended.drain(..) {
                at[tag as usize] = at_s;
            }
        }
        (at, under_way)
    }

    #[test]
    fn flows_share_a_link_and_free_their_share_when_they_end() {
        // Two flows share a link; the shorter one ends, and the longer one goes on alone.
        let (at, flows) = ends(&[(vec![0], 1.0), (vec![0, 2], 3.0), (vec![4], 1.0)], 0.0);
        assert_eq!(at, [2.0, 4.0, 1.0]);
        assert_eq!((flows.carried[0], flows.carried[2], flows.carried[4]), (4.0, 3.0, 1.0));
    }

    #[test]
    fn a_flow_spread_over_two_links_uses_the_capacity_of_both() {
        let mut flows = Flows::new(&network(), 0.0);
        let spread = Path { links: vec![(0, 0.5), (2, 0.5)], latency_s: 0.25 };
        flows.begin(&spread, 8.0, f64::INFINITY, 7);
        flows.begin(&path(&[2]), 1.0, f64::INFINITY, 8);
        let mut ended = Vec::new();
        while let Some(next) = flows.next_s() {
            flows.advance(next, &mut ended);
        }
        // The second flow takes 2/3 of its link, and the first 1/3 of each of its two links.
        let expected = [Ended { tag: 8, at_s: 1.5 }, Ended { tag: 7, at_s: 1.5 + 3.5 + 0.25 }];
        for (found, expected) in ended.iter().zip(expected) {
            assert!(found.tag == expected.tag && (found.at_s - expected.at_s).abs() < 1e-9);
        }
    }

    #[test]
    fn a_flow_of_0_bytes_ends_at_once_and_a_flow_keeps_its_rate_limit() {
        let mut flows = Flows::new(&network(), 0.0);
        flows.begin(&path(&[0]), 0.0, f64::INFINITY, 0);
        flows.begin(&path(&[0]), 1.0, 0.25, 1);
        let mut ended = Vec::new();
        while let Some(next) = flows.next_s() {
            flows.advance(next, &mut ended);
        }
        assert_eq!(ended, [Ended { tag: 0, at_s: 0.0 }, Ended { tag: 1, at_s: 4.0 }]);
    }

    /// Checks that a flow on an idle link gets its rate at once, although rates are recomputed only
    /// every 100 s.
    #[test]
    fn a_new_flow_on_an_idle_link_gets_its_rate_at_once() {
        let mut flows = Flows::new(&network(), 100.0);
        let mut ended = Vec::new();
        for (tag, expected_s) in [(0, 1.0), (1, 2.0), (2, 3.0)] {
            flows.begin(&path(&[4 * tag as u32]), 1.0, f64::INFINITY, tag);
            while ended.is_empty() {
                let next = flows.next_s().unwrap();
                flows.advance(next, &mut ended);
            }
            assert_eq!(ended.pop(), Some(Ended { tag, at_s: expected_s }));
        }
    }

    /// Checks that a new flow gets the capacity that all other flows leave.
    #[test]
    fn a_new_flow_gets_the_capacity_that_other_flows_leave() {
        let mut flows = Flows::new(&network(), 100.0);
        let mut ended = Vec::new();
        for tag in [0, 1] {
            flows.begin(&path(&[0]), 10.0, 0.25, tag);
        }
        flows.advance(flows.now_s(), &mut ended);
        assert_eq!(flows.settled, 1);
        flows.begin(&path(&[0]), 1.0, f64::INFINITY, 2);
        let next = flows.next_s().unwrap();
        flows.advance(next, &mut ended);
        assert_eq!(ended, [Ended { tag: 2, at_s: 2.0 }]);
    }

    fn some_flows() -> impl Strategy<Value = Vec<(Vec<Link>, f64)>> {
        let links = proptest::collection::btree_set(0u32..12, 1..5);
        let flow = (links, 1u32..100);
        let flow = flow.prop_map(|(links, bytes)| (links.into_iter().collect(), f64::from(bytes)));
        proptest::collection::vec(flow, 1..24)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn every_flow_has_a_bottleneck(flows in some_flows()) {
            let capacity = network().capacity().to_vec();
            let paths: Vec<Path> = flows.iter().map(|(links, _)| path(links)).collect();
            let mut rates = Vec::new();
            let of = |index: usize| (paths[index].links.as_slice(), f64::INFINITY);
            Shares::default().fill(&capacity, flows.len(), of, &mut rates);
            let rates_on = |link: &Link| -> Vec<f64> {
                let all = flows.iter().zip(&rates);
                all.filter(|((links, _), _)| links.contains(link)).map(|(_, rate)| *rate).collect()
            };
            for ((links, _), rate) in flows.iter().zip(&rates) {
                // A bottleneck is a full link on which no flow has a higher rate than this one.
                let bottleneck = links.iter().any(|link| {
                    let on = rates_on(link);
                    let used: f64 = on.iter().sum();
                    let most = on.into_iter().fold(0.0, f64::max);
                    used >= capacity[*link as usize] * (1.0 - 1e-9) && *rate >= most - 1e-9
                });
                prop_assert!(bottleneck, "flow over {links:?} at rate {rate} has no bottleneck");
            }
        }

        #[test]
        fn all_bytes_arrive_and_the_order_of_flows_does_not_change_their_ends(
            flows in some_flows(), settle in prop_oneof![Just(0.0), Just(0.5)],
        ) {
            let (at, done) = ends(&flows, settle);
            prop_assert!(at.iter().all(|at| at.is_finite()));
            for link in 0..12u32 {
                let on = flows.iter().filter(|(links, _)| links.contains(&link));
                let bytes: f64 = on.map(|(_, bytes)| *bytes).sum();
                prop_assert!((done.carried[link as usize] - bytes).abs() < 1e-6);
            }
            if settle == 0.0 {
                let mut turned = flows.clone();
                turned.reverse();
                let (mut other, _) = ends(&turned, 0.0);
                other.reverse();
                for (at, other) in at.iter().zip(&other) {
                    prop_assert!((at - other).abs() < 1e-6 * at.max(1.0), "{at} {other}");
                }
            }
        }
    }
}
