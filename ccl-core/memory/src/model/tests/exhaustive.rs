//! Every interleaving of small cases. The checker, loom, also tries reorderings of weakly ordered
//! hardware. The tests weaken each memory ordering of `sync.rs` in turn. A model must fail each
//! time, which shows that the ordering is needed.

use std::sync::atomic::{AtomicUsize, Ordering as Std};
use std::time::Duration;

use loom::sync::{Condvar, Mutex};
use loom::thread;

use crate::Region;
use crate::doorbell::{Doorbell, Parking};
use crate::record;
use crate::slots::{Receiver, Sender, Shape};
use crate::sync::WEAKENED;
use crate::sync::{Ordering, fence};

/// Returns whether `model` fails while the ordering `name` is weakened. The name `"none"` is for
/// models that must fail although no ordering is weakened.
fn needs(name: &'static str, model: fn()) -> bool {
    // The model gets a thread of its own, because a failed model leaves its checker in disorder.
    let run = move || {
        WEAKENED.set(Some(name));
        model();
    };
    std::thread::spawn(run).join().is_err()
}

/// Sends numbers through slots, with payloads inside and outside the header's cache line.
fn messages_pass(slots: u32, messages: u64) {
    let shape = Shape { slots, slot_bytes: 64 };
    let region = Region::private(shape.link_bytes());
    let mut receiver = Receiver::new(&region, shape).unwrap();
    let mut sender = Sender::new(&region, shape).unwrap();
    let theirs = region.clone();
    let bytes = |number: u64| if number % 2 == 0 { 8 } else { 64 };
    let sends = thread::spawn(move || {
        for number in 0..messages {
            while !sender.ready() {
                thread::yield_now();
            }
            theirs.payload(sender.payload(bytes(number))).write(100 + number);
            sender.publish(bytes(number), number);
        }
    });
    for number in 0..messages {
        while !receiver.ready() {
            thread::yield_now();
        }
        assert_eq!(receiver.head(), (bytes(number), number));
        assert_eq!(region.payload(receiver.payload(bytes(number))).read(), 100 + number);
        receiver.release();
    }
    sends.join().unwrap();
}

fn one_slot() {
    loom::model(|| messages_pass(1, 3));
}

fn two_slots() {
    loom::model(|| messages_pass(2, 3));
}

#[test]
fn payload_is_visible_with_its_sequence_and_no_slot_is_used_before_its_credit() {
    one_slot();
    two_slots();
}

#[test]
fn slots_need_each_ordering() {
    for name in ["publish", "arrive", "credit", "credited"] {
        assert!(needs(name, one_slot), "the model passes with a weakened `{name}`");
    }
}

#[test]
fn slots_need_their_credits() {
    let careless = || {
        loom::model(|| {
            let shape = Shape { slots: 1, slot_bytes: 0 };
            let region = Region::private(shape.link_bytes());
            let mut receiver = Receiver::new(&region, shape).unwrap();
            let mut sender = Sender::new(&region, shape).unwrap();
            let theirs = region.clone();
            thread::spawn(move || {
                for number in 0..2 {
                    theirs.payload(sender.payload(8)).write(number);
                    sender.publish(8, number);
                }
            });
            if receiver.ready() {
                region.payload(receiver.payload(8)).read();
                receiver.release();
            }
        });
    };
    assert!(needs("none", careless), "the model misses that a sender overwrites an unread slot");
}

/// Publishes a record, and then races a reader against the writer of a second record.
fn record_is_whole() {
    loom::model(|| {
        let region = Region::private(record::bytes(2));
        record::publish(&region, 1, [11, 12]).unwrap();
        let shown = region.clone();
        let writes = thread::spawn(move || record::publish(&shown, 2, [21, 22]).unwrap());
        match record::read(&region) {
            None => {}
            Some((number, words)) => assert_eq!(words, [10 * number + 1, 10 * number + 2]),
        }
        writes.join().unwrap();
        assert_eq!(record::read(&region), Some((2, [21, 22])));
    });
}

#[test]
fn a_record_is_read_whole_or_not_at_all() {
    record_is_whole();
}

#[test]
fn records_need_each_ordering() {
    for name in ["hide", "show", "find", "confirm"] {
        assert!(needs(name, record_is_whole), "the model passes with a weakened `{name}`");
    }
}

