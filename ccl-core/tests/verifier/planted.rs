//! Deliberate mistakes in schedules and programs: the verifier must report the right violation.

use std::sync::Arc;

use ccl_core::lower::{Alias, Instr, Program, lower};
use ccl_core::schedule::{Buffer, Builder, RankSchedule, input, output, scratch};
use ccl_core::types::Collective;
use ccl_core::verify::{Case, Counts, Misfold, Reason, Violation, check, check_programs};

fn case(collective: Collective, count: usize) -> Case {
    Case::new(collective, 0, Counts::Even(count))
}

fn pair(schedule: impl Fn(&mut Builder, u32, u32)) -> [RankSchedule; 2] {
    [0, 1].map(|rank| {
        let mut b = Builder::new(rank, 2, 1);
        schedule(&mut b, rank, 1 - rank);
        b.finish()
    })
}

/// Both ranks send everything and add the received data in rank order.
fn one_shot(b: &mut Builder, rank: u32, other: u32) {
    b.send(other, input(0));
    let theirs = scratch(0, 0, input(0));
    b.recv(other, theirs);
    let (first, second) = if rank == 0 { (input(0), theirs) } else { (theirs, input(0)) };
    b.reduce_last(output(0), &[first.into(), second.into()]);
}

/// Reduce-scatter and all-gather of halves.
fn two_shot(rank: u32) -> RankSchedule {
    let other = 1 - rank;
    let mut b = Builder::new(rank, 2, 2);
    b.send(other, input(other));
    let theirs = scratch(0, 0, input(rank));
    b.recv(other, theirs);
    b.reduce_last(output(rank), &[input(rank).into(), theirs.into()]);
    b.send(other, output(rank));
    b.recv(other, output(other));
    b.finish()
}

#[test]
fn right_schedules_pass() {
    for in_place in [false, true] {
        for (slot_bytes, chunks) in [(1024, 1), (16, 3)] {
            let case =
                Case { in_place, slot_bytes, channels: 2, ..case(Collective::AllReduce, 10) };
            let ordered = Case { rank_order: true, ..case.clone() };
            assert_eq!(check(&ordered, &pair(one_shot)).map(|report| report.chunks), Ok(chunks));
            let report = check(&case, &[two_shot(0), two_shot(1)]).unwrap();
            assert_eq!(report.message_bytes, 80);
        }
    }
}

#[test]
fn a_cyclic_wait_is_reported_rank_by_rank() {
    let schedules = [0, 1].map(|rank| {
        let other = 1 - rank;
        let mut b = Builder::new(rank, 2, 2);
        b.copy(output(2 * rank), input(0));
        b.copy(output(2 * rank + 1), input(1));
        b.repeat(1, |b, _| {
            b.send(other, input(0));
            b.send(other, input(1));
            b.recv(other, output(2 * other));
            b.recv(other, output(2 * other + 1));
        });
        b.finish()
    });
    let one = case(Collective::AllGather, 10);
    let two = Case { slots: 2, ..one.clone() };
    assert_eq!(check(&two, &schedules).map(|report| report.messages), Ok(4));
    let violation = check(&one, &schedules).unwrap_err();
    let Violation::Deadlock { slots: 1, cycle } = &violation else { panic!("{violation}") };
    let waits: Vec<_> = cycle.iter().map(|waiting| (waiting.rank, waiting.reason)).collect();
    assert_eq!(waits, [(0, Reason::Room(1)), (1, Reason::Room(0))]);
    let text = violation.to_string();
    assert!(text.contains("rank 0 strand") && text.contains("`slot(1) = in[1]` waits"), "{text}");
}

#[test]
fn a_budget_below_one_slot_per_sender_is_refused() {
    let small = Case { budget_bytes: Some(1023), ..case(Collective::AllReduce, 10) };
    let violation = check(&small, &pair(one_shot)).unwrap_err();
    let expected = matches!(violation, Violation::Budget { needed_bytes: 1024, senders: 1, .. });
    assert!(expected, "{violation}");
    let enough = Case { budget_bytes: Some(1024), slots: 3, ..small };
    let report = check(&enough, &pair(one_shot)).unwrap();
    assert!(report.in_flight_bytes_max <= 1024);
}

/// Rank 0 receives a buffer from rank 1 into scratch, and later sends the buffer to rank 2.
fn relay(rank: u32) -> RankSchedule {
    let mut b = Builder::new(rank, 3, 1);
    match rank {
        0 => {
            let held = scratch(0, 0, output(0));
            b.recv(1, held);
            b.copy(output(0), held);
            // Keeps the send from being fused into the receive.
            b.copy(scratch(1, 0, output(0)), output(0));
            b.send(2, held);
        }
        1 => {
            b.send(0, input(0));
            b.copy(output(0), input(0));
        }
        _ => b.recv(0, output(0)),
    }
    b.finish()
}

