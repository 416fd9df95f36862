//! Registered memory of a device, and each peer's access to it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ccl_core::encoding;
use ccl_core::transport::{EndpointId, Imported, RemoteKey, TransportError};
use ccl_memory::Region;
use ccl_socket::LinkId;
use serde::{Deserialize, Serialize};

use crate::native::{Domain, LOCAL, Memory, OfiError, REMOTE, transport_error};

/// Registrations that peers write to, one per peer. A peer is identified by the number of this
/// side's lane, and by the peer's [`EndpointId`] on that lane.
type Shares = BTreeMap<(u64, EndpointId), Memory>;

/// Registered memory, with a separate registration for each peer that it is shared with. The key of
/// such a registration is valid only while the link to the peer exists. Datagram endpoints have no
/// connections, so nothing but the keys keeps a peer out.
#[derive(Debug)]
pub(crate) struct Registered {
    region: Region,
    domain: Arc<Domain>,
    /// Registration that this side sends from; none where the provider needs none.
    local: Mutex<Option<Memory>>,
    /// Descriptor of the registration that this side sends from, valid while there is one; null if
    /// the provider needs none. Atomic only so that threads can share it.
    descriptor: AtomicPtr<libc::c_void>,
    shares: Mutex<Shares>,
    is_ended: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Registered {
    pub(crate) fn new(
        domain: &Arc<Domain>,
        region: &Region,
    ) -> Result<Arc<Registered>, TransportError> {
        let local = match domain.needs_local() {
            true => Some(Memory::register(domain, region.clone(), LOCAL).map_err(transport_error)?),
            false => None,
        };
        Ok(Arc::new(Registered {
            region: region.clone(),
            domain: Arc::clone(domain),
            descriptor: AtomicPtr::new(
                local.as_ref().map_or(std::ptr::null_mut(), Memory::descriptor),
            ),
            local: Mutex::new(local),
            shares: Mutex::default(),
            is_ended: AtomicBool::new(false),
        }))
    }

    /// Returns the memory's descriptor for this side's puts. The provider may get it only under the
    /// lock of the lane's `Posted`, after a check under that lock that the memory has not
    /// [ended](Registered::is_ended).
    pub(crate) fn descriptor(&self) -> *mut libc::c_void {
        self.descriptor.load(Ordering::Relaxed)
    }

    /// Lets a peer write the memory; returns address and key. `expose` is called for a new
    /// registration.
    pub(crate) fn share(
        &self,
        lane: u64,
        endpoint: EndpointId,
        expose: impl FnOnce(&Memory) -> Result<(), OfiError>,
    ) -> Result<(u64, u64), TransportError> {
        let mut shares = lock(&self.shares);
        if let Some(shared) = shares.get(&(lane, endpoint)) {
            return Ok(shared.remote());
        }
        let memory =
            Memory::register(&self.domain, self.region.clone(), REMOTE).map_err(transport_error)?;
        expose(&memory).map_err(transport_error)?;
        let remote = memory.remote();
        shares.insert((lane, endpoint), memory);
        Ok(remote)
    }

    /// Ends a peer's access to the memory.
    pub(crate) fn unshare(&self, lane: u64, endpoint: EndpointId) {
        lock(&self.shares).remove(&(lane, endpoint));
    }

    /// Ends the registrations that peers write to, and marks the memory as deregistered: from now
    /// on, this side hands the provider no requests that name the memory.
    pub(crate) fn end(&self) {
        self.is_ended.store(true, Ordering::Release);
        lock(&self.shares).clear();
    }

    /// Ends the registration that this side sends from. The provider must have no request
    /// that names it.
    pub(crate) fn end_local(&self) {
        lock(&self.local).take();
    }

    /// Returns whether the memory was deregistered.
    pub(crate) fn is_ended(&self) -> bool {
        self.is_ended.load(Ordering::Acquire)
    }

    pub(crate) fn region(&self) -> &Region {
        &self.region
    }

    pub(crate) fn bytes(&self) -> usize {
        self.region.bytes()
    }
}

/// Content of a key: memory that a peer may write to over one link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Shared {
    pub(crate) link: LinkId,
    /// True if the side that shares this memory has dialled the link.
    pub(crate) dialled: bool,
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    pub(crate) key: u64,
}

impl Imported for Shared {
    fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Shared {
    pub(crate) fn encode(&self) -> RemoteKey {
        RemoteKey(encoding::encode(self))
    }

    pub(crate) fn decode(key: &RemoteKey) -> Option<Shared> {
        let shared: Shared = encoding::decode(&key.0).ok()?;
        shared.address.checked_add(shared.bytes).map(|_| shared)
    }
}
