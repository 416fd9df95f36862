//! Memory that stays registered from call to call, because its owner has promised that it stays
//! where it is.
//!
//! By its address alone no memory could be recognised: a program may give it back and get other
//! memory at the same place, and the registration would lead to what is gone. Whoever keeps memory
//! registered holds a [`Kept`], whose end is the registration's.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ccl_memory::Region;

use crate::transport::{Device, MrKey, RemoteKey};
use crate::types::Rank;

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
        self.leave(State::Ended);
    }

    fn leave(&self, to: State) {
        let left = std::mem::replace(&mut *self.state(), to);
        if let State::Registered(device, key) = left {
            // A key that is unknown by now guards nothing any more.
            let _ = device.deregister(key);
        }
    }

    fn has_ended(&self) -> bool {
        matches!(*self.state(), State::Ended)
    }

    /// Whether it is registered with a device.
    #[must_use]
    pub fn is_registered(&self) -> bool {
        matches!(*self.state(), State::Registered(..))
    }

    fn register(&self, device: &Arc<dyn Device>) -> Option<MrKey> {
        let mut state = self.state();
        match &*state {
            State::Registered(_, key) => Some(*key),
            State::Ended => None,
            State::Idle => {
                let key = device.register(&self.region).ok()?;
                *state = State::Registered(Arc::clone(device), key);
                Some(key)
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

/// One that links know of.
#[derive(Debug)]
struct Entry {
    kept: Arc<Kept>,
    /// The call that used it last.
    used: u64,
    /// How peers know it, as long as it is registered.
    shared: Vec<(Rank, RemoteKey)>,
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
        self.entries.push(Entry { kept, used: 0, shared: Vec::new() });
    }

    /// A call begins.
    pub(super) fn begin(&mut self) {
        self.calls += 1;
        self.entries.retain(|entry| !entry.kept.has_ended());
    }

    /// What holds this memory of the call's, if anything does.
    pub(super) fn find(&mut self, memory: &Region) -> Option<(Arc<Kept>, Region)> {
        let calls = self.calls;
        let entry = self.entries.iter_mut().find(|entry| entry.kept.holds(memory))?;
        entry.used = calls;
        Some((Arc::clone(&entry.kept), entry.kept.region.clone()))
    }

    /// Its registration; others end for it if need be. None if it is larger than all may be, or
    /// cannot be registered.
    pub(super) fn register(&mut self, kept: &Arc<Kept>, device: &Arc<dyn Device>) -> Option<MrKey> {
        if !kept.is_registered() {
            let room = self.bytes_max.checked_sub(kept.region.bytes())?;
            while self.registered_bytes() > room {
                self.evict_one()?;
            }
        }
        kept.register(device)
    }

    fn registered_bytes(&self) -> usize {
        let registered = self.entries.iter().filter(|entry| entry.kept.is_registered());
        registered.map(|entry| entry.kept.region.bytes()).sum()
    }

    /// None if the call that runs has all that is left.
    fn evict_one(&mut self) -> Option<()> {
        let idle = |entry: &&mut Entry| entry.kept.is_registered() && entry.used < self.calls;
        let idle = self.entries.iter_mut().filter(idle).min_by_key(|entry| entry.used)?;
        idle.shared.clear();
        idle.kept.leave(State::Idle);
        Some(())
    }

    pub(super) fn shared(&self, kept: &Arc<Kept>, rank: Rank) -> Option<RemoteKey> {
        let entry = self.entries.iter().find(|entry| Arc::ptr_eq(&entry.kept, kept))?;
        entry.shared.iter().find(|(peer, _)| *peer == rank).map(|(_, key)| key.clone())
    }

    pub(super) fn share(&mut self, kept: &Arc<Kept>, rank: Rank, key: RemoteKey) {
        let entry = self.entries.iter_mut().find(|entry| Arc::ptr_eq(&entry.kept, kept));
        entry.into_iter().for_each(|entry| entry.shared.push((rank, key.clone())));
    }

    /// A peer is gone, and with it what it was told.
    pub(super) fn forget(&mut self, rank: Rank) {
        self.entries.iter_mut().for_each(|entry| entry.shared.retain(|(peer, _)| *peer != rank));
    }

    /// In the child of a fork, whose registrations are its parent's.
    pub(super) fn abandon(&mut self) {
        std::mem::forget(std::mem::take(&mut self.entries));
    }
}

impl Drop for Keeper {
    /// The owners may keep what they have for longer than there are links.
    fn drop(&mut self) {
        for entry in &self.entries {
            if entry.kept.is_registered() {
                entry.kept.leave(State::Idle);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Instant;
    use crate::transport::{
        Address, Caps, Connecting, Lane, Listener, Registry, Secret, TransportError,
    };

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
                let (found, region) = keeper.find(&part).unwrap();
                assert_eq!(region.bytes(), kept[*at].region.bytes());
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
    fn what_a_peer_was_told_ends_with_the_registration_and_with_the_peer() {
        let (_, device) = registrar();
        let mut keeper = Keeper::new(100);
        let kept = [60, 60].map(|bytes| Kept::new(Region::private(bytes)));
        kept.iter().for_each(|kept| keeper.keep(Arc::clone(kept)));
        let used = |keeper: &mut Keeper, at: usize| {
            keeper.begin();
            let (found, _) = keeper.find(&kept[at].region).unwrap();
            keeper.register(&found, &device).unwrap()
        };
        used(&mut keeper, 0);
        for rank in [1, 2] {
            keeper.share(&kept[0], rank, RemoteKey(vec![rank as u8]));
        }
        assert_eq!(keeper.shared(&kept[0], 2), Some(RemoteKey(vec![2])));
        keeper.forget(1);
        assert_eq!(keeper.shared(&kept[0], 1), None);
        used(&mut keeper, 1);
        assert_eq!(keeper.shared(&kept[0], 2), None, "the key is void");
    }
}
