//! Tables of the objects that C refers to by numbers. The numbers look like pointers and are never
//! dereferenced. A table rejects the number of an object that is gone or never existed.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};

const INDEX_BITS: u32 = 20;
const CHUNK_BITS: u32 = 10;
const CHUNK: usize = 1 << CHUNK_BITS;
const CHUNKS: usize = 1 << (INDEX_BITS - CHUNK_BITS);
const GENERATION_BITS: u32 = 20;
const GENERATION_MASK: u32 = (1 << GENERATION_BITS) - 1;
const REQUEST: u32 = 1 << 19;
const REQUEST_GENERATIONS: u32 = 1 << 11;

/// Kind of object that a number stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Listener = 1,
    Sender = 2,
    Receiver = 3,
    Memory = 4,
    Attempt = 5,
    Context = 6,
}

/// Number of an object in a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Id {
    pub(crate) kind: Kind,
    index: u32,
    generation: u32,
}

/// Number of a request of a communicator: its slot, and how often the slot was used before, modulo
/// 2^11.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestId {
    pub(crate) slot: u8,
    pub(crate) turn: u16,
}

impl RequestId {
    /// Returns the next turn of the same slot.
    pub(crate) fn next(self) -> RequestId {
        let turn = (u32::from(self.turn) + 1) % REQUEST_GENERATIONS;
        RequestId { turn: turn as u16, ..self }
    }
}

impl Id {
    /// Returns the number in 64 bits.
    pub(crate) fn number(self) -> u64 {
        (self.kind as u64) << 60
            | u64::from(self.generation) << (2 * INDEX_BITS)
            | u64::from(self.index) << INDEX_BITS
    }

    /// Returns the number as a pointer without provenance.
    pub(crate) fn pointer(self) -> *mut c_void {
        std::ptr::without_provenance_mut(self.number() as usize)
    }

    /// Returns the number of a request of this communicator, as a pointer without provenance.
    pub(crate) fn request(self, request: RequestId) -> *mut c_void {
        let low = REQUEST | u32::from(request.turn) << 8 | u32::from(request.slot);
        std::ptr::without_provenance_mut((self.number() | u64::from(low)) as usize)
    }

    /// Reads the number of an object, or of one of its requests. Returns none for a number that
    /// this plugin never gives out.
    pub(crate) fn read(number: u64) -> Option<(Id, Option<RequestId>)> {
        let kind = match number >> 60 {
            1 => Kind::Listener,
            2 => Kind::Sender,
            3 => Kind::Receiver,
            4 => Kind::Memory,
            5 => Kind::Attempt,
            6 => Kind::Context,
            _ => return None,
        };
        let index = (number >> INDEX_BITS) as u32 & ((1 << INDEX_BITS) - 1);
        let generation = (number >> (2 * INDEX_BITS)) as u32 & GENERATION_MASK;
        let low = number as u32 & ((1 << INDEX_BITS) - 1);
        let request = match low {
            0 => None,
            low if low & REQUEST != 0 => {
                let turn = (low >> 8) % REQUEST_GENERATIONS;
                Some(RequestId { slot: low as u8, turn: turn as u16 })
            }
            _ => return None,
        };
        Some((Id { kind, index, generation }, request))
    }
}

#[derive(Debug)]
struct Entry<T> {
    generation: u32,
    value: Option<Box<T>>,
}

type Slot<T> = Mutex<Entry<T>>;

/// Another thread holds the lock of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Held;

/// Objects by number, each behind a lock of its own.
#[derive(Debug)]
pub(crate) struct Table<T> {
    kind: Kind,
    chunks: [OnceLock<Box<[Slot<T>]>>; CHUNKS],
    /// Number of slots used so far.
    used: AtomicU32,
    vacant: Mutex<Vec<u32>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

impl<T> Table<T> {
    pub(crate) const fn new(kind: Kind) -> Table<T> {
        let chunks = [const { OnceLock::new() }; CHUNKS];
        Table { kind, chunks, used: AtomicU32::new(0), vacant: Mutex::new(Vec::new()) }
    }

    fn slot(&self, index: u32) -> Option<&Slot<T>> {
        let chunk = self.chunks.get(index as usize >> CHUNK_BITS)?.get()?;
        chunk.get(index as usize % CHUNK)
    }

    /// Adds an object; none if there are too many.
    pub(crate) fn add(&self, value: Box<T>) -> Option<Id> {
        let mut vacant = lock(&self.vacant);
        let index = match vacant.pop() {
            Some(index) => index,
            None => {
                let index = self.used.load(Ordering::Relaxed);
                let chunk = self.chunks.get(index as usize >> CHUNK_BITS)?;
                chunk.get_or_init(|| {
                    let entry = || Mutex::new(Entry { generation: 0, value: None });
                    (0..CHUNK).map(|_| entry()).collect()
                });
                // Release: a thread that sees the new value of `used` also sees the chunk.
                self.used.store(index + 1, Ordering::Release);
                index
            }
        };
        drop(vacant);
        let mut entry = lock(self.slot(index)?);
        entry.value = Some(value);
        Some(Id { kind: self.kind, index, generation: entry.generation })
    }

