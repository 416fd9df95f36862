//! The device: registered memory, and the maker of everything else.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ccl_core::time::Instant;
use ccl_core::transport::{
    Address, Caps, Connecting, Device, Lane, Listener, MrKey, Secret, TransportError,
};
use ccl_memory::Region;

use crate::address::{self, Place};
use crate::endpoint::{ShmConnecting, ShmListener};
use crate::handshake::RING;
use crate::lane::ShmLane;
use crate::memory::{self, Segment};

/// What the device can do.
pub(crate) fn caps() -> Caps {
    Caps {
        mapped: true,
        ordered: true,
        // A length travels in 32 bits.
        message_bytes_max: 1 << 31,
        depth_max: RING.slots as usize,
        bandwidth_bytes_per_s: 1.0e10,
        latency_ns: 200,
    }
}

/// Memory that puts may read, and that can be shared if it has a descriptor.
#[derive(Clone, Debug)]
pub(crate) struct Registration {
    pub(crate) region: Region,
    pub(crate) file: Option<Arc<OwnedFd>>,
}

/// The registered memory of one device.
#[derive(Debug)]
pub(crate) struct Registry {
    /// Tells this device's connections from another's.
    pub(crate) device: u64,
    next_key: AtomicU64,
    withdrawals: AtomicU64,
    memory: Mutex<BTreeMap<MrKey, Registration>>,
}

impl Registry {
    fn new() -> Registry {
        static DEVICES: AtomicU64 = AtomicU64::new(0);
        Registry {
            device: DEVICES.fetch_add(1, Ordering::Relaxed),
            next_key: AtomicU64::new(1),
            withdrawals: AtomicU64::new(0),
            memory: Mutex::default(),
        }
    }

    /// Grows with every deregistration: what a lane remembers from before is void.
    pub(crate) fn withdrawals(&self) -> u64 {
        self.withdrawals.load(Ordering::Acquire)
    }

    /// What a key stands for.
    pub(crate) fn find(&self, key: MrKey) -> Result<Registration, TransportError> {
        self.lock().get(&key).cloned().ok_or_else(|| unknown(key))
    }

    // Nothing in the map can be half changed when a thread dies with the lock.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<MrKey, Registration>> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, registration: Registration) -> MrKey {
        let key = MrKey(self.next_key.fetch_add(1, Ordering::Relaxed));
        self.lock().insert(key, registration);
        key
    }

    fn remove(&self, key: MrKey) -> Result<(), TransportError> {
        self.lock().remove(&key).ok_or_else(|| unknown(key))?;
        self.withdrawals.fetch_add(1, Ordering::Release);
        Ok(())
    }
}

fn unknown(key: MrKey) -> TransportError {
    let MrKey(key) = key;
    TransportError::Usage(format!(
        "memory key {key} is not registered with the shared memory device"
    ))
}

/// The shared memory of this host.
#[derive(Debug)]
pub struct ShmDevice {
    caps: Caps,
    place: Place,
    registry: Arc<Registry>,
}

impl ShmDevice {
    pub(crate) fn open() -> Result<ShmDevice, TransportError> {
        let place = Place::here()?;
        Ok(ShmDevice { caps: caps(), place, registry: Arc::new(Registry::new()) })
    }
}

impl Device for ShmDevice {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn allocate(&self, bytes: usize) -> Result<(Region, MrKey), TransportError> {
        let Segment { file, region } = memory::allocate(bytes)?;
        let file = Some(Arc::new(file));
        let key = self.registry.add(Registration { region: region.clone(), file });
        Ok((region, key))
    }

    fn register(&self, region: &Region) -> Result<MrKey, TransportError> {
        Ok(self.registry.add(Registration { region: region.clone(), file: None }))
    }

    fn deregister(&self, key: MrKey) -> Result<(), TransportError> {
        self.registry.remove(key)
    }

    fn listen(&self, secret: &Secret) -> Result<Box<dyn Listener>, TransportError> {
        Ok(Box::new(ShmListener::new(self.registry.device, self.place, secret)?))
    }

    fn connect(
        &self,
        address: &Address,
        secret: &Secret,
        hello: &[u8],
        deadline: Instant,
    ) -> Result<Box<dyn Connecting>, TransportError> {
        let name = address::decode(address, self.place)?;
        let device = self.registry.device;
        Ok(Box::new(ShmConnecting::new(device, name, secret, hello, deadline)?))
    }

    fn lane(&self) -> Result<Box<dyn Lane>, TransportError> {
        Ok(Box::new(ShmLane::new(Arc::clone(&self.registry))))
    }
}
