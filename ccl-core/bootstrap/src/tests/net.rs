//! Control state machines of several ranks ([`Control`]), connected by a simulated network in
//! virtual time. Each connection keeps its bytes in order, with latencies drawn from a seed. Ranks
//! are killed, cut off, stopped, or leave, and the network is split for a while.

use super::secret;
use crate::*;
use ccl_core::time::Instant;
use ccl_core::types::Rank;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::sync::Arc;
use std::time::Duration;

/// Generator of numbers from a seed (SplitMix64).
#[derive(Clone, Debug)]
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Runs,
    Stopped,
    /// The process has ended: its connections close, and its port refuses.
    Ended,
    /// The host has ended: nothing answers.
    CutOff,
}

#[derive(Clone, Debug)]
enum Input {
    Bytes(ConnectionId, Vec<u8>),
    HangUp(ConnectionId),
    /// Another rank connected over this wire (an index into `Net::wires`).
    Accept(usize),
    Dialed(ConnectionId, usize),
    Failed(ConnectionId, bool),
}

#[derive(Clone, Debug)]
enum Event {
    To(Rank, Input),
    /// A wire, its receiving end, and bytes; `None` closes the wire.
    Wire(usize, usize, Option<Vec<u8>>),
    /// A connection attempt of a rank arrives at another rank.
    ConnectionAttempt(Rank, ConnectionId, Rank),
    Tick(Rank),
    Operation,
    Plan(usize),
}

struct Due(Instant, u64, Event);

impl PartialEq for Due {
    fn eq(&self, other: &Due) -> bool {
        (self.0, self.1) == (other.0, other.1)
    }
}
impl Eq for Due {}
impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Due) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Due {
    fn cmp(&self, other: &Due) -> std::cmp::Ordering {
        (other.0, other.1).cmp(&(self.0, self.1))
    }
}

pub(super) struct Node {
    pub(super) control: Control,
    pub(super) state: State,
    pub(super) completed: Arc<Completed>,
    /// The note on its progress that the rank gives when it is asked.
    pub(super) note: Note,
    /// All verdicts of this rank, each with the progress of all ranks when this rank got it.
    pub(super) verdicts: Vec<(Verdict, Vec<u64>)>,
    waiting: Vec<Input>,
    wires: BTreeMap<ConnectionId, (usize, usize)>,
    tick_at: Instant,
    /// Number of writes that the rank still makes before it is killed or cut off while it sends,
    /// and its state from then on.
    doom: Option<(u64, State)>,
}

/// Simulated connection between two ranks.
struct Wire {
    /// Rank and connection at both ends, as far as known.
    ends: [(Rank, Option<ConnectionId>); 2],
    /// Per end: time when the last bytes to it arrive. Later bytes do not overtake them.
    last: [Instant; 2],
    cut: bool,
    /// Per end: number of writes that still arrive there before a reset discards all later ones;
    /// `None` without a reset.
    reset_after: [Option<u64>; 2],
}

/// Fault or action of a rank, caused by a test.
#[derive(Clone, Copy, Debug)]
pub(super) enum Plan {
    Kill(Rank),
    CutOff(Rank),
    KillWhileSending(Rank, u64),
    CutOffWhileSending(Rank, u64),
    Stop(Rank),
    Resume(Rank),
    Leave(Rank),
    Abort(Rank),
    Overdue(Rank),
    /// Splits the network for this number of microseconds: the ranks below this one cannot reach
    /// the others. Bytes sent from one side to the other arrive once the network is whole again,
    /// unless a reset discards them.
    Split(Rank, u64),
    /// Cuts the path between this rank and the next one, as `Split` cuts all paths between the two
    /// sides.
    Unlink(Rank, u64),
}

pub(super) struct Net {
    pub(super) nodes: Vec<Node>,
    pub(super) now: Instant,
    pub(super) latency_us_max: u64,
    pub(super) random: Random,
    wires: Vec<Wire>,
    /// Rank of the last [`Plan::Split`], and the time when the network is whole again.
    split: (Rank, Instant),
    /// Rank of the last [`Plan::Unlink`], and the time when the path works again.
    unlinked: (Rank, Instant),
    events: BinaryHeap<Due>,
    count: u64,
    plans: Vec<Plan>,
    carried_out: Vec<(Instant, Plan)>,
}

impl Net {
    pub(super) fn new(ranks: u32, seed: u64) -> Net {
        let control = |rank| {
            let (timing, completed) = (ControlTiming::default(), Arc::default());
            let completed: Arc<Completed> = completed;
            let control =
                Control::new(rank, ranks, secret(), timing, completed.clone(), Instant::ZERO);
            (control, completed)
        };
        Net::of((0..ranks).map(control).collect(), seed)
    }

