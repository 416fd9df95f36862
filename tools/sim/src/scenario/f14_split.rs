//! F14: messages split over queue pairs, or sent over them in turn.

use ccl_core::queue_pairs::Order;
use ccl_plot::Figure;

use super::{Parameter, Scenario, Setting, TRIALS, rack_to_rack, run as run_streams};
use crate::SimError;
use crate::measure::mean;
use crate::presets::Zone;
use crate::report::{Expected, Findings, Unit};
use crate::routing::Scheme;
use crate::streams::RunParams;

pub(super) const SCENARIO: Scenario = Scenario {
    name: "f14",
    title: "messages split over queue pairs, or sent over them in turn",
    source: "splitting makes more and smaller messages, and more acknowledgements; with the \
             message sizes of NCCL in production, sending messages in turn did well (§5.3.4)",
    parameters: &[
        Parameter { name: "pairs", value: 16.0, what: "queue pairs" },
        Parameter { name: "uplinks", value: 32.0, what: "uplinks of each rack of 16 NICs" },
        Parameter { name: "in_flight", value: 32.0, what: "messages in flight per NIC" },
        Parameter {
            name: "request",
            value: 200.0,
            what: "bytes on the wire that a request costs: headers and its ACK (assumed)",
        },
        Parameter { name: "trials", value: 5.0, what: TRIALS },
    ],
    run,
};

const MESSAGE_BYTES: [f64; 4] = [128e3, 512e3, 2e6, 8e6];

fn run(setting: &Setting) -> Result<Findings, SimError> {
    let zone = Zone { uplinks: setting.count("uplinks"), ..Zone::default() };
    let network = setting.network(&zone)?;
    let pairs = setting.count("pairs");
    let mut findings = Findings::default();
    let mut lines = [Vec::new(), Vec::new()];
    for message_bytes in MESSAGE_BYTES {
        let streams = rack_to_rack(&zone, 0, 1, message_bytes * 96.0);
        let (mut times, mut requests) = ([Vec::new(), Vec::new()], [0, 0]);
        for seed in setting.trials() {
            for (at, order) in [Order::RoundRobin, Order::Split].into_iter().enumerate() {
                let params = RunParams {
                    pairs,
                    order,
                    message_bytes,
                    in_flight: setting.count("in_flight"),
                    peers: u32::MAX,
                    request_bytes: setting.number("request"),
                    settle_s: message_bytes / zone.nic_bytes_per_s / 10.0,
                };
                let outcome = run_streams(&network, Scheme::HashedPairs, &streams, params, seed)?;
                times[at].push(outcome.time_s);
                requests[at] += outcome.requests;
            }
        }
        let [turn_s, split_s] = times.map(|times| mean(&times));
        let size = Unit::Bytes.text(message_bytes);
        let what = format!("speed of sending in turn / speed of splitting, messages of {size}");
        findings.expect(what, Unit::Ratio, split_s / turn_s, Expected::AtLeast(1.0));
        if message_bytes.to_bits() == MESSAGE_BYTES[0].to_bits() {
            let what = "requests (or acknowledgements) of splitting / those of sending in turn";
            let expected = Expected::About(f64::from(pairs));
            findings.expect(what, Unit::Ratio, requests[1] as f64 / requests[0] as f64, expected);
        }
        let total: f64 = streams.iter().map(|stream| stream.bytes).sum();
        lines[0].push((message_bytes, total / turn_s / 1e9));
        lines[1].push((message_bytes, total / split_s / 1e9));
    }
    let axes = ("bytes of a message", "GB/s of a rack");
    let figure = Figure::lines("f14-spread", "Messages in turn or split", axes, (true, false));
    let [turn, split] = lines;
    findings.figures.push(figure.with("in turn", turn).with("split", split));
    findings.say(
        "The difference in speed comes mostly from the bytes that requests take on the wire; with \
         request=0, a difference of 0.1 % remains. The load that requests put on NICs is not \
         simulated. With few messages under way (in_flight=4), long messages are faster if they \
         are split. The number of requests follows from the definition of splitting.",
    );
    Ok(findings)
}
