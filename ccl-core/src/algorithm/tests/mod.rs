//! Tests of every algorithm for every number of ranks and every root. [`symbolic`] runs the ops of
//! the schedules. [`numbers`] runs the lowered programs on numbers, over few slots.

mod numbers;
mod symbolic;
mod world;

use super::*;
use std::rc::Rc;

use crate::lower::{Alias, lower};
use crate::schedule::Op;
use crate::topology::Hosts;
use world::{World, worlds};

const RANKS: u32 = 17;

/// A group of sends and receives, as if it were an algorithm.
const GROUP: Algorithm = Algorithm {
    collective: Collective::SendRecv,
    family: Family::Direct,
    name: "group",
    summary: "",
    schedule: |params| {
        let (sends, recvs) = World::group(params);
        send_recv(params.rank, params.ranks, &sends, &recvs).unwrap()
    },
    order: Order::None,
    steps: |_| 1,
};

fn each_placed(check: fn(&Algorithm, &World, bool)) {
    each(|algorithm, world| {
        for in_place in [false, true] {
            if in_place && !world.has_in_place() {
                continue;
            }
            println!("{} {} {world:?} in place {in_place}", algorithm.collective, algorithm.name);
            check(algorithm, world, in_place);
        }
    });
}

fn each(mut check: impl FnMut(&Algorithm, &World)) {
    for algorithm in all().chain([&GROUP]) {
        for world in worlds(algorithm, RANKS, 40) {
            check(algorithm, &world);
        }
    }
}

#[test]
fn every_output_holds_its_expected_contributions() {
    each_placed(symbolic::run);
}

#[test]
fn programs_compute_every_output_over_two_slots() {
    each_placed(|algorithm, world, in_place| numbers::run(algorithm, world, in_place, 2, 2));
}

#[test]
fn programs_compute_every_output_over_a_single_slot() {
    each_placed(|algorithm, world, in_place| numbers::run(algorithm, world, in_place, 1, 1));
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_ring_program_for_two_slots_deadlocks_over_single_slots() {
    let world = World::new(Collective::AllReduce, 3, 0, 40);
    numbers::run(find(world.collective, "ring").unwrap(), &world, false, 1, 2);
}

#[test]
#[should_panic(expected = "in rank order")]
fn an_algorithm_that_falsely_claims_rank_order_is_found() {
    let world = World::new(Collective::AllReduce, 3, 0, 40);
    let ring = find(world.collective, "ring").unwrap();
    symbolic::run(&Algorithm { order: Order::Rank, ..*ring }, &world, false);
}

#[test]
#[should_panic(expected = "output 0")]
fn a_wrong_result_is_found() {
    let world = World::new(Collective::AllToAll, 3, 0, 40);
    symbolic::run(find(Collective::AllGatherV, "direct").unwrap(), &world, false);
}

/// Algorithms that need scratch: they collect parts of several senders for one message, or forward
/// the parts of a received message in several messages.
const NEED_SCRATCH: [&str; 6] = [
    "reduce_scatter recursive_halving",
    "reduce_scatter_v recursive_halving",
    "gather tree",
    "scatter tree",
    "all_to_all bruck",
    "all_to_all hierarchical",
];

#[test]
fn only_the_listed_algorithms_need_scratch() {
    each(|algorithm, world| {
        for rank in 0..world.ranks {
            let schedule = (algorithm.schedule)(&world.params(rank));
            let program = lower(&schedule, Alias::of(world.collective, rank, schedule.split));
            let name = format!("{} {}", algorithm.collective, algorithm.name);
            let scratch = program.scratch_parts.iter().any(|parts| *parts > 0);
            if scratch && !NEED_SCRATCH.contains(&name.as_str()) {
                panic!("{name} {world:?}\n{schedule}\n{program}");
            }
        }
    });
}

#[test]
fn all_ranks_know_the_widest_message() {
    each(|algorithm, world| {
        let schedules = (0..world.ranks).map(|rank| (algorithm.schedule)(&world.params(rank)));
        let schedules: Vec<RankSchedule> = schedules.collect();
        let mut widest = 1;
        for schedule in &schedules {
            schedule.for_each(&mut |op, _| {
                if let Op::Send { source, .. } = op {
                    widest = widest.max(source.parts.total);
                }
            });
        }
        for schedule in &schedules {
            let name = algorithm.name;
            assert_eq!(schedule.message_parts, widest, "{name} {world:?}\n{schedule}");
        }
    });
}

#[test]
fn schedules_stay_small() {
    let size = |algorithm: &Algorithm, ranks: u32| {
        let hosts = Hosts::of(&(0..ranks).map(|rank| rank / 8).collect::<Vec<_>>());
        let params = |rank: Rank| Params { rank, ranks, root: ranks / 2, hosts: &hosts };
        let at = |rank: Rank| (algorithm.schedule)(&params(rank)).size();
        [0, 1, ranks / 2, ranks - 1].into_iter().map(at).max().unwrap_or(0)
    };
    for algorithm in all() {
        let (few, many) = (size(algorithm, 5), size(algorithm, 24_576));
        match algorithm.family {
            Family::Ring if algorithm.name == "ring" => assert!(many <= few),
            Family::Direct => assert!(many <= few, "{} {}", algorithm.name, algorithm.collective),
            _ => assert!(many <= 8 * 16, "{} {}: {many}", algorithm.name, algorithm.collective),
        }
    }
}

/// Checks schedules that have more runs of peers than there are names for scratch buffers: the
/// hosts have one to seven ranks in irregular order.
#[test]
fn irregular_hosts_may_use_up_the_scratch_names_without_wrong_results() {
    let ids: Vec<u32> = (0..150).map(|rank: u32| rank * rank * 37 / 11 % 61).collect();
    let hosts = Rc::new(Hosts::of(&ids));
    assert!(hosts.count() > 16 && hosts.largest() > 4, "{hosts:?}");
    let mut used = 0;
    for algorithm in all().filter(|algorithm| algorithm.family == Family::Hierarchical) {
        let mut world = World::new(algorithm.collective, 150, 0, 40);
        world.hosts = hosts.clone();
        symbolic::run(algorithm, &world, false);
        numbers::run(algorithm, &world, false, 1, 1);
        numbers::run(algorithm, &world, false, 2, 2);
        let schedules = (0..150).map(|rank| (algorithm.schedule)(&world.params(rank)));
        used = schedules.map(|schedule| schedule.scratch_parts.len()).chain([used]).max().unwrap();
    }
    assert_eq!(used, 256, "the last scratch name must be in use");
}

#[test]
fn names_are_unique_and_the_error_for_an_unknown_name_lists_them() {
    for algorithm in all() {
        let found = find(algorithm.collective, algorithm.name).unwrap();
        assert!(std::ptr::eq(found, algorithm));
        assert_eq!(algorithm.order == Order::None, {
            let reduces = algorithm.collective.reduces();
            !(reduces || algorithm.collective == Collective::Barrier)
        });
    }
    let error = find(Collective::AllReduce, "rnig").unwrap_err().to_string();
    assert!(error.contains("rnig") && error.contains("double_tree"), "{error}");
}

#[test]
fn groups_that_cannot_work_are_refused() {
    let error = send_recv(1, 3, &[0, 1, 1], &[1, 2]).unwrap_err();
    assert_eq!(error, SendRecvError::Unmatched { rank: 1, sends: 2, recvs: 1 });
    let error = send_recv(1, 3, &[0], &[3]).unwrap_err();
    assert_eq!(error, SendRecvError::NoSuchPeer { rank: 1, peer: 3, ranks: 3 });
    assert!(error.to_string().contains("0 to 2"), "{error}");
}
