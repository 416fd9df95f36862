//! Every collective by every algorithm, compared with a plain computation.

use std::sync::LazyLock;

use ccl_core::algorithm;
use ccl_core::config::Bytes;
use ccl_core::types::{Collective, DataType, ReduceOp};
use ccl_harness::data::{Case, check};
use ccl_harness::full;
use ccl_harness::{config_with, ranks, ranks_with};
use ferroccl::communicator::Blocks;
use ferroccl::{Communicator, Config, Reduction};

/// Returns all collectives except barriers and send/recv.
pub(crate) fn movers() -> impl Iterator<Item = Collective> {
    use Collective as C;
    C::ALL.into_iter().filter(|collective| !matches!(collective, C::Barrier | C::SendRecv))
}

fn roots(collective: Collective, ranks: u32) -> Vec<u32> {
    match collective.has_root() {
        false => vec![0],
        true if ranks <= 5 => (0..ranks).collect(),
        true => vec![0, ranks / 2, ranks - 1],
    }
}

/// Returns the algorithms of a collective, followed by `None` for the planner's choice.
fn algorithms(collective: Collective) -> impl Iterator<Item = Option<&'static str>> {
    algorithm::of(collective).map(|algorithm| Some(algorithm.name)).chain([None])
}

pub(crate) fn sweep(communicator: &mut Communicator, counts: &[usize]) {
    for collective in movers() {
        for algorithm in algorithms(collective) {
            for root in roots(collective, communicator.ranks()) {
                for &count in counts {
                    for in_place in [false, true] {
                        let case =
                            Case { algorithm, root, in_place, ..Case::new(collective, count) };
                        check(communicator, &case);
                    }
                }
            }
        }
    }
}

/// Checks at least one algorithm of each collective and of each family.
pub(crate) fn sweep_families(communicator: &mut Communicator, counts: &[usize]) {
    let mut families = Vec::new();
    for collective in movers() {
        for (at, algorithm) in algorithm::of(collective).enumerate() {
            if at > 0 && families.contains(&algorithm.family) {
                continue;
            }
            families.push(algorithm.family);
            for &count in counts {
                let name = Some(algorithm.name);
                check(communicator, &Case { algorithm: name, ..Case::new(collective, count) });
            }
        }
    }
}

fn sweep_with(n: u32, counts: &'static [usize], change: impl Fn(&mut Config)) {
    ranks_with(n, config_with(change), |communicator| sweep(communicator, counts));
}

const LENGTHS: [usize; 8] = [0, 1, 2, 3, 7, 64, 1009, 40_009];

#[test]
fn every_algorithm_with_1_rank() {
    ranks(1, |communicator| sweep(communicator, &LENGTHS));
}

#[test]
fn every_algorithm_with_2_ranks() {
    ranks(2, |communicator| sweep(communicator, &LENGTHS));
}

#[test]
fn every_algorithm_with_3_ranks() {
    ranks(3, |communicator| sweep(communicator, &LENGTHS));
}

#[test]
fn every_algorithm_with_5_ranks() {
    let lengths = if full() { &LENGTHS[..] } else { &[0, 1, 7, 1009] };
    ranks(5, |communicator| sweep(communicator, lengths));
}

#[test]
fn every_algorithm_with_8_ranks() {
    ranks(8, |communicator| sweep(communicator, &[0, 1, 5, 8, 1009]));
}

#[test]
fn every_algorithm_with_17_ranks() {
    ranks(17, |communicator| {
        for collective in movers() {
            for algorithm in algorithms(collective) {
                let case = Case { algorithm, root: 16, ..Case::new(collective, 300) };
                check(communicator, &case);
            }
        }
    });
}

#[test]
fn every_algorithm_works_with_few_slots() {
    for &slots in if full() { &[1, 2, 3][..] } else { &[1] } {
        for &n in if full() { &[2, 5][..] } else { &[3] } {
            sweep_with(n, &[1, 7, 9001], |config| {
                config.slots = slots;
                config.slot_bytes = Bytes(4096);
            });
        }
    }
}

