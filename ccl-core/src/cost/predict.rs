//! How long a collective takes by each of its algorithms: by walking through it ([`super::walk`])
//! where ranks are few. Where they are many, by adding up what some ranks do, and taking for the
//! waiting in between what a walk through fewer ranks takes for it.

use std::sync::Arc;

use super::walk::{Model, Owner, Scene, Walked, walk};
use crate::algorithm::{Algorithm, Params};
use crate::execution::{Execution, Link, Message, Numbers, Ports, Progress, Task};
use crate::lower::{Alias, Program, lower_for_slots};
use crate::schedule::shape::{Seat, ShapeError, Sizes};
use crate::topology::Hosts;
use crate::types::{Collective as C, Rank};

/// Of more ranks fewer are walked, and of longer calls a part, and the rest continued.
const RANKS_MAX: u32 = 32;
const PIECES_MAX: usize = 24;
/// For the sum, so many ranks of a host are looked at, and so many pieces of a call.
const SAMPLE: u32 = 8;
const SAMPLE_PIECES: usize = 2;

/// A collective whose blocks all have as many elements.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// What is done, and how.
    pub algorithm: &'static Algorithm,
    /// Whose data it is, or who gets it, where there is such a rank.
    pub root: Rank,
    /// Elements of a block.
    pub count: usize,
    /// Bytes of one.
    pub element_bytes: usize,
    /// Bytes of a rank's larger buffer; where a part of a call stands for it, of the whole.
    pub buffer_bytes: usize,
    /// Who is where.
    pub hosts: &'a Hosts,
    /// Parallel channels per pair of ranks.
    pub channels: u32,
    /// The most payload of a message.
    pub slot_bytes: usize,
}

/// A time, and how it comes about.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prediction {
    /// Until the last rank is done, in nanoseconds.
    pub time_ns: f64,
    /// What most of it is.
    pub bound: Bound,
    /// Bytes that cross between hosts, of all ranks together; about, where ranks are many.
    pub network_bytes: f64,
}

/// What most of a time is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// Messages that wait for each other.
    Latency,
    /// The processor of a rank.
    Processor,
    /// What joins ranks of a host.
    Within,
    /// The network.
    Between,
}

impl Bound {
    /// In words.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Bound::Latency => "latency",
            Bound::Processor => "processor",
            Bound::Within => "links within hosts",
            Bound::Between => "network",
        }
    }
}

/// Why there is no prediction.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PredictError {
    /// The collective does not take blocks that are all alike.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// It would never end.
    #[error(transparent)]
    Stuck(#[from] super::walk::Stuck),
}

/// How long the call takes, by the model.
///
/// # Errors
///
/// See [`PredictError`].
pub fn predict(call: &Call<'_>, model: &Model) -> Result<Prediction, PredictError> {
    let hosts = call.hosts;
    let Some(fewer) = fewer(hosts) else { return by_walking(call, model) };
    // As long messages, among fewer ranks.
    let blocks = matches!(call.algorithm.collective, C::AllReduce | C::Reduce | C::Broadcast);
    let share = if blocks { f64::from(fewer.ranks()) / f64::from(hosts.ranks()) } else { 1.0 };
    let count = (call.count as f64 * share).ceil() as usize;
    let root = call.root.min(fewer.ranks() - 1);
    let small = Call { count, root, hosts: &fewer, ..*call };
    let (walked, summed) = (by_walking(&small, model)?, add_up(&small, model)?);
    let all = add_up(call, model)?;
    Ok(Prediction { time_ns: all.time_ns * walked.time_ns / summed.time_ns, ..all })
}

/// Hosts like these, but fewer; none if they are few.
fn fewer(hosts: &Hosts) -> Option<Hosts> {
    let (ranks, count, size) = (hosts.ranks(), hosts.count(), hosts.largest());
    if ranks <= RANKS_MAX {
        return None;
    }
    let (count, size) = match count {
        1 => (1, RANKS_MAX),
        _ => (count.min((RANKS_MAX / size).max(4)), size.min(RANKS_MAX / 4)),
    };
    let ids: Vec<u32> = (0..count * size).map(|rank| rank / size).collect();
    Some(Hosts::of(&ids))
}

