//! `p2p_matrix`: bandwidth and latency of every ordered pair of ranks, one pair at a time.

use std::fmt::Write as _;
use std::io::Write;

use ccl_core::types::{Collective, DataType, Rank, ReduceOp};
use serde::Serialize;

use super::Stage;
use crate::perf::geometry::Counts;
use crate::perf::options::Options;
use crate::perf::setup::checked_call;
use crate::perf::subject::{Subject, SubjectError};
use crate::perf::table::fitted;
use crate::perf::timing::{BATCH_ITERATIONS, Loop, time_calls};
use crate::perf::trial::Trial;

/// Messages in flight, as one group, before the sender waits for an answer, when bandwidth is
/// measured. Fewer if they are long.
const WINDOW: usize = 16;
const WINDOW_BYTES: usize = 16 << 20;

/// Both tables: a row for each sender, a column for each receiver, nothing on the diagonal.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Matrices {
    /// Bytes of a message, for the bandwidth.
    pub bandwidth_bytes: usize,
    /// Such messages in a group.
    pub bandwidth_messages: usize,
    /// 10^9 bytes a second, one way.
    pub bandwidth_gbps: Vec<Vec<Option<f64>>>,
    /// Bytes of a message, for the latency.
    pub latency_bytes: usize,
    /// Half a round trip, microseconds, mean.
    pub latency_us: Vec<Vec<Option<f64>>>,
    /// Wrong bytes over all pairs.
    pub wrong: u64,
}

/// Measures every pair: latency with messages of `-b` bytes, bandwidth with messages of `-e` bytes.
///
/// # Errors
/// Fewer than two ranks, and whatever the communicator reports.
pub fn run(
    program: &str,
    options: &Options,
    subject: &mut dyn Subject,
    out: &mut dyn Write,
) -> Result<Matrices, SubjectError> {
    let ranks = subject.ranks();
    if ranks < 2 {
        return Err("there are no pairs with one rank; give -g 2 or more, or use a launcher".into());
    }
    let messages = (WINDOW_BYTES / options.max_bytes.max(1)).clamp(1, WINDOW);
    let memory_bytes = options.max_bytes.saturating_mul(messages);
    let mut stage = Stage::new(program, options, memory_bytes, subject, out)?;
    let empty = vec![vec![None; ranks as usize]; ranks as usize];
    let mut matrices = Matrices {
        bandwidth_bytes: options.max_bytes,
        bandwidth_messages: messages,
        bandwidth_gbps: empty.clone(),
        latency_bytes: options.min_bytes,
        latency_us: empty,
        wrong: 0,
    };
    for from in 0..ranks {
        for to in (0..ranks).filter(|&to| to != from) {
            let (row, column) = (from as usize, to as usize);
            let mut pair = Pair { from, to, messages, options, subject, stage: &mut stage };
            matrices.latency_us[row][column] = Some(pair.latency_us()?);
            matrices.bandwidth_gbps[row][column] = Some(pair.bandwidth_gbps()?);
            if options.checks > 0 {
                matrices.wrong += pair.wrong()?;
            }
        }
    }
    if subject.rank() == 0 {
        write!(out, "{}", text(&matrices))?;
    }
    let failed = u64::from(matrices.wrong > 0);
    stage.finish(options, failed, &matrices, subject, out)?;
    Ok(matrices)
}

struct Pair<'a> {
    from: Rank,
    to: Rank,
    /// In a group, when bandwidth is measured.
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

    /// Times so many messages there and one of `back_bytes` back; microseconds on the sender.
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
        let mut call = |subject: &mut dyn Subject| {
            there.run(subject, memory)?;
            back.run(subject, memory)
        };
        for _ in 0..self.options.warmup_iterations {
            call(self.subject)?;
        }
        let shape = Loop {
            iterations: self.options.iterations,
            aggregated: 1,
            batch,
            barrier_after_call: false,
            barrier_after_sample: false,
        };
        let times = time_calls(self.subject, shape, &mut call)?;
        let all = self.subject.all_gather_f64(times.mean_us)?;
        Ok(all.get(self.from as usize).copied().unwrap_or(f64::NAN))
    }

    fn latency_us(&mut self) -> Result<f64, SubjectError> {
        let bytes = self.options.min_bytes;
        Ok(self.exchange_us(bytes, 1, bytes, BATCH_ITERATIONS)? / 2.0)
    }

    fn bandwidth_gbps(&mut self) -> Result<f64, SubjectError> {
        let bytes = self.options.max_bytes;
        let time_us = self.exchange_us(bytes, self.messages, 1.min(bytes), 1)?;
        Ok(bytes as f64 * self.messages as f64 / time_us / 1e3)
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
