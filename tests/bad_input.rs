//! Mistakes of users: each ends in an error that says what to do, never in a hang.

use ccl_core::schedule::shape::ShapeError;
use ccl_harness::full;
use ccl_harness::processes::{Case, Ended, Processes, command, free_address};
use ccl_harness::{config, config_with, joining, ranks, ranks_with, skip};
use ferroccl::bootstrap::{Secret, UniqueId};
use ferroccl::communicator::{Blocks, Call, Sizes, StepError};
use ferroccl::{Collective, Communicator, Config, DataType, Error, Reduction};
use std::process::Command;
use std::time::Duration;

pub(crate) const CASES: &[Case] = &[("rounds", rounds)];
const SOON: Duration = Duration::from_secs(60);

/// Makes a few calls of several sizes and checks the sums.
fn rounds() -> Result<(), Error> {
    let mut c = Communicator::from_environment()?;
    for count in [1, 1000, 3_000_000] {
        let mut buffer = vec![c.rank() + 1; count];
        c.all_reduce_in_place(&mut buffer, Reduction::Sum)?;
        let sum = c.ranks() * (c.ranks() + 1) / 2;
        assert!(buffer.iter().all(|value| *value == sum));
        let mut all = vec![0; count * c.ranks() as usize];
        c.all_gather(&buffer, &mut all)?;
    }
    c.alloc::<u8>(1 << 20)?;
    Ok(())
}

/// Checks that all ranks fail, and that each error holds all of `words`.
fn disagree(
    n: u32,
    words: &[&str],
    run: impl Fn(&mut Communicator) -> Result<(), Error> + Send + Sync + 'static,
) {
    // A rank whose own call succeeded learns of the disagreement at one of its next two calls.
    let errors = ranks(n, move |c| match run(c) {
        Ok(()) => c.barrier().and_then(|()| c.barrier()).map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    });
    for (rank, error) in errors.into_iter().enumerate() {
        let error = error.expect_err(&format!("rank {rank} of {n} must fail: {words:?}"));
        for word in words {
            assert!(error.contains(word), "rank {rank} of {n}: no {word:?} in: {error}");
        }
    }
}

#[test]
fn lengths_that_differ_are_named() {
    for (count, n) in [(10, 2), (10, 3), (300_000, 2), (300_000, 5)] {
        let odd = count + 1;
        let words = [format!("{count} × float"), format!("{odd} × float"), "rank 1".to_owned()];
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        disagree(n, &words, move |c| {
            let count = if c.rank() == 1 { odd } else { count };
            c.all_reduce_in_place(&mut vec![1f32; count], Reduction::Sum)
        });
    }
}

#[test]
fn types_operators_and_collectives_that_differ_are_named() {
    disagree(2, &["rank 0", "rank 1", "1 × int32", "1 × float"], |c| match c.rank() {
        0 => c.all_reduce_in_place(&mut [1i32], Reduction::Sum),
        _ => c.all_reduce_in_place(&mut [1f32], Reduction::Sum),
    });
    disagree(3, &["rank 2", ", sum", ", max"], |c| match c.rank() {
        2 => c.all_reduce_in_place(&mut [1i32], Reduction::Max),
        _ => c.all_reduce_in_place(&mut [1i32], Reduction::Sum),
    });
    disagree(3, &["rank 0", "all_reduce #1", "all_gather #1"], |c| match c.rank() {
        0 => c.all_gather(&[1i32], &mut [0; 3]),
        _ => c.all_reduce_in_place(&mut [1i32], Reduction::Sum),
    });
    // `all_to_all` is the second call of rank 0 and the first call of rank 1.
    disagree(2, &["barrier #", "all_to_all #"], |c| {
        if c.rank() == 0 {
            c.barrier()?;
        }
        c.all_to_all(&[1u8; 2], &mut [0; 2])
    });
}