    /// Runs `work` on an object under its lock; none if the object is gone.
    pub(crate) fn with<R>(&self, id: Id, work: impl FnOnce(&mut T) -> R) -> Option<R> {
        let mut entry = lock(self.slot(id.index).filter(|_| id.kind == self.kind)?);
        if entry.generation != id.generation {
            return None;
        }
        entry.value.as_deref_mut().map(work)
    }

    /// Runs `work` on an object under its lock, unless another thread holds the lock; none if the
    /// object is gone.
    pub(crate) fn try_with<R>(
        &self,
        id: Id,
        work: impl FnOnce(&mut T) -> R,
    ) -> Result<Option<R>, Held> {
        let slot = self.slot(id.index).filter(|_| id.kind == self.kind);
        let Some(slot) = slot else { return Ok(None) };
        let mut entry = try_lock(slot).ok_or(Held)?;
        if entry.generation != id.generation {
            return Ok(None);
        }
        Ok(entry.value.as_deref_mut().map(work))
    }

    /// Removes an object: its number means nothing from now on.
    pub(crate) fn remove(&self, id: Id) -> Option<Box<T>> {
        let mut entry = lock(self.slot(id.index).filter(|_| id.kind == self.kind)?);
        if entry.generation != id.generation {
            return None;
        }
        let value = entry.value.take()?;
        entry.generation = (entry.generation + 1) & GENERATION_MASK;
        drop(entry);
        lock(&self.vacant).push(id.index);
        Some(value)
    }

    /// Runs `work` on each object in turn, under its lock.
    pub(crate) fn for_each(&self, mut work: impl FnMut(&mut T)) {
        for index in 0..self.used.load(Ordering::Acquire) {
            let Some(slot) = self.slot(index) else { return };
            if let Some(value) = lock(slot).value.as_deref_mut() {
                work(value);
            }
        }
    }

    /// Runs `work` on each object whose lock is free.
    pub(crate) fn for_each_idle(&self, mut work: impl FnMut(Id, &mut T)) {
        for index in 0..self.used.load(Ordering::Acquire) {
            let Some(slot) = self.slot(index) else { return };
            let Some(mut entry) = try_lock(slot) else { continue };
            let id = Id { kind: self.kind, index, generation: entry.generation };
            if let Some(value) = entry.value.as_deref_mut() {
                work(id, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_written() {
        let table = Table::new(Kind::Sender);
        let first = table.add(Box::new(1)).unwrap();
        let second = table.add(Box::new(2)).unwrap();
        for id in [first, second] {
            let pointer = id.pointer();
            assert_eq!(Id::read(pointer.addr() as u64), Some((id, None)));
            let request = RequestId { slot: 255, turn: 2047 };
            let pointer = id.request(request);
            assert_eq!(Id::read(pointer.addr() as u64), Some((id, Some(request))));
            assert_eq!(request.next(), RequestId { slot: 255, turn: 0 });
        }
        for stranger in [0, 1, 7, u64::MAX, 9 << 60, first.number() | 1] {
            assert_eq!(Id::read(stranger), None, "{stranger:x}");
        }
    }

    #[test]
    fn what_is_gone_is_known_to_be_gone() {
        let table = Table::new(Kind::Memory);
        let id = table.add(Box::new(7)).unwrap();
        assert_eq!(table.with(id, |value| *value), Some(7));
        let mut other = id;
        other.kind = Kind::Sender;
        assert_eq!(table.with(other, |value| *value), None);
        assert_eq!(table.remove(id).as_deref(), Some(&7));
        assert_eq!(table.remove(id), None);
        assert_eq!(table.try_with(id, |value| *value), Ok(None));
        let next = table.add(Box::new(8)).unwrap();
        assert_ne!(next, id);
        assert_eq!(table.try_with(next, |_| table.try_with(next, |_| ())), Ok(Some(Err(Held))));
        assert_eq!(table.with(id, |value| *value), None);
        let mut seen = Vec::new();
        table.for_each_idle(|id, value| seen.push((id, *value)));
        assert_eq!(seen, [(next, 8)]);
    }

    #[test]
    fn there_is_room_for_many() {
        let table = Table::new(Kind::Listener);
        let ids: Vec<Id> = (0..3 * CHUNK).map(|at| table.add(Box::new(at)).unwrap()).collect();
        for (at, id) in ids.iter().enumerate() {
            assert_eq!(table.with(*id, |value| *value), Some(at));
        }
    }
}