    /// Returns a network of ranks that have joined at time zero.
    pub(super) fn of(controls: Vec<(Control, Arc<Completed>)>, seed: u64) -> Net {
        let ranks = controls.len() as Rank;
        let mut net = Net {
            nodes: Vec::new(),
            now: Instant::ZERO,
            latency_us_max: 1_000,
            random: Random(seed),
            wires: Vec::new(),
            split: (0, Instant::ZERO),
            unlinked: (0, Instant::ZERO),
            events: BinaryHeap::new(),
            count: 0,
            plans: Vec::new(),
            carried_out: Vec::new(),
        };
        for (control, completed) in controls {
            net.nodes.push(Node {
                control,
                state: State::Runs,
                completed,
                note: super::notes::computing(0),
                verdicts: Vec::new(),
                waiting: Vec::new(),
                wires: BTreeMap::new(),
                tick_at: Instant::from_nanos(u64::MAX),
                doom: None,
            });
        }
        (0..ranks).for_each(|rank| net.pump(rank));
        net
    }

    /// Returns a network whose ranks are linked.
    pub(super) fn linked(ranks: u32, seed: u64) -> Net {
        let mut net = Net::new(ranks, seed);
        net.run_for(300);
        assert!(net.nodes.iter().all(|node| node.control.unlinked().is_empty()));
        net
    }

    fn push(&mut self, at: Instant, event: Event) {
        self.count += 1;
        self.events.push(Due(at, self.count, event));
    }

    pub(super) fn plan(&mut self, after_us: u64, plan: Plan) {
        self.plans.push(plan);
        let at = self.now + Duration::from_micros(after_us);
        self.push(at, Event::Plan(self.plans.len() - 1));
    }

    /// Lets ranks complete operations from now on; no rank gets more than one operation ahead.
    pub(super) fn operate(&mut self) {
        self.push(self.now, Event::Operation);
    }

    pub(super) fn run_for(&mut self, ms: u64) {
        let end = self.now + Duration::from_millis(ms);
        while self.events.peek().is_some_and(|due| due.0 <= end) {
            let Some(Due(at, _, event)) = self.events.pop() else { break };
            self.now = at;
            self.happen(event);
        }
        self.now = end;
    }

