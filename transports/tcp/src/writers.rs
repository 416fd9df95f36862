//! Registry of lanes that may be writing to registered memory. A lane writes only while one of its
//! methods runs, and the method marks the lane as writing for that time. Deregistration waits for
//! the lanes that are marked when it begins; lanes never wait.

use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use ccl_core::transport::TransportError;

/// Pause between two checks of a lane that is writing.
const PAUSE: Duration = Duration::from_micros(20);
/// Longest wait for a lane that is writing. A lane writes during a poll, which takes much less.
const WITHIN: Duration = Duration::from_secs(10);

/// Lanes of a device.
#[derive(Debug, Default)]
pub(crate) struct Writers(Mutex<Vec<Weak<AtomicU64>>>);

/// Counter of one lane, incremented when the lane starts and stops writing: odd while it writes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Writer(Arc<AtomicU64>);

/// Guard of a lane that may write until the guard is dropped.
#[derive(Debug)]
pub(crate) struct Writing(Arc<AtomicU64>);

impl Writers {
    /// Adds a lane.
    pub(crate) fn join(&self) -> Writer {
        let writer = Writer::default();
        let mut all = self.all();
        all.retain(|lane| lane.strong_count() > 0);
        all.push(Arc::downgrade(&writer.0));
        writer
    }

    /// Waits until every lane that is writing has stopped. A lane that starts later sees all
    /// changes made before this call.
    ///
    /// # Errors
    ///
    /// When a lane does not stop writing in time, because its thread is suspended, or belongs to
    /// the process that this one was forked from.
    pub(crate) fn wait(&self) -> Result<(), TransportError> {
        // The lock holds off lanes that join meanwhile, so the list need not be copied: calls that
        // deregister must not allocate.
        let all = self.all();
        // Pairs with the fence in `begin`: either a lane that begins to write sees the changes, or
        // this call sees that the lane writes.
        fence(Ordering::SeqCst);
        for lane in all.iter().filter_map(Weak::upgrade) {
            let seen = lane.load(Ordering::Acquire);
            let until = ccl_clock::now() + WITHIN;
            while seen % 2 == 1 && lane.load(Ordering::Acquire) == seen {
                if ccl_clock::now() >= until {
                    let (what, peer) =
                        ("synchronising a deregistration", "a thread that polls a lane".to_owned());
                    return Err(TransportError::Deadline { what, peer, after: WITHIN });
                }
                std::thread::sleep(PAUSE);
            }
        }
        Ok(())
    }

    /// Locks the lanes. A poisoned lock is fine: a panic cannot leave the list half changed.
    fn all(&self) -> MutexGuard<'_, Vec<Weak<AtomicU64>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Writer {
    /// Lets the lane write until the guard is dropped. The lane must check after this call which
    /// memory is still registered. Only one guard may exist at a time.
    pub(crate) fn begin(&self) -> Writing {
        self.0.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        Writing(Arc::clone(&self.0))
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn deregistering_waits_for_each_lane_that_writes() {
        let (writers, others) = (Writers::default(), Writers::default());
        let [idle, busy, gone] = [(); 3].map(|()| writers.join());
        drop(gone);
        let elsewhere = others.join();
        drop(idle.begin());
        let _elsewhere = elsewhere.begin();
        writers.wait().unwrap();
        let writing = busy.begin();
        std::thread::scope(|scope| {
            let (told, waited) = mpsc::channel();
            let writers = &writers;
            scope.spawn(move || {
                writers.wait().unwrap();
                told.send(()).unwrap();
            });
            assert!(waited.recv_timeout(Duration::from_millis(50)).is_err(), "wait() did not wait");
            drop(writing);
            // A lane that starts meanwhile is not waited for.
            let _again = busy.begin();
            waited.recv_timeout(Duration::from_secs(20)).unwrap();
        });
    }

    #[test]
    fn dropped_lanes_are_removed_from_the_list() {
        let writers = Writers::default();
        (0..100).for_each(|_| drop(writers.join()));
        assert!(writers.all().len() <= 1);
    }
}
