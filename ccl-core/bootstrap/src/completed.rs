//! Progress of a rank: one number that the data path sets and the control plane reads.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Number of the last operation that ended well on this rank, and whether later operations may
/// still end well.
///
/// The data path calls [`Completed::finish`] at the end of each operation: a relaxed load and a
/// relaxed store. After a failure the control plane freezes the number and tells it to the other
/// ranks; from then on no operation may end well. An operation that calls `finish` while `freeze`
/// runs can still end well although its number is above the frozen number. The survivors'
/// [`Verdict`](crate::Verdict) then declares the operation void.
#[derive(Debug, Default)]
pub struct Completed {
    number: AtomicU64,
    frozen: AtomicBool,
}

impl Completed {
    /// Records that operation `number` is done here. Returns whether the operation may end well. If
    /// not, it must fail: the survivors of a failure have agreed on a verdict, or soon will.
    #[inline]
    #[must_use = "if the result is false, the operation must not return Ok"]
    pub fn finish(&self, number: u64) -> bool {
        if self.frozen.load(Ordering::Relaxed) {
            return false;
        }
        self.number.store(number, Ordering::Relaxed);
        true
    }

    /// Returns the number of the last operation that ended well.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number.load(Ordering::SeqCst)
    }

    /// Prevents all operations that have not ended yet from ending well. Returns the number of the
    /// last operation that ended well.
    pub fn freeze(&self) -> u64 {
        self.frozen.store(true, Ordering::SeqCst);
        self.number()
    }

    /// Returns whether no operation may end well any more.
    #[must_use]
    pub fn is_frozen(&self) -> bool {
        self.frozen.load(Ordering::Relaxed)
    }
}
