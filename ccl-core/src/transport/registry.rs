//! The memory that is registered with a device: one table, for all lanes and threads.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ccl_memory::Region;

use super::{MrKey, TransportError};

/// Memory that puts may name, with the transport's own data for it.
#[derive(Clone, Debug)]
pub struct Registration<T> {
    /// The memory.
    pub region: Region,
    /// The transport's own data for this memory.
    pub with: T,
}

/// The registered memory of one device.
#[derive(Debug)]
pub struct Registry<T> {
    device: u64,
    next_key: AtomicU64,
    withdrawals: AtomicU64,
    memory: Mutex<BTreeMap<MrKey, Registration<T>>>,
}

impl<T: Clone> Default for Registry<T> {
    fn default() -> Registry<T> {
        Registry::new()
    }
}

impl<T: Clone> Registry<T> {
    /// Returns an empty registry of a new device.
    #[must_use]
    pub fn new() -> Registry<T> {
        static DEVICES: AtomicU64 = AtomicU64::new(0);
        Registry {
            device: DEVICES.fetch_add(1, Ordering::Relaxed),
            next_key: AtomicU64::new(1),
            withdrawals: AtomicU64::new(0),
            memory: Mutex::new(BTreeMap::new()),
        }
    }

    /// Returns a number that distinguishes this device's connections from those of other devices.
    #[must_use]
    pub fn device(&self) -> u64 {
        self.device
    }

    /// Returns the number of deregistrations so far. When it changes, the registrations that a lane
    /// remembers are void.
    #[must_use]
    pub fn withdrawals(&self) -> u64 {
        self.withdrawals.load(Ordering::Acquire)
    }

    /// Returns the registration of a key.
    ///
    /// # Errors
    ///
    /// When the key is not registered, or is no longer registered.
    pub fn find(&self, key: MrKey) -> Result<Registration<T>, TransportError> {
        self.lock().get(&key).cloned().ok_or(TransportError::UnknownMemory(key))
    }

    /// Registers memory.
    pub fn add(&self, region: Region, with: T) -> MrKey {
        let key = MrKey(self.next_key.fetch_add(1, Ordering::Relaxed));
        self.lock().insert(key, Registration { region, with });
        key
    }

    /// Forgets memory.
    ///
    /// # Errors
    ///
    /// When the key is not registered.
    pub fn remove(&self, key: MrKey) -> Result<(), TransportError> {
        self.lock().remove(&key).ok_or(TransportError::UnknownMemory(key))?;
        self.withdrawals.fetch_add(1, Ordering::Release);
        Ok(())
    }

    // A thread that panics with the lock cannot leave the map half changed.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<MrKey, Registration<T>>> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
