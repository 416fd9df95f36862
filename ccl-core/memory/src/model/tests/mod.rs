//! Models of the lock-free parts: properties that hold in every interleaving, and faults that must
//! be found.

#[cfg(loom)]
mod exhaustive;
#[cfg(shuttle)]
mod random;