#[test]
fn roots_that_differ_are_named() {
    disagree(3, &["rank 1", "root 0", "root 1"], |c| {
        let root = u32::from(c.rank() == 1);
        c.reduce(&[1i32; 5], &mut [0; 5], Reduction::Sum, root)
    });
    disagree(3, &["rank 1"], |c| {
        let root = u32::from(c.rank() == 1);
        c.broadcast(&mut [1i32; 5], root)
    });
}

/// An error names both algorithms if they divide the data into messages of different lengths.
#[test]
fn algorithms_whose_messages_differ_in_length_are_named() {
    disagree(2, &["rank 0", "by ring/2 (", "by ring ("], |c| {
        let algorithm = Some(if c.rank() == 0 { "ring/2" } else { "ring" });
        let call = Call::even(Collective::AllReduce, DataType::Int32, 100_000);
        c.call(&Call { algorithm, ..call }, &[0; 400_000], &mut [0; 400_000])
    });
}

#[test]
fn a_disagreement_on_the_root_fails_at_least_one_call() {
    type Run = fn(&mut Communicator, u32) -> Result<(), Error>;
    let runs: [Run; 4] = [
        |c, root| c.broadcast(&mut [1i32; 5], root),
        |c, root| c.reduce(&[1i32; 5], &mut [0; 5], Reduction::Sum, root),
        |c, root| c.gather(&[1i32], &mut [0; 8], root),
        |c, root| c.scatter(&[1i32; 8], &mut [0], root),
    ];
    // Rank `odd` of `n` names itself or its neighbour as the root; the others name rank 0. No call
    // follows that could report the disagreement, so at least one of these calls must fail.
    for (n, odd, of) in [(2, 0, 1), (2, 1, 1), (3, 1, 1), (3, 2, 1), (5, 4, 4), (8, 3, 3)] {
        for run in runs {
            for round in 0..if full() { 6 } else { 1 } {
                let ended = ranks(n, move |c| {
                    let late = u64::from(c.rank() * 37 + round * 11) % 50;
                    std::thread::sleep(Duration::from_micros(late * 4));
                    let root = if c.rank() == odd { of } else { 0 };
                    run(c, root).map_err(|error| error.to_string())
                });
                assert!(
                    ended.iter().any(Result::is_err),
                    "no call fails, though rank {odd} of {n} names root {of}, in round {round}"
                );
            }
        }
    }
}

#[test]
fn uneven_counts_that_differ_are_named() {
    disagree(2, &["rank 0", "rank 1", "all_gather_v #1"], |c| {
        let counts = [2, 3 + c.rank() as usize];
        let blocks = Blocks { counts: &counts, starts: &[0, 2] };
        c.all_gather_v(&[1u16; 4].map(i32::from)[..counts[c.rank() as usize]], &mut [0; 6], blocks)
    });
    // Only the root knows the counts. The error states the length that the root expects, and the
    // length that the other rank sends.
    disagree(2, &["12 bytes", "16 bytes"], |c| {
        let blocks = Blocks { counts: &[2, 3], starts: &[0, 2] };
        c.gather_v(&vec![1i32; if c.rank() == 0 { 2 } else { 4 }], &mut [0; 6], blocks, 0)
    });
    disagree(2, &["1 bytes", "2 bytes"], |c| {
        let counts = if c.rank() == 0 { [0, 1] } else { [2, 0] };
        let blocks = Blocks { counts: &counts, starts: &[0, 0] };
        c.all_to_all_v(&[1u8; 2], blocks, &mut [0; 2], blocks)
    });
}

