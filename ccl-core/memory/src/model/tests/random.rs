//! Cases too long for an exhaustive search, in random interleavings. Memory orderings are
//! not modelled here: shuttle runs all accesses in one total order. These cases find errors in the
//! steps themselves.

use std::panic::catch_unwind;
use std::time::Duration;

use shuttle::sync::{Arc, Condvar, Mutex};
use shuttle::thread;

use crate::Region;
use crate::doorbell::{self, Doorbell, Parking};
use crate::record;
use crate::slots::{Receiver, Sender, Shape};
use crate::sync::Ordering;

/// Returns the number of random interleavings to try for each case: more under
/// `FERROCCL_TEST_FULL`.
fn schedules() -> usize {
    if std::env::var_os("FERROCCL_TEST_FULL").is_some() { 200_000 } else { 20_000 }
}

/// Runs a case in random interleavings, and in some with few thread switches at adversarial points
/// (probabilistic concurrency testing, PCT).
fn explore(case: fn()) {
    shuttle::check_random(case, schedules());
    shuttle::check_pct(case, schedules() / 2, 3);
}

/// Returns whether `case` fails in one of the tried interleavings. A case with a planted fault must
/// fail.
fn fails(case: fn()) -> bool {
    catch_unwind(|| explore(case)).is_err()
}

shuttle::lazy_static! {
    static ref BED: (Mutex<()>, Condvar) = (Mutex::new(()), Condvar::new());
}

const PARKING: Parking = Parking {
    sleep: |word, value, _| {
        let bed = BED.0.lock().unwrap();
        if word.load(Ordering::SeqCst) == value {
            drop(BED.1.wait(bed).unwrap());
        }
    },
    wake: |_| {
        let _bed = BED.0.lock().unwrap();
        BED.1.notify_all();
    },
};

/// Mistake that a rank may make.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// Sends without asking for a credit.
    Uncredited,
    /// Announces a message before writing its payload.
    Early,
    /// Gives a slot back before reading it.
    Late,
    /// Announces its sleep, and then sleeps without another check for messages and credits.
    Blind,
}

/// A rank with a link from and to its neighbour.
struct Side {
    sender: Sender,
    receiver: Receiver,
    /// Memory of the link to the neighbour, and memory of the link from the neighbour.
    regions: [Region; 2],
    own: Doorbell,
    other: Doorbell,
    fault: Fault,
}

impl Side {
    fn send(&mut self, number: u64) -> bool {
        if self.fault != Fault::Uncredited && !self.sender.ready() {
            return false;
        }
        let bytes = if number % 3 == 0 { 64 } else { 8 };
        let payload = self.sender.payload(bytes);
        if self.fault == Fault::Early {
            self.sender.publish(bytes, number);
        }
        self.regions[0].payload(payload).write(1000 + number);
        if self.fault != Fault::Early {
            self.sender.publish(bytes, number);
        }
        self.other.ring();
        true
    }

    fn receive(&mut self, number: u64) -> bool {
        if !self.receiver.ready() {
            return false;
        }
        let (bytes, tag) = self.receiver.head();
        assert_eq!(tag, number);
        let payload = self.receiver.payload(bytes);
        if self.fault == Fault::Late {
            self.receiver.release();
        }
        assert_eq!(self.regions[1].payload(payload).read(), 1000 + number);
        if self.fault != Fault::Late {
            self.receiver.release();
        }
        // The doorbell must be rung for a credit, too.
        self.other.ring();
        true
    }

    /// Sends and receives `messages` messages, and sleeps whenever neither is possible.
    fn exchange(mut self, messages: u64) {
        let (mut sent, mut received) = (0, 0);
        while sent < messages || received < messages {
            let mut moved = false;
            if sent < messages && self.send(sent) {
                (sent, moved) = (sent + 1, true);
            }
            if received < messages && self.receive(received) {
                (received, moved) = (received + 1, true);
            }
            if !moved {
                let Side { sender, receiver, fault, own, .. } = &mut self;
                let mut arrived = || {
                    *fault != Fault::Blind
                        && (sent < messages && sender.ready()
                            || received < messages && receiver.ready())
                };
                own.sleep(Duration::from_secs(1), &mut arrived);
            }
        }
    }
}

fn exchange(slots: u32, fault: Fault) {
    let shape = Shape { slots, slot_bytes: 64 };
    let regions = [(); 2].map(|()| Region::private(shape.link_bytes()));
    let bells =
        [(); 2].map(|()| Doorbell::new(&Region::private(doorbell::BYTES), PARKING).unwrap());
    // Receivers give credits before anybody sends.
    let receivers = [0, 1].map(|at: usize| Receiver::new(&regions[at], shape).unwrap());
    let mut threads = Vec::new();
    for (at, receiver) in receivers.into_iter().enumerate() {
        let side = Side {
            sender: Sender::new(&regions[1 - at], shape).unwrap(),
            receiver,
            regions: [regions[1 - at].clone(), regions[at].clone()],
            own: bells[at].clone(),
            other: bells[1 - at].clone(),
            fault,
        };
        threads.push(thread::spawn(move || side.exchange(8)));
    }
    for thread in threads {
        thread.join().unwrap();
    }
}

#[test]
fn two_ranks_exchange_messages_and_wake_each_other() {
    explore(|| exchange(1, Fault::None));
    explore(|| exchange(3, Fault::None));
}

#[test]
fn planted_faults_of_a_rank_are_caught() {
    assert!(fails(|| exchange(1, Fault::Uncredited)), "a message without a credit passed");
    assert!(fails(|| exchange(2, Fault::Early)), "a message announced too early passed");
    assert!(fails(|| exchange(1, Fault::Late)), "a read of a released slot passed");
    assert!(fails(|| exchange(1, Fault::Blind)), "a sleep without a last check passed");
}

/// Checks readers of a changing record: numbers only grow, and each number has its own words.
fn records() {
    let region = Region::private(record::bytes(3));
    let shown = Arc::new(region);
    let mut threads = Vec::new();
    for _ in 0..2 {
        let shown = shown.clone();
        threads.push(thread::spawn(move || {
            let mut last = 0;
            for _ in 0..6 {
                if let Some((number, words)) = record::read(&shown) {
                    assert_eq!(words, [number, 2 * number, 3 * number]);
                    assert!(number >= last);
                    last = number;
                }
            }
        }));
    }
    for number in 1..6 {
        record::publish(&shown, number, [number, 2 * number, 3 * number]).unwrap();
    }
    for thread in threads {
        thread.join().unwrap();
    }
}

#[test]
fn many_readers_read_whole_records() {
    explore(records);
}

#[test]
fn words_that_change_under_the_same_record_number_are_caught() {
    let careless = || {
        let region = Region::private(record::bytes(2));
        record::publish(&region, 1, [1, 1]).unwrap();
        let shown = region.clone();
        let writes = thread::spawn(move || {
            for at in [8, 16] {
                shown.word64(at).unwrap().store(2, Ordering::Release);
            }
        });
        if let Some((_, words)) = record::read::<2>(&region) {
            assert_eq!(words[0], words[1]);
        }
        writes.join().unwrap();
    };
    assert!(fails(careless));
}
