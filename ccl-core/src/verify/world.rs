//! Symbolic world of all ranks' memory and links, and the ports through which executions act on it.

use std::collections::VecDeque;

use super::memory::{Memory, Stamp, Unordered};
use super::spec::{Setup, mode};
use super::value::{Exprs, GARBAGE, NOTHING, Value};
use super::violation::{Access, Misfold, Spot, Violation};
use crate::execution::{self, Link, Mark, Operand, Ports, Task};
use crate::types::Rank;

/// Vector clock of a thread (one strand on one channel), of a message, or of the end of a unit (a
/// top-level fold or loop). Each entry of a clock belongs to one strand of one rank, and counts the
/// tasks of that strand, on the clock's channel, that have certainly happened by the clock's time.
type Clock = Vec<u32>;

/// A message under way.
#[derive(Debug, Default)]
struct Message {
    values: Vec<Value>,
    clock: Clock,
}

/// One direction of a link on one channel.
#[derive(Debug, Default)]
struct Pipe {
    /// Messages that are sent and not yet released; each takes a slot.
    queue: VecDeque<Message>,
    /// Message that is being written.
    staged: Option<Message>,
    /// True if the head of the queue has been read.
    read: bool,
    received: usize,
}

/// Memory of a rank, and the clocks of its strands.
#[derive(Debug)]
pub(super) struct RankState {
    pub(super) memory: Memory,
    /// Index of this rank's first strand in a clock.
    base: usize,
    strands: usize,
    /// Clocks of the threads. A thread is one strand on one channel; its index is
    /// channel × strands + strand.
    clocks: Vec<Clock>,
    /// Clocks at the ends of units (top-level folds or loops). The first index is
    /// channel × `units_per_channel` + unit; the second is the index of the chunk on the channel.
    units: Vec<Vec<Clock>>,
    units_per_channel: usize,
    /// Number of slots of each link towards this rank.
    slots: usize,
    /// Thread of the latest task.
    thread: usize,
    /// Bytes that are sent to this rank and not yet released.
    in_flight_bytes: usize,
    /// Maximum of `in_flight_bytes` so far.
    pub(super) in_flight_bytes_max: usize,
}

/// Resources of a rank in a world.
#[derive(Clone, Copy, Debug)]
pub(super) struct Member {
    pub(super) strands: usize,
    pub(super) units: usize,
    pub(super) scratch_elements: usize,
    pub(super) slots: usize,
}

/// Symbolic world; see the module documentation.
#[derive(Debug)]
pub(super) struct World {
    pub(super) ranks: Vec<RankState>,
    pub(super) exprs: Exprs,
    pipes: Vec<Pipe>,
    spare: Vec<Message>,
    channels: u32,
    element_bytes: usize,
    slot_bytes: usize,
    /// The first violation found; nothing moves after it.
    pub(super) violation: Option<Violation>,
    pub(super) messages: u64,
    pub(super) message_bytes: u64,
    /// Rank and stamp of each access whose fold is to be recorded as text.
    pub(super) sought: Vec<(Rank, Stamp)>,
    /// Texts of the folds of `sought`, in the same order; a text is empty if its access did not
    /// occur.
    pub(super) texts: Vec<String>,
    /// The race found: the rank, and the stamps of the earlier and the later access.
    pub(super) race: Option<(Rank, Stamp, Stamp)>,
}

/// Location of an operand.
#[derive(Clone, Copy, Debug)]
enum Location {
    Cells { first: usize, input: bool, output: bool },
    Pipe { index: usize, first: usize },
}

impl World {
    pub(super) fn new(setups: &[Setup], members: &[Member], channels: u32) -> World {
        let ranks = setups.len();
        let (element_bytes, slot_bytes, mode) = setups.first().map_or_else(
            || (1, 1, super::value::Mode::Move),
            |setup| (setup.numbers.element_bytes, setup.numbers.slot_bytes, mode(setup.collective)),
        );
        let exprs = Exprs::new(u32::try_from(ranks).unwrap_or(u32::MAX), mode);
        let total: usize = members.iter().map(|member| member.strands).sum();
        let mut base = 0;
        let states = setups.iter().zip(members).map(|(setup, member)| {
            let threads = member.strands * channels as usize;
            let state = RankState {
                memory: Memory::new(setup, member.scratch_elements, &exprs),
                base,
                strands: member.strands,
                clocks: vec![vec![0; total]; threads],
                units: vec![Vec::new(); member.units * channels as usize],
                units_per_channel: member.units,
                slots: member.slots,
                thread: 0,
                in_flight_bytes: 0,
                in_flight_bytes_max: 0,
            };
            base += member.strands;
            state
        });
        let states: Vec<RankState> = states.collect();
        let mut pipes = Vec::new();
        pipes.resize_with(ranks * ranks * channels as usize, Pipe::default);
        World {
            ranks: states,
            exprs,
            pipes,
            spare: Vec::new(),
            channels,
            element_bytes,
            slot_bytes,
            violation: None,
            messages: 0,
            message_bytes: 0,
            sought: Vec::new(),
            texts: Vec::new(),
            race: None,
        }
    }

