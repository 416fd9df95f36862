//! F7: how evenly a benchmark uses the uplinks of a rack.

use super::{Parameter, Scenario, Setting, TRIALS, rack_to_rack, run as run_streams};
use crate::SimError;
use crate::measure::{mean, spread, utilisation};
use crate::plot::Figure;
use crate::presets::Zone;
use crate::report::{Expected, Findings, Unit};
use crate::routing::Scheme;
use crate::streams::{Manner, roofline_s};

pub(super) const SCENARIO: Scenario = Scenario {
    name: "f7",
    title: "utilisation of 16 uplinks by a benchmark",
    source: "with E-ECMP links are used between 40 % and 90 % of their bandwidth, with TE evenly \
             80 % (§5.5.2)",
    parameters: &[
        Parameter { name: "uplinks", value: 16.0, what: "uplinks of each rack of 16 NICs" },
        Parameter { name: "pairs", value: 32.0, what: "queue pairs" },
        Parameter {
            name: "idle",
            value: 0.25,
            what: "time between two calls in which nothing is sent, over the roofline of a call",
        },
        Parameter { name: "trials", value: 100.0, what: TRIALS },
    ],
    run,
};

fn run(setting: &Setting) -> Result<Findings, SimError> {
    let zone = Zone { uplinks: setting.count("uplinks"), ..Zone::default() };
    let network = setting.network(&zone)?;
    let streams = rack_to_rack(&zone, 0, 1, 1e9);
    let idle_s = setting.number("idle") * roofline_s(&network, &streams);
    let manner = Manner::at_once(setting.count("pairs"));
    let mut findings = Findings::default();
    let mut bars = Vec::new();
    for scheme in [Scheme::HashedPairs, Scheme::Te, Scheme::Spray] {
        let (mut least, mut most, mut means) = (Vec::new(), Vec::new(), Vec::new());
        for seed in setting.trials() {
            let outcome = run_streams(&network, scheme, &streams, manner, seed)?;
            let used = utilisation(&network, &outcome.carried_bytes, outcome.time_s + idle_s);
            let spread = spread(&network, 1, &used);
            least.push(spread.least);
            most.push(spread.most);
            means.push(spread.mean);
        }
        let ends = match scheme {
            Scheme::HashedPairs => Some([0.4, 0.9]),
            Scheme::Te => Some([0.8, 0.8]),
            _ => None,
        };
        let name = scheme.name();
        let (least, most) = (mean(&least), mean(&most));
        for (end, what, value) in [(0, "least", least), (1, "most", most)] {
            let what = format!("{what} used link with {name}");
            match ends {
                Some(ends) => findings.expect(what, Unit::Part, value, Expected::About(ends[end])),
                None => findings.note(what, Unit::Part, value),
            }
        }
        bars.push((name, [least, mean(&means), most]));
    }
    let title = "Utilisation of the uplinks of a rack";
    let mut figure =
        Figure::bars("f7-utilisation", title, "part of the bandwidth", &["least", "mean", "most"]);
    for (name, values) in &bars {
        figure = figure.with_bars(*name, values);
    }
    findings.figures.push(figure);
    findings.say(
        "The 80 % of TE fix how long a benchmark is silent between two calls; the rest follows.",
    );
    Ok(findings)
}
