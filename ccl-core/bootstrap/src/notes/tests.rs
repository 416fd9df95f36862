//! Case-by-case tests of `find_stuck`, which names the stuck rank.

use super::*;
use std::collections::BTreeMap;

fn what(sequence: u64) -> String {
    format!("all_reduce #{sequence}")
}

fn note(activity: Activity, sequence: u64, awaited: &[(Rank, bool)]) -> Note {
    let awaited =
        awaited.iter().map(|(peer, receives)| Awaited { peer: *peer, receives: *receives });
    Note {
        activity,
        sequence,
        call: 100 + sequence,
        what: what(sequence),
        steps: (3, 12),
        unchanged_ms: 4_000,
        awaited: awaited.collect(),
    }
}

fn waits(sequence: u64, on: Rank) -> Note {
    note(Activity::Waiting, sequence, &[(on, true)])
}

fn computes(sequence: u64) -> Note {
    Note { unchanged_ms: 5_000, ..note(Activity::Outside, sequence, &[]) }
}

fn messages(on: Rank, what: &str) -> Note {
    Note { call: 0, what: what.to_owned(), ..waits(2, on) }
}

/// Returns the verdict on the notes, in order of rank; a rank with `None` does not answer.
fn verdict(notes: &[Option<Note>]) -> String {
    let sight = |note: &Option<Note>| match note {
        Some(note) => Observed::Noted(note.clone()),
        None => Observed::Silent { silent_ms: 700 },
    };
    let seen: BTreeMap<Rank, Observed> = (0..).zip(notes.iter().map(sight)).collect();
    let stuck = find_stuck(&seen).map(|stuck| stuck.to_string()).unwrap_or_default();
    assert!(stuck.len() <= crate::TEXT_BYTES_MAX, "{stuck}");
    stuck
}

#[test]
fn a_computing_rank_is_behind_the_ranks_that_wait_for_it() {
    let ring = [Some(waits(5, 3)), Some(waits(5, 0)), Some(waits(5, 1)), Some(computes(4))];
    assert_eq!(
        verdict(&ring),
        "rank 3 is behind: it has been computing for 5.0 s, since it ended all_reduce #4; rank 0 \
         has been waiting for a message from it in all_reduce #5 for 4.0 s"
    );
    let all = |rank| Some(note(Activity::Waiting, 5, &[(rank, true), (2, false)]));
    let direct = [all(1), all(0), Some(computes(4)), all(0), all(0)];
    assert_eq!(
        verdict(&direct),
        "rank 2 is behind: it has been computing for 5.0 s, since it ended all_reduce #4; rank 0 \
         has been waiting for a free slot at it in all_reduce #5 for 4.0 s, as have ranks 1, 3, 4"
    );
}

#[test]
fn a_rank_that_made_no_call_is_behind_all_others() {
    let never = Note { sequence: 0, call: 0, what: String::new(), ..computes(0) };
    let verdict = verdict(&[Some(waits(1, 2)), Some(waits(1, 0)), Some(never)]);
    assert!(verdict.starts_with("rank 2 is behind: it has made no call in the 5.0 s"), "{verdict}");
}

#[test]
fn of_two_computing_ranks_the_one_further_behind_is_named() {
    let notes = [Some(waits(5, 1)), Some(computes(4)), Some(waits(4, 3)), Some(computes(3))];
    assert!(verdict(&notes).starts_with("rank 3 is behind"));
    // A rank still in an operation is further behind than one that has ended it.
    let both = [(1, true), (2, true)];
    let inside = Some(note(Activity::Moving, 4, &[]));
    let notes = [Some(note(Activity::Waiting, 5, &both)), Some(computes(4)), inside];
    assert!(verdict(&notes).starts_with("rank 2 is behind: it is in all_reduce #4"));
    // Of two ranks with equal progress, the lower one is named.
    let notes = [Some(note(Activity::Waiting, 5, &[(1, true), (2, true)])), Some(computes(4))];
    assert!(verdict(&[&notes[..], &[Some(computes(4))]].concat()).starts_with("rank 1 is behind"));
}

#[test]
fn a_computing_rank_that_nobody_awaits_is_not_blamed() {
    let pair = [
        Some(messages(1, "a receive from rank 1")),
        Some(messages(0, "a receive from rank 0")),
        Some(computes(2)),
    ];
    assert_eq!(
        verdict(&pair),
        "rank 0 is in a circle of 2 ranks that wait for each other: rank 0 waits in a receive \
         from rank 1 for a message from rank 1 (for 4.0 s); rank 1 waits in a receive from rank 0 \
         for a message from rank 0 (for 4.0 s)"
    );
}

