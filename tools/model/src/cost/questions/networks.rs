//! Questions about the levels of a network.

use super::*;
use crate::cost::fabric::{self as f, Level, ShardedLevel};

pub(super) const QUESTIONS: &[Question] = &[
    Question {
        name: "cross_node_all_to_all",
        asks: "How long does an all_to_all over nodes take if all ranks together have B bytes?",
        formula: "T = B (M - 1) / (M^2 W_node), about B / (M W_node)",
        source: SCALING,
        inputs: &[BYTES, NODES, NODE_RATE],
        answer: |x| {
            let about = f::cross_node_all_to_all_approximate_s(x[0], x[1], x[2]);
            vec![
                out("time", Unit::Seconds, f::cross_node_all_to_all_s(x[0], x[1], x[2])),
                out("about", Unit::Seconds, about),
            ]
        },
    },
    Question {
        name: "pod_all_gather",
        asks: "How fast is an all_gather over nodes, units of nodes and the spine?",
        formula: "W = min_i D_i W_i / (D_i - 1), T = B / W",
        source: SCALING,
        inputs: &[
            BYTES,
            else_takes(counts("node-ranks", "D_1"), 8.0),
            else_takes(needs("bandwidth", "W_1", Unit::BytesPerSecond), 450e9),
            else_takes(counts("unit-nodes", "D_2"), 32.0),
            else_takes(needs("node-bandwidth", "W_2", Unit::BytesPerSecond), 400e9),
            else_takes(counts("units", "D_3"), 4.0),
            else_takes(needs("unit-bandwidth", "W_3", Unit::BytesPerSecond), 12.8e12),
        ],
        answer: pod_all_gather,
    },
    Question {
        name: "sharded_all_gather",
        asks: "An array is also sharded over an inner axis: how long does its all_gather over the \
               nodes of a unit take?",
        formula: "T = B (M - 1) / (M max(Y, D_n) w), about B / (Y w) if Y > D_n; w is a \
                  rank's share of its node's network",
        source: SCALING,
        inputs: &[
            BYTES,
            INNER,
            else_takes(NODES, 32.0),
            NODE_RANKS,
            else_takes(needs("rank-bandwidth", "w", Unit::BytesPerSecond), 50e9),
        ],
        answer: |x| {
            let level = ShardedLevel { children: x[2], ranks_below: x[3], rank_bytes_per_s: x[4] };
            let inner = x[1].max(x[3]);
            let about = f::sharded_gather_approximate_s(x[0], inner, x[4]);
            vec![
                out("time", Unit::Seconds, f::sharded_gather_s(x[0], x[1], &[level])),
                out("about", Unit::Seconds, about),
            ]
        },
    },
    Question {
        name: "sharded_all_reduce",
        asks: "How long does an all_reduce take if its array is also sharded over an inner axis?",
        formula: "T = max(B / W / min(Y, D_n), B / W_node * D_n / max(D_n, Y))",
        source: SCALING,
        inputs: &[BYTES, INNER, NODE_RANKS, RATE, NODE_RATE],
        answer: |x| {
            let (within, between) = f::sharded_all_reduce_s(x[0], x[1], x[2], x[3], x[4]);
            vec![
                out("time", Unit::Seconds, within.max(between)),
                out("within nodes", Unit::Seconds, within),
                out("between nodes", Unit::Seconds, between),
            ]
        },
    },
    Question {
        name: "switch_bytes",
        asks: "How many bytes cross the switches in an all_gather over M nodes of N ranks, and in \
               a reduction by one node's switches?",
        formula: "node: in B, out B N; above: in B, out B (M - 1); reducing: in and out B N",
        source: SCALING,
        inputs: &[BYTES, RANKS, NODES],
        answer: |x| {
            let (node, spine) =
                (f::gather_through_node(x[0], x[1]), f::gather_through_spine(x[0], x[2]));
            let reducing = f::in_network_through(x[0], x[1]);
            vec![
                out("into a node switch", Unit::Bytes, node.in_bytes),
                out("out of a node switch", Unit::Bytes, node.out_bytes),
                out("into the spine", Unit::Bytes, spine.in_bytes),
                out("out of the spine", Unit::Bytes, spine.out_bytes),
                out("reducing, either way", Unit::Bytes, reducing.in_bytes),
            ]
        },
    },
    Question {
        name: "node_bandwidth",
        asks: "How fast can all ranks of a node send to each other, in total and across the \
               node's bisection?",
        formula: "min(switches ports p, N W); across the bisection, both ways, N W",
        source: SCALING,
        inputs: &[
            RANKS,
            RATE,
            counts("switches", "switches"),
            counts("ports", "ports"),
            needs("port-bandwidth", "p", Unit::BytesPerSecond),
        ],
        answer: |x| {
            let all = f::node_bytes_per_s(x[2], x[3], x[4], x[0], x[1]);
            let middle = f::bisection_bytes_per_s(x[0], x[1]);
            vec![
                out("at once", Unit::BytesPerSecond, all),
                out("across the bisection", Unit::BytesPerSecond, middle),
            ]
        },
    },
    Question {
        name: "links",
        asks: "What do n links carry together, and what share does each child below get?",
        formula: "n W; n W / below",
        source: SCALING,
        inputs: &[counts("links", "n"), RATE, else_takes(counts("below", "below"), 1.0)],
        answer: |x| {
            let all = x[0] * x[1];
            let each = f::share_bytes_per_s(all, x[2]);
            vec![
                out("together", Unit::BytesPerSecond, all),
                out("each below", Unit::BytesPerSecond, each),
            ]
        },
    },
];

fn pod_all_gather(x: &[f64]) -> Vec<Output> {
    const NAMES: [&str; 3] = ["within nodes", "between nodes", "between units"];
    let level = |at: usize| Level { children: x[at], child_bytes_per_s: x[at + 1] };
    let levels = [level(1), level(3), level(5)];
    let rates = levels.iter().zip(NAMES);
    let mut outputs: Vec<Output> = rates
        .map(|(level, name)| out(name, Unit::BytesPerSecond, level.gather_bytes_per_s()))
        .collect();
    if let Some((_, rate)) = f::tree_gather_bytes_per_s(&levels) {
        outputs.push(out("of all", Unit::BytesPerSecond, rate));
        outputs.push(out("time", Unit::Seconds, x[0] / rate));
    }
    outputs
}
