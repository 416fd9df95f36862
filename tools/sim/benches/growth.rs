//! Growth of the simulator's own time and memory with the number of ranks. Each case runs in its
//! own process, so that its peak memory is measured alone.
//!
//!     cargo bench -p ccl-sim --bench growth
//!
//! With `-- --write` the table and the figure of docs/simulator.md are written.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a benchmark panics when it fails")]

use std::process::Command;
use std::time::Instant;

use ccl_plot::Figure;
use ccl_sim::scenario::{Ask, find};

/// Cases: a collective, and the parameters of the experiment `scale`. In folded cases, a simulated
/// rank stands for many ranks ([`ccl_sim::collective::Folding`]); in the others, for itself alone.
const CASES: [(&str, &str); 17] = [
    ("all_to_all, every rank for itself", "algorithm=2,folded=0,racks=4"),
    ("all_to_all, every rank for itself", "algorithm=2,folded=0,racks=8"),
    ("all_to_all, every rank for itself", "algorithm=2,folded=0,racks=16"),
    ("all_to_all, every rank for itself", "algorithm=2,folded=0,racks=32"),
    ("all_to_all, every rank for itself", "algorithm=2,folded=0,racks=64"),
    ("all_reduce hierarchical, every rank for itself", "folded=0,racks=16"),
    ("all_reduce hierarchical, every rank for itself", "folded=0,racks=64"),
    ("all_reduce ring over hosts, folded", "algorithm=1,ranks_per_host=1,zones=8,racks=24"),
    ("all_reduce ring over hosts, folded", "algorithm=1,ranks_per_host=1,zones=8,racks=64"),
    ("all_reduce ring over hosts, folded", "algorithm=1,ranks_per_host=1,zones=8,racks=192"),
    ("all_reduce ring over all ranks of a zone, folded", "algorithm=1,racks=1536"),
    ("all_reduce ring over all ranks, folded", "algorithm=1,zones=8,racks=192,settle=4"),
    ("all_reduce hierarchical, folded", "zones=8,racks=12"),
    ("all_reduce hierarchical, folded", "zones=8,racks=24"),
    ("all_reduce hierarchical, folded", "zones=8,racks=48"),
    ("all_reduce hierarchical, folded", "zones=8,racks=96"),
    ("all_reduce hierarchical, folded", "zones=8,racks=192,settle=8"),
];

type Points = Vec<(f64, f64)>;

/// Argument of a process that runs one case.
const CASE: &str = "--case";
const BEGIN: &str = "<!-- growth: written by the benchmark -->\n";
const END: &str = "<!-- end of growth -->";

fn peak_mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<f64>().unwrap() / 1024.0
}

/// Runs one case and returns its numbers as text: ranks, simulated ranks, messages, simulated time
/// (s), time taken (s), and peak memory (MiB).
fn run_case(case: &str) -> String {
    let set: Vec<(String, f64)> = case
        .split(',')
        .map(|pair| pair.split_once('=').unwrap())
        .map(|(name, value)| (name.to_owned(), value.parse().unwrap()))
        .collect();
    let begun = Instant::now();
    let ask = Ask { memory_mib: 8192, changed: &set, ..Ask::default() };
    let report = find("scale").unwrap().run(&ask).unwrap();
    let took_s = begun.elapsed().as_secs_f64();
    let of = |what: &str| {
        report.findings.findings.iter().find(|finding| finding.what == what).unwrap().measured
    };
    let (ranks, simulated) = (of("ranks"), of("ranks that were simulated"));
    let (messages, time_s) = (of("messages simulated"), of("time"));
    format!("{ranks} {simulated} {messages} {time_s} {took_s} {}", peak_mib())
}

fn main() {
    let told: Vec<String> = std::env::args().skip(1).collect();
    if let [flag, case] = &told[..]
        && flag == CASE
    {
        println!("GROWTH {}", run_case(case));
        return;
    }
    let mut table = String::from(
        "| collective | ranks | simulated | messages | takes | simulated in | memory |\n\
         |---|---|---|---|---|---|---|\n",
    );
    let axes = ("ranks", "seconds, or MiB");
    let mut figure = Figure::lines("simulator-growth", "What simulating takes", axes, (true, true));
    let mut lines: Vec<(&str, Points, Points)> = Vec::new();
    for (name, case) in CASES {
        let output =
            Command::new(std::env::current_exe().unwrap()).args([CASE, case]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("GROWTH ")).unwrap();
        println!("{name} {case}: {line}");
        let numbers: Vec<f64> =
            line.split_whitespace().map(|number| number.parse().unwrap()).collect();
        let [ranks, simulated, messages, time_s, took_s, mib] = numbers[..] else { panic!() };
        table += &format!(
            "| {name} | {ranks} | {simulated} | {messages} | {:.2} ms | {took_s:.2} s | {mib:.0} \
             MiB |\n",
            time_s * 1e3
        );
        if lines.last().is_none_or(|(last, ..)| *last != name) {
            lines.push((name, Vec::new(), Vec::new()));
        }
        let (_, times, memory) = lines.last_mut().unwrap();
        times.push((ranks, took_s));
        memory.push((ranks, mib));
    }
    for (name, times, memory) in lines {
        figure = figure.with(format!("s: {name}"), times).with(format!("MiB: {name}"), memory);
    }
    if told.iter().any(|flag| flag == "--write") {
        let docs = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs"));
        let page = std::fs::read_to_string(docs.join("simulator.md")).unwrap();
        let (head, rest) = page.split_once(BEGIN).unwrap();
        let (_, tail) = rest.split_once(END).unwrap();
        let page = format!("{head}{BEGIN}\n{table}\n{END}{tail}");
        std::fs::write(docs.join("simulator.md"), page).unwrap();
        std::fs::write(docs.join("simulator-growth.svg"), figure.render()).unwrap();
    }
}
