//! Measured rows, and the JSON file of a sweep.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ccl_core::queue_pairs::{Flow, max_to_mean};
use serde::Serialize;

use super::subject::{Peer, Plan};
use super::timing::Times;
use ferroccl::tools::processor;

/// One half of a row: out of place or in place.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Half {
    /// Times of one call.
    #[serde(flatten)]
    pub times: Times,
    /// Size over time, 10^9 bytes per second.
    #[serde(rename = "algbw_gbps")]
    pub algorithm_gbps: f64,
    /// Size over time, multiplied by the bus factor.
    #[serde(rename = "busbw_gbps")]
    pub bus_gbps: f64,
    /// Number of wrong elements on all ranks; `None` if nothing was checked.
    pub wrong: Option<u64>,
}

/// One row of the table.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Bytes of the larger buffer.
    pub size_bytes: usize,
    /// Number of elements of the call.
    pub count: usize,
    /// Name of the type.
    pub data_type: String,
    /// Name of the operator, or `none`.
    pub op: String,
    /// Root rank, or -1.
    pub root: i64,
    /// Plan of the call; only on rank 0, and only if the JSON report is written.
    pub plan: Option<Plan>,
    /// Measurement with separate input and output.
    pub out_of_place: Half,
    /// Measurement with one buffer for input and output; `None` if there is no in-place form.
    pub in_place: Option<Half>,
}

impl Row {
    /// Returns the halves that were measured.
    pub fn halves(&self) -> impl Iterator<Item = &Half> {
        std::iter::once(&self.out_of_place).chain(&self.in_place)
    }
}

impl Serialize for Row {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct as _;
        let mut row = serializer.serialize_struct("Row", 8)?;
        row.serialize_field("size_bytes", &self.size_bytes)?;
        row.serialize_field("count", &self.count)?;
        row.serialize_field("type", &self.data_type)?;
        row.serialize_field("redop", &self.op)?;
        row.serialize_field("root", &self.root)?;
        let plan = self.plan.as_ref().map(|plan| {
            serde_json::json!({
                "algorithm": plan.algorithm, "text": plan.text, "detail": plan.detail,
            })
        });
        row.serialize_field("plan", &plan)?;
        row.serialize_field("out_of_place", &self.out_of_place)?;
        row.serialize_field("in_place", &self.in_place)?;
        row.end()
    }
}

/// Returns the mean bus bandwidth over all measurements, 10^9 bytes per second; 0 without rows.
#[must_use]
pub fn average_bus_gbps(rows: &[Row]) -> f64 {
    let (sum, count) = rows
        .iter()
        .flat_map(Row::halves)
        .fold((0.0, 0_u32), |(sum, count), half| (sum + half.bus_gbps, count + 1));
    sum / f64::from(count.max(1))
}

/// Machine, version and transport that the rows were measured with.
#[derive(Clone, Debug, Serialize)]
pub struct Origin {
    /// Name of the program.
    pub program: String,
    /// Version of the library.
    pub version: &'static str,
    /// Commit of the library.
    pub commit: &'static str,
    /// Date of the run, UTC, ISO 8601.
    pub date: String,
    /// Host name of rank 0.
    pub host: String,
    /// Processor of rank 0's host.
    pub cpu: String,
    /// Name of the transport.
    pub transport: String,
    /// Number of ranks.
    pub ranks: u32,
}

impl Origin {
    /// Returns the origin of measurements by this process, now.
    #[must_use]
    pub fn here(program: &str, transport: String, ranks: u32) -> Origin {
        Origin {
            program: program.to_owned(),
            version: env!("CARGO_PKG_VERSION"),
            commit: ferroccl::tools::COMMIT,
            date: iso_8601(now().as_secs()),
            host: host_name(),
            cpu: processor(),
            transport,
            ranks,
        }
    }
}

/// Returns the time since 1970.
pub(super) fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO)
}

/// Usual numbers of links from a switch to the next tier.
const LINKS: [usize; 4] = [4, 8, 16, 32];