/// An error that a rank can detect alone does no harm: no data moves, and the next call works.
#[test]
fn errors_that_one_rank_detects_alone_are_harmless() {
    ranks(3, |c| {
        let mut out = [0i32; 6];
        let usage = |result: Result<(), Error>, words: &[&str]| {
            let error = result.unwrap_err();
            assert!(error.is_harmless(), "{error}");
            let text = error.to_string();
            assert!(words.iter().all(|word| text.contains(word)), "no {words:?} in {text}");
        };
        usage(c.broadcast(&mut out, 3), &["root 3 is not among the 3 ranks"]);
        usage(c.reduce(&[1], &mut out, Reduction::Sum, u32::MAX), &["root"]);
        usage(c.all_reduce(&[1, 2], &mut [0], Reduction::Sum), &["2 elements", "1"]);
        usage(c.all_gather(&[1, 2], &mut [0; 5]), &["all_gather", "6 elements", "holds 5"]);
        usage(c.reduce_scatter(&[1; 5], &mut [0; 2], Reduction::Sum), &["input", "6", "holds 5"]);
        usage(c.all_gather_in_place(&mut [1; 5]), &["5 elements", "3 ranks"]);
        usage(c.all_to_all(&[1; 4], &mut [0; 4]), &["4 elements", "3 ranks"]);
        let root = c.rank();
        usage(c.gather(&[1, 2], &mut [0; 5], root), &["output", "6", "holds 5"]);
        usage(c.scatter(&[1; 5], &mut [0; 2], root), &["input", "6", "holds 5"]);
        let few = Blocks { counts: &[1, 1], starts: &[0, 1] };
        usage(c.all_gather_v(&[1], &mut out, few), &["takes 3 counts"]);
        let lame = Blocks { counts: &[1, 1, 1], starts: &[0, 1] };
        usage(c.reduce_scatter_v(&[1; 3], &mut out, lame, Reduction::Sum), &["2 starts"]);
        usage(c.all_to_all_v(&[1; 3], few, &mut out, few), &["takes 3 counts"]);
        let blocks = Blocks { counts: &[2, 2, 2], starts: &[0, 2, 5] };
        usage(c.all_gather_v(&[1; 2], &mut out, blocks), &["7 elements", "holds 6"]);
        for algorithm in ["no_such", "", "RING"] {
            let call = Call {
                algorithm: Some(algorithm),
                ..Call::even(Collective::AllReduce, DataType::Int32, 1)
            };
            usage(c.call(&call, &[0; 4], &mut [0; 4]), &["no algorithm", "choose one of", "ring"]);
        }
        let thirds = Some("ring/3");
        let call = Call::even(Collective::AllReduce, DataType::Int32, 1);
        let call = Call { algorithm: thirds, ..call };
        usage(c.call(&call, &[0; 4], &mut [0; 4]), &["ring/3", "2, 4 or 8"]);
        let wrong = Call::even(Collective::AllGatherV, DataType::Int32, 1);
        let wanted = ShapeError::Kind {
            collective: Collective::AllGatherV,
            rank: c.rank(),
            expected: "one count per rank",
        };
        usage(c.call(&wrong, &[0; 4], &mut [0; 12]), &[&wanted.to_string()]);
        c.all_reduce(&[1; 6], &mut out, Reduction::Sum).unwrap();
        assert_eq!(out, [3; 6]);
    });
}

#[test]
fn sizes_that_overflow_are_refused() {
    ranks(3, |c| {
        let huge = [usize::MAX, usize::MAX / 3 + 1, usize::MAX / 8 + 1, isize::MAX as usize];
        for count in huge {
            for collective in [Collective::AllReduce, Collective::AllGather, Collective::AllToAll] {
                let call = Call::even(collective, DataType::Float64, count);
                let error = c.call(&call, &[0; 8], &mut [0; 8]).unwrap_err();
                assert!(error.to_string().contains("address space"), "{count} elements: {error}");
                assert!(c.explain(&call).is_err());
            }
            for blocks in [
                Blocks { counts: &[count; 3], starts: &[0; 3] },
                Blocks { counts: &[1; 3], starts: &[count; 3] },
            ] {
                let sizes = [
                    (Collective::AllGatherV, Sizes::PerRank(blocks)),
                    (Collective::AllToAllV, Sizes::Pairs { send: blocks, recv: blocks }),
                ];
                for (collective, sizes) in sizes {
                    let call = Call::sized(collective, DataType::Uint8, sizes);
                    assert!(matches!(c.call(&call, &[], &mut []), Err(Error::Call(_))));
                    assert!(matches!(c.call_in_place(&call, &mut []), Err(Error::Call(_))));
                }
            }
        }
        c.barrier().unwrap();
    });
}

