//! Objects handed out to the caller as numbers instead of pointers. Numbers are looked up, so that
//! a wrong one is an error, not a crash.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Number of locks; many, so that communicators do not wait for each other.
const SHARDS: usize = 64;

/// Next number. Numbers are unique across registries, so that no registry finds an object of the
/// wrong kind. Small numbers are left out: NCCL gives 0 and 1 a meaning of their own.
static NEXT: AtomicU64 = AtomicU64::new(4096);

type Shard<T> = BTreeMap<u64, Arc<T>>;

/// Objects, keyed by their numbers.
#[derive(Debug)]
pub(crate) struct Registry<T> {
    shards: [RwLock<Shard<T>>; SHARDS],
}

impl<T> Registry<T> {
    pub(crate) fn new() -> Registry<T> {
        Registry { shards: std::array::from_fn(|_| RwLock::new(BTreeMap::new())) }
    }

    /// Inserts an object and returns its number.
    pub(crate) fn insert(&self, object: T) -> u64 {
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        self.write(id).insert(id, Arc::new(object));
        id
    }

    pub(crate) fn find(&self, id: u64) -> Option<Arc<T>> {
        read(self.shard(id)).get(&id).cloned()
    }

    /// Removes an object and returns it; later calls return `None`.
    pub(crate) fn remove(&self, id: u64) -> Option<Arc<T>> {
        self.write(id).remove(&id)
    }

    /// Returns the objects for which `accepts` returns true.
    pub(crate) fn select(&self, accepts: impl Fn(&T) -> bool) -> Vec<Arc<T>> {
        let mut found = Vec::new();
        for shard in &self.shards {
            found.extend(read(shard).values().filter(|object| accepts(object)).cloned());
        }
        found
    }

    fn shard(&self, id: u64) -> &RwLock<Shard<T>> {
        &self.shards[id as usize % SHARDS]
    }

    fn write(&self, id: u64) -> RwLockWriteGuard<'_, Shard<T>> {
        self.shard(id).write().unwrap_or_else(PoisonError::into_inner)
    }
}

fn read<T>(shard: &RwLock<Shard<T>>) -> RwLockReadGuard<'_, Shard<T>> {
    shard.read().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_finds_its_own_object_only_and_nothing_after_the_removal() {
        let (words, others) = (Registry::new(), Registry::<()>::new());
        let (one, two) = (words.insert("one"), words.insert("two"));
        assert_eq!(words.find(one).as_deref(), Some(&"one"));
        assert!(others.find(one).is_none() && words.find(0).is_none());
        assert_eq!(words.select(|word| word.starts_with('t')).len(), 1);
        assert!(words.remove(two).is_some());
        assert!(words.remove(two).is_none() && words.find(two).is_none());
    }
}
