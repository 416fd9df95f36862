//! RDMA side by side with perftest: one-way latency, a stream in one direction, and all_reduce
//! compared with the bidirectional bandwidth of the link.

use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use super::summary::{Series, in_turn, ratio, size};
use super::{DIST, parse_json};
use crate::machine::all_rdma_ports;
use crate::workspace::{cargo, target_dir};
use crate::{Outcome, process, report};

const PROGRAMS: [&str; 2] = ["p2p_matrix", "all_reduce_perf"];
const LATENCY_BYTES: u64 = 8;
const STREAM_BYTES: [u64; 2] = [64 << 10, 1 << 20];
const ALL_REDUCE_BYTES: u64 = 1 << 20;
/// Queue pairs of a stream, on both sides of the comparison.
const PAIRS: u64 = 4;
/// Iterations of latency measurements: enough that a program's start does not affect the mean.
const LATENCY_ITERATIONS: &str = "10000";
/// Bytes of a stream, equal for ferroccl and perftest, so that a lost packet costs both the same.
const STREAM_TOTAL: u64 = 32 << 20;
/// Number of messages per iteration of `p2p_matrix`.
const WINDOW: u64 = 16;
/// Time that a server gets to start listening.
const HEAD_START: Duration = Duration::from_secs(1);
/// Interval between two checks of whether a process has ended.
const GLANCE: Duration = Duration::from_millis(10);
const BUILD_WITHIN: Duration = Duration::from_secs(900);
/// Longest run of one program: an emulated link that loses packets may need minutes.
const RUN_WITHIN: Duration = Duration::from_secs(240);
/// Least number of devices that gives each of the two ranks two devices.
const TWO_EACH: usize = 4;
/// Largest number of runs of perftest for one measurement.
const PERFTEST_TRIES: usize = 3;
/// Exponent of the retransmission timeout, on both sides: perftest's default, which is 67 ms. With
/// ferroccl's default of a second, the number of packets that an emulated link happens to lose
/// would decide the result.
const TIMEOUT: &str = "14";

/// Builds the measured programs; returns their directory.
pub(super) fn build() -> Outcome<std::path::PathBuf> {
    let mut build = cargo(&["build", "--profile", DIST]);
    build.args(PROGRAMS.iter().flat_map(|program| ["--example", program]));
    println!("$ {}", process::typed(&build));
    process::capture(&mut build, BUILD_WITHIN)?;
    Ok(target_dir()?.join(DIST).join("examples"))
}

/// Runs the measurements on this machine; returns the table.
pub(super) fn run(built: &Path, out: &Path, rounds: u32) -> Outcome<String> {
    if !process::is_installed("ib_write_bw") {
        return Err("perftest is missing: `cargo xtask setup` installs it".to_owned());
    }
    let side = Sides { built, json: out.join("rows.json"), all: all_rdma_ports() };
    if side.all.is_empty() {
        return Err("this machine has no RDMA device".to_owned());
    }
    let has_two = side.all.len() >= TWO_EACH;
    let mut rows = Vec::new();
    for what in What::all().filter(|what| has_two || *what != What::Latency(2)) {
        let sides: [&mut dyn FnMut() -> _; 2] =
            [&mut || side.ours(what), &mut || side.perftest(what)];
        let [ours, theirs] = in_turn(rounds, &what.text(), "perftest", sides)?;
        let shown = |series: &Series| {
            let us = series.median_us().unwrap_or(f64::NAN);
            let text = if what.is_latency() { us } else { what.bytes() as f64 * 8e-3 / us };
            format!("{text:.3}")
        };
        // Samples are times. The ratio of two rates is the inverse of the ratio of their times.
        let compared = match what.is_latency() {
            true => ratio(&ours, &theirs),
            false => ratio(&theirs, &ours),
        };
        rows.push(vec![what.text(), shown(&ours), shown(&theirs), compared, what.aim().to_owned()]);
    }
    let head = ["what", "ours", "perftest", "ours / perftest", "aim"];
    Ok(format!(
        "Against `ib_write_lat` and `ib_write_bw`, over {}:\n\n{}",
        side.ports().join(" and "),
        report::table(&head, &rows)
    ))
}

/// Quantity that is compared, always as a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    /// Half a round trip between ranks with this many devices each; perftest uses one device.
    Latency(usize),
    /// One message of a stream in one direction, of this many bytes.
    Stream(u64),
    /// An all_reduce, against a stream in both directions at once.
    AllReduce,
}

impl What {
    fn all() -> impl Iterator<Item = What> {
        let streams = STREAM_BYTES.into_iter().map(What::Stream);
        let latencies = [1, 2].into_iter().map(What::Latency);
        latencies.chain(streams).chain(std::iter::once(What::AllReduce))
    }

    fn bytes(self) -> u64 {
        match self {
            What::Latency(_) => LATENCY_BYTES,
            What::Stream(bytes) => bytes,
            What::AllReduce => ALL_REDUCE_BYTES,
        }
    }

