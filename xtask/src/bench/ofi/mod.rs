//! Comparison of ferroccl over libfabric with a bare loop of `fi_writedata` on the same provider
//! and version, by one-way latency and by a stream in one direction. With the newest version,
//! ferroccl's all_reduce is also compared with that of MPICH and of Intel MPI.

mod beside;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use super::summary::{Series, in_turn, ratio, size};
use super::{DIST, parse_json};
use crate::libfabric::{Version, versions};
use crate::workspace::{cargo, target_dir};
use crate::{Outcome, process, report};

const LATENCY_BYTES: u64 = 8;
/// Sizes of the measured all_reduce calls, each with the number of threads of an MPI's rank. A rank
/// of ferroccl has two: the second one watches the peers.
const ALL_REDUCES: [(u64, u32); 5] =
    [(1 << 10, 1), (1 << 10, 2), (64 << 10, 1), (1 << 20, 1), (64 << 20, 1)];
const ALL_REDUCE: &str = "all_reduce_perf";
pub(super) const SIZES: [u64; 3] = [64 << 10, 1 << 20, 16 << 20];
/// Provider that is measured. With libfabric before 1.18, programs reach the provider through the
/// layer `ofi_rxm`.
const PROVIDER: &str = "tcp";
const BUILD_WITHIN: Duration = Duration::from_secs(900);
const RUN_WITHIN: Duration = Duration::from_secs(90);

/// Builds the programs; returns their directory.
fn build() -> Outcome<PathBuf> {
    let mut build = cargo(&["build", "--profile", DIST, "-p", "ferroccl", "-p"]);
    build.args(["ccl-transport-ofi", "--example", "p2p_matrix", "--example", "bare"]);
    build.args(["--example", ALL_REDUCE]);
    println!("$ {}", process::typed(&build));
    process::capture(&mut build, BUILD_WITHIN)?;
    Ok(target_dir()?.join(DIST).join("examples"))
}

/// Runs the measurements; returns a table for each version of libfabric, and one that compares
/// all_reduce with MPI.
pub(super) fn run(sizes: &[u64], rounds: u32) -> Outcome<String> {
    let (built, out) = (build()?, target_dir()?.join("bench-ofi.json"));
    let (versions, lacks) = versions();
    if versions.is_empty() {
        return Err(lacks.join("; "));
    }
    let mut tables = Vec::new();
    for version in &versions {
        let (side, mut rows) = (Side { built: &built, out: &out, version }, Vec::new());
        for (bytes, is_latency) in
            std::iter::once((LATENCY_BYTES, true)).chain(sizes.iter().map(|size| (*size, false)))
        {
            let what = format!("{}, {}", version.name, size(bytes));
            let sides: [&mut dyn FnMut() -> _; 2] =
                [&mut || side.ours(bytes, is_latency), &mut || side.bare(bytes, is_latency)];
            let [ours, bare] = in_turn(rounds, &what, "bare", sides)?;
            rows.push(row(bytes, is_latency, &ours, &bare));
        }
        let head = ["what", "ours", "bare", "ours / bare", "aim"];
        tables.push(format!(
            "Over `{PROVIDER}` of {}:\n\n{}",
            version.name,
            report::table(&head, &rows)
        ));
    }
    let newest = versions.last().map(|version| Side { built: &built, out: &out, version });
    tables.extend(newest.map(|side| beside_mpi(side, rounds)).transpose()?);
    Ok(tables.join("\n"))
}

/// Measures all_reduce of two ranks beside each MPI; returns a table.
fn beside_mpi(side: Side<'_>, rounds: u32) -> Outcome<String> {
    let (peers, lacks) = beside::all()?;
    let mut rows = Vec::new();
    for mpi in &peers {
        for (bytes, threads) in ALL_REDUCES {
            let own = || beside::own_all_reduce(side.with_provider(ALL_REDUCE), side.out, bytes);
            let sides: [&mut dyn FnMut() -> _; 2] =
                [&mut { own }, &mut || mpi.all_reduce(bytes, threads)];
            let what = format!("all_reduce, {}", size(bytes));
            let name = match threads {
                1 => mpi.name.to_owned(),
                _ => format!("{}, two threads", mpi.name),
            };
            let [ours, theirs] = in_turn(rounds, &what, &name, sides)?;
            let shown = |series: &Series| format!("{:.1}", series.median_us().unwrap_or(f64::NAN));
            let (own, other) = (shown(&ours), shown(&theirs));
            let compared = ratio(&ours, &theirs);
            rows.push(vec![name, size(bytes), own, other, compared]);
        }
    }
    let table = match rows.is_empty() {
        true => String::new(),
        false => report::table(&["MPI", "all_reduce", "ours, µs", "MPI, µs", "ours / MPI"], &rows),
    };
    let lacks: String = lacks.iter().map(|lack| format!("\n{lack}\n")).collect();
    let version = side.version.name;
    Ok(format!("all_reduce of 2 ranks, ours over `{PROVIDER}` of {version}:\n\n{table}{lacks}"))
}