    pub(super) fn pipe_index(&self, from: Rank, to: Rank, channel: u32) -> usize {
        let ranks = self.ranks.len();
        (from as usize * ranks + to as usize) * self.channels as usize + channel as usize
    }

    /// Returns the number of messages that were sent and not yet released.
    pub(super) fn waiting(&self, from: Rank, to: Rank, channel: u32) -> usize {
        self.pipes[self.pipe_index(from, to, channel)].queue.len()
    }

    /// Returns the number of free slots.
    pub(super) fn room(&self, from: Rank, to: Rank, channel: u32) -> usize {
        self.ranks[to as usize].slots.saturating_sub(self.waiting(from, to, channel))
    }

    /// Returns a violation if some link has messages that were not received.
    pub(super) fn unreceived(&self) -> Option<Violation> {
        let ranks = self.ranks.len() as u32;
        for (index, pipe) in self.pipes.iter().enumerate() {
            if !pipe.queue.is_empty() {
                let (link, channel) = (index as u32 / self.channels, index as u32 % self.channels);
                let (from, to) = (link / ranks, link % ranks);
                return Some(Violation::Unreceived {
                    from,
                    to,
                    channel,
                    messages: pipe.queue.len(),
                });
            }
        }
        None
    }

    /// Returns the first rank, other than `rank`, that `rank` has not heard of. A rank has heard of
    /// another rank if the clock of one of its strands counts a task of the other rank.
    pub(super) fn unheard(&self, rank: Rank) -> Option<Rank> {
        let heard = |other: &RankState| {
            let strands = other.base..other.base + other.strands;
            let clocks = &self.ranks[rank as usize].clocks;
            clocks.iter().any(|clock| clock[strands.clone()].iter().any(|&count| count > 0))
        };
        (0..self.ranks.len() as u32)
            .find(|&other| other != rank && !heard(&self.ranks[other as usize]))
    }

    fn fail(&mut self, violation: Violation) {
        self.violation.get_or_insert(violation);
    }

    fn spot(&self, rank: Rank, cell: usize) -> Spot {
        let (buffer, element) = self.ranks[rank as usize].memory.name(cell);
        Spot { rank, buffer, element }
    }

    /// Returns a task as text, with operands as ranges of elements instead of parts.
    fn text(&self, task: &Task<'_>) -> String {
        let operand = |operand: &Operand| {
            let (name, bytes) = match *operand {
                Operand::Input(at) => ("in", at + task.chunk_offset),
                Operand::Output(at) => ("out", at + task.chunk_offset),
                Operand::Scratch(at) => ("scratch", at + task.scratch_offset),
                Operand::Slot(peer) => return format!("slot({peer})"),
            };
            let first = bytes / self.element_bytes;
            format!("{name}[{first}..{}]", first + task.elements)
        };
        let join = |operands: &[Operand], by: &str| {
            operands.iter().map(operand).collect::<Vec<_>>().join(by)
        };
        let last = if task.last { " (last)" } else { "" };
        format!("{} = {}{last}", join(task.targets, ", "), join(task.sources, " ⊕ "))
    }

    fn locate(
        &mut self,
        rank: Rank,
        operand: Operand,
        task: &Task<'_>,
        source: bool,
    ) -> Option<Location> {
        if let Operand::Slot(peer) = operand {
            let (from, to) = if source { (peer, rank) } else { (rank, peer) };
            let index = self.pipe_index(from, to, task.channel);
            return Some(Location::Pipe { index, first: task.slot_offset / self.element_bytes });
        }
        let strand = task.strand;
        let memory = &self.ranks[rank as usize].memory;
        match memory.locate(operand, task, self.element_bytes) {
            Ok(first) => {
                let input = matches!(operand, Operand::Input(_));
                let output = matches!(operand, Operand::Output(_));
                if input && !source {
                    let fold = self.text(task);
                    self.fail(Violation::InputWritten { rank, strand, fold });
                    return None;
                }
                Some(Location::Cells { first, input, output })
            }
            Err(elements) => {
                let fold = self.text(task);
                self.fail(Violation::OutOfBounds { rank, strand, elements, fold });
                None
            }
        }
    }

