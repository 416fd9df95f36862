//! Functions whose signatures differ in older versions.

use core::ffi::{c_int, c_void};
use std::ptr::null_mut;

use nccl_net_abi::{CommConfig, DeviceHandle, Logger, NcclResult, Profiler};

use crate::exports::{connect_anywhere, entry, irecv, isend, listen_anywhere};
use crate::limits::GROUP_MAX;

/// Initializes the plugin. Versions up to 10 have no `finalize`, so the context lasts until the
/// process ends.
pub(crate) unsafe extern "C" fn init_v10(_logger: Logger, profiler: Profiler) -> NcclResult {
    entry(|plugin| {
        plugin.set_profiler(profiler);
        plugin.init().map(|_| ())
    })
}

pub(crate) unsafe extern "C" fn init_v9(_logger: Logger) -> NcclResult {
    entry(|plugin| plugin.init().map(|_| ()))
}

pub(crate) unsafe extern "C" fn listen_v10(
    device: c_int,
    handle: *mut c_void,
    comm: *mut *mut c_void,
) -> NcclResult {
    // SAFETY: the caller passes null or 128 bytes for the handle, and null or room for the
    // communicator.
    entry(|plugin| unsafe { listen_anywhere(plugin, device, handle, comm) })
}

pub(crate) unsafe extern "C" fn connect_v10(
    device: c_int,
    _config: *mut CommConfig,
    handle: *mut c_void,
    comm: *mut *mut c_void,
    device_handle: *mut *mut DeviceHandle,
) -> NcclResult {
    // SAFETY: the caller passes null or a handle, and null or room for the communicator and for
    // its device handle.
    entry(|plugin| unsafe { connect_anywhere(plugin, device, handle, comm, device_handle) })
}

pub(crate) unsafe extern "C" fn connect_v9(
    device: c_int,
    handle: *mut c_void,
    comm: *mut *mut c_void,
    device_handle: *mut *mut DeviceHandle,
) -> NcclResult {
    // SAFETY: the caller passes null or a handle, and null or room for the communicator and for
    // its device handle.
    entry(|plugin| unsafe { connect_anywhere(plugin, device, handle, comm, device_handle) })
}

pub(crate) unsafe extern "C" fn isend_v9(
    comm: *mut c_void,
    data: *mut c_void,
    bytes: usize,
    tag: c_int,
    registration: *mut c_void,
    request: *mut *mut c_void,
) -> NcclResult {
    // SAFETY: the caller keeps the contract of the newest version.
    unsafe { isend(comm, data, bytes, tag, registration, null_mut(), request) }
}

pub(crate) unsafe extern "C" fn isend_v8(
    comm: *mut c_void,
    data: *mut c_void,
    bytes: c_int,
    tag: c_int,
    registration: *mut c_void,
    request: *mut *mut c_void,
) -> NcclResult {
    let Ok(bytes) = usize::try_from(bytes) else { return NcclResult::INVALID_ARGUMENT };
    // SAFETY: the caller keeps the contract of the newest version.
    unsafe { isend(comm, data, bytes, tag, registration, null_mut(), request) }
}

pub(crate) unsafe extern "C" fn irecv_v9(
    comm: *mut c_void,
    count: c_int,
    data: *mut *mut c_void,
    bytes: *mut usize,
    tags: *mut c_int,
    registrations: *mut *mut c_void,
    request: *mut *mut c_void,
) -> NcclResult {
    // SAFETY: the caller keeps the contract of the newest version.
    unsafe { irecv(comm, count, data, bytes, tags, registrations, null_mut(), request) }
}

pub(crate) unsafe extern "C" fn irecv_v8(
    comm: *mut c_void,
    count: c_int,
    data: *mut *mut c_void,
    bytes: *mut c_int,
    tags: *mut c_int,
    registrations: *mut *mut c_void,
    request: *mut *mut c_void,
) -> NcclResult {
    let mut wide = [0; GROUP_MAX];
    for (part, wide) in wide.iter_mut().enumerate().take(usize::try_from(count).unwrap_or(0)) {
        // SAFETY: the caller passes null or `count` values.
        let narrow = unsafe { bytes.wrapping_add(part).as_ref() };
        let Some(bytes) = narrow.and_then(|bytes| usize::try_from(*bytes).ok()) else {
            return NcclResult::INVALID_ARGUMENT;
        };
        *wide = bytes;
    }
    let bytes = wide.as_mut_ptr();
    // SAFETY: the caller keeps the contract of the newest version.
    unsafe { irecv(comm, count, data, bytes, tags, registrations, null_mut(), request) }
}