/// By the executions of all ranks.
fn by_walking(call: &Call<'_>, model: &Model) -> Result<Prediction, PredictError> {
    let pieces = pieces(call)?;
    if pieces <= PIECES_MAX {
        return Ok(prediction(&walked(call, model)?));
    }
    // Every piece takes as long as the one before, once the first ones are under way.
    let part = |share: usize| {
        let count = call.count / pieces * share;
        walked(&Call { count, ..*call }, model).map(|walked| (count as f64, walked))
    };
    let ((fewer, early), (more, late)) = (part(PIECES_MAX / 2)?, part(PIECES_MAX)?);
    let rest = (call.count as f64 - more) / (more - fewer);
    let on = |early: f64, late: f64| late + rest * (late - early);
    let whole = Walked {
        time_ns: on(early.time_ns, late.time_ns),
        processor_ns: on(early.processor_ns, late.processor_ns),
        within_ns: on(early.within_ns, late.within_ns),
        between_ns: on(early.between_ns, late.between_ns),
        messages: on(early.messages as f64, late.messages as f64) as u64,
        network_bytes: on(early.network_bytes as f64, late.network_bytes as f64) as u64,
    };
    Ok(prediction(&whole))
}

fn prediction(walked: &Walked) -> Prediction {
    let Walked { time_ns, processor_ns, within_ns, between_ns, network_bytes, .. } = *walked;
    let busy = [
        (processor_ns, Bound::Processor),
        (within_ns, Bound::Within),
        (between_ns, Bound::Between),
    ];
    let most = busy.into_iter().max_by(|one, other| one.0.total_cmp(&other.0));
    let most = most.filter(|(busy, _)| *busy > 0.5 * time_ns);
    Prediction {
        time_ns,
        bound: most.map_or(Bound::Latency, |(_, bound)| bound),
        network_bytes: network_bytes as f64,
    }
}

fn numbers(call: &Call<'_>, rank: Rank, split: u32) -> Result<Numbers, ShapeError> {
    let Call { algorithm, root, count, element_bytes, hosts, slot_bytes, .. } = *call;
    let seat = Seat { collective: algorithm.collective, rank, ranks: hosts.ranks(), root };
    let grain = (64 / element_bytes.max(1)).max(1);
    let (input, output) = seat.layouts(Sizes::Even(count), split, grain)?;
    Ok(Numbers { input, output, element_bytes, slot_bytes })
}

fn program(call: &Call<'_>, rank: Rank, slots: u32) -> Program {
    let Call { algorithm, root, hosts, .. } = *call;
    let schedule = (algorithm.schedule)(&Params { rank, ranks: hosts.ranks(), root, hosts });
    lower_for_slots(&schedule, Alias::APART, slots)
}

/// How often the schedule is repeated.
fn pieces(call: &Call<'_>) -> Result<usize, ShapeError> {
    let program = program(call, 0, 1);
    let numbers = numbers(call, 0, program.split)?;
    let longest = numbers.input.longest_part().max(numbers.output.longest_part());
    Ok(longest.div_ceil(numbers.piece_elements(&program)))
}

fn walked(call: &Call<'_>, model: &Model) -> Result<Walked, PredictError> {
    let Call { hosts, channels, element_bytes, buffer_bytes, .. } = *call;
    let mut executions = Vec::new();
    for rank in 0..hosts.ranks() {
        let program = program(call, rank, model.slots);
        let numbers = numbers(call, rank, program.split)?;
        let mut execution = Execution::new(Arc::new(program), channels);
        execution.start(&numbers);
        executions.push(execution);
    }
    let scene = Scene { channels, element_bytes, buffer_bytes, hosts };
    Ok(walk(&mut executions, &scene, model)?)
}

/// Steps that wait for each other, and the busiest port or processor; for ranks of a host that
/// stand for all.
fn add_up(call: &Call<'_>, model: &Model) -> Result<Prediction, PredictError> {
    let hosts = call.hosts;
    let (mut processor, mut within, mut between) = (0.0_f64, 0.0_f64, 0.0_f64);
    let mut crossing = 0.0_f64;
    for host in [hosts.seat(call.root).0, hosts.count() - 1] {
        let size = hosts.size(host);
        let mut leaves = 0.0;
        for local in 0..size.min(SAMPLE) {
            let load = load(call, hosts.rank(host, local), model)?;
            processor = processor.max(load.processor_ns);
            within = within.max(load.within / model.within.bytes_per_s * 1e9);
            between = between.max(load.between / model.between.bytes_per_s * 1e9);
            leaves += load.between;
        }
        leaves *= f64::from(size) / f64::from(size.clamp(1, SAMPLE));
        crossing = crossing.max(leaves);
        if model.network_ports == Owner::Host {
            between = between.max(leaves / model.between.bytes_per_s * 1e9);
        }
    }
    let hop = if hosts.count() > 1 { &model.between } else { &model.within };
    let step = hop.latency_ns + 2.0 * hop.message_ns + model.processor.fold_ns;
    let waiting = f64::from((call.algorithm.steps)(hosts)) * step;
    let busy = [
        (processor, Bound::Processor),
        (within, Bound::Within),
        (between, Bound::Between),
        (waiting, Bound::Latency),
    ];
    let most = busy.into_iter().max_by(|one, other| one.0.total_cmp(&other.0));
    let bound = most.map_or(Bound::Latency, |(_, bound)| bound);
    let time_ns = model.processor.call_ns + waiting + processor.max(within).max(between);
    Ok(Prediction { time_ns, bound, network_bytes: crossing * f64::from(hosts.count()) })
}