/// Algorithms of the collectives of [`movers`], with messages of 1, 1/2, 1/4 and 1/8 of a slot.
static VARIANTS: LazyLock<Vec<(Collective, String)>> = LazyLock::new(|| {
    let named = movers().flat_map(|collective| {
        algorithm::of(collective).map(move |algorithm| (collective, algorithm.name))
    });
    let parts = ["/8", "", "/2", "/4"];
    named
        .flat_map(|(collective, name)| parts.map(|part| (collective, format!("{name}{part}"))))
        .collect()
});

/// Every algorithm works with shorter messages, also after other calls on the same communicator.
#[test]
fn every_algorithm_works_with_messages_of_a_part_of_a_slot() {
    for &n in if full() { &[1, 2, 3, 5, 17][..] } else { &[3] } {
        let config = config_with(|config| config.slot_bytes = Bytes(8192));
        ranks_with(n, config, |communicator| {
            for (collective, name) in VARIANTS.iter() {
                for count in [0, 1, 17, 5003] {
                    let case = Case::new(*collective, count);
                    check(communicator, &Case { algorithm: Some(name), ..case });
                }
            }
        });
    }
}

#[test]
fn every_algorithm_works_with_several_channels() {
    for &(channels, slots) in if full() { &[(2, 8), (3, 1)][..] } else { &[(3, 1)] } {
        sweep_with(3, &[1, 7, 9001], |config| {
            config.channels = channels;
            config.slots = slots;
            config.slot_bytes = Bytes(4096);
        });
    }
}

#[test]
fn every_algorithm_works_if_ranks_do_not_compare_their_calls() {
    sweep_with(3, &[0, 7, 9001], |config| config.check_calls = false);
}

#[test]
fn every_type_is_reduced_by_every_operator() {
    for &n in if full() { &[1, 2, 5][..] } else { &[2] } {
        ranks(n, |communicator| {
            for collective in Collective::ALL.into_iter().filter(|c| c.reduces()) {
                for algorithm in algorithms(collective) {
                    for data_type in DataType::ALL {
                        for op in ReduceOp::ALL {
                            for count in [1, 133] {
                                let case = Case::new(collective, count);
                                check(communicator, &Case { data_type, op, algorithm, ..case });
                            }
                        }
                    }
                }
            }
        });
    }
}

#[test]
fn every_type_is_moved_without_a_changed_bit() {
    ranks(3, |communicator| {
        for collective in movers().filter(|collective| !collective.reduces()) {
            for data_type in DataType::ALL {
                check(communicator, &Case { data_type, ..Case::new(collective, 131) });
            }
        }
    });
}

/// Successive calls of one collective may have any sizes. Here, most calls differ from the
/// previous call in the number of chunks.
#[test]
fn calls_of_any_sizes_work_one_after_the_other() {
    ranks(2, |communicator| {
        for count in [1_000_003, 1, 300_000, 0, 33_000, 5, 1_000_003, 2] {
            for collective in [Collective::AllReduce, Collective::AllToAll, Collective::AllGather] {
                check(communicator, &Case::new(collective, count));
            }
        }
    });
}

/// A call may be in place on some ranks and out of place on others.
#[test]
fn a_call_may_be_in_place_on_some_ranks_only() {
    ranks(3, |communicator| {
        for algorithm in algorithms(Collective::AllReduce) {
            for count in [1, 9001] {
                let in_place = communicator.rank() == 1;
                let case = Case::new(Collective::AllReduce, count);
                check(communicator, &Case { in_place, algorithm, ..case });
            }
        }
    });
}

#[test]
fn nobody_leaves_a_barrier_before_all_have_entered() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    for n in [1, 2, 5, 8] {
        let entered = Arc::new(AtomicU32::new(0));
        ranks(n, move |communicator| {
            for round in 1..=50 {
                entered.fetch_add(1, Ordering::SeqCst);
                communicator.barrier().unwrap();
                let seen = entered.load(Ordering::SeqCst);
                assert!(seen >= round * n, "only {seen} of {} had entered", round * n);
            }
        });
    }
}

