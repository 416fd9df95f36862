//! `p2p_matrix`: bandwidth and latency of every ordered pair of ranks, one pair at a time.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::Write;
use std::path::{Path, PathBuf};

use ccl_core::types::{Collective, DataType, Rank, ReduceOp};
use serde::Serialize;

use super::Stage;
use super::baseline::{self, Baseline, Head, PathTimes, ROUNDS_MAX, Setting};
use super::regression::{self, Comparison};
use crate::geometry::Counts;
use crate::options::{Options, file_name, percent};
use crate::setup::{Refused, agree, cannot_write, checked_call, records};
use crate::subject::{Subject, SubjectError};
use crate::table::fitted;
use crate::timing::{BATCH_ITERATIONS, Loop, time_calls};
use crate::trial::Trial;

/// Largest number of messages in a group (bandwidth only): the sender sends a group, then waits for
/// an answer.
const WINDOW: usize = 16;
/// Largest number of bytes of a group; but a group always has at least one message.
const WINDOW_BYTES: usize = 16 << 20;

/// Default number of rounds if a baseline is made or read: enough to detect slower paths among 512
/// ranks.
const ROUNDS: u32 = 20;

/// Flags of this program.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct Extra {
    /// Number of rounds; each measures every pair once [default: 1, or 20 with a baseline]
    #[arg(long, value_name = "COUNT",
          value_parser = clap::value_parser!(u32).range(1..=i64::from(ROUNDS_MAX)))]
    pub rounds: Option<u32>,
    /// Save the times of every path and round to this file
    #[arg(long, value_name = "FILE", value_parser = file_name())]
    pub save_baseline: Option<PathBuf>,
    /// Compare every path with the baseline in this file; exit with status 1 if a path got slower
    #[arg(long, value_name = "FILE", value_parser = file_name())]
    pub baseline: Option<PathBuf>,
    /// Percent by which a path may be slower than in the baseline
    #[arg(long, value_name = "PERCENT", value_parser = percent, default_value_t = 10.0,
          requires = "baseline")]
    pub allowed: f64,
}

impl Extra {
    fn rounds(&self) -> u32 {
        let kept = self.save_baseline.is_some() || self.baseline.is_some();
        self.rounds.unwrap_or(if kept { ROUNDS } else { 1 })
    }

    /// Returns the baseline to compare with, if one is given. Checks that the rounds are enough
    /// to detect slower paths and that the new baseline can be written. Only rank 0, which reads
    /// and writes the files, calls this function.
    fn prepare(&self, setting: &Setting) -> Result<Option<Baseline>, Refused> {
        let refused = |error: &dyn std::fmt::Display| Refused(error.to_string());
        let rounds = self.rounds() as usize;
        if let Some(file) = &self.save_baseline {
            if self.baseline.as_ref().is_some_and(|baseline| is_same(file, baseline)) {
                return Err(Refused(format!(
                    "--save-baseline would replace the file of --baseline, {}; give \
                     --save-baseline another name",
                    file.display()
                )));
            }
            regression::enough(setting, [rounds; 2]).map_err(Refused)?;
        }
        let old = self.read(setting)?;
        if let Some(file) = &self.save_baseline {
            baseline::writable(file).map_err(|error| refused(&cannot_write(file, &error)))?;
        }
        Ok(old)
    }

    /// Reads the baseline to compare with, if one is given. Checks that the rounds of the baseline
    /// and the rounds of this run are enough to detect slower paths.
    fn read(&self, setting: &Setting) -> Result<Option<Baseline>, Refused> {
        let rounds = self.rounds() as usize;
        let refused = |error: &dyn std::fmt::Display| Refused(error.to_string());
        let Some(file) = &self.baseline else { return Ok(None) };
        let old = Baseline::read(file, setting).map_err(|error| refused(&error))?;
        for path in &old.paths {
            for times in [&path.latency_us, &path.bandwidth_us] {
                regression::enough(setting, [times.len(), rounds]).map_err(Refused)?;
            }
        }
        Ok(Some(old))
    }
}

/// Returns whether two paths lead to the same file.
fn is_same(one: &Path, other: &Path) -> bool {
    let whole = |path: &Path| std::fs::canonicalize(path).ok();
    one == other || whole(one).is_some_and(|one| Some(one) == whole(other))
}

/// Tables of bandwidth and latency: a row per sender, a column per receiver, an empty diagonal.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Matrices {
    /// Bytes of a message, for the bandwidth.
    pub bandwidth_bytes: usize,
    /// Number of messages in a group, for the bandwidth.
    pub bandwidth_messages: usize,
    /// Bandwidth in 10^9 bytes per second, one way.
    pub bandwidth_gbps: Vec<Vec<Option<f64>>>,
    /// Bytes of a message, for the latency.
    pub latency_bytes: usize,
    /// Latency: half a round trip, microseconds, mean.
    pub latency_us: Vec<Vec<Option<f64>>>,
    /// Number of wrong bytes over all pairs.
    pub wrong: u64,
    /// Comparison with the baseline; only on rank 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub comparison: Option<Comparison>,
}