#[test]
fn overlapping_output_blocks_are_refused() {
    ranks(3, |c| {
        let rank = c.rank() as usize;
        let overlaps = |starts: &[usize; 3], counts: &[usize; 3]| {
            let blocks = Blocks { counts, starts };
            let even = Blocks { counts: &[counts[rank]; 3], starts: &[0, 4, 8] };
            let gathered =
                Call::sized(Collective::AllGatherV, DataType::Uint8, Sizes::PerRank(blocks));
            let exchanged = Call::sized(
                Collective::AllToAllV,
                DataType::Uint8,
                Sizes::Pairs { send: even, recv: blocks },
            );
            [gathered, exchanged].map(|call| c.explain(&call).err().map(|error| error.to_string()))
        };
        for (starts, counts, first, second) in [
            ([0, 4, 7], [4; 3], 1, 2),
            ([8, 7, 0], [4; 3], 1, 0),
            ([0, 0, 2], [1, 0, 3], 9, 9),
            ([5, 0, 0], [1, 2, 1], 2, 1),
        ] {
            for error in overlaps(&starts, &counts) {
                let both = format!("from rank {first} and the block from rank {second}");
                assert_eq!(error.is_some(), first != 9, "blocks at {starts:?}: {error:?}");
                assert!(error.is_none_or(|error| error.contains(&both)), "{starts:?}: no {both:?}");
            }
        }
        assert_eq!(overlaps(&[8, 0, 4], &[4; 3]), [None, None], "blocks may lie in any order");
        // Input blocks may overlap, because they are only read.
        let blocks = Blocks { counts: &[4; 3], starts: &[0; 3] };
        let sizes = Sizes::PerRank(blocks);
        let call = Call::sized(Collective::ReduceScatterV, DataType::Uint8, sizes);
        let mut output = [0; 4];
        c.call(&call, &[1; 4], &mut output).unwrap();
        assert_eq!(output, [3; 4]);
    });
}

#[test]
fn differing_configurations_are_refused_with_the_rank_named() {
    let config = |rank| config_with(|config| config.slots = if rank == 2 { 3 } else { 8 });
    let errors = joining(3, config, |joined| joined.unwrap_err().to_string());
    for error in errors {
        assert!(error.contains("configuration of rank 2 differs"), "{error}");
    }
    // A late rank gets the same error, and not an error about a missing rank 0.
    let config = |rank| {
        if rank == 1 {
            std::thread::sleep(Duration::from_millis(300));
        }
        config_with(|config| config.slots = if rank == 2 { 3 } else { 8 })
    };
    for error in joining(3, config, |joined| joined.unwrap_err().to_string()) {
        assert!(error.contains("configuration of rank 2 differs"), "{error}");
    }
    // The wait policy may differ between ranks.
    let config = |rank: u32| config_with(|config| config.spin = Duration::from_micros(rank.into()));
    joining(3, config, |joined| joined.unwrap().barrier().unwrap());
}

#[test]
fn an_invalid_policy_is_refused_and_the_old_one_stays() {
    ranks(2, |communicator| {
        let error = communicator.set_policy("qps=4 odd=1").unwrap_err().to_string();
        assert!(error.contains("odd=1"), "{error}");
        assert_eq!(communicator.config().ib_policy, Config::default().ib_policy);
        // These ranks have no queue pairs, but take the policy nevertheless.
        communicator.set_policy("qps=64").unwrap();
        assert_eq!(communicator.config().ib_policy.to_string(), "qps=64");
        communicator.barrier().unwrap();
    });
}

#[test]
fn impossible_ranks_are_refused() {
    let id = || UniqueId { endpoints: Vec::new(), secret: Secret::from_bytes([1; 32]) };
    for (rank, ranks) in [(0, 0), (2, 2), (0, u32::MAX)] {
        let error = Communicator::join(rank, ranks, id(), config()).unwrap_err().to_string();
        assert!(error.contains(&format!("rank {rank} of {ranks}")), "{error}");
    }
}