/// What a rank sends, and how long its processor is busy, were nothing ever waited for.
fn load(call: &Call<'_>, rank: Rank, model: &Model) -> Result<Load, PredictError> {
    let pieces = pieces(call)?;
    let count =
        if pieces > SAMPLE_PIECES { call.count / pieces * SAMPLE_PIECES } else { call.count };
    let part = Call { count, ..*call };
    let program = program(&part, rank, model.slots);
    let numbers = numbers(&part, rank, program.split)?;
    let mut execution = Execution::new(Arc::new(program), call.channels);
    execution.start(&numbers);
    let mut alone = Alone { call, rank, model, load: Load::default() };
    while execution.advance(&mut alone) == Progress::Moved {}
    let Load { within, between, processor_ns } = alone.load;
    let times = call.count as f64 / count.max(1) as f64;
    Ok(Load {
        within: within * times,
        between: between * times,
        processor_ns: processor_ns * times,
    })
}

/// What one rank does.
#[derive(Clone, Copy, Debug, Default)]
struct Load {
    /// Bytes to ranks of its host.
    within: f64,
    /// Bytes to others.
    between: f64,
    processor_ns: f64,
}

/// Ports of a rank for which everything is always there.
struct Alone<'a> {
    call: &'a Call<'a>,
    rank: Rank,
    model: &'a Model,
    load: Load,
}

impl Alone<'_> {
    fn is_within(&self, peer: Rank) -> bool {
        self.call.hosts.seat(self.rank).0 == self.call.hosts.seat(peer).0
    }

    fn message(&mut self, peer: Rank, bytes: usize) {
        let hop = if self.is_within(peer) { &self.model.within } else { &self.model.between };
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
        self.message(link.peer, message.bytes);
        true
    }

    fn fold(&mut self, task: &Task<'_>) {
        let bytes = task.elements as f64 * self.call.element_bytes as f64;
        self.load.processor_ns += self.model.processor.fold(task, bytes, self.call.buffer_bytes);
    }

    fn publish(&mut self, link: Link, message: Message) {
        self.message(link.peer, message.bytes);
        match self.is_within(link.peer) {
            true => self.load.within += message.bytes as f64,
            false => self.load.between += message.bytes as f64,
        }
    }

    fn release(&mut self, _link: Link) {}
}

#[cfg(test)]
mod tests {
    use super::super::walk::{Hop, Processor};
    use super::super::{about, collectives};
    use super::*;
    use crate::algorithm;
    use crate::types::Collective;

    /// Nothing takes time but the wires.
    const FREE: Processor =
        Processor { call_ns: 0.0, fold_ns: 0.0, slot_ns: 0.0, memory_ns: [0.0; 3] };

    fn wire(latency_ns: f64, bytes_per_s: f64) -> Hop {
        Hop { message_ns: 0.0, byte_ns: 0.0, latency_ns, bytes_per_s }
    }

    fn model(within: Hop, between: Hop) -> Model {
        Model { processor: FREE, within, between, network_ports: Owner::Rank, slots: 8 }
    }

