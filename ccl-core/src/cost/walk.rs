//! Simulation of a collective: the executions of all ranks run in virtual time.
//!
//! The links of [`engine`] are modelled as ports and latencies. A fold takes a time per byte. A
//! message waits until the sender's port is free, and then until the receiver's port is free. A
//! rank sees a message once it has arrived.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::convert::Infallible;

use super::engine;
use crate::execution::{Execution, Link, Message, Operand, Ports, Task};
use crate::topology::Hosts;
use crate::types::Rank;

/// Costs of a rank's processor, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Processor {
    /// Time to begin a collective and to end it, together.
    pub call_ns: f64,
    /// Time for each fold, regardless of its length.
    pub fold_ns: f64,
    /// Time for each byte that a fold reads or writes in a slot or in scratch, which stay in cache.
    pub slot_ns: f64,
    /// Times for each byte of the caller's buffers: for buffers up to the first size of
    /// [`NEAR_BYTES`], for buffers up to the second size, and for larger buffers.
    pub memory_ns: [f64; 3],
}

/// Two sizes in bytes. The model assumes that buffers up to the first size stay in a processor's
/// own cache, and that buffers up to the second size stay in a cache that processors share.
pub const NEAR_BYTES: [usize; 2] = [1 << 20, 16 << 20];

impl Processor {
    /// Returns the time of a task of `bytes` bytes, in nanoseconds, with buffers of `buffer_bytes`.
    pub(super) fn fold(&self, task: &Task<'_>, bytes: f64, buffer_bytes: usize) -> f64 {
        let byte_ns = |operand: &Operand| {
            self.byte_ns(matches!(operand, Operand::Input(_) | Operand::Output(_)), buffer_bytes)
        };
        let all = task.sources.iter().chain(task.targets);
        self.fold_ns + bytes * all.map(byte_ns).sum::<f64>()
    }

    /// Returns the time of a byte that a fold reads or writes, in nanoseconds. If `is_user`, the
    /// byte is in the caller's buffers, the larger of which has `buffer_bytes` bytes; otherwise it
    /// is in a slot or in scratch.
    pub(super) fn byte_ns(&self, is_user: bool, buffer_bytes: usize) -> f64 {
        let far = NEAR_BYTES.iter().filter(|near| buffer_bytes > **near).count();
        if is_user { self.memory_ns[far] } else { self.slot_ns }
    }
}

/// Costs of a connection between two ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hop {
    /// Time that each message takes on either processor: on the sender's to send it, on the
    /// receiver's to accept it.
    pub message_ns: f64,
    /// Time of either processor for each byte of a message.
    pub byte_ns: f64,
    /// Latency of a message, beyond its time at the ports.
    pub latency_ns: f64,
    /// Bandwidth of a port in one direction, in bytes per second.
    pub bytes_per_s: f64,
}

/// Owner of ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// One port for each rank.
    Rank,
    /// One port for each host, which all its ranks share.
    Host,
}

/// Model of ranks and of the links between them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Model {
    /// Processor of each rank.
    pub processor: Processor,
    /// Links between ranks of a host.
    pub within: Hop,
    /// Links between hosts.
    pub between: Hop,
    /// Owner of the ports between hosts.
    pub network_ports: Owner,
}

/// Result of [`walk`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Walked {
    /// Time until the last rank is done, in nanoseconds.
    pub time_ns: f64,
    /// Busy time of the busiest processor.
    pub processor_ns: f64,
    /// Busy time of the busiest port within hosts.
    pub within_ns: f64,
    /// Busy time of the busiest port between hosts.
    pub between_ns: f64,
    /// Number of messages of all ranks.
    pub messages: u64,
    /// Bytes of these messages that crossed between hosts.
    pub network_bytes: u64,
}

/// Error for ranks that wait for each other in a cycle, for lack of slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("with {slots} slots the ranks wait for each other for ever")]
pub struct Stuck {
    slots: u32,
}

/// Time in picoseconds: sums of many short times stay exact.
type Time = u64;

/// Longest time of a single step, about five hours; longer ones are clamped.
const PICOSECONDS_MAX: Time = 1 << 54;
/// Largest number of slots of a link in the model; further slots of a link are left out.
const SLOTS_MAX: u32 = 1 << 12;

