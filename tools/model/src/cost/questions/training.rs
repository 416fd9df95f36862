//! Questions about training.

use super::*;
use crate::cost::training as t;

pub(super) const QUESTIONS: &[Question] = &[
    Question {
        name: "data_parallel",
        asks: "How many tokens must each accelerator have for data parallelism (or FSDP) to be \
               bound by computing?",
        formula: "C / W, among X groups C / W (X - 1) / X; times E / k if each token takes k of \
                  E experts; times N for all accelerators together",
        source: SCALING,
        inputs: &[
            FLOPS,
            RATE,
            else_takes(counts("experts", "E"), 1.0),
            else_takes(TOP_K, 1.0),
            else_takes(ACCELERATORS, 1.0),
            else_takes(counts("groups", "X"), f64::INFINITY),
        ],
        answer: data_parallel,
    },
    Question {
        name: "tensor_parallel",
        asks: "Among how many accelerators can a layer be divided before communication bounds it?",
        formula: "at most F W / C; over nodes at most D_n + F W / C",
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
        formula: "F > D_n C / W_node; T = 4 B D (Z - D_n) / (W_node Z) min(D_n k / Z, 1)",
        source: SCALING,
        inputs: &[
            FLOPS,
            NODE_RATE,
            NODE_RANKS,
            else_takes(TOKENS, 0.0),
            else_takes(WIDTH, 0.0),
            else_takes(no_fewer_than("node-ranks", counts("accelerators", "Z")), f64::INFINITY),
            else_takes(TOP_K, 1.0),
        ],
        answer: expert_parallel,
    },
    Question {
        name: "pipeline",
        asks: "How long do the hops between the stages of a pipeline take?",
        formula: "one hop 2 B D / (W n); all hops (n + stages - 2) times as long",
        source: SCALING,
        inputs: &[TOKENS, WIDTH, RATE, counts("microbatches", "n"), counts("stages", "stages")],
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
        formula: "operations 6 P B; time 6 P B / (N C u); accelerators P * bytes / memory",
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
        asks: "How many tokens of a batch does each accelerator get?",
        formula: "B / N",
        source: SCALING,
        inputs: &[TOKENS, ACCELERATORS],
        answer: |x| vec![out("tokens for each", Unit::Count, x[0] / x[1])],
    },
    Question {
        name: "step",
        asks: "How many operations does a step take on each accelerator, and how much time?",
        formula: "2 * passes * P s b / N, where passes is 4 if activations are computed again, \
                  else 3",
        source: ENGINEERING,
        inputs: &[
            PARAMETERS,
            counts("sequence", "s"),
            counts("batch", "b"),
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
        asks: "How long does a transfer take over a link that reaches a given share (the \
               efficiency) of its bandwidth?",
        formula: "B / (W efficiency)",
        source: ENGINEERING,
        inputs: &[BYTES, RATE, else_takes(needs("efficiency", "efficiency", Unit::Count), 1.0)],
        answer: |x| vec![out("time", Unit::Seconds, t::transfer_s(x[0], x[1] * x[2]))],
    },
];

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

fn expert_parallel(x: &[f64]) -> Vec<Output> {
    let width = t::expert_parallel_width_min(x[0], x[1], x[2]);
    let mut outputs = vec![out("width", Unit::Count, width)];
    // The least width assumes many nodes. The time of the exchanges depends on the number of
    // accelerators, and is left out if that number is not given.
    if x[5].is_finite() {
        let seconds = t::expert_parallel_s(x[3], x[4], x[5], x[6], x[1], x[2]);
        outputs.push(out("exchanges", Unit::Seconds, seconds));
    }
    outputs
}
