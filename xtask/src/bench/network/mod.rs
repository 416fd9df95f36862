//! Two ranks on two hosts, side by side with other programs on the same link: latency, all_reduce
//! and bandwidth over TCP.

mod hosts;
mod sides;

use crate::{Outcome, report};

use super::summary::{Series, ratio, size};
use super::{DIST, Job, Sample};
use hosts::Host;
use sides::{Gloo, Mpi, Ours, Side};

/// Default message sizes of all_reduce.
pub(super) const SIZES: [u64; 4] = [1 << 10, 64 << 10, 1 << 20, 64 << 20];
const LATENCY_BYTES: u64 = 8;
const STREAM_BYTES: u64 = 1 << 20;

/// Runs all measurements; returns the tables.
pub(super) fn run(sizes: &[u64], rounds: u32) -> Outcome<String> {
    let binaries = sides::build()?;
    let hosts = hosts::joined()?;
    let ours = Ours::new(&binaries, "all_reduce_perf")?;
    let mpi = Mpi::new(&hosts)?;
    let gloo = Gloo::new()?;
    let encrypted = Ours::new(&binaries, "all_reduce_perf")?.encrypted();
    let mut text = latency(&hosts, &ours, &binaries, rounds)?;
    let mut peers: Vec<&dyn Side> = vec![&encrypted];
    peers.extend(mpi.as_ref().map(|side| side as &dyn Side));
    peers.extend(gloo.as_ref().map(|side| side as &dyn Side));
    text.push_str(&all_reduce(&hosts, &ours, &peers, sizes, rounds)?);
    text.push_str(&stream(&hosts, &binaries, rounds)?);
    Ok(text)
}

/// Measures the sides in turns, round by round.
fn interleave(
    hosts: &[Host; 2],
    sides: &[&dyn Side],
    job: Job,
    rounds: u32,
) -> Outcome<Vec<Series>> {
    let mut series: Vec<Series> = sides.iter().map(|_| Series::default()).collect();
    for round in 1..=rounds {
        for (side, series) in sides.iter().zip(&mut series) {
            let sample = side.measure(hosts, job)?;
            let (bytes, median) = (size(job.bytes), sample.median_us);
            println!("{bytes}, round {round} of {rounds}: {} {median:.2} µs", side.name());
            series.push(sample);
        }
    }
    Ok(series)
}

fn time(value: Option<f64>) -> String {
    value.map_or("-".to_owned(), |us| format!("{us:.2}"))
}

fn latency(
    hosts: &[Host; 2],
    ours: &Ours,
    binaries: &sides::Binaries,
    rounds: u32,
) -> Outcome<String> {
    let bare = sides::PingPong::new(binaries);
    let series = interleave(hosts, &[ours, &bare], Job::new(LATENCY_BYTES, 2), rounds)?;
    let row = vec![
        size(LATENCY_BYTES),
        time(series[0].median_us()),
        time(series[0].p99_us()),
        time(series[1].median_us()),
        time(series[1].p99_us()),
        ratio(&series[0], &series[1]),
    ];
    let header = ["size", "all_reduce", "p99", "round trip", "p99", "ratio"];
    Ok(format!(
        "All_reduce against a bare round trip on one socket that both sides poll, in µs:\n\n{}",
        report::table(&header, &[row])
    ))
}

fn all_reduce(
    hosts: &[Host; 2],
    ours: &Ours,
    peers: &[&dyn Side],
    sizes: &[u64],
    rounds: u32,
) -> Outcome<String> {
    let mut sides: Vec<&dyn Side> = vec![ours];
    sides.extend(peers);
    let mut header = vec!["size".to_owned(), "ours".to_owned(), "p99".to_owned()];
    for peer in peers {
        header.push(peer.name().to_owned());
        header.push("p99".to_owned());
        header.push(format!("ours / {}", peer.name()));
    }
    let mut rows = Vec::new();
    for &bytes in sizes {
        let series = interleave(hosts, &sides, Job::new(bytes, 2), rounds)?;
        let mut row = vec![size(bytes), time(series[0].median_us()), time(series[0].p99_us())];
        for peer in &series[1..] {
            row.extend([time(peer.median_us()), time(peer.p99_us()), ratio(&series[0], peer)]);
        }
        rows.push(row);
    }
    let header: Vec<&str> = header.iter().map(String::as_str).collect();
    let table = report::table(&header, &rows);
    Ok(format!("\nAll_reduce, float32 sum, out of place (Gloo in place), in µs:\n\n{table}"))
}

fn stream(hosts: &[Host; 2], binaries: &sides::Binaries, rounds: u32) -> Outcome<String> {
    let Some(iperf) = sides::Iperf::new() else {
        return Ok("\niperf3 is missing (`cargo xtask setup` installs it).\n".to_owned());
    };
    let ours = sides::Stream::new(binaries)?;
    let series = interleave(hosts, &[&ours, &iperf], Job::new(STREAM_BYTES, 2), rounds)?;
    let rate = |series: &Series| {
        let us = series.median_us().unwrap_or(f64::NAN);
        format!("{:.2}", STREAM_BYTES as f64 / us / 1e3)
    };
    let row = vec![
        size(STREAM_BYTES),
        rate(&series[0]),
        rate(&series[1]),
        // Samples are times, so the ratio of rates is inverted.
        ratio(&series[1], &series[0]),
    ];
    let header = ["message", "p2p_matrix", "iperf3", "p2p_matrix / iperf3"];
    let table = report::table(&header, &[row]);
    Ok(format!("\nA stream in one direction over one connection, in GB/s:\n\n{table}"))
}
