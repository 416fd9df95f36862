//! A model whose figures (rates and times of links and processors) are fitted to the measurements.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use ccl_core::algorithm;
use ccl_core::cost::figures::{NETWORK_BYTES_PER_S, processors};
use ccl_core::cost::predict::{self, Programs};
use ccl_core::cost::walk::{Hop, Model, Processor};
use ccl_core::topology::Hosts;
use ccl_core::types::DataType;

use super::fit::{Sample, fit};
use super::{Outcome, Seen};
use crate::subject::SubjectError;

/// Largest number of ranks for which a model is fitted.
const MODELLED_RANKS_MAX: u32 = 8;
/// Least number of sizes: one size does not separate the time per call from the time per byte.
const SIZES_MIN: usize = 2;

/// Programs, keyed by the names of their collective and algorithm.
type Lowered = BTreeMap<(&'static str, &'static str), Programs>;

impl Outcome {
    /// Returns the model of the processors and links that comes nearest to the measurements, and a
    /// text on its accuracy and figures. A model is fitted only if there are two or more sizes,
    /// and only for few ranks: predictions for many ranks take too long.
    ///
    /// # Errors
    ///
    /// When the prediction of a call does not end.
    pub fn modelled(&self) -> Result<Option<(Model, String)>, SubjectError> {
        let Some(Seen { plan, .. }) = self.seen.first() else { return Ok(None) };
        let sizes: BTreeSet<usize> = self.seen.iter().map(|seen| seen.point.bytes).collect();
        if plan.ranks > MODELLED_RANKS_MAX || sizes.len() < SIZES_MIN {
            return Ok(None);
        }
        // Assumes that ranks fill one host after the other, as most launchers place them.
        let hosts: Vec<u32> =
            (0..plan.ranks).map(|rank| rank * plan.hosts / plan.ranks.max(1)).collect();
        let programs = self.programs(&Hosts::of(&hosts), plan.slots)?;
        let samples = self.samples(&programs);
        let fitted = fit(&processors(NETWORK_BYTES_PER_S), &samples)?;
        let Model { processor, within, between, .. } = fitted.model;
        let Processor { call_ns, fold_ns, slot_ns, memory_ns: [near, shared, far] } = processor;
        let mut text = format!(
            "The model predicts times by a walk through the schedules, with numbers fitted to \
             these {} measured times; half of the predictions are off by {:.0} % at most.\n\
             A call takes {call_ns:.0} ns. A fold takes {fold_ns:.0} ns plus, for each byte read \
             or written, {slot_ns:.3} ns in slots, {near:.3} ns in buffers up to 1 MiB, \
             {shared:.3} ns up to 16 MiB and {far:.3} ns in larger ones. A message within a host \
             takes {:.0} ns",
            samples.len(),
            100.0 * fitted.median_error(),
            within.latency_ns + within.message_ns
        );
        if plan.hosts > 1 {
            let Hop { message_ns, byte_ns, latency_ns, bytes_per_s } = between;
            // Writing to a string does not fail.
            let _ = write!(
                text,
                "; a message between hosts has a latency of {latency_ns:.0} ns, and takes each of \
                 the two ranks {message_ns:.0} ns plus {byte_ns:.3} ns for each byte; the \
                 bandwidth is {:.1} GB/s",
                bytes_per_s / 1e9
            );
        }
        Ok(Some((fitted.model, text + ".\n")))
    }

    /// Returns the programs of the measurements, lowered once for all sizes.
    fn programs(&self, hosts: &Hosts, slots: u32) -> Result<Lowered, SubjectError> {
        let mut programs = Lowered::new();
        for Seen { point, .. } in &self.seen {
            for time in &point.times {
                let key = (point.collective.name(), time.variant.algorithm);
                let algorithm = algorithm::find(point.collective, time.variant.algorithm)?;
                let lowered = || Programs::new(algorithm, 0, hosts.clone(), slots);
                programs.entry(key).or_insert_with(lowered);
            }
        }
        Ok(programs)
    }

    fn samples<'p>(&self, programs: &'p Lowered) -> Vec<Sample<'p>> {
        let mut samples = Vec::new();
        for Seen { point, count, plan } in &self.seen {
            for time in &point.times {
                let key = (point.collective.name(), time.variant.algorithm);
                let Some(programs) = programs.get(&key) else { continue };
                let call = predict::Call {
                    programs,
                    count: *count,
                    element_bytes: DataType::Float32.bytes(),
                    buffer_bytes: point.bytes,
                    channels: plan.channels,
                    slot_bytes: time.variant.slot_fraction.bytes(plan.slot_bytes, 64),
                };
                samples.push(Sample { call, time_ns: time.median_ns as f64 });
            }
        }
        samples
    }
}