    fn call<'a>(collective: Collective, name: &str, bytes: usize, hosts: &'a Hosts) -> Call<'a> {
        let algorithm = algorithm::find(collective, name).unwrap();
        let ranks = hosts.ranks() as usize;
        let blocks = match collective {
            Collective::AllReduce | Collective::Broadcast | Collective::Reduce => 1,
            _ => ranks,
        };
        let count = bytes / 4 / blocks;
        Call {
            algorithm,
            root: 0,
            count,
            element_bytes: 4,
            buffer_bytes: bytes,
            hosts,
            channels: 1,
            slot_bytes: 64 << 10,
        }
    }

    #[test]
    fn large_ones_take_what_the_closed_forms_say() {
        use Collective as C;
        let (bytes, rate) = (64_000_000.0, 10e9);
        let model = model(wire(100.0, rate), wire(100.0, rate));
        for ranks in [2, 3, 4, 8] {
            let hosts = Hosts::one(ranks);
            let n = f64::from(ranks);
            let gather = collectives::all_gather_s(bytes, n, rate);
            let reduce = collectives::all_reduce_s(bytes, n, rate);
            for (collective, name, expected) in [
                (C::AllReduce, "ring", reduce),
                (C::AllReduce, "direct_two_phase", reduce),
                (C::AllGather, "ring", gather),
                (C::AllGather, "direct", gather),
                (C::ReduceScatter, "ring", gather),
                (C::AllToAll, "direct", gather),
            ] {
                let hosts = &hosts;
                let call = call(collective, name, bytes as usize, hosts);
                let seen = predict(&call, &model).unwrap();
                let sum = add_up(&call, &model).unwrap();
                println!(
                    "{ranks} {collective} {name} {} {} {:?}",
                    seen.time_ns / 1e9 / expected,
                    sum.time_ns / 1e9 / expected,
                    seen.bound
                );
            }
        }
    }

    #[test]
    fn small_ones_take_a_latency_for_each_step() {
        let (latency_ns, hosts) = (1000.0, Hosts::one(8));
        let model = model(wire(latency_ns, 1e15), wire(latency_ns, 1e15));
        for (name, steps) in [
            ("direct", 1.0),
            ("direct_two_phase", 2.0),
            ("recursive_doubling", 3.0),
            ("ring", 14.0),
        ] {
            let call = call(Collective::AllReduce, name, 256, &hosts);
            let seen = predict(&call, &model).unwrap();
            assert_eq!(seen.bound, Bound::Latency);
            about(seen.time_ns, steps * latency_ns, 0.01);
        }
    }

    #[test]
    fn hierarchical_ones_cross_between_hosts_once() {
        let ids: Vec<u32> = (0..16).map(|rank| rank / 4).collect();
        let hosts = Hosts::of(&ids);
        let model = model(wire(100.0, 100e9), wire(1000.0, 1e9));
        let bytes = 16_000_000;
        let all = call(Collective::AllReduce, "hierarchical", bytes, &hosts);
        let seen = predict(&all, &model).unwrap();
        assert_eq!(seen.bound, Bound::Between);
        // Each host's sum, in shares: all but a quarter leaves each of four hosts twice.
        about(seen.network_bytes, 4.0 * 2.0 * 0.75 * 16e6, 0.01);
        about(seen.time_ns, 2.0 * 0.75 * 16e6 / 4.0, 0.1);
        let ring = call(Collective::AllReduce, "ring", bytes, &hosts);
        assert!(predict(&ring, &model).unwrap().time_ns > 3.0 * seen.time_ns);
    }

    /// What is told of many ranks is what a walk through all of them tells.
    #[test]
    fn many_ranks_are_told_of_from_few() {
        let (call_ns, fold_ns, slot_ns) = (500.0, 50.0, 0.05);
        let processor = Processor { call_ns, fold_ns, slot_ns, memory_ns: [0.05; 3] };
        let hop = |latency_ns, bytes_per_s| Hop {
            message_ns: 100.0,
            byte_ns: 0.0,
            latency_ns,
            bytes_per_s,
        };
        let model = Model {
            processor,
            within: hop(300.0, 20e9),
            between: hop(5000.0, 5e9),
            network_ports: Owner::Host,
            slots: 8,
        };
        let ids: Vec<u32> = (0..40).map(|rank| rank / 8).collect();
        for hosts in [Hosts::one(40), Hosts::of(&ids)] {
            for collective in [C::AllReduce, C::AllGather, C::AllToAll, C::Broadcast] {
                for algorithm in algorithm::of(collective) {
                    for bytes in [4096, 256 << 10] {
                        let call = call(collective, algorithm.name, bytes, &hosts);
                        let few = predict(&call, &model).unwrap().time_ns;
                        let all = by_walking(&call, &model).unwrap().time_ns;
                        about(few, all, 0.35);
                    }
                }
            }
        }
    }

    #[test]
    fn a_hundred_thousand_ranks_are_told_of() {
        let ids: Vec<u32> = (0..100_000).map(|rank| rank / 8).collect();
        let hosts = Hosts::of(&ids);
        let model = model(wire(1000.0, 400e9), wire(5000.0, 50e9));
        for (name, bytes) in [("hierarchical", 1 << 30), ("ring", 1 << 30)] {
            let call = call(Collective::AllReduce, name, bytes, &hosts);
            let seen = predict(&call, &model).unwrap();
            let least = 2.0 * bytes as f64 / 50e9 * 1e9 / if name == "ring" { 1.0 } else { 8.0 };
            assert!((0.7..100.0).contains(&(seen.time_ns / least)), "{name} {seen:?}");
        }
    }
}
