//! F1: evenness of a hash over many equal flows.

use ccl_plot::Figure;

use super::{Parameter, Scenario, Setting, TRIALS};
use crate::SimError;
use crate::flows::Flows;
use crate::measure::{mean, spread};
use crate::network::{Path, Port};
use crate::presets::Zone;
use crate::report::{Expected, Findings, Unit};
use crate::routing::{Key, Moment, Router, Scheme};

pub(super) const SCENARIO: Scenario = Scenario {
    name: "f1",
    title: "max-to-mean ratio (MMR) of the flows per uplink, if many flows are hashed",
    source: "in a simulation of 1,000 flows on 16 links the mean MMR is above 1.2 (§5.2.1; \
             recomputed as balls in bins: 1.229)",
    parameters: &[
        Parameter { name: "flows", value: 1000.0, what: "flows between different NICs" },
        Parameter { name: "links", value: 16.0, what: "uplinks of the rack" },
        Parameter { name: "trials", value: 200.0, what: TRIALS },
    ],
    run,
};

fn run(setting: &Setting) -> Result<Findings, SimError> {
    let (flows, links) = (setting.count("flows"), setting.count("links"));
    let nics = Zone::default().rack_nics();
    let racks = 1 + flows.div_ceil(nics * nics);
    let zone = Zone { racks, uplinks: links, ..Zone::default() };
    let network = setting.network(&zone)?;
    let load = Flows::new(&network, 0.0);
    let port = |at: u32| Port { host: at / zone.nics, nic: at % zone.nics };
    let mut ratios = Vec::new();
    for seed in setting.trials() {
        let mut router = Router::new(Scheme::Ecmp, seed);
        let (mut path, mut taken) = (Path::default(), vec![0.0; network.links() as usize]);
        for flow in 0..flows {
            let (from, to) = (port(flow % nics), port(nics + flow / nics));
            let key = Key { from, to, channel: 0, pair: 0 };
            router.route(&network, &key, Moment::default(), &load.load(), &mut path)?;
            path.links.iter().for_each(|(link, weight)| taken[*link as usize] += weight);
        }
        ratios.push(spread(&network, 1, &taken).max_to_mean);
    }
    let mut findings = Findings::default();
    let what = format!("mean MMR of {flows} flows on {links} links");
    let expected = (flows, links) == (1000, 16);
    match expected {
        true => findings.expect(what, Unit::Ratio, mean(&ratios), Expected::About(1.229)),
        false => findings.note(what, Unit::Ratio, mean(&ratios)),
    }
    ratios.sort_by(f64::total_cmp);
    let rank = |(at, ratio): (usize, &f64)| ((at as f64 + 0.5) / ratios.len() as f64, *ratio);
    let points = ratios.iter().enumerate().map(rank).collect();
    let axes = ("part of trials", "MMR at most");
    let figure = Figure::lines("f1-mmr", "Max-to-mean ratio, trial by trial", axes, (false, false));
    findings.figures.push(figure.with(format!("{flows} flows on {links} links"), points));
    Ok(findings)
}
