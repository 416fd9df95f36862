//! Perf programs from end to end, as a user calls them.

use ccl_harness::processes::{Ended, Processes};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(100);

/// Returns the folder of the built examples. Cargo does not build them for this test, so this
/// function builds them first.
pub(crate) fn examples() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        // <target>/<profile>/deps/<this test>
        let own = std::env::current_exe().unwrap();
        let profile = own.ancestors().nth(2).unwrap();
        // `cargo xtask test` has built the examples with everything else.
        if std::env::var_os("FERROCCL_TEST_BUILT").is_some() {
            return profile.join("examples");
        }
        let mut cargo = Command::new(env!("CARGO"));
        // Builds all packages, as the suites do: for this package alone, dependencies might get
        // other features.
        cargo.args(["build", "--offline", "--workspace", "--examples", "--manifest-path"]);
        cargo.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"));
        cargo.arg("--target-dir").arg(profile.parent().unwrap());
        // As this test itself was built: `test` differs from `dev`, whose directory it shares.
        let name = if profile.ends_with("release") { "release" } else { "test" };
        cargo.args(["--profile", name]);
        // Cargo's variables of this package would cause build scripts to run again.
        let said = std::env::vars_os().map(|(name, _)| name);
        let of_this_package = |name: &OsString| {
            let name = name.to_string_lossy();
            name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")
        };
        said.filter(of_this_package).for_each(|name| {
            cargo.env_remove(name);
        });
        let built = Processes::start([cargo]).end(Duration::from_secs(900)).remove(0);
        assert!(built.status.success(), "{}", built.output);
        profile.join("examples")
    })
}

fn perf(program: &str, arguments: &str) -> Ended {
    let mut command = Command::new(examples().join(program));
    command.args(arguments.split_whitespace());
    Processes::start([command]).end(LONG).remove(0)
}

/// Returns the rows of the table: the lines that begin with a size.
fn rows(output: &str) -> Vec<Vec<&str>> {
    output
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .filter(|cells| cells.len() > 8 && cells[0].parse::<u64>().is_ok())
        .collect()
}

/// Runs a program, and checks that its table is complete and no value is wrong. The caller must put
/// `-c 1` into `arguments`, so that the program checks its values.
fn all_right(program: &str, arguments: &str, expected_rows: usize) {
    let ended = perf(program, arguments);
    assert_eq!(ended.status.code(), Some(0), "{program} {arguments}: {}", ended.output);
    none_wrong(&ended.output, expected_rows);
}

/// Checks that the table has `expected_rows` rows, all checked and without wrong values.
pub(crate) fn none_wrong(output: &str, expected_rows: usize) {
    let rows = rows(output);
    assert_eq!(rows.len(), expected_rows, "{output}");
    for row in rows {
        // Numbers of wrong values: out of place and, in the last column, in place.
        let wrong = [row[row.len() - 5], row[row.len() - 1]];
        assert!(wrong.iter().all(|wrong| ["0", "N/A"].contains(wrong)), "{output}");
        assert!(wrong.contains(&"0"), "a row has no checked values: {output}");
    }
}

#[test]
fn all_reduce_perf_finds_nothing_wrong() {
    for ranks in [1, 2, 3] {
        all_right("all_reduce_perf", &format!("-g {ranks} -b 0 -e 1M -f 16 -c 1 -n 2 -w 1"), 6);
    }
}

#[test]
fn perf_programs_of_other_collectives_find_nothing_wrong() {
    for program in [
        "all_gather_perf",
        "reduce_scatter_perf",
        "broadcast_perf",
        "reduce_perf",
        "gather_perf",
        "scatter_perf",
        "alltoall_perf",
        "alltoallv_perf",
        "sendrecv_perf",
    ] {
        all_right(program, "-g 3 -b 1000 -e 100k -f 10 -c 1 -n 2 -w 1", 3);
    }
}

#[test]
fn every_type_and_operation_is_right() {
    let ended = perf("all_reduce_perf", "-g 2 -b 1k -e 1k -d all -o all -c 1 -n 1 -w 0");
    assert_eq!(ended.status.code(), Some(0), "{}", ended.output);
    assert!(rows(&ended.output).len() >= 12 * 5, "{}", ended.output);
}

#[test]
fn wrong_flags_are_named_and_exit_with_status_2() {
    for (arguments, words) in [
        ("-b 2M -e 1M", &["-b", "-e"][..]),
        ("-b twelve", &["twelve"]),
        ("--no-such-flag", &["--no-such-flag"]),
        ("-d float33", &["float33"]),
        ("-o median", &["median"]),
        ("-g 0", &["--ngpus", "1..=512"]),
        ("-g 10000", &["10000", "1..=512"]),
        ("-g 513", &["--ngpus"]),
        ("-g 2 -r 5 -b 8 -e 8", &["-r 5", "2 ranks"]),
    ] {
        let program = if arguments.contains("-r") { "broadcast_perf" } else { "all_reduce_perf" };
        let ended = perf(program, arguments);
        assert_eq!(ended.status.code(), Some(2), "{arguments}: {}", ended.output);
        for word in words {
            assert!(ended.output.contains(word), "{arguments}: no {word} in {}", ended.output);
        }
    }
}

