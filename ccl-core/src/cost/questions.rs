//! Questions about cost that have a name: what each asks, its formula and where that comes from,
//! what must be known, and the answer. For whoever asks by text.

use super::collectives as c;
use super::fabric::{self as f, Level, ShardedLevel};
use super::training as t;

/// What a number is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A number of things, or a ratio.
    Count,
    /// Bytes.
    Bytes,
    /// Bytes per second, in one direction.
    BytesPerSecond,
    /// Seconds.
    Seconds,
    /// Operations.
    Operations,
    /// Operations per second.
    OperationsPerSecond,
}

/// What must be known.
#[derive(Clone, Copy, Debug)]
pub struct Input {
    /// By which it is given.
    pub name: &'static str,
    /// In the formula.
    pub symbol: &'static str,
    /// Of what it is.
    pub unit: Unit,
    /// Unless it is given.
    pub default: Option<f64>,
}

/// One number of an answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Output {
    /// What it is.
    pub name: &'static str,
    /// Of what it is.
    pub unit: Unit,
    /// How much.
    pub value: f64,
}

/// A question.
#[derive(Clone, Copy, Debug)]
pub struct Question {
    /// By which it is asked.
    pub name: &'static str,
    /// What it asks.
    pub asks: &'static str,
    /// The formula, in the symbols of the inputs.
    pub formula: &'static str,
    /// Where the formula is from.
    pub source: &'static str,
    /// What must be known, in the order in which [`Question::answer`] takes it.
    pub inputs: &'static [Input],
    /// The answer, for as many numbers as there are inputs.
    pub answer: fn(&[f64]) -> Vec<Output>,
}

const fn needs(name: &'static str, symbol: &'static str, unit: Unit) -> Input {
    Input { name, symbol, unit, default: None }
}

const fn else_takes(input: Input, default: f64) -> Input {
    Input { default: Some(default), ..input }
}

const fn out(name: &'static str, unit: Unit, value: f64) -> Output {
    Output { name, unit, value }
}

const BYTES: Input = needs("bytes", "B", Unit::Bytes);
const RANKS: Input = needs("ranks", "N", Unit::Count);
const NODES: Input = needs("nodes", "M", Unit::Count);
const RATE: Input = needs("bandwidth", "W", Unit::BytesPerSecond);
const NODE_RATE: Input = needs("node-bandwidth", "W_node", Unit::BytesPerSecond);
const FLOPS: Input = needs("flops", "C", Unit::OperationsPerSecond);
const TOKENS: Input = needs("tokens", "B", Unit::Count);
const WIDTH: Input = needs("width", "D", Unit::Count);
const NODE_RANKS: Input = else_takes(needs("node-ranks", "D_n", Unit::Count), 8.0);
const INNER: Input = needs("inner", "Y", Unit::Count);
const TOP_K: Input = needs("k", "k", Unit::Count);
const BUSBW: Input = needs("busbw", "b", Unit::BytesPerSecond);
const ACCELERATORS: Input = needs("accelerators", "N", Unit::Count);
const PARAMETERS: Input = needs("parameters", "P", Unit::Count);

const SCALING: &str = "How to Scale Your Model, GPUs";
const ENGINEERING: &str = "Machine Learning Engineering, network";

