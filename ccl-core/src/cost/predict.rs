//! Prediction of the time of a collective, for one of its algorithms. With few ranks, the
//! prediction is a walk through the call ([`super::walk`]). With many ranks, the prediction is a
//! sum multiplied by a factor. The sum is the latency of all steps, plus the time of the busiest
//! port or processor. The factor comes from a similar call among fewer ranks: the time of a walk
//! through that call, divided by the sum for that call.

use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;
use std::sync::Arc;

use super::load::{Counting, IN, Load, OUT, Outline};
use super::walk::{Left, Model, Owner, Scene, Walked, walk};
use crate::algorithm::{Algorithm, Params};
use crate::execution::{CallParams, Execution};
use crate::lower::{Alias, Program, lower_for_slots};
use crate::schedule::RankSchedule;
use crate::schedule::shape::{Seat, ShapeError, Sizes};
use crate::topology::Hosts;
use crate::types::Rank;

/// Largest number of ranks that are walked; the time of more ranks is extrapolated.
const RANKS_MAX: u32 = 32;
/// Largest number of chunks that are walked; the time of more chunks is extrapolated.
const CHUNKS_MAX: usize = 24;
/// Number of ranks at each end of a large host (its first and its last ranks) whose work is counted
/// one by one.
const ENDS: u32 = 4;

/// Programs that the ranks run for an algorithm: lowered once, for calls of any length.
#[derive(Debug)]
pub struct Programs {
    /// The algorithm.
    algorithm: &'static Algorithm,
    /// The root, if the collective has one.
    root: Rank,
    /// Placement of the ranks on hosts.
    hosts: Hosts,
    /// Slots of each link, on each channel.
    slots: u32,
    known: RefCell<BTreeMap<Rank, Arc<Program>>>,
    /// Outlines of the ranks that are counted.
    outlines: RefCell<BTreeMap<Rank, Arc<Outline>>>,
    /// Programs of fewer ranks on similar hosts, for extrapolation; none if `hosts` has few ranks.
    fewer: OnceCell<Option<Box<Programs>>>,
}

impl Programs {
    /// Creates the programs of all ranks on these hosts; each is lowered at its first use.
    #[must_use]
    pub fn new(algorithm: &'static Algorithm, root: Rank, hosts: Hosts, slots: u32) -> Programs {
        let (known, outlines, fewer) = Default::default();
        Programs { algorithm, root, hosts, slots, known, outlines, fewer }
    }

    fn of(&self, rank: Rank) -> Arc<Program> {
        let mut known = self.known.borrow_mut();
        let lowered = || Arc::new(lower_for_slots(&self.schedule(rank), Alias::APART, self.slots));
        Arc::clone(known.entry(rank).or_insert_with(lowered))
    }

    fn outline(&self, rank: Rank) -> Arc<Outline> {
        let mut known = self.outlines.borrow_mut();
        let outline = || Arc::new(Outline::of(&self.schedule(rank), self.slots));
        Arc::clone(known.entry(rank).or_insert_with(outline))
    }

    fn schedule(&self, rank: Rank) -> RankSchedule {
        let (root, hosts) = (self.root, &self.hosts);
        (self.algorithm.schedule)(&Params { rank, ranks: hosts.ranks(), root, hosts })
    }

    /// Returns the programs of fewer ranks on similar hosts; none if the ranks are few.
    fn fewer(&self) -> Option<&Programs> {
        let few = || {
            let hosts = fewer(&self.hosts)?;
            let root = self.root.min(hosts.ranks() - 1);
            Some(Box::new(Programs::new(self.algorithm, root, hosts, self.slots)))
        };
        self.fewer.get_or_init(few).as_deref()
    }
}

/// A collective whose blocks all have the same number of elements.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// Programs of the ranks.
    pub programs: &'a Programs,
    /// Elements of a block.
    pub count: usize,
    /// Bytes of an element.
    pub element_bytes: usize,
    /// Bytes of the larger of a rank's input and output. If the time is predicted from a smaller
    /// call (among fewer ranks, or of fewer chunks), the smaller call keeps this number.
    pub buffer_bytes: usize,
    /// Parallel channels per pair of ranks.
    pub channels: u32,
    /// Largest payload of a message.
    pub slot_bytes: usize,
}

