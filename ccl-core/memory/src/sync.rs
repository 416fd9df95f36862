//! Atomics of this crate. Model checkers replace them under `--cfg loom` and `--cfg shuttle`, for
//! `cargo xtask check loom` and `... shuttle`.

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
#[cfg(shuttle)]
pub(crate) use shuttle::sync::atomic::{AtomicU32, AtomicU64, Ordering};
#[cfg(not(any(loom, shuttle)))]
pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Executes a fence, unless a model has weakened its ordering.
#[cfg(any(loom, shuttle))]
pub(crate) fn fence(ordering: Ordering) {
    if ordering != Ordering::Relaxed {
        #[cfg(loom)]
        loom::sync::atomic::fence(ordering);
        #[cfg(shuttle)]
        shuttle::sync::atomic::fence(ordering);
    }
}

#[cfg(any(loom, shuttle))]
std::thread_local! {
    /// Name of the ordering that a model weakens. All threads of the model see it, because the
    /// checkers run them on one OS thread.
    pub(crate) static WEAKENED: std::cell::Cell<Option<&'static str>> =
        const { std::cell::Cell::new(None) };
}

/// Returns the relaxed ordering, if `name` is the weakened one.
#[cfg(any(loom, shuttle))]
fn weakened(name: &str) -> Option<Ordering> {
    (WEAKENED.get() == Some(name)).then_some(Ordering::Relaxed)
}

/// Names the orderings that a protocol rests on. Each ordering is a constant, except in a model,
/// which weakens the orderings one by one to show that each is needed.
macro_rules! orderings {
    ($($(#[$doc:meta])* $name:ident = $ordering:ident;)*) => {
        pub(crate) mod order {
            use super::Ordering;

            $(
                $(#[$doc])*
                #[cfg(not(any(loom, shuttle)))]
                pub(crate) const fn $name() -> Ordering { Ordering::$ordering }

                $(#[$doc])*
                #[cfg(any(loom, shuttle))]
                pub(crate) fn $name() -> Ordering {
                    super::weakened(stringify!($name)).unwrap_or(Ordering::$ordering)
                }
            )*
        }
    };
}

orderings! {
    /// Slots: payload, length and tag come before the sequence that announces them.
    publish = Release;
    /// Slots: a receiver that sees the sequence also sees all writes before it.
    arrive = Acquire;
    /// Slots: the receiver's reads of a slot come before its credit.
    credit = Release;
    /// Slots: the receiver's reads of a slot come before the sender's writes to it.
    credited = Acquire;
    /// Doorbell: the published data comes before the ring.
    ring = Release;
    /// Doorbell: a sleeper reads the number of rings, announces its sleep, and then looks for data
    /// once more. The announcement comes before this look. If the number that the sleeper has read
    /// includes a ring, the look sees all data that was published before that ring.
    announce = SeqCst;
    /// Record (see `record.rs`): the record's number is cleared before any word changes.
    hide = Release;
    /// Record: all words have changed before the new number is stored.
    show = Release;
    /// Record: a reader that sees a number also sees all writes before it.
    find = Acquire;
    /// Record: all words are read before the number is read again.
    confirm = Acquire;
}
