//! The same program gives the same bits over the network and over mapped slots.

use ccl_core::types::{DataType, ReduceOp};
use ccl_transport_sim::{Conditions, World};

use crate::harness::{Job, mapped, simulate};
use crate::schedules::{ALL, Make, SLOTS_MIN, chain, direct, ring};

#[test]
fn all_types_and_operators() {
    for (name, make) in ALL {
        for data_type in DataType::ALL {
            for op in [ReduceOp::Sum, ReduceOp::Max, ReduceOp::Avg] {
                let mut job = Job::new(3, make, 301);
                (job.data_type, job.op) = (data_type, op);
                let inputs = job.inputs(1);
                let world = World::new(3, Conditions::default(), 1);
                let simulated = simulate(&job, &inputs, &world);
                let expected = mapped(&job, &inputs);
                let what = format!("{name} {data_type} {op}");
                simulated.check(&expected).unwrap_or_else(|error| panic!("{what}: {error}"));
            }
        }
    }
}

#[test]
fn all_sizes_ranks_and_shapes_of_links() {
    for (name, make) in ALL {
        for ranks in [1, 2, 3, 4, 5, 8] {
            for count in [0, 1, 2, 7, 64, 500] {
                for (slots, channels) in [(1, 1), (2, 2), (3, 1), (8, 3)] {
                    if slots < SLOTS_MIN && !["chain", "incast"].contains(&name) {
                        continue;
                    }
                    let mut job = Job::new(ranks, make, count);
                    (job.config.slots, job.config.channels) = (slots, channels);
                    job.config.slots_min = 1;
                    job.config.slot_bytes = 64;
                    let inputs = job.inputs(2);
                    let world = World::new(ranks, Conditions::default(), 2);
                    let simulated = simulate(&job, &inputs, &world);
                    let what = format!("{name} {ranks} ranks {count} elements {slots} slots");
                    let expected = mapped(&job, &inputs);
                    simulated.check(&expected).unwrap_or_else(|error| panic!("{what}: {error}"));
                }
            }
        }
    }
}

/// The comparison is worth something: float sums here depend on the order of the terms.
#[test]
fn other_orders_give_other_bits() {
    for data_type in [DataType::Float32, DataType::Float64, DataType::Bfloat16] {
        let mut job = Job::new(5, ring, 500);
        job.data_type = data_type;
        let inputs = job.inputs(3);
        let other = Job { make: direct, ..job };
        assert_ne!(mapped(&job, &inputs), mapped(&other, &inputs), "{data_type}");
    }
}

/// And right: integers are compared with sums made here.
#[test]
fn sums_are_sums() {
    for (name, make) in [("ring", ring as Make), ("direct", direct), ("chain", chain)] {
        let mut job = Job::new(4, make, 1000);
        job.data_type = DataType::Int32;
        let inputs = job.inputs(4);
        let world = World::new(4, Conditions::hostile(), 4);
        let word = |bytes: &[u8], at: usize| {
            i32::from_le_bytes(bytes[at * 4..at * 4 + 4].try_into().unwrap())
        };
        let sum = |at| inputs.iter().fold(0i32, |sum, input| sum.wrapping_add(word(input, at)));
        let expected: Vec<u8> = (0..1000).flat_map(|at| sum(at).to_le_bytes()).collect();
        let all = vec![expected; 4];
        simulate(&job, &inputs, &world).check(&all).unwrap_or_else(|e| panic!("{name}: {e}"));
    }
}

#[test]
fn one_seed_is_one_run() {
    let job = Job::new(4, ring, 2000);
    let inputs = job.inputs(5);
    let history = |seed| {
        let world = World::new(4, Conditions::hostile(), seed);
        let simulated = simulate(&job, &inputs, &world);
        (simulated.outcomes, simulated.counters, world.stats(), world.now())
    };
    assert_eq!(history(6), history(6));
    assert_ne!(history(6), history(7));
}
