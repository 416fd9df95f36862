//! `training_buckets`: the collectives of a training step, without the computation in between. So
//! all communication time is exposed: the bandwidth is that of a step without any overlap.
//!
//! All calls of a step use the same memory, sized for the largest call. A real step has its data
//! spread over more memory, so small steps can be faster here than in training.

use std::io::Write;

use clap::ValueEnum as _;
use serde::Serialize;

use super::Stage;
use super::workloads::{Scene, Workload};
use crate::geometry::has_in_place;
use crate::memory::Memory;
use crate::number::general;
use crate::options::Options;
use crate::setup::checked_call;
use crate::subject::{Subject, SubjectError};
use crate::table::fitted;
use crate::timing::{Loop, Times, over_ranks, time_calls};
use crate::trial::Trial;
use ccl_traffic::bus_factor;

/// Flags of this program.
#[derive(clap::Args, Clone, Debug)]
pub struct Extra {
    /// Steps to replay, separated by commas: resnet50 gpt2 llama3-8b llama3-8b-fsdp dlrm moe
    #[arg(long, value_name = "MODEL", value_delimiter = ',', value_parser = workloads,
          default_value = "resnet50,gpt2,dlrm,moe")]
    pub model: Vec<Workload>,
    /// Multiply every count by this factor, above 0 and up to 1
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, value_parser = scale)]
    pub scale: f64,
    /// Seed of the random routing of the mixture of experts
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub seed: u64,
}

fn workloads(text: &str) -> Result<Workload, String> {
    Workload::from_str(text, false).map_err(|_| {
        let names: Vec<&str> =
            Workload::value_variants().iter().map(|workload| workload.name()).collect();
        format!("unknown model; give one of: {}", names.join(" "))
    })
}

fn scale(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(scale) if scale > 0.0 && scale <= 1.0 => Ok(scale),
        _ => Err("give a number above 0 and up to 1, such as 0.01".to_owned()),
    }
}

/// One replayed step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Step {
    /// Name of the model.
    pub model: &'static str,
    /// Number of collectives of the step.
    pub calls: usize,
    /// Bytes of each call's larger buffer on this rank, summed over all calls.
    pub bytes: usize,
    /// Time of the step.
    #[serde(flatten)]
    pub times: Times,
    /// Bytes over time, 10^9 bytes per second.
    pub exposed_algbw_gbps: f64,
    /// Bytes over time, 10^9 bytes per second; each call's bytes are multiplied by its bus factor.
    pub exposed_busbw_gbps: f64,
    /// Number of wrong elements in one checked step.
    pub wrong: Option<u64>,
}

/// Replays the chosen steps.
///
/// # Errors
/// Errors of the communicator.
pub fn run(
    program: &str,
    options: &Options,
    extra: &Extra,
    subject: &mut dyn Subject,
    out: &mut dyn Write,
) -> Result<Vec<Step>, SubjectError> {
    let scene = Scene {
        rank: subject.rank(),
        ranks: subject.ranks(),
        scale: extra.scale,
        seed: extra.seed,
    };
    let lists: Vec<_> =
        extra.model.iter().map(|&workload| (workload, workload.calls(scene))).collect();
    let calls = lists.iter().flat_map(|(_, calls)| calls);
    let largest = calls.map(Trial::size_bytes).max().unwrap_or(0);
    let mut stage = Stage::new(program, options, largest, subject, out)?;
    if scene.rank == 0 {
        writeln!(
            out,
            "# scale {}\n# {:>14}  {:>6}  {:>12}  {:>9}  {:>9}  {:>9}  {:>7}  {:>7}  {:>6}",
            extra.scale,
            "step",
            "calls",
            "bytes",
            "time (us)",
            "p50",
            "p99",
            "algbw",
            "busbw",
            "#wrong"
        )?;
    }
    let mut steps = Vec::new();
    for (workload, calls) in &lists {
        let step = replay(options, *workload, calls, subject, &mut stage.memory)?;
        if scene.rank == 0 {
            writeln!(
                out,
                "{:>16}  {:6}  {:12}  {}  {}  {}  {}  {}  {:>6}",
                step.model,
                step.calls,
                step.bytes,
                fitted(step.times.mean_us, 9),
                fitted(step.times.p50_us, 9),
                fitted(step.times.p99_us, 9),
                fitted(step.exposed_algbw_gbps, 7),
                fitted(step.exposed_busbw_gbps, 7),
                step.wrong.map_or("N/A".to_owned(), |wrong| general(wrong as f64)),
            )?;
        }
        steps.push(step);
    }
    let failed = steps.iter().filter(|step| step.wrong.unwrap_or(0) > 0).count() as u64;
    stage.finish(options, failed, &steps, subject, out)?;
    Ok(steps)
}

fn replay(
    options: &Options,
    workload: Workload,
    calls: &[Trial<'_>],
    subject: &mut dyn Subject,
    memory: &mut Memory,
) -> Result<Step, SubjectError> {
    // The memory needs data: otherwise averaging in place soon gives only zeros or infinities.
    if let Some(largest) = calls.iter().max_by_key(|trial| trial.size_bytes()) {
        largest.prepare(memory, 0, has_in_place(largest.collective));
    }
    let mut steps = |subject: &mut dyn Subject, times| {
        (0..times)
            .flat_map(|_| calls)
            .try_for_each(|trial| trial.run(subject, memory, has_in_place(trial.collective)))
    };
    steps(subject, options.warmup_iterations.into())?;
    let shape = Loop { batch: 1, ..Loop::new(options, usize::MAX) };
    let times = time_calls(subject, shape, &mut steps)?;
    let times = over_ranks(subject, times, options.average)?;
    let mut wrong = None;
    if options.checks > 0 {
        let mut sum = 0;
        for (repetition, trial) in (1..).zip(calls) {
            let in_place = has_in_place(trial.collective);
            sum += checked_call(subject, trial, memory, repetition, in_place)?;
        }
        wrong = Some(sum);
    }
    let bytes: usize = calls.iter().map(Trial::size_bytes).sum();
    let bus_bytes = calls
        .iter()
        .map(|trial| trial.size_bytes() as f64 * bus_factor(trial.collective, trial.ranks));
    let gbps = |bytes: f64| bytes / times.mean_us / 1e3;
    Ok(Step {
        model: workload.name(),
        calls: calls.len(),
        bytes,
        times,
        exposed_algbw_gbps: gbps(bytes as f64),
        exposed_busbw_gbps: gbps(bus_bytes.sum()),
        wrong,
    })
}
