//! `cargo xtask compare-transports`: the same collectives over each transport, side by side.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use ccl_plot::sweep;
use clap::Args;
use serde::Serialize;
use serde_json::Value;

use crate::bench::size;
use crate::guest::needs::LIBFABRIC;
use crate::machine::{Provenance, rdma_ports};
use crate::workspace::{cargo, target_dir};
use crate::{Outcome, guest, process, report};

/// Collectives and the programs that measure them.
const COLLECTIVES: [(&str, &str); 3] = [
    ("all_reduce", "all_reduce_perf"),
    ("all_to_all", "alltoall_perf"),
    ("broadcast", "broadcast_perf"),
];
/// Transports that can be compared.
const ALL: &str = "shm,tcp,verbs,ofi";
/// Transport that needs libfabric.
const OFI: &str = "ofi";
/// Largest size; sizes start at 16 bytes and grow by a factor of four.
const BYTES_MAX: &str = "1M";
const ITERATIONS: &str = "20";
const BUILD_WITHIN: Duration = Duration::from_secs(900);
const RUN_WITHIN: Duration = Duration::from_secs(120);
/// Time limit of all measurements in a guest, in seconds.
const GUEST_WITHIN: u64 = 1200;

/// Flags of `cargo xtask compare-transports`.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Directory for the table, the plot and the numbers; target/compare-transports by default.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Transports to compare.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    #[arg(default_value = ALL, value_parser = parse_transport)]
    transports: Vec<String>,
    /// Number of rounds per collective; each round measures every transport once.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Run only three sizes and few iterations: a test that everything works, not a measurement.
    #[arg(long)]
    short: bool,
    /// Directory of built programs to measure on this machine; passed by the host to the guest.
    #[arg(long, value_name = "DIR", hide = true)]
    built: Option<PathBuf>,
}

/// Measurement of a collective over a transport at one size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Point {
    bytes: u64,
    time_us: f64,
    /// Bus bandwidth in GB/s, as nccl-tests defines it: the bytes that the best algorithm sends
    /// over the slowest hardware link, per second.
    bus_gbps: f64,
}

/// Name of a transport, with its measurements of a collective, smallest size first.
type Line = (String, Vec<Point>);

/// Measurements of one collective.
#[derive(Clone, Debug, Serialize)]
struct Comparison {
    collective: &'static str,
    lines: Vec<Line>,
}

/// Builds the programs and runs them, in a guest if this machine has no RDMA device.
pub(crate) fn run(options: &Options) -> Outcome<ExitCode> {
    let out = match &options.out {
        Some(out) => out.clone(),
        None => target_dir()?.join("compare-transports"),
    };
    fs::create_dir_all(&out).map_err(|error| format!("cannot make {}: {error}", out.display()))?;
    if let Some(built) = &options.built {
        return measure(built, &out, options);
    }
    let examples = COLLECTIVES.iter().flat_map(|(_, program)| ["--example", program]);
    let mut build = cargo(&["build", "--release"]);
    build.args(examples);
    println!("$ {}", process::typed(&build));
    process::capture(&mut build, BUILD_WITHIN)?;
    let built = target_dir()?.join("release/examples");
    if !rdma_ports().is_empty() {
        return measure(&built, &out, options);
    }
    println!("this machine has no RDMA device, so the measurements run in an emulated guest");
    let (rounds, transports) = (options.rounds.to_string(), options.transports.join(","));
    let words = ["compare-transports".as_ref(), "--built".as_ref(), built.as_os_str()];
    let place = ["--out".as_ref(), out.as_os_str()];
    let more = ["--rounds", &rounds, "--transports", &transports].map(AsRef::as_ref);
    let short = options.short.then_some("--short".as_ref());
    let words = words.into_iter().chain(place).chain(more).chain(short);
    guest::again(words, out.clone(), GUEST_WITHIN)
}

