//! Execution of a program: a state machine without clock, memory or wire.
//!
//! [`Execution`] decides which steps are possible now, and its [`Ports`] perform them. The same
//! machine drives the ports over mapped regions, over message lanes and over the simulator, so that
//! the same schedule gives the same bits everywhere. The ports are a type parameter, so that the
//! compiler inlines them: there is no virtual call per chunk.

mod bound;
mod inspect;

pub use bound::{CallParams, Operand};
pub use inspect::{LinkUse, NextStep, StrandPosition};

use std::sync::Arc;

use crate::lower::Program;
use crate::types::Rank;
use bound::{Bound, BoundFold, Segment, Single, Step, range};

/// One end of a link: the peer, and one of the parallel channels to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Link {
    /// The peer.
    pub peer: Rank,
    /// The channel, `0..channels`.
    pub channel: u32,
}

/// Fold of `elements` neighbouring elements, ready to be executed.
#[derive(Clone, Copy, Debug)]
pub struct Task<'a> {
    /// Operands to combine, left to right.
    pub sources: &'a [Operand],
    /// Operands that receive the result.
    pub targets: &'a [Operand],
    /// Number of elements.
    pub elements: usize,
    /// Bytes to add to the offset of operands in the caller's memory.
    pub chunk_offset: usize,
    /// Bytes to add to the offset of operands in scratch.
    pub scratch_offset: usize,
    /// Offset of the task's part in its messages, in bytes.
    pub slot_offset: usize,
    /// Payload of each message that the task's slots carry, in bytes.
    pub message_bytes: usize,
    /// Channel of the task's links.
    pub channel: u32,
    /// Strand of the task.
    pub strand: u32,
    /// True if the result holds all contributions. In an average, this fold then divides the result
    /// by the number of ranks.
    pub last: bool,
    /// True if the message that the task reads may be placed in the output before the task's turn
    /// ([`Ports::prepost`]).
    pub early: bool,
}

/// One message: a chunk of the data that one op sends from one rank to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// Bytes of payload.
    pub bytes: usize,
    /// Bytes of all chunks of the op together. The receiver compares this length, too: ops of
    /// different lengths can have chunks of the same length.
    pub whole_bytes: usize,
}

