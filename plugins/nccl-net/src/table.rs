//! Tables of the objects that C refers to by numbers. The numbers look like pointers and are never
//! dereferenced. A table rejects the number of an object that is gone or never existed.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::time::Duration;

use ccl_core::time::Instant;

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

/// Number of a request of a communicator: the index of the request's entry in the communicator's
/// list of requests (`slot`; it is no slot for messages), and how often the entry was used before,
/// modulo 2^11 (`turn`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestId {
    pub(crate) slot: u8,
    pub(crate) turn: u16,
}

impl RequestId {
    /// Returns the number of the next request in the same entry.
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

#[derive(Debug)]
struct Slot<T> {
    entry: Mutex<Entry<T>>,
    /// Time until which helpers poll the object, in nanoseconds.
    helped_until: AtomicU64,
    /// Time until which helpers leave the lock to other threads, in nanoseconds.
    left_until: AtomicU64,
}

impl<T> Slot<T> {
    fn new() -> Slot<T> {
        Slot {
            entry: Mutex::new(Entry { generation: 0, value: None }),
            helped_until: AtomicU64::new(0),
            left_until: AtomicU64::new(0),
        }
    }

    /// Locks the object. Helpers leave the lock to a thread that waits for it here.
    fn lock(&self) -> MutexGuard<'_, Entry<T>> {
        try_lock(&self.entry).unwrap_or_else(|| {
            self.left_until.store(u64::MAX, Ordering::Relaxed);
            let entry = lock(&self.entry);
            self.left_until.store(0, Ordering::Relaxed);
            entry
        })
    }
}

/// Error of a call to an object whose lock another thread holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Held;

/// An object that helper threads may poll in place of its caller.
pub(crate) trait Helped {
    /// Polls in place of the caller.
    fn help(&mut self, clock: &dyn Fn() -> Instant);

    /// Returns the time until which helpers should poll.
    fn helped_until(&mut self) -> Instant;
}

/// Time for which helpers leave an object's lock to a caller that failed to get it. NCCL's thread
/// calls again well within this time.
const LEFT_FOR: Duration = Duration::from_micros(10);

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
                chunk.get_or_init(|| (0..CHUNK).map(|_| Slot::new()).collect());
                // Release: a thread that sees the new value of `used` also sees the chunk.
                self.used.store(index + 1, Ordering::Release);
                index
            }
        };
        drop(vacant);
        let mut entry = self.slot(index)?.lock();
        entry.value = Some(value);
        Some(Id { kind: self.kind, index, generation: entry.generation })
    }

    /// Runs `work` on an object under its lock; none if the object is gone.
    pub(crate) fn with<R>(&self, id: Id, work: impl FnOnce(&mut T) -> R) -> Option<R> {
        let mut entry = self.slot(id.index).filter(|_| id.kind == self.kind)?.lock();
        if entry.generation != id.generation {
            return None;
        }
        entry.value.as_deref_mut().map(work)
    }

    /// Removes an object: its number means nothing from now on.
    pub(crate) fn remove(&self, id: Id) -> Option<Box<T>> {
        let mut entry = self.slot(id.index).filter(|_| id.kind == self.kind)?.lock();
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
            if let Some(value) = slot.lock().value.as_deref_mut() {
                work(value);
            }
        }
    }

    /// Runs `work` on each object whose lock is free.
    pub(crate) fn for_each_idle(&self, mut work: impl FnMut(Id, &mut T)) {
        for index in 0..self.used.load(Ordering::Acquire) {
            let Some(slot) = self.slot(index) else { return };
            let Some(mut entry) = try_lock(&slot.entry) else { continue };
            let id = Id { kind: self.kind, index, generation: entry.generation };
            if let Some(value) = entry.value.as_deref_mut() {
                work(id, value);
            }
        }
    }
}

impl<T: Helped> Table<T> {
    /// Runs `work` on an object under its lock; none if the object is gone. Also returns whether
    /// helpers should poll the object from now on.
    ///
    /// # Errors
    ///
    /// When helpers are to poll the object at this time, and another thread holds its lock.
    pub(crate) fn call<R>(
        &self,
        id: Id,
        now: Instant,
        work: impl FnOnce(&mut T) -> R,
    ) -> Result<Option<(R, bool)>, Held> {
        let slot = self.slot(id.index).filter(|_| id.kind == self.kind);
        let Some(slot) = slot else { return Ok(None) };
        let mut entry = if slot.helped_until.load(Ordering::Relaxed) <= now.as_nanos() {
            slot.lock()
        } else if let Some(entry) = try_lock(&slot.entry) {
            entry
        } else {
            slot.left_until.store((now + LEFT_FOR).as_nanos(), Ordering::Relaxed);
            return Err(Held);
        };
        slot.left_until.store(0, Ordering::Relaxed);
        if entry.generation != id.generation {
            return Ok(None);
        }
        let Some(value) = entry.value.as_deref_mut() else { return Ok(None) };
        let result = work(value);
        let until = value.helped_until();
        slot.helped_until.store(until.as_nanos(), Ordering::Relaxed);
        Ok(Some((result, now < until)))
    }

