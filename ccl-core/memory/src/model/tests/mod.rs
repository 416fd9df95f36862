//! Models of the lock-free parts: properties that hold in every interleaving, and planted faults
//! that the model checker must find.

#[cfg(loom)]
mod exhaustive;
#[cfg(shuttle)]
mod random;