/// Environment of an execution: links with slots, and memory that folds read and write.
pub trait Ports {
    /// Returns whether the next message of the link has arrived. Cheap; called often.
    fn readable(&mut self, link: Link) -> bool;
    /// Returns whether the link has a credit for the next message.
    fn writable(&mut self, link: Link) -> bool;
    /// Announces that the link's next message, which has not arrived, is awaited. The task only
    /// moves that message to memory that nothing else uses any more, and perhaps forwards it, so
    /// ports may place the message in that memory directly. Cheap; called often.
    #[inline]
    fn expect(&mut self, _link: Link, _task: &Task<'_>) {}
    /// Returns whether receives are to be preposted.
    #[inline]
    fn preposts(&self) -> bool {
        false
    }
    /// Returns whether one more message of the link may be preposted.
    fn may_prepost(&mut self, _link: Link) -> bool {
        false
    }
    /// Preposts the link's next message that is not preposted yet. A task is given if it only moves
    /// the message to memory that no earlier step uses, so ports may place the message there
    /// directly.
    fn prepost(&mut self, _link: Link, _task: Option<(&Task<'_>, Message)>) {}
    /// Returns whether any message in flight is read from the caller's memory.
    #[inline]
    fn has_zero_copy_sends(&self) -> bool {
        false
    }
    /// Reclaims the memory that the task writes. Returns false while a message in flight is read
    /// from that memory; the execution then calls again later.
    #[inline]
    fn reclaim(&mut self, _task: &Task<'_>) -> bool {
        true
    }
    /// Checks the link's next message, which has arrived. Returns whether it is the message of this
    /// call that the schedule expects; after `false`, the message is not read.
    fn accept(&mut self, link: Link, message: Message) -> bool;
    /// Combines the operands. Slots named by operands are readable or writable, as just checked.
    fn fold(&mut self, task: &Task<'_>);
    /// Sends the content of the link's current slot, which folds have filled.
    fn publish(&mut self, link: Link, message: Message);
    /// Gives the link's current received slot back to its sender.
    fn release(&mut self, link: Link);
    /// Reports that a unit (a top-level fold or loop of the program) is done. Checkers use this
    /// report; ports that move data ignore it.
    #[inline]
    fn done(&mut self, _mark: Mark) {}
    /// Reports that a strand continues because the mark's unit is done for the mark's turn.
    #[inline]
    fn awaited(&mut self, _mark: Mark) {}
}

/// Completion of a unit for one chunk, as a strand signals or observes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The channel.
    pub channel: u32,
    /// The strand that signals or observes.
    pub strand: u32,
    /// The unit.
    pub unit: u32,
    /// Index of the chunk among those of the channel, from 0.
    pub turn: usize,
}

/// Result of [`Execution::advance`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Every step is done.
    Done,
    /// Some step was done; more may be possible at once.
    Moved,
    /// No step is possible until a message or a credit arrives, or a zero-copy send ends.
    Blocked,
}

#[derive(Clone, Copy, Debug, Default)]
struct StrandState {
    /// Index of the next step.
    step: u32,
    /// Index of the current chunk among those of the channel, from 0.
    turn: usize,
    /// Step and turn up to which messages are preposted.
    scout: (u32, usize),
}

/// State machine that runs a program on all channels, once per start.
#[derive(Debug)]
pub struct Execution {
    program: Arc<Program>,
    channels: u32,
    bound: Bound,
    /// State of every strand, channel by channel.
    states: Vec<StrandState>,
    /// Number of chunks that each unit has done, channel by channel.
    units: Vec<usize>,
    running: usize,
    folds: u64,
}

impl Execution {
    /// Returns an execution of `program` whose chunks take turns on `channels` channels.
    #[must_use]
    pub fn new(program: Arc<Program>, channels: u32) -> Execution {
        let channels = channels.max(1);
        let states = vec![StrandState::default(); program.strands.len() * channels as usize];
        let units = vec![0; program.units as usize * channels as usize];
        Execution {
            program,
            channels,
            bound: Bound::default(),
            states,
            units,
            running: 0,
            folds: 0,
        }
    }

    /// Returns the program.
    #[must_use]
    pub fn program(&self) -> &Arc<Program> {
        &self.program
    }

    /// Starts a run with these parameters. Allocates nothing if the parameters equal those of the
    /// previous run, or need no more memory.
    pub fn start(&mut self, numbers: &CallParams) {
        self.bound.bind(&self.program, numbers);
        self.restart();
    }

    /// Starts a run with the parameters of the previous run.
    pub fn restart(&mut self) {
        self.units.fill(0);
        self.folds = 0;
        let strands = self.program.strands.len();
        let used = self.channels_in_use() as usize;
        self.running = used * strands;
        let mut firsts = self.bound.strands.iter().take(strands).cycle();
        for (state, &step) in self.states[..self.running].iter_mut().zip(&mut firsts) {
            *state = StrandState { step, turn: 0, scout: (step, 0) };
        }
    }

    /// Returns the number of channels that have a chunk; the channels after them are idle.
    #[inline]
    fn channels_in_use(&self) -> u32 {
        u32::try_from(self.bound.chunks).unwrap_or(u32::MAX).min(self.channels)
    }

    /// Returns the number of strands, over all channels, that have a chunk.
    #[inline]
    fn states_in_use(&self) -> usize {
        self.channels_in_use() as usize * self.program.strands.len()
    }

    /// Returns the bytes of scratch memory that the started run needs.
    #[must_use]
    pub fn scratch_bytes(&self) -> usize {
        self.bound.scratch_stride * self.channels as usize
    }

    /// Returns the number of chunks of the started run, and the elements of each part in a chunk.
    #[must_use]
    pub fn chunks(&self) -> (usize, usize) {
        (self.bound.chunks, self.bound.chunk_elements)
    }

    /// Returns the number of folds done since the start, which measures progress.
    #[must_use]
    pub fn folds(&self) -> u64 {
        self.folds
    }

    /// Executes all steps that are possible now. Call again after `Moved`; after `Blocked`, call
    /// again when something has arrived.
    #[inline]
    pub fn advance<P: Ports>(&mut self, ports: &mut P) -> Progress {
        let preposts = ports.preposts();
        if let (Some(single), false) = (self.bound.single, preposts) {
            return self.advance_single(&single, ports);
        }
        let (strands, states) = (self.program.strands.len(), self.states_in_use());
        let mut moved = false;
        let (mut channel, mut strand) = (0, 0);
        for index in 0..states {
            if preposts {
                self.look_ahead(index, strand, channel, ports);
            }
            moved |= self.run_strand(index, strand, channel, ports);
            strand += 1;
            if strand == strands {
                (channel, strand) = (channel + 1, 0);
            }
        }
        match (self.running, moved) {
            (0, _) => Progress::Done,
            (_, true) => Progress::Moved,
            (_, false) => Progress::Blocked,
        }
    }

    /// Executes the only step of a program, as [`Run::step`] would, with less overhead.
    #[inline]
    fn advance_single<P: Ports>(&mut self, single: &Single, ports: &mut P) -> Progress {
        let Execution { bound, states, running, folds, .. } = self;
        if *running == 0 {
            return Progress::Done;
        }
        let link = |peer| Link { peer, channel: 0 };
        let (sources, targets) = bound.operands.split_at(single.middle);
        let message_bytes = single.elements * bound.element_bytes;
        let message = Message { bytes: message_bytes, whole_bytes: message_bytes };
        let task = Task {
            sources,
            targets,
            elements: single.elements,
            chunk_offset: 0,
            scratch_offset: 0,
            slot_offset: 0,
            message_bytes,
            channel: 0,
            strand: 0,
            last: single.last,
            early: single.early,
        };
        if let Some(peer) = single.recv
            && !ports.readable(link(peer))
        {
            if single.placeable {
                ports.expect(link(peer), &task);
            }
            return Progress::Blocked;
        }
        if single.send.is_some_and(|peer| !ports.writable(link(peer)))
            || (ports.has_zero_copy_sends() && !ports.reclaim(&task))
            || single.recv.is_some_and(|peer| !ports.accept(link(peer), message))
        {
            return Progress::Blocked;
        }
        ports.fold(&task);
        if let Some(peer) = single.send {
            ports.publish(link(peer), message);
        }
        if let Some(peer) = single.recv {
            ports.release(link(peer));
        }
        states[0].turn = 1;
        (*running, *folds) = (0, 1);
        Progress::Done
    }

    /// Preposts the messages that a strand will receive, as far as the ports permit.
    #[inline(never)]
    fn look_ahead<P: Ports>(&mut self, index: usize, strand: usize, channel: u32, ports: &mut P) {
        let Execution { program, channels, bound, states, .. } = self;
        let (whole, channels) = (program.whole_messages, *channels as usize);
        let state = &mut states[index];
        let (first, end) = (bound.strands[strand], bound.strands[strand + 1]);
        let location = |(step, turn): (u32, usize)| match whole {
            true => (step as usize, turn),
            false => (turn, step as usize),
        };
        if location(state.scout) < location((state.step, state.turn)) {
            state.scout = (state.step, state.turn);
        }
        let (step, turn) = &mut state.scout;
        loop {
            let chunk = *turn * channels + channel as usize;
            if chunk >= bound.chunks {
                return;
            }
            if *step == end {
                (*step, *turn) = (first, *turn + 1);
                continue;
            }
            if let Step::Fold(fold) = &bound.steps[*step as usize] {
                let run = Run { fold, channel, strand: strand as u32, chunk, bound };
                if !run.prepost(ports) {
                    return;
                }
            }
            if !whole {
                *step += 1;
            } else if chunk + channels >= bound.chunks && *step + 1 < end {
                (*step, *turn) = (*step + 1, 0);
            } else {
                *turn += 1;
            }
        }
    }

    /// Runs one strand until it blocks or ends. Returns whether it executed any step.
    #[inline]
    fn run_strand<P: Ports>(
        &mut self,
        index: usize,
        strand: usize,
        channel: u32,
        ports: &mut P,
    ) -> bool {
        let Execution { program, channels, bound, states, units, running, folds } = self;
        let own_units = channel as usize * program.units as usize;
        let state = &mut states[index];
        let (first, end) = (bound.strands[strand], bound.strands[strand + 1]);
        let mut moved = false;
        let mut chunk = state.turn * *channels as usize + channel as usize;
        while chunk < bound.chunks {
            if state.step == end {
                // All steps are done for this chunk.
                state.step = first;
                state.turn += 1;
                chunk += *channels as usize;
                if chunk >= bound.chunks {
                    *running -= 1;
                }
                moved = true;
                continue;
            }
            match &bound.steps[state.step as usize] {
                Step::Fold(fold) => {
                    if !(Run { fold, channel, strand: strand as u32, chunk, bound }).step(ports) {
                        return moved;
                    }
                    *folds += 1;
                }
                Step::Await { unit, lag } => {
                    if units[own_units + *unit as usize] + (*lag as usize) < state.turn + 1 {
                        return moved;
                    }
                    if let Some(turn) = state.turn.checked_sub(*lag as usize) {
                        ports.awaited(Mark { channel, strand: strand as u32, unit: *unit, turn });
                    }
                }
                Step::Done { unit } => {
                    units[own_units + *unit as usize] = state.turn + 1;
                    let turn = state.turn;
                    ports.done(Mark { channel, strand: strand as u32, unit: *unit, turn });
                }
            }
            moved = true;
            if !program.whole_messages {
                state.step += 1;
                continue;
            }
            // Continues with the same step for the next chunk; after the last chunk, with the next
            // step for the first chunk.
            state.turn += 1;
            chunk += *channels as usize;
            if chunk >= bound.chunks && state.step + 1 < end {
                state.step += 1;
                state.turn = 0;
                chunk = channel as usize;
            } else if chunk >= bound.chunks {
                *running -= 1;
            }
        }
        moved
    }
}

/// One fold of one chunk on one channel.
struct Run<'a> {
    fold: &'a BoundFold,
    channel: u32,
    strand: u32,
    chunk: usize,
    bound: &'a Bound,
}

impl Run<'_> {
    /// Preposts the messages that the fold will take, if all may be preposted. Returns whether
    /// `look_ahead` may continue.
    fn prepost<P: Ports>(&self, ports: &mut P) -> bool {
        let bound = self.bound;
        let segments = &bound.segments[range(self.fold.segments)];
        let elements = self.elements(segments);
        let recvs = &bound.peers[range(self.fold.recvs)];
        let link = |&peer: &Rank| Link { peer, channel: self.channel };
        if elements == 0 || recvs.is_empty() {
            return true;
        }
        if !recvs.iter().all(|peer| ports.may_prepost(link(peer))) {
            return false;
        }
        let message_bytes = elements * bound.element_bytes;
        if let (true, [segment], [peer]) = (self.fold.early, segments, recvs) {
            let task = self.task(segment, elements, 0, message_bytes);
            let whole_bytes = self.fold.whole * bound.element_bytes;
            let message = Message { bytes: message_bytes, whole_bytes };
            ports.prepost(link(peer), Some((&task, message)));
        } else {
            recvs.iter().for_each(|peer| ports.prepost(link(peer), None));
        }
        true
    }

