//! F17: the time from a failed link to new paths, if a controller (TE) places paths periodically.

use ccl_plot::Figure;

use super::{Parameter, Scenario, Setting, demands, rack_to_rack};
use crate::SimError;
use crate::presets::Zone;
use crate::report::{Expected, Findings, Unit};
use crate::routing::{Interval, Router, Te};
use crate::streams::{self, RunParams, roofline_s};

pub(super) const SCENARIO: Scenario = Scenario {
    name: "f17",
    title: "how long a failed link is felt with TE",
    source: "the TE engine computes placements periodically, for example every 30 s (§5.4.1)",
    parameters: &[
        Parameter { name: "uplinks", value: 18.0, what: "uplinks of each rack of 16 NICs" },
        Parameter { name: "interval", value: 30.0, what: "seconds between placements" },
        Parameter { name: "fails_at", value: 42.0, what: "time when an uplink fails, in seconds" },
    ],
    run,
};

fn run(setting: &Setting) -> Result<Findings, SimError> {
    let zone = Zone { uplinks: setting.count("uplinks"), ..Zone::default() };
    let whole = setting.network(&zone)?;
    let streams = rack_to_rack(&zone, 0, 1, 1e9);
    let demands = demands(&whole, &streams);
    let before = Te::place(&whole, &demands)?;
    // `cut` is the network after the failure of the uplink that the first NIC's traffic takes.
    let mut cut = whole.clone();
    let mut router = Router::with_te(setting.seed, before.clone());
    let outcome = streams::run(&whole, &mut router, &streams[..1], RunParams::at_once(1))?;
    let taken = |link: &u32| outcome.flows[*link as usize] > 0.0;
    if let Some(link) = whole.uplinks(1, 0, 0).find(taken) {
        cut.fail(link);
    }
    let interval = Interval { every_s: setting.number("interval").max(1e-3) };
    let fails_s = setting.number("fails_at");
    let known_s = interval.known_at_s(fails_s);
    let speed = |network, te: &Te| {
        let mut router = Router::with_te(setting.seed, te.clone());
        let outcome = streams::run(network, &mut router, &streams, RunParams::at_once(1))?;
        Ok::<f64, SimError>(roofline_s(&whole, &streams) / outcome.time_s)
    };
    let good = speed(&whole, &before)?;
    let bad = speed(&cut, &before)?;
    let again = speed(&cut, &Te::place(&cut, &demands)?)?;
    let mut findings = Findings::default();
    findings.note("from the failure to new paths", Unit::Seconds, known_s - fails_s);
    findings.expect(
        "part of the roofline before the failure",
        Unit::Part,
        good,
        Expected::About(1.0),
    );
    findings.note("part of the roofline until the new paths", Unit::Part, bad);
    findings.expect(
        "part of the roofline on the new paths",
        Unit::Part,
        again,
        Expected::About(1.0),
    );
    let points = vec![
        (0.0, good),
        (fails_s, good),
        (fails_s, bad),
        (known_s, bad),
        (known_s, again),
        (known_s + interval.every_s, again),
    ];
    let axes = ("seconds", "part of the roofline");
    let figure = Figure::lines("f17-interval", "An uplink fails", axes, (false, false));
    findings.figures.push(figure.with("TE", points));
    findings.say(
        "The time to new paths is not simulated: the controller places new paths at the next \
         multiple of the interval, whose default is that of the paper. Three cases are simulated: \
         the old paths before the failure, the old paths after the failure (the flows of the \
         failed link are hashed anew), and the new paths.",
    );
    Ok(findings)
}
