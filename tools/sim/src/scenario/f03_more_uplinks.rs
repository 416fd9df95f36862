//! F3: ratio of the completion time to the ideal time (the roofline), for several numbers of queue
//! pairs. By default, racks have twice as many uplinks as NICs.

use ccl_plot::Figure;

use super::{Parameter, Scenario, Setting, TRIALS, rack_to_rack, run as run_streams};
use crate::SimError;
use crate::measure::mean;
use crate::presets::Zone;
use crate::report::{Expected, Findings, Unit};
use crate::routing::Scheme;
use crate::streams::{RunParams, roofline_s};

pub(super) const SCENARIO: Scenario = Scenario {
    name: "f3",
    title: "completion time over the roofline with E-ECMP, by number of queue pairs",
    source: "with 4 queue pairs from each source to each destination, E-ECMP takes 40 % longer \
             than the roofline on average (§5.5.1). Recomputed as balls in bins, with twice as \
             many uplinks as NICs: 2.4 times the roofline with 1 queue pair, 1.35 with 4, 1.0 with \
             16",
    parameters: &[
        Parameter { name: "nics", value: 16.0, what: "NICs of each rack" },
        Parameter { name: "pairs", value: 0.0, what: "queue pairs; 0 runs all of 1, 4, 16 and 32" },
        Parameter { name: "uplinks", value: 32.0, what: "uplinks of each rack" },
        Parameter { name: "trials", value: 200.0, what: TRIALS },
    ],
    run,
};

/// Numbers of queue pairs, each with the expected time as a multiple of the roofline.
const CASES: [(u32, f64); 4] = [(1, 2.4), (4, 1.4), (16, 1.0), (32, 1.0)];

fn run(setting: &Setting) -> Result<Findings, SimError> {
    let (nics, uplinks) = (setting.count("nics"), setting.count("uplinks"));
    let zone = Zone { rack_hosts: 1, nics, uplinks, ..Zone::default() };
    let network = setting.network(&zone)?;
    let streams = rack_to_rack(&zone, 0, 1, 1e9);
    let roofline_s = roofline_s(&network, &streams);
    let mut findings = Findings::default();
    let cases = setting.pairs(&CASES);
    let mut means = Vec::new();
    for &(pairs, expected) in &cases {
        let mut ratios = Vec::new();
        for seed in setting.trials() {
            let params = RunParams::at_once(pairs);
            let outcome = run_streams(&network, Scheme::HashedPairs, &streams, params, seed)?;
            ratios.push(outcome.time_s / roofline_s);
        }
        let what = format!("time over roofline with {pairs} queue pairs");
        match expected {
            Some(expected) if (nics, uplinks) == (16, 32) => {
                findings.expect(what, Unit::Ratio, mean(&ratios), Expected::About(expected));
            }
            _ => findings.note(what, Unit::Ratio, mean(&ratios)),
        }
        means.push(mean(&ratios));
    }
    let groups: Vec<String> = cases.iter().map(|(pairs, _)| pairs.to_string()).collect();
    let groups: Vec<&str> = groups.iter().map(String::as_str).collect();
    let title = "Completion over the roofline by queue pairs";
    let figure = Figure::bars("f3-completion", title, "time / roofline", &groups);
    findings.figures.push(figure.with_bars("E-ECMP", &means));
    Ok(findings)
}
