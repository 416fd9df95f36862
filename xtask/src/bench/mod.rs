//! `cargo xtask bench`: ferroccl side by side with other libraries and with bare transports; by
//! default, all_reduce of float32 sums on one host. Measurements are interleaved, so that changes
//! of the machine's state affect all sides alike.

mod mpi;
mod nccl_net;
mod network;
mod ofi;
mod ours;
mod rdma;
mod summary;

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use serde_json::Value;

use crate::machine::{Provenance, rdma_ports};
use crate::workspace::target_dir;
use crate::{Outcome, guest, report};
pub(crate) use summary::size;
use summary::{Series, ratio};

/// Profile that programs are shipped with.
const DIST: &str = "dist";
/// Message size of the comparison between 8 and 2 ranks on the same cores.
const CROWD_BYTES: u64 = 1 << 20;
const CROWD_RANKS: usize = 8;
const RANKS: usize = 2;
/// Time limit of all RDMA measurements in a guest, in seconds.
const GUEST_WITHIN_S: u64 = 1200;
const SIZES: [u64; 4] = [8, 64 << 10, 1 << 20, 64 << 20];

/// Flags of `cargo xtask bench`.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Measure two ranks on two hosts instead (network namespaces of this machine; needs root):
    /// latency against a bare round trip, all_reduce against Open MPI and Gloo, and a stream
    /// against iperf3.
    #[arg(long)]
    network: bool,
    /// Measure RDMA against perftest instead: latency, a stream, and all_reduce. Without an RDMA
    /// device, the measurement runs in the guest.
    #[arg(long, conflicts_with_all = ["network", "sizes"])]
    rdma: bool,
    /// Measure the plugin for NCCL over TCP instead: against a reference plugin that is built like
    /// NCCL's own socket transport, and against the transport alone. The reference is measured
    /// against iperf3.
    #[arg(long, conflicts_with_all = ["network", "rdma"])]
    nccl_net: bool,
    /// Measure ferroccl over libfabric's provider tcp instead: with each available version of
    /// libfabric, messages against a bare loop of writes; with the newest version, all_reduce
    /// against MPICH and Intel MPI.
    #[arg(long, conflicts_with_all = ["network", "rdma", "nccl_net"])]
    ofi: bool,
    /// Directory of built programs to measure on this machine; passed by the host to the guest.
    #[arg(long, value_name = "DIR", hide = true)]
    built: Option<PathBuf>,
    /// Sizes of messages, such as 8,64K,1M,64M.
    #[arg(long, value_delimiter = ',', value_parser = parse_bytes)]
    sizes: Vec<u64>,
    /// Number of measurements of each side at each size, alternating between the sides.
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Skip the comparison of 8 ranks with 2 ranks on the same cores.
    #[arg(long)]
    no_crowd: bool,
    /// Also write the table to this file.
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
}

/// Settings of one measurement, which runs in a process of its own.
#[derive(Clone, Copy, Debug)]
struct Job {
    bytes: u64,
    ranks: usize,
    iterations: u32,
    warmup: u32,
}

impl Job {
    /// Returns a job of about a second: enough iterations for a median, few enough for many rounds.
    fn new(bytes: u64, ranks: usize) -> Job {
        let (iterations, warmup) = match bytes {
            0..=4096 => (20_000, 2_000),
            4097..=262_144 => (4_000, 400),
            262_145..=4_194_304 => (600, 60),
            _ => (20, 4),
        };
        Job { bytes, ranks, iterations, warmup }
    }
}

/// Result of one measurement, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Sample {
    median_us: f64,
    p99_us: Option<f64>,
}

