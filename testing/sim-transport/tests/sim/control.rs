//! Control planes of a world's ranks: the real state machines, over in-order connections in virtual
//! time.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use ccl_bootstrap::{Completed, ConnectionId, Control, ControlTiming, Secret};
use ccl_core::time::Instant;
use ccl_transport_sim::{Cut, Random};

/// Input of a rank's control plane.
#[derive(Debug)]
enum Input {
    Bytes(ConnectionId, Vec<u8>),
    HangUp(ConnectionId),
    /// Incoming connection over this wire.
    Accept(usize),
    Dialed(ConnectionId, usize),
    Refused(ConnectionId),
    /// Connection of a stranger, which sends these bytes and nothing afterwards.
    Stranger(Vec<u8>),
}

#[derive(Debug)]
enum Event {
    To(u32, Input),
    /// Bytes for one end of a wire; `None` is the end of the stream.
    Wire(usize, usize, Option<Vec<u8>>),
    /// A rank (the first field) has dialed another rank (the last field), whose kernel now accepts
    /// or refuses the connection.
    ConnectionAttempt(u32, ConnectionId, u32),
}

/// Wire: for each end, its rank, its connection if known, and the arrival time of the last bytes
/// sent to it.
#[derive(Debug)]
struct Wire {
    ends: [(u32, Option<ConnectionId>); 2],
    last: [Instant; 2],
}

/// Control plane of one rank.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) control: Control,
    pub(crate) completed: Arc<Completed>,
    inbox: VecDeque<Input>,
    wires: BTreeMap<ConnectionId, (usize, usize)>,
    dead: bool,
}

/// Control planes of all ranks.
#[derive(Debug)]
pub(crate) struct ControlNet {
    pub(crate) nodes: Vec<Node>,
    pub(crate) latency: Duration,
    pub(crate) cut: Option<Cut>,
    wires: Vec<Wire>,
    events: BTreeMap<(Instant, u64), Event>,
    count: u64,
    random: Random,
}

impl ControlNet {
    pub(crate) fn new(ranks: u32, timing: ControlTiming, now: Instant, seed: u64) -> ControlNet {
        let node = |rank| {
            let completed = Arc::new(Completed::default());
            let secret = Secret::from_bytes([5; 32]);
            let control = Control::new(rank, ranks, secret, timing, completed.clone(), now);
            let (inbox, wires) = (VecDeque::new(), BTreeMap::new());
            Node { control, completed, inbox, wires, dead: false }
        };
        ControlNet {
            nodes: (0..ranks).map(node).collect(),
            latency: Duration::from_micros(50),
            cut: None,
            wires: Vec::new(),
            events: BTreeMap::new(),
            count: 0,
            random: Random::new(seed),
        }
    }

    /// Returns the time of the next event, or of the next timeout of a rank for which `runs` is
    /// true, whichever comes first.
    pub(crate) fn next_event(&self, runs: impl Fn(u32) -> bool) -> Option<Instant> {
        let ticks = (0u32..).zip(&self.nodes).filter(|(rank, node)| runs(*rank) && !node.dead);
        let ticks = ticks.map(|(_, node)| node.control.poll_timeout());
        ticks.chain(self.events.keys().next().map(|(at, _)| *at)).min()
    }

    fn push(&mut self, at: Instant, event: Event) {
        self.count += 1;
        self.events.insert((at, self.count), event);
    }

    /// Returns the arrival time of bytes that are sent now; `None` if they never arrive. Bytes that
    /// a cut loses are sent again after the cut.
    fn arrival(&mut self, from: u32, to: u32, now: Instant) -> Option<Instant> {
        let late = Duration::from_nanos(self.random.below(self.latency.as_nanos() as u64));
        match self.cut.as_ref().filter(|cut| cut.parts(from, to, now)) {
            None => Some(now + self.latency + late),
            Some(cut) if cut.until == FOREVER => None,
            Some(cut) => Some(cut.until + self.latency + late),
        }
    }

    /// Delivers all events up to `now` to their ranks.
    pub(crate) fn deliver(&mut self, now: Instant) {
        while let Some(entry) = self.events.first_entry().filter(|entry| entry.key().0 <= now) {
            match entry.remove() {
                Event::To(rank, input) => self.hand(rank, input, now),
                Event::Wire(wire, end, bytes) => {
                    let (rank, Some(connection)) = self.wires[wire].ends[end] else { continue };
                    let end = Input::HangUp(connection);
                    self.hand(rank, bytes.map_or(end, |b| Input::Bytes(connection, b)), now);
                }
                Event::ConnectionAttempt(from, connection, to) => {
                    self.verdict(from, connection, to, now)
                }
            }
        }
    }