#[test]
fn an_unknown_algorithm_is_reported_with_the_available_ones() {
    let ended = perf("all_reduce_perf", "-g 3 -b 8 -e 8 --algo rign");
    assert!(!ended.status.success());
    assert!(ended.output.contains("choose one of: "), "{}", ended.output);
}

#[test]
fn the_json_report_has_every_row_with_its_plan() {
    let path = std::env::temp_dir().join(format!("ferroccl-{}.json", std::process::id()));
    let arguments = format!("-g 2 -b 8 -e 80000 -f 100 -n 3 --json {}", path.display());
    let ended = perf("all_reduce_perf", &arguments);
    assert!(ended.status.success(), "{}", ended.output);
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 3, "{text}");
    for row in rows {
        let plan = &row["plan"];
        assert!(plan["algorithm"].as_str().is_some_and(|name| !name.is_empty()), "{row}");
        assert!(plan["detail"]["slots"].as_u64().is_some(), "{row}");
    }
}

#[test]
fn the_other_programs_run() {
    for (program, arguments) in [
        ("p2p_matrix", "-g 3 -n 2 -w 1 -e 64k -c 1"),
        ("all_reduce_latency_comp", "-g 2 -n 2 -w 1 -b 64k -e 64k -c 1 --pieces 10"),
        ("training_buckets", "-g 2 -n 1 -w 0 -c 1 --scale 0.001"),
    ] {
        let ended = perf(program, arguments);
        assert_eq!(ended.status.code(), Some(0), "{program}: {}", ended.output);
    }
}

/// Baseline file that is removed when dropped.
struct BaselineFile(PathBuf);

impl Drop for BaselineFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

impl BaselineFile {
    /// Multiplies all times of a path in a baseline.
    fn scale(&self, from: u64, to: u64, factor: f64) {
        let text = std::fs::read_to_string(&self.0).unwrap();
        let scaled = text.lines().map(|line| {
            let mut path: serde_json::Value = serde_json::from_str(line).unwrap();
            if path["from"] == from && path["to"] == to {
                for kind in ["latency_us", "bandwidth_us"] {
                    for time in path[kind].as_array_mut().unwrap() {
                        *time = (time.as_f64().unwrap() * factor).into();
                    }
                }
            }
            format!("{path}\n")
        });
        let text: String = scaled.collect();
        std::fs::write(&self.0, text).unwrap();
    }
}

/// The test scales the times of the baseline by a factor of a billion, so that neither the
/// machine's speed nor pauses (some have made a round take a millisecond) change the result.
#[test]
fn paths_are_compared_with_a_baseline() {
    let file = std::env::temp_dir().join(format!("ferroccl-{}.paths", std::process::id()));
    let file = BaselineFile(file);
    let sizes = "-g 2 -n 2 -w 0 -e 1k -c 0 --rounds 8";
    let ended = perf("p2p_matrix", &format!("{sizes} --save-baseline {}", file.0.display()));
    assert_eq!(ended.status.code(), Some(0), "{}", ended.output);
    let compare = format!("{sizes} --baseline {}", file.0.display());
    file.scale(0, 1, 1e9);
    file.scale(1, 0, 1e-9);
    let ended = perf("p2p_matrix", &compare);
    assert_eq!(ended.status.code(), Some(1), "{}", ended.output);
    assert!(ended.output.contains("# SLOWER rank 1 on "), "{}", ended.output);
    assert!(ended.output.contains("# Slower paths         : 1 of 2 SLOWER"), "{}", ended.output);
    file.scale(1, 0, 1e18);
    let ended = perf("p2p_matrix", &compare);
    assert_eq!(ended.status.code(), Some(0), "{}", ended.output);
    for (arguments, words) in [
        (format!("{compare} -b 16"), "give -b 8 -e 1024 -n 2"),
        (format!("{compare} -g 3").replacen("-g 2 ", "", 1), "was measured with 2 ranks"),
    ] {
        let ended = perf("p2p_matrix", &arguments);
        assert_eq!(ended.status.code(), Some(2), "{arguments}: {}", ended.output);
        assert!(ended.output.contains(words), "{arguments}: {}", ended.output);
    }
    std::fs::write(&file.0, "{}\n").unwrap();
    let ended = perf("p2p_matrix", &compare);
    assert_eq!(ended.status.code(), Some(2), "{}", ended.output);
    assert!(ended.output.contains(".paths:1: not a line of a baseline"), "{}", ended.output);
}