    /// Executes the fold if all its links are ready. Returns whether the strand may continue.
    #[inline]
    fn step<P: Ports>(&self, ports: &mut P) -> bool {
        let bound = self.bound;
        let segments = &bound.segments[range(self.fold.segments)];
        let elements = self.elements(segments);
        if elements == 0 {
            return true;
        }
        let recvs = &bound.peers[range(self.fold.recvs)];
        let sends = &bound.peers[range(self.fold.sends)];
        let link = |&peer: &Rank| Link { peer, channel: self.channel };
        let message_bytes = elements * bound.element_bytes;
        if !recvs.iter().all(|peer| ports.readable(link(peer))) {
            if let (true, [segment], [peer]) = (self.fold.placeable, segments, recvs) {
                ports.expect(link(peer), &self.task(segment, elements, 0, message_bytes));
            }
            return false;
        }
        if !sends.iter().all(|peer| ports.writable(link(peer))) {
            return false;
        }
        if ports.has_zero_copy_sends() && !self.reclaims(segments, message_bytes, ports) {
            return false;
        }
        let whole_bytes = self.fold.whole * bound.element_bytes;
        let message = Message { bytes: message_bytes, whole_bytes };
        if !recvs.iter().all(|peer| ports.accept(link(peer), message)) {
            return false;
        }
        let mut before = 0;
        for segment in segments {
            let elements = self.here(segment.elements);
            if elements > 0 {
                ports.fold(&self.task(segment, elements, before, message_bytes));
            }
            before += elements;
        }
        sends.iter().for_each(|peer| ports.publish(link(peer), message));
        recvs.iter().for_each(|peer| ports.release(link(peer)));
        true
    }

