//! Our plugin for NCCL side by side with a reference plugin that is built like NCCL's own socket
//! transport. Both are measured through the plugin interface, over TCP between two processes of
//! this host. Our plugin is also compared with the bare transport, and the reference with iperf3.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use super::summary::{Series, ratio, size};
use super::{DIST, Sample, parse_json};
use crate::workspace::{cargo, target_dir};
use crate::{Outcome, process, report};

/// Message sizes that cover everything that NCCL sends.
pub(super) const SIZES: [u64; 9] =
    [8, 1 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20];
/// Shortest message at which the plugin's own cost should be negligible.
const LONG_BYTES: u64 = 64 << 10;
/// Example that measures the transport without the plugin: it sends each message as a put.
const BARE: &str = "stream";
const IPERF_SECONDS: &str = "1";
const BUILD_WITHIN: Duration = Duration::from_secs(1800);
const RUN_WITHIN: Duration = Duration::from_secs(120);

/// Built programs, ready to measure.
struct Built {
    /// Directory of the programs.
    programs: PathBuf,
    /// File that netcheck writes its results to.
    json: PathBuf,
}

/// Measurements of one side at one size.
#[derive(Debug, Default)]
struct Found {
    latency: Series,
    stream: Series,
}

/// Measures; returns the tables.
pub(super) fn run(sizes: &[u64], rounds: u32) -> Outcome<String> {
    let built = build()?;
    let mut ours: Vec<Found> = sizes.iter().map(|_| Found::default()).collect();
    let mut theirs: Vec<Found> = sizes.iter().map(|_| Found::default()).collect();
    let mut bare: Vec<Series> = sizes.iter().map(|_| Series::default()).collect();
    let has_iperf = process::is_installed("iperf3");
    let mut iperf = Series::default();
    for round in 1..=rounds {
        println!("round {round} of {rounds}");
        built.plugin("libnccl_net_ferroccl.so", sizes, &mut ours)?;
        built.plugin("libnccl_net_reference.so", sizes, &mut theirs)?;
        for (bytes, series) in sizes.iter().zip(&mut bare) {
            if *bytes >= LONG_BYTES {
                series.push(built.bare(*bytes)?);
            }
        }
        if has_iperf {
            iperf.push(run_iperf()?);
        }
    }
    let mut text = format!(
        "Over TCP through the plugin interface, measured by `ferroccl netcheck`: half of a \
         round trip in µs, and a stream with 8 messages in flight in GB/s:\n\n{}",
        against_reference(sizes, &ours, &theirs)
    );
    text.push_str(&format!(
        "\nThe stream through the plugin against a stream of puts over the transport alone, in \
         GB/s:\n\n{}",
        against_bare(sizes, &ours, &bare)
    ));
    text.push_str(&match has_iperf {
        true => format!("\n{}\n", against_iperf(sizes, &theirs, &iperf)),
        false => "\niperf3 is missing (`cargo xtask setup` installs it).\n".to_owned(),
    });
    Ok(text)
}

fn build() -> Outcome<Built> {
    for words in [
        &["-p", "ccl-nccl-net", "-p", "ccl-reference-plugin", "-p", "ccl-netcheck"][..],
        &["-p", "ccl-transport-tcp", "--example", BARE],
    ] {
        let mut build = cargo(&["build", "--profile", DIST]);
        build.args(words);
        println!("$ {}", process::typed(&build));
        process::capture(&mut build, BUILD_WITHIN)?;
    }
    let target = target_dir()?;
    Ok(Built { programs: target.join(DIST), json: target.join("bench-nccl-net.json") })
}

impl Built {
    /// Measures one round of a plugin at all sizes.
    fn plugin(&self, library: &str, sizes: &[u64], found: &mut [Found]) -> Outcome {
        let mut command = Command::new(self.programs.join("netcheck"));
        let list: Vec<String> = sizes.iter().map(u64::to_string).collect();
        command.arg(self.programs.join(library)).args(["--performance-only", "--sizes"]);
        command.arg(list.join(",")).arg("--json").arg(&self.json);
        process::capture(command.env("FERROCCL_TRANSPORT", "tcp"), RUN_WITHIN)?;
        let json = parse_json(&self.json)?;
        for (bytes, found) in sizes.iter().zip(found) {
            let (latency, stream) = measured(&json, *bytes)
                .ok_or_else(|| format!("netcheck measured nothing at {bytes} bytes: {json}"))?;
            found.latency.push(latency);
            found.stream.push(stream);
        }
        Ok(())
    }

    /// Measures the transport without a plugin.
    fn bare(&self, bytes: u64) -> Outcome<Sample> {
        let mut command = Command::new(self.programs.join("examples").join(BARE));
        let said = process::capture(command.arg(bytes.to_string()), RUN_WITHIN)?;
        let json: Value = serde_json::from_str(&said).unwrap_or_default();
        let rate = json["bandwidth_gbps"].as_f64();
        Ok(message(bytes, rate.ok_or_else(|| format!("`{BARE}` measured nothing: {said}"))?))
    }
}

