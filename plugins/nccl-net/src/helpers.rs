//! Helper threads, for transports over which CPUs copy the bytes of messages, such as TCP. These
//! threads poll the communicators that have long messages. One process can thus send and receive
//! several messages at the same time. NCCL's own thread then only posts messages and looks whether
//! they are done.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// CPUs for each helper, if the number of helpers is not configured.
const CPUS_PER_HELPER: usize = 8;
/// Largest number of helpers if the number is not configured: few, because each process of a host
/// has its own helpers.
const HELPERS_CHOSEN_MAX: usize = 2;
/// Largest number of helpers.
const HELPERS_MAX: u8 = 16;
/// Time without work after which a helper sleeps.
const AWAKE: Duration = Duration::from_micros(200);
/// Longest sleep of a helper that is not woken.
const NAP_MAX: Duration = Duration::from_secs(1);

/// The helper threads of a process. All sleep while no communicator needs help.
#[derive(Debug)]
pub(crate) struct Helpers {
    count: usize,
    /// The threads; none while they are not started.
    threads: Mutex<Option<Vec<JoinHandle<()>>>>,
    stops: AtomicBool,
    asleep: AtomicUsize,
    bed: Mutex<()>,
    woken: Condvar,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Helpers {
    /// Creates helpers that do not run yet; if `count` is none, one for every [`CPUS_PER_HELPER`]
    /// CPUs, but at most [`HELPERS_CHOSEN_MAX`].
    pub(crate) fn new(count: Option<u8>) -> Helpers {
        let cpus = || std::thread::available_parallelism().map_or(1, usize::from);
        let count = count.map_or_else(|| chosen(cpus()), |count| count.min(HELPERS_MAX).into());
        Helpers {
            count,
            threads: Mutex::default(),
            stops: AtomicBool::new(false),
            asleep: AtomicUsize::new(0),
            bed: Mutex::default(),
            woken: Condvar::new(),
        }
    }

    /// Returns whether there are helpers.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.count > 0
    }

    /// Starts the threads, unless they run. Each repeatedly calls `help`, which polls communicators
    /// and returns whether any needs help. A failure to start a thread is only logged: NCCL's own
    /// thread does the work of missing helpers.
    pub(crate) fn start(&'static self, help: fn() -> bool) {
        lock(&self.threads).get_or_insert_with(|| {
            self.stops.store(false, Ordering::SeqCst);
            let mut started = Vec::with_capacity(self.count);
            for number in 0..self.count {
                let builder = std::thread::Builder::new().name(format!("ferroccl net {number}"));
                match builder.spawn(move || self.run(help)) {
                    Ok(thread) => started.push(thread),
                    Err(error) => {
                        tracing::warn!(
                            "a helper thread cannot be started: {error}; see `ulimit -u`"
                        );
                        break;
                    }
                }
            }
            started
        });
    }

    /// Ends the threads, and waits until they have ended.
    pub(crate) fn stop(&self) {
        let mut threads = lock(&self.threads);
        self.stops.store(true, Ordering::SeqCst);
        drop(lock(&self.bed));
        self.woken.notify_all();
        for thread in threads.take().into_iter().flatten() {
            // A panic of a helper is ignored: no caller could handle it.
            let _ = thread.join();
        }
    }

    /// Wakes the helpers that sleep. A helper that is about to sleep may miss this call, which does
    /// no harm: NCCL's thread polls communicators too.
    #[inline]
    pub(crate) fn wake(&self) {
        if self.asleep.load(Ordering::Relaxed) > 0 {
            self.woken.notify_all();
        }
    }

    fn run(&self, help: impl Fn() -> bool) {
        let mut busy_at = ccl_clock::now();
        while !self.stops.load(Ordering::SeqCst) {
            // A panic in one round must not end the thread.
            if catch_unwind(AssertUnwindSafe(&help)).unwrap_or(false) {
                busy_at = ccl_clock::now();
            } else if ccl_clock::now().since(busy_at) >= AWAKE {
                self.sleep();
                busy_at = ccl_clock::now();
            }
            std::thread::yield_now();
        }
    }

    fn sleep(&self) {
        let bed = lock(&self.bed);
        // `stop` takes this lock before it wakes all helpers. So it cannot wake them between the
        // check below and the sleep, which releases the lock.
        if !self.stops.load(Ordering::SeqCst) {
            self.asleep.fetch_add(1, Ordering::Relaxed);
            let _ = self.woken.wait_timeout(bed, NAP_MAX);
            self.asleep.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Returns the number of helpers of a process that may use `cpus` CPUs.
fn chosen(cpus: usize) -> usize {
    (cpus / CPUS_PER_HELPER).min(HELPERS_CHOSEN_MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;
    use std::time::Instant;

    use super::*;

    static CALLS: AtomicUsize = AtomicUsize::new(0);

    fn count() -> bool {
        CALLS.fetch_add(1, Ordering::Relaxed);
        false
    }

    fn until(what: &str, is_so: impl Fn() -> bool) {
        let since = Instant::now();
        while !is_so() {
            assert!(since.elapsed() < Duration::from_secs(20), "{what}");
            std::thread::yield_now();
        }
    }

    #[test]
    fn helpers_sleep_until_they_are_woken_or_stopped() {
        // In a static: leaked memory would be an error for the sanitizer.
        static HELPERS: LazyLock<Helpers> = LazyLock::new(|| Helpers::new(Some(3)));
        let helpers = &*HELPERS;
        for _ in 0..2 {
            helpers.start(count);
            helpers.start(count);
            assert_eq!(lock(&helpers.threads).as_ref().map(Vec::len), Some(3));
            until("not all helpers fell asleep", || helpers.asleep.load(Ordering::Relaxed) == 3);
            let before = CALLS.load(Ordering::Relaxed);
            until("no helper woke up", || {
                helpers.wake();
                CALLS.load(Ordering::Relaxed) > before
            });
            helpers.stop();
            assert!(lock(&helpers.threads).is_none());
            assert_eq!(helpers.asleep.load(Ordering::Relaxed), 0);
        }
    }

    #[test]
    fn small_machines_have_no_helpers() {
        let counts = [1, 7, 8, 16, 31, 32, 192].map(chosen);
        assert_eq!(counts, [0, 0, 1, 2, 2, 2, 2]);
        assert!(!Helpers::new(Some(0)).any());
        assert_eq!(Helpers::new(Some(200)).count, HELPERS_MAX.into());
    }
}