/// A predicted time, and the resource that bounds it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prediction {
    /// Time until the last rank is done, in nanoseconds.
    pub time_ns: f64,
    /// Resource that takes most of the time.
    pub bound: Bound,
    /// Bytes that cross between hosts, of all ranks together; approximate if ranks are many.
    pub network_bytes: f64,
}

/// Resource that takes most of the predicted time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// Messages that wait for each other.
    Latency,
    /// The processor of a rank.
    Processor,
    /// Links between ranks of a host.
    Within,
    /// The network.
    Between,
}

impl Bound {
    /// Returns the name for messages to users.
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

/// Reason for a missing prediction.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PredictError {
    /// A collective that does not take blocks of equal size.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// A call that never ends.
    #[error(transparent)]
    Stuck(#[from] super::walk::Stuck),
}

/// Returns the time that the call takes according to the model, and the resource that bounds it.
///
/// # Errors
///
/// See [`PredictError`].
pub fn predict(call: &Call<'_>, model: &Model) -> Result<Prediction, PredictError> {
    let Some(small) = small(call) else { return by_walking(call, model) };
    let (walked, summed) = (by_walking(&small, model)?, add_up(&small, model)?);
    let all = add_up(call, model)?;
    Ok(Prediction { time_ns: all.time_ns * walked.time_ns / summed.time_ns, ..all })
}

/// Factor by which [`at_least`] multiplies the busy time. The factor is below 1, because the busy
/// time of a large call is scaled up from a small call, and may exceed the prediction by some per
/// cent.
const SURE: f64 = 0.9;

/// Returns a lower bound of [`predict`], in nanoseconds: nine tenths of the time of the busiest
/// port or processor. The bound needs no walk: a search for the fastest of several protocols (such
/// as NCCL's LL and Simple) skips a protocol whose bound exceeds the best time so far.
///
/// # Errors
///
/// See [`PredictError`].
pub fn at_least(call: &Call<'_>, model: &Model) -> Result<f64, PredictError> {
    let (all, busy_ns) = sum(call, model)?;
    let Some(small) = small(call) else { return Ok(SURE * busy_ns) };
    let (summed, busy_ns) = sum(&small, model)?;
    Ok(SURE * all.time_ns * busy_ns / summed.time_ns)
}

/// Returns a similar call among fewer ranks; none if the ranks are few. A buffer of a single block
/// shrinks with the number of ranks, so that each rank's share of the buffer keeps its length.
fn small<'a>(call: &Call<'a>) -> Option<Call<'a>> {
    let fewer = call.programs.fewer()?;
    let whole = fewer.algorithm.collective.even_blocks(2) == Some(1);
    let ranks = |programs: &Programs| f64::from(programs.hosts.ranks());
    let share = if whole { ranks(fewer) / ranks(call.programs) } else { 1.0 };
    let count = (call.count as f64 * share).ceil() as usize;
    Some(Call { programs: fewer, count, ..*call })
}

/// Returns similar hosts with fewer ranks; none if these hosts have few ranks.
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

