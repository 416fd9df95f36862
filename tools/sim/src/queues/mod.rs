//! Queues in switches, and congestion control: pauses between switches (PFC), marks that senders
//! react to (DCQCN), or credits of receivers that limit the bytes in flight.
//!
//! Flows are fluids that move from queue to queue in short steps. A link serves its queue in the
//! order of arrival, so each flow gets a share in proportion to its bytes in the queue. A switch
//! that holds more than [`Buffer::pause_bytes`] from one link pauses that link as a whole, until
//! the switch holds less than [`Buffer::resume_bytes`] from it. All flows on the paused link wait,
//! whatever their destination, and their bytes can pause links further back. Nothing is dropped.

mod dcqcn;

use ccl_core::admission;
use ccl_core::random::Random;

use crate::SimError;
use crate::network::{Link, Network};
pub use dcqcn::{Dcqcn, Marking, Senders};

/// Buffer thresholds of a switch, for each link into it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Buffer {
    /// Bytes above which the link is paused.
    pub pause_bytes: f64,
    /// Bytes below which the link is resumed.
    pub resume_bytes: f64,
}

impl Buffer {
    /// Returns the buffer of a switch that pauses at `pause_bytes` and resumes at three quarters of
    /// `pause_bytes`.
    #[must_use]
    pub fn of(pause_bytes: f64) -> Buffer {
        Buffer { pause_bytes, resume_bytes: 0.75 * pause_bytes }
    }
}

/// Congestion control.
#[derive(Clone, Copy, Debug)]
pub enum Transport {
    /// Pauses only.
    PauseOnly,
    /// Rate control by senders, in reaction to marks of switches.
    Dcqcn(Dcqcn),
    /// Admission by receivers: a sender's credits limit its bytes in flight to a receiver. A credit
    /// returns to the sender with a delay of `credit_s` after its slot was filled.
    Admission {
        /// Slots, channels and budget of every receiver.
        slots: admission::Config,
        /// Time from the arrival of a slot's last byte to the return of its credit, in seconds.
        credit_s: f64,
    },
}

/// Parameters of a run.
#[derive(Clone, Debug)]
pub struct RunParams {
    /// Length of a step in seconds; a byte takes one step per hop.
    pub step_s: f64,
    /// Buffers of the switches of each tier.
    pub buffers: Vec<Buffer>,
    /// Congestion control.
    pub transport: Transport,
    /// Longest time simulated, in seconds.
    pub limit_s: f64,
    /// Seed of all that is random.
    pub seed: u64,
    /// Links whose queues are recorded over time.
    pub watched: Vec<Link>,
}

/// A flow with its path.
#[derive(Clone, Debug, PartialEq)]
pub struct Flow {
    /// Links of the path; the first is the link of the sender's NIC.
    pub links: Vec<Link>,
    /// Bytes of the flow.
    pub bytes: f64,
    /// Earliest begin, in seconds after the start of the run, or after the end of the flow `after`.
    pub begins_s: f64,
    /// Flow that must end before this one starts.
    pub after: Option<u32>,
}

/// Result of a run.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Time when each flow was done, in seconds.
    pub ends_s: Vec<f64>,
    /// Time when the last flow was done, in seconds.
    pub time_s: f64,
    /// Per link: largest number of bytes that were in its queue.
    pub queue_bytes_max: Vec<f64>,
    /// Per link: bytes that it carried.
    pub carried_bytes: Vec<f64>,
    /// Per link: the most that it carried in a step, as a part of its capacity.
    pub used_max: Vec<f64>,
    /// Per link: how often it was paused.
    pub pauses: Vec<u32>,
    /// Per link: seconds that it was paused.
    pub paused_s: Vec<f64>,
    /// Largest number of bytes that were in flight to one receiver.
    pub in_flight_bytes_max: f64,
    /// Per watched link: times in seconds, each with the bytes in the link's queue at that time.
    pub watched: Vec<Vec<(f64, f64)>>,
}