/// Two ranks each publish a record and then read the other's. If `fenced`, at least one rank finds
/// the other's record.
fn one_of_two_sees_the_other(fenced: bool) {
    loom::model(move || {
        let regions = [(); 2].map(|()| Region::private(record::bytes(1)));
        let meet = move |own: &Region, other: &Region| {
            record::publish(own, 1, [7]).unwrap();
            if fenced {
                fence(Ordering::SeqCst);
            }
            record::read::<1>(other).is_some()
        };
        let theirs = regions.clone();
        let second = thread::spawn(move || meet(&theirs[1], &theirs[0]));
        let first = meet(&regions[0], &regions[1]);
        assert!(first || second.join().unwrap(), "neither sees the other");
    });
}

#[test]
fn with_a_fence_one_of_two_publishers_sees_the_other() {
    one_of_two_sees_the_other(true);
    let unfenced = || one_of_two_sees_the_other(false);
    assert!(needs("none", unfenced), "the model without a fence did not fail");
}

/// Model of a futex for one word: nobody goes to sleep once a ring has changed the word.
struct Futex {
    state: Mutex<Bed>,
    rang: Condvar,
}

#[derive(Default)]
struct Bed {
    sleeps: bool,
    /// True once the timeout has passed.
    over: bool,
}

loom::lazy_static! {
    static ref FUTEX: Futex = Futex { state: Mutex::new(Bed::default()), rang: Condvar::new() };
}

/// Number of executions in which only the timeout woke the sleeper.
static OVERSLEPT: AtomicUsize = AtomicUsize::new(0);

const PARKING: Parking = Parking {
    sleep: |word, value, _| {
        let mut bed = FUTEX.state.lock().unwrap();
        if word.load(Ordering::Relaxed) == value && !bed.over {
            bed.sleeps = true;
            let mut bed = FUTEX.rang.wait(bed).unwrap();
            bed.sleeps = false;
        }
    },
    wake: |_| {
        let _bed = FUTEX.state.lock().unwrap();
        FUTEX.rang.notify_all();
    },
};

fn time_is_over() {
    let mut bed = FUTEX.state.lock().unwrap();
    bed.over = true;
    if bed.sleeps {
        OVERSLEPT.fetch_add(1, Std::Relaxed);
    }
    FUTEX.rang.notify_all();
}

const RINGS: usize = 4;
const DATA: usize = 64;

/// Races a message and its ring against the owner of the doorbell, who sleeps twice. The first
/// sleep ends at once, as if other data were there; the second sleep waits for the message. If
/// `fenced`, the owner must miss no ring: the model has no timeout, so the checker reports a
/// deadlock after a missed ring. Otherwise the owner can miss a ring, and the timeout then ends
/// its sleep.
fn ring_against_sleep(fenced: bool) {
    loom::model(move || {
        let region = Region::private(DATA + 64);
        let bell = Doorbell::new(&region, PARKING).unwrap();
        let (theirs, ringer) = (region.clone(), bell.clone());
        let rings = thread::spawn(move || {
            theirs.word32(DATA).unwrap().store(1, Ordering::Release);
            if fenced {
                fence(Ordering::SeqCst);
            }
            ringer.ring();
            let rang = theirs.word32(RINGS).unwrap().load(Ordering::Relaxed) > 0;
            if !rang && !fenced {
                time_is_over();
            }
        });
        let arrived = || region.word32(DATA).unwrap().load(Ordering::Acquire) == 1;
        bell.sleep(Duration::from_secs(1), &mut || true);
        bell.sleep(Duration::from_secs(1), &mut || arrived());
        rings.join().unwrap();
        assert!(arrived());
    });
}

fn rung() {
    ring_against_sleep(false);
}

fn fenced() {
    ring_against_sleep(true);
}

#[test]
fn a_ring_that_found_the_owner_asleep_wakes_it() {
    rung();
    // Without a fence a ring may be missed, so every sleep is bounded.
    assert!(OVERSLEPT.load(Std::Relaxed) > 0, "a ring without a fence was never missed");
}

#[test]
fn no_ring_after_a_fence_is_missed() {
    fenced();
}

#[test]
fn doorbells_need_each_ordering() {
    for name in ["ring", "announce"] {
        assert!(needs(name, rung), "the model passes with a weakened `{name}`");
    }
    assert!(needs("announce", fenced), "the fenced model must fail with a weakened `announce`");
    assert!(needs("none", || loom::model(|| panic!())), "a model that fails was not noticed");
}

#[test]
fn every_ordering_is_weakened_by_a_test() {
    let text = include_str!("../../sync.rs");
    let (_, list) = text.split_once("\norderings! {").unwrap();
    let named = list.lines().filter_map(|line| line.trim().split_once(" = "));
    let tested = include_str!("exhaustive.rs");
    for (name, _) in named.filter(|(name, _)| !name.starts_with("///")) {
        assert!(tested.contains(&format!("\"{name}\"")), "no test weakens `{name}`");
    }
}
