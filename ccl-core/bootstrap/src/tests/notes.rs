//! Tests of the comparison of notes after a passed deadline: all ranks hear one verdict soon, no
//! matter which ranks ask or do not answer.

use super::net::{Net, Plan};
use crate::*;
use ccl_core::types::Rank;

/// Time after the first deadline within which all ranks have the verdict, in milliseconds.
const BOUND_MS: u64 = 1_000;

/// Returns the note of a rank that computes, in no call, after the end of collective `sequence`.
pub(super) fn computing(sequence: u64) -> Note {
    let what = if sequence == 0 { String::new() } else { format!("barrier #{sequence}") };
    let (call, steps) = (7 * sequence, (4, 4));
    Note {
        activity: Activity::Outside,
        sequence,
        call,
        what,
        steps,
        unchanged_ms: 2100,
        awaited: vec![],
    }
}

/// Returns the note of a rank that waits in collective `sequence` for messages from `peers`.
fn waiting(sequence: u64, peers: &[Rank]) -> Note {
    Note {
        activity: Activity::Waiting,
        steps: (1, 4),
        unchanged_ms: 2000,
        awaited: peers.iter().map(|peer| Awaited { peer: *peer, receives: true }).collect(),
        ..computing(sequence)
    }
}

/// Returns a ring in which the last rank still computes after collective 4. Each other rank waits
/// in collective 5 for a message from the rank before it.
fn behind(ranks: u32, seed: u64) -> Net {
    let mut net = Net::linked(ranks, seed);
    let last = ranks - 1;
    for rank in 0..last {
        let previous = (rank + last) % ranks;
        net.nodes[rank as usize].note = waiting(5, &[previous]);
    }
    net.nodes[last as usize].note = computing(4);
    net
}

/// Returns the verdict of these ranks, which must all have the same one.
fn verdict_of(net: &Net, ranks: impl IntoIterator<Item = Rank>) -> String {
    let all: Vec<_> = ranks.into_iter().map(|rank| net.failure(rank)).collect();
    assert!(all.iter().all(|one| *one == all[0]), "{all:?}\n{}", net.story());
    all[0].clone().unwrap_or_else(|| panic!("no verdict\n{}", net.story()))
}

#[test]
fn all_ranks_get_the_same_verdict_whichever_rank_asks() {
    for ranks in [2, 3, 8, 17, 64] {
        for asker in [0, (ranks - 1) / 2, ranks - 2] {
            let mut net = behind(ranks, 7);
            net.carry_out(Plan::Overdue(asker));
            net.run_for(200);
            let verdict = verdict_of(&net, 0..ranks);
            let start = format!("rank {} is behind: it has been computing for 2.1 s", ranks - 1);
            assert!(verdict.starts_with(&start), "{verdict}");
            assert!(
                verdict.contains("rank 0 has been waiting for a message from it in barrier #5")
            );
            let agreed = net.nodes[0].control.verdict().unwrap().unwrap();
            assert_eq!(agreed.cause.to_string(), verdict, "the agreement must name the same cause");
        }
    }
}

#[test]
fn all_waiting_ranks_ask_at_once_and_get_one_verdict() {
    let mut net = behind(17, 3);
    (0..16).rev().for_each(|rank| net.carry_out(Plan::Overdue(rank)));
    net.run_for(200);
    assert!(verdict_of(&net, 0..17).starts_with("rank 16 is behind"));
}

#[test]
fn a_rank_that_does_not_answer_is_named() {
    for stopped in [0, 1, 4, 8] {
        let mut net = behind(9, 3);
        // The last rank waits, too, so every rank waits for the one before it.
        net.nodes[8].note = waiting(5, &[7]);
        net.carry_out(Plan::Stop(stopped));
        net.run_for(300);
        net.carry_out(Plan::Overdue(3));
        net.run_for(BOUND_MS);
        let verdict = verdict_of(&net, (0..9).filter(|rank| *rank != stopped));
        assert!(verdict.starts_with(&format!("rank {stopped} does not answer")), "{verdict}");
        // When the rank resumes, it gets the same verdict.
        net.carry_out(Plan::Resume(stopped));
        net.run_for(100);
        assert_eq!(verdict_of(&net, 0..9), verdict);
    }
}

#[test]
fn an_asker_that_stops_is_replaced() {
    let mut net = behind(9, 3);
    net.latency_us_max = 40_000;
    (0..8).for_each(|rank| net.carry_out(Plan::Overdue(rank)));
    net.run_for(30);
    net.carry_out(Plan::Stop(0));
    net.run_for(2 * BOUND_MS);
    let verdict = verdict_of(&net, 1..9);
    assert!(verdict.contains("rank 0 do"), "{verdict}");
    net.carry_out(Plan::Resume(0));
    net.run_for(100);
    assert_eq!(verdict_of(&net, 0..9), verdict);
}

/// Checks that all ranks get one verdict if the deadlines of the waiting ranks pass at random times
/// within one second, on fast and slow networks, and even if a rank is stopped for a while.
#[test]
fn all_ranks_get_one_verdict_in_any_history() {
    let seeds = if std::env::var_os("FERROCCL_TEST_FULL").is_some() { 20_000 } else { 1_000 };
    for seed in 0..seeds {
        let ranks = 2 + seed as u32 % 9;
        let mut net = behind(ranks, seed);
        net.latency_us_max = [300, 3_000, 40_000][net.random.below(3) as usize];
        for rank in 0..ranks - 1 {
            let after = net.random.below(1_000_000);
            net.plan(after, Plan::Overdue(rank));
        }
        let stopped = net.random.below(2 * u64::from(ranks)) as Rank;
        if stopped < ranks {
            let at = net.random.below(900_000);
            net.plan(at, Plan::Stop(stopped));
            let after = net.random.below(1_500_000);
            net.plan(at + after, Plan::Resume(stopped));
        }
        net.run_for(1_000 + BOUND_MS);
        net.calm();
        // A rank that slept through its deadline now finds that the deadline has passed.
        (0..ranks - 1).for_each(|rank| net.carry_out(Plan::Overdue(rank)));
        net.run_for(500);
        let verdict = verdict_of(&net, 0..ranks);
        let named = format!("rank {} ", ranks - 1);
        let also = format!("rank {stopped} does not answer");
        assert!(verdict.starts_with(&named) || verdict.contains(&also), "seed {seed}: {verdict}");
    }
}

#[test]
fn a_death_is_reported_even_if_a_deadline_passes_at_the_same_time() {
    let mut net = behind(5, 3);
    net.carry_out(Plan::Kill(4));
    net.carry_out(Plan::Overdue(1));
    net.run_for(200);
    assert!(verdict_of(&net, 0..4).starts_with("rank 4 died"));
}