/// Bytes of a packet. A flow is done when its missing bytes are at most one packet, and at most 1 %
/// of the flow.
const PACKET_BYTES: f64 = 4096.0;
/// Largest number of points that are kept of a watched queue.
const POINTS: usize = 400;

struct Run<'a> {
    network: &'a Network,
    flows: &'a [Flow],
    params: &'a RunParams,
    /// Index of the first hop of each flow; one more entry marks the end.
    first: Vec<usize>,
    /// Per hop: its link.
    links: Vec<Link>,
    /// Per hop: the flow's bytes in the link's queue. The entry of the first hop is no queue: it
    /// has the bytes that the sender can send in this step.
    queued: Vec<f64>,
    sent: Vec<f64>,
    arrived: Vec<f64>,
    /// Per flow: limit of its bytes in flight.
    window: Vec<f64>,
    /// Per flow: bytes that have arrived, but whose credits have not returned yet.
    uncredited: Vec<f64>,
    /// Ring with an entry for each step of the credits' delay: per flow, the bytes that arrived.
    late: Vec<Vec<f64>>,
    rates: Vec<dcqcn::Rate>,
    notices: Vec<dcqcn::Notices>,
    /// Per hop: marked bytes among those in `queued`. Empty without DCQCN.
    marked: Vec<f64>,
    /// Per link: bytes in its queue.
    total: Vec<f64>,
    /// Per link: bytes from it that the switch at its end holds.
    held: Vec<f64>,
    /// Per link to a receiver: bytes in flight to that receiver.
    under_way: Vec<f64>,
    /// Bytes that each link carries in this step.
    moved: Vec<f64>,
    paused: Vec<bool>,
    random: Random,
    outcome: Outcome,
}

/// Runs flows to their end.
///
/// # Errors
///
/// If the flows take longer than `limit_s`; if a number is invalid; if they need more memory or
/// work than the plan allows.
pub fn run(network: &Network, flows: &[Flow], params: &RunParams) -> Result<Outcome, SimError> {
    run_again(network, flows, params, &mut Senders::default())
}

/// Runs flows to their end. The senders begin in the state of `senders`, if `senders` is from an
/// earlier run with the same number of flows. Every run leaves its senders' state in `senders`.
/// Only [`Transport::Dcqcn`] changes the rates in this state.
///
/// # Errors
///
/// As [`run`].
pub fn run_again(
    network: &Network,
    flows: &[Flow],
    params: &RunParams,
    senders: &mut Senders,
) -> Result<Outcome, SimError> {
    if !(params.step_s > 0.0 && params.step_s.is_finite()) {
        let remedy = "give a fraction of a microsecond, such as 5e-7";
        return Err(SimError::number(
            "the time step of queues, in seconds,",
            params.step_s,
            remedy,
        ));
    }
    check_memory(network, flows, params)?;
    check_work(network, flows, params)?;
    let mut run = Run::new(network, flows, params);
    if senders.rates.len() == flows.len() {
        run.rates = std::mem::take(&mut senders.rates);
    }
    let mut open: Vec<usize> = (0..flows.len()).collect();
    let (mut step, mut every) = (0usize, 1);
    while !open.is_empty() {
        let now_s = step as f64 * params.step_s;
        if now_s > params.limit_s {
            return Err(SimError::Stuck {
                after_s: now_s,
                open: open.len(),
                ranks: flows.len(),
                rank: open[0] as u32,
                waiting: "its bytes; the run's time limit (limit_s) has passed".to_owned(),
            });
        }
        run.step(step, &open);
        open.retain(|&flow| {
            let done = run.arrived[flow]
                >= flows[flow].bytes - PACKET_BYTES.min(flows[flow].bytes / 100.0);
            if done {
                run.outcome.ends_s[flow] = now_s + params.step_s;
            }
            !done
        });
        if step.is_multiple_of(every) {
            every = run.watch(now_s, every);
        }
        step += 1;
    }
    run.outcome.time_s = run.outcome.ends_s.iter().copied().fold(0.0, f64::max);
    (senders.rates, senders.ended_s) = (run.rates, run.outcome.time_s);
    Ok(run.outcome)
}

