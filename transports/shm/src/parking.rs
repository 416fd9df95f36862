//! Sleep and wake-up across processes.

use std::sync::atomic::AtomicU32;
use std::time::Duration;

use ccl_memory::doorbell::Parking;
use rustix::thread::futex::{self, Flags, Timespec};

/// Returns a [`Parking`] that uses futexes, which work between processes that map the same memory.
#[must_use]
pub fn parking() -> Parking {
    Parking { sleep, wake }
}

fn sleep(word: &AtomicU32, value: u32, at_most: Duration) {
    let timeout = Timespec {
        tv_sec: i64::try_from(at_most.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: at_most.subsec_nanos().into(),
    };
    // After every return (woken, another value, timeout, signal) the caller checks again. The flag
    // PRIVATE is not set, because the waker may be another process.
    let _ = futex::wait(word, Flags::empty(), value, Some(&timeout));
}

fn wake(word: &AtomicU32) {
    let _ = futex::wake(word, Flags::empty(), i32::MAX as u32);
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;
    use std::time::Instant;

    use ccl_memory::doorbell::{BYTES, Doorbell};

    use super::*;
    use crate::memory;

    #[test]
    fn a_doorbell_rung_through_another_mapping_wakes_the_sleeper() {
        let segment = memory::allocate(BYTES).unwrap();
        let other = memory::adopt(&segment.file, BYTES, "test").unwrap();
        assert_ne!(segment.region.start(), other.start());
        let owner = Doorbell::new(&segment.region, parking()).unwrap();
        let ringer = Doorbell::new(&other, parking()).unwrap();
        let begin = Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(|| owner.sleep(Duration::from_secs(20), &mut || false));
            while other.word32(0).unwrap().load(Ordering::Relaxed) == 0 {
                std::thread::yield_now();
            }
            // The sleeper may have announced its sleep without sleeping yet. Ringing changes the
            // word on which the sleeper waits, and so prevents the sleep or ends it.
            ringer.ring();
        });
        assert!(begin.elapsed() < Duration::from_secs(10), "slept for {:?}", begin.elapsed());
    }

    #[test]
    fn a_sleep_ends_after_its_timeout_if_nobody_rings_the_doorbell() {
        let segment = memory::allocate(BYTES).unwrap();
        let owner = Doorbell::new(&segment.region, parking()).unwrap();
        let begin = Instant::now();
        owner.sleep(Duration::from_millis(30), &mut || false);
        assert!(begin.elapsed() >= Duration::from_millis(25), "slept for {:?}", begin.elapsed());
    }
}
