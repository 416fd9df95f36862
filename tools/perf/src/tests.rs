//! Tests of whole programs. Each rank is a thread.

use ccl_core::types::{Collective, DataType, ReduceOp};
use clap::Parser as _;

use super::fake::{Fault, with_ranks};
use super::options::{CommandLine, NoExtra, Options};
use super::program::{Program, start};
use super::programs::{latency_comparison, p2p_matrix, training, workloads::Workload};
use super::setup::Refused;
use super::subject::{Subject, SubjectError};
use super::sweep::{Outcome, run};

const SWEEPS: [Collective; 10] = [
    Collective::AllReduce,
    Collective::AllGather,
    Collective::ReduceScatter,
    Collective::Broadcast,
    Collective::Reduce,
    Collective::Gather,
    Collective::Scatter,
    Collective::AllToAll,
    Collective::AllToAllV,
    Collective::SendRecv,
];

fn options(line: &str) -> Options {
    let words = std::iter::once("perf").chain(line.split_whitespace());
    let options = CommandLine::<NoExtra>::try_parse_from(words).unwrap().options;
    options.validate().unwrap();
    options
}

/// Returns rank 0's outcome and output.
fn measure(collective: Collective, ranks: u32, line: &str, fault: Fault) -> (Outcome, String) {
    let options = options(line);
    let mut all = with_ranks(ranks, fault, |fake| {
        let mut text = Vec::new();
        let outcome = run("test_perf", collective, &options, fake, &mut text).unwrap();
        (outcome, String::from_utf8(text).unwrap())
    });
    assert!(all[1..].iter().all(|(_, text)| text.is_empty()), "only rank 0 prints");
    all.swap_remove(0)
}

/// Returns whether the tests run in the deep tier, with more ranks, repetitions and workloads.
fn full() -> bool {
    std::env::var_os("FERROCCL_TEST_FULL").is_some()
}

#[test]
fn every_type_and_operator_is_right_for_every_number_of_ranks() {
    for &ranks in if full() { &[1, 2, 3, 5, 8, 17][..] } else { &[1, 3, 5] } {
        let line = "-b 1k -e 1k -n 1 -w 0 -d all -o all --exact";
        for collective in [Collective::AllReduce, Collective::ReduceScatter, Collective::Reduce] {
            let (outcome, text) = measure(collective, ranks, line, Fault::None);
            assert_eq!(outcome.rows.len(), DataType::ALL.len() * ReduceOp::ALL.len());
            assert_eq!(outcome.failed, 0, "{ranks} ranks\n{text}");
            assert!(outcome.rows.iter().all(|row| row.size_bytes > 0));
        }
    }
}

#[test]
fn every_collective_is_right_at_odd_sizes_and_every_root() {
    for collective in SWEEPS {
        for ranks in [1, 2, 3, 5] {
            let line = "-b 0 -e 900 -i 123 -n 1 -w 0 -d double -r all --exact -c 2";
            let (outcome, text) = measure(collective, ranks, line, Fault::None);
            assert_eq!(outcome.failed, 0, "{collective} {ranks}\n{text}");
            let roots = if collective.has_root() { ranks as usize } else { 1 };
            assert_eq!(outcome.rows.len(), 8 * roots);
        }
    }
}

#[test]
fn data_beyond_one_period_of_the_pattern_are_checked() {
    let line = "-b 300k -e 300k -n 1 -w 0 -d uint8";
    for collective in [Collective::AllGather, Collective::AllToAllV] {
        let (outcome, text) = measure(collective, 3, line, Fault::None);
        assert_eq!(outcome.failed, 0, "{text}");
        let fault = Fault::Flip { rank: 2, byte: 200_000 };
        let (outcome, _) = measure(collective, 3, line, fault);
        assert_eq!(outcome.rows[0].out_of_place.wrong, Some(1));
    }
}

#[test]
fn a_planted_wrong_byte_is_seen() {
    for collective in SWEEPS {
        let fault = Fault::Flip { rank: 1, byte: 5 };
        let (outcome, text) = measure(collective, 3, "-b 960 -e 960 -n 1", fault);
        for half in outcome.rows[0].halves() {
            assert_eq!(half.wrong, Some(1), "{collective}\n{text}");
        }
        assert_eq!(outcome.failed, outcome.rows[0].halves().count() as u64);
        assert!(text.contains(&format!("# Out of bounds values : {} FAILED", outcome.failed)));
    }
}