    fn fold(&mut self, rank: Rank, task: &Task<'_>) {
        if self.violation.is_some() {
            return;
        }
        let mut locations = Vec::with_capacity(task.sources.len() + task.targets.len());
        for (operands, source) in [(task.sources, true), (task.targets, false)] {
            for &operand in operands {
                let Some(location) = self.locate(rank, operand, task, source) else { return };
                locations.push(location);
            }
        }
        let (sources, targets) = locations.split_at(task.sources.len());
        if sources.is_empty() {
            return self.fail_misfold(rank, task, Misfold::Nothing, &[]);
        }
        if overlaps(sources, targets, task.elements) {
            let fold = self.text(task);
            self.fail(Violation::Overlap { rank, strand: task.strand, fold });
            return;
        }
        let stamp = self.tick(rank, task, sources);
        if let Some(index) = self.sought.iter().position(|sought| *sought == (rank, stamp)) {
            self.texts[index] = self.text(task);
        }
        let Some(values) = self.combine(rank, task, sources, stamp) else { return };
        self.store(rank, task, targets, &values, stamp);
    }

    /// Counts the task in the clock of its strand. Merges into the strand's clock the clocks of all
    /// messages that the task reads. Returns the task's stamp.
    fn tick(&mut self, rank: Rank, task: &Task<'_>, sources: &[Location]) -> Stamp {
        let state = &mut self.ranks[rank as usize];
        state.thread = task.channel as usize * state.strands + task.strand as usize;
        let own = state.base + task.strand as usize;
        let clock = &mut state.clocks[state.thread];
        clock[own] += 1;
        let epoch = clock[own];
        for source in sources {
            let Location::Pipe { index, .. } = *source else { continue };
            let pipe = &mut self.pipes[index];
            if let (false, Some(head)) = (pipe.read, pipe.queue.front()) {
                join(clock, &head.clock);
                pipe.read = true;
            }
        }
        Stamp { thread: state.thread as u32, epoch }
    }

    fn combine(
        &mut self,
        rank: Rank,
        task: &Task<'_>,
        sources: &[Location],
        stamp: Stamp,
    ) -> Option<Vec<Value>> {
        for source in sources {
            if let Location::Cells { first, .. } = *source {
                let cells = first..first + task.elements;
                let outcome =
                    self.access(rank, stamp, |memory, ordered| memory.read(cells, stamp, ordered));
                if let Err(unordered) = outcome {
                    self.fail_race(rank, unordered, stamp, false);
                    return None;
                }
            }
        }
        let mut values = Vec::with_capacity(task.elements);
        let mut row = vec![GARBAGE; sources.len()];
        let mut before: Option<(Vec<u32>, u32)> = None;
        for index in 0..task.elements {
            let element = self.gather(rank, task, sources, index, &mut row)?;
            let expr = match &before {
                Some((known, expr)) if *known == row => *expr,
                _ => match self.exprs.fold(&row, task.last) {
                    Ok(expr) => {
                        before = Some((row.clone(), expr));
                        expr
                    }
                    Err(misfold) => {
                        self.fail_misfold(rank, task, misfold, &row);
                        return None;
                    }
                },
            };
            values.push(Value { element, expr });
        }
        Some(values)
    }

    /// Writes the sources' expressions for one element to `row`. Returns the element's number.
    fn gather(
        &mut self,
        rank: Rank,
        task: &Task<'_>,
        sources: &[Location],
        index: usize,
        row: &mut [u32],
    ) -> Option<u32> {
        let mut element = None;
        let mut mixed = false;
        for (source, expr) in sources.iter().zip(row.iter_mut()) {
            let value = match *source {
                Location::Pipe { index: pipe, first } => self.pipes[pipe]
                    .queue
                    .front()
                    .and_then(|head| head.values.get(first + index).copied())
                    .unwrap_or(NOTHING),
                Location::Cells { first, input, output } => {
                    self.load(rank, task, first + index, input, output)?
                }
            };
            mixed |= *element.get_or_insert(value.element) != value.element;
            *expr = value.expr;
        }
        if mixed && self.exprs.mode() != super::value::Mode::Barrier {
            self.fail_misfold(rank, task, Misfold::Mixed, row);
            return None;
        }
        element
    }

