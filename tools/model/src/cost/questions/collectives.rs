//! Questions about collectives within one level.

use super::*;
use crate::cost::collectives as c;

pub(super) const QUESTIONS: &[Question] = &[
    Question {
        name: "all_gather",
        asks: "How long does an all_gather or a reduce_scatter take among ranks that all reach \
               each other alike?",
        formula: "T = B (N - 1) / (N W), for many ranks B / W",
        source: SCALING,
        inputs: &[BYTES, RANKS, RATE],
        answer: |x| {
            vec![
                out("time", Unit::Seconds, c::all_gather_s(x[0], x[1], x[2])),
                out("for many ranks", Unit::Seconds, c::all_gather_approximate_s(x[0], x[2])),
            ]
        },
    },
    Question {
        name: "all_reduce",
        asks: "How long does an all_reduce take if the ranks reduce, and how long if switches \
               reduce?",
        formula: "T = 2 B (N - 1) / (N W); by switches (SHARP, NVLS) B / W",
        source: SCALING,
        inputs: &[BYTES, RANKS, RATE],
        answer: |x| {
            vec![
                out("time", Unit::Seconds, c::all_reduce_s(x[0], x[1], x[2])),
                out("by switches", Unit::Seconds, c::all_reduce_in_network_s(x[0], x[2])),
                out("gain at best", Unit::Count, c::in_network_gain(x[1])),
            ]
        },
    },
    Question {
        name: "all_to_all",
        asks: "How long does an all_to_all take if all ranks together have B bytes?",
        formula: "T = B (N - 1) / (W N^2), for many ranks B / (W N)",
        source: SCALING,
        inputs: &[BYTES, RANKS, RATE],
        answer: |x| {
            let many = c::all_to_all_approximate_s(x[0], x[1], x[2]);
            vec![
                out("time", Unit::Seconds, c::all_to_all_s(x[0], x[1], x[2])),
                out("for many ranks", Unit::Seconds, many),
            ]
        },
    },
    Question {
        name: "ragged_all_to_all",
        asks: "How long does an all_to_all take if each token goes to k of the ranks?",
        formula: "T = min(k / N, 1) B / (W N); share of a dense one (1 - ((N - 1) / N)^k) (N - \
                  1) / N, about min(k / N, 1) (N - 1) / N",
        source: SCALING,
        inputs: &[BYTES, RANKS, RATE, TOP_K],
        answer: |x| {
            let approximate = c::ragged_share_approximate(x[1], x[3]);
            vec![
                out("time", Unit::Seconds, c::ragged_all_to_all_s(x[0], x[1], x[2], x[3])),
                out("share of a dense one", Unit::Count, c::ragged_share(x[1], x[3])),
                out("that share, about", Unit::Count, approximate),
            ]
        },
    },
    Question {
        name: "wire_rate",
        asks: "An all_reduce reaches this busbw: how fast do the links send if switches reduce, \
               and how fast if ranks first reduce within each host?",
        formula: "by switches b (N + 1) / (2 (N - 1)); hierarchical b (M - 1) / (N - 1)",
        source: ENGINEERING,
        inputs: &[BUSBW, RANKS, else_takes(NODES, 1.0)],
        answer: |x| {
            vec![
                out("by switches", Unit::BytesPerSecond, c::in_network_wire_rate(x[0], x[1])),
                out(
                    "hierarchical",
                    Unit::BytesPerSecond,
                    c::hierarchical_wire_rate(x[0], x[2], x[1]),
                ),
            ]
        },
    },
];