fn picoseconds(ns: f64) -> Time {
    // The bound leaves room for sums of many such times; a larger sum saturates.
    ((ns * 1e3 + 0.5).max(0.0) as Time).min(PICOSECONDS_MAX)
}

/// One direction of a link on a channel.
#[derive(Debug, Default)]
struct Pipe {
    /// Arrival times of the messages under way.
    arriving: VecDeque<Time>,
    /// Times from which free slots can be filled.
    free: VecDeque<Time>,
}

#[derive(Debug, Default, Clone, Copy)]
struct Port {
    free: Time,
    busy: Time,
}

/// An event of virtual time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A rank checks for work.
    Look(Rank),
    /// The first byte of a message reaches the receiver's port.
    Reach { from: Rank, to: Rank, channel: u32, bytes: usize },
}

struct World<'m> {
    model: &'m Model,
    scene: Scene<'m>,
    seen: &'m mut dyn FnMut(&Left),
    pipes: Vec<Pipe>,
    /// Ports within hosts, out of and into each rank.
    within: Vec<[Port; 2]>,
    /// Ports between hosts, out of and into each owner.
    between: Vec<[Port; 2]>,
    now: Vec<Time>,
    busy: Vec<Time>,
    /// Time at which each busy rank checks for work again, if that event is scheduled.
    again: Vec<Option<Time>>,
    is_done: Vec<bool>,
    events: BinaryHeap<Reverse<(Time, u64, Event)>>,
    /// Number of events so far; events of the same time happen in the order of their creation.
    turn: u64,
    messages: u64,
    network_bytes: u64,
}

/// View of the world from one rank, for one fold.
struct RankPorts<'w, 'm> {
    world: &'w mut World<'m>,
    rank: Rank,
    /// True if the rank has folded. All links then count as not ready: the rank begins no further
    /// fold that uses links until all events up to the end of its present work have been handled.
    has_folded: bool,
}

/// Parameters of [`walk`].
#[derive(Clone, Copy, Debug)]
pub struct Scene<'a> {
    /// Parallel channels per pair of ranks.
    pub channels: u32,
    /// Slots of each link, on each channel.
    pub slots: u32,
    /// Bytes of an element.
    pub element_bytes: usize,
    /// Bytes of a rank's larger buffer.
    pub buffer_bytes: usize,
    /// Placement of the ranks on hosts.
    pub hosts: &'a Hosts,
}

/// A message that leaves its sender.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Left {
    /// Time at which the message starts to leave, in nanoseconds.
    pub at_ns: f64,
    /// Sender of the message.
    pub from: Rank,
    /// Receiver of the message.
    pub to: Rank,
    /// Bytes of payload.
    pub bytes: usize,
}

/// Runs the started executions of all ranks to their end, and reports every message as it leaves.
///
/// # Errors
///
/// When the executions cannot end.
pub fn walk(
    executions: &mut [Execution],
    scene: &Scene<'_>,
    model: &Model,
    seen: &mut dyn FnMut(&Left),
) -> Result<Walked, Stuck> {
    let mut world = World::new(executions.len(), scene, model, seen);
    let Ok(open) = engine::run(&mut world, executions);
    if open.is_empty() { Ok(world.walked()) } else { Err(Stuck { slots: scene.slots }) }
}

impl<'m> engine::World for World<'m> {
    type Error = Infallible;
    type Ports<'w>
        = RankPorts<'w, 'm>
    where
        Self: 'w;

    fn next(&mut self) -> Result<Option<Rank>, Infallible> {
        while let Some(Reverse((time, _, event))) = self.events.pop() {
            let rank = match event {
                Event::Look(rank) => rank,
                Event::Reach { from, to, channel, bytes } => {
                    self.reach(time, from, Link { peer: to, channel }, bytes);
                    continue;
                }
            };
            let index = rank as usize;
            if self.is_done[index] {
                continue;
            }
            if self.again[index] == Some(time) {
                self.again[index] = None;
            }
            if self.now[index] > time {
                // The rank is still busy.
                self.look_again(rank);
                continue;
            }
            self.now[index] = time;
            return Ok(Some(rank));
        }
        Ok(None)
    }