/// Measures one connection of iperf3 over loopback; returns the time that 64 KiB take.
fn run_iperf() -> Outcome<Sample> {
    // Finds a free port; the listener is closed again before the server starts.
    let listener = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    let port = listener.map_err(|error| format!("no port is free: {error}"))?.port();
    // The iperf3 server does not announce that it listens.
    let line = format!(
        "iperf3 -s -1 -p {port} >/dev/null & sleep 0.3; \
         iperf3 -c 127.0.0.1 -P 1 -t {IPERF_SECONDS} -p {port} -J; wait"
    );
    let output = process::capture(Command::new("sh").args(["-c", &line]), RUN_WITHIN)?;
    let output: Value = serde_json::from_str(&output)
        .map_err(|error| format!("iperf3 printed no JSON: {error}"))?;
    let bits = output["end"]["sum_received"]["bits_per_second"].as_f64();
    Ok(message(LONG_BYTES, bits.ok_or("iperf3 measured nothing")? / 8e9))
}

/// Returns the time of a message in a stream of `rate` GB/s.
fn message(bytes: u64, rate: f64) -> Sample {
    Sample { median_us: bytes as f64 / rate / 1e3, p99_us: None }
}

/// Parses netcheck's output; returns the latency, and the time of one message of a stream.
fn measured(json: &Value, bytes: u64) -> Option<(Sample, Sample)> {
    let row = json["performance"].as_array()?.iter().find(|row| row["bytes"] == bytes)?;
    let p99_us = row["latency_p99_us"].as_f64();
    let latency = Sample { median_us: row["latency_us"].as_f64()?, p99_us };
    Some((latency, message(bytes, row["bandwidth_gbps"].as_f64()?)))
}

fn rate(bytes: u64, series: &Series) -> f64 {
    bytes as f64 / series.median_us().unwrap_or(f64::NAN) / 1e3
}

fn against_reference(sizes: &[u64], ours: &[Found], theirs: &[Found]) -> String {
    let time = |series: &Series| format!("{:.2}", series.median_us().unwrap_or(f64::NAN));
    let row = |((bytes, ours), theirs): ((&u64, &Found), &Found)| {
        vec![
            size(*bytes),
            time(&ours.latency),
            time(&theirs.latency),
            ratio(&ours.latency, &theirs.latency),
            format!("{:.3}", rate(*bytes, &ours.stream)),
            format!("{:.3}", rate(*bytes, &theirs.stream)),
            // Samples are times, so the ratio of rates is inverted.
            ratio(&theirs.stream, &ours.stream),
        ]
    };
    let rows: Vec<_> = sizes.iter().zip(ours).zip(theirs).map(row).collect();
    let head = ["size", "ours, µs", "reference", "ours / reference"];
    report::table(&[&head[..], &["ours, GB/s", "reference", "ours / reference"]].concat(), &rows)
}

fn against_bare(sizes: &[u64], ours: &[Found], bare: &[Series]) -> String {
    let measured = sizes.iter().zip(ours).zip(bare).filter(|((bytes, _), _)| **bytes >= LONG_BYTES);
    let row = |((bytes, ours), bare): ((&u64, &Found), &Series)| {
        let (own, other) = (rate(*bytes, &ours.stream), rate(*bytes, bare));
        let compared = ratio(bare, &ours.stream);
        vec![size(*bytes), format!("{own:.2}"), format!("{other:.2}"), compared]
    };
    let rows: Vec<_> = measured.map(row).collect();
    report::table(&["size", "plugin", "transport", "plugin / transport"], &rows)
}

/// Compares the reference plugin with iperf3, to show that the reference is fast.
fn against_iperf(sizes: &[u64], theirs: &[Found], iperf: &Series) -> String {
    let rates = sizes.iter().zip(theirs).map(|(bytes, found)| rate(*bytes, &found.stream));
    let (best, line) = (rates.fold(0.0, f64::max), rate(LONG_BYTES, iperf));
    format!(
        "The reference reaches {best:.2} GB/s at its best size, {:.2} of the rate of `iperf3 -P \
         1`, which reaches {line:.2} GB/s.",
        best / line
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_parsed_from_the_json_of_netcheck() {
        let json = r#"{"performance": [
            {"bytes": 8, "latency_us": 2.5, "latency_p99_us": 9.0, "bandwidth_gbps": 0.004}]}"#;
        let json = serde_json::from_str(json).unwrap();
        let (latency, stream) = measured(&json, 8).unwrap();
        assert_eq!(latency, Sample { median_us: 2.5, p99_us: Some(9.0) });
        assert_eq!(stream, Sample { median_us: 2.0, p99_us: None });
        assert_eq!(measured(&json, 9), None);
    }

    #[test]
    fn tables_divide_times_by_times_and_rates_by_rates() {
        let found = |us: f64| {
            let mut found = Found::default();
            found.latency.push(Sample { median_us: us, p99_us: None });
            found.stream.push(Sample { median_us: us, p99_us: None });
            found
        };
        let (ours, theirs) = ([found(10.0)], [found(20.0)]);
        let table = against_reference(&[100_000], &ours, &theirs);
        assert!(table.contains("0.50 (0.50..0.50)") && table.contains("2.00 (2.00..2.00)"));
        assert!(table.contains("10.000") && table.contains("5.000"), "{table}");
        let table = against_bare(&[100_000], &ours, &[found(8.0).stream]);
        assert!(table.contains("0.80 (0.80..0.80)"), "{table}");
        assert!(!against_bare(&[8], &ours, &[found(8.0).stream]).contains("0.80"));
        let line = against_iperf(&[100_000], &theirs, &found(6.5536).stream);
        assert!(line.contains("5.00 GB/s") && line.contains("0.50 of"), "{line}");
    }
}