#[test]
fn unknown_transports_and_algorithms_are_refused() {
    let wrong = config_with(|config| config.transport = "carrier_pigeon".to_owned());
    let errors = joining(2, move |_| wrong.clone(), |joined| joined.unwrap_err().to_string());
    assert!(errors.iter().all(|error| error.contains("carrier_pigeon")), "{errors:?}");
    let wrong = config_with(|config| config.algorithm = "rign".to_owned());
    let errors = joining(2, move |_| wrong.clone(), |joined| joined.unwrap_err().to_string());
    for error in errors {
        assert!(error.contains("rign") && error.contains("halving_doubling"), "{error}");
    }
    for known in ["ring", "tree", "direct_two_phase", "bruck"] {
        let config = config_with(|config| config.algorithm = known.to_owned());
        ranks_with(2, config, |c| c.barrier().unwrap());
    }
}

/// Runs one process with a bad environment and returns its error. The process must fail by itself
/// and soon.
fn fails(variables: &[(&str, &str)]) -> String {
    let mut command = command("rounds");
    command.env_remove("FERROCCL_SECRET").envs(variables.iter().copied());
    let ended = Processes::start([command]).end(SOON).remove(0);
    assert_eq!(ended.status.code(), Some(1), "{}", ended.output);
    ended.error().to_owned()
}

#[test]
fn environments_that_make_no_sense_are_refused() {
    for (name, value) in [
        ("FERROCCL_SLOTS", "x"),
        ("FERROCCL_SLOTS", "0"),
        ("FERROCCL_SLOTS", "-1"),
        ("FERROCCL_CHANNELS", "1.5"),
        ("FERROCCL_SLOT_BYTES", "12q"),
        ("FERROCCL_TIMEOUT", "soon"),
        ("FERROCCL_DEAD_AFTER", "0s"),
        ("FERROCCL_DETERMINISTIC", "perhaps"),
        ("NCCL_MAX_NCHANNELS", ""),
    ] {
        let error = fails(&[(name, value)]);
        assert!(error.contains(name) && error.contains(&format!("{value:?}")), "{error}");
    }
    let address = free_address();
    for (rank, ranks) in [("0", "0"), ("3", "2"), ("x", "2"), ("0", "99999999")] {
        let error = fails(&[
            ("FERROCCL_RANK", rank),
            ("FERROCCL_RANKS", ranks),
            ("FERROCCL_COMM_ID", &address),
        ]);
        assert!(error.contains(rank) && error.contains(ranks) || error.contains("RANK"), "{error}");
    }
    let error = fails(&[("FERROCCL_RANK", "0"), ("FERROCCL_RANKS", "2")]);
    assert!(error.contains("FERROCCL_COMM_ID"), "{error}");
}

fn all_well(ended: &[Ended]) {
    for ended in ended {
        assert!(ended.status.success() && ended.output.contains("\nwell"), "{}", ended.output);
    }
}

/// Wraps the command of a rank in a shell that first runs a script, for example to set limits or to
/// mount file systems.
pub(crate) fn within(command: &mut Command, shell: &[&str], script: &str) {
    let mut outer = Command::new(shell[0]);
    outer.args(&shell[1..]).args(["-c", &format!("{script}; exec \"$0\" \"$@\"")]);
    outer.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => outer.env(name, value),
            None => outer.env_remove(name),
        };
    }
    *command = outer;
}

#[test]
fn a_small_limit_on_locked_memory_is_enough() {
    let ranks = Processes::ranks(3, "rounds", |_, command| {
        within(command, &["sh"], "ulimit -l 64 || exit 9");
    });
    all_well(&ranks.end(SOON));
}

