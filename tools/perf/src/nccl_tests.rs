//! JSON file of nccl-tests (`-J`), key for key as version 2.19.6 writes it (`src/util.cu`, file
//! version 3), so that tools for nccl-tests' files can read ferroccl's.
//!
//! Ranks run on CPUs, so fields about GPUs describe ranks and CPUs. The field for NCCL's version
//! has this library's version, in the same encoding. `env` lists only variables of this library
//! whose values differ from the defaults. Booleans are `"true"` and `"false"`, as text; NaN is
//! `"nan"`; a value that was not measured is `null`.

use ccl_core::config::Config;
use ferroccl::transports;
use serde::Serialize;
use serde::ser::SerializeMap as _;

use super::options::Options;
use super::report::{Half, Origin, Row, average_bus_gbps, iso_8601, now};
use super::sizes::Step;
use super::table::RankLine;

/// Version of the file format.
const FILE_VERSION: u32 = 3;

/// Results of a sweep, for nccl-tests' file.
#[derive(Debug)]
pub struct Report<'a> {
    /// Options of the run.
    pub options: &'a Options,
    /// Origin of the results.
    pub origin: &'a Origin,
    /// Ranks that took part.
    pub ranks: &'a [RankLine],
    /// Time at which the run began, in seconds since 1970.
    pub began_s: u64,
    /// Words of the command line.
    pub arguments: Vec<String>,
    /// Configuration of the library.
    pub config: Config,
    /// Measurements.
    pub rows: &'a [Row],
    /// Number of measurements with wrong elements.
    pub failed: u64,
}

#[derive(Serialize)]
struct File {
    version: u32,
    start_time: String,
    args: Vec<String>,
    env: Vec<String>,
    nccl_version: u32,
    config: Settings,
    results: Vec<Measured>,
    out_of_bounds: OutOfBounds,
    average_bus_bandwidth: Average,
    errors: [String; 0],
    end_time: String,
}

#[derive(Serialize)]
struct Settings {
    nthreads: u32,
    ngpus: u32,
    minimum_bytes: usize,
    maximum_bytes: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    step_factor: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    step_bytes: Option<usize>,
    warmup_iters: u32,
    iterations: u32,
    aggregated_iterations: u32,
    validation: u32,
    graph: u32,
    blocking_collectives: Truth,
    per_iter_timing: Truth,
    per_iter_skip: u32,
    parallel_init: Truth,
    devices: Vec<Device>,
}

#[derive(Serialize)]
struct Device {
    rank: usize,
    group: u32,
    pid: u32,
    hostname: String,
    device: usize,
    device_hex: String,
    device_info: String,
}

#[derive(Serialize)]
struct Measured {
    size: usize,
    count: usize,
    r#type: String,
    redop: String,
    root: String,
    out_of_place: Option<Times>,
    in_place: Option<Times>,
    actual_iterations: u32,
    experiment_name: &'static str,
}

#[derive(Serialize)]
struct OutOfBounds {
    count: u64,
    okay: Truth,
}

#[derive(Serialize)]
struct Average {
    bandwidth: Number,
    okay: &'static str,
}

struct Times(Half);

impl Serialize for Times {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Half { times, algorithm_gbps, bus_gbps, wrong } = self.0;
        let mut map = serializer.serialize_map(Some(4))?;
        map.serialize_entry("time", &Number(times.mean_us))?;
        map.serialize_entry("alg_bw", &Number(algorithm_gbps))?;
        map.serialize_entry("bus_bw", &Number(bus_gbps))?;
        map.serialize_entry("nwrong", &wrong.map(|wrong| Number(wrong as f64)))?;
        map.end()
    }
}

struct Truth(bool);

impl Serialize for Truth {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(if self.0 { "true" } else { "false" })
    }
}

struct Number(f64);

impl Serialize for Number {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0.is_nan() {
            true => serializer.serialize_str("nan"),
            false => serializer.serialize_f64(self.0),
        }
    }
}