impl Matrices {
    /// Returns the number of wrong bytes and slower paths.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.wrong + self.comparison.as_ref().map_or(0, |compared| compared.slower() as u64)
    }

    fn new(setting: &Setting, paths: &[PathTimes], wrong: u64) -> Matrices {
        let ranks = setting.hosts.len();
        let empty = vec![vec![None; ranks]; ranks];
        let mut matrices = Matrices {
            bandwidth_bytes: setting.bandwidth_bytes,
            bandwidth_messages: setting.bandwidth_messages,
            bandwidth_gbps: empty.clone(),
            latency_bytes: setting.latency_bytes,
            latency_us: empty,
            wrong,
            comparison: None,
        };
        let bytes = setting.bandwidth_bytes as f64 * setting.bandwidth_messages as f64;
        let mean = |times: &[f64]| times.iter().sum::<f64>() / times.len() as f64;
        for PathTimes { from, to, latency_us, bandwidth_us } in paths {
            let (row, column) = (*from as usize, *to as usize);
            matrices.latency_us[row][column] = Some(mean(latency_us));
            matrices.bandwidth_gbps[row][column] = Some(bytes / mean(bandwidth_us) / 1e3);
        }
        matrices
    }
}

/// Measures every pair: latency with messages of `-b` bytes, bandwidth with messages of `-e` bytes.
///
/// # Errors
/// Fewer than two ranks, a baseline that cannot be used, and errors of the communicator.
pub fn run(
    program: &str,
    options: &Options,
    extra: &Extra,
    subject: &mut dyn Subject,
    out: &mut dyn Write,
) -> Result<Matrices, SubjectError> {
    let ranks = subject.ranks();
    if ranks < 2 {
        let problem = "one rank has no peer to measure; give -g 2 or more, or use a launcher";
        return Err(Refused(problem.to_owned()).into());
    }
    let messages = (WINDOW_BYTES / options.max_bytes.max(1)).clamp(1, WINDOW);
    let memory_bytes = options.max_bytes.saturating_mul(messages);
    let mut stage = Stage::new(program, options, memory_bytes, subject, out)?;
    let setting = Setting {
        hosts: stage.hosts.clone(),
        transport: stage.origin.transport.clone(),
        latency_bytes: options.min_bytes,
        bandwidth_bytes: options.max_bytes,
        bandwidth_messages: messages,
        iterations: options.iterations,
    };
    let is_first = subject.rank() == 0;
    let own = if is_first { extra.prepare(&setting) } else { Ok(None) };
    let agreed = agree(subject, own.map_err(SubjectError::from));
    let old = agreed.map_err(|error| Refused(error.to_string()))?;

    let (paths, wrong) = measure(&setting, options, extra.rounds(), subject, &mut stage)?;
    let nics = nics(subject)?;
    let mut matrices = Matrices::new(&setting, &paths, wrong);
    if !is_first {
        return Ok(matrices);
    }
    write!(out, "{}", text(&matrices))?;
    if let Some((old, file)) = old.as_ref().zip(extra.baseline.as_ref()) {
        let compared = regression::compare((file, old), &paths, &nics, extra.allowed / 100.0);
        write!(out, "{}", compared.text(&setting.hosts))?;
        matrices.comparison = Some(compared);
    }
    match &extra.save_baseline {
        Some(file) if wrong > 0 => {
            writeln!(out, "# {} is not written: bytes were wrong", file.display())?;
        }
        Some(file) => {
            let baseline = Baseline { head: Head::new(&stage.origin.date, setting), paths };
            baseline.write(file).map_err(|error| cannot_write(file, &error))?;
        }
        None => {}
    }
    stage.finish(options, wrong, &matrices, subject, out)?;
    Ok(matrices)
}

/// Measures all rounds, and returns the times and the number of wrong bytes. Each round measures
/// every path once, so that a short disturbance of the machine affects few samples of a path.
fn measure(
    setting: &Setting,
    options: &Options,
    rounds: u32,
    subject: &mut dyn Subject,
    stage: &mut Stage,
) -> Result<(Vec<PathTimes>, u64), SubjectError> {
    let mut paths: Vec<PathTimes> = setting.pairs().map(PathTimes::new).collect();
    let mut wrong = 0;
    for round in 0..rounds {
        for path in &mut paths {
            let (from, to) = (path.from, path.to);
            let mut pair =
                Pair { from, to, messages: setting.bandwidth_messages, options, subject, stage };
            path.latency_us.push(kept(pair.latency_us()?));
            path.bandwidth_us.push(kept(pair.bandwidth_us()?));
            if options.checks > 0 && round == 0 {
                wrong += pair.wrong()?;
            }
        }
    }
    Ok((paths, wrong))
}

