//! Numbers that published sources give, compared with the lines in which `ferroccl` prints them.
//! docs/acceptance.md shows the comparison; with `FERROCCL_TEST_WRITE` set, the test writes that
//! page.

use std::fmt::Write as _;
use std::fs;

use ccl_harness::command::said;

/// A number that a source prints, or that its formula gives.
struct Claim {
    /// Quantity that the number measures.
    what: &'static str,
    /// Arguments of the command that prints the number.
    command: &'static str,
    /// Beginning of the line that has the number.
    line: &'static str,
    /// The number as printed or computed, with its unit if it has one; the line may differ from it
    /// by `slack`.
    expected: &'static str,
    /// Basis of the number: printed in the source, computed from its formula, or printed in its
    /// online edition.
    basis: &'static str,
    /// Largest difference that the line may have.
    slack: Slack,
}

/// Largest difference between a line and the number expected.
#[derive(Clone, Copy)]
enum Slack {
    /// Half a unit of the last digit at most.
    Rounded,
    /// Less than one unit of the last digit: the source cut off further digits.
    Cut,
    /// This many percent: the number is a measurement.
    Percent(f64),
}

const PRINTED: &str = "printed";
const COMPUTED: &str = "computed from the source's formula";
const ONLINE: &str = "printed online, August 2026";

const fn exactly(
    what: &'static str,
    command: &'static str,
    line: &'static str,
    expected: &'static str,
) -> Claim {
    Claim { what, command, line, expected, basis: PRINTED, slack: Slack::Rounded }
}

const fn computed(
    what: &'static str,
    command: &'static str,
    line: &'static str,
    expected: &'static str,
) -> Claim {
    Claim { what, command, line, expected, basis: COMPUTED, slack: Slack::Rounded }
}

const fn cut(claim: Claim) -> Claim {
    Claim { slack: Slack::Cut, ..claim }
}

const fn within(percent: f64, claim: Claim) -> Claim {
    Claim { slack: Slack::Percent(percent), ..claim }
}

const fn from(basis: &'static str, claim: Claim) -> Claim {
    Claim { basis, ..claim }
}