    fn ports(&mut self, rank: Rank) -> RankPorts<'_, 'm> {
        RankPorts { world: self, rank, has_folded: false }
    }

    /// Schedules the rank's next check for work, for the time when its present work ends.
    fn moved(&mut self, rank: Rank) -> bool {
        self.look_again(rank);
        false
    }

    fn done(&mut self, rank: Rank) {
        self.is_done[rank as usize] = true;
    }
}

impl<'m> World<'m> {
    fn new(
        ranks: usize,
        scene: &Scene<'m>,
        model: &'m Model,
        seen: &'m mut dyn FnMut(&Left),
    ) -> World<'m> {
        let Scene { channels, hosts, .. } = *scene;
        let channels = channels.max(1);
        let slots = std::iter::repeat_n(0, scene.slots.min(SLOTS_MAX) as usize);
        let mut pipes = Vec::new();
        pipes.resize_with(ranks * ranks * channels as usize, || Pipe {
            arriving: VecDeque::new(),
            free: slots.clone().collect(),
        });
        let owners = match model.network_ports {
            Owner::Rank => ranks,
            Owner::Host => hosts.count() as usize,
        };
        let begin = picoseconds(model.processor.call_ns / 2.0);
        let mut world = World {
            model,
            scene: Scene { channels, ..*scene },
            seen,
            pipes,
            within: vec![[Port::default(); 2]; ranks],
            between: vec![[Port::default(); 2]; owners],
            now: vec![begin; ranks],
            busy: vec![0; ranks],
            again: vec![None; ranks],
            is_done: vec![false; ranks],
            events: BinaryHeap::new(),
            turn: 0,
            messages: 0,
            network_bytes: 0,
        };
        (0..ranks as Rank).for_each(|rank| world.at(begin, Event::Look(rank)));
        world
    }

    fn at(&mut self, time: Time, event: Event) {
        self.turn += 1;
        self.events.push(Reverse((time, self.turn, event)));
    }

    /// Schedules a check for work for the time when the rank's present work ends. All arrivals
    /// until then share this check.
    fn look_again(&mut self, rank: Rank) {
        let time = self.now[rank as usize];
        if self.again[rank as usize] != Some(time) {
            self.again[rank as usize] = Some(time);
            self.at(time, Event::Look(rank));
        }
    }

    fn walked(&self) -> Walked {
        let most = |times: &mut dyn Iterator<Item = Time>| times.max().unwrap_or(0) as f64 / 1e3;
        let ports = |ports: &[[Port; 2]]| most(&mut ports.iter().flatten().map(|port| port.busy));
        let end = picoseconds(self.model.processor.call_ns / 2.0);
        Walked {
            time_ns: most(&mut self.now.iter().map(|now| now.saturating_add(end))),
            processor_ns: most(&mut self.busy.iter().copied()),
            within_ns: ports(&self.within),
            between_ns: ports(&self.between),
            messages: self.messages,
            network_bytes: self.network_bytes,
        }
    }

    fn pipe(&mut self, from: Rank, to: Rank, channel: u32) -> &mut Pipe {
        let ranks = self.now.len();
        let index = (from as usize * ranks + to as usize) * self.scene.channels as usize;
        &mut self.pipes[index + channel as usize]
    }

    fn is_within(&self, one: Rank, other: Rank) -> bool {
        self.scene.hosts.seat(one).0 == self.scene.hosts.seat(other).0
    }

    fn hop(&self, one: Rank, other: Rank) -> &'m Hop {
        if self.is_within(one, other) { &self.model.within } else { &self.model.between }
    }

    fn spend(&mut self, rank: Rank, ns: f64) {
        let time = picoseconds(ns);
        for spent in [&mut self.now[rank as usize], &mut self.busy[rank as usize]] {
            *spent = spent.saturating_add(time);
        }
    }

    /// Returns the owner of the ports that a rank uses towards another rank: whether the ports are
    /// within the rank's host, and the owner's index.
    fn owner(&self, rank: Rank, other: Rank) -> (bool, usize) {
        let within = self.is_within(rank, other);
        match self.model.network_ports {
            Owner::Host if !within => (within, self.scene.hosts.seat(rank).0 as usize),
            _ => (within, rank as usize),
        }
    }

    /// Occupies a port with a message for `ns` nanoseconds, at the earliest from time `from` on.
    /// Returns the times at which the message begins to pass and has passed.
    fn pass(
        &mut self,
        (within, owner): (bool, usize),
        direction: usize,
        from: Time,
        ns: f64,
    ) -> [Time; 2] {
        let ports = if within { &mut self.within } else { &mut self.between };
        let port = &mut ports[owner][direction];
        let begins = from.max(port.free);
        port.free = begins.saturating_add(picoseconds(ns));
        port.busy = port.busy.saturating_add(picoseconds(ns));
        [begins, port.free]
    }

    /// Sends a message from its sender's port.
    fn leave(&mut self, from: Rank, link: Link, bytes: usize) {
        let Link { peer: to, channel } = link;
        let ns = bytes as f64 / self.hop(from, to).bytes_per_s * 1e9;
        let owner = self.owner(from, to);
        let [begins, _] = self.pass(owner, 0, self.now[from as usize], ns);
        (self.seen)(&Left { at_ns: begins as f64 / 1e3, from, to, bytes });
        self.messages += 1;
        self.network_bytes += if owner.0 { 0 } else { bytes as u64 };
        self.at(begins, Event::Reach { from, to, channel, bytes });
    }

    /// Lets a message pass the receiver's port; the message arrives one latency later.
    fn reach(&mut self, time: Time, from: Rank, link: Link, bytes: usize) {
        let Link { peer: to, channel } = link;
        let hop = self.hop(from, to);
        let ns = bytes as f64 / hop.bytes_per_s * 1e9;
        let [_, passed] = self.pass(self.owner(to, from), 1, time, ns);
        let arrives = passed.saturating_add(picoseconds(hop.latency_ns));
        self.pipe(from, to, channel).arriving.push_back(arrives);
        self.at(arrives, Event::Look(to));
    }
}

