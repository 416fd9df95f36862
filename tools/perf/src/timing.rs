//! Timing of calls, and statistics of the times.
//!
//! The clock is read before the timed loop and after each iteration. Each iteration gives one
//! sample for the percentiles; the mean is over the time of all iterations. A reading costs about
//! 20 ns, which would distort calls of a few hundred nanoseconds. So calls of less than
//! [`BATCHED_BELOW_BYTES`] bytes are timed in batches of [`BATCH_ITERATIONS`] iterations. The clock
//! is then read after each batch, and each batch gives one sample, its mean. The percentiles of
//! such calls describe batches: the delay of one slow call is divided by the length of its batch.
//! The cost of a reading is not subtracted.
//!
//! Every call of a row uses the same buffers, as in most MPI benchmarks. nccl-tests walks through a
//! larger buffer instead; in host memory, that would measure the memory behind the caches.
//!
//! Percentiles are taken on each rank over its own samples, and the largest value over all ranks is
//! reported; the samples of all ranks are not pooled.

use std::time::Duration;

use super::options::{Average, Options};
use super::subject::{Subject, SubjectError};

/// Size below which calls are timed in batches.
pub const BATCHED_BELOW_BYTES: usize = 4096;

/// Number of iterations in a batch.
pub const BATCH_ITERATIONS: u32 = 16;

/// Shape of the timed loop of a rank: its calls, its samples and the barriers among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loop {
    /// Number of timed iterations, at least 1.
    pub iterations: u32,
    /// Number of calls in each iteration, at least 1.
    pub aggregated: u32,
    /// Number of iterations per sample, at least 1.
    pub batch: u32,
    /// True if each call is followed by a barrier, whose time counts.
    pub barrier_after_call: bool,
    /// True if each sample is followed by a barrier, whose time does not count.
    pub barrier_after_sample: bool,
}

impl Loop {
    /// Returns the loop for calls of `bytes` bytes.
    #[must_use]
    pub fn new(options: &Options, bytes: usize) -> Loop {
        // A barrier after each iteration rules out batches.
        let batched = bytes < BATCHED_BELOW_BYTES && options.blocking != 3;
        Loop {
            iterations: options.iterations,
            aggregated: options.aggregated,
            batch: if batched { BATCH_ITERATIONS } else { 1 },
            barrier_after_call: options.blocking == 1,
            barrier_after_sample: options.blocking == 3,
        }
    }
}

/// Times of one call, microseconds: statistics of one rank's samples. [`over_ranks`] replaces each
/// statistic except the mean by its largest value over all ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct Times {
    /// Mean over the iterations of a rank; [`over_ranks`] combines the ranks' means as `-a` says.
    #[serde(rename = "time_us")]
    pub mean_us: f64,
    /// Fastest sample.
    #[serde(rename = "time_us_min")]
    pub min_us: f64,
    /// Median.
    #[serde(rename = "time_us_p50")]
    pub p50_us: f64,
    /// 90th percentile: 90 % of the samples are not slower.
    #[serde(rename = "time_us_p90")]
    pub p90_us: f64,
    /// 99th percentile: 99 % of the samples are not slower.
    #[serde(rename = "time_us_p99")]
    pub p99_us: f64,
    /// Slowest sample.
    #[serde(rename = "time_us_max")]
    pub max_us: f64,
}

/// Runs the loop: a barrier, then the timed calls. `run` makes as many calls as its
/// second argument says.
///
/// # Errors
/// The error of a call.
pub fn time_calls(
    subject: &mut dyn Subject,
    shape: Loop,
    run: &mut dyn FnMut(&mut dyn Subject, u64) -> Result<(), SubjectError>,
) -> Result<Times, SubjectError> {
    let mut samples_us = Vec::with_capacity(shape.iterations.div_ceil(shape.batch) as usize);
    subject.barrier()?;
    let mut total = Duration::ZERO;
    let mut left = shape.iterations;
    let mut start = subject.now();
    while left > 0 {
        let iterations = left.min(shape.batch);
        left -= iterations;
        let calls = u64::from(iterations) * u64::from(shape.aggregated);
        if shape.barrier_after_call {
            for _ in 0..calls {
                run(subject, 1)?;
                subject.barrier()?;
            }
        } else {
            run(subject, calls)?;
        }
        let mut now = subject.now();
        let elapsed = now - start;
        total += elapsed;
        samples_us.push(microseconds(elapsed) / calls as f64);
        if shape.barrier_after_sample {
            subject.barrier()?;
            now = subject.now();
        }
        start = now;
    }
    let calls = f64::from(shape.iterations) * f64::from(shape.aggregated);
    Ok(Times { mean_us: microseconds(total) / calls, ..summary(samples_us) })
}

fn microseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// Returns the percentiles of one rank's samples by the nearest-rank method: each percentile is one
/// of the samples. `mean_us` is the mean of the samples.
#[must_use]
pub fn summary(mut samples_us: Vec<f64>) -> Times {
    samples_us.sort_by(f64::total_cmp);
    let last = samples_us.len().saturating_sub(1);
    let at = |index: usize| samples_us.get(index.min(last)).copied().unwrap_or(0.0);
    let percentile = |percent: usize| at((samples_us.len() * percent).div_ceil(100).max(1) - 1);
    Times {
        mean_us: samples_us.iter().sum::<f64>() / samples_us.len().max(1) as f64,
        min_us: at(0),
        p50_us: percentile(50),
        p90_us: percentile(90),
        p99_us: percentile(99),
        max_us: at(last),
    }
}

/// Combines the times of all ranks into one set.
///
/// # Errors
/// Errors of the communicator.
pub fn over_ranks(
    subject: &mut dyn Subject,
    times: Times,
    average: Average,
) -> Result<Times, SubjectError> {
    let means = subject.all_gather_f64(times.mean_us)?;
    let mean_us = match average {
        Average::RankZero => means.first().copied().unwrap_or(times.mean_us),
        Average::Mean => means.iter().sum::<f64>() / means.len().max(1) as f64,
        Average::Min => means.iter().copied().fold(f64::INFINITY, f64::min),
        Average::Max => slowest(&means),
    };
    let mut over =
        |value: f64| -> Result<f64, SubjectError> { Ok(slowest(&subject.all_gather_f64(value)?)) };
    Ok(Times {
        mean_us,
        min_us: over(times.min_us)?,
        p50_us: over(times.p50_us)?,
        p90_us: over(times.p90_us)?,
        p99_us: over(times.p99_us)?,
        max_us: over(times.max_us)?,
    })
}

fn slowest(values: &[f64]) -> f64 {
    values.iter().copied().fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_samples() {
        let times = summary((1..=200).rev().map(f64::from).collect());
        assert_eq!((times.min_us, times.p50_us, times.p90_us), (1.0, 100.0, 180.0));
        assert_eq!((times.p99_us, times.max_us, times.mean_us), (198.0, 200.0, 100.5));
        let one = summary(vec![3.0]);
        assert_eq!((one.min_us, one.p50_us, one.p99_us, one.max_us), (3.0, 3.0, 3.0, 3.0));
        assert_eq!(summary(Vec::new()), Times::default());
    }
}
