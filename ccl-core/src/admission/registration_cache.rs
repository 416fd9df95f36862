//! Registration cache: memory that stays registered from call to call, because its owner promises
//! to keep it in place.
//!
//! A cache keyed by address alone would be wrong: a program may free memory and get other memory at
//! the same address, and the registration would still refer to the freed memory. The owner
//! therefore holds a [`CachedMemory`], and ends the registration before freeing the memory.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ccl_memory::Region;

use crate::transport::{Device, MrKey, TransportError};

/// Memory whose owner keeps it until [`CachedMemory::end`] has returned.
#[derive(Debug)]
pub struct CachedMemory {
    region: Region,
    state: Mutex<State>,
}

#[derive(Debug)]
enum State {
    Idle,
    Registered(Arc<dyn Device>, MrKey),
    Ended,
}

impl CachedMemory {
    /// Returns memory that is registered when a call first uses it.
    #[must_use]
    pub fn new(region: Region) -> Arc<CachedMemory> {
        Arc::new(CachedMemory { region, state: Mutex::new(State::Idle) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the registration for good: when this returns, no device reaches the memory any more.
    /// Must not be called while a call uses the memory.
    pub fn end(&self) {
        let mut state = self.state();
        withdraw(&mut state);
        *state = State::Ended;
    }

    /// Ends the registration until a call uses the memory again.
    fn rest(&self) {
        withdraw(&mut self.state());
    }

    fn has_ended(&self) -> bool {
        matches!(*self.state(), State::Ended)
    }

    /// Returns whether the memory is registered with a device.
    #[must_use]
    pub fn is_registered(&self) -> bool {
        matches!(*self.state(), State::Registered(..))
    }

    /// Returns the first address of the memory.
    pub(super) fn address(&self) -> usize {
        self.region.start().addr()
    }

    /// Registers the memory, if it is not registered yet. Returns none if the owner of the memory
    /// has called [`CachedMemory::end`].
    fn register(&self, device: &Arc<dyn Device>) -> Result<Option<MrKey>, TransportError> {
        let mut state = self.state();
        match &*state {
            State::Registered(_, key) => Ok(Some(*key)),
            State::Ended => Ok(None),
            State::Idle => {
                let key = device.register(&self.region)?;
                *state = State::Registered(Arc::clone(device), key);
                Ok(Some(key))
            }
        }
    }

    /// Returns whether all of `memory` lies in this memory.
    fn holds(&self, memory: &Region) -> bool {
        let offset = memory.start().addr().checked_sub(self.region.start().addr());
        let end = offset.and_then(|offset| offset.checked_add(memory.bytes()));
        end.is_some_and(|end| end <= self.region.bytes())
    }
}

/// Ends a registration. The caller holds the lock of the state.
fn withdraw(state: &mut State) {
    if let State::Registered(device, key) = state {
        // If the key is unknown, its registration has ended already.
        let _ = device.deregister(*key);
        *state = State::Idle;
    }
}

/// Memory in the cache.
#[derive(Debug)]
struct Entry {
    cached: Arc<CachedMemory>,
    /// Number of the call that used the memory last.
    used: u64,
}

/// Registrations of a rank's links, at most `bytes_max` bytes together; the least recently used is
/// evicted first.
#[derive(Debug)]
pub(super) struct RegistrationCache {
    bytes_max: usize,
    entries: Vec<Entry>,
    calls: u64,
}

impl RegistrationCache {
    pub(super) fn new(bytes_max: usize) -> RegistrationCache {
        RegistrationCache { bytes_max, entries: Vec::new(), calls: 0 }
    }

    pub(super) fn add(&mut self, cached: Arc<CachedMemory>) {
        // `begin` drops ended entries, too, but a call without large memory does not call `begin`.
        self.entries.retain(|entry| !entry.cached.has_ended());
        self.entries.push(Entry { cached, used: 0 });
    }

    /// Begins a call.
    pub(super) fn begin(&mut self) {
        self.calls += 1;
        self.entries.retain(|entry| !entry.cached.has_ended());
    }

    /// Ends the call: from now on, registrations that the call used may be evicted.
    pub(super) fn end(&mut self) {
        self.calls += 1;
    }

    /// Returns the cached memory that holds this memory of the call, if any.
    pub(super) fn find(&mut self, memory: &Region) -> Option<Arc<CachedMemory>> {
        let entry = self.entries.iter_mut().find(|entry| entry.cached.holds(memory))?;
        entry.used = self.calls;
        Some(Arc::clone(&entry.cached))
    }

    /// Registers cached memory, and evicts other registrations if needed. Returns none if the
    /// memory does not fit into the cache, or cannot be registered.
    pub(super) fn register(
        &mut self,
        cached: &Arc<CachedMemory>,
        device: &Arc<dyn Device>,
    ) -> Option<MrKey> {
        if !cached.is_registered() {
            let room = self.bytes_max.checked_sub(cached.region.bytes())?;
            if self.bytes(|entry| entry.used == self.calls) > room {
                return None;
            }
            while self.bytes(|_| true) > room {
                self.evict_one()?;
            }
        }
        loop {
            match cached.register(device) {
                Ok(registered) => return registered,
                // The limit on locked memory may be below the limit of the cache.
                Err(error) if error.is_shortage() => self.evict_one()?,
                Err(_) => return None,
            }
        }
    }

    /// Returns the registered bytes of the entries that `of` accepts.
    fn bytes(&self, of: impl Fn(&Entry) -> bool) -> usize {
        let registered = self.entries.iter().filter(|entry| entry.cached.is_registered());
        registered.filter(|entry| of(entry)).map(|entry| entry.cached.region.bytes()).sum()
    }

    /// Evicts the least recently used registration. Returns none if the current call uses all
    /// registrations.
    pub(super) fn evict_one(&mut self) -> Option<()> {
        let idle = |entry: &&Entry| entry.cached.is_registered() && entry.used < self.calls;
        self.entries.iter().filter(idle).min_by_key(|entry| entry.used)?.cached.rest();
        Some(())
    }

    /// Forgets all registrations: in the child of a fork, they belong to the parent.
    pub(super) fn abandon(&mut self) {
        std::mem::forget(std::mem::take(&mut self.entries));
    }
}

impl Drop for RegistrationCache {
    /// Ends the registrations: owners may keep their memory for longer than the links exist.
    fn drop(&mut self) {
        self.entries.iter().for_each(|entry| entry.cached.rest());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Instant;
    use crate::transport::{Address, Caps, Connecting, Lane, Listener, Registry, Secret};

    /// A device that can only register memory.
    #[derive(Debug)]
    struct Registrar {
        registry: Registry<()>,
        /// Key and size of each region that is registered now.
        bytes: Mutex<Vec<(MrKey, usize)>>,
    }

    fn nothing<T>() -> Result<T, TransportError> {
        Err(TransportError::Unsupported { what: "do more", reason: "this device only registers" })
    }

    impl Device for Registrar {
        fn caps(&self) -> &Caps {
            unreachable!("the cache reads no capabilities")
        }

        fn allocate(&self, _: usize) -> Result<(Region, MrKey), TransportError> {
            nothing()
        }

        fn register(&self, region: &Region) -> Result<MrKey, TransportError> {
            let key = self.registry.add(region.clone(), ());
            self.bytes.lock().unwrap().push((key, region.bytes()));
            Ok(key)
        }

        fn deregister(&self, key: MrKey) -> Result<(), TransportError> {
            self.bytes.lock().unwrap().retain(|(known, _)| *known != key);
            self.registry.remove(key)
        }

        fn listen(&self, _: &Secret) -> Result<Box<dyn Listener>, TransportError> {
            nothing()
        }

        fn connect(
            &self,
            _: &Address,
            _: &Secret,
            _: &[u8],
            _: Instant,
        ) -> Result<Box<dyn Connecting>, TransportError> {
            nothing()
        }

        fn lane(&self) -> Result<Box<dyn Lane>, TransportError> {
            nothing()
        }
    }

    fn registrar() -> (Arc<Registrar>, Arc<dyn Device>) {
        let registrar = Arc::new(Registrar { registry: Registry::new(), bytes: Mutex::default() });
        (Arc::clone(&registrar), registrar)
    }

    fn sizes(registrar: &Registrar) -> Vec<usize> {
        registrar.bytes.lock().unwrap().iter().map(|(_, bytes)| *bytes).collect()
    }

    #[test]
    fn the_least_recently_used_buffer_is_evicted_and_registered_again_on_use() {
        let (registrar, device) = registrar();
        let mut registrations = RegistrationCache::new(100);
        let cached = [40, 50, 30, 101].map(|bytes| CachedMemory::new(Region::private(bytes)));
        cached.iter().for_each(|each| registrations.add(Arc::clone(each)));
        let mut used = |at: &[usize]| -> Vec<bool> {
            registrations.begin();
            let mut use_one = |at: &usize| {
                let part = cached[*at].region.part(3, 20).unwrap();
                let found = registrations.find(&part).unwrap();
                assert!(Arc::ptr_eq(&found, &cached[*at]));
                found
            };
            let found: Vec<_> = at.iter().map(&mut use_one).collect();
            found.iter().map(|found| registrations.register(found, &device).is_some()).collect()
        };
        assert_eq!(used(&[0]), [true]);
        assert_eq!(used(&[1]), [true]);
        assert_eq!(sizes(&registrar), [40, 50]);
        assert_eq!(used(&[0]), [true]);
        assert_eq!(sizes(&registrar), [40, 50], "a buffer must be registered once");
        assert_eq!(used(&[2]), [true]);
        assert_eq!(sizes(&registrar), [40, 30], "buffer 1 is the least recently used");
        assert_eq!(used(&[3]), [false], "the buffer exceeds the limit");
        // Memory of the current call is not evicted.
        assert_eq!(used(&[0, 2, 1]), [true, true, false]);
        assert_eq!(sizes(&registrar), [40, 30]);
        assert_eq!(used(&[1]), [true]);
        assert_eq!(sizes(&registrar), [30, 50], "of equally old buffers, the first is evicted");
        assert_eq!(registrations.evict_one(), Some(()));
        assert_eq!(registrations.evict_one(), None, "the call uses the only buffer left");
        registrations.end();
        assert_eq!(registrations.evict_one(), Some(()));
        assert_eq!(sizes(&registrar), []);
        cached[1].end();
        registrations.add(CachedMemory::new(Region::private(8)));
        assert_eq!(registrations.entries.len(), 4, "an ended entry must be dropped");
        registrations.begin();
        assert!(registrations.find(&cached[1].region).is_none(), "an ended buffer was found");
        assert!(registrations.find(&Region::private(8)).is_none());
        drop(registrations);
        assert_eq!(sizes(&registrar), []);
    }

    #[test]
    fn memory_is_never_registered_again_after_its_owner_ended_the_registration() {
        let (registrar, device) = registrar();
        let mut registrations = RegistrationCache::new(100);
        let cached = CachedMemory::new(Region::private(60));
        registrations.add(Arc::clone(&cached));
        registrations.begin();
        assert!(registrations.register(&cached, &device).is_some());
        cached.end();
        cached.rest();
        assert!(registrations.register(&cached, &device).is_none());
        registrations.begin();
        assert!(registrations.find(&cached.region).is_none());
        assert_eq!(sizes(&registrar), []);
    }
}
