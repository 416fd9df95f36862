//! Fabrics, domains, and memory that is registered with them.

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ccl_memory::Region;
use libc::{EBADF, c_void, iovec};
use libfabric_sys::{
    FI_HMEM_SYSTEM, FI_MR_DMABUF, FI_MR_ENDPOINT, FI_MR_HMEM, FI_MR_LOCAL, FI_MR_VIRT_ADDR,
    FI_RECV, FI_REMOTE_WRITE, FI_SEND, FI_WRITE, Functions, fi_close, fi_domain, fi_mr_attr,
    fi_mr_dmabuf, fi_mr_regattr, fid_domain, fid_fabric, fid_mr,
};
use rustix::process::{Pid, getpid};

use super::{Info, OfiError, check};

/// Largest number of requests, and of receives, of an endpoint over providers other than EFA.
/// Providers allocate buffers for all of them: `ofi_rxm` takes 32 MiB and more for its default of
/// 2,048.
const MESSAGE_QUEUE_MAX: usize = 128;

/// Largest number of requests, and of receives, over EFA. Its provider allocates a packet of 9 KB
/// for each: 100 MiB for its default of 12,288.
const WRITE_QUEUE_MAX: usize = 1024;

/// Access of this side alone.
pub(crate) const LOCAL: u64 = FI_SEND | FI_RECV | FI_WRITE;
/// Access of this side and of peers that know the key.
pub(crate) const REMOTE: u64 = LOCAL | FI_REMOTE_WRITE;

/// A device that this process has opened.
#[derive(Debug)]
pub(crate) struct Domain {
    pub(super) info: Info,
    /// Copy of `info` with the low-latency traffic class, if the provider has it.
    pub(super) low_latency: Option<Info>,
    pub(super) fabric: *mut fid_fabric,
    pub(super) raw: *mut fid_domain,
    /// True if completion queues are to have a descriptor that wakes a lane. Some providers have
    /// none.
    pub(super) woken: bool,
    /// Next key to request for registered memory; some providers choose keys themselves.
    next_key: AtomicU64,
    process: Pid,
}

// SAFETY: the domain was asked for with `FI_THREAD_SAFE`: any thread may call it at any time.
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

impl Domain {
    /// Opens the device that a provider offers (`info`). With `woken`, completion queues have a
    /// descriptor that wakes a lane, unless the provider has none; a completion then costs more.
    pub(crate) fn open(mut info: Info, woken: bool) -> Result<Arc<Domain>, OfiError> {
        let most = if info.is_efa() { WRITE_QUEUE_MAX } else { MESSAGE_QUEUE_MAX };
        info.limit_queues(most);
        // The low-latency class needs a second endpoint. With `FI_MR_ENDPOINT`, memory is bound to
        // one endpoint, and peers cannot write it through the other.
        let low_latency = info.take_low_latency().filter(|info| !info.registers(FI_MR_ENDPOINT));
        let functions = info.functions;
        let mut fabric = ptr::null_mut();
        let attributes = info.info().fabric_attr;
        // SAFETY: the attributes are those of `info`, which the provider offers.
        let returned = unsafe { (functions.fabric)(attributes, &raw mut fabric, ptr::null_mut()) };
        check(functions, "fi_fabric", returned)?;
        let next_key = AtomicU64::new(1);
        let process = getpid();
        let raw = ptr::null_mut();
        let mut domain = Domain { info, low_latency, fabric, raw, woken, next_key, process };
        // SAFETY: the fabric is open, and was opened with the attributes of the same `info`.
        let returned = unsafe { fi_domain(fabric, domain.info.raw(), &raw mut domain.raw) };
        check(functions, "fi_domain", returned)?;
        Ok(Arc::new(domain))
    }

    pub(crate) fn info(&self) -> &Info {
        &self.info
    }

    /// Returns whether this process has opened the device. The child of a fork has only a copy of
    /// the device's state, and must not close the device.
    pub(super) fn is_ours(&self) -> bool {
        self.process == getpid()
    }

