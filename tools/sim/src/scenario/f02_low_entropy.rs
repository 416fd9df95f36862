//! F2: a hash spreads few flows much less evenly than many; more queue pairs help.

use ccl_plot::Figure;

use super::{Parameter, Scenario, Setting, TRIALS, rack_to_rack, run as run_streams};
use crate::SimError;
use crate::measure::{mean, spread};
use crate::presets::Zone;
use crate::report::{Expected, Findings, Unit};
use crate::routing::Scheme;
use crate::streams::RunParams;

pub(super) const SCENARIO: Scenario = Scenario {
    name: "f2",
    title: "max-to-mean ratio (MMR) where each NIC of a rack sends to one NIC of another rack",
    source: "training traffic has few flows, which spread much less evenly than 1,000 flows would \
             (§5.2.1, Table 2; recomputed as balls in bins for 16 NICs on 16 uplinks: 3.05, 1.97, \
             1.47, 1.32 with 1, 4, 16, 32 queue pairs)",
    parameters: &[
        Parameter { name: "nics", value: 16.0, what: "NICs of each rack" },
        Parameter { name: "pairs", value: 0.0, what: "queue pairs; 0 runs all of 1, 4, 16 and 32" },
        Parameter { name: "uplinks", value: 16.0, what: "uplinks of each rack" },
        Parameter { name: "trials", value: 200.0, what: TRIALS },
    ],
    run,
};

/// Numbers of queue pairs, each with the max-to-mean ratio of balls that are thrown into bins.
const CASES: [(u32, f64); 4] = [(1, 3.05), (4, 1.97), (16, 1.47), (32, 1.32)];

fn run(setting: &Setting) -> Result<Findings, SimError> {
    let (nics, uplinks) = (setting.count("nics"), setting.count("uplinks"));
    let zone = Zone { rack_hosts: 1, nics, uplinks, ..Zone::default() };
    let network = setting.network(&zone)?;
    let streams = rack_to_rack(&zone, 0, 1, 1e9);
    let mut findings = Findings::default();
    let cases = setting.pairs(&CASES);
    let mut means = Vec::new();
    for &(pairs, recomputed) in &cases {
        let mut ratios = Vec::new();
        for seed in setting.trials() {
            let params = RunParams::at_once(pairs);
            let outcome = run_streams(&network, Scheme::HashedPairs, &streams, params, seed)?;
            ratios.push(spread(&network, 1, &outcome.flows).max_to_mean);
        }
        let what = format!("mean MMR with {pairs} queue pairs (E-ECMP)");
        match recomputed {
            Some(recomputed) if (nics, uplinks) == (16, 16) => {
                findings.expect(what, Unit::Ratio, mean(&ratios), Expected::About(recomputed));
            }
            _ => findings.note(what, Unit::Ratio, mean(&ratios)),
        }
        means.push(mean(&ratios));
    }
    let single = RunParams::at_once(1);
    let mut alone = Vec::new();
    // More queue pairs change nothing if the hash ignores their numbers.
    let mut ratios = Vec::new();
    for seed in setting.trials() {
        let outcome = run_streams(&network, Scheme::Ecmp, &streams, RunParams::at_once(16), seed)?;
        ratios.push(spread(&network, 1, &outcome.flows).max_to_mean);
        let outcome = run_streams(&network, Scheme::HashedPairs, &streams, single, seed)?;
        alone.push(spread(&network, 1, &outcome.flows).max_to_mean);
    }
    let what = "mean MMR of 16 queue pairs with plain ECMP, over that of 1 queue pair";
    findings.expect(what, Unit::Ratio, mean(&ratios) / mean(&alone), Expected::About(1.0));
    let groups: Vec<String> = cases.iter().map(|(pairs, _)| pairs.to_string()).collect();
    let groups: Vec<&str> = groups.iter().map(String::as_str).collect();
    let figure = Figure::bars("f2-mmr", "Max-to-mean ratio by queue pairs", "MMR", &groups);
    findings.figures.push(figure.with_bars("measured", &means));
    Ok(findings)
}
