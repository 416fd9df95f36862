//! A sleeping lane is woken by arrivals over the provider, and by notes on the TCP connection that
//! each link has beside the provider. A lane that the provider does not wake sleeps for short
//! times, which grow with the wait.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ccl_clock::now;
use ccl_core::transport::Event;

use crate::conformance::present;
use crate::mending::{exchange, pair_that_is};

/// Time after which the other side sends a put or a note.
const LATER: Duration = Duration::from_millis(200);
/// Longest sleep of a lane, if nothing wakes it.
const LONG: Duration = Duration::from_secs(20);
/// Largest number of times that a lane may wake before the other side's put or note arrives.
const WAKES_MAX: u32 = 100;
/// Largest number of times that a lane may sleep before the other side's put or note arrives, if
/// the provider does not wake the lane. If all sleeps were the shortest ones, there would be about
/// 2,000: a sleep of 50 µs takes about 100 µs.
const NAPS_MAX: u32 = 500;

#[test]
fn a_lane_that_sleeps_hears_puts_and_notes() {
    let cases = present().flat_map(|name| [(name, false), (name, true)]);
    for ((provider, by_note), woken) in cases.flat_map(|case| [(case, true), (case, false)]) {
        let most = if woken { WAKES_MAX } else { NAPS_MAX };
        let (mut sides, _proxy) = pair_that_is(provider, woken);
        exchange(&mut sides, 1);
        let [sleeper, other] = &mut sides;
        let is_heard = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(LATER);
                match by_note {
                    true => other.lane.note(other.at, b"wake up").unwrap(),
                    false => other.put(7),
                }
                while !is_heard.load(Ordering::Relaxed) {
                    other.lane.poll(now(), &mut other.events).unwrap();
                }
            });
            let heard = |event: &Event| match event {
                Event::Arrived { immediate: 7, .. } => !by_note,
                Event::Note { bytes, .. } => by_note && bytes == b"wake up",
                _ => false,
            };
            let (begun, mut wakes) = (Instant::now(), 0);
            while !sleeper.events.iter().any(heard) {
                assert!(begun.elapsed() < LONG / 2, "{provider}, by note {by_note}: not woken");
                sleeper.lane.sleep(LONG);
                sleeper.lane.poll(now(), &mut sleeper.events).unwrap();
                wakes += 1;
            }
            is_heard.store(true, Ordering::Relaxed);
            assert!(wakes <= most, "{provider}, by note {by_note}: woke {wakes} times");
        });
    }
}
