//! F15: a library tuned for a different network.

use ccl_core::admission;
use ccl_plot::Figure;

use super::{Parameter, Scenario, Setting, TRIALS, queued, rack_to_rack};
use crate::SimError;
use crate::measure::mean;
use crate::presets::Zone;
use crate::queues::{Buffer, RunParams, Transport};
use crate::report::{Expected, Findings, Unit};
use crate::routing::Scheme;
use crate::streams::roofline_s;

pub(super) const SCENARIO: Scenario = Scenario {
    name: "f15",
    title: "defaults that assume short round trips and adaptive routing, on a network with neither",
    source: "NCCL's defaults assumed round trips below 10 µs and adaptive routing; tuning library \
             and network together gave more than twice the performance (§7.1, Figure 15)",
    parameters: &[
        Parameter { name: "assumed", value: 10.0, what: "round trip the defaults assume, in µs" },
        Parameter { name: "round_trip", value: 22.0, what: "actual round trip, in µs" },
        Parameter { name: "uplinks", value: 32.0, what: "uplinks of each rack of 16 NICs" },
        Parameter { name: "pairs", value: 16.0, what: "queue pairs of the tuned cases" },
        Parameter { name: "trials", value: 5.0, what: TRIALS },
    ],
    run,
};

const STEP_S: f64 = 0.5e-6;
const SLOT_BYTES: usize = 32 << 10;

/// Returns the cases: name, routing, queue pairs, and slots of a link.
fn cases(setting: &Setting, zone: &Zone) -> [(&'static str, Scheme, u32, u32); 5] {
    // Number of slots that are filled during one round trip.
    let slots = |round_trip_us: f64| {
        (zone.nic_bytes_per_s * round_trip_us * 1e-6 / SLOT_BYTES as f64).ceil() as u32
    };
    let few = slots(setting.number("assumed"));
    let more = slots(2.0 * setting.number("round_trip"));
    let pairs = setting.count("pairs");
    [
        ("defaults", Scheme::HashedPairs, 1, few),
        ("more slots", Scheme::HashedPairs, 1, more),
        ("more queue pairs", Scheme::HashedPairs, pairs, few),
        ("both", Scheme::HashedPairs, pairs, more),
        ("defaults, assumed network", Scheme::Adaptive, 1, few),
    ]
}

fn run(setting: &Setting) -> Result<Findings, SimError> {
    let zone = Zone { uplinks: setting.count("uplinks"), ..Zone::default() };
    let network = setting.network(&zone)?;
    let streams = rack_to_rack(&zone, 0, 1, 16e6);
    let roofline_s = roofline_s(&network, &streams);
    let cases = cases(setting, &zone);
    let mut findings = Findings::default();
    let mut times = Vec::new();
    // A link's rate is at most its window (the bytes of all its slots) divided by its round trip.
    // Without collisions, only this limit makes the transfer slower.
    let window_bytes = f64::from(cases[0].3) * SLOT_BYTES as f64;
    let filled_s = window_bytes / zone.nic_bytes_per_s;
    let late = (setting.number("round_trip") * 1e-6 / filled_s).max(1.0);
    for (name, scheme, pairs, slots) in cases {
        let hops_s = 4.0 * STEP_S;
        let round_trip_s = match scheme {
            // The round trip that the defaults are tuned for.
            Scheme::Adaptive => setting.number("assumed") * 1e-6,
            _ => setting.number("round_trip") * 1e-6,
        };
        let mut own = Vec::new();
        for seed in setting.trials() {
            let flows = queued(&network, scheme, &streams, pairs, seed)?;
            let slots = admission::Config {
                channels: 1,
                slots,
                // The window of a link is divided among its queue pairs.
                slot_bytes: (SLOT_BYTES / pairs as usize).max(1),
                slots_min: 1,
                budget_bytes: 1 << 30,
                zero_copy_bytes_min: usize::MAX,
                registered_bytes_max: 0,
            };
            let credit_s = (round_trip_s - hops_s).max(STEP_S);
            let params = RunParams {
                step_s: STEP_S,
                buffers: vec![Buffer::of(1e6), Buffer::of(20e6)],
                transport: Transport::Admission { slots, credit_s },
                limit_s: 100.0 * roofline_s,
                seed,
                watched: Vec::new(),
            };
            own.push(crate::queues::run(&network, &flows, &params)?.time_s / roofline_s);
        }
        let what = format!("{name}: time over roofline");
        match name {
            "more queue pairs" => {
                findings.expect(what, Unit::Ratio, mean(&own), Expected::About(late));
            }
            _ => findings.note(what, Unit::Ratio, mean(&own)),
        }
        times.push(mean(&own));
    }
    let gain = times[0] / times[3];
    let what = "speed with both changes over that with the defaults";
    findings.expect(what, Unit::Ratio, gain, Expected::AtLeast(2.0));
    let groups = cases.map(|(name, ..)| name);
    let figure = Figure::bars("f15-tuned", "Bandwidth", "part of the roofline", &groups);
    let parts: Vec<f64> = times.iter().map(|time| 1.0 / time).collect();
    findings.figures.push(figure.with_bars("rack to rack", &parts));
    Ok(findings)
}
