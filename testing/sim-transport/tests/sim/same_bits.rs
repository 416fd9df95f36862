//! Bitwise equality of a program's results over the network with its results over mapped slots.

use ccl_core::algorithm::Order;
use ccl_core::types::{Collective, DataType, ReduceOp};
use ccl_kernels_cpu::{Scalar, reference};
use ccl_transport_sim::{Conditions, World};

use crate::harness::{Job, mapped, simulate};
use crate::schedules::{all, all_reduce, find};

/// Runs a job over the network and over mapped slots, and compares the results.
fn compare(job: &Job, conditions: Conditions) {
    let inputs = job.inputs(1);
    let world = World::new(job.ranks, conditions, 1);
    let checked = simulate(job, &inputs, &world).check(&mapped(job, &inputs));
    checked.unwrap_or_else(|error| panic!("{}: {error}", job.name()));
}

#[test]
fn all_types_give_the_same_bits_with_sum_max_and_avg() {
    for algorithm in all() {
        for data_type in DataType::ALL {
            for op in [ReduceOp::Sum, ReduceOp::Max, ReduceOp::Avg] {
                if algorithm.collective.reduces() || op == ReduceOp::Sum {
                    compare(
                        &Job { data_type, op, ..Job::new(3, algorithm, 301) },
                        Conditions::default(),
                    );
                }
            }
        }
    }
}

#[test]
fn all_rank_counts_roots_lengths_slots_and_channels_give_the_same_bits() {
    for algorithm in all() {
        for ranks in [1, 2, 3, 4, 5, 8] {
            let roots = if algorithm.collective.has_root() { ranks } else { 1 };
            for root in 0..roots {
                for count in [0, 1, 2, 7, 200] {
                    for (slots, channels) in [(1, 2), (2, 1), (7, 3)] {
                        let mut job = Job { root, ..Job::new(ranks, algorithm, count) };
                        (job.config.slots, job.config.channels) = (slots, channels);
                        job.config.slot_bytes = 64;
                        compare(&job, Conditions::default());
                    }
                }
            }
        }
    }
}

#[test]
fn calls_in_place_and_out_of_place_give_the_same_bits() {
    for algorithm in all() {
        for (ranks, count) in [(1, 5), (2, 1), (3, 200), (5, 0), (8, 301)] {
            let roots = if algorithm.collective.has_root() { ranks } else { 1 };
            for root in 0..roots {
                let apart = Job { root, ..Job::new(ranks, algorithm, count) };
                if !apart.has_in_place() {
                    continue;
                }
                let place = Job { in_place: true, ..apart };
                compare(&place, Conditions::hostile());
                // The counts of an all_to_all_v in place differ from those out of place.
                if algorithm.collective != Collective::AllToAllV {
                    let inputs = place.inputs(1);
                    assert_eq!(
                        mapped(&place, &inputs),
                        mapped(&apart, &inputs),
                        "{}",
                        place.name()
                    );
                }
            }
        }
    }
}

/// Checks that `all_reduce` and `reduce` algorithms with [`Order::Rank`] give the bits of one fold
/// over all ranks, for several numbers and sizes of slots, and under hostile conditions.
#[test]
fn algorithms_in_rank_order_give_the_bits_of_one_fold() {
    let mut seen = 0;
    for algorithm in all() {
        let reduces = matches!(algorithm.collective, Collective::AllReduce | Collective::Reduce);
        if algorithm.order != Order::Rank || !reduces {
            continue;
        }
        for data_type in [DataType::Float32, DataType::Bfloat16, DataType::Float64] {
            for (ranks, slots, channels, slot_bytes) in
                [(2, 1, 1, 64), (3, 4, 2, 256), (5, 2, 1, 4096), (8, 3, 3, 64)]
            {
                let mut job = Job { data_type, ..Job::new(ranks, algorithm, 500) };
                (job.config.slots, job.config.channels) = (slots, channels);
                job.config.slot_bytes = slot_bytes;
                let inputs = job.inputs(6);
                let terms: Vec<_> = inputs.iter().map(|input| (&input[..], false)).collect();
                let scalar = (Scalar::NONE, ranks);
                let fold = reference::fold(data_type, job.op, scalar, &terms, true).unwrap();
                let world = World::new(ranks, Conditions::hostile(), 6);
                let simulated = simulate(&job, &inputs, &world);
                assert!(simulated.outputs[0] == fold, "not the bits of one fold: {}", job.name());
                seen += 1;
            }
        }
    }
    assert!(seen >= 3 * 12, "only {seen} runs were compared");
}

/// Checks that the order of the terms changes the bits of float sums of the test data. If the
/// order changed no bits, equal bits in the other tests would prove nothing.
#[test]
fn other_orders_give_other_bits() {
    for data_type in [DataType::Float32, DataType::Float64, DataType::Bfloat16] {
        let job = Job { data_type, ..Job::new(5, find("ring"), 500) };
        let inputs = job.inputs(3);
        let other = Job { algorithm: find("direct"), ..job };
        assert_ne!(mapped(&job, &inputs), mapped(&other, &inputs), "{data_type}");
    }
}

/// Integer results are compared with sums computed here.
#[test]
fn integer_sums_are_right() {
    for algorithm in all_reduce() {
        let job = Job { data_type: DataType::Int32, ..Job::new(4, algorithm, 1000) };
        let inputs = job.inputs(4);
        let world = World::new(4, Conditions::hostile(), 4);
        let word = |bytes: &[u8], at: usize| {
            i32::from_le_bytes(bytes[at * 4..at * 4 + 4].try_into().unwrap())
        };
        let sum = |at| inputs.iter().fold(0i32, |sum, input| sum.wrapping_add(word(input, at)));
        let expected: Vec<u8> = (0..1000).flat_map(|at| sum(at).to_le_bytes()).collect();
        let checked = simulate(&job, &inputs, &world).check(&vec![expected; 4]);
        checked.unwrap_or_else(|error| panic!("{}: {error}", job.name()));
    }
}

#[test]
fn equal_seeds_give_equal_runs() {
    let job = Job::new(4, find("ring"), 2000);
    let inputs = job.inputs(5);
    let history = |seed| {
        let world = World::new(4, Conditions::hostile(), seed);
        let simulated = simulate(&job, &inputs, &world);
        (simulated.outcomes, simulated.counters, world.stats(), world.now())
    };
    assert_eq!(history(6), history(6));
    assert_ne!(history(6), history(7));
}