#[test]
fn a_lost_contribution_is_seen_for_every_type_and_operator() {
    let fault = Fault::LoseContribution { rank: 1 };
    let line = "-b 4k -e 4k -n 1 -w 0 -d all -o all";
    let (outcome, text) = measure(Collective::AllReduce, 5, line, fault);
    for row in &outcome.rows {
        for half in row.halves() {
            assert!(half.wrong > Some(0), "{} {}\n{text}", row.data_type, row.op);
        }
    }
}

#[test]
fn the_output_is_that_of_nccl_tests() {
    let (outcome, text) =
        measure(Collective::AllReduce, 2, "-b 8 -e 64 -f 2 -n 40 -z 1", Fault::None);
    let rows: Vec<Vec<&str>> = text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(rows.len(), 4);
    for (fields, bytes) in rows.iter().zip([8, 16, 32, 64]) {
        assert_eq!(fields.len(), 13);
        assert_eq!(
            fields[..5],
            [&bytes.to_string(), &(bytes / 4).to_string(), "float", "sum", "-1"]
        );
        assert_eq!((fields[8], fields[12]), ("0", "0"));
        assert!(fields[5].parse::<f64>().unwrap() > 0.0);
    }
    for line in
        ["# Out of bounds values : 0 OK", "# Avg bus bandwidth    : ", "#  Rank  1 Group  0 Pid"]
    {
        assert!(text.contains(line), "{line}\n{text}");
    }
    let times = outcome.rows[0].out_of_place.times;
    assert!(times.min_us <= times.p50_us && times.p50_us <= times.max_us && times.min_us > 0.0);
}

#[test]
fn without_checks_the_number_of_wrong_elements_is_not_available() {
    let (outcome, text) = measure(
        Collective::AllReduce,
        2,
        "-b 64 -e 64 -c 0 -n 1 -N 3",
        Fault::Flip { rank: 0, byte: 0 },
    );
    assert_eq!((outcome.rows.len(), outcome.failed), (3, 0));
    assert!(text.contains("N/A"));
}