/// Predicts by walking through the executions of all ranks.
fn by_walking(call: &Call<'_>, model: &Model) -> Result<Prediction, PredictError> {
    let chunks = chunks(call)?;
    if chunks <= CHUNKS_MAX {
        return Ok(prediction(&walked(call, model)?));
    }
    // After the first chunks, every chunk takes equally long.
    let part = |share: usize| {
        let count = call.count / chunks * share;
        walked(&Call { count, ..*call }, model).map(|walked| (count as f64, walked))
    };
    let ((fewer, early), (more, late)) = (part(CHUNKS_MAX / 2)?, part(CHUNKS_MAX)?);
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

/// Returns the alignment of parts in elements: a cache line, as in real calls.
#[must_use]
pub fn grain(element_bytes: usize) -> usize {
    (64 / element_bytes.max(1)).max(1)
}

fn numbers(call: &Call<'_>, rank: Rank, split: u32) -> Result<CallParams, ShapeError> {
    let Call { programs, count, element_bytes, slot_bytes, .. } = *call;
    let Programs { algorithm, root, hosts, .. } = programs;
    let (collective, ranks) = (algorithm.collective, hosts.ranks());
    let seat = Seat { collective, rank, ranks, root: *root };
    let (input, output) = seat.layouts(Sizes::Even(count), split, grain(element_bytes))?;
    Ok(CallParams { input, output, element_bytes, slot_bytes })
}

/// Returns the number of chunks; the schedule is executed once for each.
fn chunks(call: &Call<'_>) -> Result<usize, ShapeError> {
    let outline = call.programs.outline(0);
    let numbers = numbers(call, 0, outline.split)?;
    let longest = numbers.input.longest_part().max(numbers.output.longest_part());
    Ok(longest.div_ceil(numbers.elements_of(outline.message_parts)))
}

fn walked(call: &Call<'_>, model: &Model) -> Result<Walked, PredictError> {
    messages(call, model, &mut |_| {})
}

/// Returns whether these hosts have few enough ranks to walk through a whole call.
#[must_use]
pub fn is_walked(hosts: &Hosts) -> bool {
    hosts.ranks() <= RANKS_MAX
}

/// Walks through a whole call without extrapolation, and reports every message as it leaves. The
/// running time grows with the messages, and with the square of the ranks: see [`is_walked`].
///
/// # Errors
///
/// See [`PredictError`].
pub fn messages(
    call: &Call<'_>,
    model: &Model,
    seen: &mut dyn FnMut(&Left),
) -> Result<Walked, PredictError> {
    let Call { programs, channels, element_bytes, buffer_bytes, .. } = *call;
    let hosts = &programs.hosts;
    let mut executions = Vec::new();
    for rank in 0..hosts.ranks() {
        let program = programs.of(rank);
        let numbers = numbers(call, rank, program.split)?;
        let mut execution = Execution::new(program, channels);
        execution.start(&numbers);
        executions.push(execution);
    }
    let slots = programs.slots;
    let scene = Scene { channels, slots, element_bytes, buffer_bytes, hosts };
    Ok(walk(&mut executions, &scene, model, seen)?)
}

/// Predicts by addition: the latency of all steps, plus the time of the busiest port or processor.
/// Looks only at some hosts, which represent all.
fn add_up(call: &Call<'_>, model: &Model) -> Result<Prediction, PredictError> {
    sum(call, model).map(|(all, _)| all)
}

/// Returns the prediction of `add_up`, and its time without the latency of steps.
fn sum(call: &Call<'_>, model: &Model) -> Result<(Prediction, f64), PredictError> {
    let Programs { algorithm, hosts, .. } = call.programs;
    let (mut busiest, mut crossing) = (Busy::default(), 0.0);
    for (host, stands_for) in samples(call.programs) {
        let host = host_load(call, host, model)?;
        busiest = busiest.or(&host.busy);
        crossing += host.leaves * stands_for;
    }
    let Busy { processor, within, between } = busiest;
    let hop = if hosts.count() > 1 { &model.between } else { &model.within };
    let step = hop.latency_ns + 2.0 * hop.message_ns + model.processor.fold_ns;
    let waiting = f64::from((algorithm.steps)(hosts)) * step;
    let busy = [
        (processor, Bound::Processor),
        (within, Bound::Within),
        (between, Bound::Between),
        (waiting, Bound::Latency),
    ];
    let most = busy.into_iter().max_by(|one, other| one.0.total_cmp(&other.0));
    let bound = most.map_or(Bound::Latency, |(_, bound)| bound);
    let busy_ns = model.processor.call_ns + processor.max(within).max(between);
    let time_ns = busy_ns + waiting;
    Ok((Prediction { time_ns, bound, network_bytes: crossing }, busy_ns))
}

/// Returns the hosts that are counted, with the number of hosts that each represents. The root's
/// host represents itself. Of the other hosts, the first and the last of each size represent all
/// hosts of that size.
fn samples(programs: &Programs) -> Vec<(u32, f64)> {
    let hosts = &programs.hosts;
    let (root, _) = hosts.seat(programs.root);
    let mut sizes: BTreeMap<u32, (u32, u32, u32)> = BTreeMap::new();
    for host in (0..hosts.count()).filter(|host| *host != root) {
        let (_, last, count) = sizes.entry(hosts.size(host)).or_insert((host, host, 0));
        (*last, *count) = (host, *count + 1);
    }
    let mut samples = vec![(root, 1.0)];
    for (first, last, count) in sizes.into_values() {
        match first == last {
            true => samples.push((first, 1.0)),
            false => samples.extend([first, last].map(|host| (host, f64::from(count) / 2.0))),
        }
    }
    samples
}

/// Busy times of the possible bottlenecks, in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
struct Busy {
    processor: f64,
    within: f64,
    between: f64,
}

impl Busy {
    fn or(&self, other: &Busy) -> Busy {
        Busy {
            processor: self.processor.max(other.processor),
            within: self.within.max(other.within),
            between: self.between.max(other.between),
        }
    }
}

/// Load of a host.
#[derive(Clone, Copy, Debug, Default)]
struct HostLoad {
    busy: Busy,
    /// Bytes that all ranks of the host send to other hosts.
    leaves: f64,
}

/// Returns the load of a host. On a large host, the root and the first and last ranks are counted
/// one by one, because their work in rings and trees differs from that of the ranks between them.
/// Two ranks in the middle represent the other ranks.
fn host_load(call: &Call<'_>, host: u32, model: &Model) -> Result<HostLoad, PredictError> {
    let Programs { root, hosts, .. } = call.programs;
    let size = hosts.size(host);
    let mut locals: Vec<(u32, f64)> = match size <= 2 * ENDS + 2 {
        true => (0..size).map(|local| (local, 1.0)).collect(),
        false => {
            let (middle, share) = (size / 2, f64::from(size - 2 * ENDS) / 2.0);
            let ends = (0..ENDS).chain(size - ENDS..size).map(|local| (local, 1.0));
            ends.chain([(middle, share), (middle + 1, share)]).collect()
        }
    };
    let (root_host, root_local) = hosts.seat(*root);
    if host == root_host && locals.iter().all(|(local, _)| *local != root_local) {
        locals.push((root_local, 1.0));
    }
    let (mut all, mut into_host) = (HostLoad::default(), 0.0);
    for (local, stands_for) in locals {
        let load = load(call, hosts.rank(host, local), model)?;
        let ns = |both: [f64; 2], rate: f64| both[0].max(both[1]) / rate * 1e9;
        all.busy = all.busy.or(&Busy {
            processor: load.processor_ns,
            within: ns(load.within, model.within.bytes_per_s),
            between: ns(load.between, model.between.bytes_per_s),
        });
        all.leaves += load.between[OUT] * stands_for;
        into_host += load.between[IN] * stands_for;
    }
    if model.network_ports == Owner::Host {
        let port = all.leaves.max(into_host) / model.between.bytes_per_s * 1e9;
        all.busy.between = all.busy.between.max(port);
    }
    Ok(all)
}

/// Counts the bytes that a rank sends and receives, and the time for which its processor is busy,
/// without any waiting.
fn load(call: &Call<'_>, rank: Rank, model: &Model) -> Result<Load, PredictError> {
    let outline = call.programs.outline(rank);
    let numbers = numbers(call, rank, outline.split)?;
    let mut counting = Counting {
        rank,
        hosts: &call.programs.hosts,
        model,
        numbers: &numbers,
        buffer_bytes: call.buffer_bytes,
        chunk_elements: numbers.elements_of(outline.message_parts),
        load: Load::default(),
    };
    counting.add(&outline);
    Ok(counting.load)
}

#[cfg(test)]
mod tests {
    use super::super::walk::{Hop, Processor};
    use super::*;
    use crate::algorithm;
    use crate::types::Collective;

    fn about(value: f64, expected: f64, tolerance: f64) {
        assert!((value / expected - 1.0).abs() <= tolerance, "{value} is not about {expected}");
    }

    /// Processor that takes no time; only the wires take time.
    const FREE: Processor =
        Processor { call_ns: 0.0, fold_ns: 0.0, slot_ns: 0.0, memory_ns: [0.0; 3] };

    fn wire(latency_ns: f64, bytes_per_s: f64) -> Hop {
        Hop { message_ns: 0.0, byte_ns: 0.0, latency_ns, bytes_per_s }
    }

    fn model(within: Hop, between: Hop) -> Model {
        Model { processor: FREE, within, between, network_ports: Owner::Rank }
    }

    fn programs(collective: Collective, name: &str, hosts: &Hosts) -> Programs {
        Programs::new(algorithm::find(collective, name).unwrap(), 0, hosts.clone(), 8)
    }

    fn call(programs: &Programs, bytes: usize) -> Call<'_> {
        let (collective, ranks) = (programs.algorithm.collective, programs.hosts.ranks());
        let blocks = collective.even_blocks(ranks).unwrap() as usize;
        let count = bytes / 4 / blocks;
        let slot_bytes = 64 << 10;
        Call { programs, count, element_bytes: 4, buffer_bytes: bytes, channels: 1, slot_bytes }
    }

    #[test]
    fn large_collectives_take_the_times_of_the_closed_forms() {
        use Collective as C;
        let (bytes, rate) = (64_000_000.0, 10e9);
        let model = model(wire(100.0, rate), wire(100.0, rate));
        for ranks in [2, 3, 4, 8] {
            let hosts = Hosts::one(ranks);
            let n = f64::from(ranks);
            // In each phase, a rank receives (n - 1) / n of the buffer.
            let gather = bytes * (n - 1.0) / (n * rate);
            let reduce = 2.0 * gather;
            for (collective, name, expected) in [
                (C::AllReduce, "ring", reduce),
                (C::AllReduce, "direct_two_phase", reduce),
                (C::AllGather, "ring", gather),
                (C::AllGather, "direct", gather),
                (C::ReduceScatter, "ring", gather),
                (C::AllToAll, "direct", gather),
            ] {
                let hosts = &hosts;
                let programs = programs(collective, name, hosts);
                let call = call(&programs, bytes as usize);
                let seen = predict(&call, &model).unwrap();
                let sum = add_up(&call, &model).unwrap();
                about(seen.time_ns / 1e9, expected, 0.02);
                about(sum.time_ns / 1e9, expected, 0.02);
                assert_eq!((seen.bound, seen.network_bytes), (Bound::Within, 0.0), "{name}");
            }
        }
    }

    #[test]
    fn small_collectives_take_one_latency_per_step() {
        let (latency_ns, hosts) = (1000.0, Hosts::one(8));
        let model = model(wire(latency_ns, 1e15), wire(latency_ns, 1e15));
        for (name, steps) in [
            ("direct", 1.0),
            ("direct_two_phase", 2.0),
            ("recursive_doubling", 3.0),
            ("ring", 14.0),
        ] {
            let programs = programs(Collective::AllReduce, name, &hosts);
            let call = call(&programs, 256);
            let seen = predict(&call, &model).unwrap();
            assert_eq!(seen.bound, Bound::Latency);
            about(seen.time_ns, steps * latency_ns, 0.01);
        }
    }

    #[test]
    fn hierarchical_algorithms_send_little_between_hosts() {
        let ids: Vec<u32> = (0..16).map(|rank| rank / 4).collect();
        let hosts = Hosts::of(&ids);
        let model = model(wire(100.0, 100e9), wire(1000.0, 1e9));
        let bytes = 16_000_000;
        let hierarchical = programs(Collective::AllReduce, "hierarchical", &hosts);
        let seen = predict(&call(&hierarchical, bytes), &model).unwrap();
        assert_eq!(seen.bound, Bound::Between);
        // Each of the four hosts sends three quarters of the buffer twice.
        about(seen.network_bytes, 4.0 * 2.0 * 0.75 * 16e6, 0.01);
        about(seen.time_ns, 2.0 * 0.75 * 16e6 / 4.0, 0.1);
        let ring = programs(Collective::AllReduce, "ring", &hosts);
        assert!(predict(&call(&ring, bytes), &model).unwrap().time_ns > 3.0 * seen.time_ns);
    }

    /// Compares predictions for many ranks with walks of all these ranks, by time and by bytes
    /// between hosts.
    #[test]
    fn times_of_many_ranks_are_predicted_from_few() {
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
        };
        let even: Vec<u32> = (0..40).map(|rank| rank / 8).collect();
        let large: Vec<u32> = (0..36).map(|rank| rank / 18).collect();
        let uneven = [[0; 12].as_slice(), &[1; 2], &[2; 12], &[3; 10]].concat();
        for (hosts, within) in [
            (Hosts::one(40), 0.35),
            (Hosts::of(&even), 0.7),
            (Hosts::of(&large), 1.2),
            (Hosts::of(&uneven), 1.2),
        ] {
            for collective in Collective::ALL {
                for algorithm in algorithm::of(collective) {
                    if collective.even_blocks(2).is_none() {
                        continue;
                    }
                    let programs = programs(collective, algorithm.name, &hosts);
                    for bytes in [4096, 256 << 10] {
                        let call = call(&programs, bytes);
                        let few = predict(&call, &model).unwrap();
                        let all = by_walking(&call, &model).unwrap();
                        let ratio = few.time_ns / all.time_ns;
                        let name = algorithm.name;
                        let of = format!("{collective} {name} {bytes} B, {} hosts", hosts.count());
                        assert!(ratio.max(1.0 / ratio) < 1.0 + within, "{of}: {ratio}");
                        let crossing = few.network_bytes / all.network_bytes.max(1.0);
                        let is_none = few.network_bytes + all.network_bytes == 0.0;
                        assert!(is_none || (0.4..2.5).contains(&crossing), "{of}: {crossing}");
                    }
                }
            }
        }
    }

    #[test]
    fn no_prediction_is_below_its_lower_bound() {
        let processor =
            Processor { call_ns: 500.0, fold_ns: 50.0, slot_ns: 0.05, memory_ns: [0.05; 3] };
        let model = Model { processor, ..model(wire(300.0, 20e9), wire(5000.0, 5e9)) };
        let ids: Vec<u32> = (0..40).map(|rank| rank / 8).collect();
        for hosts in [Hosts::one(8), Hosts::of(&ids[..16]), Hosts::of(&ids)] {
            for collective in Collective::ALL {
                let there =
                    algorithm::of(collective).filter(|_| collective.even_blocks(2).is_some());
                for algorithm in there {
                    let programs = programs(collective, algorithm.name, &hosts);
                    for bytes in [4096, 256 << 10, 16 << 20] {
                        let call = call(&programs, bytes);
                        let least = at_least(&call, &model).unwrap();
                        let ratio = predict(&call, &model).unwrap().time_ns / least;
                        let name = algorithm.name;
                        assert!(ratio >= 1.0, "{collective} {name} {bytes} B: ratio {ratio}");
                    }
                }
            }
        }
    }

    /// Checks that all bytes that the root receives, or sends, pass its port.
    #[test]
    fn all_bytes_of_a_root_pass_its_port() {
        let ids: Vec<u32> = (0..1024).map(|rank| rank / 8).collect();
        let hosts = Hosts::of(&ids);
        let model = model(wire(1000.0, 400e9), wire(5000.0, 50e9));
        let bytes = 1 << 30;
        for (collective, name) in [(Collective::Gather, "direct"), (Collective::Scatter, "direct")]
        {
            let programs = programs(collective, name, &hosts);
            let seen = predict(&call(&programs, bytes), &model).unwrap();
            about(seen.time_ns, bytes as f64 / 50e9 * 1e9, 0.1);
            about(seen.network_bytes, bytes as f64, 0.05);
        }
    }

    #[test]
    fn a_hundred_thousand_ranks_can_be_predicted() {
        let ids: Vec<u32> = (0..100_000).map(|rank| rank / 8).collect();
        let hosts = Hosts::of(&ids);
        let model = model(wire(1000.0, 400e9), wire(5000.0, 50e9));
        for (name, bytes) in [("hierarchical", 1 << 30), ("ring", 1 << 30)] {
            let programs = programs(Collective::AllReduce, name, &hosts);
            let seen = predict(&call(&programs, bytes), &model).unwrap();
            let least = 2.0 * bytes as f64 / 50e9 * 1e9 / if name == "ring" { 1.0 } else { 8.0 };
            assert!((0.7..100.0).contains(&(seen.time_ns / least)), "{name} {seen:?}");
        }
    }
}