/// Sources and their claims.
const CLAIMS: &[(&str, &[Claim])] = &[
    (
        "How to Scale Your Model, the chapter on GPUs",
        &[
            exactly(
                "all_gather of bf16[4096, 65536] in a node of H100",
                "cost all_gather bytes=536870912 ranks=8 bandwidth=450GB/s",
                "time",
                "1.04 ms",
            ),
            exactly(
                "all_gather of bf16[1024, 16384], exactly",
                "cost all_gather bytes=33554432 ranks=8 bandwidth=450GB/s",
                "time",
                "65 µs",
            ),
            exactly(
                "all_gather of bf16[1024, 16384], approximately",
                "cost all_gather bytes=33554432 ranks=8 bandwidth=450GB/s",
                "for many ranks",
                "75 µs",
            ),
            exactly(
                "gain by SHARP at best",
                "cost all_reduce bytes=1GB ranks=8 bandwidth=450GB/s",
                "gain at best",
                "1.75",
            ),
            computed(
                "all_reduce of 1 GB without SHARP",
                "cost all_reduce bytes=1GB ranks=8 bandwidth=450GB/s",
                "time",
                "3.889 ms",
            ),
            computed(
                "all_reduce of 1 GB with SHARP",
                "cost all_reduce bytes=1GB ranks=8 bandwidth=450GB/s",
                "by switches",
                "2.222 ms",
            ),
            computed(
                "all_to_all of 1 GB in a node",
                "cost all_to_all bytes=1GB ranks=8 bandwidth=450GB/s",
                "time",
                "243 µs",
            ),
            computed(
                "ragged all_to_all, 4 experts per token on 8 ranks, relative to a dense one",
                "cost ragged_all_to_all bytes=1GB ranks=8 bandwidth=450GB/s k=4",
                "share of a dense one",
                "0.3621",
            ),
            computed(
                "ragged all_to_all, 4 experts per token on 8 ranks, approximately",
                "cost ragged_all_to_all bytes=1GB ranks=8 bandwidth=450GB/s k=4",
                "that share, about",
                "0.4375",
            ),
            computed(
                "ragged all_to_all, 8 experts per token on 256 ranks",
                "cost ragged_all_to_all bytes=1GB ranks=256 bandwidth=450GB/s k=8",
                "share of a dense one",
                "0.03071",
            ),
            exactly(
                "bandwidth of a node of H100 (quiz 2, question 1)",
                "cost node_bandwidth ranks=8 bandwidth=450GB/s switches=4 ports=64 \
                 port-bandwidth=25GB/s",
                "at once",
                "3.6 TB/s",
            ),
            exactly(
                "bisection of a node of H100 (quiz 2, question 2)",
                "cost node_bandwidth ranks=8 bandwidth=450GB/s switches=4 ports=64 \
                 port-bandwidth=25GB/s",
                "across the bisection",
                "3.6 TB/s",
            ),
            exactly(
                "all_gather over a SuperPod: within nodes",
                "cost pod_all_gather bytes=1GB",
                "within nodes",
                "514 GB/s",
            ),
            exactly(
                "all_gather over a SuperPod: between nodes, the bottleneck",
                "cost pod_all_gather bytes=1GB",
                "of all",
                "413 GB/s",
            ),
            exactly(
                "all_gather over a SuperPod: between units",
                "cost pod_all_gather bytes=1GB",
                "between units",
                "17.1 TB/s",
            ),
            exactly(
                "all_gather over two nodes, bounded by the node (quiz 4, question 5)",
                "cost pod_all_gather bytes=1GB unit-nodes=2 units=1",
                "of all",
                "514 GB/s",
            ),
            computed(
                "all_gather with an inner axis of 8: 2 D F (31 / 32) / 400 GB/s",
                "cost sharded_all_gather bytes=536870912 inner=8",
                "time",
                "1.300 ms",
            ),
            computed(
                "all_gather with an inner axis of 16",
                "cost sharded_all_gather bytes=536870912 inner=16",
                "about",
                "671 µs",
            ),
            computed(
                "all_gather with an inner axis of 256",
                "cost sharded_all_gather bytes=536870912 inner=256",
                "about",
                "41.9 µs",
            ),
            computed(
                "all_reduce over the spine by SHARP, Y = 256: 2 D F / 6.4 TB/s (question 4)",
                "cost all_reduce bytes=536870912 ranks=4 bandwidth=6.4TB/s",
                "by switches",
                "83.886 µs",
            ),
            exactly(
                "switches of a SuperPod of 1024",
                "topo superpod-1024 --as tree",
                "superpod-1024  128 hosts, 1024 GPUs, 512 NVSwitch + 32 leaf + 16 spine =",
                "560 switches",
            ),
            exactly(
                "bandwidth from a unit to the spine",
                "topo superpod-1024 --as tree",
                "pod  16 × spine,",
                "12.8 TB/s",
            ),
            exactly(
                "bandwidth out of a GB200 NVL72",
                "cost links links=72 bandwidth=400Gb/s",
                "together",
                "3.6 TB/s",
            ),
            exactly(
                "tokens per GPU for data parallelism, in a node",
                "cost data_parallel flops=990T bandwidth=450GB/s",
                "tokens for each",
                "2200",
            ),
            exactly(
                "tokens per GPU for data parallelism, over a unit",
                "cost data_parallel flops=990T bandwidth=400GB/s",
                "tokens for each",
                "2475",
            ),
            exactly(
                "tokens per GPU for data parallelism, with 4 of 128 experts",
                "cost data_parallel flops=990T bandwidth=400GB/s experts=128 k=4",
                "tokens for each",
                "79200",
            ),
            cut(exactly(
                "tokens per GPU for data parallelism, over two groups of GPUs",
                "cost data_parallel flops=990T bandwidth=400GB/s groups=2",
                "tokens for each",
                "1237",
            )),
            exactly(
                "LLaMA 3 on 16,000 H100: tokens in a batch",
                "cost data_parallel flops=990T bandwidth=400GB/s accelerators=16k",
                "tokens for all",
                "40 M",
            ),
            exactly(
                "largest number of GPUs for tensor parallelism with F = 28,000, over a unit",
                "cost tensor_parallel width=28000 flops=990T bandwidth=400GB/s",
                "at most",
                "11",
            ),
            exactly(
                "largest number of GPUs for tensor parallelism with F = 28,000, over two nodes",
                "cost tensor_parallel width=28000 flops=990T bandwidth=400GB/s",
                "over nodes at most",
                "19",
            ),
            computed(
                "least width of an expert for expert parallelism over nodes",
                "cost expert_parallel flops=990T node-bandwidth=400GB/s",
                "width",
                "19800",
            ),
            exactly(
                "B200: tokens per GPU for data parallelism (quiz 5, question 1)",
                "cost data_parallel flops=2250T bandwidth=400GB/s",
                "tokens for each",
                "5625",
            ),
            exactly(
                "LLaMA 70B: state (question 2)",
                "cost training parameters=70B tokens=15T accelerators=4096 flops=990T",
                "state",
                "700 GB",
            ),
            computed(
                "LLaMA 70B: number of H100 that hold the state",
                "cost training parameters=70B tokens=15T accelerators=4096 flops=990T",
                "accelerators for it",
                "8.75",
            ),
            exactly(
                "LLaMA 70B: training time on 4096 H100",
                "cost training parameters=70B tokens=15T accelerators=4096 flops=990T",
                "time",
                "40 days",
            ),
            cut(exactly(
                "tokens per GPU, batch of 4 M on 4096 GPUs",
                "cost batch tokens=4M accelerators=4096",
                "tokens for each",
                "976",
            )),
        ],
    ),
    (
        "Machine Learning Engineering, the chapter on networks",
        &[
            exactly(
                "16 GB over NVLink of A100",
                "cost transfer bytes=16GB bandwidth=300GB/s",
                "time",
                "53 ms",
            ),
            exactly(
                "16 GB over 200 Gb/s",
                "cost transfer bytes=16GB bandwidth=200Gb/s",
                "time",
                "640 ms",
            ),
            exactly(
                "16 GB over 400 Gb/s",
                "cost transfer bytes=16GB bandwidth=400Gb/s",
                "time",
                "320 ms",
            ),
            exactly(
                "80 billion parameters of 4 bytes over 200 Gb/s",
                "cost transfer bytes=320GB bandwidth=200Gb/s",
                "time",
                "12.8 s",
            ),
            exactly(
                "operations of a step of 2 billion parameters",
                "cost step parameters=2B sequence=2048 batch=16 accelerators=8 flops=156T",
                "operations",
                "65.536 TFLOP",
            ),
            exactly(
                "time of a step of 2 billion parameters",
                "cost step parameters=2B sequence=2048 batch=16 accelerators=8 flops=156T",
                "time",
                "420 ms",
            ),
            exactly(
                "seven links of MI300X",
                "cost links links=7 bandwidth=64GB/s",
                "together",
                "448 GB/s",
            ),
            within(
                15.0,
                exactly(
                    "all_reduce of 64 MiB on 8 A100",
                    "cost a100_all_reduce bytes=64MiB",
                    "time",
                    "684.6 µs",
                ),
            ),
            within(
                15.0,
                exactly(
                    "all_reduce of 256 MiB on 8 A100",
                    "cost a100_all_reduce bytes=256MiB",
                    "time",
                    "2420.6 µs",
                ),
            ),
            within(
                35.0,
                exactly(
                    "all_reduce of 2 MiB on 8 A100",
                    "cost a100_all_reduce bytes=2MiB",
                    "time",
                    "101.4 µs",
                ),
            ),
            within(
                35.0,
                exactly(
                    "all_reduce of 128 KiB on 8 A100",
                    "cost a100_all_reduce bytes=128KiB",
                    "time",
                    "51.76 µs",
                ),
            ),
            from(
                ONLINE,
                within(
                    15.0,
                    exactly(
                        "busbw of 1 GiB on 8 H200",
                        "cost h200_all_reduce bytes=1GiB",
                        "busbw",
                        "463.58 GB/s",
                    ),
                ),
            ),
            from(
                ONLINE,
                within(
                    35.0,
                    exactly(
                        "busbw of 8 MiB on 8 H200",
                        "cost h200_all_reduce bytes=8MiB",
                        "busbw",
                        "155.53 GB/s",
                    ),
                ),
            ),
            from(
                ONLINE,
                within(
                    15.0,
                    exactly(
                        "busbw of 4 GiB on 8 B200",
                        "cost b200_all_reduce bytes=4GiB",
                        "busbw",
                        "740.64 GB/s",
                    ),
                ),
            ),
            from(
                ONLINE,
                within(
                    15.0,
                    exactly(
                        "busbw of 4 GiB on four nodes of 8 B200",
                        "cost b200_nodes_all_reduce bytes=4GiB",
                        "busbw",
                        "377.34 GB/s",
                    ),
                ),
            ),
        ],
    ),
    (
        "The Smol Training Playbook, interconnects",
        &[
            exactly(
                "bandwidth out of a p5 node",
                "topo p5 --as tree",
                "cluster  32 × leaf,",
                "400 GB/s",
            ),
            within(
                15.0,
                exactly(
                    "all_reduce, busbw on 1 node",
                    "cost cluster_all_reduce nodes=1",
                    "busbw",
                    "480 GB/s",
                ),
            ),
            within(
                15.0,
                exactly(
                    "all_reduce, busbw on 2 nodes",
                    "cost cluster_all_reduce nodes=2",
                    "busbw",
                    "479 GB/s",
                ),
            ),
            from(
                "the middle of 320 to 350, printed",
                within(
                    15.0,
                    exactly(
                        "all_reduce, busbw on 16 nodes",
                        "cost cluster_all_reduce nodes=16",
                        "busbw",
                        "335 GB/s",
                    ),
                ),
            ),
            within(
                15.0,
                exactly(
                    "all_to_all, busbw on 1 node",
                    "cost cluster_all_to_all nodes=1",
                    "busbw",
                    "344 GB/s",
                ),
            ),
            within(
                15.0,
                exactly(
                    "all_to_all, busbw on 2 nodes",
                    "cost cluster_all_to_all nodes=2",
                    "busbw",
                    "81 GB/s",
                ),
            ),
            from(
                "the low end of 45 to 58, printed",
                within(
                    15.0,
                    exactly(
                        "all_to_all, busbw on 16 nodes",
                        "cost cluster_all_to_all nodes=16",
                        "busbw",
                        "45 GB/s",
                    ),
                ),
            ),
            within(
                15.0,
                exactly(
                    "send/recv by 2 channels",
                    "cost send_recv channels=2",
                    "bandwidth",
                    "42 GB/s",
                ),
            ),
            within(
                15.0,
                exactly(
                    "send/recv by 1 channel",
                    "cost send_recv channels=1",
                    "bandwidth",
                    "21 GB/s",
                ),
            ),
            within(
                35.0,
                exactly(
                    "all_reduce, latency on 1 node",
                    "cost nccl_latency nodes=1",
                    "ring, LL ",
                    "12.9 µs",
                ),
            ),
            within(
                35.0,
                exactly(
                    "all_reduce, latency on 16 nodes",
                    "cost nccl_latency nodes=16",
                    "ring, LL ",
                    "235 µs",
                ),
            ),
        ],
    ),
    (
        "RDMA over Ethernet for Distributed AI Training at Meta Scale",
        &[
            computed(
                "GPUs of the fabric",
                "topo meta-24576 --as tree",
                "meta-24576  3072 hosts,",
                "24576 GPUs",
            ),
            exactly(
                "cluster switches of the fabric",
                "topo meta-24576 --as tree",
                "meta-24576  3072 hosts, 24576 GPUs, 12288 NVSwitch + 1536 RTSW +",
                "128 CTSW",
            ),
            exactly(
                "aggregation switches of the fabric",
                "topo meta-24576 --as tree",
                "└─ building",
                "28 × ATSW",
            ),
            within(
                3.0,
                exactly(
                    "oversubscription between zones",
                    "topo meta-24576 --as tree",
                    "└─ building  28 × ATSW, 22.4 TB/s to each zone, oversubscribed",
                    "1:7",
                ),
            ),
        ],
    ),
];

