//! F7: how evenly a benchmark uses the uplinks of racks.

use ccl_plot::Figure;

use super::{Parameter, Scenario, Setting, TRIALS, rack_to_rack, run as run_streams};
use crate::SimError;
use crate::measure::{Striping, mean, spread, utilisation};
use crate::presets::Zone;
use crate::report::{Expected, Findings, Unit};
use crate::routing::Scheme;
use crate::streams::{RunParams, Stream, roofline_s};

pub(super) const SCENARIO: Scenario = Scenario {
    name: "f7",
    title: "utilisation of 16 uplinks by a benchmark",
    source: "with E-ECMP, links are used at 40 % to 90 % of their bandwidth; with TE, all at 80 % \
             (§5.5.2)",
    parameters: &[
        Parameter { name: "uplinks", value: 16.0, what: "uplinks of each rack of 16 NICs" },
        Parameter { name: "racks", value: 2.0, what: "racks, each of which sends to the next" },
        Parameter { name: "pairs", value: 32.0, what: "queue pairs" },
        Parameter {
            name: "idle",
            value: 0.25,
            what: "pause between two calls, as a multiple of a call's roofline",
        },
        Parameter { name: "trials", value: 50.0, what: TRIALS },
    ],
    run,
};

/// Other numbers of racks and queue pairs that the paper's benchmark may have had.
const OTHERS: [(u32, u32); 2] = [(2, 16), (4, 32)];

/// Returns the least, the mean and the largest utilisation of the uplinks of all racks, averaged
/// over the trials.
fn used(
    setting: &Setting,
    scheme: Scheme,
    (racks, pairs): (u32, u32),
) -> Result<[f64; 3], SimError> {
    let zone = Zone { racks, uplinks: setting.count("uplinks"), ..Zone::default() };
    let network = setting.network(&zone)?;
    let to_next = |rack| rack_to_rack(&zone, rack, (rack + 1) % racks, 1e9);
    let streams: Vec<Stream> = (0..racks).flat_map(to_next).collect();
    let idle_s = setting.number("idle") * roofline_s(&network, &streams);
    let params = RunParams::at_once(pairs);
    let mut ends = [Vec::new(), Vec::new(), Vec::new()];
    for seed in setting.trials() {
        let outcome = run_streams(&network, scheme, &streams, params, seed)?;
        let used = utilisation(&network, &outcome.carried_bytes, outcome.time_s + idle_s);
        let Striping { least, mean, most, .. } = spread(&network, 1, &used);
        ends.iter_mut().zip([least, mean, most]).for_each(|(ends, value)| ends.push(value));
    }
    Ok(ends.map(|ends| mean(&ends)))
}

fn run(setting: &Setting) -> Result<Findings, SimError> {
    let (racks, pairs) = (setting.count("racks").max(2), setting.count("pairs"));
    let mut findings = Findings::default();
    let mut bars = Vec::new();
    for scheme in [Scheme::HashedPairs, Scheme::Te, Scheme::Spray] {
        let ends = match scheme {
            Scheme::HashedPairs => Some([0.4, 0.9]),
            Scheme::Te => Some([0.8, 0.8]),
            _ => None,
        };
        let name = scheme.name();
        let [least, mean, most] = used(setting, scheme, (racks, pairs))?;
        for (end, what, value) in [(0, "least", least), (1, "most", most)] {
            let what = format!("{what} used link with {name}");
            match ends {
                Some(ends) => findings.expect(what, Unit::Part, value, Expected::About(ends[end])),
                None => findings.note(what, Unit::Part, value),
            }
        }
        bars.push((name, [least, mean, most]));
    }
    for (racks, pairs) in OTHERS {
        let [least, _, most] = used(setting, Scheme::HashedPairs, (racks, pairs))?;
        for (what, value) in [("least", least), ("most", most)] {
            let what = format!("{what} used link with e_ecmp, {racks} racks, {pairs} queue pairs");
            findings.note(what, Unit::Part, value);
        }
    }
    let title = "Utilisation of the uplinks of racks";
    let mut figure =
        Figure::bars("f7-utilisation", title, "part of the bandwidth", &["least", "mean", "most"]);
    for (name, values) in &bars {
        figure = figure.with_bars(*name, values);
    }
    findings.figures.push(figure);
    findings.say(
        "The pause of the benchmark between two calls is chosen so that TE uses 80 % of the links' \
         bandwidth; the other results follow from this pause. A benchmark sends both ways: here \
         two racks, the fewest possible, send to each other over 32 queue pairs, and the links of \
         both are measured. The paper does not give the benchmark's numbers of racks and queue \
         pairs. With fewer queue pairs or more racks, the least used link is used even less, as \
         the last rows show.",
    );
    Ok(findings)
}