/// Measures, prints the tables, and writes them to a file if one is given.
pub(crate) fn run(options: &Options) -> Outcome<ExitCode> {
    if options.rdma && options.built.is_none() && rdma_ports().is_empty() {
        return in_guest(options);
    }
    let sizes = |default: &[u64]| match &options.sizes[..] {
        [] => default.to_vec(),
        given => given.to_vec(),
    };
    let (text, setting) = if options.rdma {
        let out = target_dir()?;
        let built = options.built.clone().map_or_else(rdma::build, Ok)?;
        let out = options.markdown.as_ref().and_then(|file| file.parent()).unwrap_or(&out);
        (rdma::run(&built, out, options.rounds)?, "2 ranks, joined by RDMA")
    } else if options.nccl_net {
        (nccl_net::run(&sizes(&nccl_net::SIZES), options.rounds)?, "2 processes on one host")
    } else if options.ofi {
        (ofi::run(&sizes(&ofi::SIZES), options.rounds)?, "2 processes on one host")
    } else if options.network {
        let text = network::run(&sizes(&network::SIZES), options.rounds)?;
        let setting = "2 ranks on 2 hosts (network namespaces joined by a veth link, congestion \
                       control reno)";
        (text, setting)
    } else {
        (memory(&sizes(&SIZES), options)?, "2 ranks on one host")
    };
    let rounds = options.rounds;
    let text = format!(
        "{}. {setting}; medians over {rounds} interleaved rounds. The value of a round is the \
         median or the mean of its iterations. In brackets: the smallest and the largest of the \
         rounds' ratios.\n\n{text}",
        Provenance::now().sentence()
    );
    println!("\n{text}");
    match &options.markdown {
        Some(file) => fs::write(file, text)
            .map_err(|error| format!("cannot write {}: {error}", file.display())),
        None => Ok(()),
    }?;
    Ok(ExitCode::SUCCESS)
}

/// Measures RDMA in a guest, which has Soft-RoCE devices.
fn in_guest(options: &Options) -> Outcome<ExitCode> {
    let (built, out) = (rdma::build()?, target_dir()?.join("bench-rdma"));
    fs::create_dir_all(&out).map_err(|error| format!("cannot make {}: {error}", out.display()))?;
    let table = out.join("table.md");
    let rounds = options.rounds.to_string();
    println!("this machine has no RDMA device, so the measurements run in an emulated guest");
    let flags = ["--rdma", "--rounds", &rounds];
    let places = [("--built", &built), ("--markdown", &table)];
    let places = places.into_iter().flat_map(|(flag, place)| [flag.as_ref(), place.as_os_str()]);
    let words = ["bench"].into_iter().chain(flags).map(OsStr::new).chain(places);
    let ended = guest::again(words, out.clone(), GUEST_WITHIN_S)?;
    if let Some(file) = &options.markdown {
        let copied = fs::copy(&table, file);
        copied.map_err(|error| format!("cannot write {}: {error}", file.display()))?;
    }
    Ok(ended)
}

/// Parses the JSON file that a program has written, and removes the file.
fn parse_json(file: &Path) -> Outcome<Value> {
    let unread = |error: &dyn std::fmt::Display| format!("cannot read {}: {error}", file.display());
    let text = fs::read_to_string(file).map_err(|error| unread(&error))?;
    let _ = fs::remove_file(file);
    serde_json::from_str(&text).map_err(|error| unread(&error))
}

/// Compares ferroccl with Open MPI on one host, and ferroccl's engine with a bare exchange.
fn memory(sizes: &[u64], options: &Options) -> Outcome<String> {
    let exchange = engine_overhead()?;
    let program = ours::build()?;
    let peer = mpi::build()?;
    if peer.is_none() {
        println!("{}", mpi::MISSING);
    }
    let mut rows = Vec::new();
    for &bytes in sizes {
        let job = Job::new(bytes, RANKS);
        let (ours, theirs) = interleave(&program, peer.as_ref(), job, options.rounds)?;
        rows.push(row(bytes, &ours, theirs.as_ref()));
    }
    let note = if peer.is_some() { "" } else { "\nOpen MPI was not installed.\n" };
    let mut text = format!(
        "All_reduce, float32 sum, out of place, in µs:\n\n{}{note}",
        report::table(&["size", "ours", "ours p99", "Open MPI", "p99", "ours / Open MPI"], &rows)
    );
    text.push_str(&format!(
        "\nThe engine against a bare exchange of the same bytes between two threads, medians:\n\n\
         ```text\n{exchange}```\n"
    ));
    if !options.no_crowd {
        text.push_str(&crowd(&program, peer.as_ref(), options.rounds)?);
    }
    Ok(text)
}