fn without(program: &Program, drop: impl Fn(&Instr) -> bool) -> Arc<Program> {
    let mut program = program.clone();
    for strand in &mut program.strands {
        assert!(!strand.code.iter().any(|instr| matches!(instr, Instr::Loop { .. })));
        strand.code.retain(|instr| !drop(instr));
    }
    Arc::new(program)
}

#[test]
fn a_race_between_strands_is_reported_with_both_folds() {
    let schedules = [0, 1, 2].map(relay);
    let case = Case { root: 1, slot_bytes: 16, ..case(Collective::Broadcast, 10) };
    assert_eq!(check(&case, &schedules).map(|report| report.chunks), Ok(3));
    let alias = Alias::of(Collective::Broadcast, 0, 1);
    let mut programs = schedules.map(|schedule| Arc::new(lower(&schedule, alias)));
    assert!(programs[0].strands.len() > 1, "{}", programs[0]);
    // Without the wait for the previous chunk, scratch is overwritten while it is sent.
    programs[0] = without(&programs[0], |instr| matches!(instr, Instr::Await { lag: 1, .. }));
    let violation = check_programs(&case, &programs).unwrap_err();
    let Violation::Race { spot, first, second } = &violation else { panic!("{violation}") };
    assert_eq!((spot.rank, spot.buffer), (0, Buffer::Scratch(0)));
    assert!(first.write != second.write && first.strand != second.strand);
    assert!(first.fold.contains("scratch[0..4]") && second.fold.contains("scratch[0..4]"));
}

/// Checks that the verifier reports a race if a message can be written to rank 1's output before
/// the fold that receives the message has its turn. In place, rank 1 can at that time still be
/// sending its input from the same memory.
#[test]
fn a_message_that_may_arrive_too_early_is_reported() {
    let schedules = pair(|b, rank, other| {
        if rank == 0 {
            let theirs = scratch(0, 0, input(0));
            b.recv(other, theirs);
            b.reduce_last(output(0), &[input(0).into(), theirs.into()]);
            b.send(other, output(0));
        } else {
            b.send(other, input(0));
            b.recv(other, output(0));
        }
    });
    let case = Case { in_place: true, ..case(Collective::AllReduce, 10) };
    let mut programs = schedules.map(|schedule| lower(&schedule, Alias::default()));
    let check = |programs: &[Program; 2]| {
        check_programs(&case, &programs.each_ref().map(|program| Arc::new(program.clone())))
    };
    assert!(check(&programs).is_ok());
    let folds = programs[1].strands.iter_mut().flat_map(|strand| &mut strand.code);
    for instr in folds {
        if let Instr::Fold(fold) = instr {
            assert!(!fold.early, "{fold}");
            fold.early = true;
        }
    }
    let violation = check(&programs).unwrap_err();
    let Violation::Race { spot, first, second } = &violation else { panic!("{violation}") };
    assert_eq!(spot.rank, 1);
    assert!(!first.write && second.write, "{violation}");
}

#[test]
fn a_contribution_counted_twice_is_reported_with_its_rank() {
    let schedules = pair(|b, _, other| {
        b.send(other, input(0));
        b.send(other, input(0));
        let (once, again) = (scratch(0, 0, input(0)), scratch(1, 0, input(0)));
        b.recv(other, once);
        b.recv(other, again);
        b.reduce_last(output(0), &[input(0).into(), once.into(), again.into()]);
    });
    let violation = check(&case(Collective::AllReduce, 5), &schedules).unwrap_err();
    let twice =
        matches!(violation, Violation::Misfold { misfold: Misfold::CountedTwice(0), rank: 1, .. });
    assert!(twice, "{violation}");
}

#[test]
fn an_average_divided_twice_is_found() {
    let schedules = pair(|b, rank, other| {
        let theirs = scratch(0, 0, input(0));
        if rank == 0 {
            b.recv(other, theirs);
            b.reduce_last(output(0), &[input(0).into(), theirs.into()]);
            b.send(other, output(0));
        } else {
            b.send(other, input(0));
            b.recv(other, theirs);
            b.reduce_last(output(0), &[theirs.into()]);
        }
    });
    let violation = check(&case(Collective::AllReduce, 5), &schedules).unwrap_err();
    let twice =
        matches!(violation, Violation::Misfold { misfold: Misfold::AlreadyComplete, rank: 1, .. });
    assert!(twice, "{violation}");
}

#[test]
fn a_missing_or_early_division_of_an_average_is_found() {
    let plain = pair(|b, _, other| {
        b.send(other, input(0));
        let theirs = scratch(0, 0, input(0));
        b.recv(other, theirs);
        b.reduce(output(0), &[input(0).into(), theirs.into()]);
    });
    let violation = check(&case(Collective::AllReduce, 5), &plain).unwrap_err();
    assert!(matches!(violation, Violation::NeverLast { .. }), "{violation}");
    let early = pair(|b, _, other| {
        b.reduce_last(output(0), &[input(0).into()]);
        b.send(other, output(0));
    });
    let violation = check(&case(Collective::AllReduce, 5), &early).unwrap_err();
    let misfold = Misfold::LastTooEarly(1);
    assert!(matches!(&violation, Violation::Misfold { misfold: m, .. } if *m == misfold));
}

