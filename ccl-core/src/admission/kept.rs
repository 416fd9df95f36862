//! Memory that stays registered from call to call, because its owner has promised that it stays
//! where it is.
//!
//! By its address alone no memory could be recognised: a program may give it back and get other
//! memory at the same place, and the registration would lead to what is gone. Whoever keeps memory
//! registered holds a [`Kept`], whose end is the registration's.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ccl_memory::Region;

use crate::transport::{Device, MrKey, TransportError};

/// Memory whose owner keeps it until [`Kept::end`] has returned.
#[derive(Debug)]
pub struct Kept {
    region: Region,
    state: Mutex<State>,
}

#[derive(Debug)]
enum State {
    Idle,
    Registered(Arc<dyn Device>, MrKey),
    Ended,
}

impl Kept {
    /// Memory that is registered when it is first of use.
    #[must_use]
    pub fn new(region: Region) -> Arc<Kept> {
        Arc::new(Kept { region, state: Mutex::new(State::Idle) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The owner wants its memory back: when this returns, nothing reaches it any more. Not while
    /// a call has it.
    pub fn end(&self) {
        let mut state = self.state();
        withdraw(&mut state);
        *state = State::Ended;
    }

    /// Its registration ends for now.
    fn rest(&self) {
        withdraw(&mut self.state());
    }

    fn has_ended(&self) -> bool {
        matches!(*self.state(), State::Ended)
    }

    /// Whether it is registered with a device.
    #[must_use]
    pub fn is_registered(&self) -> bool {
        matches!(*self.state(), State::Registered(..))
    }

    /// Its first byte's.
    pub(super) fn address(&self) -> usize {
        self.region.start().addr()
    }

    /// None if its owner has it back.
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

    /// Whether all of this memory lies in it.
    fn holds(&self, memory: &Region) -> bool {
        let offset = memory.start().addr().checked_sub(self.region.start().addr());
        let end = offset.and_then(|offset| offset.checked_add(memory.bytes()));
        end.is_some_and(|end| end <= self.region.bytes())
    }
}

/// Ends a registration while nobody else can look at it.
fn withdraw(state: &mut State) {
    if let State::Registered(device, key) = state {
        // A key that is unknown by now guards nothing any more.
        let _ = device.deregister(*key);
        *state = State::Idle;
    }
}

/// One that links know of.
#[derive(Debug)]
struct Entry {
    kept: Arc<Kept>,
    /// The call that used it last.
    used: u64,
}

/// What is kept registered: no more than so many bytes, of which what was used least lately goes
/// first.
#[derive(Debug)]
pub(super) struct Keeper {
    bytes_max: usize,
    entries: Vec<Entry>,
    calls: u64,
}

impl Keeper {
    pub(super) fn new(bytes_max: usize) -> Keeper {
        Keeper { bytes_max, entries: Vec::new(), calls: 0 }
    }

    pub(super) fn keep(&mut self, kept: Arc<Kept>) {
        self.entries.push(Entry { kept, used: 0 });
    }

    /// A call begins.
    pub(super) fn begin(&mut self) {
        self.calls += 1;
        self.entries.retain(|entry| !entry.kept.has_ended());
    }

    /// What holds this memory of the call's, if anything does.
    pub(super) fn find(&mut self, memory: &Region) -> Option<Arc<Kept>> {
        let entry = self.entries.iter_mut().find(|entry| entry.kept.holds(memory))?;
        entry.used = self.calls;
        Some(Arc::clone(&entry.kept))
    }

    /// Its registration; others end for it if need be. None if it is larger than all may be, or
    /// cannot be registered.
    pub(super) fn register(&mut self, kept: &Arc<Kept>, device: &Arc<dyn Device>) -> Option<MrKey> {
        if !kept.is_registered() {
            let room = self.bytes_max.checked_sub(kept.region.bytes())?;
            if self.bytes(|entry| entry.used == self.calls) > room {
                return None;
            }
            while self.bytes(|_| true) > room {
                self.evict_one()?;
            }
        }
        loop {
            match kept.register(device) {
                Ok(registered) => return registered,
                // Memory that may be locked can be short of what may be registered.
                Err(error) if error.is_shortage() => self.evict_one()?,
                Err(_) => return None,
            }
        }
    }

    /// Registered bytes of these.
    fn bytes(&self, of: impl Fn(&Entry) -> bool) -> usize {
        let registered = self.entries.iter().filter(|entry| entry.kept.is_registered());
        registered.filter(|entry| of(entry)).map(|entry| entry.kept.region.bytes()).sum()
    }

    /// Gives up what was used least lately. None if the call that runs has all that is left.
    pub(super) fn evict_one(&mut self) -> Option<()> {
        let idle = |entry: &&Entry| entry.kept.is_registered() && entry.used < self.calls;
        self.entries.iter().filter(idle).min_by_key(|entry| entry.used)?.kept.rest();
        Some(())
    }

    /// In the child of a fork, whose registrations are its parent's.
    pub(super) fn abandon(&mut self) {
        std::mem::forget(std::mem::take(&mut self.entries));
    }
}

impl Drop for Keeper {
    /// The owners may keep what they have for longer than there are links.
    fn drop(&mut self) {
        self.entries.iter().for_each(|entry| entry.kept.rest());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Instant;
    use crate::transport::{Address, Caps, Connecting, Lane, Listener, Registry, Secret};

    /// Registers memory, and nothing else.
    #[derive(Debug)]
    struct Registrar {
        registry: Registry<()>,
        /// Bytes that are registered now.
        bytes: Mutex<Vec<(MrKey, usize)>>,
    }

    fn nothing<T>() -> Result<T, TransportError> {
        Err(TransportError::Usage("this device only registers".to_owned()))
    }

    impl Device for Registrar {
        fn caps(&self) -> &Caps {
            unreachable!("nobody asks")
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
    fn what_was_used_least_lately_goes_first_and_comes_back() {
        let (registrar, device) = registrar();
        let mut keeper = Keeper::new(100);
        let kept = [40, 50, 30, 101].map(|bytes| Kept::new(Region::private(bytes)));
        kept.iter().for_each(|kept| keeper.keep(Arc::clone(kept)));
        let mut used = |at: &[usize]| -> Vec<bool> {
            keeper.begin();
            let mut use_one = |at: &usize| {
                let part = kept[*at].region.part(3, 20).unwrap();
                let found = keeper.find(&part).unwrap();
                assert!(Arc::ptr_eq(&found, &kept[*at]));
                found
            };
            let found: Vec<_> = at.iter().map(&mut use_one).collect();
            found.iter().map(|found| keeper.register(found, &device).is_some()).collect()
        };
        assert_eq!(used(&[0]), [true]);
        assert_eq!(used(&[1]), [true]);
        assert_eq!(sizes(&registrar), [40, 50]);
        assert_eq!(used(&[0]), [true]);
        assert_eq!(sizes(&registrar), [40, 50], "once is enough");
        assert_eq!(used(&[2]), [true]);
        assert_eq!(sizes(&registrar), [40, 30], "the second was used least lately");
        assert_eq!(used(&[3]), [false], "more than all may be");
        // What the call itself uses does not go for the rest of it.
        assert_eq!(used(&[0, 2, 1]), [true, true, false]);
        assert_eq!(sizes(&registrar), [40, 30]);
        assert_eq!(used(&[1]), [true]);
        assert_eq!(sizes(&registrar), [30, 50], "of equals the first");
        kept[1].end();
        assert_eq!(sizes(&registrar), [30]);
        keeper.begin();
        assert!(keeper.find(&kept[1].region).is_none(), "its owner has it back");
        assert!(keeper.find(&Region::private(8)).is_none());
        drop(keeper);
        assert_eq!(sizes(&registrar), []);
    }

    #[test]
    fn what_its_owner_has_back_is_never_registered_again() {
        let (registrar, device) = registrar();
        let mut keeper = Keeper::new(100);
        let kept = Kept::new(Region::private(60));
        keeper.keep(Arc::clone(&kept));
        keeper.begin();
        assert!(keeper.register(&kept, &device).is_some());
        kept.end();
        kept.rest();
        assert!(keeper.register(&kept, &device).is_none());
        keeper.begin();
        assert!(keeper.find(&kept.region).is_none());
        assert_eq!(sizes(&registrar), []);
    }
}
