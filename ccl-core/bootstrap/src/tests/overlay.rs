//! Tests of the overlay: it forms, carries exchanges, heals, and tells every rank of deaths, leaves
//! and aborts.

use super::net::{Net, Plan, State};
use super::{at, frame, secret};
use crate::link::{Link, Stage};
use crate::*;
use ccl_core::types::Rank;
use std::sync::Arc;
use std::time::Duration;

fn exchange(net: &mut Net, length: usize) {
    let ranks = net.nodes.len() as Rank;
    let mut sequence = 0;
    for rank in (0..ranks).rev() {
        let blob = vec![rank as u8; length + rank as usize % 3];
        sequence = net.nodes[rank as usize].control.contribute(blob).unwrap();
        net.pump(rank);
    }
    net.run_for(200);
    for node in &mut net.nodes {
        let parts = node.control.gathered(sequence).unwrap().unwrap();
        assert_eq!(parts.len(), ranks as usize);
        for (rank, part) in parts.iter().enumerate() {
            assert_eq!(part, &vec![rank as u8; length + rank % 3]);
        }
    }
}

#[test]
fn any_number_of_ranks_links_up_and_exchanges() {
    let most = if std::env::var_os("FERROCCL_TEST_FULL").is_some() { 1024 } else { 128 };
    for ranks in [1, 2, 3, 4, 17, 64, most] {
        let mut net = Net::linked(ranks, ranks.into());
        for round in 0..if ranks > 100 { 1 } else { 3 } {
            exchange(&mut net, round);
        }
        if ranks > 100 {
            let killed = ranks / 3 * 2;
            net.carry_out(Plan::Kill(killed));
            net.run_for(1_000);
            for rank in net.running() {
                assert!(net.failure(rank).unwrap().starts_with(&format!("rank {killed} died")));
                let verdict = net.nodes[rank as usize].control.verdict().unwrap().unwrap();
                let survivors = ranks as usize - 1;
                assert_eq!(verdict.dead.as_slice(), &[killed]);
                assert_eq!(verdict.survivors.len(), survivors);
            }
        }
        assert!(ranks > 100 || net.nodes.iter().all(|node| node.control.failure().is_none()));
    }
}

/// A rank that leaves after a death, while others are still connecting, reports the death to ranks
/// that connect to it later.
#[test]
fn a_rank_that_leaves_before_all_are_linked_is_not_blamed() {
    for seed in 0..200 {
        let mut net = Net::new(4, seed);
        net.carry_out(Plan::Kill(2));
        while net.failure(0).is_none() {
            net.run_for(1);
        }
        net.carry_out(Plan::Leave(0));
        net.run_for(1_000);
        for rank in [0, 1, 3] {
            let failure = net.failure(rank).unwrap();
            assert!(failure.starts_with("rank 2 died"), "seed {seed}, rank {rank}: {failure}");
        }
    }
}

/// An exchange completes even if all ranks start it before any of their neighbours has connected.
#[test]
fn an_exchange_may_begin_before_all_are_linked() {
    for ranks in [2, 3, 17, 64] {
        exchange(&mut Net::new(ranks, ranks.into()), 5);
    }
}

#[test]
fn the_number_of_connections_per_rank_is_logarithmic() {
    let net = Net::linked(64, 1);
    for node in &net.nodes {
        assert!(node.control.connections().len() <= 12);
        assert_eq!(node.control.strays(), Strays::default());
    }
}

#[test]
fn largest_parts_pass_and_longer_ones_are_refused_at_once() {
    let mut net = Net::linked(3, 1);
    exchange(&mut net, BLOB_BYTES_MAX - 2);
    let bytes = BLOB_BYTES_MAX + 1;
    let refused = net.nodes[1].control.contribute(vec![0; bytes]);
    assert_eq!(refused, Err(ControlError::TooLong { bytes }));
}