impl Ports for RankPorts<'_, '_> {
    fn readable(&mut self, link: Link) -> bool {
        let now = self.world.now[self.rank as usize];
        let pipe = self.world.pipe(link.peer, self.rank, link.channel);
        !self.has_folded && pipe.arriving.front().is_some_and(|arrives| *arrives <= now)
    }

    fn writable(&mut self, link: Link) -> bool {
        let now = self.world.now[self.rank as usize];
        let pipe = self.world.pipe(self.rank, link.peer, link.channel);
        !self.has_folded && pipe.free.front().is_some_and(|free| *free <= now)
    }

    fn accept(&mut self, link: Link, message: Message) -> bool {
        let hop = self.world.hop(link.peer, self.rank);
        self.world.spend(self.rank, hop.message_ns + hop.byte_ns * message.bytes as f64);
        true
    }

    fn fold(&mut self, task: &Task<'_>) {
        let Scene { element_bytes, buffer_bytes, .. } = self.world.scene;
        let bytes = (task.elements * element_bytes) as f64;
        let ns = self.world.model.processor.fold(task, bytes, buffer_bytes);
        self.world.spend(self.rank, ns);
        self.has_folded = true;
    }

    fn publish(&mut self, link: Link, message: Message) {
        let (rank, peer) = (self.rank, link.peer);
        let hop = self.world.hop(rank, peer);
        self.world.spend(rank, hop.message_ns + hop.byte_ns * message.bytes as f64);
        self.world.pipe(rank, peer, link.channel).free.pop_front();
        self.world.leave(rank, link, message.bytes);
    }

    fn release(&mut self, link: Link) {
        let (rank, peer) = (self.rank, link.peer);
        let back = picoseconds(self.world.hop(rank, peer).latency_ns);
        let free = self.world.now[rank as usize].saturating_add(back);
        let pipe = self.world.pipe(peer, rank, link.channel);
        pipe.arriving.pop_front();
        pipe.free.push_back(free);
        self.world.at(free, Event::Look(peer));
    }
}
