//! The program behind `all_reduce_perf` and its siblings: it measures every chosen type, operator
//! and root, over a range of sizes, out of place and in place.

use std::io::Write;
use std::time::Instant;

use ccl_core::types::{Collective, DataType, Rank, ReduceOp};

use super::geometry::{count_column, counts_of_size, has_in_place};
use super::memory::Memory;
use super::nccl_tests::{self, Report};
use super::options::Options;
use super::progress::Progress;
use super::report::{self, Half, Origin, Row, average_bus_gbps, sweep_json};
use super::setup::{checked_call, rank_lines, ready, sent, traffic, write_file};
use super::sizes::sweep;
use super::subject::{Peer, Subject, SubjectError};
use super::table;
use super::timing::{Loop, over_ranks, time_calls};
use super::trial::Trial;
use ccl_plot::sweep::{self, Point};
use ccl_traffic::bus_factor;
use ccl_traffic::matrix;
use ferroccl::communicator::config_from_environment;

/// Result of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// All rows; empty for a run without end.
    pub rows: Vec<Row>,
    /// Number of measurements with wrong elements.
    pub failed: u64,
}

/// Type, operator and root that one series of sizes has in common.
#[derive(Clone, Copy, Debug)]
struct Variant {
    data_type: DataType,
    op: ReduceOp,
    root: Rank,
}

/// Measures, prints to `out` on rank 0, and writes the files that the options name.
///
/// # Errors
/// Errors of the communicator, and files that cannot be written.
pub fn run(
    program: &str,
    collective: Collective,
    options: &Options,
    subject: &mut dyn Subject,
    out: &mut dyn Write,
) -> Result<Outcome, SubjectError> {
    let began_s = report::now().as_secs();
    let mut bench = Bench::new(collective, options, subject)?;
    let is_first = bench.subject.rank() == 0;
    let lines = rank_lines(bench.subject)?;
    let transport = bench.subject.transport();
    if is_first {
        let header = table::header(program, options, &transport, &lines);
        write!(out, "{header}{}", table::columns())?;
    }
    let (before, begun) = (sent(bench.subject), Instant::now());
    let outcome = bench.all(out)?;
    let mut written = Ok(());
    if let Some(path) = &options.traffic {
        let interval_s = begun.elapsed().as_secs_f64().max(1e-9);
        let traffic = traffic(bench.subject, &before, interval_s)?;
        if is_first {
            write!(out, "{}", table::traffic(&traffic))?;
            written = matrix::write(&path.to_string_lossy(), &traffic);
        }
    }
    if is_first {
        let average = average_bus_gbps(&outcome.rows);
        let peers = bench.subject.peers();
        write!(out, "{}{}", table::flows(&peers), table::rails(&peers))?;
        write!(out, "{}", table::footer(program, outcome.failed, average))?;
        let origin = Origin::here(program, transport, bench.subject.ranks());
        write_files(options, &origin, &outcome.rows, &peers)?;
        if let Some(path) = &options.output_file {
            let report = Report {
                options,
                origin: &origin,
                ranks: &lines,
                began_s,
                arguments: std::env::args().collect(),
                config: config_from_environment()?,
                rows: &outcome.rows,
                failed: outcome.failed,
            };
            write_file(path, &(nccl_tests::json(&report)? + "\n"))?;
        }
    }
    // The other files are written even if the traffic file cannot be written.
    written?;
    Ok(outcome)
}

struct Bench<'a> {
    collective: Collective,
    options: &'a Options,
    subject: &'a mut dyn Subject,
    memory: Memory,
    progress: Progress,
    repetition: u64,
}