/// Shared memory is anonymous: a full or read-only /dev/shm does not matter.
#[test]
fn no_dev_shm_is_needed() {
    let namespaces: [&[&str]; 2] = [&["unshare", "-m"], &["unshare", "-rm"]];
    let works = |outer: &&[&str]| {
        let mount = "mount -t tmpfs -o ro,size=4k none /dev/shm";
        let tried = Command::new(outer[0]).args(&outer[1..]).args(["sh", "-c", mount]).status();
        tried.is_ok_and(|status| status.success())
    };
    let Some(outer) = namespaces.into_iter().find(|outer| works(outer)) else {
        skip("this user may not mount anything, not even in a namespace of its own");
        return;
    };
    let shell = [outer, &["sh"]].concat();
    let ranks = Processes::ranks(2, "rounds", |_, command| {
        let script = "mount -t tmpfs -o ro,size=4k none /dev/shm; ! touch /dev/shm/x || exit 9";
        within(command, &shell, script);
    });
    all_well(&ranks.end(SOON));
}

/// A rank with too little memory or too few descriptors fails with an error, and the others fail
/// too.
#[test]
fn a_rank_without_resources_makes_all_ranks_fail_and_the_others_name_it() {
    for (limit, words) in [("ulimit -v 120000", "memory"), ("ulimit -n 8", "")] {
        let ranks = Processes::ranks(3, "rounds", |rank, command| {
            command.env("FERROCCL_JOIN_TIMEOUT", "5").env("FERROCCL_SLOT_BYTES", "4M");
            command.env("FERROCCL_BUDGET_BYTES", "1G");
            if rank == 1 {
                within(command, &["sh"], limit);
            }
        });
        let ended = ranks.end(SOON);
        for (rank, ended) in ended.iter().enumerate() {
            assert_eq!(
                ended.status.code(),
                Some(1),
                "rank {rank}, with `{limit}` for rank 1: {}",
                ended.output
            );
            assert!(!ended.error().is_empty(), "{}", ended.output);
            assert!(rank == 1 || ended.error().contains("rank 1"), "`{limit}`: {}", ended.output);
        }
        assert!(ended[1].error().contains(words), "{}", ended[1].output);
    }
}

#[test]
fn a_block_from_a_rank_to_itself_needs_equal_send_and_receive_counts() {
    ranks(1, |c| {
        let (counts, starts) = ([1], [0]);
        let send = Blocks { counts: &counts, starts: &starts };
        let recv = Blocks { counts: &[5], starts: &starts };
        let error = c.all_to_all_v(&[1u8], send, &mut [0u8; 5], recv).unwrap_err().to_string();
        assert!(error.contains("to itself"), "{error}");
    });
}

#[test]
fn a_barrier_needs_buffers_of_one_element_even_if_its_count_is_0() {
    ranks(2, |c| {
        let call = Call::even(Collective::Barrier, DataType::Float64, 0);
        let error = c.call(&call, &[], &mut []).unwrap_err().to_string();
        assert!(error.contains("must hold 1 elements"), "{error}");
    });
}

#[test]
fn algorithms_that_differ_are_named() {
    let errors = ranks(2, |c| {
        let name = ["ring", "direct_two_phase"][c.rank() as usize];
        let algorithm = Some(name);
        let call = Call { algorithm, ..Call::even(Collective::AllReduce, DataType::Uint8, 4096) };
        c.call(&call, &[1; 4096], &mut [0; 4096])
    });
    let text: Vec<String> = errors.iter().map(|e| e.as_ref().unwrap_err().to_string()).collect();
    assert!(text.iter().any(|t| t.contains("by ring") && t.contains("by direct_two")), "{text:?}");
}

#[test]
fn a_split_on_one_rank_and_an_alloc_on_another_give_errors_that_name_both() {
    ranks(2, |c| {
        let result = match c.rank() {
            0 => c.split(0, 0).map(drop),
            _ => c.alloc::<f32>(10).map(drop),
        };
        let error = result.unwrap_err();
        let text = error.to_string();
        assert!(text.contains("split") && text.contains("alloc"), "{text}");
        assert!(matches!(error, Error::Step(StepError::Disagree { .. })), "{error:?}");
        assert!(error.is_harmless(), "{error}");
        c.barrier().unwrap();
    });
}
