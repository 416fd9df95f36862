//! Questions about measurements, and what they imply for other sizes and numbers of nodes.

use super::*;
use crate::cost::cluster::Cluster;
use crate::cost::curve::{
    A100_ALL_REDUCE, B200_ALL_REDUCE, B200_NODES_ALL_REDUCE, H200_ALL_REDUCE, Regime, Sweep,
};
use crate::cost::nccl::{Protocol, Ranks, Within};

const RANK_RATE: Input = else_takes(needs("bandwidth", "W", Unit::BytesPerSecond), 450e9);
const NETWORK: Input = else_takes(needs("node-bandwidth", "W_node", Unit::BytesPerSecond), 400e9);
const WITHIN: Input = else_takes(needs("within", "e", Unit::Count), 370.0 / 450.0);
const BETWEEN: Input = else_takes(needs("between", "e_node", Unit::Count), 43.0 / 50.0);
const IN_NETWORK: Input = else_takes(needs("in-network", "g", Unit::Count), 1.3);

const SWEPT: &str = "T = a + B / W, with values of a and W for each range of sizes; fitted to 6 \
                     of the source's sizes";
const ENGINEERING_ONLINE: &str = "engineering book, online in August 2026";

pub(super) const QUESTIONS: &[Question] = &[
    Question {
        name: "a100_all_reduce",
        asks: "How long does NCCL's all_reduce take on eight A100, with each of its protocols?",
        formula: "T = a + B / W, with values of a and W for each protocol; fitted to 6 of the \
                  source's 20 sizes",
        source: ENGINEERING,
        inputs: &[BYTES],
        answer: |x| swept(&A100_ALL_REDUCE, x[0]),
    },
    Question {
        name: "h200_all_reduce",
        asks: "How long does NCCL's all_reduce take on eight H200, whose switches reduce buffers \
               of 2 MiB and more?",
        formula: SWEPT,
        source: ENGINEERING_ONLINE,
        inputs: &[BYTES],
        answer: |x| swept(&H200_ALL_REDUCE, x[0]),
    },
    Question {
        name: "b200_all_reduce",
        asks: "How long does NCCL's all_reduce take on eight B200?",
        formula: SWEPT,
        source: ENGINEERING_ONLINE,
        inputs: &[BYTES],
        answer: |x| swept(&B200_ALL_REDUCE, x[0]),
    },
    Question {
        name: "b200_nodes_all_reduce",
        asks: "How long does NCCL's all_reduce take on four nodes of eight B200, over EFA?",
        formula: SWEPT,
        source: ENGINEERING_ONLINE,
        inputs: &[BYTES],
        answer: |x| swept(&B200_NODES_ALL_REDUCE, x[0]),
    },
    Question {
        name: "cluster_all_reduce",
        asks: "What busbw does a large all_reduce reach over nodes of GPUs?",
        formula: "ring min(e W, e_node W_node); trees min(g e W, e_node W_node 2 (n - 1) / (n s)), \
                  s = 1 for two nodes, else 2; n = M D_n",
        source: PLAYBOOK,
        inputs: CLUSTER,
        answer: |x| {
            let cluster = cluster(x);
            vec![
                out("busbw", Unit::BytesPerSecond, cluster.all_reduce_busbw()),
                out("by a ring", Unit::BytesPerSecond, cluster.ring_busbw()),
                out("by trees", Unit::BytesPerSecond, cluster.tree_busbw()),
            ]
        },
    },
    Question {
        name: "cluster_all_to_all",
        asks: "What busbw does a large all_to_all reach over nodes of GPUs?",
        formula: "(n - 1) / n / max((D_n - 1) / (n e W), (n - D_n) D_n / (n e_node W_node)); \
                  n = M D_n",
        source: PLAYBOOK,
        inputs: CLUSTER,
        answer: |x| vec![out("busbw", Unit::BytesPerSecond, cluster(x).all_to_all_busbw())],
    },
    Question {
        name: "send_recv",
        asks: "How fast does a rank send to a rank on another node, over a given number of \
               channels?",
        formula: "min(e_node W_node / D_n, channels c)",
        source: PLAYBOOK,
        inputs: &[
            counts("channels", "channels"),
            else_takes(needs("channel-bandwidth", "c", Unit::BytesPerSecond), 21.5e9),
            NODE_RANKS,
            NETWORK,
            BETWEEN,
        ],
        answer: |x| {
            let cluster = cluster(&[2.0, x[2], f64::INFINITY, x[3], 1.0, x[4], 1.0]);
            let rate = cluster.send_recv_bytes_per_s(x[0], x[1]);
            vec![out("bandwidth", Unit::BytesPerSecond, rate)]
        },
    },
    Question {
        name: "nccl_latency",
        asks: "What is the latency of a small all_reduce over NVLink nodes, computed from the \
               constants in NCCL?",
        formula: "ring base + (2 (n - 1) - 2 (M - 1)) within + 2 (M - 1) net; trees base + 2 \
                  ((n / M - 1) within + log2(M) net); n = M D_n",
        source: "NCCL 2.30, tuning.cc",
        inputs: &[NODES, NODE_RANKS],
        answer: |x| {
            let ranks = Ranks { ranks: x[0] * x[1], nodes: x[0], within: Within::NvLink };
            let seconds = |name, us: f64| out(name, Unit::Seconds, us * 1e-6);
            vec![
                seconds("ring, LL", ranks.ring_us(2.0, Protocol::Ll)),
                seconds("ring, LL128", ranks.ring_us(2.0, Protocol::Ll128)),
                seconds("ring, Simple", ranks.ring_us(2.0, Protocol::Simple)),
                seconds("trees, LL", ranks.tree_us(Protocol::Ll)),
                seconds("trees, LL128", ranks.tree_us(Protocol::Ll128)),
                seconds("trees, Simple", ranks.tree_us(Protocol::Simple)),
            ]
        },
    },
];

const CLUSTER: &[Input] = &[NODES, NODE_RANKS, RANK_RATE, NETWORK, WITHIN, BETWEEN, IN_NETWORK];

fn cluster(x: &[f64]) -> Cluster {
    Cluster {
        nodes: x[0],
        node_ranks: x[1],
        rank_bytes_per_s: x[2],
        node_bytes_per_s: x[3],
        within: x[4],
        between: x[5],
        in_network: x[6],
    }
}

fn swept(sweep: &Sweep, bytes: f64) -> Vec<Output> {
    let curve = sweep.curve();
    let time = curve.time_s(bytes);
    let busbw = 2.0 * (sweep.ranks - 1.0) / sweep.ranks * bytes / time;
    let mut outputs =
        vec![out("time", Unit::Seconds, time), out("busbw", Unit::BytesPerSecond, busbw)];
    let by = |regime: &Regime| out(regime.name, Unit::Seconds, regime.time_s(bytes));
    outputs.extend(curve.regimes().iter().map(by));
    outputs
}