#[test]
fn a_fold_order_that_differs_between_ranks_is_rejected_if_rank_order_is_required() {
    let schedules = pair(|b, _, other| {
        b.send(other, input(0));
        let theirs = scratch(0, 0, input(0));
        b.recv(other, theirs);
        b.reduce_last(output(0), &[input(0).into(), theirs.into()]);
    });
    let any = case(Collective::AllReduce, 5);
    assert!(check(&any, &schedules).is_ok());
    let ordered = Case { rank_order: true, ..any };
    let violation = check(&ordered, &schedules).unwrap_err();
    assert!(matches!(violation, Violation::NotInRankOrder { spot, .. } if spot.rank == 1));
}

#[test]
fn messages_must_match_their_receives() {
    let unreceived = pair(|b, rank, other| {
        one_shot(b, rank, other);
        if rank == 0 {
            b.send(other, output(0));
        }
    });
    let violation = check(&case(Collective::AllReduce, 5), &unreceived).unwrap_err();
    assert!(matches!(violation, Violation::Unreceived { from: 0, to: 1, messages: 1, .. }));

    let unsent = pair(|b, rank, other| {
        one_shot(b, rank, other);
        if rank == 0 {
            b.recv(other, output(0));
        }
    });
    let violation = check(&case(Collective::AllReduce, 5), &unsent).unwrap_err();
    let Violation::Starved { chain } = &violation else { panic!("{violation}") };
    assert_eq!(chain.last().map(|w| (w.rank, w.reason)), Some((0, Reason::Message(1))));

    let schedules = [0, 1].map(|rank: u32| {
        let mut b = Builder::new(rank, 2, 2);
        b.copy(output(2 * rank), input(0));
        b.copy(output(2 * rank + 1), input(1));
        b.send(1 - rank, input(rank));
        b.recv(1 - rank, output(2 * (1 - rank) + 1));
        b.finish()
    });
    let violation = check(&case(Collective::AllGather, 5), &schedules).unwrap_err();
    assert!(matches!(violation, Violation::Length { .. }), "{violation}");
}

#[test]
fn invalid_accesses_and_missing_results_are_found() {
    let alone = |write: fn(&mut Builder)| {
        let mut b = Builder::new(0, 1, 1);
        write(&mut b);
        check(&case(Collective::Broadcast, 5), &[b.finish()]).unwrap_err()
    };
    let written = alone(|b| b.copy(input(0), input(0)));
    assert!(matches!(written, Violation::InputWritten { .. }), "{written}");
    let garbage = alone(|b| b.copy(output(0), scratch(0, 0, output(0))));
    assert!(matches!(garbage, Violation::Uninitialised { .. }), "{garbage}");
    let outside = alone(|b| b.copy(output(1), input(0)));
    assert!(matches!(outside, Violation::OutOfBounds { elements: 5, .. }), "{outside}");
    let missing = alone(|_| {});
    assert!(matches!(&missing, Violation::Wrong { found, .. } if found == "nothing"), "{missing}");
}

#[test]
fn in_place_results_must_not_overwrite_inputs_still_needed() {
    let mut b = Builder::new(0, 1, 2);
    b.copy(output(1), input(0));
    b.copy(output(0), input(0));
    b.copy(output(1), input(1));
    let schedule = [b.finish()];
    let apart = case(Collective::Broadcast, 6);
    assert!(check(&apart, &schedule).is_ok());
    let violation = check(&Case { in_place: true, ..apart }, &schedule).unwrap_err();
    assert!(matches!(violation, Violation::InputGone { .. }), "{violation}");
}

#[test]
fn forwarding_from_slot_to_slot_needs_two_slots() {
    let schedules = [two_shot(0), two_shot(1)];
    let programs = [0, 1].map(|rank| Arc::new(lower(&schedules[rank as usize], Alias::default())));
    let one = case(Collective::AllReduce, 10);
    let violation = check_programs(&one, &programs).unwrap_err();
    assert!(matches!(violation, Violation::Deadlock { .. }), "{violation}");
    for slots in [2, 3] {
        assert!(check_programs(&Case { slots, ..one.clone() }, &programs).is_ok());
    }
    assert!(check(&one, &schedules).is_ok());
}

#[test]
fn a_barrier_that_forwards_nothing_is_rejected() {
    let leaky = [0, 1, 2].map(|rank: u32| {
        let mut b = Builder::new(rank, 3, 1);
        b.send((rank + 1) % 3, input(0));
        b.recv((rank + 2) % 3, output(0));
        b.finish()
    });
    let violation = check(&case(Collective::Barrier, 1), &leaky).unwrap_err();
    assert!(matches!(violation, Violation::Barrier { rank: 0, unheard: 1 }), "{violation}");
}
