//! Duration of a call by each algorithm, as it was measured or as a model predicts it.

use ccl_core::algorithm::{self, Algorithm};
use ccl_core::config::Config;
use ccl_core::cost::figures::{NETWORK_BYTES_PER_S, processors};
use ccl_core::cost::predict::{self, PredictError, Programs};
use ccl_core::cost::walk::Model;
use ccl_core::schedule::shape::Sizes;
use ccl_core::select::message_bytes_min;
use ccl_core::select::variant::{SlotFraction, Variant};
use ccl_core::topology::Hosts;
use ccl_core::types::{Collective, Rank};
use serde::Serialize;

use super::segment::Segment;
use super::{Call, CallError, Error};
use crate::transports::Choice;

/// Largest number of ranks for which durations are predicted: for more, a prediction takes too
/// long.
const RANKS_MAX: u32 = 16;

/// Duration of a call by one variant.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Expected {
    /// The algorithm and the slot fraction, such as `ring/4`.
    pub variant: String,
    /// Duration in microseconds.
    pub time_us: f64,
    /// True if the duration was measured (`FERROCCL_TUNING`). Otherwise the duration is predicted:
    /// all ranks' programs run in virtual time, with the model of the tuning table, or with typical
    /// parameters of this library's links if there is no such model.
    pub is_measured: bool,
}

/// A call with equal blocks whose duration is to be predicted.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// The collective.
    pub collective: Collective,
    /// The root, for collectives that have one.
    pub root: Rank,
    /// Elements of a block.
    pub count: usize,
    /// Bytes of one element.
    pub element_bytes: usize,
    /// Bytes of the larger buffer.
    pub bytes: usize,
    /// Hosts of the ranks.
    pub hosts: &'a Hosts,
}

/// Returns the durations of a call with equal blocks, the fastest first. The list has the variants
/// that were measured for this number of bytes. The list also has variants that were not measured,
/// with predicted durations: each algorithm with whole slots, and the algorithm with the shortest
/// predicted time also with smaller fractions of a slot. The prediction takes some milliseconds for
/// 16 ranks; for more ranks the list is empty.
///
/// # Errors
///
/// The errors of the call itself, for wrong arguments.
pub fn expected(config: &Config, hosts: &Hosts, call: &Call<'_>) -> Result<Vec<Expected>, Error> {
    let Sizes::Even(count) = call.sizes else { return Ok(Vec::new()) };
    if hosts.ranks() > RANKS_MAX || call.collective.even_blocks(1).is_none() {
        return Ok(Vec::new());
    }
    let hosts = &sharing(config, hosts);
    let (input_bytes, output_bytes) = call.check(0, hosts.ranks())?;
    let (collective, bytes) = (call.collective, input_bytes.max(output_bytes));
    let point = config.tuning.point(collective, (hosts.ranks(), hosts.count()), bytes);
    let mut all = Vec::new();
    for time in point.into_iter().flat_map(|point| &point.times) {
        let (variant, time_us) = (time.variant.to_string(), time.median_ns as f64 / 1e3);
        all.push(Expected { variant, time_us, is_measured: true });
    }
    let element_bytes = call.data_type.bytes();
    let asked = Asked { collective, root: call.root, count, element_bytes, bytes, hosts };
    let model = config.tuning.model.unwrap_or_else(|| processors(NETWORK_BYTES_PER_S));
    let predicted = predicted(&model, config, &asked).map_err(CallError::Prediction)?;
    for (variant, time_ns) in predicted {
        let variant = variant.to_string();
        if !all.iter().any(|known| known.variant == variant) {
            all.push(Expected { variant, time_us: time_ns / 1e3, is_measured: false });
        }
    }
    all.sort_by(|one, other| one.time_us.total_cmp(&other.time_us));
    Ok(all)
}

/// Returns the hosts as algorithms see them: ranks that share no memory are on hosts of their own.
pub(super) fn sharing(config: &Config, hosts: &Hosts) -> Hosts {
    match Choice::of(config).host {
        Some(_) => hosts.clone(),
        None => Hosts::of(&Vec::from_iter(0..hosts.ranks())),
    }
}

/// Returns the duration of each variant in nanoseconds as a model predicts it, the fastest first.
/// Measured times are not used. The configuration determines the links.
pub fn predicted(
    model: &Model,
    config: &Config,
    asked: &Asked<'_>,
) -> Result<Vec<(Variant, f64)>, PredictError> {
    let Segment { channels, shape, .. } = Segment::new(asked.hosts, 0, config);
    let mut all: Vec<(Variant, Programs, f64)> = Vec::new();
    let time_ns = |programs: &Programs, slot_fraction: SlotFraction| -> Result<f64, PredictError> {
        let call = predict::Call {
            programs,
            count: asked.count,
            element_bytes: asked.element_bytes,
            buffer_bytes: asked.bytes,
            channels,
            slot_bytes: slot_fraction.bytes(shape.slot_bytes, 64),
        };
        Ok(predict::predict(&call, model)?.time_ns)
    };
    // The engine refuses messages that do not fit slots.
    let fits =
        |algorithm: &&Algorithm| message_bytes_min(algorithm, asked.hosts) <= shape.slot_bytes;
    for algorithm in algorithm::of(asked.collective).filter(fits) {
        let programs = Programs::new(algorithm, asked.root, asked.hosts.clone(), shape.slots);
        let time_ns = time_ns(&programs, SlotFraction::WHOLE)?;
        let variant = Variant { algorithm: algorithm.name, slot_fraction: SlotFraction::WHOLE };
        all.push((variant, programs, time_ns));
    }
    let mut times: Vec<(Variant, f64)> =
        all.iter().map(|(variant, _, time)| (*variant, *time)).collect();
    let fastest = all.iter().min_by(|one, other| one.2.total_cmp(&other.2));
    if let Some((variant, programs, _)) = fastest {
        // A fraction that holds the whole buffer is left out: it takes as long as a whole slot.
        let shorter =
            |slot_fraction: &SlotFraction| slot_fraction.bytes(shape.slot_bytes, 64) < asked.bytes;
        for slot_fraction in SlotFraction::ALL.into_iter().skip(1).filter(shorter) {
            times.push((Variant { slot_fraction, ..*variant }, time_ns(programs, slot_fraction)?));
        }
    }
    times.sort_by(|one, other| one.1.total_cmp(&other.1));
    Ok(times)
}
