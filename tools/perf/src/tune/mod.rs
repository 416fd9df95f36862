//! Measurement of the fastest algorithms and settings on the machine at hand: `ferroccl tune`.

mod compare;
mod fit;
mod modelled;
mod network;
mod predictions;
mod settings;

use std::fmt::Write as _;
use std::io::Write;

use ccl_core::algorithm;
use ccl_core::config::{Config, NetworkCheck};
use ccl_core::cost::walk::Model;
pub use ccl_core::select::tuning::Tuning;
use ccl_core::select::tuning::{Measured, Point};
use ccl_core::select::variant::{SlotFraction, Variant};
use ccl_core::types::{Collective, DataType, ReduceOp};

use crate::geometry::counts_of_size;
use crate::memory::Memory;
use crate::options::Average;
use crate::progress::Progress;
use crate::setup::checked_call;
use crate::sizes::{Step, sweep};
use crate::subject::{Subject, SubjectError};
use crate::timing::{Loop, over_ranks, time_calls};
use crate::trial::Trial;
use ferroccl::communicator::{Call, Communicator, Explanation, machine};

pub use compare::{Comparison, compare};
pub use predictions::{Predicted, add_predictions};

/// Time, in microseconds, that a turn should take. In each round, every [`Variant`], or every value
/// of a tunable, has one turn of 1 to [`ITERATIONS_MAX`] calls. So a turn takes longer than this
/// time if a single call takes longer, and less if even [`ITERATIONS_MAX`] calls take less.
const TURN_US: f64 = 2000.0;
/// Largest number of calls of a turn.
const ITERATIONS_MAX: f64 = 200.0;

/// Points (collectives at sizes) to measure, and settings to try.
#[derive(Clone, Debug)]
pub struct TuneRequest {
    /// Collectives to measure.
    pub collectives: Vec<Collective>,
    /// Least number of bytes.
    pub min_bytes: usize,
    /// Greatest number of bytes.
    pub max_bytes: usize,
    /// Factor from one size to the next, at least 2.
    pub factor: usize,
    /// Number of rounds of each variant, at least 1.
    pub rounds: u32,
    /// Tunables in `ccl_core::select::tuning::SETTABLE` whose values are tried before the points
    /// are measured.
    pub tried: Vec<Tried>,
}

/// Tunable with the values that are tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tried {
    /// Variable of the tunable.
    pub variable: &'static str,
    /// Values in the form in which they are set; the current value is tried too.
    pub values: Vec<String>,
}

/// Point as it was measured.
#[derive(Clone, Debug)]
struct Seen {
    point: Point,
    /// Number of elements of a block.
    count: usize,
    /// Plan of the library without a tuning table.
    plan: Explanation,
}

/// Result of the measurements.
#[derive(Debug)]
pub struct Outcome {
    tuning: Tuning,
    seen: Vec<Seen>,
}

/// Measures together with all other ranks, which must call this function too. Returns the result on
/// rank 0, where `out` gets a line for each point.
///
/// # Errors
///
/// Errors of the communicator, and wrong results.
pub fn measure(
    request: &TuneRequest,
    mut config: Config,
    out: &mut dyn Write,
) -> Result<Option<Outcome>, SubjectError> {
    // Earlier measurements and a deterministic order of reduction are switched off.
    config.tuning = Tuning::NONE;
    config.deterministic = false;
    // A communicator that measures the network adapts tunables to the result. Here communicators
    // must use exactly the tried values; the network is measured below.
    if config.check_network == NetworkCheck::Measure {
        config.check_network = NetworkCheck::Assumed;
    }
    let mut tuning = Tuning { machine: Some(machine()), ..Tuning::NONE };
    let mut communicator = Communicator::from_environment_with(config.clone())?;
    let mut tried = request.tried.clone();
    for more in network::look(&mut communicator, out)? {
        // Values that the user has given stay as given.
        if !tried.iter().any(|known| known.variable == more.variable) {
            tried.push(more);
        }
    }
    if !tried.is_empty() {
        tuning.settings = settings::fastest(request, &tried, &mut communicator, &mut config, out)?;
        communicator = communicator.again(config)?;
    }
    let is_first = communicator.rank() == 0;
    let mut memory = Memory::new(request.max_bytes, request.max_bytes)?;
    let sizes = request.sizes();
    let progress = Progress::new((sizes.len() * request.collectives.len()) as u64, is_first);
    let mut all = Vec::new();
    for collective in &request.collectives {
        for bytes in &sizes {
            let seen = point(request, *collective, *bytes, &mut communicator, &mut memory)?;
            progress.step(format!("{collective} {bytes} B"));
            // A size is skipped if it is too small for one element in each block.
            let Some(seen) = seen else { continue };
            if is_first {
                progress.suspend(|| out.write_all(line(&seen).as_bytes()))?;
            }
            tuning.points.push(seen.point.clone());
            all.push(seen);
        }
    }
    Ok(is_first.then_some(Outcome { tuning, seen: all }))
}

impl TuneRequest {
    fn sizes(&self) -> Vec<usize> {
        sweep(self.min_bytes, self.max_bytes, Step::Factor(self.factor)).collect()
    }
}

impl Outcome {
    /// Returns the table as text, with a model, if there is one.
    #[must_use]
    pub fn table(&self, model: Option<Model>) -> String {
        Tuning { model, ..self.tuning.clone() }.file()
    }
}

