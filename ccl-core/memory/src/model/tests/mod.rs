//! Models of the lock-free parts: what holds in every interleaving, and faults that must be found.

#[cfg(loom)]
mod exhaustive;
#[cfg(shuttle)]
mod random;
