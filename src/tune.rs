//! Measures which algorithm is the fastest, on the machine at hand: `ferroccl tune`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write;

use ccl_core::algorithm;
use ccl_core::config::Config;
use ccl_core::cost::fit::{Sample, fit};
use ccl_core::cost::models;
use ccl_core::cost::predict::{self, Programs};
use ccl_core::cost::walk::{Hop, Model, Processor};
pub use ccl_core::select::tuning::Tuning;
use ccl_core::select::tuning::{Change, Measured, Point};
use ccl_core::topology::Hosts;
use ccl_core::types::{Collective, DataType, ReduceOp};

use crate::communicator::{Call, Communicator, Explanation, machine};
use crate::perf::geometry::counts_of_size;
use crate::perf::memory::Memory;
use crate::perf::options::Average;
use crate::perf::progress::Progress;
use crate::perf::setup::checked_call;
use crate::perf::sizes::{Step, sweep};
use crate::perf::subject::SubjectError;
use crate::perf::timing::{Loop, over_ranks, time_calls};
use crate::perf::trial::Trial;

/// A round of an algorithm takes about so long, however short its calls are.
const ROUND_US: f64 = 2000.0;
const ITERATIONS_MAX: f64 = 200.0;

/// Where the search for what a network link carries begins.
const LINK_BYTES_PER_S: f64 = 10e9;

/// Of more, a model is not fitted.
const MODELLED_RANKS_MAX: u32 = 8;

/// What is measured.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// Which collectives.
    pub collectives: Vec<Collective>,
    /// From so many bytes.
    pub min_bytes: usize,
    /// To so many.
    pub max_bytes: usize,
    /// Each so many times the one before, at least 2.
    pub factor: usize,
    /// How often each algorithm has its turn, at least 1.
    pub rounds: u32,
}

/// A point as it was measured.
#[derive(Clone, Debug)]
struct Seen {
    point: Point,
    /// Elements of a block.
    count: usize,
    /// What the library would do.
    plan: Explanation,
}

/// What was measured.
#[derive(Debug)]
pub struct Outcome {
    /// The table, as text.
    pub table: String,
    seen: Vec<Seen>,
}

/// Measures on this rank with all others. Returns what came of it on rank 0; `out` gets a line for
/// each point there.
///
/// # Errors
///
/// Whatever the communicator reports, and wrong results.
pub fn measure(
    wanted: &Wanted,
    mut config: Config,
    out: &mut dyn Write,
) -> Result<Option<Outcome>, SubjectError> {
    // Neither what was measured before nor an order of reduction is asked for.
    config.tuning = Tuning::NONE;
    config.deterministic = false;
    let mut communicator = Communicator::from_environment_with(config)?;
    let is_first = communicator.rank() == 0;
    let mut memory = Memory::new(wanted.max_bytes, wanted.max_bytes)?;
    let sizes: Vec<usize> =
        sweep(wanted.min_bytes, wanted.max_bytes, Step::Factor(wanted.factor)).collect();
    let progress = Progress::new((sizes.len() * wanted.collectives.len()) as u64, is_first);
    let mut tuning = Tuning { machine: Some(machine()), points: Vec::new() };
    let mut all = Vec::new();
    for collective in &wanted.collectives {
        for bytes in &sizes {
            let seen = point(wanted, *collective, *bytes, &mut communicator, &mut memory)?;
            // Too few for a block of each rank.
            let Some(seen) = seen else { continue };
            if is_first {
                progress.suspend(|| out.write_all(line(&seen).as_bytes()))?;
            }
            progress.step(format!("{collective} {bytes} B"));
            tuning.points.push(seen.point.clone());
            all.push(seen);
        }
    }
    let head = "# What `ferroccl tune` has measured, in microseconds: the median, and by how much \
                half of the rounds were off.\n";
    if !is_first {
        return Ok(None);
    }
    Ok(Some(Outcome { table: head.to_owned() + &tuning.lines(), seen: all }))
}

