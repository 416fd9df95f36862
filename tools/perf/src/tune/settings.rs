//! Trial of tunables that hold for the lifetime of a communicator: slots, channels, sockets, queue
//! pairs. Tunables are tried one by one; the value that a trial chooses also holds in later trials.
//! The communicators of all values of a tunable exist at once and are measured in turns.

use std::io::Write;

use ccl_core::config::Config;
use ccl_core::select::tuning::SETTABLE;
use ccl_core::types::{Collective, DataType, ReduceOp};

use super::{ITERATIONS_MAX, TURN_US, Tried, TuneRequest, time};
use crate::geometry::counts_of_size;
use crate::memory::Memory;
use crate::subject::SubjectError;
use crate::trial::Trial;
use ferroccl::communicator::Communicator;
use ferroccl::transports::{self, Choice};

/// Least gain for which a value replaces the current one, as a share of the current one's time.
pub(super) const WORTH: f64 = 0.03;

/// Values that are usually worth trying, with the connections that each tunable applies to.
const USUAL: [(&str, &[&str], Joined); 6] = [
    ("FERROCCL_SLOT_BYTES", &["64k", "256k", "512k"], Joined::Anyhow),
    ("FERROCCL_SLOTS", &["4", "16"], Joined::Anyhow),
    ("FERROCCL_CHANNELS", &["2"], Joined::Anyhow),
    ("FERROCCL_ZERO_COPY_BYTES", &["4k", "64k"], Joined::ByNetwork),
    ("FERROCCL_SOCKETS", &["2", "4"], Joined::ByConnections),
    ("FERROCCL_IB_POLICY", &["qps=1", "qps=4", "qps=16"], Joined::ByQueuePairs),
];

/// Tunables that a tuning table may set and that its model takes into account.
pub(super) const MODELLED: [&str; 3] =
    ["FERROCCL_CHANNELS", "FERROCCL_SLOTS", "FERROCCL_SLOT_BYTES"];

/// Kind of connection that a tunable applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Joined {
    /// Any connection.
    Anyhow,
    /// Connection over a network.
    ByNetwork,
    /// Connection over a network whose transport does not stripe messages over queue pairs.
    ByConnections,
    /// Connection over a network whose transport stripes messages over queue pairs.
    ByQueuePairs,
}

impl Tried {
    /// Reads a text such as `FERROCCL_SLOTS=4`.
    ///
    /// # Errors
    ///
    /// When the text has another form, or a tunable that no table may set.
    pub fn read(text: &str) -> Result<Tried, String> {
        let (name, value) = text.split_once('=').unwrap_or((text, ""));
        let known = SETTABLE.iter().find(|known| **known == name);
        match known.filter(|_| !value.is_empty()) {
            Some(known) => Ok(Tried { variable: known, values: vec![value.to_owned()] }),
            None => Err(format!("give NAME=VALUE, where NAME is one of: {}", SETTABLE.join(" "))),
        }
    }

    /// Returns the values that are usually worth trying for the tunables that apply to the
    /// transport of a configuration.
    #[must_use]
    pub fn usual(config: &Config) -> Vec<Tried> {
        let choice = Choice::of(config);
        let counts = |joined: Joined| match joined {
            Joined::Anyhow => true,
            Joined::ByNetwork => choice.network.is_some(),
            Joined::ByConnections => choice.network.is_some() && !choice.stripes(),
            Joined::ByQueuePairs => choice.stripes(),
        };
        Tried::those(|_, joined| counts(joined))
    }

    /// Returns the values that are usually worth trying for the tunables that a model takes into
    /// account.
    #[must_use]
    pub fn modelled() -> Vec<Tried> {
        Tried::those(|variable, _| MODELLED.contains(&variable))
    }

    fn those(counts: impl Fn(&str, Joined) -> bool) -> Vec<Tried> {
        let usual = USUAL.iter().filter(|(variable, _, joined)| counts(variable, *joined));
        let tried = |(name, values, _): &(&str, &[&str], Joined)| {
            let variable = SETTABLE.iter().find(|known| *known == name)?;
            Some(Tried { variable, values: values.iter().map(|text| (*text).to_owned()).collect() })
        };
        usual.filter_map(tried).collect()
    }
}