    /// Reads one cell as input, output or scratch.
    fn load(
        &mut self,
        rank: Rank,
        task: &Task<'_>,
        cell: usize,
        input: bool,
        output: bool,
    ) -> Option<Value> {
        let value = self.ranks[rank as usize].memory.value(cell);
        let strand = task.strand;
        if value.expr == GARBAGE {
            let (spot, fold) = (self.spot(rank, cell), self.text(task));
            self.fail(Violation::Uninitialised { spot, strand, fold });
            return None;
        }
        if input {
            let Some(expr) = self.exprs.read_as_input(value.expr) else {
                let (spot, fold) = (self.spot(rank, cell), self.text(task));
                self.fail(Violation::InputGone { spot, strand, fold });
                return None;
            };
            return Some(Value { expr, ..value });
        }
        if output && self.exprs.is_raw(value.expr) {
            let (spot, fold) = (self.spot(rank, cell), self.text(task));
            self.fail(Violation::InputAsOutput { spot, strand, fold });
            return None;
        }
        Some(value)
    }

    fn store(
        &mut self,
        rank: Rank,
        task: &Task<'_>,
        targets: &[Location],
        values: &[Value],
        stamp: Stamp,
    ) {
        for target in targets {
            match *target {
                Location::Cells { first, output, .. } => {
                    // The message of an early task may be placed in the output at any time before
                    // the task's turn. So every recorded access to these cells counts as not
                    // ordered before this write.
                    let early = task.early && output;
                    let outcome = self.access(rank, stamp, |memory, ordered| {
                        memory.write(first, values, stamp, |other| !early && ordered(other))
                    });
                    if let Err(unordered) = outcome {
                        return self.fail_race(rank, unordered, stamp, true);
                    }
                }
                Location::Pipe { index, first } => {
                    let length = task.message_bytes / self.element_bytes;
                    let spare = &mut self.spare;
                    let staged = self.pipes[index].staged.get_or_insert_with(|| {
                        let mut message = spare.pop().unwrap_or_default();
                        message.values.clear();
                        message.values.resize(length, NOTHING);
                        message
                    });
                    if let Some(room) = staged.values.get_mut(first..first + values.len()) {
                        room.copy_from_slice(values);
                    }
                }
            }
        }
    }

    /// Calls `access` with the rank's memory and a function. The function takes the stamp of an
    /// earlier access, and returns whether the clock of `stamp`'s thread orders the earlier access
    /// before the access with `stamp`.
    fn access<T>(
        &mut self,
        rank: Rank,
        stamp: Stamp,
        access: impl FnOnce(&mut Memory, &dyn Fn(Stamp) -> bool) -> T,
    ) -> T {
        let RankState { memory, clocks, base, strands, .. } = &mut self.ranks[rank as usize];
        let clock = &clocks[stamp.thread as usize];
        let channel = stamp.thread as usize / *strands;
        let ordered = |earlier: Stamp| {
            let (other, strand) =
                (earlier.thread as usize / *strands, earlier.thread as usize % *strands);
            other == channel && clock[*base + strand] >= earlier.epoch
        };
        access(memory, &ordered)
    }

    fn fail_race(&mut self, rank: Rank, unordered: Unordered, stamp: Stamp, writes: bool) {
        let strands = self.ranks[rank as usize].strands.max(1) as u32;
        let access = |stamp: Stamp, write| {
            let (channel, strand) = (stamp.thread / strands, stamp.thread % strands);
            Box::new(Access { strand, channel, write, fold: String::new() })
        };
        let first = access(unordered.earlier, unordered.earlier_writes);
        let second = access(stamp, writes);
        let spot = self.spot(rank, unordered.cell);
        self.race = Some((rank, unordered.earlier, stamp));
        self.fail(Violation::Race { spot, first, second });
    }

    fn fail_misfold(&mut self, rank: Rank, task: &Task<'_>, misfold: Misfold, row: &[u32]) {
        let operands: Vec<String> = row.iter().map(|expr| self.exprs.text(*expr)).collect();
        let (strand, fold, operands) = (task.strand, self.text(task), operands.join(", "));
        self.fail(Violation::Misfold { rank, strand, misfold, fold, operands });
    }

    fn peer_exists(&mut self, rank: Rank, link: Link) -> bool {
        let exists = link.peer != rank && (link.peer as usize) < self.ranks.len();
        if !exists {
            self.fail(Violation::NoSuchPeer { rank, strand: 0, peer: link.peer });
        }
        exists
    }

