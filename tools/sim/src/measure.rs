//! Measures of links: how evenly flows and bytes are spread over them.

use serde::Serialize;

use crate::network::{Link, Network};

/// Distribution of an amount over the uplinks of a tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Striping {
    /// Max-to-mean ratio (MMR of Meta's paper on RoCE): the largest amount on a switch's working
    /// uplinks, divided by the mean amount on them. This value is the mean ratio of the used
    /// switches: those with an amount above 0 on a working uplink. 1 means perfectly even.
    pub max_to_mean: f64,
    /// Largest max-to-mean ratio of a used switch.
    pub max_to_mean_worst: f64,
    /// Least amount on a working uplink of a used switch.
    pub least: f64,
    /// Mean amount over all working uplinks of the used switches.
    pub mean: f64,
    /// Largest amount on a working uplink of a used switch.
    pub most: f64,
}

/// Measures how evenly `amounts`, one amount per link of the network, are spread over the uplinks
/// of a tier's children: hosts, or groups of the tier below (see [`crate::network`]).
#[must_use]
pub fn spread(network: &Network, tier: usize, amounts: &[f64]) -> Striping {
    let below = network.plan().fabric.below(tier);
    let (mut ratios, mut used) = (Vec::new(), Vec::new());
    for child in 0..network.children(tier) {
        for number in 0..below {
            let working = |link: &Link| network.works(*link);
            let amount = |link: Link| amounts.get(link as usize).copied().unwrap_or(0.0);
            let links = network.uplinks(tier, child, number).filter(working);
            let links: Vec<f64> = links.map(amount).collect();
            let sum: f64 = links.iter().sum();
            if sum > 0.0 {
                let most = links.iter().copied().fold(0.0, f64::max);
                ratios.push(most * links.len() as f64 / sum);
                used.extend(links);
            }
        }
    }
    if ratios.is_empty() {
        return Striping::default();
    }
    Striping {
        max_to_mean: mean(&ratios),
        max_to_mean_worst: ratios.iter().copied().fold(0.0, f64::max),
        least: used.iter().copied().fold(f64::INFINITY, f64::min),
        mean: mean(&used),
        most: used.iter().copied().fold(0.0, f64::max),
    }
}

/// Returns the utilisation of each link: the bytes that it carried, divided by those that it could
/// carry in `time_s` seconds.
#[must_use]
pub fn utilisation(network: &Network, carried_bytes: &[f64], time_s: f64) -> Vec<f64> {
    let part = |(carried, capacity): (&f64, &f64)| {
        if *capacity > 0.0 && time_s > 0.0 { carried / (capacity * time_s) } else { 0.0 }
    };
    carried_bytes.iter().zip(network.capacity()).map(part).collect()
}

/// Returns the mean, or 0 without values.
#[must_use]
pub fn mean(values: &[f64]) -> f64 {
    if values.is_empty() { 0.0 } else { values.iter().sum::<f64>() / values.len() as f64 }
}

/// Returns the standard error of the mean: the estimated standard deviation of the mean over
/// repeated draws. Returns `None` for fewer than two values.
#[must_use]
pub fn standard_error(values: &[f64]) -> Option<f64> {
    let (many, mean) = (values.len() as f64, mean(values));
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (values.len() > 1).then(|| (squares / (many - 1.0) / many).sqrt())
}

/// Returns a quantile: the smallest v in `values` for which at least a fraction `part` of `values`
/// is v or less. A `part` of 0.5 gives the median. Returns 0 without values.
#[must_use]
pub fn quantile(values: &[f64], part: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = (part * sorted.len() as f64).ceil() as usize;
    sorted.get(at.max(1) - 1).or(sorted.last()).copied().unwrap_or(0.0)
}
