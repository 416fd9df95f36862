//! C interface of NCCL's network plugins: the tables of functions that a plugin exports and NCCL
//! calls.
//!
//! There is one module for each version that NCCL has introduced since 2.20. Each module has
//! `Net`, the table of functions that a plugin exports under the module's symbol (such as
//! [`v12::SYMBOL`]), and `Properties`, which describes a device. The crate root has the items that
//! versions share. Sizes and offsets are asserted at compile time against those of the public
//! headers on 64-bit Linux.
//!
//! Source: NVIDIA/nccl, `src/include/plugin/` and `plugins/net/` at the tags named in the modules.

#![no_std]

use core::ffi::{c_char, c_int, c_ulong, c_void};

/// Checks at compile time that a version's table has its pointers in the order of NCCL's header:
/// first those of all versions, then the macro's arguments.
macro_rules! table_order {
    ($($more:ident),*) => {
        crate::table_order!(@all name, init, devices, properties, listen, connect, accept, register,
            register_dma_buf, deregister, isend, irecv, iflush, test, close_send, close_receive,
            close_listen, device_registration, consumed $(, $more)*);
    };
    (@all $($field:ident),*) => {
        const _: () = {
            let mut offset = 0;
            $(
                assert!(core::mem::offset_of!(Net, $field) == offset);
                offset += size_of::<usize>();
            )*
            assert!(size_of::<Net>() == offset);
        };
    };
}
pub(crate) use table_order;

mod calls;
pub mod v10;
pub mod v11;
pub mod v12;
pub mod v8;
pub mod v9;

pub use calls::*;

/// Bytes of a listener's handle, which NCCL carries from rank to rank.
pub const HANDLE_BYTES: usize = 128;
/// Largest number of requests that NCCL has outstanding on one communicator.
pub const REQUESTS_MAX: usize = 32;
/// Largest number of bytes that a plugin may report as its transfer limit.
pub const TRANSFER_BYTES_MAX: usize = 1 << 40;
/// Value that NCCL stores in the request pointer before `irecv` as a hint: the plugin need not
/// report completion.
pub const OPTIONAL_COMPLETION: usize = 1;
/// Value of an undefined traffic class, [rail](v12::Properties::rail) or
/// [plane](v12::Properties::plane).
pub const UNDEFINED: i32 = -1;

/// Memory of the host; a bit of `Properties::memory_kinds`, and the kind of a registration.
pub const HOST: c_int = 1;
/// Memory of a CUDA device; a bit of `Properties::memory_kinds`, and the kind of a registration.
pub const CUDA: c_int = 2;
/// Memory given by a DMA-BUF descriptor; a bit of `Properties::memory_kinds`.
pub const DMA_BUF: c_int = 4;

/// Device type of a plugin that runs on the host alone.
pub const DEVICE_HOST: c_int = 0;
/// Device type of a plugin with a part that runs on the GPU, in NCCL's kernels.
pub const DEVICE_UNPACK: c_int = 1;
/// Version of the device type [`DEVICE_UNPACK`] that NCCL's kernels support.
pub const DEVICE_UNPACK_VERSION: c_int = 7;

/// Result of a call: `ncclResult_t`.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NcclResult(pub c_int);

impl NcclResult {
    /// The call has succeeded.
    pub const SUCCESS: NcclResult = NcclResult(0);
    /// A CUDA call failed.
    pub const UNHANDLED_CUDA_ERROR: NcclResult = NcclResult(1);
    /// The operating system refused something.
    pub const SYSTEM_ERROR: NcclResult = NcclResult(2);
    /// The plugin has a defect.
    pub const INTERNAL_ERROR: NcclResult = NcclResult(3);
    /// An argument is invalid.
    pub const INVALID_ARGUMENT: NcclResult = NcclResult(4);
    /// The call is not allowed at this time.
    pub const INVALID_USAGE: NcclResult = NcclResult(5);
    /// The peer is gone, or has done something wrong.
    pub const REMOTE_ERROR: NcclResult = NcclResult(6);

    /// Returns the name of the result in NCCL.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self.0 {
            0 => "ncclSuccess",
            1 => "ncclUnhandledCudaError",
            2 => "ncclSystemError",
            3 => "ncclInternalError",
            4 => "ncclInvalidArgument",
            5 => "ncclInvalidUsage",
            6 => "ncclRemoteError",
            7 => "ncclInProgress",
            8 => "ncclTimeout",
            _ => "an unknown result",
        }
    }
}

/// Importance of a line of NCCL's log: `ncclDebugLogLevel`.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LogLevel(pub c_int);