#[test]
fn a_rank_may_start_the_next_exchange_before_it_collects_the_previous_one() {
    let mut net = Net::linked(3, 1);
    for rank in [1, 2] {
        assert_eq!(net.nodes[rank].control.contribute(vec![1]), Ok(0));
        net.pump(rank as Rank);
    }
    assert_eq!(net.nodes[2].control.contribute(vec![2]), Ok(1));
    net.pump(2);
    net.run_for(50);
    assert_eq!(net.nodes[1].control.gathered(0), Ok(None));
    assert_eq!(net.nodes[1].control.awaited(0), Some(0));
    net.nodes[0].control.contribute(vec![3]).unwrap();
    net.pump(0);
    net.run_for(50);
    let parts = vec![vec![3], vec![1], vec![1]];
    assert_eq!(net.nodes[1].control.gathered(0), Ok(Some(parts)));
    for rank in [0, 1] {
        net.nodes[rank].control.contribute(vec![4]).unwrap();
        net.pump(rank as Rank);
    }
    net.run_for(50);
    let parts = vec![vec![4], vec![4], vec![2]];
    assert_eq!(net.nodes[2].control.gathered(1), Ok(Some(parts)));
}

#[test]
fn the_death_of_any_rank_is_reported_to_all() {
    for victim in [0, 1, 9, 16] {
        let mut net = Net::linked(17, 3);
        net.carry_out(Plan::Kill(victim));
        net.run_for(30);
        let dead = Failure { rank: victim, reason: FailureReason::HungUp };
        for rank in net.running() {
            let control = &mut net.nodes[rank as usize].control;
            assert_eq!(control.failure(), Some(&dead));
            assert_eq!(control.contribute(vec![]), Err(ControlError::Failed(dead.clone())));
        }
    }
}

#[test]
fn silence_is_a_death_after_three_seconds_and_not_before() {
    for victim in [0, 2] {
        let mut net = Net::linked(5, 3);
        net.carry_out(Plan::Stop(victim));
        net.run_for(2_400);
        assert!((0..5).all(|rank| net.failure(rank).is_none()));
        net.run_for(1_300);
        for rank in net.running() {
            let failure = net.failure(rank).unwrap();
            assert!(failure.starts_with(&format!("rank {victim} has been silent")), "{failure}");
        }
        // The rank resumes, and learns that it counts as dead.
        net.carry_out(Plan::Resume(victim));
        net.run_for(100);
        let error = net.nodes[victim as usize].control.verdict().unwrap_err();
        assert!(matches!(&error, NoVerdict::Condemned(failure) if failure.rank == victim));
        assert!(net.nodes[victim as usize].control.is_detached());
    }
}

#[test]
fn short_stops_and_idle_links_cause_no_failure() {
    let mut net = Net::linked(5, 3);
    for _ in 0..5 {
        net.carry_out(Plan::Stop(2));
        net.run_for(2_000);
        net.carry_out(Plan::Resume(2));
        net.run_for(6_000);
    }
    // All ranks stop at once for a long time: none can blame another.
    (0..5).for_each(|rank| net.carry_out(Plan::Stop(rank)));
    net.run_for(10_000);
    (0..5).for_each(|rank| net.carry_out(Plan::Resume(rank)));
    net.run_for(6_000);
    assert!((0..5).all(|rank| net.failure(rank).is_none()), "{:?}", net.failure(0));
}

#[test]
fn an_abort_and_a_report_reach_everybody_with_the_rank_to_blame() {
    let mut net = Net::linked(17, 3);
    net.carry_out(Plan::Abort(3));
    net.run_for(30);
    assert!((0..17).all(|rank| net.failure(rank).unwrap() == "rank 3 gave up: gave up"));

    let mut net = Net::linked(4, 3);
    let now = net.now;
    net.nodes[3].control.report(1, "link lost".to_owned(), now);
    net.pump(3);
    net.run_for(30);
    assert!(
        (0..4).all(|rank| net.failure(rank).unwrap() == "rank 1 failed, says rank 3: link lost")
    );
}

