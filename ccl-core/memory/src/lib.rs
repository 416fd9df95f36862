//! Safe access to raw and mapped memory: regions of this process alone, regions that another
//! process maps too, and the lock-free structures that live in them.
//!
//! * [`Region`]: an address range with an owner that keeps it alive.
//! * [`slots`]: a FIFO of slots between two processes, allocated by the receiver.
//! * [`doorbell`]: wakes a sleeping rank when something has arrived.
//! * [`record`]: a few numbers that one process publishes to all others.
//! * [`Words`]: a few words for counters on hot paths.
//!
//! A peer may write to a shared region at any time, correctly or not. Every value in it is
//! therefore read once, atomically, and range-checked. This crate makes no reference to shared
//! memory, except to single atomic words.

pub mod doorbell;
#[cfg(any(loom, shuttle))]
mod model;
pub mod record;
mod region;
pub mod slots;
mod sync;
mod words;

pub use region::{OutOfMemory, Region, RegionError};
pub use words::Words;