fn measure(built: &Path, out: &Path, options: &Options) -> Outcome<ExitCode> {
    let rounds = options.rounds;
    let mut all = Vec::new();
    let has_libfabric = Path::new(LIBFABRIC).exists();
    if !has_libfabric && options.transports.iter().any(|name| name == OFI) {
        println!("there is no libfabric (libfabric1), so {OFI} is left out");
    }
    let is_there = |transport: &&String| *transport != OFI || has_libfabric;
    let mut transports = Vec::from_iter(options.transports.iter().filter(is_there));
    let mut seen = BTreeSet::new();
    transports.retain(|transport| seen.insert(*transport));
    if transports.is_empty() {
        return Err("there is nothing to compare without libfabric (libfabric1)".to_owned());
    }
    for (collective, program) in COLLECTIVES {
        let mut samples: BTreeMap<&str, BTreeMap<u64, Vec<Point>>> = BTreeMap::new();
        for round in 1..=rounds {
            for transport in &transports {
                let points = once(&built.join(program), transport, out, options.short)?;
                let last = points.last().map_or(0.0, |point| point.time_us);
                println!("{collective} over {transport}, round {round} of {rounds}: {last} µs");
                let known = samples.entry(transport).or_default();
                points.into_iter().for_each(|p| known.entry(p.bytes).or_default().push(p));
            }
        }
        let line = |transport: &&String| {
            let sizes = samples.remove(transport.as_str()).unwrap_or_default();
            ((*transport).clone(), sizes.into_values().filter_map(median).collect())
        };
        all.push(Comparison { collective, lines: transports.iter().map(line).collect() });
    }
    let [_, _, iterations, _] = sizes(options.short);
    let text = format!(
        "{}. 2 ranks. Each value is the median over {rounds} interleaved rounds; the value of a \
         round is the median over {iterations} calls out of place. tcp goes over the loopback \
         interface, verbs over {}, {OFI} over libfabric's provider tcp on loopback.\n\n{}",
        Provenance::now().sentence(),
        rdma_ports().join(" and "),
        all.iter().map(section).collect::<Vec<_>>().join("\n")
    );
    println!("\n{text}");
    let json = serde_json::to_string_pretty(&all).map_err(|error| error.to_string())?;
    for (name, content) in [("md", text), ("svg", draw(&all)), ("json", json)] {
        let file = out.join(format!("compare-transports.{name}"));
        let written = fs::write(&file, content);
        written.map_err(|error| format!("cannot write {}: {error}", file.display()))?;
        println!("{}", file.display());
    }
    Ok(ExitCode::SUCCESS)
}

fn parse_transport(name: &str) -> Result<String, String> {
    let known = ALL.split(',').find(|known| *known == name);
    known.map(str::to_owned).ok_or_else(|| format!("choose among {ALL}"))
}

/// Draws time and bus bandwidth against size: a row of figures per collective, with a line per
/// transport.
fn draw(all: &[Comparison]) -> String {
    let row = |Comparison { collective, lines }: &Comparison| {
        let point = |point: &Point| sweep::Point {
            size_bytes: point.bytes as f64,
            time_us: point.time_us,
            bus_gbps: point.bus_gbps,
        };
        let series = lines
            .iter()
            .map(|(transport, points)| (transport.clone(), points.iter().map(point).collect()));
        let title = format!("{collective}, 2 ranks");
        sweep::row(title, Provenance::now().sentence(), &Vec::from_iter(series))
    };
    ccl_plot::render(&Vec::from_iter(all.iter().map(row)))
}

/// Returns the arguments of a sweep: largest size, factor, iterations, warm-up calls.
fn sizes(short: bool) -> [&'static str; 4] {
    if short { ["64K", "64", "2", "1"] } else { [BYTES_MAX, "4", ITERATIONS, "5"] }
}

/// Runs a perf program once over a transport; returns its measurements.
fn once(program: &Path, transport: &str, out: &Path, short: bool) -> Outcome<Vec<Point>> {
    let rows = out.join("rows.json");
    let mut command = Command::new(program);
    let [most, factor, iterations, warmup] = sizes(short);
    command.args(["-g", "2", "-b", "16", "-c", "1", "-e", most, "-f", factor]);
    command.args(["-n", iterations, "-w", warmup]);
    command.arg("--json").arg(&rows);
    command.env("FERROCCL_TRANSPORT", transport).env("FERROCCL_SOCKET_IFNAME", "lo");
    command.env("FERROCCL_OFI_PROVIDER", "tcp");
    command.env("FERROCCL_IB_HCA", format!("={}", rdma_ports().join(",")));
    process::capture(&mut command, RUN_WITHIN)?;
    let text = fs::read_to_string(&rows);
    let text = text.map_err(|error| format!("cannot read {}: {error}", rows.display()))?;
    let _ = fs::remove_file(&rows);
    points(&text).ok_or_else(|| format!("{} wrote wrong or incomplete rows", program.display()))
}