/// Returns the number that a text begins with, the rest of the text, and how many digits the number
/// has after the decimal point.
fn number(text: &str) -> (f64, &str, i32) {
    let text = text.strip_prefix("1:").unwrap_or(text);
    let end = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.');
    let (digits, unit) = text.split_at(end.unwrap_or(text.len()));
    let places = digits.split_once('.').map_or(0, |(_, places)| places.len() as i32);
    (digits.parse().unwrap_or(f64::NAN), unit.trim(), places)
}

/// Returns the number of base units in a unit, such as 1e-6 for µs (base unit: s); 1 for all units
/// that are not listed here.
fn scale(unit: &str) -> f64 {
    match unit.split_whitespace().next().unwrap_or_default().trim_end_matches(',') {
        "µs" => 1e-6,
        "ms" => 1e-3,
        "M" => 1e6,
        "GB/s" => 1e9,
        "TB/s" => 1e12,
        _ => 1.0,
    }
}

/// Returns the line's value, and its difference from the expected number in percent.
fn answer(claim: &Claim) -> (String, f64) {
    let text = said(claim.command);
    let line = text.lines().find(|line| line.trim_start_matches("└─ ").starts_with(claim.line));
    let line = line.or_else(|| text.lines().find(|line| line.contains(claim.line)));
    let line = line.unwrap_or_else(|| panic!("no line {:?} in\n{text}", claim.line));
    let rest = line.split_once(claim.line).unwrap().1.trim();
    let (seen, unit, _) = number(rest);
    let (expected, in_unit, places) = number(claim.expected);
    let factor = scale(unit) / scale(in_unit);
    let digit = 10_f64.powi(-places);
    let off = seen * factor - expected;
    let is_met = match claim.slack {
        Slack::Rounded => off.abs() <= 0.5 * digit * 1.000_001,
        Slack::Cut => (0.0..digit).contains(&off),
        Slack::Percent(percent) => off.abs() <= expected * percent / 100.0,
    };
    assert!(is_met, "{}: {rest} differs from {}", claim.what, claim.expected);
    let words = rest.split(", ").next().unwrap_or_default();
    let words = words.split(" to each").next().unwrap_or_default();
    (words.split(" = ").next().unwrap_or_default().to_owned(), 100.0 * off / expected)
}