impl Outcome {
    /// How near a model of the processors and links comes to what was measured, once its numbers
    /// are fitted to that: one or two sentences. For few ranks: to walk through many takes too
    /// long.
    ///
    /// # Errors
    ///
    /// When the walk does not end.
    pub fn modelled(&self) -> Result<String, SubjectError> {
        let Some(Seen { plan, .. }) = self.seen.first() else { return Ok(String::new()) };
        if plan.ranks > MODELLED_RANKS_MAX {
            return Ok(String::new());
        }
        // In rows, as this machine's own launcher and most others place them.
        let hosts: Vec<u32> =
            (0..plan.ranks).map(|rank| rank * plan.hosts / plan.ranks.max(1)).collect();
        let programs = self.programs(&Hosts::of(&hosts), plan.slots)?;
        let samples = self.samples(&programs);
        let fitted = fit(&models::processors(LINK_BYTES_PER_S), &samples)?;
        let Model { processor, within, between, .. } = fitted.model;
        let Processor { call_ns, fold_ns, slot_ns, memory_ns: [near, shared, far] } = processor;
        let mut text = format!(
            "Predicted by a walk through the schedules, with numbers fitted to these {} times: \
             half of the predictions are off by {:.0} % at most.\n\
             A call takes {call_ns:.0} ns, a fold {fold_ns:.0} ns and, for each byte, \
             {slot_ns:.3} ns in slots, and in buffers of up to 1 MiB, 16 MiB and more {near:.3}, \
             {shared:.3} and {far:.3} ns; between ranks of a host {:.0} ns",
            samples.len(),
            100.0 * fitted.median_error(),
            within.latency_ns + within.message_ns
        );
        if plan.hosts > 1 {
            let Hop { message_ns, byte_ns, latency_ns, bytes_per_s } = between;
            // Writing to a string does not fail.
            let _ = write!(
                text,
                ", between hosts {latency_ns:.0} ns, {message_ns:.0} ns for each message and \
                 {byte_ns:.3} ns for each byte at either end, and {:.1} GB/s",
                bytes_per_s / 1e9
            );
        }
        Ok(text + ".\n")
    }

    /// What was measured, lowered once for all sizes.
    fn programs(&self, hosts: &Hosts, slots: u32) -> Result<Lowered, SubjectError> {
        let mut programs = Lowered::new();
        for Seen { point, .. } in &self.seen {
            for time in &point.times {
                let key = (point.collective.name(), time.algorithm);
                let algorithm = algorithm::find(point.collective, time.algorithm)?;
                let lowered = || Programs::new(algorithm, 0, hosts.clone(), slots);
                programs.entry(key).or_insert_with(lowered);
            }
        }
        Ok(programs)
    }

    fn samples<'p>(&self, programs: &'p Lowered) -> Vec<Sample<'p>> {
        let mut samples = Vec::new();
        for Seen { point, count, plan } in &self.seen {
            for time in &point.times {
                let key = (point.collective.name(), time.algorithm);
                let Some(programs) = programs.get(&key) else { continue };
                let call = predict::Call {
                    programs,
                    count: *count,
                    element_bytes: DataType::Float32.bytes(),
                    buffer_bytes: point.bytes,
                    channels: plan.channels,
                    slot_bytes: plan.slot_bytes,
                };
                samples.push(Sample { call, time_ns: time.median_ns as f64 });
            }
        }
        samples
    }
}

/// Programs by the names of collective and algorithm.
type Lowered = BTreeMap<(&'static str, &'static str), Programs>;