    /// Returns the attributes of a registration. `memory` points to the description of the memory
    /// to register: an `iovec`, or an [`fi_mr_dmabuf`].
    fn attributes(&self, memory: *const iovec, access: u64) -> fi_mr_attr {
        fi_mr_attr {
            mr_iov: memory,
            iov_count: 1,
            access,
            offset: 0,
            requested_key: self.next_key.fetch_add(1, Ordering::Relaxed),
            context: ptr::null_mut(),
            auth_key_size: 0,
            auth_key: ptr::null_mut(),
            iface: FI_HMEM_SYSTEM,
            device: 0,
            later: [0; 4],
        }
    }

    /// Returns whether memory that is sent from must be registered.
    pub(crate) fn needs_local(&self) -> bool {
        self.info.registers(FI_MR_LOCAL | FI_MR_HMEM)
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        if !self.is_ours() {
            return;
        }
        if !self.raw.is_null() {
            // SAFETY: all objects that depend on the domain hold it, so none of them is left.
            unsafe { fi_close(self.raw.cast()) };
        }
        // SAFETY: only the domain depends on the fabric; the domain is closed, or was never opened.
        unsafe { fi_close(self.fabric.cast()) };
    }
}

/// Memory that a domain may send from, receive into, and let peers write.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) region: Region,
    pub(super) raw: *mut fid_mr,
    domain: Arc<Domain>,
}

// SAFETY: as for the domain: any thread may call its objects at any time.
unsafe impl Send for Memory {}
// SAFETY: as for the domain: any thread may call its objects at any time.
unsafe impl Sync for Memory {}

/// Returns whether a provider registers DMA-bufs (`FI_MR_DMABUF`), files of the kernel that stand
/// for accelerator memory.
///
/// No accelerator is needed: the registration names a file that is not open. A provider that knows
/// the flag either passes the file to the kernel, which refuses it (`EBADF`), or ignores the file
/// because the provider copies with the CPU. Other providers refuse the flag.
pub(crate) fn registers_dma_bufs(functions: &'static Functions, provider: &str) -> bool {
    let Ok(Some(info)) = Info::for_dma_bufs(functions, provider) else { return false };
    let Ok(domain) = Domain::open(info, false) else { return false };
    let (fd, len) = (-1, 4096);
    let memory = fi_mr_dmabuf { fd, offset: 0, len, base_addr: ptr::null_mut() };
    let attributes = domain.attributes((&raw const memory).cast(), LOCAL);
    let mut raw: *mut fid_mr = ptr::null_mut();
    // SAFETY: the domain is open, and no request uses the registration.
    let returned =
        unsafe { fi_mr_regattr(domain.raw, &raw const attributes, FI_MR_DMABUF, &raw mut raw) };
    if !raw.is_null() {
        // SAFETY: it was registered, and nothing uses it.
        unsafe { fi_close(raw.cast()) };
    }
    [0, -EBADF].contains(&returned)
}

impl Memory {
    /// Registers memory for these kinds of access.
    pub(crate) fn register(
        domain: &Arc<Domain>,
        region: Region,
        access: u64,
    ) -> Result<Memory, OfiError> {
        let range = iovec { iov_base: region.start().cast(), iov_len: region.bytes() };
        let attributes = domain.attributes(&raw const range, access);
        let mut raw = ptr::null_mut();
        // SAFETY: `Memory` holds the region, and so the bytes, until the registration is closed.
        let returned = unsafe { fi_mr_regattr(domain.raw, &raw const attributes, 0, &raw mut raw) };
        check(domain.info.functions, "fi_mr_regattr", returned)?;
        Ok(Memory { region, raw, domain: Arc::clone(domain) })
    }

    /// Returns the memory's descriptor for requests of this side.
    pub(crate) fn descriptor(&self) -> *mut c_void {
        // SAFETY: the registration is open.
        unsafe { (*self.raw).mem_desc }
    }

    /// Returns the address and the key that a peer needs to write the memory. The address is 0 if
    /// the provider addresses memory by offsets from its start.
    pub(crate) fn remote(&self) -> (u64, u64) {
        let by_address = self.domain.info.registers(FI_MR_VIRT_ADDR);
        let address = if by_address { self.region.start().expose_provenance() as u64 } else { 0 };
        // SAFETY: the registration is open.
        (address, unsafe { (*self.raw).key })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if !self.domain.is_ours() {
            return;
        }
        // SAFETY: the owner of the memory has no request under way that names it.
        unsafe { fi_close(self.raw.cast()) };
    }
}
