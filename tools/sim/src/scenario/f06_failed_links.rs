//! F6: where links have failed and not everything fits, hashing overtakes traffic engineering.

use ccl_plot::Figure;

use super::{Parameter, Scenario, Setting, TRIALS, demands, rack_to_rack};
use crate::SimError;
use crate::measure::mean;
use crate::presets::Zone;
use crate::report::{Expected, Findings, Unit};
use crate::routing::{Router, Scheme, Te};
use crate::streams::{self, RunParams, roofline_s};

pub(super) const SCENARIO: Scenario = Scenario {
    name: "f6",
    title: "TE and E-ECMP as uplinks fail",
    source: "where links have failed and a rack's uplinks have less bandwidth than its NICs (less \
             than 1:1), TE may be overtaken by E-ECMP (§5.5.1)",
    parameters: &[
        Parameter { name: "uplinks", value: 16.0, what: "uplinks of each rack of 16 NICs" },
        Parameter {
            name: "failed",
            value: 4.0,
            what: "largest number of failed uplinks of a rack",
        },
        Parameter { name: "pairs", value: 32.0, what: "queue pairs of E-ECMP" },
        Parameter { name: "trials", value: 50.0, what: TRIALS },
    ],
    run,
};

fn run(setting: &Setting) -> Result<Findings, SimError> {
    let zone = Zone { uplinks: setting.count("uplinks"), ..Zone::default() };
    let most = setting.whole("failed").min(zone.uplinks - 1);
    let pairs = setting.count("pairs");
    let streams = rack_to_rack(&zone, 0, 1, 1e9);
    let mut findings = Findings::default();
    let mut lines = [Vec::new(), Vec::new(), Vec::new(), Vec::new(), Vec::new()];
    for failed in 0..=most {
        let mut network = setting.network(&zone)?;
        let cut: Vec<u32> = network.uplinks(1, 0, 0).take(failed as usize).collect();
        cut.into_iter().for_each(|link| network.fail(link));
        let roofline_s = roofline_s(&network, &streams);
        let mut times = [Vec::new(), Vec::new(), Vec::new(), Vec::new()];
        let demands = demands(&network, &streams);
        let (te, all) = (Te::place(&network, &demands)?, Te::place_all(&network, &demands)?);
        let plain = te.clone().over_plain_ecmp();
        for seed in setting.trials() {
            let hashed = Router::new(Scheme::HashedPairs, seed);
            let placed = Router::with_te(seed, plain.clone());
            let backed = Router::with_te(seed, te.clone());
            let crowded = Router::with_te(seed, all.clone());
            let routers = [hashed, placed, backed, crowded];
            for (mut router, times) in routers.into_iter().zip(&mut times) {
                let params = RunParams::at_once(pairs);
                let outcome = streams::run(&network, &mut router, &streams, params)?;
                times.push(outcome.time_s / roofline_s);
            }
        }
        let of_hashed = |case: usize| mean(&times[case]) / mean(&times[0]);
        let what =
            |how: &str| format!("time of TE over that of E-ECMP, {failed} uplinks failed, {how}");
        // Variant `all`: TE also places the demands for which no path has room.
        let placed = what("demands without room placed too");
        match failed {
            0 => findings.expect(placed, Unit::Ratio, of_hashed(3), Expected::AtMost(1.0)),
            _ if failed == most => {
                findings.expect(placed, Unit::Ratio, of_hashed(3), Expected::AtLeast(1.0));
            }
            _ => findings.note(placed, Unit::Ratio, of_hashed(3)),
        }
        findings.note(what("demands without room sent by ECMP"), Unit::Ratio, of_hashed(1));
        findings.note(what("demands without room sent by E-ECMP"), Unit::Ratio, of_hashed(2));
        for (line, times) in lines.iter_mut().zip(&times) {
            line.push((f64::from(failed), mean(times)));
        }
        lines[4].push((f64::from(failed), te.placed().share()));
    }
    let axes = ("uplinks of a rack that have failed", "time / roofline");
    let title = "Completion time as uplinks fail";
    let figure = Figure::lines("f6-failed", title, axes, (false, false));
    let [hashed, placed, backed, crowded, share] = lines;
    let figure = figure.with("E-ECMP", hashed).with("TE places all", crowded);
    let figure = figure.with("TE, rest by ECMP", placed).with("TE, rest by E-ECMP", backed);
    findings.figures.push(figure.with("part of demand placed by TE", share));
    findings.say(
        "TE places all traffic from one NIC to another on one path (its rules do not distinguish \
         queue pairs, §5.4.2). Where more is demanded than the uplinks carry, two NICs share an \
         uplink, while E-ECMP spreads all queue pairs over all uplinks: TE is overtaken if it also \
         places demands for which no path has room, or sends them by a hash of addresses and \
         ports (ECMP). TE is not overtaken if E-ECMP carries these demands, as in the paper's \
         final deployment (§5.5.3). The paper does not say which variant it simulated.",
    );
    Ok(findings)
}