/// Returns the fastest value of each tunable, if it is faster than the current one by more than
/// [`WORTH`], and sets it in the configuration.
pub(super) fn fastest(
    request: &TuneRequest,
    tried: &[Tried],
    communicator: &mut Communicator,
    config: &mut Config,
    out: &mut dyn Write,
) -> Result<Vec<(&'static str, String)>, SubjectError> {
    let mut settings = Vec::new();
    for Tried { variable, values } in tried {
        let holds = config
            .list(&transports::tables())?
            .into_iter()
            .find(|tunable| tunable.variable == *variable);
        let holds = holds.map(|tunable| tunable.value).unwrap_or_default();
        let mut all = vec![Candidate::new(holds, config.clone(), communicator)?];
        for value in values {
            let config = with(config, variable, value)?;
            all.push(Candidate::new(value.clone(), config, communicator)?);
        }
        let ratios = ratios(request, &mut all)?;
        let [held, others @ ..] = &all[..] else { continue };
        let mut text = format!("{variable}={}", held.value);
        for (other, ratio) in others.iter().zip(&ratios) {
            text += &format!(", {} takes {ratio:.3} times as long", other.value);
        }
        if held.communicator.rank() == 0 {
            writeln!(out, "{text}")?;
        }
        let best = ratios.iter().zip(others).min_by(|one, other| one.0.total_cmp(other.0));
        if let Some((ratio, best)) = best
            && *ratio < 1.0 - WORTH
        {
            *config = with(config, variable, &best.value)?;
            settings.push((*variable, best.value.clone()));
        }
    }
    Ok(settings)
}

/// Value of a tunable, with a communicator that uses the value.
struct Candidate {
    value: String,
    communicator: Communicator,
    /// Mean microseconds per call: a list for each collective and size, with a value per round.
    times: Vec<Vec<f64>>,
}

impl Candidate {
    /// Creates a communicator of the ranks of `from` with this configuration.
    fn new(
        value: String,
        config: Config,
        from: &mut Communicator,
    ) -> Result<Candidate, SubjectError> {
        let communicator = from.again(config)?;
        Ok(Candidate { value, communicator, times: Vec::new() })
    }
}

/// Returns one ratio for each value but the first: the time of a call with this value, divided by
/// the time of the same call with the first value. A ratio is the geometric mean over all
/// collectives and sizes. The library chooses the algorithm of each call.
fn ratios(request: &TuneRequest, candidates: &mut [Candidate]) -> Result<Vec<f64>, SubjectError> {
    let mut memory = Memory::new(request.max_bytes, request.max_bytes)?;
    let points = request
        .collectives
        .iter()
        .flat_map(|collective| request.sizes().into_iter().map(move |bytes| (*collective, bytes)));
    for (collective, bytes) in points {
        // Sizes that are too small for one element in each block are skipped.
        let is_empty =
            |one: &Candidate| trial(&one.communicator, collective, bytes).size_bytes() == 0;
        if candidates.first().is_some_and(is_empty) {
            continue;
        }
        let mut iterations = 1;
        for round in 0..=request.rounds {
            for (index, candidate) in candidates.iter_mut().enumerate() {
                let trial = trial(&candidate.communicator, collective, bytes);
                let taken = time(&mut candidate.communicator, &trial, &mut memory, iterations)?;
                // The first round only determines the number of iterations.
                match (round, index) {
                    (0, 0) => {
                        let many = (TURN_US / taken.max(0.01)).clamp(1.0, ITERATIONS_MAX) as u32;
                        iterations = many;
                        candidate.times.push(Vec::new());
                    }
                    (0, _) => candidate.times.push(Vec::new()),
                    _ => candidate.times.last_mut().into_iter().for_each(|times| times.push(taken)),
                }
            }
        }
    }
    let median = |times: &Vec<f64>| {
        let mut times = times.clone();
        times.sort_by(f64::total_cmp);
        times.get(times.len() / 2).copied().unwrap_or(1.0)
    };
    let score = |candidate: &Candidate| {
        let sum: f64 = candidate.times.iter().map(|times| median(times).max(1e-3).ln()).sum();
        sum / candidate.times.len().max(1) as f64
    };
    let scores: Vec<f64> = candidates.iter().map(score).collect();
    let first = scores.first().copied().unwrap_or_default();
    Ok(scores.iter().skip(1).map(|score| (score - first).exp()).collect())
}

fn trial(communicator: &Communicator, collective: Collective, bytes: usize) -> Trial<'static> {
    let (data_type, op, root) = (DataType::Float32, ReduceOp::Sum, 0);
    let (rank, ranks) = (communicator.rank(), communicator.ranks());
    let counts = counts_of_size(collective, bytes, data_type, false, (rank, ranks));
    Trial { collective, data_type, op, root, counts, algorithm: None, rank, ranks }
}

/// Returns the configuration with one value changed.
pub(super) fn with(config: &Config, variable: &str, value: &str) -> Result<Config, SubjectError> {
    let tables = transports::tables();
    let table = config.list(&tables)?;
    let lookup = |name: &str| {
        let known = table.iter().find(|tunable| tunable.variable == name)?;
        Some(if name == variable { value.to_owned() } else { known.value.clone() })
    };
    Ok(Config::read(&lookup, &tables)?)
}
