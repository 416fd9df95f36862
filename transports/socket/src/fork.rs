//! Detection of forks: a child must not use what its parent shares with other ranks.

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

/// Number of forks between the process that called [`watch`] and this process.
static GENERATION: AtomicU32 = AtomicU32::new(0);

extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

/// Returns this process's generation, which differs from that of its parent after a fork. The call
/// costs one load.
#[inline]
#[must_use]
pub fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

/// Begins to count forks.
pub fn watch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handler only adds to an atomic, which is allowed in a forked child. If there
        // is no memory for the handler, forks go unnoticed, and nothing else fails.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
}