/// Rounds a time to a tenth of a nanosecond, the precision of the times in a baseline file; the
/// result is never 0.
fn kept(time_us: f64) -> f64 {
    ((time_us * 1e4).round() / 1e4).max(1e-4)
}

/// Returns the NIC of each rank, if the communicator reports any: the devices of its rails, or the
/// source addresses of its flows.
fn nics(subject: &mut dyn Subject) -> Result<Vec<String>, SubjectError> {
    let peers = subject.peers();
    let rails = peers.iter().flat_map(|peer| &peer.rails).map(|rail| rail.device.clone());
    let flows = peers.iter().flat_map(|peer| &peer.flows).map(|flow| flow.from.to_string());
    let (rails, flows): (BTreeSet<String>, BTreeSet<String>) = (rails.collect(), flows.collect());
    let own = if rails.is_empty() { flows } else { rails };
    let own = Vec::from_iter(own).join("+");
    Ok(records(subject, 0, &own)?.into_iter().map(|(_, nic)| nic).collect())
}

struct Pair<'a> {
    from: Rank,
    to: Rank,
    /// Number of messages in a group, for the bandwidth.
    messages: usize,
    options: &'a Options,
    subject: &'a mut dyn Subject,
    stage: &'a mut Stage,
}

impl Pair<'_> {
    fn group(&self, (from, to): (Rank, Rank), messages: usize, bytes: usize) -> Trial<'static> {
        Trial {
            collective: Collective::SendRecv,
            data_type: DataType::Uint8,
            op: ReduceOp::Sum,
            root: 0,
            counts: Counts::Pair { from, to, messages, count: bytes },
            algorithm: None,
            rank: self.subject.rank(),
            ranks: self.subject.ranks(),
        }
    }

    /// Returns the sender's time in µs for `messages` messages and an answer of `back_bytes` bytes.
    fn exchange_us(
        &mut self,
        bytes: usize,
        messages: usize,
        back_bytes: usize,
        batch: u32,
    ) -> Result<f64, SubjectError> {
        let there = self.group((self.from, self.to), messages, bytes);
        let back = self.group((self.to, self.from), 1, back_bytes);
        let memory = &mut self.stage.memory;
        let (there, back) = (there.prepared(false), back.prepared(false));
        let mut calls = |subject: &mut dyn Subject, times| {
            (0..times).try_for_each(|_| {
                there.run(subject, memory, 1)?;
                back.run(subject, memory, 1)
            })
        };
        calls(self.subject, self.options.warmup_iterations.into())?;
        let shape = Loop {
            iterations: self.options.iterations,
            aggregated: 1,
            batch,
            barrier_after_call: false,
            barrier_after_sample: false,
        };
        let times = time_calls(self.subject, shape, &mut calls)?;
        let all = self.subject.all_gather_f64(times.mean_us)?;
        Ok(all.get(self.from as usize).copied().unwrap_or(f64::NAN))
    }

    fn latency_us(&mut self) -> Result<f64, SubjectError> {
        let bytes = self.options.min_bytes;
        Ok(self.exchange_us(bytes, 1, bytes, BATCH_ITERATIONS)? / 2.0)
    }

    /// Returns the time of all messages and the answer.
    fn bandwidth_us(&mut self) -> Result<f64, SubjectError> {
        let bytes = self.options.max_bytes;
        self.exchange_us(bytes, self.messages, 1.min(bytes), 1)
    }

    fn wrong(&mut self) -> Result<u64, SubjectError> {
        let trial = self.group((self.from, self.to), self.messages, self.options.max_bytes);
        checked_call(self.subject, &trial, &mut self.stage.memory, 1, false)
    }
}

fn text(matrices: &Matrices) -> String {
    let mut text = format!(
        "# Bandwidth from row to column, GB/s, {} messages of {} bytes and an answer\n",
        matrices.bandwidth_messages, matrices.bandwidth_bytes
    );
    table(&mut text, &matrices.bandwidth_gbps);
    // Writing to a String cannot fail.
    let _ = writeln!(
        text,
        "#\n# Latency between row and column, us, half a round trip of {} bytes",
        matrices.latency_bytes
    );
    table(&mut text, &matrices.latency_us);
    text + "#\n"
}

fn table(text: &mut String, rows: &[Vec<Option<f64>>]) {
    let columns: String = (0..rows.len()).map(|rank| format!("{rank:>9}")).collect();
    let _ = writeln!(text, "#    to{columns}");
    for (rank, row) in rows.iter().enumerate() {
        let cell = |value: &Option<f64>| match value {
            Some(value) => format!("  {}", fitted(*value, 7)),
            None => format!("{:>9}", "-"),
        };
        let _ = writeln!(text, "{rank:>7}{}", row.iter().map(cell).collect::<String>());
    }
}
