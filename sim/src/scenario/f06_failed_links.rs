//! F6: where links have failed and not everything fits, hashing overtakes traffic engineering.

use super::{Parameter, Scenario, Setting, TRIALS, demands, rack_to_rack};
use crate::SimError;
use crate::measure::mean;
use crate::plot::Figure;
use crate::presets::Zone;
use crate::report::{Expected, Findings, Unit};
use crate::routing::{Router, Scheme, Te};
use crate::streams::{self, Manner, roofline_s};

pub(super) const SCENARIO: Scenario = Scenario {
    name: "f6",
    title: "TE and E-ECMP as uplinks fail",
    source: "with failed links, at less than 1:1, TE may be overtaken by E-ECMP (§5.5.1)",
    parameters: &[
        Parameter { name: "uplinks", value: 16.0, what: "uplinks of each rack of 16 NICs" },
        Parameter { name: "failed", value: 4.0, what: "the most uplinks of a rack that fail" },
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
    let mut lines = [Vec::new(), Vec::new(), Vec::new(), Vec::new()];
    for failed in 0..=most {
        let mut network = setting.network(&zone)?;
        let cut: Vec<u32> = network.uplinks(1, 0, 0).take(failed as usize).collect();
        cut.into_iter().for_each(|link| network.fail(link));
        let roofline_s = roofline_s(&network, &streams);
        let mut times = [Vec::new(), Vec::new(), Vec::new()];
        let te = Te::place(&network, &demands(&network, &streams))?;
        let plain = te.clone().over_plain_ecmp();
        for seed in setting.trials() {
            let hashed = Router::new(Scheme::HashedPairs, seed);
            let placed = Router::with_te(seed, plain.clone());
            let backed = Router::with_te(seed, te.clone());
            for (mut router, times) in [hashed, placed, backed].into_iter().zip(&mut times) {
                let manner = Manner::at_once(pairs);
                let outcome = streams::run(&network, &mut router, &streams, manner)?;
                times.push(outcome.time_s / roofline_s);
            }
        }
        let ratio = mean(&times[1]) / mean(&times[0]);
        let what = format!("time of TE over that of E-ECMP with {failed} uplinks failed");
        match failed {
            0 => findings.expect(what, Unit::Ratio, ratio, Expected::AtMost(1.0)),
            _ if failed == most => {
                findings.expect(what, Unit::Ratio, ratio, Expected::AtLeast(1.0));
            }
            _ => findings.note(what, Unit::Ratio, ratio),
        }
        let backed = mean(&times[2]) / mean(&times[0]);
        let what = format!("the same, over E-ECMP, with {failed} uplinks failed");
        findings.note(what, Unit::Ratio, backed);
        for (line, times) in lines.iter_mut().zip(&times) {
            line.push((f64::from(failed), mean(times)));
        }
        lines[3].push((f64::from(failed), te.placed().share()));
    }
    let axes = ("uplinks of a rack that have failed", "time / roofline");
    let title = "Completion as uplinks fail";
    let figure = Figure::lines("f6-failed", title, axes, (false, false));
    let [hashed, placed, backed, share] = lines;
    let figure = figure.with("E-ECMP", hashed).with("TE over ECMP", placed);
    let figure = figure.with("TE over E-ECMP", backed).with("part placed by TE", share);
    findings.figures.push(figure);
    findings.say(
        "What TE cannot place whole goes by what is beneath it, and then shares a link with what \
         was placed there. Beneath it is a hash of addresses and ports (ECMP), as where a BGP \
         fabric does by default; so TE is overtaken. With E-ECMP beneath it, which the paper \
         deployed in the end (§5.5.3), it is not: the claim depends on that.",
    );
    Ok(findings)
}