fn point(
    wanted: &Wanted,
    collective: Collective,
    bytes: usize,
    communicator: &mut Communicator,
    memory: &mut Memory,
) -> Result<Option<Seen>, SubjectError> {
    let (data_type, op, root) = (DataType::Float32, ReduceOp::Sum, 0);
    let (rank, ranks) = (communicator.rank(), communicator.ranks());
    let counts = counts_of_size(collective, bytes, data_type, false, (rank, ranks));
    let trial = |name| Trial {
        collective,
        data_type,
        op,
        root,
        counts: counts.clone(),
        algorithm: Some(name),
        rank,
        ranks,
    };
    let blocks = collective.even_blocks(ranks).ok_or("it has no blocks that are all alike")?;
    let size = trial("").size_bytes();
    let count = size / data_type.bytes() / blocks as usize;
    if count == 0 {
        return Ok(None);
    }
    let plan = Communicator::explain(communicator, &Call::even(collective, data_type, count))?;
    let mut rounds: Vec<(&'static str, u32, Vec<f64>)> = Vec::new();
    for algorithm in algorithm::of(collective) {
        let trial = trial(algorithm.name);
        let wrong = checked_call(communicator, &trial, memory, 1, false)?;
        if wrong > 0 {
            let name = algorithm.name;
            return Err(format!("{collective} by {name}: {wrong} elements are wrong").into());
        }
        let first = time(communicator, &trial, memory, 3)?;
        let iterations = (ROUND_US / first.max(0.01)).clamp(1.0, ITERATIONS_MAX) as u32;
        rounds.push((algorithm.name, iterations, Vec::new()));
    }
    // In turns: what disturbs the machine for a while disturbs all of them.
    for _ in 0..wanted.rounds {
        for (name, iterations, times) in &mut rounds {
            times.push(time(communicator, &trial(name), memory, *iterations)?);
        }
    }
    let times = rounds.into_iter().map(|(name, _, times)| summary(name, times)).collect();
    let point = Point { collective, ranks, hosts: plan.hosts, bytes: size, times };
    Ok(Some(Seen { point, count, plan }))
}

/// Microseconds of a call, of the slowest rank.
fn time(
    communicator: &mut Communicator,
    trial: &Trial<'_>,
    memory: &mut Memory,
    iterations: u32,
) -> Result<f64, SubjectError> {
    trial.prepare(memory, 0, false);
    let call = trial.prepared(false);
    let shape = Loop {
        iterations,
        aggregated: 1,
        batch: iterations,
        barrier_after_call: false,
        barrier_after_sample: false,
    };
    let times = time_calls(communicator, shape, &mut |subject| call.run(subject, memory))?;
    Ok(over_ranks(communicator, times, Average::Max)?.mean_us)
}

/// The median, and half of the distance between the quartiles.
fn summary(algorithm: &'static str, mut times: Vec<f64>) -> Measured {
    times.sort_by(f64::total_cmp);
    let at = |share: f64| times.get((times.len() as f64 * share) as usize).copied().unwrap_or(0.0);
    let ns = |us: f64| (us * 1e3).round() as u64;
    let spread_ns = ns((at(0.75) - at(0.25)) / 2.0);
    Measured { algorithm, median_ns: ns(at(0.5)), spread_ns }
}

/// A point, for people.
fn line(seen: &Seen) -> String {
    let Point { collective, bytes, times, .. } = &seen.point;
    let mut text = format!("{collective:<16} {bytes:>12} B ");
    let us = |ns: u64| ns as f64 / 1e3;
    let Some(best) = seen.point.fastest(|_| true) else { return text + "\n" };
    // Writing to a string does not fail.
    let _ = write!(text, " {:<20} {:>12.2} us", best.algorithm, us(best.median_ns));
    match times.iter().find(|time| time.algorithm == seen.plan.algorithm) {
        Some(chosen) if chosen.algorithm != best.algorithm => {
            let ratio = chosen.median_ns as f64 / best.median_ns.max(1) as f64;
            let _ = write!(text, "   without the table {} ({ratio:.2} times)", chosen.algorithm);
        }
        _ => {}
    }
    text + "\n"
}

/// What became of what both tables have.
#[derive(Debug)]
pub struct Comparison {
    /// A line for each point, and what they come to.
    pub text: String,
    /// Whether any got slower.
    pub is_slower: bool,
}

/// Compares an older table with a newer one, which may be slower by so much (0.1: a tenth).
///
/// # Errors
///
/// When they have nothing in common.
pub fn compare(old: &Tuning, new: &Tuning, allowed: f64) -> Result<Comparison, String> {
    let changes = old.changes(new, allowed);
    if changes.is_empty() && !old.points.is_empty() {
        return Err("the tables have no point in common: measure with as many ranks on as many \
                    hosts, and the same sizes"
            .to_owned());
    }
    let us = |time: &Measured| time.median_ns as f64 / 1e3;
    let line = |change: &Change| {
        let Change { point, old, new, is_slower } = change;
        let Point { collective, ranks, hosts, bytes, .. } = point;
        let (was, is) = (us(old), us(new));
        let verdict = if *is_slower { "  SLOWER" } else { "" };
        format!(
            "{collective} ranks={ranks} hosts={hosts} bytes={bytes}: {was} us ({}) -> {is} us \
             ({}), {:.2} times{verdict}\n",
            old.algorithm,
            new.algorithm,
            is / was.max(1e-3)
        )
    };
    let mut text: String = changes.iter().map(line).collect();
    let missing = old.points.len() - changes.len();
    let slower = changes.iter().filter(|change| change.is_slower).count();
    let _ = writeln!(
        text,
        "{} points in both tables, {slower} slower by more than {} % and by more than noise",
        changes.len(),
        allowed * 100.0
    );
    if missing > 0 {
        let _ = writeln!(text, "{missing} points of the older are not in the newer");
    }
    if old.machine != new.machine {
        let name = |tuning: &Tuning| tuning.machine.clone().unwrap_or_default();
        let _ = writeln!(text, "measured on \"{}\" and on \"{}\"", name(old), name(new));
    }
    Ok(Comparison { text, is_slower: slower > 0 })
}