fn point(
    request: &TuneRequest,
    collective: Collective,
    bytes: usize,
    communicator: &mut Communicator,
    memory: &mut Memory,
) -> Result<Option<Seen>, SubjectError> {
    let (data_type, op, root) = (DataType::Float32, ReduceOp::Sum, 0);
    let (rank, ranks) = (communicator.rank(), communicator.ranks());
    let counts = counts_of_size(collective, bytes, data_type, false, (rank, ranks));
    let trial = Trial { collective, data_type, op, root, counts, algorithm: None, rank, ranks };
    let blocks = collective.even_blocks(ranks).ok_or("tuning needs blocks of equal length")?;
    let size = trial.size_bytes();
    let count = size / data_type.bytes() / blocks as usize;
    if count == 0 {
        return Ok(None);
    }
    let even = Call::even(collective, data_type, count);
    let plan = Communicator::explain(communicator, &even)?;
    let whole = algorithm::of(collective)
        .map(|algorithm| Variant { algorithm: algorithm.name, slot_fraction: SlotFraction::WHOLE });
    let mut turns = Turns { trial, turns: request.rounds, rounds: Vec::new() };
    turns.take(&whole.collect::<Vec<_>>(), communicator, memory)?;
    // The fastest variant is also measured with shorter messages, if these give more chunks.
    let fastest = turns.times().into_iter().min_by_key(|time| time.median_ns);
    let Some(Measured { variant: best, .. }) = fastest else { return Ok(None) };
    let (mut variants, mut most) = (vec![best], 0);
    for slot_fraction in SlotFraction::ALL {
        let variant = Variant { slot_fraction, ..best };
        let text = variant.to_string();
        let call = Call { algorithm: Some(&text), ..even };
        let chunks = Communicator::explain(communicator, &call)?.chunks;
        if slot_fraction != SlotFraction::WHOLE && chunks > most {
            variants.push(variant);
        }
        most = chunks.max(most);
    }
    if variants.len() > 1 {
        turns.take(&variants, communicator, memory)?;
    }
    let (hosts, times) = (plan.hosts, turns.times());
    let point = Point { collective, ranks, hosts, bytes: size, is_predicted: false, times };
    Ok(Some(Seen { point, count, plan }))
}

/// Variants that are measured in turns: a short disturbance of the machine affects all of them.
struct Turns {
    trial: Trial<'static>,
    /// Number of rounds that [`Turns::take`] measures; each variant has one turn in each round.
    turns: u32,
    /// Per variant: mean microseconds per call in each round.
    rounds: Vec<(Variant, Vec<f64>)>,
}

impl Turns {
    /// Measures these variants. The new times of a variant are appended to its earlier ones.
    fn take(
        &mut self,
        variants: &[Variant],
        communicator: &mut Communicator,
        memory: &mut Memory,
    ) -> Result<(), SubjectError> {
        let mut named = Vec::new();
        for variant in variants {
            let text = variant.to_string();
            let trial = self.trial.by(&text);
            let wrong = checked_call(communicator, &trial, memory, 1, false)?;
            if wrong > 0 {
                let collective = trial.collective;
                return Err(format!("{collective} by {text} gave {wrong} wrong elements").into());
            }
            let first = time(communicator, &trial, memory, 3)?;
            let iterations = (TURN_US / first.max(0.01)).clamp(1.0, ITERATIONS_MAX) as u32;
            let known = self.rounds.iter().position(|(known, _)| known == variant);
            let at = known.unwrap_or(self.rounds.len());
            if known.is_none() {
                self.rounds.push((*variant, Vec::new()));
            }
            named.push((text, iterations, at));
        }
        for _ in 0..self.turns {
            for (text, iterations, at) in &named {
                let taken = time(communicator, &self.trial.by(text), memory, *iterations)?;
                if let Some((_, times)) = self.rounds.get_mut(*at) {
                    times.push(taken);
                }
            }
        }
        Ok(())
    }

    /// Returns the time of each variant, in the order in which the variants were added.
    fn times(&self) -> Vec<Measured> {
        self.rounds.iter().map(|(variant, times)| summary(*variant, times.clone())).collect()
    }
}

/// Returns the microseconds of a call, on the slowest rank.
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
    let mut calls = |subject: &mut dyn Subject, times| call.run(subject, memory, times);
    let times = time_calls(communicator, shape, &mut calls)?;
    Ok(over_ranks(communicator, times, Average::Max)?.mean_us)
}

/// Returns the median, and half of the distance between the quartiles.
fn summary(variant: Variant, mut times: Vec<f64>) -> Measured {
    times.sort_by(f64::total_cmp);
    let at = |share: f64| times.get((times.len() as f64 * share) as usize).copied().unwrap_or(0.0);
    let ns = |us: f64| (us * 1e3).round() as u64;
    let deviation_ns = ns((at(0.75) - at(0.25)) / 2.0);
    Measured { variant, median_ns: ns(at(0.5)), deviation_ns }
}

/// Formats a point for people.
fn line(seen: &Seen) -> String {
    let Point { collective, bytes, times, .. } = &seen.point;
    let mut text = format!("{collective:<16} {bytes:>12} B ");
    let us = |ns: u64| ns as f64 / 1e3;
    let Some(best) = seen.point.fastest(|_| true) else { return text + "\n" };
    // Writing to a string does not fail.
    let _ = write!(text, " {:<20} {:>12.2} us", best.variant.to_string(), us(best.median_ns));
    match times.iter().find(|time| seen.plan.variant() == time.variant.to_string()) {
        Some(chosen) if chosen.variant != best.variant => {
            let ratio = chosen.median_ns as f64 / best.median_ns.max(1) as f64;
            let _ = write!(text, "   without table: {}, {ratio:.2} times as long", chosen.variant);
        }
        _ => {}
    }
    text + "\n"
}