#[test]
fn the_overlay_heals_after_ranks_left_and_still_reports_deaths() {
    let mut net = Net::linked(16, 3);
    for rank in [0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14] {
        net.carry_out(Plan::Leave(rank));
    }
    net.run_for(4_000);
    for rank in [3, 7, 11, 15] {
        let node = &net.nodes[rank as usize];
        assert_eq!(net.failure(rank), None);
        assert!(node.control.has_left(0) && node.control.has_left(14) && !node.control.has_left(3));
    }
    net.carry_out(Plan::Kill(7));
    net.run_for(50);
    for rank in [3, 11, 15] {
        assert!(net.failure(rank).unwrap().starts_with("rank 7 died"));
        let verdict = net.nodes[rank as usize].control.verdict().unwrap().unwrap();
        assert_eq!((verdict.dead.clone(), verdict.survivors.clone()), (vec![7], vec![3, 11, 15]));
    }
}

#[test]
fn all_ranks_leave_at_once_without_a_failure() {
    let mut net = Net::linked(17, 3);
    (0..17).for_each(|rank| net.carry_out(Plan::Leave(rank)));
    net.run_for(100);
    assert!(net.nodes.iter().all(|node| node.control.is_detached()));
    assert!((0..17).all(|rank| net.failure(rank).is_none()));
}

#[test]
fn a_rank_that_leaves_ends_only_exchanges_that_lack_its_part() {
    let mut net = Net::linked(17, 3);
    for node in &mut net.nodes {
        node.control.contribute(vec![9]).unwrap();
    }
    (0..17).for_each(|rank| net.pump(rank));
    net.run_for(100);
    // Rank 2 has read all parts; it may leave before the others have read them.
    assert!(net.nodes[2].control.gathered(0).unwrap().is_some());
    net.carry_out(Plan::Leave(2));
    net.run_for(100);
    for rank in net.running().into_iter().filter(|rank| *rank != 2) {
        let control = &mut net.nodes[rank as usize].control;
        assert_eq!(control.gathered(0), Ok(Some(vec![vec![9]; 17])));
        assert_eq!(control.contribute(vec![]), Err(ControlError::Left { rank: 2 }));
    }
}

#[test]
fn any_ranks_may_die_together_and_all_deaths_are_reported() {
    let mut net = Net::linked(64, 5);
    // All neighbours of rank 0, and its next 32 successors.
    let dead: Vec<Rank> = (1..=32).chain([48, 56, 60, 62, 63]).collect();
    dead.iter().for_each(|rank| net.carry_out(Plan::Kill(*rank)));
    net.run_for(3_000);
    for rank in net.running() {
        let verdict = net.nodes[rank as usize].control.verdict().unwrap().unwrap();
        assert_eq!(verdict.dead, dead);
    }
}

#[test]
fn at_most_one_side_of_a_split_network_gets_a_verdict() {
    let mut net = Net::linked(9, 5);
    for rank in [0, 1, 2, 3] {
        net.carry_out(Plan::CutOff(rank));
    }
    net.run_for(8_000);
    let verdict = net.nodes[5].control.verdict().unwrap().unwrap();
    assert_eq!(verdict.survivors, [4, 5, 6, 7, 8]);
    // In this cut, ranks 5 to 8 are the smaller side.
    let mut net = Net::linked(9, 5);
    for rank in [0, 1, 2, 3, 4] {
        net.carry_out(Plan::CutOff(rank));
    }
    net.run_for(8_000);
    for rank in 5..9 {
        let error = net.nodes[rank].control.verdict().unwrap_err();
        assert_eq!(error, NoVerdict::NoQuorum { living: 4, silent: 5 });
    }
}

#[test]
fn a_long_silence_is_remembered_for_a_while() {
    let (long, lately) = (Duration::from_millis(1_500), Duration::from_millis(3_000));
    let mut link = Link::new(Stage::AtGate, at(0));
    let was_silent = |link: &Link, ms| link.was_silent(at(ms), long, lately);
    link.heard(at(1_400), at(1_400), long);
    assert!(!was_silent(&link, 2_899) && was_silent(&link, 2_900));
    link.heard(at(2_900), at(2_900), long);
    link.heard(at(4_000), at(4_000), long);
    link.heard(at(5_000), at(5_000), long);
    assert!(was_silent(&link, 5_899) && !was_silent(&link, 5_900));
    // Bytes that are read after a stop of this rank may have arrived when the stop began.
    link.heard(at(5_000), at(9_000), long);
    assert!(was_silent(&link, 9_000));
}