    fn is_latency(self) -> bool {
        matches!(self, What::Latency(_))
    }

    fn text(self) -> String {
        let bytes = size(self.bytes());
        match self {
            What::Latency(1) => format!("{bytes} one way, µs"),
            What::Latency(devices) => format!("{bytes} one way, {devices} devices per rank, µs"),
            What::Stream(_) => format!("messages of {bytes} one way, {PAIRS} queue pairs, Gb/s"),
            What::AllReduce => {
                format!(
                    "all_reduce of {bytes}, against half of perftest's bidirectional rate, Gb/s"
                )
            }
        }
    }

    fn aim(self) -> &'static str {
        match self {
            What::Latency(_) => "1.5 at most",
            What::Stream(_) => "0.9 at least",
            What::AllReduce => "0.8 at least",
        }
    }
}

#[derive(Debug)]
struct Sides<'a> {
    built: &'a Path,
    json: std::path::PathBuf,
    /// Ports of all devices, in pairs: the first two reach each other, the next two reach each
    /// other.
    all: Vec<String>,
}

impl Sides<'_> {
    /// Returns the ports of two devices that reach each other, or the port of the only device.
    fn ports(&self) -> &[String] {
        &self.all[..self.all.len().min(2)]
    }

    /// Measures ferroccl; returns microseconds.
    fn ours(&self, what: What) -> Outcome<f64> {
        let mut command = self.command(what);
        command.arg("--json").arg(&self.json);
        if what == What::Latency(2) {
            self.over_two(&mut command)?;
        } else {
            command
                .args(["-g", "2"])
                .env("FERROCCL_IB_HCA", format!("={}", self.ports().join(",")));
            process::capture(&mut command, RUN_WITHIN)?;
        }
        let found = parse_json(&self.json)?;
        let typed = process::typed(&command);
        time_of(what, &found).ok_or_else(|| format!("`{typed}` wrote no times: {found}"))
    }

    /// Runs a command as rank 0 beside a rank 1. Each rank has one device on each of two networks.
    fn over_two(&self, command: &mut Command) -> Outcome {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
        let port = listener.and_then(|listener| listener.local_addr());
        let port = port.map_err(|error| format!("no port is free: {error}"))?.port().to_string();
        let be = |command: &mut Command, rank: usize| {
            command.env("RANK", rank.to_string()).env("WORLD_SIZE", "2");
            command.env("LOCAL_RANK", "0").env("LOCAL_WORLD_SIZE", "1");
            command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", &port);
            // Ranks of one host would divide its devices among themselves.
            command.env("FERROCCL_HOSTID", format!("host{rank}"));
            let hca = format!("={},{}", self.all[rank], self.all[rank + 2]);
            command.env("FERROCCL_IB_HCA", hca);
        };
        let mut other = self.command(What::Latency(2));
        be(&mut other, 1);
        other.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let other = other.spawn().map_err(|error| format!("cannot start rank 1: {error}"))?;
        let _other = Reaped(other);
        be(command, 0);
        process::capture(command, RUN_WITHIN).map(|_| ())
    }

    /// Returns the command of a measurement; the caller adds its ranks and devices.
    fn command(&self, what: What) -> Command {
        let program = if what == What::AllReduce { PROGRAMS[1] } else { PROGRAMS[0] };
        let mut command = Command::new(self.built.join(program));
        let bytes = what.bytes().to_string();
        let iterations = match what {
            What::Stream(bytes) => (STREAM_TOTAL / bytes / WINDOW).to_string(),
            What::AllReduce => "20".to_owned(),
            What::Latency(_) => LATENCY_ITERATIONS.to_owned(),
        };
        command.args(["--transport=verbs", "-b", &bytes, "-e", &bytes]);
        let warmup = if what.is_latency() { "50" } else { "3" };
        command.args(["-n", &iterations, "-w", warmup]);
        // Registered buffers, as in perftest.
        command.args(["-R", "1"]);
        command.env("FERROCCL_IB_POLICY", PAIRS.to_string()).env("FERROCCL_SOCKET_IFNAME", "lo");
        command.env("FERROCCL_IB_TIMEOUT", TIMEOUT);
        command
    }

    /// Measures perftest; returns microseconds per message and direction. On a busy machine
    /// perftest may fail to calibrate the processor's clock and print zeros; it is then run again.
    fn perftest(&self, what: What) -> Outcome<f64> {
        let mut tries = (0..PERFTEST_TRIES).map(|_| self.perftest_once(what));
        let found = tries.find_map(Result::transpose).transpose()?;
        found.ok_or_else(|| format!("perftest printed no time in {PERFTEST_TRIES} runs"))
    }

    /// Runs perftest once; returns `None` if it prints zeros.
    fn perftest_once(&self, what: What) -> Outcome<Option<f64>> {
        let (tool, mut more) = match what {
            What::Latency(_) => {
                ("ib_write_lat", vec!["-n".to_owned(), LATENCY_ITERATIONS.to_owned()])
            }
            What::Stream(bytes) => {
                let each = (STREAM_TOTAL / bytes / PAIRS).max(5);
                let words = ["-q", &PAIRS.to_string(), "-n", &each.to_string()];
                ("ib_write_bw", words.map(str::to_owned).to_vec())
            }
            // With `-b` (both directions), several queue pairs at once fail on Soft-RoCE devices.
            What::AllReduce => ("ib_write_bw", ["-b", "-n", "32"].map(str::to_owned).to_vec()),
        };
        if tool == "ib_write_bw" {
            more.push("--report_gbits".to_owned());
        }
        let bytes = what.bytes();
        let side = |port: &String| {
            let (device, number) = port.split_once(':').unwrap_or((port, "1"));
            let mut command = Command::new(tool);
            command.args(["-F", "-d", device, "-i", number, "-s", &bytes.to_string()]);
            command.args(["-u", TIMEOUT]).args(&more);
            if let Some(row) = gid_row(device, number) {
                command.args(["-x", &row]);
            }
            command
        };
        let (first, last) = (&self.ports()[0], &self.ports()[self.ports().len() - 1]);
        let mut server = side(first);
        server.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let server = server.spawn().map_err(|error| format!("cannot start {tool}: {error}"))?;
        let _server = Reaped(server);
        std::thread::sleep(HEAD_START);
        let mut client = side(last);
        client.arg("127.0.0.1");
        let said = process::capture(&mut client, RUN_WITHIN)?;
        let row = row_of(&said, bytes).ok_or_else(|| format!("{tool} printed no row:\n{said}"))?;
        let found = match what {
            What::Latency(_) => row.get(5).copied(),
            What::Stream(_) => row.get(3).map(|gbps| bytes as f64 * 8e-3 / gbps),
            What::AllReduce => row.get(3).map(|gbps| bytes as f64 * 8e-3 / (gbps / 2.0)),
        };
        Ok(found.filter(|us| us.is_finite() && *us > 0.0))
    }
}

