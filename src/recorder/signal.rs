//! Dumps on SIGUSR1. The handler only counts; control threads look at the count.

use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

/// Number of signals so far.
static COUNT: AtomicU64 = AtomicU64::new(0);

extern "C" fn count_one(_signal: libc::c_int) {
    COUNT.fetch_add(1, Ordering::Relaxed);
}

/// Returns the number of signals so far.
pub(super) fn count() -> u64 {
    COUNT.load(Ordering::Relaxed)
}

/// Installs the handler, once per process, if the program has left the signal at its default.
/// Changes nothing if the program handles or ignores the signal.
pub(super) fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        if disposition() == Some(libc::SIG_DFL) {
            take();
        }
    });
}

fn disposition() -> Option<libc::sighandler_t> {
    // SAFETY: zeroes are a valid `sigaction`: it holds integers and a pointer that may be null.
    let mut known: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: nothing is changed; the old disposition is written to memory of our own.
    let asked = unsafe { libc::sigaction(libc::SIGUSR1, std::ptr::null(), &raw mut known) };
    (asked == 0).then_some(known.sa_sigaction)
}

fn take() {
    // SAFETY: zeroes are a valid `sigaction`, as in `disposition`.
    let mut ours: libc::sigaction = unsafe { std::mem::zeroed() };
    ours.sa_sigaction = count_one as extern "C" fn(libc::c_int) as libc::sighandler_t;
    // Interrupted system calls of the program restart.
    ours.sa_flags = libc::SA_RESTART;
    // SAFETY: the handler only adds to an atomic, which a signal handler may do, and lives as long
    // as the process. If the call fails, the signal stays as it was.
    unsafe { libc::sigaction(libc::SIGUSR1, &raw const ours, std::ptr::null_mut()) };
}