impl LogLevel {
    /// Level of a line that NCCL shows with `NCCL_DEBUG=VERSION` and with every higher level.
    pub const VERSION: LogLevel = LogLevel(1);
    /// Level of a line that NCCL shows with `NCCL_DEBUG=WARN` and with every higher level.
    pub const WARN: LogLevel = LogLevel(2);
    /// Level of a line that NCCL shows with `NCCL_DEBUG=INFO` and with every higher level.
    pub const INFO: LogLevel = LogLevel(3);
    /// Level of a line that NCCL shows with `NCCL_DEBUG=TRACE`, if it was built with tracing.
    pub const TRACE: LogLevel = LogLevel(5);
}

/// Lines about starting up: a bit of `NCCL_DEBUG_SUBSYS`.
pub const SUBSYSTEM_INIT: c_ulong = 1;
/// Lines about the network: a bit of `NCCL_DEBUG_SUBSYS`.
pub const SUBSYSTEM_NET: c_ulong = 0x10;
/// Lines about all subsystems.
pub const SUBSYSTEM_ALL: c_ulong = c_ulong::MAX;

/// NCCL's logger: level, subsystems, file, line, and a format like that of `printf` with its
/// arguments.
pub type Logger =
    Option<unsafe extern "C" fn(LogLevel, c_ulong, *const c_char, c_int, *const c_char, ...) -> ()>;

/// NCCL's profiler, with these arguments: an event, an action on it, and the event's parent, kind
/// and description.
pub type Profiler = Option<
    unsafe extern "C" fn(*mut *mut c_void, c_int, *mut c_void, i64, *mut c_void) -> NcclResult,
>;

/// Configuration that NCCL gives for a communicator: `ncclNetCommConfig_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommConfig {
    /// DSCP and ECN of the communicator's packets, or [`UNDEFINED`].
    pub traffic_class: c_int,
}
const _: () = assert!(size_of::<CommConfig>() == 4);

/// Handle of a plugin's device side, for NCCL's kernels: `ncclNetDeviceHandle_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DeviceHandle {
    /// Type of the device: [`DEVICE_HOST`] or another.
    pub device_type: c_int,
    /// Version of the device type.
    pub device_version: c_int,
    /// Pointer to the plugin's own data.
    pub handle: *mut c_void,
    /// Bytes of that data.
    pub size: usize,
    /// Nonzero if `test` is to be called for progress.
    pub needs_proxy_progress: c_int,
}
const _: () = assert!(size_of::<DeviceHandle>() == 32);

/// Numbers of peers and flows in one direction of [`Attributes`].
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fan {
    /// Largest number of peers at once.
    pub peers_max: i32,
    /// Smallest number of peers at once.
    pub peers_min: i32,
    /// Largest number of flows to each peer.
    pub flows_max: i32,
    /// Smallest number of flows to each peer.
    pub flows_min: i32,
}

/// Hint about NCCL's next operations: `ncclNetAttr_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// Peers and flows of sends.
    pub send: Fan,
    /// Peers and flows of receives.
    pub receive: Fan,
    /// Mask with one bit for each operation.
    pub operations: u32,
    /// Mask with one bit for each algorithm.
    pub algorithms: u32,
    /// Mask with one bit for each protocol.
    pub protocols: u32,
}
const _: () = assert!(size_of::<Attributes>() == 44);

/// Physical devices that one device is made of, `N` at most: `ncclNetVDeviceProps_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parts<const N: usize> {
    /// Number of physical devices.
    pub count: c_int,
    /// Numbers of the physical devices.
    pub devices: [c_int; N],
}
const _: () = assert!(size_of::<Parts<4>>() == 20 && size_of::<Parts<8>>() == 36);

impl<const N: usize> Parts<N> {
    /// Creates the parts of a physical device, whose only part is the device itself.
    #[must_use]
    pub const fn one(device: c_int) -> Parts<N> {
        let mut devices = [0; N];
        if N > 0 {
            devices[0] = device;
        }
        Parts { count: 1, devices }
    }

    /// Creates parts from several devices; takes only the first `N` if there are more.
    #[must_use]
    pub fn of(parts: &[c_int]) -> Parts<N> {
        let mut devices = [0; N];
        devices.iter_mut().zip(parts).for_each(|(offset, part)| *offset = *part);
        Parts { count: parts.len().min(N) as c_int, devices }
    }

    /// Returns the numbers of the devices; `None` if the count is negative or greater than `N`.
    #[must_use]
    pub fn get(&self) -> Option<&[c_int]> {
        self.devices.get(..usize::try_from(self.count).ok()?)
    }
}