fn row(bytes: u64, is_latency: bool, ours: &Series, bare: &Series) -> Vec<String> {
    let shown = |series: &Series| {
        let us = series.median_us().unwrap_or(f64::NAN);
        format!("{:.3}", if is_latency { us } else { bytes as f64 * 1e-3 / us })
    };
    // Samples are times. The ratio of two rates is the inverse of the ratio of their times.
    let (what, compared, aim) = match is_latency {
        true => ("one way, µs", ratio(ours, bare), "1.5 at most"),
        false => ("in one direction, GB/s", ratio(bare, ours), "0.9 at least"),
    };
    vec![format!("{} {what}", size(bytes)), shown(ours), shown(bare), compared, aim.to_owned()]
}

/// Programs to measure over one version of libfabric.
#[derive(Clone, Copy)]
struct Side<'a> {
    /// Directory of the programs.
    built: &'a Path,
    /// File that ferroccl's programs write their results to.
    out: &'a Path,
    version: &'a Version,
}

impl Side<'_> {
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.built.join(program));
        if let Some(directory) = &self.version.directory {
            command.env("LD_LIBRARY_PATH", directory);
        }
        command
    }

    /// Returns a command of one of ferroccl's programs, over the provider.
    fn with_provider(&self, program: &str) -> Command {
        let mut command = self.command(program);
        command.env("FERROCCL_OFI_PROVIDER", PROVIDER).env("FERROCCL_SOCKET_IFNAME", "lo");
        command
    }

    /// Measures sends and receives of ferroccl; returns microseconds per message.
    fn ours(&self, bytes: u64, is_latency: bool) -> Outcome<f64> {
        let iterations = match bytes {
            ..=4096 => 2000,
            4097..=262_144 => 1000,
            262_145..=4_194_304 => 200,
            _ => 16,
        };
        let mut command = self.with_provider("p2p_matrix");
        let (bytes_text, iterations) = (bytes.to_string(), iterations.to_string());
        command.args(["-g", "2", "--transport", "ofi", "-b", &bytes_text, "-e", &bytes_text]);
        command.args(["-n", &iterations, "-w", "10", "-R", "1"]).arg("--json").arg(self.out);
        process::capture(&mut command, RUN_WITHIN)?;
        let found = parse_json(self.out)?;
        let results = &found["results"];
        let us = match is_latency {
            true => results["latency_us"][0][1].as_f64(),
            false => rate(bytes, &results["bandwidth_gbps"][0][1]),
        };
        us.ok_or_else(|| format!("p2p_matrix wrote no times: {found}"))
    }

    /// Measures the bare loop; returns microseconds per message.
    fn bare(&self, bytes: u64, is_latency: bool) -> Outcome<f64> {
        let mut command = self.command("bare");
        let what = if is_latency { "latency" } else { "stream" };
        command.args([PROVIDER, &bytes.to_string(), what]);
        let said = process::capture(&mut command, RUN_WITHIN)?;
        let found: Value = serde_json::from_str(&said).map_err(|error| error.to_string())?;
        let us = match is_latency {
            true => found["latency_us"].as_f64(),
            false => rate(bytes, &found["bandwidth_gbps"]),
        };
        us.ok_or_else(|| format!("the bare loop wrote no time: {said}"))
    }
}

/// Converts a rate in 10^9 bytes per second to microseconds per message of `bytes` bytes.
fn rate(bytes: u64, gbps: &Value) -> Option<f64> {
    Some(bytes as f64 * 1e-3 / gbps.as_f64()?)
}