/// Returns the JSON text of a sweep.
///
/// # Errors
/// No error in practice: every key is a string. NaN and infinity become `null`.
pub fn sweep_json(
    origin: &Origin,
    rows: &[Row],
    peers: &[Peer],
) -> Result<String, serde_json::Error> {
    #[derive(Serialize)]
    struct Report<'a> {
        #[serde(flatten)]
        origin: &'a Origin,
        rows: &'a [Row],
        average_busbw_gbps: f64,
        /// Statistics of rank 0's peers, over the whole run.
        peers: &'a [Peer],
        /// Evenness of the flows of rank 0 over the links of a fabric.
        evenness: Vec<Evenness>,
    }
    let (average_busbw_gbps, evenness) = (average_bus_gbps(rows), evenness(peers));
    serde_json::to_string_pretty(&Report { origin, rows, average_busbw_gbps, peers, evenness })
}

/// Evenness of the load that a rank's flows put on equal links of a fabric.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Evenness {
    /// Number of links.
    pub links: usize,
    /// Largest load of a link, divided by the mean: [`max_to_mean`].
    pub max_to_mean: f64,
}

/// Returns the evenness for some usual numbers of links; empty if there are no flows.
#[must_use]
pub fn evenness(peers: &[Peer]) -> Vec<Evenness> {
    let flows: Vec<Flow> = peers.iter().flat_map(|peer| peer.flows.iter().copied()).collect();
    let links = if flows.is_empty() { &[][..] } else { &LINKS };
    let of = |links: &usize| Evenness { links: *links, max_to_mean: max_to_mean(&flows, *links) };
    links.iter().map(of).collect()
}

/// Returns the name of the machine.
#[must_use]
pub fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Formats seconds since 1970 as a date and time. The calculation uses cycles of 400 years in which
/// years begin in March.
pub(super) fn iso_8601(seconds: u64) -> String {
    let (days, second) = (seconds / 86_400 + 719_468, seconds % 86_400);
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    let year = era * 400 + year + next;
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use ccl_core::admission::PeerStatistics;

    use super::*;

    #[test]
    fn seconds_since_1970_are_formatted_as_iso_8601_dates() {
        assert_eq!(iso_8601(0), "1970-01-01T00:00:00Z");
        assert_eq!(iso_8601(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(iso_8601(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(iso_8601(1_794_960_000), "2026-11-18T00:00:00Z");
    }

    #[test]
    fn the_json_has_the_promised_keys() {
        let times = Times { mean_us: 2.0, ..Times::default() };
        let half = Half { times, algorithm_gbps: 4.0, bus_gbps: 3.0, wrong: Some(0) };
        let row = Row {
            size_bytes: 8,
            count: 2,
            data_type: "float".to_owned(),
            op: "sum".to_owned(),
            root: -1,
            plan: Some(Plan { algorithm: "ring".to_owned(), ..Plan::default() }),
            out_of_place: half,
            in_place: None,
        };
        let origin = Origin::here("all_reduce_perf", "shm".to_owned(), 2);
        let statistics = PeerStatistics { stalls: 3, ..PeerStatistics::default() };
        let flow = Flow {
            from: [10, 0, 0, 1].into(),
            to: [10, 0, 0, 2].into(),
            source_port: 49_153,
            destination_port: 4791,
            traffic_class: 104,
            queue_pair: 17,
        };
        let json = sweep_json(
            &origin,
            &[row],
            &[Peer { rank: 1, statistics, flows: vec![flow], rails: Vec::new() }],
        )
        .unwrap();
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        for key in ["program", "version", "commit", "date", "host", "cpu", "transport", "ranks"] {
            assert!(!json[key].is_null(), "{key}");
        }
        let row = &json["rows"][0];
        assert_eq!(row["type"], "float");
        assert_eq!(row["plan"]["algorithm"], "ring");
        assert_eq!(row["out_of_place"]["time_us"], 2.0);
        for key in ["time_us_p50", "time_us_p90", "time_us_p99", "time_us_min", "time_us_max"] {
            assert!(row["out_of_place"][key].is_number(), "{key}");
        }
        assert_eq!(row["out_of_place"]["busbw_gbps"], 3.0);
        assert!(row["in_place"].is_null());
        assert_eq!(json["average_busbw_gbps"], 3.0);
        let peer = &json["peers"][0];
        assert_eq!((&peer["rank"], &peer["stalls"]), (&1.into(), &3.into()));
        assert_eq!(peer["credit_waits"]["count"], 0);
        assert!(peer["credit_waits"]["p99_us"].is_null());
        assert_eq!(peer["flows"][0]["to"], "10.0.0.2");
        assert_eq!(json["evenness"][1], serde_json::json!({ "links": 8, "max_to_mean": 8.0 }));
    }
}
