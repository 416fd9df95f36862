//! Fitting of a model to measured times of collectives: it finds the figures (rates and times of
//! links and processors) with which the model's predictions are nearest to the measurements.

use ccl_core::cost::figures::FIGURES;
use ccl_core::cost::predict::{Call, PredictError, predict};
use ccl_core::cost::walk::Model;

/// Largest factor by which fitting may change a figure.
const DRIFT: f64 = 100.0;

/// Factors, one for each round over all figures. In a round, each step multiplies or divides a
/// figure by the round's factor.
const STEPS: [f64; 7] = [4.0, 2.0, 2.0, 1.5, 1.3, 1.15, 1.07];

/// Call with its measured time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample<'a> {
    /// Call that was measured.
    pub call: Call<'a>,
    /// Time in nanoseconds.
    pub time_ns: f64,
}

/// Model with the accuracy of its predictions.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Fitted {
    /// Model with the fitted figures.
    pub model: Model,
    /// Ratio of the predicted to the measured time, for each sample.
    pub ratios: Vec<f64>,
}

impl Fitted {
    /// Returns the median of the prediction errors. An error of 0.2 means that the longer of the
    /// predicted and the measured time is 1.2 times the other.
    #[must_use]
    pub(super) fn median_error(&self) -> f64 {
        let mut off: Vec<f64> =
            self.ratios.iter().map(|ratio| ratio.max(1.0 / ratio) - 1.0).collect();
        off.sort_by(f64::total_cmp);
        off.get(off.len() / 2).copied().unwrap_or(0.0)
    }
}

/// Fits a model, beginning with a given one: each figure in turn is increased and decreased, as
/// long as that helps. Figures that no sample depends on stay as they are.
///
/// # Errors
///
/// See [`PredictError`].
pub(super) fn fit(model: &Model, samples: &[Sample<'_>]) -> Result<Fitted, PredictError> {
    let mut best = (*model, ratios(model, samples)?);
    for step in STEPS {
        for (_, number) in FIGURES {
            for factor in [step, 1.0 / step] {
                // The step is repeated as long as it helps.
                loop {
                    let mut other = best.0;
                    *number(&mut other) *= factor;
                    // A figure that the samples do not determine must not drift far.
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

/// Returns the mean of the absolute logarithms of the ratios. Absolute values, unlike squares, give
/// outliers no extra weight.
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

    /// Checks that a fit from wrong figures comes close to the times of the right model.
    #[test]
    fn a_model_is_recovered_from_its_own_predictions() {
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