/// Refuses flows that need too much memory, by an estimate from the flows, their hops, and credits
/// in flight.
fn check_memory(network: &Network, flows: &[Flow], params: &RunParams) -> Result<(), SimError> {
    let hops: usize = flows.iter().map(|flow| flow.links.len()).sum();
    let late = match params.transport {
        Transport::Admission { credit_s, .. } => (credit_s / params.step_s).ceil().max(0.0),
        _ => 0.0,
    };
    let bytes = flows.len() as f64 * (150.0 + 8.0 * late) + hops as f64 * 32.0;
    let what = format!("the queues of {} flows", flows.len());
    SimError::if_over(what, bytes, network.plan().memory_mib)
}

/// Refuses flows that need too much work. The estimate is the number of hops of the open flows
/// (half of all flows on average), times the number of steps in which the busiest link is busy.
fn check_work(network: &Network, flows: &[Flow], params: &RunParams) -> Result<(), SimError> {
    let mut bytes = vec![0.0; network.links() as usize];
    let mut hops = 0;
    for flow in flows {
        hops += flow.links.len();
        flow.links.iter().for_each(|link| bytes[*link as usize] += flow.bytes);
    }
    let busy = bytes.iter().zip(network.capacity()).filter(|(bytes, _)| **bytes > 0.0);
    let busiest_s = busy.map(|(bytes, capacity)| bytes / capacity).fold(0.0, f64::max);
    let times = 0.5 * hops as f64 * busiest_s.min(params.limit_s) / params.step_s;
    let what = format!("the queues of {} flows", flows.len());
    SimError::if_long(what, times, network.plan().work_millions)
}

