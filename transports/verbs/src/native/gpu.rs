//! Memory of GPUs, which a port reads and writes past the host's memory: through a dma-buf, which
//! the GPU's driver hands out for it, or through a module of the kernel that knows its pages
//! (`nvidia_peermem`).
//!
//! Both are tried, and what works is told: no version of a driver says it for sure. Nothing here
//! has run on a GPU yet; the tests stand in for both drivers.

use std::fmt;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

use ccl_core::transport::TransportError;
use libc::{c_int, c_ulonglong, c_void, size_t};
use libloading::Library;
use rdma_sys::*;

use super::context::Domain;
use super::{failure, forget_errors, last};

const LIBRARY: &str = "libcuda.so.1";
/// `CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD` of cuda.h.
const DMA_BUF_FD: c_int = 1;

/// What is needed of the GPU's driver (CUDA's driver API).
#[derive(Clone, Copy, Debug)]
pub struct GpuDriver {
    /// `cuMemGetHandleForAddressRange`: a handle to memory of the current context.
    pub handle_for_range:
        unsafe extern "C" fn(*mut c_void, c_ulonglong, size_t, c_int, c_ulonglong) -> c_int,
}

impl GpuDriver {
    /// The driver of this machine, opened when it is first asked for.
    ///
    /// # Errors
    ///
    /// When there is none, or it is too old for dma-bufs (CUDA 11.7).
    pub fn system() -> Result<&'static GpuDriver, &'static str> {
        static SYSTEM: OnceLock<Result<GpuDriver, String>> = OnceLock::new();
        SYSTEM.get_or_init(GpuDriver::load).as_ref().map_err(String::as_str)
    }

    fn load() -> Result<GpuDriver, String> {
        // SAFETY: its initialisers are those of a library that programs for GPUs load anyway.
        let library = unsafe { Library::new(LIBRARY) };
        let library = library.map_err(|error| format!("{LIBRARY} cannot be opened: {error}"))?;
        // SAFETY: cuda.h declares this function so.
        let found = unsafe { library.get(b"cuMemGetHandleForAddressRange\0") };
        let found = found.map(|found| *found);
        let handle_for_range =
            found.map_err(|_| format!("{LIBRARY} hands out no dma-bufs; it is older than 11.7"))?;
        // Others use it as well, until the process ends.
        std::mem::forget(library);
        Ok(GpuDriver { handle_for_range })
    }

    /// A dma-buf of whole pages around this memory, and where in it the memory begins.
    fn dma_buf(&self, memory: &GpuMemory) -> Result<(OwnedFd, u64), TransportError> {
        // Handles are of whole pages of the host.
        let page_bytes = rustix::param::page_size() as u64;
        let first = memory.address / page_bytes * page_bytes;
        let end = (memory.address + memory.bytes as u64).next_multiple_of(page_bytes);
        let mut descriptor: c_int = -1;
        let into = (&raw mut descriptor).cast::<c_void>();
        // SAFETY: it writes one descriptor to where there is room for one.
        let code =
            unsafe { (self.handle_for_range)(into, first, (end - first) as size_t, DMA_BUF_FD, 0) };
        if code != 0 || descriptor < 0 {
            return Err(TransportError::Usage(format!(
                "cuMemGetHandleForAddressRange failed with error {code} of CUDA"
            )));
        }
        // SAFETY: the driver has made it for its caller.
        let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
        Ok((descriptor, memory.address - first))
    }
}

/// Memory of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuMemory {
    /// Which GPU, for messages.
    pub gpu: u32,
    /// Its first byte, as the GPU's driver counts.
    pub address: u64,
    /// Bytes, at least one.
    pub bytes: usize,
}

/// How a port reaches the memory of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GpuPath {
    /// The GPU's driver hands its pages out.
    DmaBuf,
    /// A module of the kernel knows them.
    PeerMemory,
}

impl fmt::Display for GpuPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            GpuPath::DmaBuf => "dma-buf",
            GpuPath::PeerMemory => "peer memory",
        })
    }
}

/// Memory of a GPU that a port knows, until this is dropped. It can be written by peers that have
/// its key; short puts must not be handed to the device with their bytes, which the processor
/// cannot read.
pub struct GpuRegistration {
    domain: Arc<Domain>,
    handle: NonNull<ibv_mr>,
    memory: GpuMemory,
    path: GpuPath,
    port: String,
}

// SAFETY: the library locks what its threads share.
unsafe impl Send for GpuRegistration {}
// SAFETY: as above.
unsafe impl Sync for GpuRegistration {}