    fn hand(&mut self, rank: u32, input: Input, now: Instant) {
        let node = &mut self.nodes[rank as usize];
        match input {
            // The kernel closes connections that a dead process was opening.
            Input::Dialed(_, wire) if node.dead => self.transmit(wire, 0, None, now),
            _ if node.dead => {}
            input => node.inbox.push_back(input),
        }
    }

    fn verdict(&mut self, from: u32, connection: ConnectionId, to: u32, now: Instant) {
        let Some(back) = self.arrival(to, from, now) else { return };
        if self.nodes[to as usize].dead {
            return self.push(back, Event::To(from, Input::Refused(connection)));
        }
        // The kernel accepts connections for a stopped process too.
        let ends = [(from, Some(connection)), (to, None)];
        self.wires.push(Wire { ends, last: [back; 2] });
        let wire = self.wires.len() - 1;
        self.hand(to, Input::Accept(wire), now);
        self.push(back, Event::To(from, Input::Dialed(connection, wire)));
    }

    /// Sends from one end of a wire.
    fn transmit(&mut self, wire: usize, from: usize, bytes: Option<Vec<u8>>, now: Instant) {
        let ends = self.wires[wire].ends;
        let Some(at) = self.arrival(ends[from].0, ends[1 - from].0, now) else { return };
        let at = at.max(self.wires[wire].last[1 - from]);
        self.wires[wire].last[1 - from] = at;
        self.push(at, Event::Wire(wire, 1 - from, bytes));
    }

    /// Gives a rank's control plane its turn.
    pub(crate) fn turn(&mut self, rank: u32, now: Instant) {
        let index = rank as usize;
        while let Some(input) = self.nodes[index].inbox.pop_front() {
            let nonce = [self.random.bits() as u8; 32];
            let node = &mut self.nodes[index];
            let control = &mut node.control;
            match input {
                Input::Bytes(connection, bytes) => control.received(connection, &bytes, now),
                Input::HangUp(connection) => {
                    node.wires.remove(&connection);
                    control.hung_up(connection, now);
                }
                Input::Accept(wire) => {
                    let connection = control.accepted(nonce, now);
                    node.wires.insert(connection, (wire, 1));
                    self.wires[wire].ends[1].1 = Some(connection);
                }
                Input::Dialed(connection, wire) => {
                    node.wires.insert(connection, (wire, 0));
                    control.dialed(connection, nonce, now);
                }
                Input::Refused(connection) => control.dial_failed(connection, true, now),
                Input::Stranger(bytes) => {
                    if control.has_room(now) {
                        let connection = control.accepted(nonce, now);
                        node.wires.insert(connection, NOWHERE);
                        control.received(connection, &bytes, now);
                    }
                }
            }
        }
        let node = &mut self.nodes[index];
        if node.control.poll_timeout() <= now {
            node.control.tick(now);
        }
        self.pump(rank, now);
    }

    fn pump(&mut self, rank: u32, now: Instant) {
        let index = rank as usize;
        while let Some((connection, to)) = self.nodes[index].control.next_dial() {
            if let Some(at) = self.arrival(rank, to, now) {
                self.push(at, Event::ConnectionAttempt(rank, connection, to));
            }
        }
        if self.nodes[index].control.wants_rendezvous_port() {
            self.nodes[index].control.set_rendezvous_port(1000 + rank as u16, now);
        }
        for (connection, (wire, end)) in self.nodes[index].wires.clone() {
            let node = &mut self.nodes[index];
            let bytes = node.control.outbox(connection).to_vec();
            node.control.sent(connection, bytes.len());
            let over = node.control.is_over(connection);
            if over {
                node.wires.remove(&connection);
            }
            if (wire, end) == NOWHERE {
                continue;
            }
            if !bytes.is_empty() {
                self.transmit(wire, end, Some(bytes), now);
            }
            if over {
                self.transmit(wire, end, None, now);
            }
        }
    }

    /// Ends a rank's process.
    pub(crate) fn kill(&mut self, rank: u32, now: Instant) {
        let node = &mut self.nodes[rank as usize];
        node.dead = true;
        let wires = std::mem::take(&mut node.wires).into_values();
        for (wire, end) in wires.filter(|wire| *wire != NOWHERE) {
            self.transmit(wire, end, None, now);
        }
    }

    /// Connects a stranger to a rank. The stranger sends only these bytes and never closes.
    pub(crate) fn stranger(&mut self, rank: u32, bytes: Vec<u8>, now: Instant) {
        self.hand(rank, Input::Stranger(bytes), now);
    }
}

/// End time of a cut that lasts forever.
pub(crate) const FOREVER: Instant = Instant::from_nanos(u64::MAX);
/// Wire of a stranger; bytes sent to it are dropped.
const NOWHERE: (usize, usize) = (usize::MAX, 0);