    /// Reclaims the memory that the fold writes. Returns false while a message in flight is read
    /// from that memory.
    #[inline(never)]
    fn reclaims<P: Ports>(
        &self,
        segments: &[Segment],
        message_bytes: usize,
        ports: &mut P,
    ) -> bool {
        segments.iter().all(|segment| {
            let elements = self.here(segment.elements);
            ports.reclaim(&self.task(segment, elements, 0, message_bytes))
        })
    }

    /// Returns the task for a segment; `before` elements of the message come before it.
    #[inline]
    fn task(
        &self,
        segment: &Segment,
        elements: usize,
        before: usize,
        message_bytes: usize,
    ) -> Task<'_> {
        let bound = self.bound;
        Task {
            sources: &bound.operands[segment.first as usize..segment.middle as usize],
            targets: &bound.operands[segment.middle as usize..segment.end as usize],
            elements,
            chunk_offset: self.chunk * bound.chunk_elements * bound.element_bytes,
            scratch_offset: self.channel as usize * bound.scratch_stride,
            slot_offset: before * bound.element_bytes,
            message_bytes,
            channel: self.channel,
            strand: self.strand,
            last: self.fold.last,
            early: self.fold.early,
        }
    }

    /// Returns the number of elements of the fold that belong to this chunk.
    #[inline]
    fn elements(&self, segments: &[Segment]) -> usize {
        match self.bound.chunks {
            1 => self.fold.whole,
            _ => segments.iter().map(|segment| self.here(segment.elements)).sum(),
        }
    }

    /// Returns the number of elements of a segment that belong to this chunk. A single chunk takes
    /// the whole segment, which may be several joined parts and longer than `chunk_elements`.
    #[inline]
    fn here(&self, elements: usize) -> usize {
        let Bound { chunks, chunk_elements, .. } = *self.bound;
        if chunks == 1 {
            return elements;
        }
        let before = (self.chunk * chunk_elements).min(elements);
        (elements - before).min(chunk_elements)
    }
}