/// Each typed method calls the right collective with the right lengths.
#[test]
fn typed_methods_call_the_right_collectives() {
    let n = 3;
    ranks(n, move |c| {
        let (rank, n) = (c.rank() as usize, n as usize);
        let own: Vec<u32> = (0..4).map(|i| 10 * rank as u32 + i).collect();
        let all: Vec<u32> = (0..n as u32).flat_map(|r| (0..4).map(move |i| 10 * r + i)).collect();
        let sum: Vec<u32> = (0..4).map(|i| 30 + 3 * i).collect();
        let mut output = vec![0; 4];
        c.all_reduce(&own, &mut output, Reduction::Sum).unwrap();
        assert_eq!(output, sum);
        let mut buffer = own.clone();
        c.all_reduce_in_place(&mut buffer, Reduction::Max).unwrap();
        assert_eq!(buffer, [20, 21, 22, 23]);
        let mut gathered = vec![0; 4 * n];
        c.all_gather(&own, &mut gathered).unwrap();
        assert_eq!(gathered, all);
        let mut buffer = vec![0; 4 * n];
        buffer[4 * rank..][..4].copy_from_slice(&own);
        c.all_gather_in_place(&mut buffer).unwrap();
        assert_eq!(buffer, all);
        let mut one = vec![0; 4];
        c.reduce_scatter(&all, &mut one, Reduction::Avg).unwrap();
        assert_eq!(one, own);
        let mut buffer = all.clone();
        c.reduce_scatter_in_place(&mut buffer, Reduction::PremulSum(2)).unwrap();
        assert_eq!(buffer[4 * rank..][..4], own.iter().map(|v| 6 * v).collect::<Vec<_>>());
        let mut buffer = own.clone();
        c.broadcast(&mut buffer, 2).unwrap();
        assert_eq!(buffer, [20, 21, 22, 23]);
        let mut exchanged = vec![0; 4 * n];
        c.all_to_all(&all, &mut exchanged).unwrap();
        assert_eq!(exchanged, own.repeat(n));
        typed_rooted(c, &own, &all);
        typed_uneven(c);
    });
}

fn typed_rooted(c: &mut Communicator, own: &[u32], all: &[u32]) {
    let is_root = c.rank() == 1;
    let mut output = vec![0; if is_root { 4 } else { 0 }];
    c.reduce(own, &mut output, Reduction::Min, 1).unwrap();
    assert!(!is_root || output == [0, 1, 2, 3]);
    let mut output = vec![0; if is_root { all.len() } else { 0 }];
    c.gather(own, &mut output, 1).unwrap();
    assert!(!is_root || output == all);
    let mut output = vec![0; 4];
    c.scatter(if is_root { all } else { &[] }, &mut output, 1).unwrap();
    assert_eq!(output, own);
}

fn typed_uneven(c: &mut Communicator) {
    let (rank, is_root) = (c.rank() as usize, c.rank() == 1);
    let blocks = Blocks { counts: &[2, 0, 3], starts: &[0, 2, 2] };
    let all = [1.5f32, 2.5, 3.5, 4.5, 5.5];
    let own = &all[blocks.starts[rank]..][..blocks.counts[rank]];
    let mut output = vec![0.0; 5];
    c.all_gather_v(own, &mut output, blocks).unwrap();
    assert_eq!(output, all);
    let mut part = vec![0.0; own.len()];
    c.reduce_scatter_v(&all, &mut part, blocks, Reduction::Avg).unwrap();
    assert_eq!(part, own);
    let mut output = vec![0.0; if is_root { 5 } else { 0 }];
    c.gather_v(own, &mut output, blocks, 1).unwrap();
    assert!(!is_root || output == all);
    let mut part = vec![0.0; own.len()];
    c.scatter_v(if is_root { &all } else { &[] }, &mut part, blocks, 1).unwrap();
    assert_eq!(part, own);
    // Rank i sends i + 1 elements to every rank.
    let sends = Blocks { counts: &[rank + 1; 3], starts: &[0; 3] };
    let recvs = Blocks { counts: &[1, 2, 3], starts: &[0, 1, 3] };
    let mut output = vec![0u8; 6];
    c.all_to_all_v(&vec![rank as u8; rank + 1], sends, &mut output, recvs).unwrap();
    assert_eq!(output, [0, 1, 1, 2, 2, 2]);
}