    fn publish(&mut self, rank: Rank, link: Link, bytes: usize) {
        if self.violation.is_some() {
            return;
        }
        let (from, to) = (rank, link.peer);
        let index = self.pipe_index(from, to, link.channel);
        let Some(mut message) = self.pipes[index].staged.take() else {
            self.fail(Violation::TwoMessages { rank, peer: to, channel: link.channel });
            return;
        };
        if let Some(element) = message.values.iter().position(|value| value.expr == GARBAGE) {
            self.fail(Violation::HoleInMessage { from, to, element });
            return;
        }
        if bytes > self.slot_bytes {
            let slot_bytes = self.slot_bytes;
            self.fail(Violation::TooLong { from, to, bytes, slot_bytes });
            return;
        }
        let sender = &self.ranks[from as usize];
        message.clock.clone_from(&sender.clocks[sender.thread]);
        self.pipes[index].queue.push_back(message);
        self.messages += 1;
        self.message_bytes += bytes as u64;
        let receiver = &mut self.ranks[to as usize];
        receiver.in_flight_bytes += bytes;
        receiver.in_flight_bytes_max = receiver.in_flight_bytes_max.max(receiver.in_flight_bytes);
    }

    fn release(&mut self, rank: Rank, link: Link) {
        if self.violation.is_some() {
            return;
        }
        let index = self.pipe_index(link.peer, rank, link.channel);
        let pipe = &mut self.pipes[index];
        if !std::mem::take(&mut pipe.read) {
            self.fail(Violation::TwoMessages { rank, peer: link.peer, channel: link.channel });
            return;
        }
        pipe.received += 1;
        if let Some(message) = pipe.queue.pop_front() {
            self.ranks[rank as usize].in_flight_bytes -= message.values.len() * self.element_bytes;
            self.spare.push(message);
        }
    }

    fn accept(&mut self, rank: Rank, link: Link, expected: usize) -> bool {
        if self.violation.is_some() {
            return false;
        }
        let pipe = &self.pipes[self.pipe_index(link.peer, rank, link.channel)];
        let sent = pipe.queue.front().map_or(0, |head| head.values.len() * self.element_bytes);
        if sent == expected {
            return true;
        }
        let (from, to, channel, number) = (link.peer, rank, link.channel, pipe.received);
        self.fail(Violation::Length { from, to, channel, number, sent, expected });
        false
    }
}

fn join(clock: &mut Clock, other: &Clock) {
    for (own, other) in clock.iter_mut().zip(other) {
        *own = (*own).max(*other);
    }
}

/// Returns whether a target overlaps another operand only in part.
fn overlaps(sources: &[Location], targets: &[Location], elements: usize) -> bool {
    let cells = |location: &Location| match *location {
        Location::Cells { first, .. } => Some(first),
        Location::Pipe { .. } => None,
    };
    targets.iter().filter_map(cells).any(|target| {
        let others = sources.iter().chain(targets).filter_map(cells);
        others.into_iter().any(|other| other != target && other.abs_diff(target) < elements)
    })
}

/// Ports of one rank into the world.
#[derive(Debug)]
pub(super) struct RankPorts<'a> {
    pub(super) world: &'a mut World,
    pub(super) rank: Rank,
}

impl Ports for RankPorts<'_> {
    fn readable(&mut self, link: Link) -> bool {
        self.world.violation.is_none()
            && self.world.peer_exists(self.rank, link)
            && self.world.waiting(link.peer, self.rank, link.channel) > 0
    }

    fn writable(&mut self, link: Link) -> bool {
        self.world.violation.is_none()
            && self.world.peer_exists(self.rank, link)
            && self.world.room(self.rank, link.peer, link.channel) > 0
    }

    fn accept(&mut self, link: Link, message: execution::Message) -> bool {
        self.world.accept(self.rank, link, message.bytes)
    }

    fn fold(&mut self, task: &Task<'_>) {
        self.world.fold(self.rank, task);
    }

    fn publish(&mut self, link: Link, message: execution::Message) {
        self.world.publish(self.rank, link, message.bytes);
    }

    fn release(&mut self, link: Link) {
        self.world.release(self.rank, link);
    }

    fn done(&mut self, mark: Mark) {
        let state = &mut self.world.ranks[self.rank as usize];
        let thread = mark.channel as usize * state.strands + mark.strand as usize;
        let unit = mark.channel as usize * state.units_per_channel + mark.unit as usize;
        let clock = state.clocks[thread].clone();
        state.units[unit].resize(mark.turn, Vec::new());
        state.units[unit].push(clock);
    }

    fn awaited(&mut self, mark: Mark) {
        let state = &mut self.world.ranks[self.rank as usize];
        let thread = mark.channel as usize * state.strands + mark.strand as usize;
        let unit = mark.channel as usize * state.units_per_channel + mark.unit as usize;
        if let Some(done) = state.units[unit].get(mark.turn) {
            join(&mut state.clocks[thread], done);
        }
    }
}