#[test]
fn of_two_circles_the_one_with_the_lowest_rank_is_reported() {
    let notes = [3, 2, 1, 0].map(|on| Some(messages(on, "a receive")));
    let verdict = verdict(&notes);
    assert!(verdict.starts_with("rank 0 is in a circle of 2 ranks"), "{verdict}");
    assert!(verdict.contains("rank 3 waits in a receive for a message from rank 0"), "{verdict}");
}

#[test]
fn a_circle_is_reported_without_the_ranks_that_wait_for_it() {
    let notes = [4, 2, 3, 1, 1].map(|on| Some(waits(5, on)));
    let verdict = verdict(&notes);
    assert!(verdict.starts_with("rank 1 is in a circle of 3 ranks"), "{verdict}");
    assert!(!verdict.contains("rank 0"), "{verdict}");
}

#[test]
fn a_rank_that_does_not_answer_is_blamed_first() {
    let notes = [Some(waits(5, 1)), None, Some(waits(5, 3)), Some(computes(4)), None];
    assert_eq!(
        verdict(&notes),
        "rank 1 does not answer: it is stopped, overloaded or cut off, silent for 0.7 s; rank 0 \
         has been waiting for a message from it in all_reduce #5 for 4.0 s; rank 4 does not \
         answer either"
    );
    // A rank that does not answer is mentioned, but not blamed, if nobody awaits it.
    let notes = [Some(waits(5, 1)), Some(computes(4)), None];
    let verdict = verdict(&notes);
    assert!(verdict.starts_with("rank 1 is behind"), "{verdict}");
    assert!(verdict.ends_with("; rank 2 does not answer"), "{verdict}");
}

#[test]
fn a_rank_that_makes_a_different_call_is_blamed() {
    let mut other = waits(5, 0);
    (other.call, other.what) = (9, "all_gather #5".to_owned());
    let verdict = verdict(&[Some(waits(5, 2)), Some(waits(5, 0)), Some(other.clone())]);
    assert_eq!(
        verdict,
        "rank 2 makes another call than ranks 0, 1: all_gather #5 (for 4.0 s) instead of \
         all_reduce #5; all ranks must make the same calls in the same order"
    );
    // Of two equally frequent calls, that of the lowest rank counts as the usual one. The other
    // rank is named, even if it has ended its call.
    other.activity = Activity::Outside;
    let verdict = self::verdict(&[Some(waits(5, 1)), Some(other)]);
    assert!(verdict.starts_with("rank 1 makes another call"), "{verdict}");
}

#[test]
fn a_request_that_nobody_drives_is_named() {
    let verdict = verdict(&[Some(waits(5, 1)), Some(note(Activity::Undriven, 5, &[]))]);
    assert!(verdict.contains("began all_reduce #5 and has not come back to it"), "{verdict}");
    assert!(verdict.contains("(step 3 of 12)"), "{verdict}");
}

/// Checks that a rank that has finished the operation is not blamed: its message was lost, and the
/// text asks about the path.
#[test]
fn a_lost_message_is_reported_with_a_question_about_its_path() {
    let verdict = verdict(&[Some(waits(5, 1)), Some(waits(6, 0)), Some(computes(5))]);
    assert!(verdict.starts_with("rank 0 is behind: it has been waiting in all_reduce #5"));
    assert!(
        verdict
            .contains("for a message from rank 1, and that rank has finished this operation: is")
    );
}

#[test]
fn a_waiting_rank_that_awaits_no_peer_waits_for_its_own_sends() {
    let verdict = verdict(&[Some(waits(5, 1)), Some(note(Activity::Waiting, 5, &[]))]);
    assert!(verdict.starts_with("rank 1 is behind: it has been in all_reduce #5"), "{verdict}");
    assert!(verdict.contains("waits until its messages are sent"), "{verdict}");
}

#[test]
fn there_is_no_verdict_if_no_rank_waits() {
    assert_eq!(verdict(&[Some(computes(4)), None, Some(note(Activity::Moving, 5, &[]))]), "");
}

/// Checks that every combination of the notes below leads to a verdict if rank 0 waits for a peer.
#[test]
fn exhaustive_combinations_of_notes_give_a_verdict_if_rank_0_waits() {
    let choices = |rank: Rank| -> Vec<Option<Note>> {
        let mut all = vec![None, Some(computes(4)), Some(computes(5))];
        all.push(Some(note(Activity::Undriven, 5, &[])));
        all.push(Some(note(Activity::Aside, 5, &[])));
        for on in (0..4).filter(|on| *on != rank) {
            all.extend([Some(waits(5, on)), Some(waits(6, on)), Some(messages(on, "a send"))]);
        }
        all
    };
    for zero in choices(0).into_iter().filter(|n| n.as_ref().is_some_and(|n| n.awaited.len() == 1))
    {
        for one in choices(1) {
            for two in choices(2) {
                let notes = [zero.clone(), one.clone(), two];
                assert!(verdict(&notes).starts_with("rank "), "{notes:?}");
            }
        }
    }
}