/// All of them.
pub const ALL: &[Question] = &[
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
        asks: "How long does an all_reduce take, by the ranks, and by switches that reduce?",
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
        asks: "How long does an all_to_all of so many bytes (of all ranks together) take?",
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
        asks: "How long does an all_to_all take in which each token goes to k of the ranks?",
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
        name: "cross_node_all_to_all",
        asks: "How long does an all_to_all over nodes take, of so many bytes of all ranks \
               together?",
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
        asks: "How fast is an all_gather over nodes, units of nodes, and what joins units?",
        formula: "W = min_i D_i W_i / (D_i - 1), T = B / W",
        source: SCALING,
        inputs: &[
            BYTES,
            else_takes(needs("node-ranks", "D_1", Unit::Count), 8.0),
            else_takes(needs("bandwidth", "W_1", Unit::BytesPerSecond), 450e9),
            else_takes(needs("unit-nodes", "D_2", Unit::Count), 32.0),
            else_takes(needs("node-bandwidth", "W_2", Unit::BytesPerSecond), 400e9),
            else_takes(needs("units", "D_3", Unit::Count), 4.0),
            else_takes(needs("unit-bandwidth", "W_3", Unit::BytesPerSecond), 12.8e12),
        ],
        answer: pod_all_gather,
    },
    Question {
        name: "sharded_all_gather",
        asks: "How long does an all_gather over the nodes of a unit take of an array that is also \
               sharded over an inner axis?",
        formula: "T = B (M - 1) / (M max(Y, D_n) w), where Y > D_n about B / (Y w); w is a \
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
        asks: "How long does a reduction take of an array that is also sharded over an inner axis?",
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
        asks: "What passes the switches while M nodes of N ranks gather, and while one node's \
               switches reduce?",
        formula: "node: in B, out B N; above: in B, out B (M - 1); reducing: in and out B N",
        source: SCALING,
        inputs: &[BYTES, RANKS, NODES],
        answer: |x| {
            let (node, spine) =
                (f::gather_through_node(x[0], x[1]), f::gather_through_spine(x[0], x[2]));
            let reducing = f::in_network_through(x[0], x[1]);
            vec![
                out("into a node's", Unit::Bytes, node.in_bytes),
                out("out of a node's", Unit::Bytes, node.out_bytes),
                out("into those above", Unit::Bytes, spine.in_bytes),
                out("out of those above", Unit::Bytes, spine.out_bytes),
                out("reducing, either way", Unit::Bytes, reducing.in_bytes),
            ]
        },
    },
    Question {
        name: "node_bandwidth",
        asks: "What can the ranks of a node send each other at once, and across its middle?",
        formula: "min(switches ports p, N W); across the middle, both ways, N W",
        source: SCALING,
        inputs: &[
            RANKS,
            RATE,
            needs("switches", "switches", Unit::Count),
            needs("ports", "ports", Unit::Count),
            needs("port-bandwidth", "p", Unit::BytesPerSecond),
        ],
        answer: |x| {
            let all = f::node_bytes_per_s(x[2], x[3], x[4], x[0], x[1]);
            let middle = f::bisection_bytes_per_s(x[0], x[1]);
            vec![
                out("at once", Unit::BytesPerSecond, all),
                out("across the middle", Unit::BytesPerSecond, middle),
            ]
        },
    },
    Question {
        name: "links",
        asks: "What do so many links carry, and how much of it is each one's of those below?",
        formula: "n W; n W / below",
        source: SCALING,
        inputs: &[
            needs("links", "n", Unit::Count),
            RATE,
            else_takes(needs("below", "below", Unit::Count), 1.0),
        ],
        answer: |x| {
            let all = x[0] * x[1];
            let each = f::share_bytes_per_s(all, x[2]);
            vec![
                out("together", Unit::BytesPerSecond, all),
                out("each below", Unit::BytesPerSecond, each),
            ]
        },
    },
    Question {
        name: "wire_rate",
        asks: "What passes the wires at this busbw: if switches reduce, or if hosts reduce first?",
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
    Question {
        name: "data_parallel",
        asks: "How many tokens must each accelerator have for data parallelism (or FSDP) to be \
               bound by computing?",
        formula: "C / W, among X groups C / W (X - 1) / X; with E experts of which k are taken, \
                  times E / k; of all accelerators times N",
        source: SCALING,
        inputs: &[
            FLOPS,
            RATE,
            else_takes(needs("experts", "E", Unit::Count), 1.0),
            else_takes(TOP_K, 1.0),
            else_takes(ACCELERATORS, 1.0),
            else_takes(needs("groups", "X", Unit::Count), f64::INFINITY),
        ],
        answer: data_parallel,
    },
    Question {
        name: "tensor_parallel",
        asks: "Among how many accelerators can a layer be divided before communication bounds it?",
        formula: "within one bandwidth F W / C; over nodes D_n + F W / C",
        source: SCALING,
        inputs: &[needs("width", "F", Unit::Count), FLOPS, RATE, NODE_RANKS],
        answer: |x| {
            let over = t::tensor_parallel_over_nodes_max(x[0], x[1], x[2], x[3]);
            vec![
                out("at most", Unit::Count, t::tensor_parallel_max(x[0], x[1], x[2])),
                out("over nodes at most", Unit::Count, over),
            ]
        },
    },
    Question {
        name: "expert_parallel",
        asks: "How wide must experts be for expert parallelism over nodes to be bound by \
               computing, and how long do its exchanges take?",
        formula: "F > D_n C / W_node; T = 4 B D (Z - 8) / (W_node Z) min(8 k / Z, 1)",
        source: SCALING,
        inputs: &[
            FLOPS,
            NODE_RATE,
            NODE_RANKS,
            else_takes(TOKENS, 0.0),
            else_takes(WIDTH, 0.0),
            else_takes(needs("accelerators", "Z", Unit::Count), 8.0),
            else_takes(TOP_K, 1.0),
        ],
        answer: |x| {
            let width = t::expert_parallel_width_min(x[0], x[1], x[2]);
            let seconds = t::expert_parallel_s(x[3], x[4], x[5], x[6], x[1]);
            vec![out("width", Unit::Count, width), out("exchanges", Unit::Seconds, seconds)]
        },
    },
    Question {
        name: "pipeline",
        asks: "How long do the hops between the stages of a pipeline take?",
        formula: "hop 2 B D / (W n), all (n + stages - 2) of them",
        source: SCALING,
        inputs: &[
            TOKENS,
            WIDTH,
            RATE,
            needs("microbatches", "n", Unit::Count),
            needs("stages", "stages", Unit::Count),
        ],
        answer: |x| {
            let hop = t::pipeline_hop_s(x[0], x[1], x[2], x[3]);
            vec![
                out("hop", Unit::Seconds, hop),
                out("all", Unit::Seconds, t::pipeline_s(hop, x[3], x[4])),
            ]
        },
    },
    Question {
        name: "training",
        asks: "How long does training take, and how many accelerators hold the model?",
        formula: "6 P B operations; 6 P B / (N C u); P bytes-each / memory",
        source: SCALING,
        inputs: &[
            PARAMETERS,
            TOKENS,
            ACCELERATORS,
            FLOPS,
            else_takes(needs("utilization", "u", Unit::Count), 0.45),
            else_takes(needs("bytes-each", "bytes", Unit::Bytes), 10.0),
            else_takes(needs("memory", "memory", Unit::Bytes), 80e9),
        ],
        answer: |x| {
            let flops = t::training_flops(x[0], x[1]);
            vec![
                out("operations", Unit::Operations, flops),
                out("time", Unit::Seconds, t::computing_s(flops, x[2], x[3], x[4])),
                out("state", Unit::Bytes, x[0] * x[5]),
                out("accelerators for it", Unit::Count, t::accelerators_for(x[0] * x[5], x[6])),
            ]
        },
    },
    Question {
        name: "batch",
        asks: "How many tokens of a batch has each accelerator?",
        formula: "B / N",
        source: SCALING,
        inputs: &[TOKENS, ACCELERATORS],
        answer: |x| vec![out("tokens for each", Unit::Count, x[0] / x[1])],
    },
    Question {
        name: "step",
        asks: "What does each accelerator compute in a step, and how long does that take?",
        formula: "2 passes P s b / N; 4 passes if activations are computed again, else 3",
        source: ENGINEERING,
        inputs: &[
            PARAMETERS,
            needs("sequence", "s", Unit::Count),
            needs("batch", "b", Unit::Count),
            ACCELERATORS,
            FLOPS,
            else_takes(needs("passes", "passes", Unit::Count), 4.0),
        ],
        answer: |x| {
            let flops = t::step_flops(x[5], x[0], x[1], x[2], x[3]);
            vec![
                out("operations", Unit::Operations, flops),
                out("time", Unit::Seconds, t::transfer_s(flops, x[4])),
            ]
        },
    },
    Question {
        name: "transfer",
        asks: "How long do so many bytes take, of which a link really carries so much?",
        formula: "B / (W efficiency)",
        source: ENGINEERING,
        inputs: &[BYTES, RATE, else_takes(needs("efficiency", "efficiency", Unit::Count), 1.0)],
        answer: |x| vec![out("time", Unit::Seconds, t::transfer_s(x[0], x[1] * x[2]))],
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

fn data_parallel(x: &[f64]) -> Vec<Output> {
    let dense = t::data_parallel_tokens(x[0], x[1]);
    let few = match x[5].is_finite() {
        true => t::data_parallel_tokens_of_few(dense, x[5]),
        false => dense,
    };
    let each = t::expert_data_parallel_tokens(few, x[2], x[3]);
    vec![
        out("tokens for each", Unit::Count, each),
        out("tokens for all", Unit::Count, t::batch_tokens(each, x[4])),
    ]
}

/// The question of that name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Question> {
    ALL.iter().find(|question| question.name == name)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unique_and_every_question_has_an_answer() {
        let names: BTreeSet<&str> = ALL.iter().map(|question| question.name).collect();
        assert_eq!(names.len(), ALL.len());
        for question in ALL {
            let inputs: BTreeSet<&str> = question.inputs.iter().map(|input| input.name).collect();
            assert_eq!(inputs.len(), question.inputs.len(), "{}", question.name);
            assert!(question.asks.ends_with('?'), "{}", question.asks);
            let given: Vec<f64> =
                question.inputs.iter().map(|input| input.default.unwrap_or(16.0)).collect();
            let answer = (question.answer)(&given);
            assert!(!answer.is_empty());
            assert!(answer.iter().all(|output| output.value.is_finite()), "{answer:?}");
        }
    }
}