impl<'a> Bench<'a> {
    fn new(
        collective: Collective,
        options: &'a Options,
        subject: &'a mut dyn Subject,
    ) -> Result<Bench<'a>, SubjectError> {
        let is_first = subject.rank() == 0;
        let memory = ready(subject, options, options.max_bytes)?;
        let variants = Self::variants(collective, options, subject.ranks()).len();
        let sizes = options.step().count(options.min_bytes, options.max_bytes);
        let rows = sizes.saturating_mul(variants as u64).saturating_mul(options.cycles);
        let progress = Progress::new(rows, is_first);
        Ok(Bench { collective, options, subject, memory, progress, repetition: 0 })
    }

    fn sizes(options: &Options) -> impl Iterator<Item = usize> + use<> {
        sweep(options.min_bytes, options.max_bytes, options.step())
    }

    fn variants(collective: Collective, options: &Options, ranks: u32) -> Vec<Variant> {
        let ops = match collective.reduces() {
            true => options.op.among(ReduceOp::ALL),
            false => vec![ReduceOp::Sum],
        };
        let roots = match collective.has_root() {
            true => options.root.among(0..ranks),
            false => vec![0],
        };
        let mut variants = Vec::new();
        for data_type in options.data_type.among(DataType::ALL) {
            for &op in &ops {
                variants.extend(roots.iter().map(|&root| Variant { data_type, op, root }));
            }
        }
        variants
    }

    fn all(&mut self, out: &mut dyn Write) -> Result<Outcome, SubjectError> {
        let mut outcome = Outcome::default();
        for variant in Self::variants(self.collective, self.options, self.subject.ranks()) {
            let mut cycle = 0;
            while self.options.cycles == 0 || cycle < self.options.cycles {
                cycle += 1;
                for bytes in Self::sizes(self.options) {
                    let row = self.row(variant, bytes)?;
                    if self.subject.rank() == 0 {
                        self.progress.suspend(|| write!(out, "{}", table::row(&row)))?;
                        out.flush()?;
                    }
                    self.progress.step(format!("{} {bytes} B", variant.data_type));
                    outcome.failed +=
                        row.halves().filter(|half| half.wrong.unwrap_or(0) > 0).count() as u64;
                    if self.options.cycles > 0 {
                        outcome.rows.push(row);
                    }
                }
            }
        }
        Ok(outcome)
    }

    fn row(&mut self, variant: Variant, bytes: usize) -> Result<Row, SubjectError> {
        let Variant { data_type, op, root } = variant;
        let (rank, ranks) = (self.subject.rank(), self.subject.ranks());
        let options = self.options;
        let collective = self.collective;
        let counts = counts_of_size(collective, bytes, data_type, options.exact, (rank, ranks));
        let algorithm = options.algorithm.as_deref();
        let trial = Trial { collective, data_type, op, root, counts, algorithm, rank, ranks };
        let explained = rank == 0 && options.json.is_some();
        let plan = explained.then(|| self.subject.explain(&trial.request()));
        let out_of_place = self.half(&trial, false)?;
        let in_place = if has_in_place(collective) { Some(self.half(&trial, true)?) } else { None };
        Ok(Row {
            size_bytes: trial.size_bytes(),
            count: count_column(&trial.counts),
            data_type: data_type.to_string(),
            op: if collective.reduces() { op.to_string() } else { "none".to_owned() },
            root: if collective.has_root() { i64::from(root) } else { -1 },
            plan,
            out_of_place,
            in_place,
        })
    }

    fn half(&mut self, trial: &Trial<'_>, in_place: bool) -> Result<Half, SubjectError> {
        let Bench { options, subject, memory, .. } = self;
        trial.prepare(memory, 0, in_place);
        let call = trial.prepared(in_place);
        call.run(*subject, memory, options.warmup_iterations.into())?;
        let shape = Loop::new(options, trial.size_bytes());
        let mut calls = |subject: &mut dyn Subject, times| call.run(subject, memory, times);
        let times = time_calls(*subject, shape, &mut calls)?;
        let times = over_ranks(*subject, times, options.average)?;
        let mut wrong = (options.checks > 0).then_some(0);
        for _ in 0..options.checks {
            self.repetition += 1;
            let found = checked_call(*subject, trial, memory, self.repetition, in_place)?;
            wrong = wrong.map(|wrong| wrong + found);
            if found > 0 {
                break;
            }
        }
        let seconds = times.mean_us / 1e6;
        let rate = trial.size_bytes() as f64 / seconds / 1e9;
        let algorithm_gbps = if rate.is_finite() { rate } else { 0.0 };
        let bus_gbps = algorithm_gbps * bus_factor(trial.collective, trial.ranks);
        Ok(Half { times, algorithm_gbps, bus_gbps, wrong })
    }
}

fn write_files(
    options: &Options,
    origin: &Origin,
    rows: &[Row],
    peers: &[Peer],
) -> Result<(), SubjectError> {
    if let Some(path) = &options.json {
        write_file(path, &(sweep_json(origin, rows, peers)? + "\n"))?;
    }
    match &options.plot {
        Some(path) => write_file(path, &ccl_plot::render(&[figure(origin, rows)])),
        None => Ok(()),
    }
}

/// Returns the figures. Each combination of type, operator and root has a line for out-of-place
/// calls, and a line for in-place calls if there are any.
fn figure(origin: &Origin, rows: &[Row]) -> ccl_plot::Row {
    let mut series: Vec<(String, Vec<Point>)> = Vec::new();
    let mut add = |name: String, size_bytes: usize, half: &Half| {
        let size_bytes = size_bytes as f64;
        let point = Point { size_bytes, time_us: half.times.mean_us, bus_gbps: half.bus_gbps };
        match series.iter_mut().find(|(known, _)| *known == name) {
            Some((_, points)) => points.push(point),
            None => series.push((name, vec![point])),
        }
    };
    for row in rows {
        let mut name = row.data_type.clone();
        if row.op != "none" {
            name = format!("{name} {}", row.op);
        }
        if row.root >= 0 {
            name = format!("{name} root {}", row.root);
        }
        add(format!("{name}, out of place"), row.size_bytes, &row.out_of_place);
        if let Some(half) = &row.in_place {
            add(format!("{name}, in place"), row.size_bytes, half);
        }
    }
    let Origin { program, transport, ranks, host, cpu, version, commit, date } = origin;
    let plural = if *ranks == 1 { "" } else { "s" };
    let title = format!("{program}, {ranks} rank{plural}, {transport}");
    sweep::row(title, format!("{host}, {cpu}; ferroccl {version} ({commit}), {date}"), &series)
}
