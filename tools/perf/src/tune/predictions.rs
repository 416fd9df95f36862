//! Predictions by a tuning table's model, for numbers of ranks and hosts that were not measured.

use ccl_core::config::Config;
use ccl_core::cost::predict::PredictError;
use ccl_core::cost::walk::Model;
use ccl_core::select::tuning::{Measured, Point, Tuning};
use ccl_core::topology::Hosts;
use ccl_core::types::{Collective, DataType};

use super::settings::{MODELLED, WORTH, with};
use super::{Tried, TuneRequest};
use ferroccl::tools::{Asked, predicted};

/// Largest number of ranks for which calls are predicted: predictions for more take too long.
const RANKS_MAX: u32 = 4096;

/// Numbers of ranks and hosts for which calls are predicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Predicted {
    /// Number of ranks.
    pub ranks: u32,
    /// Number of hosts, all with equally many ranks.
    pub hosts: u32,
}

/// Adds the predictions of the table's model, and replaces earlier ones for the same ranks and
/// hosts. For each tried tunable, sets in the table the value with the shortest predicted times, if
/// it gains enough over the current value.
///
/// # Errors
///
/// When the table has no model; when the number of ranks is 0 or too large, or is not a multiple of
/// the number of hosts; when a value is invalid, or its tunable is not in the model.
pub fn add_predictions(
    tuning: &mut Tuning,
    among: Predicted,
    request: &TuneRequest,
    config: &Config,
) -> Result<(), String> {
    let Predicted { ranks, hosts } = among;
    let Some(model) = tuning.model else {
        return Err(
            "the table has no line `model`; measure a table with --out, 2 or more sizes and \
                    up to 8 ranks"
                .to_owned(),
        );
    };
    if hosts == 0 || ranks == 0 || ranks > RANKS_MAX || !ranks.is_multiple_of(hosts) {
        return Err(format!(
            "cannot predict {ranks} ranks on {hosts} hosts: give 1 to {RANKS_MAX} ranks, equally \
             many on each host"
        ));
    }
    let host_ids: Vec<u32> = (0..ranks).map(|rank| rank / (ranks / hosts)).collect();
    let placed = Hosts::of(&host_ids);
    let (config, settings) = settled(request, &placed, config, &model)?;
    for (variable, value) in settings {
        tuning.settings.retain(|(known, _)| *known != variable);
        tuning.settings.push((variable, value));
    }
    tuning
        .points
        .retain(|point| !(point.is_predicted && (point.ranks, point.hosts) == (ranks, hosts)));
    tuning.points.extend(points(request, &placed, &config, &model)?);
    Ok(())
}

fn points(
    request: &TuneRequest,
    hosts: &Hosts,
    config: &Config,
    model: &Model,
) -> Result<Vec<Point>, String> {
    let mut points = Vec::new();
    for collective in &request.collectives {
        for bytes in request.sizes() {
            let point = point(*collective, bytes, hosts, config, model);
            points.extend(point.map_err(|error| error.to_string())?);
        }
    }
    Ok(points)
}

/// Tunable with its value.
type Setting = (&'static str, String);

/// Chooses values for the tried tunables, one tunable after the other. Returns the configuration
/// with the chosen values, and these values. Values are compared by the geometric mean of the
/// fastest variants' times. The value with the shortest mean is chosen, if this mean is shorter
/// than the mean with the current value by more than [`WORTH`].
fn settled(
    request: &TuneRequest,
    hosts: &Hosts,
    config: &Config,
    model: &Model,
) -> Result<(Config, Vec<Setting>), String> {
    let score = |config: &Config| -> Result<f64, String> {
        let fastest = |point: &Point| {
            let time_ns = point.fastest(|_| true).map_or(1, |time| time.median_ns.max(1));
            (time_ns as f64).ln()
        };
        let points = points(request, hosts, config, model)?;
        Ok(points.iter().map(fastest).sum::<f64>() / points.len().max(1) as f64)
    };
    let (mut config, mut settings) = (config.clone(), Vec::new());
    for Tried { variable, values } in &request.tried {
        if !MODELLED.contains(variable) {
            return Err(format!(
                "--try {variable}: models do not cover this tunable; give one of {}, or measure it \
                 without --predict",
                MODELLED.join(" ")
            ));
        }
        let (held, mut best) = (score(&config)?, None);
        let mut least = held + (1.0 - WORTH).ln();
        for value in values {
            let tried = with(&config, variable, value).map_err(|error| error.to_string())?;
            let score = score(&tried)?;
            if score < least {
                (least, best) = (score, Some((tried, value)));
            }
        }
        if let Some((tried, value)) = best {
            settings.push((*variable, value.clone()));
            config = tried;
        }
    }
    Ok((config, settings))
}

/// Predicts a point. Returns none if there are too few bytes for one element of each block.
fn point(
    collective: Collective,
    bytes: usize,
    hosts: &Hosts,
    config: &Config,
    model: &Model,
) -> Result<Option<Point>, PredictError> {
    let element_bytes = DataType::Float32.bytes();
    let Some(blocks) = collective.even_blocks(hosts.ranks()) else { return Ok(None) };
    let count = bytes / element_bytes / blocks as usize;
    if count == 0 {
        return Ok(None);
    }
    let bytes = count * element_bytes * blocks as usize;
    let asked = Asked { collective, root: 0, count, element_bytes, bytes, hosts };
    let times = predicted(model, config, &asked)?.into_iter().map(|(variant, time_ns)| Measured {
        variant,
        median_ns: time_ns.round() as u64,
        deviation_ns: 0,
    });
    Ok(Some(Point {
        collective,
        ranks: hosts.ranks(),
        hosts: hosts.count(),
        bytes,
        is_predicted: true,
        times: times.collect(),
    }))
}