impl<'a> Run<'a> {
    fn new(network: &'a Network, flows: &'a [Flow], params: &'a RunParams) -> Run<'a> {
        let links = network.links() as usize;
        let mut first = vec![0];
        for flow in flows {
            first.push(first[first.len() - 1] + flow.links.len());
        }
        let line_rate =
            |flow: &Flow| flow.links.first().map_or(0.0, |link| network.capacity()[*link as usize]);
        let alpha = match params.transport {
            Transport::Dcqcn(Dcqcn { alpha, .. }) => alpha,
            _ => 1.0,
        };
        let delay = match params.transport {
            Transport::Admission { credit_s, .. } => (credit_s / params.step_s).ceil() as usize,
            _ => 0,
        };
        Run {
            network,
            flows,
            params,
            links: flows.iter().flat_map(|flow| flow.links.iter().copied()).collect(),
            queued: vec![0.0; first[first.len() - 1]],
            marked: match params.transport {
                Transport::Dcqcn(_) => vec![0.0; first[first.len() - 1]],
                _ => Vec::new(),
            },
            first,
            sent: vec![0.0; flows.len()],
            arrived: vec![0.0; flows.len()],
            window: windows(flows, &params.transport),
            uncredited: vec![0.0; flows.len()],
            late: vec![vec![0.0; flows.len()]; delay],
            rates: flows.iter().map(|flow| dcqcn::Rate::new(line_rate(flow), alpha)).collect(),
            notices: vec![dcqcn::Notices::new(); flows.len()],
            total: vec![0.0; links],
            held: vec![0.0; links],
            under_way: vec![0.0; links],
            moved: vec![0.0; links],
            paused: vec![false; links],
            random: Random::new(params.seed),
            outcome: Outcome {
                ends_s: vec![0.0; flows.len()],
                queue_bytes_max: vec![0.0; links],
                carried_bytes: vec![0.0; links],
                used_max: vec![0.0; links],
                pauses: vec![0; links],
                paused_s: vec![0.0; links],
                watched: vec![Vec::new(); params.watched.len()],
                ..Outcome::default()
            },
        }
    }

    /// Returns the bytes that a sender can send in this step.
    fn wish(&self, flow: usize, now_s: f64) -> f64 {
        let of = &self.flows[flow];
        let after_s = of.after.map_or(0.0, |before| match self.outcome.ends_s[before as usize] {
            0.0 => f64::INFINITY,
            ended_s => ended_s,
        });
        if now_s < after_s + of.begins_s {
            return 0.0;
        }
        let under_way = self.sent[flow] - self.arrived[flow] + self.uncredited[flow];
        let room = (self.window[flow] - under_way).max(0.0);
        let rate = self.rates[flow].bytes_per_s() * self.params.step_s;
        rate.min(of.bytes - self.sent[flow]).min(room).max(0.0)
    }

    fn step(&mut self, step: usize, open: &[usize]) {
        let now_s = step as f64 * self.params.step_s;
        self.total.fill(0.0);
        for &flow in open {
            let first = self.first[flow];
            self.queued[first] = self.wish(flow, now_s);
            for hop in first..self.first[flow + 1] {
                self.total[self.links[hop] as usize] += self.queued[hop];
            }
        }
        self.serve(step, open);
        self.pause(open);
    }

    /// Returns the part of a link's queue that the link carries in a step.
    fn part(&self, link: Link) -> f64 {
        let link = link as usize;
        let carries = self.network.capacity()[link] * self.params.step_s;
        if self.paused[link] { 0.0 } else { (carries / self.total[link]).min(1.0) }
    }

    /// Moves the bytes that links carry in a step.
    fn serve(&mut self, step: usize, open: &[usize]) {
        let delay = self.late.len();
        let now_s = step as f64 * self.params.step_s;
        for &flow in open {
            let hops = self.first[flow]..self.first[flow + 1];
            let (mut came, mut came_marked) = (0.0, 0.0);
            for hop in hops.clone().rev() {
                let moved = match self.queued[hop] > 0.0 {
                    true => self.queued[hop] * self.part(self.links[hop]),
                    false => 0.0,
                };
                let marked = self.mark(hop, moved, hop == hops.start);
                self.queued[hop] -= moved;
                self.moved[self.links[hop] as usize] += moved;
                if hop + 1 == hops.end {
                    (came, came_marked) = (moved, marked);
                } else {
                    self.queued[hop + 1] += moved;
                    if marked > 0.0 {
                        self.marked[hop + 1] += marked;
                    }
                }
                if hop == hops.start {
                    self.sent[flow] += moved;
                    self.rates[flow].sent(moved);
                }
            }
            self.arrived[flow] += came;
            if let Transport::Dcqcn(dcqcn) = &self.params.transport {
                self.tell(dcqcn, flow, now_s, (came, came_marked));
            }
            if delay > 0 {
                let again = std::mem::replace(&mut self.late[step % delay][flow], came);
                self.uncredited[flow] += came - again;
            }
        }
    }

    /// Counts the bytes that switches hold, and pauses and resumes links.
    fn pause(&mut self, open: &[usize]) {
        self.held.fill(0.0);
        self.under_way.fill(0.0);
        for &flow in open {
            let hops = self.first[flow]..self.first[flow + 1];
            for hop in hops.start..hops.end.saturating_sub(1) {
                self.held[self.links[hop] as usize] += self.queued[hop + 1];
            }
            let receiver = self.links[hops.end - 1] as usize;
            self.under_way[receiver] += self.sent[flow] - self.arrived[flow];
            // Bytes that are not sent yet are in no switch's queue.
            self.total[self.links[hops.start] as usize] = 0.0;
        }
        let most = self.under_way.iter().copied().fold(0.0, f64::max);
        self.outcome.in_flight_bytes_max = self.outcome.in_flight_bytes_max.max(most);
        for link in 0..self.held.len() {
            let carried = std::mem::take(&mut self.moved[link]);
            let used = carried / (self.network.capacity()[link] * self.params.step_s);
            self.outcome.carried_bytes[link] += carried;
            self.outcome.used_max[link] = self.outcome.used_max[link].max(used);
            let most = &mut self.outcome.queue_bytes_max[link];
            *most = most.max(self.total[link]);
            let Some(buffer) = self.buffer(link as Link) else { continue };
            let held = self.held[link];
            if !self.paused[link] && held > buffer.pause_bytes {
                self.paused[link] = true;
                self.outcome.pauses[link] += 1;
            } else if self.paused[link] && held < buffer.resume_bytes {
                self.paused[link] = false;
            }
            if self.paused[link] {
                self.outcome.paused_s[link] += self.params.step_s;
            }
        }
    }

    /// Returns the buffer of the switch that a link leads to; none if it leads to a NIC.
    fn buffer(&self, link: Link) -> Option<Buffer> {
        let (tier, ..) = self.network.place(link)?;
        let tier = if self.network.is_up(link) { Some(tier) } else { tier.checked_sub(1) };
        self.params.buffers.get(tier?).copied()
    }

    /// Returns the marked bytes among those that leave a hop's queue: bytes that were marked
    /// before, and bytes that the switch marks now, with a probability that depends on the length
    /// of its queue.
    fn mark(&mut self, hop: usize, moved: f64, is_sender: bool) -> f64 {
        let Transport::Dcqcn(dcqcn) = &self.params.transport else { return 0.0 };
        if moved <= 0.0 || is_sender {
            return 0.0;
        }
        let before = self.marked[hop] * (moved / self.queued[hop]).min(1.0);
        self.marked[hop] -= before;
        let queue = self.total[self.links[hop] as usize];
        before + (moved - before).max(0.0) * dcqcn.marking.probability(queue)
    }

    /// Lets a flow's receiver notify the flow's sender of marks, and the sender react to earlier
    /// notices. A notice takes as long as a byte on the same path without queues.
    fn tell(&mut self, dcqcn: &Dcqcn, flow: usize, now_s: f64, (came, marked): (f64, f64)) {
        let packets = (came / PACKET_BYTES, if came > 0.0 { marked / came } else { 0.0 });
        if self.notices[flow].arrive(dcqcn, now_s, packets, &mut self.random) {
            let hops = self.first[flow + 1] - self.first[flow];
            self.rates[flow].will_hear(now_s + hops as f64 * self.params.step_s);
        }
        self.rates[flow].react(dcqcn, now_s);
    }

    /// Records watched queues; drops every other point when there are too many. Returns the number
    /// of steps between records from now on; `every` is that number until now.
    fn watch(&mut self, now_s: f64, every: usize) -> usize {
        for (link, points) in self.params.watched.iter().zip(&mut self.outcome.watched) {
            points.push((now_s, self.total[*link as usize]));
        }
        if self.outcome.watched.first().is_none_or(|points| points.len() < POINTS) {
            return every;
        }
        for points in &mut self.outcome.watched {
            let mut index = 0;
            points.retain(|_| {
                index += 1;
                index % 2 == 1
            });
        }
        every * 2
    }
}

/// Returns the limit of each flow's bytes in flight: the bytes of all slots that the receiver has
/// for each sender.
fn windows(flows: &[Flow], transport: &Transport) -> Vec<f64> {
    let Transport::Admission { slots, .. } = transport else {
        return vec![f64::INFINITY; flows.len()];
    };
    let mut senders = std::collections::BTreeMap::new();
    for flow in flows {
        *senders.entry(flow.links.last()).or_insert(0usize) += 1;
    }
    let window = |flow: &Flow| {
        let peers = senders.get(&flow.links.last()).copied().unwrap_or(1);
        let credits = f64::from(slots.equal_slots(peers) * slots.channels.max(1));
        credits * slots.slot_bytes as f64
    };
    flows.iter().map(window).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::flows::Flows;
    use crate::network::{Path, Port};
    use crate::presets::Zone;
    use crate::routing::{Key, Moment, Router, Scheme};

    fn network() -> Network {
        Network::new(Zone::default().plan().unwrap()).unwrap()
    }

    fn flow(network: &Network, from: u32, to: u32, bytes: f64) -> Flow {
        let mut router = Router::new(Scheme::Pinned, 0);
        let load = Flows::new(network, 0.0);
        let mut path = Path::default();
        let [from, to] = [from, to].map(|rank| network.port(rank));
        let key = Key { from, to: Port { ..to }, channel: 0, pair: 0 };
        router.route(network, &key, Moment::default(), &load.load(), &mut path).unwrap();
        let links = path.links.iter().map(|(link, _)| *link).collect();
        Flow { links, bytes, begins_s: 0.0, after: None }
    }

    fn params(transport: Transport) -> RunParams {
        RunParams {
            step_s: 0.5e-6,
            buffers: vec![Buffer::of(500e3), Buffer::of(4e6)],
            transport,
            limit_s: 1.0,
            seed: 1,
            watched: Vec::new(),
        }
    }

    fn admission(slots: u32, budget_bytes: usize) -> Transport {
        let slots = admission::Config {
            channels: 1,
            slots,
            slot_bytes: 1 << 17,
            slots_min: 1,
            budget_bytes,
            zero_copy_bytes_min: usize::MAX,
            registered_bytes_max: 0,
        };
        Transport::Admission { slots, credit_s: 4e-6 }
    }

    #[test]
    fn a_lone_flow_goes_at_line_rate_and_nothing_queues() {
        let network = network();
        let flows = [flow(&network, 0, 16, 10e6)];
        let outcome = run(&network, &flows, &params(Transport::PauseOnly)).unwrap();
        assert!((outcome.time_s / (10e6 / 50e9) - 1.0).abs() < 0.02, "{}", outcome.time_s);
        assert!(outcome.pauses.iter().all(|pauses| *pauses == 0));
        // The longest queue is one step's bytes.
        let most = outcome.queue_bytes_max.iter().copied().fold(0.0, f64::max);
        assert!(most <= 50e9 * 0.5e-6 * 1.01, "{most}");
    }

    #[test]
    fn more_work_than_is_allowed_is_refused() {
        let mut plan = Zone::default().plan().unwrap();
        plan.work_millions = 1;
        let network = Network::new(plan).unwrap();
        // Both flows take four links, in steps of half a microsecond: the small flow for 0.2 ms,
        // the large one for 3,000 times as long.
        let small = flow(&network, 0, 16, 10e6);
        run(&network, &[small], &params(Transport::PauseOnly)).unwrap();
        let large = flow(&network, 0, 16, 30e9);
        let error = run(&network, &[large], &params(Transport::PauseOnly)).unwrap_err();
        assert!(matches!(error, SimError::Work { needed_millions: 3, .. }), "{error}");
    }

    #[test]
    fn a_second_run_begins_with_the_senders_state_after_the_first() {
        let network = network();
        let flows: Vec<Flow> = (0..4).map(|from| flow(&network, from, 16, 20e6)).collect();
        let dcqcn = Dcqcn::default();
        let params = params(Transport::Dcqcn(dcqcn));
        let mut senders = Senders::default();
        let first = run_again(&network, &flows, &params, &mut senders).unwrap();
        assert!(senders.alpha() > 0.5, "{}", senders.alpha());
        let at_once = run_again(&network, &flows, &params, &mut senders.clone()).unwrap();
        senders.rest(&dcqcn, 100e-3);
        assert!(senders.alpha() < 1e-3, "{}", senders.alpha());
        let rested = run_again(&network, &flows, &params, &mut senders).unwrap();
        assert!(rested.time_s < first.time_s, "{} {}", rested.time_s, first.time_s);
        assert!(first.time_s < at_once.time_s, "{} {}", first.time_s, at_once.time_s);
    }

    #[test]
    fn incast_pauses_links_only_without_credits() {
        let network = network();
        let flows: Vec<Flow> = (0..12).map(|from| flow(&network, from, 16, 4e6)).collect();
        let ideal_s = 12.0 * 4e6 / 50e9;
        let free = run(&network, &flows, &params(Transport::PauseOnly)).unwrap();
        let admitted = run(&network, &flows, &params(admission(8, 1 << 20))).unwrap();
        for outcome in [&free, &admitted] {
            assert!((outcome.time_s / ideal_s - 1.0).abs() < 0.1, "{}", outcome.time_s / ideal_s);
        }
        let pauses = |outcome: &Outcome| outcome.pauses.iter().sum::<u32>();
        assert!(pauses(&free) > 0);
        assert_eq!(pauses(&admitted), 0);
        let Transport::Admission { slots, .. } = admission(8, 1 << 20) else { return };
        let credit_bytes = slots.equal_bytes(12) as f64;
        assert!(admitted.in_flight_bytes_max <= credit_bytes);
        assert!(admitted.in_flight_bytes_max > 0.5 * credit_bytes);
        let most = |outcome: &Outcome| outcome.queue_bytes_max.iter().copied().fold(0.0, f64::max);
        assert!(most(&admitted) <= 12.0 * f64::from(1 << 17) + 1.0, "{}", most(&admitted));
        // Per link, a switch holds at most its buffer and the bytes of one step.
        assert!(most(&free) < 12.0 * (500e3 + 50e9 * 0.5e-6 * 12.0), "{}", most(&free));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(12))]

