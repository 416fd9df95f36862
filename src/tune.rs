//! Measures which algorithm is the fastest, on the machine at hand: `ferroccl tune`.

use std::fmt::Write as _;
use std::io::Write;

use ccl_core::algorithm;
use ccl_core::config::Config;
use ccl_core::cost::fit::{Sample, fit};
use ccl_core::cost::walk::{Hop, Model, Processor};
use ccl_core::cost::{models, predict};
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

/// Measures on this rank with all others. Returns the table on rank 0, as text; `out` gets a line
/// for each point there.
///
/// # Errors
///
/// Whatever the communicator reports, and wrong results.
pub fn measure(
    wanted: &Wanted,
    mut config: Config,
    out: &mut dyn Write,
) -> Result<Option<String>, SubjectError> {
    // What was measured before is not what is asked for.
    config.tuning = Tuning::NONE;
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
            if seen.count == 0 {
                continue;
            }
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
    let model = modelled(&all)?;
    out.write_all(model.as_bytes())?;
    let model: String = model.lines().map(|line| format!("# {line}\n")).collect();
    Ok(Some(head.to_owned() + &model + &tuning.lines()))
}

/// How near a model of the processors and links comes to what was measured, once its numbers are
/// fitted to that.
fn modelled(seen: &[Seen]) -> Result<String, SubjectError> {
    let Some(Seen { plan, .. }) = seen.first() else { return Ok(String::new()) };
    let hosts: Vec<u32> =
        (0..plan.ranks).map(|rank| rank * plan.hosts / plan.ranks.max(1)).collect();
    let hosts = Hosts::of(&hosts);
    let mut samples = Vec::new();
    for Seen { point, count, plan } in seen {
        for time in &point.times {
            let call = predict::Call {
                algorithm: algorithm::find(point.collective, time.algorithm)?,
                root: 0,
                count: *count,
                element_bytes: DataType::Float32.bytes(),
                buffer_bytes: point.bytes,
                hosts: &hosts,
                channels: plan.channels,
                slot_bytes: plan.slot_bytes,
            };
            samples.push(Sample { call, time_ns: time.median_ns as f64 });
        }
    }
    let model = Model { slots: plan.slots, ..models::processors(LINK_BYTES_PER_S) };
    let fitted = fit(&model, &samples)?;
    let Model { processor, within, between, .. } = fitted.model;
    let Processor { call_ns, fold_ns, slot_ns, memory_ns: [near, shared, far] } = processor;
    let mut text = format!(
        "Predicted by a walk through the schedules, with numbers fitted to these {} times: half of \
         the predictions are off by {:.0} % at most.\n\
         A call takes {call_ns:.0} ns, a fold {fold_ns:.0} ns and, for each byte, \
         {slot_ns:.3} ns in slots, and in buffers of up to 1 MiB, 16 MiB and more {near:.3}, \
         {shared:.3} and {far:.3} ns; between ranks of a host {:.0} ns",
        samples.len(),
        100.0 * fitted.median_error(),
        within.latency_ns + within.message_ns
    );
    if hosts.count() > 1 {
        let Hop { message_ns, byte_ns, latency_ns, bytes_per_s } = between;
        let _ = write!(
            text,
            ", between hosts {latency_ns:.0} ns, {message_ns:.0} ns for each message and \
             {byte_ns:.3} ns for each byte at either end, and {:.1} GB/s",
            bytes_per_s / 1e9
        );
    }
    Ok(text + ".\n")
}

fn point(
    wanted: &Wanted,
    collective: Collective,
    bytes: usize,
    communicator: &mut Communicator,
    memory: &mut Memory,
) -> Result<Seen, SubjectError> {
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
    let blocks = match collective {
        Collective::AllReduce | Collective::Reduce | Collective::Broadcast => 1,
        _ => ranks as usize,
    };
    let size = trial("").size_bytes();
    let count = size / data_type.bytes() / blocks;
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
    Ok(Seen { point, count, plan })
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

/// What became of what both tables have: a line for each, and whether any got slower.
#[must_use]
pub fn compare(old: &Tuning, new: &Tuning, allowed: f64) -> (String, bool) {
    let changes = old.changes(new, allowed);
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
            is / was
        )
    };
    let mut text: String = changes.iter().map(line).collect();
    let slower = changes.iter().filter(|change| change.is_slower).count();
    let _ = writeln!(
        text,
        "{} points in both tables, {slower} slower by more than {} % and by more than noise",
        changes.len(),
        allowed * 100.0
    );
    (text, slower > 0)
}
