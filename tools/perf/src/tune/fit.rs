//! What links and processors take, from how long collectives took: the numbers of a model with
//! which its predictions come nearest to what was measured.

use ccl_core::cost::figures::FIGURES;
use ccl_core::cost::predict::{Call, PredictError, predict};
use ccl_core::cost::walk::Model;

/// By so much a number may become another than it was at the beginning.
const DRIFT: f64 = 100.0;

/// Rounds over all numbers, with steps that grow smaller.
const STEPS: [f64; 7] = [4.0, 2.0, 2.0, 1.5, 1.3, 1.15, 1.07];

/// A call, and how long it took.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample<'a> {
    /// The call.
    pub call: Call<'a>,
    /// In nanoseconds.
    pub time_ns: f64,
}

/// A model, and how near it comes.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Fitted {
    /// The model.
    pub model: Model,
    /// Of each sample: what is predicted, as a multiple of what was measured.
    pub ratios: Vec<f64>,
}

impl Fitted {
    /// By how much half of the predictions are off at most: 0.2 is a fifth, either way.
    #[must_use]
    pub(super) fn median_error(&self) -> f64 {
        let mut off: Vec<f64> =
            self.ratios.iter().map(|ratio| ratio.max(1.0 / ratio) - 1.0).collect();
        off.sort_by(f64::total_cmp);
        off.get(off.len() / 2).copied().unwrap_or(0.0)
    }
}

/// The model whose predictions are nearest, beginning from a given one: one number after the other
/// is made larger and smaller, as long as that helps. What no sample depends on stays.
///
/// # Errors
///
/// See [`PredictError`].
pub(super) fn fit(model: &Model, samples: &[Sample<'_>]) -> Result<Fitted, PredictError> {
    let mut best = (*model, ratios(model, samples)?);
    for step in STEPS {
        for (_, number) in FIGURES {
            for factor in [step, 1.0 / step] {
                // As long as it helps.
                loop {
                    let mut other = best.0;
                    *number(&mut other) *= factor;
                    // What the samples do not tell is not to drift to anywhere.
                    let far = *number(&mut other) / *number(&mut model.clone());
                    if !(1.0 / DRIFT..=DRIFT).contains(&far) {
                        break;
                    }
                    let ratios = ratios(&other, samples)?;
                    if off(&ratios) >= off(&best.1) * 0.9999 {
                        break;
                    }
                    best = (other, ratios);
                }
            }
        }
    }
    Ok(Fitted { model: best.0, ratios: best.1 })
}

fn ratios(model: &Model, samples: &[Sample<'_>]) -> Result<Vec<f64>, PredictError> {
    let ratio = |sample: &Sample<'_>| Ok(predict(&sample.call, model)?.time_ns / sample.time_ns);
    samples.iter().map(ratio).collect()
}

/// The mean of how far predictions are off, in powers of e: a few that are far off count no more
/// than their share.
fn off(ratios: &[f64]) -> f64 {
    ratios.iter().map(|ratio| ratio.ln().abs()).sum::<f64>() / ratios.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccl_core::algorithm;
    use ccl_core::cost::figures::processors;
    use ccl_core::cost::predict::Programs;
    use ccl_core::topology::Hosts;
    use ccl_core::types::Collective;

    /// What a model predicts is measured; another model, which knows nothing of it, is fitted to
    /// that.
    #[test]
    fn a_model_is_found_from_what_it_predicts() {
        let truth = processors(f64::INFINITY);
        let algorithms = algorithm::of(Collective::AllReduce);
        let programs: Vec<Programs> =
            algorithms.map(|algorithm| Programs::new(algorithm, 0, Hosts::one(2), 8)).collect();
        let mut samples = Vec::new();
        for programs in &programs {
            for bytes in [8, 4 << 10, 256 << 10, 4 << 20] {
                let call = Call {
                    programs,
                    count: bytes / 4,
                    element_bytes: 4,
                    buffer_bytes: bytes,
                    channels: 1,
                    slot_bytes: 128 << 10,
                };
                let time_ns = predict(&call, &truth).unwrap().time_ns;
                samples.push(Sample { call, time_ns });
            }
        }
        let mut wrong = truth;
        wrong.processor.call_ns *= 7.0;
        wrong.processor.slot_ns /= 5.0;
        wrong.within.latency_ns *= 4.0;
        let fitted = fit(&wrong, &samples).unwrap();
        assert!(fitted.median_error() < 0.08, "{fitted:?}");
    }
}
