//! Perf program of ferroccl, run as a user would run it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use super::{DIST, Job, Sample};
use crate::workspace::{cargo, target_dir};
use crate::{Outcome, process};

const EXAMPLE: &str = "all_reduce_perf";
const BUILD_DEADLINE: Duration = Duration::from_secs(900);
const DEADLINE: Duration = Duration::from_secs(300);

/// Built perf program.
#[derive(Debug)]
pub(super) struct Program {
    binary: PathBuf,
    /// File that the program writes its rows to.
    rows: PathBuf,
}

/// Builds the perf program as it is shipped.
pub(super) fn build() -> Outcome<Program> {
    let mut command = cargo(&["build", "--profile", DIST, "--example", EXAMPLE]);
    println!("$ {}", process::typed(&command));
    process::capture(&mut command, BUILD_DEADLINE).map_err(|error| {
        format!("the example `{EXAMPLE}` does not build or is missing: {error}")
    })?;
    let target = target_dir()?;
    let dir = target.join("bench");
    fs::create_dir_all(&dir).map_err(|error| format!("cannot make {}: {error}", dir.display()))?;
    let binary = target.join(DIST).join("examples").join(EXAMPLE);
    Ok(Program { binary, rows: dir.join("ours.json") })
}

impl Program {
    /// Runs the job once.
    pub(super) fn measure(&self, job: Job) -> Outcome<Sample> {
        let bytes = job.bytes.to_string();
        let mut command = Command::new(&self.binary);
        command.args(["-b", &bytes, "-e", &bytes, "-g", &job.ranks.to_string(), "-c", "0"]);
        command.args(["-n", &job.iterations.to_string(), "-w", &job.warmup.to_string()]);
        command.arg("--json").arg(&self.rows);
        process::capture(&mut command, DEADLINE)?;
        read(&self.rows, job.bytes)
    }
}

/// Reads the result of a perf program: the median time of its out-of-place calls.
pub(super) fn read(rows: &Path, bytes: u64) -> Outcome<Sample> {
    parse_ours(&text(rows)?, bytes)
}

/// Reads the result of `p2p_matrix` from rank 0 to rank 1: the mean time of a message of `bytes`
/// bytes.
pub(super) fn read_stream(rows: &Path, bytes: u64) -> Outcome<Sample> {
    let found: Value = serde_json::from_str(&text(rows)?)
        .map_err(|error| format!("the perf program wrote no JSON: {error}"))?;
    let gbps = found["results"]["bandwidth_gbps"][0][1].as_f64();
    let gbps = gbps.ok_or("`p2p_matrix` wrote no bandwidth from rank 0 to rank 1")?;
    Ok(Sample { median_us: bytes as f64 / gbps / 1e3, p99_us: None })
}

fn text(rows: &Path) -> Outcome<String> {
    fs::read_to_string(rows).map_err(|error| format!("cannot read {}: {error}", rows.display()))
}

/// Parses the row for `bytes` bytes in the output of `--json`: an array of rows, an object with
/// such an array, or one row per line.
fn parse_ours(text: &str, bytes: u64) -> Outcome<Sample> {
    let (place, time) = ("out_of_place", "time_us_p50");
    let documents = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    let mut rows = Vec::new();
    for document in documents {
        let document =
            document.map_err(|error| format!("the perf program wrote no JSON: {error}"))?;
        match document {
            Value::Array(found) => rows.extend(found),
            Value::Object(mut object) => match object.remove("rows") {
                Some(Value::Array(found)) => rows.extend(found),
                _ => rows.push(Value::Object(object)),
            },
            _ => {}
        }
    }
    let row = rows.iter().find(|row| row["size_bytes"].as_u64() == Some(bytes));
    let row = row.ok_or_else(|| format!("the perf program wrote no row of {bytes} bytes"))?;
    let times = &row[place];
    let median_us = times[time]
        .as_f64()
        .ok_or_else(|| format!("a row of the perf program lacks `{place}.{time}`"))?;
    Ok(Sample { median_us, p99_us: times["time_us_p99"].as_f64() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_found_in_an_array_and_in_an_object_and_line_by_line() {
        let row = r#"{"size_bytes": 8, "out_of_place": {"time_us_p50": 0.5, "time_us_p99": 2.0}}"#;
        let other = r#"{"size_bytes": 16, "out_of_place": {"time_us_p50": 9.0}}"#;
        let expected = Sample { median_us: 0.5, p99_us: Some(2.0) };
        for text in [
            format!("[{other}, {row}]"),
            format!("{{\"version\": \"1\", \"rows\": [{other}, {row}]}}"),
            format!("{{\"version\": \"1\"}}\n{other}\n{row}\n"),
        ] {
            assert_eq!(parse_ours(&text, 8), Ok(expected), "{text}");
        }
    }

    #[test]
    fn the_error_names_the_missing_row_or_field_or_says_that_there_is_no_json() {
        assert!(parse_ours("[]", 8).unwrap_err().contains("8 bytes"));
        assert!(parse_ours("[{\"size_bytes\": 8}]", 8).unwrap_err().contains("time_us_p50"));
        assert!(parse_ours("no", 8).unwrap_err().contains("no JSON"));
    }
}