/// Parses the rows of a perf program; returns `None` if a row has wrong values or lacks a field.
fn points(text: &str) -> Option<Vec<Point>> {
    let found: Value = serde_json::from_str(text).ok()?;
    let rows = found["rows"].as_array()?.iter();
    rows.map(|row| {
        let place = &row["out_of_place"];
        let right = place["wrong"].as_u64() == Some(0);
        let (bytes, time_us) = (row["size_bytes"].as_u64()?, place["time_us_p50"].as_f64()?);
        let factor = place["busbw_gbps"].as_f64()? * place["time_us"].as_f64()?;
        right.then_some(Point { bytes, time_us, bus_gbps: factor / time_us })
    })
    .collect()
}

fn median(mut points: Vec<Point>) -> Option<Point> {
    points.sort_by(|one, other| one.time_us.total_cmp(&other.time_us));
    points.get(points.len() / 2).copied()
}

/// Returns the table of a collective.
fn section(comparison: &Comparison) -> String {
    let Comparison { collective, lines } = comparison;
    let mut head = vec!["size".to_owned()];
    for (transport, _) in lines {
        head.extend([format!("{transport}, µs"), format!("{transport}, bus GB/s")]);
    }
    let sizes = lines.first().map_or(&[][..], |(_, points)| points);
    let rows: Vec<Vec<String>> = sizes
        .iter()
        .map(|Point { bytes, .. }| {
            let mut row = vec![size(*bytes)];
            for (_, points) in lines {
                let point = points.iter().find(|point| point.bytes == *bytes);
                row.push(point.map_or("-".to_owned(), |point| format!("{:.2}", point.time_us)));
                row.push(point.map_or("-".to_owned(), |point| format!("{:.4}", point.bus_gbps)));
            }
            row
        })
        .collect();
    let head: Vec<&str> = head.iter().map(String::as_str).collect();
    format!("{collective}:\n\n{}", report::table(&head, &rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROW: &str = r#"{"rows": [{"size_bytes": 8, "out_of_place":
        {"time_us": 4.0, "time_us_p50": 2.0, "busbw_gbps": 0.002, "wrong": 0}}]}"#;

    #[test]
    fn rows_become_points_unless_they_have_wrong_values() {
        let point = Point { bytes: 8, time_us: 2.0, bus_gbps: 0.004 };
        assert_eq!(points(ROW), Some(vec![point]));
        assert_eq!(points(&ROW.replace("\"wrong\": 0", "\"wrong\": 3")), None);
        assert_eq!(points("{}"), None);
    }

    #[test]
    fn the_table_has_a_row_per_size_and_columns_per_transport() {
        let point = |bytes, time_us| Point { bytes, time_us, bus_gbps: 0.5 };
        let lines = vec![
            ("shm".to_owned(), vec![point(8, 1.0), point(1 << 10, 2.0)]),
            ("tcp".to_owned(), vec![point(8, 7.0)]),
        ];
        let text = section(&Comparison { collective: "broadcast", lines });
        assert!(text.starts_with("broadcast:\n\n| size  | shm, µs | shm, bus GB/s | tcp, µs |"));
        assert!(text.contains("| 8 B   | 1.00    | 0.5000        | 7.00    | 0.5000        |"));
        assert!(text.contains("| 1 KiB | 2.00    | 0.5000        | -       | -             |"));
    }

    #[test]
    fn the_picture_has_a_figure_per_collective_and_a_line_per_transport() {
        let point = |bytes, time_us| Point { bytes, time_us, bus_gbps: 0.5 };
        let lines = vec![
            ("shm".to_owned(), vec![point(8, 1.0), point(32, 2.0)]),
            ("tcp".to_owned(), vec![point(8, 7.0)]),
        ];
        let one = Comparison { collective: "broadcast", lines };
        let two = Comparison { collective: "all_reduce", ..one.clone() };
        let svg = draw(&[one, two]);
        for name in ["broadcast, 2 ranks", "all_reduce, 2 ranks"] {
            assert!(svg.contains(name), "{name}");
        }
        let count = |name: &str| svg.lines().filter(|line| line.trim() == name).count();
        assert_eq!((count("shm"), count("tcp")), (2, 2));
        assert!(draw(&[]).contains("<svg "));
    }

    #[test]
    fn the_median_is_the_point_with_the_middle_time() {
        let point = |time_us| Point { bytes: 8, time_us, bus_gbps: 1.0 / time_us };
        assert_eq!(median(vec![point(9.0), point(1.0), point(2.0)]), Some(point(2.0)));
        assert_eq!(median(Vec::new()), None);
    }
}