fn page() -> String {
    let mut page = "\
# From the sources to a line of output

This page compares numbers of published sources with the output of the commands that compute them.
`tools/cli/tests/acceptance.rs` makes the page. The test fails if a command's number, rounded (or
cut off, as in the source) to the digits of the expected number, differs from the expected number.
If the expected number is a measurement, the command's number may differ from it by at most the
percentage in parentheses in the last column. To update the page, run
`FERROCCL_TEST_WRITE=1 cargo test --test cli acceptance`. The column `basis` says which numbers a
source prints. This project computed the others from the source's formula: such a row shows that the
command evaluates the formula, and not that a source has the number. Known errata of the sources are
left out. The sources contradict themselves about the bandwidth of the spine, so the command gets
this bandwidth as an input.

In the rows of the first source, a unit is 32 nodes below the same leaf switches, unless the command
has unit-nodes. D and F are the widths of a layer, whose weights have 2 D F bytes. An inner axis of
length Y means that an array is also sharded over Y GPUs along another dimension.

The prediction for 8 A100 is fitted to six of the measured sizes (32 KiB, 512 KiB, 1 MiB, 8 MiB,
16 MiB, 16 GiB). The predictions for p5 clusters are calibrated with the all_reduce of one node,
without and with switches that reduce (370 and 480 GB/s), and with send/recv between two nodes
(43 GB/s). Latencies are computed from the constants in NCCL's code. An all_reduce on two p5 nodes
has a measured latency of 55.5 µs; the prediction is half of that, as EFA has a longer latency than
InfiniBand.
"
    .to_owned();
    for (source, claims) in CLAIMS {
        let _ = write!(
            page,
            "\n## {source}\n\n| what | expected | basis | `ferroccl …` | line | says | off |\n\
             |---|---|---|---|---|---|---|\n"
        );
        for claim in *claims {
            let (says, off) = answer(claim);
            let Claim { what, command, line, expected, basis, slack } = claim;
            let line = line.split("  ").next().unwrap_or_default().trim_start_matches("└─ ").trim();
            let off = match slack {
                Slack::Rounded => "–".to_owned(),
                Slack::Cut => format!("{off:+.2} % (digits cut)"),
                Slack::Percent(percent) => format!("{off:+.1} % (of {percent} %)"),
            };
            let _ = writeln!(
                page,
                "| {what} | {expected} | {basis} | `{command}` | {line} | {says} | {off} |"
            );
        }
    }
    page
}

#[test]
fn the_commands_print_the_numbers_of_the_sources() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/acceptance.md");
    let page = page();
    if std::env::var_os("FERROCCL_TEST_WRITE").is_some() {
        fs::write(file, &page).unwrap();
    }
    assert_eq!(
        fs::read_to_string(file).unwrap_or_default(),
        page,
        "{file} differs from the output of the commands; its first paragraph says how to update it"
    );
}
