//! Memory that a device has registered.

use std::fmt;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use ccl_core::transport::TransportError;
use ccl_memory::Region;
use rdma_sys::*;

use super::context::Domain;
use super::last;

/// Registered memory: peers may write there, if they have its key.
pub(crate) struct Memory {
    domain: Arc<Domain>,
    /// Registration in libibverbs; none once it has ended.
    memory: Mutex<Option<Handle>>,
    local_key: u32,
    remote_key: u32,
    /// The memory itself, kept alive as long as this value. The device uses the memory until the
    /// registration has ended, and libibverbs copies the bytes of inline writes from the memory.
    region: Region,
}

struct Handle(NonNull<ibv_mr>);

// SAFETY: libibverbs may be called from any thread.
unsafe impl Send for Handle {}

/// Bytes of registered memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sge(pub(super) ibv_sge);

impl Sge {
    pub(crate) fn bytes(&self) -> usize {
        self.0.length as usize
    }

    /// Returns the part from byte `start` to before `end`; none if the part holds no bytes.
    pub(crate) fn part(&self, start: usize, end: usize) -> Option<Sge> {
        let end = end.min(self.bytes());
        (start < end).then(|| {
            let ibv_sge { addr, lkey, .. } = self.0;
            Sge(ibv_sge { addr: addr + start as u64, length: (end - start) as u32, lkey })
        })
    }
}

impl Memory {
    /// Registers memory. If `relaxed`, writes may overtake each other on the PCIe bus; nothing
    /// relies on their order.
    pub(crate) fn register(
        domain: &Arc<Domain>,
        region: &Region,
        relaxed: bool,
    ) -> Result<Memory, TransportError> {
        let access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
        let (functions, start) = (domain.context.functions, region.start());
        let (address, bytes) = (start.cast(), region.bytes());
        let memory = match functions.reg_mr_iova2.filter(|_| relaxed) {
            Some(register) => {
                let access = (access | IBV_ACCESS_RELAXED_ORDERING) as u32;
                let iova = start.expose_provenance() as u64;
                // SAFETY: the region keeps the memory until the registration has ended.
                unsafe { register(domain.raw(), address, bytes, iova, access) }
            }
            // SAFETY: as above.
            None => unsafe { (functions.reg_mr)(domain.raw(), address, bytes, access) },
        };
        let memory = NonNull::new(memory).ok_or_else(|| last("ibv_reg_mr", LOCKED))?;
        // SAFETY: the registration has just been made.
        let &ibv_mr { lkey: local_key, rkey: remote_key, .. } = unsafe { memory.as_ref() };
        let (domain, region) = (Arc::clone(domain), region.clone());
        let memory = Mutex::new(Some(Handle(memory)));
        Ok(Memory { domain, memory, local_key, remote_key, region })
    }

    /// Returns the first address and the key, for peers.
    pub(crate) fn remote(&self) -> (u64, u32) {
        (self.region.start().addr() as u64, self.remote_key)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.region.bytes()
    }

    /// Returns `bytes` bytes from `offset`; none if they are not all inside the memory.
    pub(crate) fn sge(&self, offset: usize, bytes: usize) -> Option<Sge> {
        let inside = offset.checked_add(bytes).is_some_and(|end| end <= self.region.bytes());
        let length = u32::try_from(bytes).ok().filter(|_| inside)?;
        let addr = (self.region.start().addr() + offset) as u64;
        Some(Sge(ibv_sge { addr, length, lkey: self.local_key }))
    }

    /// Ends the registration: after this returns, the device no longer reads or writes the memory.
    pub(crate) fn end(&self) {
        let memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(Handle(memory)) = memory.filter(|_| self.domain.context.is_ours()) else { return };
        // SAFETY: the memory is registered, and the registration ends once.
        unsafe { (self.domain.context.functions.dereg_mr)(memory.as_ptr()) };
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Memory").field(&self.region.bytes()).finish()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.end();
    }
}

const LOCKED: &str = "if memory is short, raise the limit of locked memory: `ulimit -l unlimited` \
                      (containers: `--ulimit memlock=-1`; systemd: LimitMEMLOCK=infinity)";
