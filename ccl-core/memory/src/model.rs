//! Memory under a model checker: the words and the payload of a region are the checker's own
//! objects, so the checker sees every access and chooses the order of accesses.

use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::Region;
#[cfg(shuttle)]
use crate::sync::Ordering;
use crate::sync::{AtomicU32, AtomicU64};

#[cfg(test)]
mod tests;

/// Eight bytes of payload, written and read without synchronisation, like all payload.
pub(crate) struct Payload {
    #[cfg(loom)]
    cell: loom::cell::UnsafeCell<u64>,
    // Shuttle finds wrong values, not races. The cell is an atomic, so that shuttle can run other
    // threads between two accesses.
    #[cfg(shuttle)]
    cell: AtomicU64,
}

#[cfg(loom)]
impl Payload {
    fn new() -> Payload {
        Payload { cell: loom::cell::UnsafeCell::new(0) }
    }

    pub(crate) fn write(&self, value: u64) {
        // SAFETY: the checker fails the model if this write races with another access to the cell.
        self.cell.with_mut(|at| unsafe { at.write(value) });
    }

    pub(crate) fn read(&self) -> u64 {
        // SAFETY: the checker fails the model if this read races with a write to the cell.
        self.cell.with(|at| unsafe { at.read() })
    }
}

#[cfg(shuttle)]
impl Payload {
    fn new() -> Payload {
        Payload { cell: AtomicU64::new(0) }
    }

    pub(crate) fn write(&self, value: u64) {
        self.cell.store(value, Ordering::Relaxed);
    }

    pub(crate) fn read(&self) -> u64 {
        self.cell.load(Ordering::Relaxed)
    }
}

/// Objects of the checker for one region. A 32-bit word and a 64-bit word that stand for the same
/// bytes do not share a value: code accesses each byte in only one width.
struct Memory {
    start: usize,
    words32: Vec<AtomicU32>,
    words64: Vec<AtomicU64>,
    payload: Vec<Payload>,
    _lines: Arc<dyn Any + Send + Sync>,
}

// SAFETY: the payload's cells are accessed through the checker, which detects races.
#[cfg(loom)]
unsafe impl Send for Memory {}
// SAFETY: as above.
#[cfg(loom)]
unsafe impl Sync for Memory {}

/// Returns the [`Memory`] of a region, which the region keeps alive as its owner. `lines` is the
/// allocation behind the region; only its addresses are used.
pub(crate) fn owner(
    start: NonNull<u8>,
    bytes: usize,
    lines: Arc<dyn Any + Send + Sync>,
) -> Arc<dyn Any + Send + Sync> {
    Arc::new(Memory {
        start: start.as_ptr() as usize,
        words32: (0..bytes / 4).map(|_| AtomicU32::new(0)).collect(),
        words64: (0..bytes / 8).map(|_| AtomicU64::new(0)).collect(),
        payload: (0..bytes / 8).map(|_| Payload::new()).collect(),
        _lines: lines,
    })
}

fn find<T>(owner: &dyn Any, at: *const u8, bytes: usize, pick: fn(&Memory) -> &[T]) -> &T {
    let memory = owner.downcast_ref::<Memory>();
    let found = memory.and_then(|memory| pick(memory).get((at as usize - memory.start) / bytes));
    match found {
        Some(found) => found,
        None => unreachable!("a model uses private regions, and callers check ranges"),
    }
}

pub(crate) fn word32(owner: &dyn Any, at: *const u8) -> &AtomicU32 {
    find(owner, at, 4, |memory| &memory.words32)
}

pub(crate) fn word64(owner: &dyn Any, at: *const u8) -> &AtomicU64 {
    find(owner, at, 8, |memory| &memory.words64)
}

#[cfg(test)]
impl Region {
    /// Returns the payload at an address inside the region.
    fn payload(&self, at: *const u8) -> &Payload {
        find(self.owner(), at, 8, |memory| &memory.payload)
    }
}
