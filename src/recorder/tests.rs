//! Tests of the recorder: what a writer records, and what a reader of the recording sees.

use ccl_bootstrap::Activity;

use super::*;

fn recorder() -> Recorder {
    let subject = Subject { rank: 2, ranks: 4, communicator: 77, heartbeat_ms: 0 };
    Recorder::new(&subject, Settings { signal: false, ..Settings::default() }).unwrap()
}

#[test]
fn a_snapshot_has_the_last_operations_and_their_progress() {
    let recorder = recorder();
    let mut writer = recorder.writer().unwrap();
    for sequence in 1..=40 {
        writer.begin([MESSAGES, 1 << 32 | 2, sequence, 1000 << 8]);
        if sequence < 40 {
            writer.end();
        }
    }
    writer.moved(3);
    let awaited = [Awaited { peer: 3, receives: true }, Awaited { peer: 0, receives: false }];
    writer.waits(12, &awaited);
    let snapshot = recorder.snapshot().unwrap();
    assert_eq!((snapshot.rank, snapshot.ranks, snapshot.operations.len()), (2, 4, ENTRIES - 1));
    let last = snapshot.operations.last().unwrap();
    assert_eq!(
        (last.number, last.step, last.steps, last.bytes_done),
        (40, Some(3), Some(12), Some(250))
    );
    assert_eq!(last.call.what, "a send and 2 receives");
    assert_eq!(snapshot.waits_in_words(), "message from rank 3, room at rank 0");
    assert!(snapshot.operations.iter().rev().skip(1).all(|operation| operation.ended));
    let text = snapshot.to_string();
    assert!(
        text.contains("40  a send and 2 receives: at step 3 of 12, 250 of 1000 bytes done"),
        "{text}"
    );
    // Progress clears the awaited ranks.
    writer.moved(4);
    assert!(recorder.snapshot().unwrap().waits_for.is_empty());
}

#[test]
fn the_activity_of_a_rank_follows_from_its_counters() {
    let recorder = recorder();
    let activity = |ms: u64| {
        std::thread::sleep(std::time::Duration::from_millis(ms));
        recorder.note().unwrap().activity
    };
    let mut writer = recorder.writer().unwrap();
    assert_eq!(activity(0), Activity::Outside);
    writer.begin([MESSAGES, 1, 1, 0]);
    assert_eq!(activity(0), Activity::Moving);
    assert_eq!(activity(300), Activity::Undriven, "nothing has driven the operation for 300 ms");
    writer.waits(1, &[]);
    writer.look();
    assert_eq!(activity(0), Activity::Waiting);
    writer.end();
    assert_eq!(activity(0), Activity::Outside);
    recorder.set_step("split");
    assert_eq!(activity(0), Activity::Aside);
    assert_eq!(recorder.note().unwrap().what, "split");
}

#[test]
fn a_recorder_that_is_off_says_so() {
    let subject = Subject { rank: 0, ranks: 2, communicator: 7, heartbeat_ms: 0 };
    let settings = Settings { is_on: false, signal: false, ..Settings::default() };
    let recorder = Recorder::new(&subject, settings).unwrap();
    assert!(recorder.writer().is_none());
    assert_eq!(recorder.note().unwrap().what, "unrecorded calls");
}

#[test]
fn a_record_that_is_being_written_is_read_again() {
    let recorder = recorder();
    let is_changing = || {
        let copies = recorder.copies();
        Page::new(&copies[0], &copies[1]).unwrap().is_changing()
    };
    assert!(!is_changing(), "the record is changing before its first write");
    let mut writer = recorder.writer().unwrap();
    writer.begin([MESSAGES, 1, 1, 0]);
    writer.waits(12, &[Awaited { peer: 3, receives: true }]);
    assert!(!is_changing());
    // A writer that is preempted during a write leaves the record's number at 0.
    let number = recorder.region.word64(page::AWAITED).unwrap();
    let was = number.swap(0, Ordering::Relaxed);
    assert!(is_changing());
    number.store(was, Ordering::Relaxed);
    assert_eq!(recorder.snapshot().unwrap().waits_in_words(), "message from rank 3");
    let looks = |enough: u32| {
        let mut looks = 0;
        retry_until_consistent(|| {
            looks += 1;
            looks == enough
        });
        looks
    };
    assert_eq!((looks(1), looks(3), looks(u32::MAX)), (1, 3, LOOKS));
}