#[test]
fn a_rank_that_ended_before_it_was_linked_is_named() {
    let mut net = Net::new(8, 5);
    net.carry_out(Plan::Kill(3));
    net.run_for(2_000);
    for rank in net.running() {
        assert!(net.failure(rank).unwrap().starts_with("rank 3 died"), "{:?}", net.failure(rank));
    }
}

/// Returns two control states that tests connect byte by byte.
fn pair() -> (Control, Control) {
    let control = |rank| {
        let completed = Arc::new(Completed::default());
        Control::new(rank, 2, secret(), ControlTiming::default(), completed, at(0))
    };
    (control(0), control(1))
}

#[test]
fn strangers_at_a_control_port_get_no_answer_and_are_counted() {
    let (_, mut control) = pair();
    let link = frame(&Message::Link { from: 0, to: 1 });
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], &link, &[0xff; 8]] {
        let stranger = control.accepted([1; 32], at(1));
        control.received(stranger, bytes, at(1));
        assert!(control.outbox(stranger).is_empty() && control.is_over(stranger));
    }
    let slow = control.accepted([1; 32], at(2));
    control.tick(at(3_500));
    assert!(control.is_over(slow));
    assert_eq!(control.strays(), Strays { malformed: 3, slow: 1, ..Strays::default() });
    for number in 0..10_000 {
        if control.has_room(at(4_000)) {
            control.accepted([1; 32], at(4_000 + number));
        }
    }
    assert!(control.connections().len() <= 65, "{}", control.connections().len());
    assert_eq!(control.failure(), None);
}

#[test]
fn a_peer_that_breaks_the_protocol_is_blamed() {
    let part = |sequence| frame(&Message::Part { sequence, rank: 1, blob: vec![] });
    let failure = Failure { rank: 9, reason: FailureReason::HungUp };
    let bad = [
        [part(0), part(0)].concat(),
        part(7),
        frame(&Message::Dead(failure.clone())),
        frame(&Message::Failed(failure)),
        frame(&Message::Left { rank: 9, exchanges: 0 }),
        frame(&Message::Waiting { ranks: vec![], count: 0 }),
        vec![0xff; 8],
        vec![1, 0, 0, 0, 99],
    ];
    for bytes in bad {
        let mut net = Net::linked(3, 1);
        let now = net.now;
        let connection = net.nodes[0].control.connection_with(1).unwrap();
        net.nodes[0].control.received(connection, &bytes, now);
        net.pump(0);
        net.run_for(100);
        for rank in [0, 2] {
            let failure = net.nodes[rank].control.failure().cloned().unwrap();
            assert!(matches!(failure.reason, FailureReason::Protocol { .. }), "{failure}");
            assert_eq!(failure.rank, 1);
        }
        assert_eq!(net.nodes[1].state, State::Runs);
        assert!(matches!(net.nodes[1].control.verdict(), Err(NoVerdict::Condemned(_))));
    }
}

#[test]
fn a_link_needs_the_secret_of_this_communicator() {
    let (_, mut acceptor) = pair();
    let completed = Arc::new(Completed::default());
    let other = Secret::from_bytes([6; 32]);
    let mut dialer = Control::new(0, 2, other, ControlTiming::default(), completed, at(0));
    let (dialed, _) = dialer.next_dial().unwrap();
    let accepted = acceptor.accepted([1; 32], at(1));
    dialer.dialed(dialed, [2; 32], at(1));
    for _ in 0..4 {
        let bytes = dialer.outbox(dialed).to_vec();
        dialer.sent(dialed, bytes.len());
        acceptor.received(accepted, &bytes, at(2));
        let bytes = acceptor.outbox(accepted).to_vec();
        acceptor.sent(accepted, bytes.len());
        dialer.received(dialed, &bytes, at(2));
    }
    assert!(acceptor.is_over(accepted));
    assert_eq!(acceptor.strays().wrong_secret, 1);
    assert_eq!(acceptor.unlinked(), [0]);
}
