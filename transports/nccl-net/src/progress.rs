//! The thread that does what nobody asks for: communicators with something to do make progress
//! also when NCCL does not call, and what is closed is drained. One for the process.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{JoinHandle, Thread};
use std::time::Duration;

use ccl_core::time::Instant;

use crate::comm::line::Line;
use crate::comm::receiver::Receiver;
use crate::comm::sender::Sender;
use crate::plugin::Plugin;

/// Communicators that were looked at so lately need no other look.
const PUMP_AFTER: Duration = Duration::from_micros(500);
/// How often those are looked at that have nothing to do: a break is mended by both sides.
const IDLE_EVERY: Duration = Duration::from_millis(100);
/// Without anything to do for so long, the thread sleeps until it is woken.
const AWAKE: Duration = Duration::from_millis(50);
/// How long what is closed may take to reach the peer.
const DRAIN_WITHIN: Duration = Duration::from_secs(4);

/// A communicator that NCCL has closed.
#[derive(Debug)]
enum Closed {
    Sender(Box<Sender>),
    Receiver(Box<Receiver>),
}

impl Closed {
    fn cut(&mut self) {
        let line = match self {
            Closed::Sender(sender) => sender.line(),
            Closed::Receiver(receiver) => receiver.line(),
        };
        line.cut("it did not take in time what was sent before this side closed");
    }

    /// Whether nothing of it is under way any more.
    fn is_over(&mut self, now: Instant) -> bool {
        let (pumped, drained) = match self {
            Closed::Sender(sender) => (sender.pump(now), sender.is_drained()),
            Closed::Receiver(receiver) => {
                let pumped = receiver.pump(now);
                (pumped, receiver.line().is_drained())
            }
        };
        pumped.is_err() || drained
    }
}

/// The thread, and what it is told.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    closed: Mutex<Vec<(Instant, Closed)>>,
    running: Mutex<Option<(JoinHandle<()>, Thread)>>,
    stops: AtomicBool,
    sleeps: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Progress {
    /// Starts the thread, unless it runs.
    pub(crate) fn start(&self, plugin: &'static Plugin) -> std::io::Result<()> {
        let mut running = lock(&self.running);
        if running.is_none() {
            self.stops.store(false, Ordering::Relaxed);
            let builder = std::thread::Builder::new().name("ferroccl net".to_owned());
            let handle = builder.spawn(move || plugin.progress.run(plugin))?;
            let thread = handle.thread().clone();
            *running = Some((handle, thread));
        }
        Ok(())
    }

    /// Ends the thread, once what is closed is drained, or cut off after a while.
    pub(crate) fn stop(&self) {
        let Some((handle, thread)) = lock(&self.running).take() else { return };
        self.stops.store(true, Ordering::Relaxed);
        thread.unpark();
        // Its panics are its own: there are none, and nobody could do anything about them.
        let _ = handle.join();
    }

    /// There is something to do.
    #[inline]
    pub(crate) fn wake(&self) {
        if self.sleeps.load(Ordering::Relaxed)
            && let Some((_, thread)) = &*lock(&self.running)
        {
            thread.unpark();
        }
    }

    pub(crate) fn close_sender(&self, sender: Box<Sender>) {
        lock(&self.closed).push((ccl_wire::now() + DRAIN_WITHIN, Closed::Sender(sender)));
        self.wake();
    }

    pub(crate) fn close_receiver(&self, receiver: Box<Receiver>) {
        lock(&self.closed).push((ccl_wire::now() + DRAIN_WITHIN, Closed::Receiver(receiver)));
        self.wake();
    }

    fn run(&self, plugin: &Plugin) {
        let mut busy_at = ccl_wire::now();
        loop {
            let now = ccl_wire::now();
            // A defect in one of them keeps nobody else from moving on.
            let round = || look(plugin, now) | self.drain(now);
            if catch_unwind(AssertUnwindSafe(round)).unwrap_or(false) {
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
            // Whoever began something before that has woken nobody.
            if !look(plugin, now) {
                std::thread::park_timeout(IDLE_EVERY);
            }
            self.sleeps.store(false, Ordering::Relaxed);
        }
    }

    /// Looks after what is closed. Returns whether there is any.
    fn drain(&self, now: Instant) -> bool {
        let mut closed = lock(&self.closed);
        let any = !closed.is_empty();
        let over = closed.iter_mut().position(|(until, one)| one.is_over(now) || now >= *until);
        let over = over.map(|at| closed.swap_remove(at));
        drop(closed);
        // Saying farewell may take a moment, in which nobody else is looked after: one at a time,
        // and none to a peer that has had its time.
        if let Some((until, mut one)) = over
            && now >= until
        {
            one.cut();
        }
        any
    }
}

/// Looks after communicators that nobody else does. Returns whether any has something to do.
fn look(plugin: &Plugin, now: Instant) -> bool {
    let mut busy = false;
    let mut is_late = |line: &mut Line, works: bool| {
        busy |= works;
        now.since(line.pumped) >= if works { PUMP_AFTER } else { IDLE_EVERY }
    };
    plugin.senders.for_each_idle(|_, sender| {
        let works = sender.has_work();
        if is_late(sender.line(), works)
            && let Err(error) = sender.pump(now)
        {
            sender.line().cut(&error.text);
        }
    });
    plugin.receivers.for_each_idle(|_, receiver| {
        let works = receiver.has_work();
        if is_late(receiver.line(), works)
            && let Err(error) = receiver.pump(now)
        {
            receiver.line().cut(&error.text);
        }
    });
    let mut forgotten = Vec::new();
    plugin.attempts.for_each_idle(|id, attempt| {
        if attempt.is_forgotten(now) {
            forgotten.push(id);
        }
    });
    forgotten.into_iter().for_each(|id| drop(plugin.attempts.remove(id)));
    busy
}