        /// Checks that no link exceeds its capacity in a step, and that each carries the bytes of
        /// its flows.
        #[test]
        fn links_carry_the_bytes_of_their_flows(
            pairs in proptest::collection::vec((0u32..16, 16u32..32, 1u32..8), 1..12),
            which in 0..3,
        ) {
            let network = network();
            let flow = |(from, to, size): &(u32, u32, u32)| {
                flow(&network, *from, *to, f64::from(*size) * 1e5)
            };
            let flows: Vec<Flow> = pairs.iter().map(flow).collect();
            let transport = match which {
                0 => Transport::PauseOnly,
                1 => Transport::Dcqcn(Dcqcn::default()),
                _ => admission(4, 2 << 20),
            };
            let outcome = run(&network, &flows, &params(transport)).unwrap();
            prop_assert!(outcome.used_max.iter().all(|used| *used <= 1.0 + 1e-9));
            for (link, carried) in (0..).zip(&outcome.carried_bytes) {
                let on = flows.iter().filter(|flow| flow.links.contains(&link));
                let (count, bytes) =
                    on.fold((0.0, 0.0), |(count, sum), flow| (count + 1.0, sum + flow.bytes));
                let missing = bytes - carried;
                prop_assert!((-1.0..=count * PACKET_BYTES).contains(&missing), "{link}: {missing}");
            }
        }
    }

    #[test]
    fn a_window_shorter_than_the_round_trip_costs_bandwidth() {
        let network = network();
        let flows = [flow(&network, 0, 16, 20e6)];
        let time_s = |slots, credit_s| {
            let Transport::Admission { slots, .. } = admission(slots, 1 << 30) else { return 0.0 };
            let transport = Transport::Admission { slots, credit_s };
            run(&network, &flows, &params(transport)).unwrap().time_s
        };
        let line_s = 20e6 / 50e9;
        assert!(time_s(8, 4e-6) < 1.05 * line_s);
        // 128 KiB per round trip: four hops of half a microsecond, and 20 µs.
        let expected = 22e-6 * 50e9 / f64::from(1 << 17);
        let slow = time_s(1, 20e-6) / line_s;
        assert!((slow / expected - 1.0).abs() < 0.1, "{slow} {expected}");
    }

    #[test]
    fn links_are_paused_for_less_time_with_dcqcn_than_with_pauses_alone() {
        let network = network();
        let flows: Vec<Flow> = (0..4).map(|from| flow(&network, from, 16, 20e6)).collect();
        let dcqcn = Transport::Dcqcn(Dcqcn::default());
        let marked = run(&network, &flows, &params(dcqcn)).unwrap();
        let free = run(&network, &flows, &params(Transport::PauseOnly)).unwrap();
        let paused = |outcome: &Outcome| outcome.paused_s.iter().sum::<f64>();
        assert!(paused(&marked) < 0.7 * paused(&free), "{} {}", paused(&marked), paused(&free));
        assert!(marked.time_s >= free.time_s * 0.99);
    }
}