#[test]
fn reports_are_written_and_unwritable_files_are_refused_early() {
    let directory = std::env::temp_dir().join(format!("ferroccl-perf-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let (json, svg) = (directory.join("a.json"), directory.join("a.svg"));
    let line = format!("-b 1k -e 4k -f 2 -n 2 --json {} --plot {}", json.display(), svg.display());
    measure(Collective::AllGather, 2, &line, Fault::None);
    let report: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
    assert_eq!(report["rows"].as_array().unwrap().len(), 3);
    assert_eq!(report["rows"][0]["plan"]["algorithm"], "board");
    assert!(std::fs::read_to_string(&svg).unwrap().contains("in place"));
    std::fs::remove_dir_all(&directory).unwrap();

    let options = options(&line);
    let errors = with_ranks(2, Fault::None, |fake| {
        let result = run("test_perf", Collective::AllGather, &options, fake, &mut Vec::new());
        result.unwrap_err().to_string()
    });
    assert!(errors[0].contains("cannot write"), "{errors:?}");
    assert!(errors[1].contains("could not start on rank 0"), "{errors:?}");
}

#[test]
fn too_little_memory_is_an_error_on_every_rank() {
    let options = options("-b 4611686018427387904 -e 4611686018427387904");
    let errors = with_ranks(2, Fault::None, |fake| {
        let result = run("test_perf", Collective::AllReduce, &options, fake, &mut Vec::new());
        result.unwrap_err().to_string()
    });
    assert!(errors.iter().all(|error| error.contains("smaller -e")), "{errors:?}");
}

#[test]
fn a_failing_communicator_ends_the_run() {
    let options = options("-b 8 -e 8");
    let result = with_ranks(1, Fault::Fail { rank: 0 }, |fake| {
        run("test_perf", Collective::AllReduce, &options, fake, &mut Vec::new())
            .map_err(|error| error.to_string())
    });
    assert_eq!(result, [Err("planted failure".to_owned())]);
}

#[test]
fn every_pair_is_measured_once() {
    let (options, extra) = (options("-b 8 -e 4k -n 3"), p2p_matrix::Extra::default());
    let measured = with_ranks(3, Fault::None, |fake| {
        let mut text = Vec::new();
        let matrices = p2p_matrix::run("p2p_matrix", &options, &extra, fake, &mut text).unwrap();
        (matrices, String::from_utf8(text).unwrap())
    });
    let (matrices, text) = &measured[0];
    for (row, (latency, bandwidth)) in
        matrices.latency_us.iter().zip(&matrices.bandwidth_gbps).enumerate()
    {
        for column in 0..3 {
            assert_eq!(latency[column].is_none(), row == column);
            assert_eq!(bandwidth[column].is_some_and(|gbps| gbps > 0.0), row != column);
        }
    }
    assert_eq!(matrices.wrong, 0);
    assert_eq!(text.lines().filter(|line| !line.starts_with('#')).count(), 6, "{text}");
    let wrong = with_ranks(2, Fault::Flip { rank: 1, byte: 9 }, |fake| {
        p2p_matrix::run("p2p_matrix", &options, &extra, fake, &mut Vec::new()).unwrap().wrong
    });
    assert_eq!(wrong, [1, 1]);
    let alone = with_ranks(1, Fault::None, |fake| {
        p2p_matrix::run("p2p_matrix", &options, &extra, fake, &mut Vec::new())
            .unwrap_err()
            .to_string()
    });
    assert!(alone[0].contains("-g 2"));
}

/// Runs `p2p_matrix` on three ranks. Returns rank 0's output and number of failures, or the
/// refusal.
fn paths(line: &str, fault: Fault) -> Result<(String, u64), String> {
    let words = std::iter::once("p2p_matrix").chain(line.split_whitespace());
    let line = CommandLine::<p2p_matrix::Extra>::try_parse_from(words);
    let line = line.map_err(|error| error.to_string())?;
    let mut all = with_ranks(3, fault, |fake| {
        let mut text = Vec::new();
        let run = p2p_matrix::run;
        match run("p2p_matrix", &line.options, &line.extra, fake, &mut text) {
            Ok(matrices) => Ok((String::from_utf8(text).unwrap(), matrices.failed())),
            Err(error) if error.is::<Refused>() => Err(error.to_string()),
            Err(error) => panic!("{error}"),
        }
    });
    assert!(all.iter().all(|one| one.is_err() == all[0].is_err()), "ranks disagree: {all:?}");
    all.swap_remove(0)
}

#[test]
fn a_path_that_got_slower_is_named() {
    let name = format!("ferroccl-{}-e2e.paths", std::process::id());
    let file = std::env::temp_dir().join(name);
    let timed = |seed, slow, percent| Fault::Timed { seed, slow, percent };
    let sizes = "-b 8 -e 1k -n 5";
    let save = format!("{sizes} --save-baseline {}", file.display());
    let (text, failed) = paths(&save, timed(1, (0, 0), 0)).unwrap();
    assert!(failed == 0 && !text.contains("Compared"), "{text}");
    let compare = format!("{sizes} --baseline {}", file.display());
    // If the times of both runs have the same distribution, the probability of an alarm is at most
    // 1 %. The limit leaves room for chance.
    let (pairs, alarms_max) = if full() { (29, 3) } else { (3, 1) };
    let alarms = (1..=pairs).filter(|pair| {
        paths(&save, timed(2 * pair, (0, 0), 0)).unwrap();
        let (text, failed) = paths(&compare, timed(2 * pair + 1, (0, 0), 0)).unwrap();
        assert_eq!(failed == 0, text.contains("# Slower paths         : 0 of 6 OK"), "{text}");
        failed > 0
    });
    let alarms = alarms.count();
    assert!(alarms <= alarms_max, "{alarms} false alarms");
    paths(&save, timed(1, (0, 0), 0)).unwrap();
    // A slow direction lengthens the round trips of both directions, but lowers only the bandwidth
    // of its own direction.
    let (text, failed) = paths(&compare, timed(2, (1, 2), 60)).unwrap();
    assert_eq!(failed, 2, "{text}");
    let host = super::report::host_name();
    for (from, to, bandwidth) in [(1, 2, true), (2, 1, false)] {
        let path = format!("# SLOWER rank {from} on {host} -> rank {to} on {host}: latency 1.");
        let line = text.lines().find(|line| line.starts_with(&path)).expect(&text);
        assert_eq!(line.contains("bandwidth 1."), bandwidth, "{line}");
    }
    let (text, failed) = paths(&format!("{compare} --allowed 80"), timed(2, (1, 2), 60)).unwrap();
    assert_eq!(failed, 0, "{text}");
    // A baseline that cannot be used is refused, on all ranks, before anything is measured.
    for (line, words) in [
        (compare.replace("-e 1k", "-e 2k"), "give -b 8 -e 1024 -n 5"),
        (format!("{compare} --rounds 2"), "give --rounds"),
        (format!("{sizes} --rounds 3 --save-baseline {}", file.display()), "give --rounds"),
        (format!("{save} --baseline {}", file.display()), "another name"),
        (format!("{sizes} --baseline /no/such"), "cannot read the baseline /no/such"),
        (format!("{sizes} --save-baseline /no/such/file"), "cannot write /no/such/file"),
        (format!("{sizes} --allowed 3"), "--baseline"),
    ] {
        let error = paths(&line, Fault::None).expect_err(&line);
        assert!(error.contains(words), "{line}: {error}");
    }
    let kept = std::fs::read_to_string(&file).unwrap();
    assert_eq!(kept.lines().count(), 7, "a refused run must not change the baseline");
    let (text, _) = paths(&save, Fault::Flip { rank: 1, byte: 9 }).unwrap();
    assert!(text.contains("is not written: bytes were wrong"), "{text}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), kept);
    std::fs::remove_file(&file).unwrap();
}

#[test]
fn one_large_message_is_compared_with_small_ones_of_the_same_total() {
    let extra = latency_comparison::Extra { pieces: 100 };
    let run = |options: &Options, fault| {
        with_ranks(2, fault, |fake| {
            latency_comparison::run("comp", options, extra, fake, &mut Vec::new())
                .map_err(|error| error.to_string())
        })
        .swap_remove(0)
    };
    let sizes = options("-b 4k -e 16k -f 2 -n 2");
    let comparisons = run(&sizes, Fault::None).unwrap();
    assert_eq!(comparisons.len(), 3);
    for comparison in &comparisons {
        assert_eq!(comparison.total_bytes, 100 * comparison.piece_bytes);
        assert!(comparison.pieces.mean_us > 0.0 && comparison.one.mean_us > 0.0);
        assert_eq!(comparison.wrong, 0);
    }
    let comparisons = run(&sizes, Fault::Flip { rank: 0, byte: 0 }).unwrap();
    assert_eq!(comparisons[0].wrong, 2);
    let error = run(&options("-b 100 -e 100"), Fault::None).unwrap_err();
    assert!(error.contains("give 400 bytes or more"), "{error}");
}

#[test]
fn training_steps_are_replayed_and_checked() {
    let options = options("-n 1 -w 0");
    let extra = training::Extra {
        model: if full() {
            vec![
                Workload::ResNet50,
                Workload::Llama3Sharded,
                Workload::Dlrm,
                Workload::MixtureOfExperts,
            ]
        } else {
            vec![Workload::ResNet50, Workload::MixtureOfExperts]
        },
        scale: 0.0001,
        seed: 1,
    };
    let steps = |fault| {
        with_ranks(3, fault, |fake| {
            training::run("training", &options, &extra, fake, &mut Vec::new()).unwrap()
        })
        .swap_remove(0)
    };
    for step in steps(Fault::None) {
        assert_eq!(step.wrong, Some(0), "{step:?}");
        assert!(step.exposed_busbw_gbps > 0.0 && step.calls >= 2);
    }
    for step in steps(Fault::Flip { rank: 1, byte: 3 }) {
        // A rank that receives nothing in a call has no wrong elements.
        assert!(step.wrong > Some(step.calls as u64 / 2), "{step:?}");
    }
}

fn status(program: Program, line: &str) -> String {
    fn refuse(_: &Options) -> Result<Box<dyn Subject>, SubjectError> {
        Err("refused".into())
    }
    let words = std::iter::once(program.name()).chain(line.split_whitespace());
    format!("{:?}", start(program, words.map(Into::into), refuse))
}

#[test]
fn the_exit_status_distinguishes_bad_input_from_failure() {
    let code = |code: u8| format!("{:?}", std::process::ExitCode::from(code));
    assert_eq!(status(Program::AllReduce, "--help"), code(0));
    assert_eq!(status(Program::AllReduce, "-b 2M -e 1M"), code(2));
    assert_eq!(status(Program::AllReduce, "--frobnicate"), code(2));
    assert_eq!(status(Program::AllReduce, ""), code(1), "no communicator can be opened");
    assert_eq!(status(Program::P2pMatrix, "-d half"), code(2), "-d means nothing to p2p_matrix");
    assert_eq!(status(Program::P2pMatrix, "-b 8"), code(1));
    assert_eq!(status(Program::TrainingBuckets, "--model bert"), code(2));
    assert_eq!(status(Program::TrainingBuckets, "--scale 0"), code(2));
    assert_eq!(status(Program::TrainingBuckets, "--model gpt2,moe"), code(1));
    assert_eq!(status(Program::AllReduceLatencyComp, "--pieces 0"), code(2));
}
