//! F5: traffic engineering places all demands if the network has enough capacity.

use super::f04_queue_pairs::scattered;
use super::{Parameter, Scenario, Setting, TRIALS, demands};
use crate::SimError;
use crate::measure::mean;
use crate::presets::Zone;
use crate::report::{Expected, Findings, Unit};
use crate::routing::{Router, Te};
use crate::streams::{self, RunParams, roofline_s};

pub(super) const SCENARIO: Scenario = Scenario {
    name: "f5",
    title: "part of the demand that traffic engineering places, with enough capacity",
    source: "with enough capacity in the network TE reaches 100 % of what is demanded (§5.5.1)",
    parameters: &[
        Parameter { name: "racks", value: 32.0, what: "racks of two hosts" },
        Parameter { name: "uplinks", value: 18.0, what: "uplinks of each rack of 16 NICs" },
        Parameter { name: "trials", value: 4.0, what: TRIALS },
    ],
    run,
};

fn run(setting: &Setting) -> Result<Findings, SimError> {
    let zone = Zone {
        racks: setting.count("racks"),
        uplinks: setting.count("uplinks"),
        ..Zone::default()
    };
    let network = setting.network(&zone)?;
    let (mut shares, mut times) = (Vec::new(), Vec::new());
    for seed in setting.trials() {
        let streams = scattered(&network, seed)?;
        let te = Te::place(&network, &demands(&network, &streams))?;
        shares.push(te.placed().share());
        let mut router = Router::with_te(seed, te);
        let params = RunParams::at_once(4);
        let outcome = streams::run(&network, &mut router, &streams, params)?;
        times.push(outcome.time_s / roofline_s(&network, &streams));
    }
    let mut findings = Findings::default();
    let enough = zone.uplinks >= zone.rack_nics();
    let expected = if enough { Expected::About(1.0) } else { Expected::AtMost(1.0) };
    findings.expect("part of the demand that is placed", Unit::Part, mean(&shares), expected);
    let expected = if enough { Expected::About(1.0) } else { Expected::AtLeast(1.0) };
    findings.expect("time over roofline", Unit::Ratio, mean(&times), expected);
    Ok(findings)
}
