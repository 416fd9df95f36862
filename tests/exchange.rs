//! Traffic and traces: the examples in the help of `ferroccl trace` and in docs/exchange.md work,
//! and recorded calls of running ranks can be predicted.

use ccl_harness::command::{
    examples_of_the_help_work, page_shows_what_it_says, refused, root, said,
};

use crate::perf::examples;
use ccl_harness::processes::Processes;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

#[cfg(test)]
mod own {
    use super::*;

    /// Folder that is removed when dropped.
    pub(super) struct Dir(PathBuf);

    impl Dir {
        pub(super) fn new(name: &str) -> Dir {
            let name = format!("ferroccl-exchange-{name}-{}", std::process::id());
            let path = std::env::temp_dir().join(name);
            std::fs::create_dir_all(&path).unwrap();
            Dir(path)
        }

        pub(super) fn at(&self, name: &str) -> String {
            self.0.join(name).to_string_lossy().into_owned()
        }
    }

    impl Drop for Dir {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    /// Creates the folder that the examples write to.
    pub(super) fn target() {
        std::fs::create_dir_all(root().join("target")).unwrap();
    }

    pub(super) fn json(text: &str) -> serde_json::Value {
        serde_json::from_str(text).unwrap()
    }
}

use own::{Dir, json, target};

#[test]
fn the_examples_in_the_help_of_trace_work() {
    target();
    examples_of_the_help_work("trace", 5);
}

#[test]
fn the_page_exchange_md_shows_the_output_of_its_commands() {
    target();
    page_shows_what_it_says(include_str!("../docs/exchange.md"), 6);
}

/// Calls of running ranks are recorded, exported, read back and predicted. Every call has a
/// start time, and every timed call has a duration.
#[test]
fn recorded_calls_of_running_ranks_can_be_predicted() {
    let dir = Dir::new("ranks");
    let mut command = Command::new(examples().join("all_gather_perf"));
    command.args("-g 3 -b 3k -e 3k -n 20 -w 0 -c 0".split_whitespace());
    command.env("FERROCCL_TRACE", dir.at("calls.%r.json"));
    let ended = Processes::start([command]).end(Duration::from_secs(100)).remove(0);
    assert!(ended.status.success(), "{}", ended.output);
    let calls: Vec<String> = (0..3).map(|rank| dir.at(&format!("calls.{rank}.json"))).collect();
    let prefix = dir.at("job");
    said(&format!("trace export --recorder {} --out {prefix}", calls.join(" ")));
    let shown = json(&said(&format!("trace show {prefix} --json")));
    assert_eq!(shown["ranks"], 3);
    let shown = shown["calls"].as_array().unwrap();
    let measured: Vec<_> = shown.iter().filter(|call| call["bytes"] == 3072).collect();
    // 20 timed calls are out of place, and 20 are in place.
    assert_eq!(measured.len(), 40, "{shown:?}");
    let starts: Vec<u64> = shown.iter().map(|call| call["start_us"].as_u64().unwrap()).collect();
    assert!(starts.is_sorted() && starts[0] == 0, "{starts:?}");
    assert!(measured.iter().all(|call| call["duration_us"].as_u64() > Some(0)), "{shown:?}");
    let replayed = json(&said(&format!("trace replay {prefix} --on superpod-1024 --json")));
    let row = replayed["rows"].as_array().unwrap().iter().find(|row| row["bytes"] == 3072);
    let row = row.unwrap();
    assert_eq!((&row["calls"], &row["collective"]), (&40.into(), &"all_gather".into()));
    assert!(row["predicted_s"].as_f64().unwrap() > 0.0 && row["recorded_s"].as_f64().is_some());
    let missing = refused(&format!("trace export --recorder {} --out {prefix}", calls[1]), 2);
    let said = "(recordings here: 1); give the recording of rank 0";
    assert!(missing.contains(said), "{missing}");
}

/// Messages are recorded with their sender and receiver, which give the traffic of each pair.
#[test]
fn recorded_messages_give_the_traffic_of_each_pair() {
    let dir = Dir::new("messages");
    let mut command = Command::new(examples().join("sendrecv_perf"));
    command.args("-g 3 -b 3k -e 3k -n 20 -w 0 -c 0".split_whitespace());
    command.env("FERROCCL_TRACE", dir.at("calls.%r.json"));
    let ended = Processes::start([command]).end(Duration::from_secs(100)).remove(0);
    assert!(ended.status.success(), "{}", ended.output);
    let calls: Vec<String> = (0..3).map(|rank| dir.at(&format!("calls.{rank}.json"))).collect();
    let (prefix, sent) = (dir.at("job"), dir.at("sent.csv"));
    let told = said(&format!("trace export --recorder {} --out {prefix}", calls.join(" ")));
    assert!(!told.contains("left out") && !told.contains("missing"), "{told}");
    said(&format!("trace traffic {prefix} --on p5 --out {sent}"));
    let whole = ccl_traffic::matrix::read(&sent).unwrap().whole();
    // Each rank sends only to the next rank. `sendrecv_perf` has no in-place calls.
    for rank in 0..3 {
        let share = whole[&(rank, (rank + 1) % 3)] as f64 / f64::from(20 * 3072);
        assert!((1.0..1.1).contains(&share), "rank {rank} sent {share} times its data: {whole:?}");
    }
}

/// A recording that cannot be written is reported once by each rank, and the program goes on.
#[test]
fn a_recording_that_cannot_be_written_is_reported() {
    let dir = Dir::new("unwritable");
    for (name, problem) in [("nowhere/%r.json", "No such file"), ("", "it is not a file")] {
        let mut command = Command::new(examples().join("all_gather_perf"));
        command.args("-g 2 -b 3k -e 3k -n 20 -w 0 -c 0".split_whitespace());
        command.env("FERROCCL_TRACE", dir.at(name));
        let ended = Processes::start([command]).end(Duration::from_secs(100)).remove(0);
        assert!(ended.status.success(), "{}", ended.output);
        assert_eq!(ended.output.matches("no calls are recorded").count(), 2, "{}", ended.output);
        assert!(ended.output.contains(problem), "{}", ended.output);
    }
}

/// Messages of the library go to standard error, filtered by `FERROCCL_DEBUG`.
#[test]
fn programs_print_the_log_of_the_library_if_it_is_enabled() {
    for (filter, is_said) in [("ferroccl=trace", true), ("warn", false)] {
        let mut command = Command::new(examples().join("all_gather_perf"));
        command.args("-g 2 -b 1k -e 1k -n 1 -w 0 -c 0".split_whitespace());
        command.env("FERROCCL_DEBUG", filter);
        let ended = Processes::start([command]).end(Duration::from_secs(100)).remove(0);
        assert!(ended.status.success(), "{}", ended.output);
        assert_eq!(
            ended.output.contains("a connection to the control port"),
            is_said,
            "{}",
            ended.output
        );
    }
}

/// The traffic of ranks over TCP matches their algorithm: nearly all of it goes around the ring.
#[test]
fn traffic_of_running_ranks_is_counted() {
    let dir = Dir::new("sent");
    let (matrix, nccl) = (dir.at("sent.csv"), dir.at("nccl.json"));
    let mut command = Command::new(examples().join("all_gather_perf"));
    let flags = "-g 3 -b 300k -e 300k -n 20 -w 1 -c 1 --transport tcp --algo ring --traffic";
    command.args(flags.split_whitespace()).args([&matrix, "-J", &nccl]);
    let ended = Processes::start([command]).end(Duration::from_secs(100)).remove(0);
    assert!(ended.status.success(), "{}", ended.output);
    assert!(ended.output.contains("bytes between"), "{}", ended.output);
    let traffic = ccl_traffic::matrix::read(&matrix).unwrap();
    assert_eq!((traffic.ranks, traffic.intervals.len()), (3, 1));
    let whole = traffic.whole();
    // Each rank sends two blocks of 100 KiB per call. There are warm-up, timed and checked calls,
    // out of place and in place.
    let calls = 2.0 * f64::from(1 + 20 + 1);
    for rank in 0..3 {
        let sent = whole[&(rank, (rank + 1) % 3)] as f64 / (calls * 2.0 * 102_400.0);
        assert!((1.0..1.05).contains(&sent), "rank {rank} sent {sent} times its data: {whole:?}");
        let back = whole.get(&(rank, (rank + 2) % 3)).copied().unwrap_or(0) as f64;
        assert!(back < 0.01 * calls * 2.0 * 102_400.0, "rank {rank} sent {back} bytes back");
    }
    let nccl = json(&std::fs::read_to_string(nccl).unwrap());
    let devices = nccl["config"]["devices"].as_array().unwrap();
    assert_eq!((devices.len(), &nccl["results"][0]["out_of_place"]["nwrong"]), (3, &0.0.into()));
    assert!(nccl["args"][0].as_str().unwrap().ends_with("all_gather_perf"), "{nccl}");
}

/// The matrix and the traces of a planned collective have the same bytes for each pair.
#[test]
fn the_traces_and_the_matrix_of_a_plan_have_the_same_bytes() {
    let dir = Dir::new("plan");
    let (prefix, matrix) = (dir.at("plan"), dir.at("plan.csv"));
    let plan = "all_reduce --bytes 1000k --on p5 --hosts 2 --algo hierarchical";
    said(&format!("plan {plan} --traffic {matrix}"));
    said(&format!("trace plan {plan} --out {prefix}"));
    let lines = |text: &str| {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let planned = lines(&std::fs::read_to_string(matrix).unwrap());
    assert!(planned.len() > 16, "{planned:?}");
    assert_eq!(lines(&said(&format!("trace traffic {prefix} --on p5 --out -"))), planned);
}

#[test]
fn unreadable_traces_are_reported() {
    let dir = Dir::new("wrong");
    let prefix = dir.at("job");
    said(&format!("trace export --recorder docs/exchange/calls.json --out {prefix}"));
    let whole = std::fs::read(dir.at("job.2.et")).unwrap();
    std::fs::write(dir.at("job.2.et"), &whole[..whole.len() - 1]).unwrap();
    let cut = refused(&format!("trace show {prefix}"), 2);
    assert!(cut.contains("job.2.et: byte ") && cut.contains("the file is truncated"), "{cut}");
    std::fs::remove_file(dir.at("job.2.et")).unwrap();
    let missing = refused(&format!("trace show {prefix}"), 2);
    assert!(missing.contains("job.2.et is missing (traces missing: 1 of 4)"), "{missing}");
    assert!(refused("trace replay docs/exchange/job --on h1000", 2).contains("no file h1000"));
    let unknown = refused("trace replay docs/exchange/job --on p5 --algo rign", 2);
    assert!(unknown.contains("--algo rign: no algorithm or family has this name"), "{unknown}");
    let text = refused("trace export --recorder README.md --out x", 2);
    assert!(text.contains("README.md:1: ") && text.contains("FERROCCL_TRACE"), "{text}");
    let many = refused("plan all_reduce --on superpod-1024 --traffic - --interval 1e-3", 2);
    assert!(many.contains("leave out --interval"), "{many}");
}