    /// Polls the objects that need help and whose locks are free. Returns whether any needs help.
    pub(crate) fn help(&self, clock: &dyn Fn() -> Instant) -> bool {
        let mut any = false;
        for index in 0..self.used.load(Ordering::Acquire) {
            let Some(slot) = self.slot(index) else { return any };
            let until = slot.helped_until.load(Ordering::Relaxed);
            // `until` is mostly zero; the clock need not be read then.
            if until == 0 {
                continue;
            }
            let now = clock();
            if until <= now.as_nanos() {
                let _ = slot.helped_until.compare_exchange(
                    until,
                    0,
                    Ordering::Relaxed,
                    Ordering::Relaxed,
                );
                continue;
            }
            any = true;
            if slot.left_until.load(Ordering::Relaxed) > now.as_nanos() {
                continue;
            }
            if let Some(mut entry) = try_lock(&slot.entry)
                && let Some(value) = entry.value.as_deref_mut()
            {
                value.help(clock);
                slot.helped_until.store(value.helped_until().as_nanos(), Ordering::Relaxed);
            }
        }
        any
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
    fn removed_objects_are_not_found() {
        let table = Table::new(Kind::Memory);
        let id = table.add(Box::new(7)).unwrap();
        assert_eq!(table.with(id, |value| *value), Some(7));
        let mut other = id;
        other.kind = Kind::Sender;
        assert_eq!(table.with(other, |value| *value), None);
        assert_eq!(table.remove(id).as_deref(), Some(&7));
        assert_eq!(table.remove(id), None);
        let next = table.add(Box::new(8)).unwrap();
        assert_ne!(next, id);
        assert_eq!(table.with(id, |value| *value), None);
        let mut seen = Vec::new();
        table.for_each_idle(|id, value| seen.push((id, *value)));
        assert_eq!(seen, [(next, 8)]);
    }

    /// An object that counts its polls by helpers, and asks for polls until a given time.
    struct Asks {
        until: Instant,
        polls: usize,
    }

    impl Helped for Asks {
        fn help(&mut self, _: &dyn Fn() -> Instant) {
            self.polls += 1;
        }

        fn helped_until(&mut self) -> Instant {
            self.until
        }
    }

    #[test]
    fn helpers_poll_objects_that_need_help_and_leave_the_lock_to_callers() {
        let at = Instant::from_nanos;
        let table = Table::new(Kind::Sender);
        let id = table.add(Box::new(Asks { until: Instant::ZERO, polls: 0 })).unwrap();
        let polls = |now| table.call(id, at(now), |asks| asks.polls);
        assert!(!table.help(&|| at(1)), "no object needs help yet");
        // While helpers poll, a call does not wait for the lock: it returns `Held`.
        let asked = table.call(id, at(1), |asks| asks.until = at(100_000));
        assert_eq!(asked, Ok(Some(((), true))));
        let held = table.with(id, |_| {
            assert!(table.help(&|| at(2)), "an object needs help while its lock is held, too");
            polls(2)
        });
        assert_eq!(held, Some(Err(Held)));
        assert!(table.help(&|| at(3)));
        assert_eq!(polls(4), Ok(Some((0, true))), "the lock is left to the caller");
        assert!(table.help(&|| at(5)));
        assert_eq!(polls(6), Ok(Some((1, true))));
        assert!(!table.help(&|| at(100_000)), "the time for help is over");
        assert_eq!(polls(100_001), Ok(Some((1, false))));
        let gone = table.remove(id);
        assert!(gone.is_some() && polls(7) == Ok(None));
    }

    #[test]
    fn a_table_holds_more_objects_than_one_chunk() {
        let table = Table::new(Kind::Listener);
        let ids: Vec<Id> = (0..3 * CHUNK).map(|at| table.add(Box::new(at)).unwrap()).collect();
        for (at, id) in ids.iter().enumerate() {
            assert_eq!(table.with(*id, |value| *value), Some(at));
        }
    }
}