    fn latency(&mut self) -> Duration {
        Duration::from_micros(1 + self.random.below(self.latency_us_max))
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::To(rank, input) => self.input(rank, input),
            Event::Wire(wire, end, bytes) => {
                let Wire { ends, cut, reset_after, .. } = &mut self.wires[wire];
                let (rank, Some(connection)) = ends[end] else { return };
                let is_lost = reset_after[end] == Some(0) && bytes.is_some();
                reset_after[end] = reset_after[end].map(|writes| writes.saturating_sub(1));
                if !*cut && !is_lost {
                    let hang_up = Input::HangUp(connection);
                    self.input(rank, bytes.map_or(hang_up, |b| Input::Bytes(connection, b)));
                }
            }
            Event::ConnectionAttempt(from, connection, to) => self.attempt(from, connection, to),
            Event::Tick(rank) => {
                let node = &mut self.nodes[rank as usize];
                if node.tick_at == self.now {
                    node.tick_at = Instant::from_nanos(u64::MAX);
                    if node.state == State::Runs {
                        node.control.tick(self.now);
                        self.pump(rank);
                    }
                }
            }
            Event::Operation => self.operation(),
            Event::Plan(index) => self.carry_out(self.plans[index]),
        }
    }

    fn operation(&mut self) {
        let rank = self.random.below(self.nodes.len() as u64) as usize;
        let slowest = self.nodes.iter().map(|node| node.completed.number()).min();
        let node = &self.nodes[rank];
        let number = node.completed.number();
        if node.state == State::Runs && Some(number) <= slowest {
            let _ = node.completed.finish(number + 1);
        }
        self.push(self.now + Duration::from_micros(200), Event::Operation);
    }

    /// Returns the moment from which bytes can pass between two ranks.
    fn passes_at(&self, ranks: [Rank; 2]) -> Instant {
        let ((bound, whole_at), (rank, linked_at)) = (self.split, self.unlinked);
        let is_split = (ranks[0] < bound) != (ranks[1] < bound);
        let is_unlinked = ranks.contains(&rank) && ranks.contains(&(rank + 1));
        let split_until = if is_split { whole_at } else { self.now };
        let unlinked_until = if is_unlinked { linked_at } else { self.now };
        self.now.max(split_until).max(unlinked_until)
    }

    fn attempt(&mut self, from: Rank, connection: ConnectionId, to: Rank) {
        let passes_at = self.passes_at([from, to]);
        if passes_at > self.now {
            return self.push(passes_at, Event::ConnectionAttempt(from, connection, to));
        }
        let back = self.now + self.latency();
        match self.nodes[to as usize].state {
            State::CutOff => {}
            State::Ended => self.push(back, Event::To(from, Input::Failed(connection, true))),
            // The operating system accepts connections for a stopped process as well.
            State::Runs | State::Stopped => {
                self.wires.push(Wire {
                    ends: [(from, Some(connection)), (to, None)],
                    last: [back; 2],
                    cut: false,
                    reset_after: [None; 2],
                });
                let wire = self.wires.len() - 1;
                self.input(to, Input::Accept(wire));
                self.push(back, Event::To(from, Input::Dialed(connection, wire)));
            }
        }
    }

    fn input(&mut self, rank: Rank, input: Input) {
        let nonce = [self.random.next() as u8; 32];
        let node = &mut self.nodes[rank as usize];
        match node.state {
            State::Runs => {}
            State::Stopped => return node.waiting.push(input),
            State::Ended | State::CutOff => {
                // The operating system closes the connection that this rank had dialled and the
                // other rank has accepted.
                if let (State::Ended, Input::Dialed(_, wire)) = (node.state, input) {
                    self.transmit(wire, 0, None);
                }
                return;
            }
        }
        match input {
            Input::Bytes(connection, bytes) => {
                node.control.received(connection, &bytes, self.now);
            }
            Input::HangUp(connection) => {
                node.wires.remove(&connection);
                node.control.hung_up(connection, self.now);
            }
            Input::Accept(wire) => {
                let connection = node.control.accepted(nonce, self.now);
                node.wires.insert(connection, (wire, 1));
                self.wires[wire].ends[1].1 = Some(connection);
            }
            Input::Dialed(connection, wire) => {
                node.wires.insert(connection, (wire, 0));
                node.control.dialed(connection, nonce, self.now);
            }
            Input::Failed(connection, refused) => {
                node.control.dial_failed(connection, refused, self.now);
            }
        }
        self.pump(rank);
    }

    /// Sends bytes from one end of a wire; `None` closes the wire.
    fn transmit(&mut self, wire: usize, from: usize, bytes: Option<Vec<u8>>) {
        let to = 1 - from;
        let passes_at = self.passes_at(self.wires[wire].ends.map(|(rank, _)| rank));
        let at = self.wires[wire].last[to].max(passes_at + self.latency());
        if bytes.is_none() && self.now < self.split.1.max(self.unlinked.1) {
            // Linux answers bytes for a closed socket with a reset. Bytes of the closing side that
            // have not arrived before the reset are lost.
            self.wires[wire].reset_after[to] =
                (self.random.below(2) == 0).then(|| self.random.below(5));
        }
        self.wires[wire].last[to] = at;
        self.push(at, Event::Wire(wire, to, bytes));
    }

    /// Carries out what the control state of a rank asks for.
    pub(super) fn pump(&mut self, rank: Rank) {
        let index = rank as usize;
        while let Some((connection, to)) = self.nodes[index].control.next_dial() {
            let at = self.now + self.latency();
            self.push(at, Event::ConnectionAttempt(rank, connection, to));
        }
        if self.nodes[index].control.wants_rendezvous_port() {
            self.nodes[index].control.set_rendezvous_port(1000 + rank as u16, self.now);
        }
        if self.nodes[index].control.wants_note() {
            let node = &mut self.nodes[index];
            node.control.note(node.note.clone(), self.now);
        }
        let wires = self.nodes[index].wires.clone();
        for (connection, (wire, end)) in wires {
            let node = &mut self.nodes[index];
            let bytes = node.control.outbox(connection).to_vec();
            if !bytes.is_empty() {
                node.control.sent(connection, bytes.len());
                if let Some((left, state)) = &mut node.doom {
                    if *left == 0 {
                        let state = *state;
                        return self.end(rank, state);
                    }
                    *left -= 1;
                }
                self.transmit(wire, end, Some(bytes));
            }
            let node = &mut self.nodes[index];
            if node.control.is_over(connection) {
                node.wires.remove(&connection);
                self.transmit(wire, end, None);
            }
        }
        self.remember(index);
        let node = &mut self.nodes[index];
        let due = node.control.poll_timeout().max(self.now + Duration::from_nanos(1));
        if due < node.tick_at {
            node.tick_at = due;
            self.push(due, Event::Tick(rank));
        }
    }

    /// Records a rank's new verdict. Call this after the rank's messages are sent: a rank that ends
    /// while it sends has not acted on its verdict, and its verdict must not be recorded.
    fn remember(&mut self, index: usize) {
        let Some(verdict) = self.nodes[index].control.last_verdict().cloned() else { return };
        let known = self.nodes[index].verdicts.last();
        if known.is_none_or(|(known, _)| known.epoch < verdict.epoch) {
            let far = self.nodes.iter().map(|node| node.completed.number()).collect();
            self.nodes[index].verdicts.push((verdict, far));
        }
    }

    fn end(&mut self, rank: Rank, state: State) {
        let node = &mut self.nodes[rank as usize];
        node.state = state;
        let wires = std::mem::take(&mut node.wires);
        for (wire, end) in wires.into_values() {
            match state {
                State::CutOff => self.wires[wire].cut = true,
                _ => self.transmit(wire, end, None),
            }
        }
    }

    pub(super) fn carry_out(&mut self, plan: Plan) {
        let (Plan::Kill(rank)
        | Plan::CutOff(rank)
        | Plan::KillWhileSending(rank, _)
        | Plan::CutOffWhileSending(rank, _)
        | Plan::Stop(rank)
        | Plan::Resume(rank)
        | Plan::Leave(rank)
        | Plan::Abort(rank)
        | Plan::Overdue(rank)
        | Plan::Split(rank, _)
        | Plan::Unlink(rank, _)) = plan;
        let now = self.now;
        self.carried_out.push((now, plan));
        let node = &mut self.nodes[rank as usize];
        match (plan, node.state) {
            (Plan::Kill(_), State::Runs | State::Stopped) => self.end(rank, State::Ended),
            (Plan::CutOff(_), State::Runs | State::Stopped) => self.end(rank, State::CutOff),
            (Plan::KillWhileSending(_, after), State::Runs) => {
                node.doom = Some((after, State::Ended));
            }
            (Plan::CutOffWhileSending(_, after), State::Runs) => {
                node.doom = Some((after, State::CutOff));
            }
            (Plan::Stop(_), State::Runs) => node.state = State::Stopped,
            (Plan::Resume(_), State::Stopped) => {
                node.state = State::Runs;
                let waiting = std::mem::take(&mut node.waiting);
                waiting.into_iter().for_each(|input| self.input(rank, input));
                self.nodes[rank as usize].control.tick(now);
                self.pump(rank);
            }
            (Plan::Leave(_), State::Runs) => {
                node.control.leave();
                self.pump(rank);
                self.plan(2_000_000, Plan::Kill(rank));
            }
            (Plan::Abort(_), State::Runs) => {
                node.control.report(rank, "gave up".to_owned(), now);
                self.pump(rank);
            }
            (Plan::Split(_, us), _) => self.split = (rank, now + Duration::from_micros(us)),
            (Plan::Unlink(_, us), _) => self.unlinked = (rank, now + Duration::from_micros(us)),
            (Plan::Overdue(_), State::Runs) => {
                node.control.overdue(Duration::from_secs(1), now);
                self.pump(rank);
            }
            _ => {}
        }
    }

    /// Resumes stopped ranks, and spares the ranks that were to end in the middle of sending.
    pub(super) fn calm(&mut self) {
        for rank in 0..self.nodes.len() as Rank {
            self.nodes[rank as usize].doom = None;
            self.carry_out(Plan::Resume(rank));
        }
    }

    /// Describes what happened, and what became of each rank.
    pub(super) fn story(&self) -> String {
        use std::fmt::Write;
        let mut story = format!("{} ranks\n", self.nodes.len());
        for (at, plan) in &self.carried_out {
            let _ = writeln!(story, "{} us: {plan:?}", at.as_nanos() / 1000);
        }
        for (rank, node) in self.nodes.iter().enumerate() {
            let links = node.control.neighbours();
            let _ = writeln!(story, "rank {rank} {:?}, linked with {links:?}", node.state);
            let _ = writeln!(story, "    {}", node.control.summary());
        }
        story
    }

    pub(super) fn running(&self) -> BTreeSet<Rank> {
        let runs = |rank: &Rank| self.nodes[*rank as usize].state == State::Runs;
        (0..self.nodes.len() as Rank).filter(runs).collect()
    }

    pub(super) fn failure(&self, rank: Rank) -> Option<String> {
        self.nodes[rank as usize].control.failure().map(ToString::to_string)
    }
}