/// Formats a time as nccl-tests does.
fn date(seconds: u64) -> String {
    iso_8601(seconds).replace('T', " ").replace('Z', "")
}

/// Returns a version in the encoding that NCCL has used since 2.9: 22809 is 2.28.9.
fn version(of: &str) -> u32 {
    let mut parts = of.split('.').map(|part| part.parse().unwrap_or(0));
    let mut next = || parts.next().unwrap_or(0);
    next() * 10_000 + next() * 100 + next()
}

/// Returns the variables of the configuration that differ from their defaults.
fn env(config: &Config) -> Vec<String> {
    let all = config.list(&transports::tables()).unwrap_or_default();
    let changed = all.into_iter().filter(|tunable| tunable.value != tunable.default);
    changed.map(|tunable| format!("{}={}", tunable.variable, tunable.value)).collect()
}

/// Returns the text of the file.
///
/// # Errors
/// No error in practice: every key is a string.
pub fn json(report: &Report<'_>) -> Result<String, serde_json::Error> {
    let Report { options, origin, ranks, rows, failed, .. } = *report;
    let row = |row: &Row| Measured {
        size: row.size_bytes,
        count: row.count,
        r#type: row.data_type.clone(),
        redop: row.op.clone(),
        root: format!("{:6}", row.root),
        out_of_place: Some(Times(row.out_of_place)),
        in_place: row.in_place.map(Times),
        actual_iterations: options.iterations,
        experiment_name: "",
    };
    let file = File {
        version: FILE_VERSION,
        start_time: date(report.began_s),
        args: report.arguments.clone(),
        env: env(&report.config),
        nccl_version: version(origin.version),
        config: settings(options, origin, ranks),
        results: rows.iter().map(row).collect(),
        out_of_bounds: OutOfBounds { count: failed, okay: Truth(failed == 0) },
        average_bus_bandwidth: Average {
            bandwidth: Number(average_bus_gbps(rows)),
            okay: "unchecked",
        },
        errors: [],
        end_time: date(now().as_secs()),
    };
    serde_json::to_string(&file)
}

