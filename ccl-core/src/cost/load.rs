//! Count of the work of one rank in a call, without its waits and without executing its program.
//!
//! A schedule's loops are counted in strides: runs of iterations that do the same work. In all
//! iterations of a stride, parts have the same length, and each message either always stays inside
//! the rank's host or always crosses to or from another host. Counting one rank among a hundred
//! thousand therefore takes hardly longer than counting one among ten.

use std::ops::Range;

use super::walk::{Hop, Model};
use crate::execution::CallParams;
use crate::lower::{Fold, Location, Lowered, Source, fused};
use crate::schedule::{Affine, Buffer, Counters, DEPTH, Extent, Layout, RankSchedule, TERM};
use crate::topology::Hosts;
use crate::types::Rank;

/// Directions of a port: indices of [`Load::within`] and [`Load::between`].
pub(super) const OUT: usize = 0;
pub(super) const IN: usize = 1;

/// Work of one rank.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Load {
    /// Bytes to and from ranks of the same host.
    pub(super) within: [f64; 2],
    /// Bytes to and from ranks of other hosts.
    pub(super) between: [f64; 2],
    /// Time for which the rank's processor is busy.
    pub(super) processor_ns: f64,
}

/// Steps of a rank for each chunk, in the order of its schedule.
#[derive(Debug)]
pub(super) struct Outline {
    pub(super) split: u32,
    pub(super) message_parts: u32,
    nodes: Vec<Lowered>,
}

impl Outline {
    /// Returns the steps of a schedule over links with `slots` slots.
    pub(super) fn of(schedule: &RankSchedule, slots: u32) -> Outline {
        let (split, message_parts) = (schedule.split, schedule.message_parts);
        Outline { split, message_parts, nodes: fused(schedule, slots) }
    }
}

/// Per loop: the number of iterations, from the current one on, that do the same work.
type Alike = [u32; DEPTH];

fn least(one: Alike, other: Alike) -> Alike {
    std::array::from_fn(|dimension| one[dimension].min(other[dimension]))
}

/// State of the count for one rank in a call.
pub(super) struct Counting<'a> {
    pub(super) rank: Rank,
    pub(super) hosts: &'a Hosts,
    pub(super) model: &'a Model,
    pub(super) numbers: &'a CallParams,
    /// Bytes of the rank's larger buffer.
    pub(super) buffer_bytes: usize,
    /// Elements of each part that a message carries.
    pub(super) chunk_elements: usize,
    pub(super) load: Load,
}

/// Work of a fold over all chunks.
#[derive(Clone, Copy, Debug, Default)]
struct Work {
    bytes: f64,
    /// Messages on each link of the fold.
    messages: f64,
    /// Tasks that execute the fold.
    tasks: f64,
}

