//! `all_reduce_latency_comp`: one large all_reduce against many small ones of the same total. The
//! difference is the time that gradient buckets save.

use std::io::Write;

use ccl_core::types::{Collective, DataType, ReduceOp};
use serde::Serialize;

use super::Stage;
use crate::geometry::Counts;
use crate::number::general;
use crate::options::{Choice, Options};
use crate::setup::{Refused, checked_call};
use crate::sizes::sweep;
use crate::subject::{Subject, SubjectError};
use crate::table::fitted;
use crate::timing::{Loop, Times, over_ranks, time_calls};
use crate::trial::Trial;
use ccl_traffic::bus_factor;

/// Flags of this program.
#[derive(clap::Args, Clone, Copy, Debug)]
pub struct Extra {
    /// Number of small messages into which the large message is cut
    #[arg(long, value_name = "COUNT", default_value_t = 1000,
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub pieces: u32,
}

/// Comparison for one total.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// Total number of bytes that are reduced.
    pub total_bytes: usize,
    /// Bytes of a small message.
    pub piece_bytes: usize,
    /// Times of one call with all bytes.
    pub one: Times,
    /// Times of all the small calls together.
    pub pieces: Times,
    /// Number of wrong elements, in one checked large call and one checked small call.
    pub wrong: u64,
}

/// Compares one large call with many small calls, at each size of the sweep.
///
/// # Errors
/// Sizes with fewer elements than pieces, and errors of the communicator.
pub fn run(
    program: &str,
    options: &Options,
    extra: Extra,
    subject: &mut dyn Subject,
    out: &mut dyn Write,
) -> Result<Vec<Comparison>, SubjectError> {
    let (Choice::One(data_type), Choice::One(op)) = (options.data_type, options.op) else {
        let problem =
            "this program compares one type and one operator; -d and -o do not take 'all'";
        return Err(Refused(problem.to_owned()).into());
    };
    let pieces = extra.pieces as usize;
    if options.min_bytes / data_type.bytes() < pieces {
        let least = pieces * data_type.bytes();
        let problem = format!("-b is too small for {pieces} messages; give {least} bytes or more");
        return Err(Refused(problem).into());
    }
    let mut stage = Stage::new(program, options, options.max_bytes, subject, out)?;
    let is_first = subject.rank() == 0;
    if is_first {
        let title = format!("{pieces} messages");
        writeln!(out, "# {:>10}  {:>10}  {:>16}  {title:>16}", "", "", "one message")?;
        writeln!(
            out,
            "# {:>10}  {:>10}  {:>8}  {:>6}  {:>8}  {:>6}  {:>7}  {:>6}",
            "total (B)", "piece (B)", "(us)", "busbw", "(us)", "busbw", "slower", "#wrong"
        )?;
    }
    let mut comparisons = Vec::new();
    for bytes in sweep(options.min_bytes, options.max_bytes, options.step()) {
        let comparison = compare(options, pieces, (bytes, data_type, op), subject, &mut stage)?;
        if is_first {
            write_line(out, &comparison, subject.ranks())?;
        }
        comparisons.push(comparison);
    }
    let failed = comparisons.iter().filter(|comparison| comparison.wrong > 0).count() as u64;
    stage.finish(options, failed, &comparisons, subject, out)?;
    Ok(comparisons)
}

fn write_line(out: &mut dyn Write, comparison: &Comparison, ranks: u32) -> std::io::Result<()> {
    let factor = bus_factor(Collective::AllReduce, ranks);
    let bus =
        |times: Times| fitted(comparison.total_bytes as f64 / times.mean_us / 1e3 * factor, 6);
    writeln!(
        out,
        "{:12}  {:10}  {}  {}  {}  {}  {}  {:>6}",
        comparison.total_bytes,
        comparison.piece_bytes,
        fitted(comparison.one.mean_us, 8),
        bus(comparison.one),
        fitted(comparison.pieces.mean_us, 8),
        bus(comparison.pieces),
        fitted(comparison.pieces.mean_us / comparison.one.mean_us, 7),
        general(comparison.wrong as f64),
    )
}

fn compare(
    options: &Options,
    pieces: usize,
    (bytes, data_type, op): (usize, DataType, ReduceOp),
    subject: &mut dyn Subject,
    stage: &mut Stage,
) -> Result<Comparison, SubjectError> {
    let count = bytes / data_type.bytes() / pieces;
    let trial = |count| Trial {
        collective: Collective::AllReduce,
        data_type,
        op,
        root: 0,
        counts: Counts::Even(count),
        algorithm: options.algorithm.as_deref(),
        rank: subject.rank(),
        ranks: subject.ranks(),
    };
    let (large, small) = (trial(count * pieces), trial(count));
    let memory = &mut stage.memory;
    let mut times_of = |trial: &Trial<'_>, calls: u64| -> Result<Times, SubjectError> {
        trial.prepare(memory, 0, false);
        let call = trial.prepared(false);
        let mut run =
            |subject: &mut dyn Subject, times: u64| call.run(subject, memory, times * calls);
        run(subject, options.warmup_iterations.into())?;
        let shape = Loop { batch: 1, ..Loop::new(options, trial.size_bytes()) };
        let times = time_calls(subject, shape, &mut run)?;
        over_ranks(subject, times, options.average)
    };
    let one = times_of(&large, 1)?;
    let many = times_of(&small, pieces as u64)?;
    let mut wrong = 0;
    if options.checks > 0 {
        for trial in [&large, &small] {
            wrong += checked_call(subject, trial, memory, 1, false)?;
        }
    }
    Ok(Comparison {
        total_bytes: large.size_bytes(),
        piece_bytes: small.size_bytes(),
        one,
        pieces: many,
        wrong,
    })
}