impl GpuRegistration {
    /// Registers memory of a GPU with the port of that name: through a dma-buf if both drivers can,
    /// else through the kernel's module.
    ///
    /// # Safety
    ///
    /// The memory is the GPU's, in the context that is current for the calling thread, and stays
    /// until this is dropped.
    pub(crate) unsafe fn new(
        domain: &Arc<Domain>,
        port: String,
        driver: Result<&GpuDriver, &str>,
        memory: GpuMemory,
    ) -> Result<GpuRegistration, TransportError> {
        let GpuMemory { gpu, bytes, .. } = memory;
        if bytes == 0 || memory.address.checked_add(bytes as u64).is_none_or(|end| end > 1 << 63) {
            return Err(TransportError::Usage(format!(
                "{bytes} bytes of GPU {gpu}: none, or too many"
            )));
        }
        let text = |error: TransportError| error.to_string();
        let shared = driver.map_err(str::to_owned).and_then(|driver| {
            let (descriptor, offset) = driver.dma_buf(&memory).map_err(text)?;
            // SAFETY: the caller's promise.
            unsafe { through_dma_buf(domain, &memory, &descriptor, offset) }.map_err(text)
        });
        let made = match shared {
            Ok(handle) => Ok((handle, GpuPath::DmaBuf)),
            // SAFETY: the caller's promise.
            Err(no_dma_buf) => match unsafe { through_peer_memory(domain, &memory) } {
                Ok(handle) => Ok((handle, GpuPath::PeerMemory)),
                Err(no_peer) => Err(TransportError::Usage(format!(
                    "GPU {gpu} + {port}: neither dma-buf ({no_dma_buf}) nor peer memory \
                     ({no_peer}); what is sent goes through the host's memory. Use a driver and a \
                     kernel that know dma-bufs (CUDA 11.7, Linux 5.12), or load nvidia_peermem"
                ))),
            },
        };
        let (handle, path) = made?;
        Ok(GpuRegistration { domain: Arc::clone(domain), handle, memory, path, port })
    }

    /// How the port reaches it.
    #[must_use]
    pub fn path(&self) -> GpuPath {
        self.path
    }

    /// The same for people: `GPU 3 + mlx5_2:1: dma-buf`.
    #[must_use]
    pub fn report(&self) -> String {
        format!("GPU {} + {}: {}", self.memory.gpu, self.port, self.path)
    }

    /// For work requests of this side, and of peers.
    #[must_use]
    pub fn keys(&self) -> (u32, u32) {
        // SAFETY: it is registered.
        let memory = unsafe { self.handle.as_ref() };
        (memory.lkey, memory.rkey)
    }
}

/// # Safety
///
/// The memory stays as long as the registration.
unsafe fn through_dma_buf(
    domain: &Arc<Domain>,
    memory: &GpuMemory,
    descriptor: &OwnedFd,
    offset: u64,
) -> Result<NonNull<ibv_mr>, TransportError> {
    const CALL: &str = "ibv_reg_dmabuf_mr";
    const ADVICE: &str = "the RDMA driver or the kernel knows no dma-bufs";
    let Some(register) = domain.context.functions.reg_dmabuf_mr else {
        return Err(failure(CALL, libc::ENOSYS, ADVICE));
    };
    let (address, bytes) = (memory.address, memory.bytes);
    forget_errors();
    // SAFETY: the descriptor is open, and holds so many bytes from there on.
    let made =
        unsafe { register(domain.raw(), offset, bytes, address, descriptor.as_raw_fd(), ACCESS) };
    NonNull::new(made).ok_or_else(|| last(CALL, ADVICE))
}

/// # Safety
///
/// As above.
unsafe fn through_peer_memory(
    domain: &Arc<Domain>,
    memory: &GpuMemory,
) -> Result<NonNull<ibv_mr>, TransportError> {
    let address = std::ptr::without_provenance_mut(memory.address as usize);
    forget_errors();
    // SAFETY: nobody reads there but the device, if the kernel knows the memory at all.
    let made =
        unsafe { (domain.context.functions.reg_mr)(domain.raw(), address, memory.bytes, ACCESS) };
    NonNull::new(made)
        .ok_or_else(|| last("ibv_reg_mr", "no module of the kernel knows that memory"))
}

const ACCESS: c_int = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;

impl fmt::Debug for GpuRegistration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("GpuRegistration").field(&self.memory).field(&self.path).finish()
    }
}

impl Drop for GpuRegistration {
    fn drop(&mut self) {
        if self.domain.context.is_ours() {
            // SAFETY: it is registered, and ends once.
            unsafe { (self.domain.context.functions.dereg_mr)(self.handle.as_ptr()) };
        }
    }
}