/// Process, a server or a second rank, that is killed when this value is dropped.
struct Reaped(Child);

impl Drop for Reaped {
    fn drop(&mut self) {
        let _ = self.0.kill();
        // Wait until the process has ended: the next server uses the same port.
        for _ in 0..100 {
            if !matches!(self.0.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(GLANCE);
        }
    }
}

/// Returns the index of the GID for RoCE v2 over IPv4, if there is one.
fn gid_row(device: &str, port: &str) -> Option<String> {
    let port = format!("/sys/class/infiniband/{device}/ports/{port}");
    let read = |path: String| std::fs::read_to_string(path).unwrap_or_default();
    let row = (0..256).find(|row| {
        let kind = read(format!("{port}/gid_attrs/types/{row}"));
        let gid = read(format!("{port}/gids/{row}"));
        kind.trim() == "RoCE v2" && gid.starts_with("0000:0000:0000:0000:0000:ffff:")
    });
    row.map(|row| row.to_string())
}

/// Returns the numbers in perftest's row for messages of `bytes` bytes.
fn row_of(said: &str, bytes: u64) -> Option<Vec<f64>> {
    let rows = said.lines().map(|line| {
        let words = line.split_whitespace();
        words.map(|word| word.parse::<f64>()).collect::<Result<Vec<f64>, _>>().unwrap_or_default()
    });
    rows.into_iter().find(|row| row.len() >= 4 && row[0] == bytes as f64)
}

/// Returns the time of `what`, in microseconds, from the output of one of our programs.
fn time_of(what: What, found: &Value) -> Option<f64> {
    let results = &found["results"];
    match what {
        What::Latency(_) => results["latency_us"][0][1].as_f64(),
        What::Stream(bytes) => {
            Some(bytes as f64 * 1e-3 / results["bandwidth_gbps"][0][1].as_f64()?)
        }
        What::AllReduce => found["rows"][0]["out_of_place"]["time_us_p50"].as_f64(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_row_of_perftest_is_parsed() {
        let said = " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate\n \
                    1048576    40               0.00              0.25   \t\t   0.000023\n";
        assert_eq!(row_of(said, 1 << 20), Some(vec![1_048_576.0, 40.0, 0.0, 0.25, 0.000_023]));
        assert_eq!(row_of(said, 8), None);
        assert_eq!(row_of("Completion with error at client", 8), None);
    }

    #[test]
    fn times_are_parsed_from_the_json_of_our_programs() {
        let matrices = r#"{"results": {"latency_us": [[null, 7.5], [7.0, null]],
            "bandwidth_gbps": [[null, 0.5], [0.4, null]]}}"#;
        let matrices = serde_json::from_str(matrices).unwrap();
        assert_eq!(time_of(What::Latency(1), &matrices), Some(7.5));
        assert_eq!(time_of(What::Stream(1 << 20), &matrices), Some(2097.152));
        assert_eq!(time_of(What::AllReduce, &matrices), None);
    }
}