fn settings(options: &Options, origin: &Origin, ranks: &[RankLine]) -> Settings {
    let (step_factor, step_bytes) = match options.step() {
        Step::Factor(factor) => (Some(factor), None),
        Step::Bytes(bytes) => (None, Some(bytes)),
    };
    let device = |(rank, line): (usize, &RankLine)| {
        // Ranks, which run on CPUs, are numbered within their host, as GPUs are.
        let before = ranks.iter().take(rank).filter(|other| other.host == line.host);
        Device {
            rank,
            group: 0,
            pid: line.pid,
            hostname: line.host.clone(),
            device: before.count(),
            device_hex: String::new(),
            device_info: origin.cpu.clone(),
        }
    };
    Settings {
        nthreads: 1,
        ngpus: options.local_ranks.unwrap_or(1),
        minimum_bytes: options.min_bytes,
        maximum_bytes: options.max_bytes,
        step_factor,
        step_bytes,
        warmup_iters: options.warmup_iterations,
        iterations: options.iterations,
        aggregated_iterations: options.aggregated,
        validation: options.checks,
        graph: 0,
        blocking_collectives: Truth(options.blocking > 0),
        per_iter_timing: Truth(false),
        per_iter_skip: 0,
        parallel_init: Truth(false),
        devices: ranks.iter().enumerate().map(device).collect(),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use serde_json::Value;

    use super::super::options::{CommandLine, NoExtra};
    use super::super::timing::Times;
    use super::*;

    /// Keys that `src/util.cu` of nccl-tests 2.19.6 writes, by the object that contains them. They
    /// are in `jsonOutputInit` and the functions after it; keys of `-I 1` are left out.
    const KEYS: [(&str, &str); 7] = [
        (
            "",
            "version start_time args env nccl_version config results out_of_bounds \
             average_bus_bandwidth errors end_time",
        ),
        (
            "/config",
            "nthreads ngpus minimum_bytes maximum_bytes step_factor warmup_iters iterations \
             aggregated_iterations validation graph blocking_collectives per_iter_timing \
             per_iter_skip parallel_init devices",
        ),
        ("/config/devices/0", "rank group pid hostname device device_hex device_info"),
        (
            "/results/0",
            "size count type redop root out_of_place in_place actual_iterations experiment_name",
        ),
        ("/results/0/out_of_place", "time alg_bw bus_bw nwrong"),
        ("/out_of_bounds", "count okay"),
        ("/average_bus_bandwidth", "bandwidth okay"),
    ];

    fn written(line: &str, in_place: bool) -> Value {
        let words = std::iter::once("perf").chain(line.split_whitespace());
        let options = CommandLine::<NoExtra>::try_parse_from(words).unwrap().options;
        let origin = Origin::here("all_reduce_perf", "shm".to_owned(), 2);
        let times = Times { mean_us: 2.5, ..Times::default() };
        let half = Half { times, algorithm_gbps: 4.0, bus_gbps: f64::NAN, wrong: None };
        let row = Row {
            size_bytes: 8,
            count: 2,
            data_type: "float".to_owned(),
            op: "sum".to_owned(),
            root: -1,
            plan: None,
            out_of_place: half,
            in_place: in_place.then_some(Half { wrong: Some(3), ..half }),
        };
        let line = RankLine { pid: 7, host: "a".to_owned() };
        let mut config = Config::default();
        "ring".clone_into(&mut config.algorithm);
        let report = Report {
            options: &options,
            origin: &origin,
            ranks: &[line.clone(), line],
            began_s: 951_782_399,
            arguments: vec!["all_reduce_perf".to_owned(), "-g".to_owned()],
            config,
            rows: &[row],
            failed: 1,
        };
        serde_json::from_str(&json(&report).unwrap()).unwrap()
    }

    #[test]
    fn keys_are_those_of_nccl_tests() {
        let file = written("-b 8 -f 2 -g 2", true);
        for (place, keys) in KEYS {
            let object = file.pointer(place).and_then(Value::as_object).unwrap();
            let mut keys: Vec<&str> = keys.split_whitespace().collect();
            keys.sort_unstable();
            let mut own: Vec<&str> = object.keys().map(String::as_str).collect();
            own.sort_unstable();
            assert_eq!(own, keys, "{place}");
        }
        let step = written("-b 8 -i 8", true);
        assert_eq!(step["config"]["step_bytes"], 8);
        assert!(step["config"].get("step_factor").is_none());
    }

    #[test]
    fn values_have_the_types_of_nccl_tests() {
        let file = written("-b 8 -f 2 -z 1 -c 0 -g 2", false);
        assert_eq!(
            (&file["version"], &file["start_time"]),
            (&3.into(), &"2000-02-28 23:59:59".into())
        );
        assert_eq!(file["env"], serde_json::json!(["FERROCCL_ALGO=ring"]));
        assert_eq!(file["nccl_version"], version(env!("CARGO_PKG_VERSION")));
        assert_eq!(version("2.28.9"), 22_809);
        assert_eq!(file["config"]["blocking_collectives"], "true");
        assert_eq!(file["config"]["devices"][1]["device"], 1);
        let row = &file["results"][0];
        assert_eq!((&row["root"], &row["redop"]), (&"    -1".into(), &"sum".into()));
        assert_eq!(row["out_of_place"]["time"], 2.5);
        assert_eq!(
            (&row["out_of_place"]["bus_bw"], &row["in_place"]),
            (&"nan".into(), &Value::Null)
        );
        assert!(row["out_of_place"]["nwrong"].is_null());
        assert_eq!(file["out_of_bounds"], serde_json::json!({"count": 1, "okay": "false"}));
        assert_eq!(file["average_bus_bandwidth"]["okay"], "unchecked");
    }
}
