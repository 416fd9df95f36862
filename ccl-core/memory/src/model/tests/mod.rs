//! What the models show of the lock-free pieces, and the faults that they must find.

#[cfg(loom)]
mod exhaustive;
#[cfg(shuttle)]
mod random;
