//! All routing schemes side by side, for jobs that are scattered over a zone.

use ccl_plot::Figure;

use super::f04_queue_pairs::{fail_some, scattered};
use super::{Parameter, Scenario, Setting, TRIALS, group_ends_s, run as run_streams};
use crate::SimError;
use crate::measure::{mean, spread, utilisation};
use crate::network::Network;
use crate::presets::Zone;
use crate::report::{Expected, Findings, Unit};
use crate::routing::{SCHEMES, Scheme};
use crate::streams::{RunParams, Stream, roofline_s};

pub(super) const SCENARIO: Scenario = Scenario {
    name: "schemes",
    title: "scattered jobs under every routing scheme, on a whole network and with failed links",
    source: "with the fewest queue pairs of all schemes, flowlet switching balances load well, \
             even if several links have failed (§5.6)",
    parameters: &[
        Parameter { name: "racks", value: 16.0, what: "racks of two hosts" },
        Parameter {
            name: "uplinks",
            value: 18.0,
            what: "number of uplinks of each rack of 16 NICs",
        },
        Parameter {
            name: "failed",
            value: 3.0,
            what: "number of failed uplinks of every fourth rack",
        },
        Parameter { name: "pairs", value: 4.0, what: "queue pairs" },
        Parameter { name: "trials", value: 2.0, what: TRIALS },
    ],
    run,
};

/// Returns the means of three numbers: the part of a job's roofline that the job reaches; the
/// max-to-mean ratio (MMR) of the bytes on the uplinks; the utilisation of the most used uplink,
/// minus that of the least used one.
fn reached(
    setting: &Setting,
    network: &Network,
    scheme: Scheme,
) -> Result<(f64, f64, f64), SimError> {
    let (mut parts, mut ratios, mut spreads) = (Vec::new(), Vec::new(), Vec::new());
    for seed in setting.trials() {
        let streams = scattered(network, seed)?;
        let bytes = streams.iter().map(|stream| stream.bytes).fold(0.0, f64::max);
        let settle_s = roofline_s(network, &streams) / 200.0;
        // Many messages in turn: a scheme that chooses a path after a pause of the flow, or for
        // each message, needs several messages per stream.
        let params = RunParams {
            message_bytes: bytes / 64.0,
            in_flight: setting.count("pairs").div_ceil(2),
            settle_s,
            ..RunParams::at_once(setting.count("pairs"))
        };
        let outcome = run_streams(network, scheme, &streams, params, seed)?;
        for (group, end_s) in group_ends_s(&streams, &outcome) {
            let own: Vec<Stream> =
                streams.iter().filter(|stream| stream.group == group).copied().collect();
            parts.push(roofline_s(network, &own) / end_s);
        }
        ratios.push(spread(network, 1, &outcome.carried_bytes).max_to_mean);
        let used = utilisation(network, &outcome.carried_bytes, outcome.time_s);
        let used = spread(network, 1, &used);
        spreads.push(used.most - used.least);
    }
    Ok((mean(&parts), mean(&ratios), mean(&spreads)))
}

fn run(setting: &Setting) -> Result<Findings, SimError> {
    let uplinks = setting.count("uplinks");
    let zone = Zone { racks: setting.count("racks"), uplinks, ..Zone::default() };
    let whole = Network::new(setting.plan(&zone)?)?;
    if whole.plan().hosts < 2 {
        return Err(SimError::number("the number of hosts", whole.plan().hosts, "give at least 2"));
    }
    let mut cut = whole.clone();
    fail_some(&mut cut, setting.whole("failed"));
    let mut findings = Findings::default();
    let names = SCHEMES.map(|(name, _)| name);
    let title = "Scattered jobs by routing scheme";
    let mut figure = Figure::bars("schemes-roofline", title, "part of the roofline", &names);
    let mut uneven = Figure::bars("schemes-mmr", "Bytes on uplinks", "max-to-mean ratio", &names);
    for (state, network) in [("whole", &whole), ("with failed links", &cut)] {
        let mut bars = Vec::new();
        let mut ratios = Vec::new();
        for (name, scheme) in SCHEMES {
            let (part, ratio, spread) = reached(setting, network, scheme)?;
            findings.note(format!("{name}, {state}: of the roofline"), Unit::Part, part);
            findings.note(format!("{name}, {state}: MMR of bytes"), Unit::Ratio, ratio);
            let what = format!("{name}, {state}: most used minus least used uplink");
            findings.note(what, Unit::Part, spread);
            bars.push(part);
            ratios.push(ratio);
        }
        let of = |wanted: &str| names.iter().position(|name| *name == wanted).unwrap_or(0);
        let gain = bars[of("flowlet")] / bars[of("e_ecmp")];
        let what = format!("flowlet over e_ecmp, {state}");
        findings.expect(what, Unit::Ratio, gain, Expected::AtLeast(1.0));
        figure = figure.with_bars(state, &bars);
        uneven = uneven.with_bars(state, &ratios);
    }
    findings.figures.extend([figure, uneven]);
    Ok(findings)
}
