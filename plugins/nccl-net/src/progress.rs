//! The progress thread, one per process. While NCCL does not call, the thread polls the open
//! communicators. The thread also drains closed communicators.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{JoinHandle, Thread};
use std::time::Duration;

use ccl_core::time::Instant;

use crate::comm::Communicator;
use crate::comm::connection::Connection;
use crate::comm::receiver::Receiver;
use crate::comm::sender::Sender;

/// Time after which a communicator with work is polled again.
pub(crate) const PUMP_AFTER: Duration = Duration::from_micros(500);
/// Interval between polls of idle communicators: both sides must poll to repair a connection.
pub(crate) const IDLE_EVERY: Duration = Duration::from_millis(100);
/// Time without work after which the thread begins to sleep. Each sleep ends when the thread is
/// woken, or after [`IDLE_EVERY`].
const AWAKE: Duration = Duration::from_millis(50);
/// Longest time that a closed communicator may take to deliver its messages and its farewell.
const DRAIN_WITHIN: Duration = Duration::from_secs(4);
/// Time for which a closed receiver discards arriving messages, unless the peer closes earlier.
const LINGER: Duration = Duration::from_secs(1);

/// A communicator that NCCL has closed.
#[derive(Debug)]
struct Closed {
    comm: Comm,
    since: Instant,
    /// True once the communicator is drained or has failed: the farewell then begins.
    leaves: bool,
}

#[derive(Debug)]
enum Comm {
    Sender(Box<Sender>),
    Receiver(Box<Receiver>),
}

impl Closed {
    fn new(comm: Comm) -> Closed {
        Closed { comm, since: ccl_clock::now(), leaves: false }
    }

    fn connection(&mut self) -> &mut Connection {
        match &mut self.comm {
            Comm::Sender(sender) => sender.connection(),
            Comm::Receiver(receiver) => receiver.connection(),
        }
    }

    /// Advances a closed communicator; with `in_haste`, a receiver does not linger. Returns whether
    /// the communicator can be dropped without blocking.
    fn is_over(&mut self, now: Instant, in_haste: bool) -> bool {
        if now.since(self.since) >= DRAIN_WITHIN {
            self.connection().abort(
                "this side has closed, but its last messages did not reach the peer in time",
            );
            return true;
        }
        if !self.leaves {
            let (pumped, drained) = match &mut self.comm {
                Comm::Sender(sender) => (sender.pump(now), sender.is_drained()),
                Comm::Receiver(receiver) => {
                    let pumped = receiver.pump(now);
                    let lingers = !in_haste && now.since(self.since) < LINGER;
                    let connection = receiver.connection();
                    (pumped, connection.is_drained() && (connection.lost.is_some() || !lingers))
                }
            };
            self.leaves = pumped.is_err() || drained;
        }
        self.leaves && self.connection().poll_shutdown()
    }
}

/// The progress thread, and its state.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    closed: Mutex<Vec<Closed>>,
    running: Mutex<Option<(JoinHandle<()>, Thread)>>,
    stops: AtomicBool,
    sleeps: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Progress {
    /// Starts the thread, unless it runs. The thread repeatedly calls `look`, which polls
    /// communicators and returns whether any has something to do.
    pub(crate) fn start(
        &'static self,
        look: impl Fn(Instant) -> bool + Send + 'static,
    ) -> std::io::Result<()> {
        let mut running = lock(&self.running);
        if running.is_none() {
            self.stops.store(false, Ordering::Relaxed);
            let builder = std::thread::Builder::new().name("ferroccl net".to_owned());
            let handle = builder.spawn(move || self.run(look))?;
            let thread = handle.thread().clone();
            *running = Some((handle, thread));
        }
        Ok(())
    }

    /// Ends the thread once all closed communicators are drained or cut off. Returns when the
    /// thread has ended.
    pub(crate) fn stop(&self) {
        let Some((handle, thread)) = lock(&self.running).take() else { return };
        self.stops.store(true, Ordering::Relaxed);
        thread.unpark();
        // A panic of the thread is ignored: no caller could handle it.
        let _ = handle.join();
    }

    /// Wakes the thread if it sleeps: there is something to do.
    #[inline]
    pub(crate) fn wake(&self) {
        if self.sleeps.load(Ordering::Relaxed)
            && let Some((_, thread)) = &*lock(&self.running)
        {
            thread.unpark();
        }
    }

    pub(crate) fn close_sender(&self, sender: Box<Sender>) {
        lock(&self.closed).push(Closed::new(Comm::Sender(sender)));
        self.wake();
    }

    pub(crate) fn close_receiver(&self, mut receiver: Box<Receiver>) {
        receiver.close();
        lock(&self.closed).push(Closed::new(Comm::Receiver(receiver)));
        self.wake();
    }

    fn run(&self, look: impl Fn(Instant) -> bool) {
        let mut busy_at = ccl_clock::now();
        loop {
            let now = ccl_clock::now();
            if caught(|| look(now) | self.drain(now)) {
                busy_at = now;
            }
            if self.stops.load(Ordering::Relaxed) && lock(&self.closed).is_empty() {
                return;
            }
            if now.since(busy_at) < AWAKE {
                std::thread::sleep(PUMP_AFTER);
                continue;
            }
            self.sleeps.store(true, Ordering::SeqCst);
            // Work that began before `sleeps` was set has not woken the thread: look once more.
            if !caught(|| look(now)) {
                std::thread::park_timeout(IDLE_EVERY);
            }
            self.sleeps.store(false, Ordering::Relaxed);
        }
    }

    /// Returns whether closing a communicator would block now.
    #[cfg(test)]
    pub(crate) fn holds_up(&self) -> bool {
        self.closed.try_lock().is_err()
    }

    /// Advances the closed communicators. Returns whether there are any.
    pub(crate) fn drain(&self, now: Instant) -> bool {
        // All farewells advance in one round, without the lock, so that no farewell blocks another
        // farewell, an open communicator or a concurrent close.
        let mut closed = std::mem::take(&mut *lock(&self.closed));
        let any = !closed.is_empty();
        let in_haste = self.stops.load(Ordering::Relaxed);
        closed.retain_mut(|one| !one.is_over(now, in_haste));
        lock(&self.closed).append(&mut closed);
        any
    }
}

/// Returns what `look` finds; false if it panics, which must not end the thread.
fn caught(look: impl FnOnce() -> bool) -> bool {
    catch_unwind(AssertUnwindSafe(look)).unwrap_or(false)
}