/// Returns the cost of schedule, program and slots, as the exchange benchmark prints it.
fn engine_overhead() -> Outcome<String> {
    let arguments = ["run", "--release", "--package", "ccl-links", "--example", "exchange"];
    let output = std::process::Command::new(env!("CARGO"))
        .args(arguments)
        .stderr(std::process::Stdio::inherit())
        .output()
        .map_err(|error| format!("cannot run cargo: {error}"))?;
    if !output.status.success() {
        return Err(format!("the exchange benchmark failed: {}", output.status));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Measures both sides in turn: ours, theirs, ours, theirs, ...
fn interleave(
    ours: &ours::Program,
    theirs: Option<&mpi::Program>,
    job: Job,
    rounds: u32,
) -> Outcome<(Series, Option<Series>)> {
    let mut a = Series::default();
    let mut b = theirs.map(|_| Series::default());
    for round in 1..=rounds {
        let sample = ours.measure(job)?;
        a.push(sample);
        let mut line = format!(
            "{} x {}, round {round} of {rounds}: ours {:.2} µs",
            size(job.bytes),
            job.ranks,
            sample.median_us
        );
        if let (Some(program), Some(series)) = (theirs, &mut b) {
            let sample = program.measure(job)?;
            series.push(sample);
            line.push_str(&format!(", Open MPI {:.2} µs", sample.median_us));
        }
        println!("{line}");
    }
    Ok((a, b))
}

fn row(bytes: u64, ours: &Series, theirs: Option<&Series>) -> Vec<String> {
    let time = |value: Option<f64>| value.map_or("-".to_owned(), |us| format!("{us:.2}"));
    vec![
        size(bytes),
        time(ours.median_us()),
        time(ours.p99_us()),
        time(theirs.and_then(Series::median_us)),
        time(theirs.and_then(Series::p99_us)),
        theirs.map_or("-".to_owned(), |theirs| ratio(ours, theirs)),
    ]
}

/// Compares many ranks with few ranks on the same cores.
fn crowd(ours: &ours::Program, theirs: Option<&mpi::Program>, rounds: u32) -> Outcome<String> {
    let few = Job::new(CROWD_BYTES, RANKS);
    let many = Job { ranks: CROWD_RANKS, iterations: few.iterations / 4, ..few };
    let (ours_few, theirs_few) = interleave(ours, theirs, few, rounds)?;
    let (ours_many, theirs_many) = interleave(ours, theirs, many, rounds)?;
    let line = |name: &str, few: &Series, many: &Series| {
        let time = |series: &Series| format!("{:.2}", series.median_us().unwrap_or(f64::NAN));
        vec![name.to_owned(), time(few), time(many), ratio(many, few)]
    };
    let mut rows = vec![line("ours", &ours_few, &ours_many)];
    if let (Some(few), Some(many)) = (&theirs_few, &theirs_many) {
        rows.push(line("Open MPI", few, many));
    }
    let (few, many) = (format!("{RANKS} ranks"), format!("{CROWD_RANKS} ranks"));
    Ok(format!(
        "\nAll_reduce of {} on the same cores, in µs:\n\n{}",
        size(CROWD_BYTES),
        report::table(&["", &few, &many, "ratio"], &rows)
    ))
}

/// Parses a size as nccl-tests writes it: `8`, `64K`, `16M`, `1G`.
fn parse_bytes(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        unit => return Err(format!("`{unit}` is no unit; use K, M or G")),
    };
    let number: u64 = digits.parse().map_err(|_| format!("`{text}` is no size (example: 64K)"))?;
    let bytes = number.checked_mul(1 << shift).filter(|bytes| *bytes <= 4 << 30);
    match bytes {
        Some(bytes) if bytes >= 4 && bytes % 4 == 0 => Ok(bytes),
        Some(_) => Err(format!("`{text}` is no positive multiple of 4 bytes (float32)")),
        None => Err(format!("`{text}` is more than 4G")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_parsed_and_printed_and_invalid_sizes_are_refused() {
        for (text, bytes) in [("8", 8), ("64K", 65_536), ("1m", 1 << 20), ("1G", 1 << 30)] {
            assert_eq!(parse_bytes(text), Ok(bytes));
        }
        assert_eq!(size(65_536), "64 KiB");
        for text in ["", "x", "3", "0", "8T", "-8", "8G", "99999999999G"] {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
    }
}