impl Counting<'_> {
    /// Adds the work of the whole program.
    pub(super) fn add(&mut self, outline: &Outline) {
        self.body(&outline.nodes, 0, &mut [0; DEPTH], 1.0);
    }

    /// Adds `times` times the work of `nodes`: nothing if `times` is 0. Returns, per loop, for how
    /// many iterations the work stays the same.
    fn body(&mut self, nodes: &[Lowered], depth: usize, at: &mut Counters, times: f64) -> Alike {
        let each = |node: &Lowered| match node {
            Lowered::Fold(fold) => self.fold(fold, at, times),
            Lowered::Loop { count, body } => self.repeat(*count, body, depth, at, times),
        };
        nodes.iter().map(each).fold([u32::MAX; DEPTH], least)
    }

    fn repeat(
        &mut self,
        count: u32,
        body: &[Lowered],
        depth: usize,
        at: &mut Counters,
        times: f64,
    ) -> Alike {
        let (mut alike, mut first) = ([u32::MAX; DEPTH], 0);
        while first < count {
            at[depth] = first;
            let here = self.body(body, depth + 1, at, 0.0);
            let stride = here[depth].clamp(1, count - first);
            if times > 0.0 {
                self.body(body, depth + 1, at, times * f64::from(stride));
            }
            // As an outer loop advances, the stride's work stays the same until the work of the
            // stride's first or last iteration changes. `here` says, per loop, for how many
            // iterations the first one's work stays the same, and `there` says so for the last one.
            // The lesser number holds for the stride.
            at[depth] = first + stride - 1;
            let there = if stride > 1 { self.body(body, depth + 1, at, 0.0) } else { here };
            alike = least(alike, least(here, there));
            first += stride;
        }
        at[depth] = 0;
        alike
    }

    fn fold(&mut self, fold: &Fold, at: &mut Counters, times: f64) -> Alike {
        let (work, mut alike) = self.work(fold, at, times > 0.0);
        if work.bytes == 0.0 {
            return alike;
        }
        let Model { processor, .. } = self.model;
        let targets = fold.targets.iter().map(|target| (&target.location, target.repeat, OUT));
        let sources =
            fold.sources.iter().map(|Source { location, repeat }| (location, *repeat, IN));
        let mut byte_ns = 0.0;
        for (location, repeat, direction) in sources.chain(targets) {
            byte_ns += f64::from(repeat) * processor.byte_ns(location.is_user(), self.buffer_bytes);
            if let Location::Slot(peer) = location {
                alike = least(alike, self.messages((peer, repeat), direction, &work, at, times));
            }
        }
        self.load.processor_ns += times * (processor.fold_ns * work.tasks + byte_ns * work.bytes);
        alike
    }

    /// Adds the messages to or from each of `repeat` peers.
    fn messages(
        &mut self,
        (peer, repeat): (&Affine, u32),
        direction: usize,
        work: &Work,
        at: &mut Counters,
        times: f64,
    ) -> Alike {
        let (mut alike, mut first) = ([u32::MAX; DEPTH], 0);
        let (own, _) = self.hosts.seat(self.rank);
        while first < repeat {
            at[TERM] = first;
            let value = peer.eval(at);
            let around = self.hosts.around(own, value);
            let here = goes_on(peer, at, &around);
            let stride = here[TERM].clamp(1, repeat - first);
            at[TERM] = first + stride - 1;
            alike = least(alike, least(here, goes_on(peer, at, &around)));
            first += stride;
            let times = times * f64::from(stride);
            let (hop, port): (&Hop, _) = match self.hosts.seat(value).0 == own {
                true => (&self.model.within, &mut self.load.within),
                false => (&self.model.between, &mut self.load.between),
            };
            port[direction] += times * work.bytes;
            self.load.processor_ns +=
                times * (hop.message_ns * work.messages + hop.byte_ns * work.bytes);
        }
        at[TERM] = 0;
        alike
    }

    /// Returns the bytes, messages and tasks of a fold, and for how many iterations these stay the
    /// same. Without `exactly`, neighbouring parts that are joined count as several tasks.
    fn work(&self, fold: &Fold, at: &Counters, exactly: bool) -> (Work, Alike) {
        let Extent { buffer, parts } = fold.extent;
        let layout = self.layout(buffer);
        let first = parts.part(0, at);
        let around = layout.alike(first);
        let mut alike = match around == (0..u32::MAX) {
            true => [u32::MAX; DEPTH],
            false if parts.total > 1 => [1; DEPTH],
            false => goes_on(&parts.first, at, &around),
        };
        if parts.total > 1 && parts.first.is_constant() {
            alike = [u32::MAX; DEPTH];
        }
        let chunks = |elements: usize| elements.div_ceil(self.chunk_elements);
        let (mut elements, mut longest, mut tasks, mut index) = (0, 0, 0, 0);
        while index < parts.total {
            let part = parts.part(index, at);
            let (_, length) = layout.part(part);
            let stride = parts.stride(index, part, &layout.alike(part));
            elements += length * stride as usize;
            longest = longest.max(length);
            tasks += chunks(length) * stride as usize;
            index += stride;
        }
        let one_chunk = chunks(self.longest_part()) == 1;
        if one_chunk && tasks > 1 && self.model.processor.fold_ns > 0.0 {
            // Parts whose addresses are adjacent in every operand are joined to one task, so the
            // number of tasks may change with every iteration.
            tasks = if exactly { self.joined(fold, at) } else { tasks };
            alike = [1; DEPTH];
        }
        let bytes = (elements * self.numbers.element_bytes) as f64;
        (Work { bytes, messages: chunks(longest) as f64, tasks: tasks as f64 }, alike)
    }

    fn longest_part(&self) -> usize {
        self.numbers.input.longest_part().max(self.numbers.output.longest_part())
    }

    fn layout(&self, buffer: Buffer) -> &Layout {
        if buffer == Buffer::Input { &self.numbers.input } else { &self.numbers.output }
    }

    /// Returns the number of tasks of a fold. Parts that are neighbours in every operand are joined
    /// to one task.
    fn joined(&self, fold: &Fold, at: &Counters) -> usize {
        let width = self.numbers.element_bytes;
        let stride = (self.chunk_elements * width).next_multiple_of(64);
        let (layout, mut at) = (self.layout(fold.extent.buffer), *at);
        let (mut tasks, mut ends): (usize, Vec<usize>) = (0, Vec::new());
        for index in 0..fold.extent.parts.total {
            let (_, elements) = layout.part(fold.extent.parts.part(index, &at));
            if elements == 0 {
                continue;
            }
            let targets = fold.targets.iter().map(|target| (&target.location, target.repeat));
            let locations = fold.sources.iter().map(|source| (&source.location, source.repeat));
            let mut starts = Vec::new();
            for (location, repeat) in locations.chain(targets) {
                let Location::Memory(buffer, parts) = location else { continue };
                for term in 0..repeat {
                    at[TERM] = term;
                    let part = parts.part(index, &at);
                    starts.push(match buffer {
                        Buffer::Scratch(_) => part as usize * stride,
                        _ => self.layout(*buffer).part(part).0 * width,
                    });
                }
                at[TERM] = 0;
            }
            tasks += usize::from(tasks == 0 || starts != ends);
            ends = starts.iter().map(|start| start + elements * width).collect();
        }
        tasks
    }
}

/// Returns, per loop, for how many iterations a number stays within `range`.
fn goes_on(number: &Affine, at: &Counters, range: &Range<u32>) -> Alike {
    if number.is_constant() {
        return [u32::MAX; DEPTH];
    }
    std::array::from_fn(|dimension| number.stays(at, dimension, range))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::algorithm::{self, Algorithm, Params};
    use crate::cost::walk::{Owner, Processor};
    use crate::execution::{Execution, Link, Message, Ports, Progress, Task};
    use crate::lower::{Alias, lower_for_slots};
    use crate::schedule::shape::{Seat, Sizes};
    use crate::types::Collective;

    const SLOTS: u32 = 8;
    const ROOT: Rank = 1;
    const ELEMENT_BYTES: usize = 4;

    /// Returns a model in which every number is different, so that no mix-up goes unnoticed.
    fn model() -> Model {
        let hop = |message_ns, byte_ns| Hop {
            message_ns,
            byte_ns,
            latency_ns: 0.0,
            bytes_per_s: f64::INFINITY,
        };
        let processor =
            Processor { call_ns: 0.0, fold_ns: 7.0, slot_ns: 0.25, memory_ns: [0.5, 0.7, 0.9] };
        let (within, between) = (hop(11.0, 0.125), hop(13.0, 0.0625));
        Model { processor, within, between, network_ports: Owner::Rank }
    }

    /// Ports of a rank that executes its real program. All messages and slots are always available.
    struct Alone<'a> {
        rank: Rank,
        hosts: &'a Hosts,
        model: Model,
        buffer_bytes: usize,
        load: Load,
    }

    impl Alone<'_> {
        fn message(&mut self, peer: Rank, direction: usize, bytes: usize) {
            let within = self.hosts.seat(self.rank).0 == self.hosts.seat(peer).0;
            let (hop, port) = match within {
                true => (&self.model.within, &mut self.load.within),
                false => (&self.model.between, &mut self.load.between),
            };
            port[direction] += bytes as f64;
            self.load.processor_ns += hop.message_ns + hop.byte_ns * bytes as f64;
        }
    }

    impl Ports for Alone<'_> {
        fn readable(&mut self, _link: Link) -> bool {
            true
        }

        fn writable(&mut self, _link: Link) -> bool {
            true
        }

        fn accept(&mut self, link: Link, message: Message) -> bool {
            self.message(link.peer, IN, message.bytes);
            true
        }

        fn fold(&mut self, task: &Task<'_>) {
            let bytes = (task.elements * ELEMENT_BYTES) as f64;
            self.load.processor_ns += self.model.processor.fold(task, bytes, self.buffer_bytes);
        }

        fn publish(&mut self, link: Link, message: Message) {
            self.message(link.peer, OUT, message.bytes);
        }

        fn release(&mut self, _link: Link) {}
    }

    fn check(algorithm: &Algorithm, hosts: &Hosts, rank: Rank, count: usize, slot_bytes: usize) {
        let (ranks, collective) = (hosts.ranks(), algorithm.collective);
        let schedule = (algorithm.schedule)(&Params { rank, ranks, root: ROOT, hosts });
        let seat = Seat { collective, rank, ranks, root: ROOT };
        let (input, output) = seat.layouts(Sizes::Even(count), schedule.split, 16).unwrap();
        let numbers = CallParams { input, output, element_bytes: ELEMENT_BYTES, slot_bytes };
        let (model, buffer_bytes) = (model(), 2 << 20);
        let mut alone = Alone { rank, hosts, model, buffer_bytes, load: Load::default() };
        let program = Arc::new(lower_for_slots(&schedule, Alias::APART, SLOTS));
        let mut execution = Execution::new(program, 1);
        execution.start(&numbers);
        while execution.advance(&mut alone) == Progress::Moved {}

        let outline = Outline::of(&schedule, SLOTS);
        let chunk_elements = numbers.elements_of(outline.message_parts);
        let (load, model) = (Load::default(), &model);
        let mut counting =
            Counting { rank, hosts, model, numbers: &numbers, buffer_bytes, chunk_elements, load };
        counting.add(&outline);
        let of = format!("{collective} {} {rank} {count} {slot_bytes} {hosts:?}", algorithm.name);
        let (run, counted) = (alone.load, counting.load);
        assert_eq!((counted.within, counted.between), (run.within, run.between), "{of}");
        let ratio = (counted.processor_ns + 1.0) / (run.processor_ns + 1.0);
        assert!((ratio - 1.0).abs() < 1e-9, "{of}: {counted:?} {run:?}");
    }

    /// Compares the count with a run: on hosts that are filled one after the other, in turns, and
    /// irregularly; with parts that are short, empty, or of many chunks.
    #[test]
    fn the_counted_load_is_the_load_of_a_run() {
        let filled: Vec<u32> = (0..24).map(|rank| rank / 8).collect();
        let turns: Vec<u32> = (0..18).map(|rank| rank % 3).collect();
        let anyhow = [0, 0, 1, 2, 1, 0, 2, 2, 2, 1, 3];
        let all = [Hosts::one(19), Hosts::of(&filled), Hosts::of(&turns), Hosts::of(&anyhow)];
        for hosts in &all {
            for collective in Collective::ALL {
                let there = algorithm::of(collective);
                for algorithm in there.filter(|_| collective.even_blocks(2).is_some()) {
                    for (count, slot_bytes) in [(5, 8192), (250, 8192), (2000, 8192), (9999, 2048)]
                    {
                        for rank in [0, 1, 7, hosts.ranks() - 1] {
                            check(algorithm, hosts, rank, count, slot_bytes);
                        }
                    }
                }
            }
        }
    }
}
