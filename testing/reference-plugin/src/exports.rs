//! Functions that C calls, with the signatures of version 12: they convert pointers to values, and
//! errors and panics to results. `older.rs` has the older signatures.

use core::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{null_mut, without_provenance_mut};

use nccl_net_abi::{
    Attributes, CommConfig, DEVICE_UNPACK, DEVICE_UNPACK_VERSION, DeviceHandle, HOST, Logger,
    NcclResult, Parts, Profiler,
};

use crate::fault::Fault;
use crate::handle::Handle;
use crate::limits::GROUP_MAX;
use crate::outcome::Outcome;
use crate::plugin::Plugin;

/// Device handle that is returned with [`Fault::DeviceHandle`]; there is no device side (network
/// code on the accelerator) behind it.
const DEVICE_SIDE: DeviceHandle = DeviceHandle {
    device_type: DEVICE_UNPACK,
    device_version: DEVICE_UNPACK_VERSION,
    handle: null_mut(),
    size: 0,
    needs_proxy_progress: 0,
};

/// Runs the body of a call and converts its error or panic to a result.
pub(crate) fn entry(work: impl FnOnce(&'static Plugin) -> Outcome<()>) -> NcclResult {
    match catch_unwind(AssertUnwindSafe(|| work(Plugin::of_process()))) {
        Ok(Ok(())) => NcclResult::SUCCESS,
        Ok(Err(result)) => result,
        Err(_) => NcclResult::INTERNAL_ERROR,
    }
}

/// Runs the body of a call whose first argument is a communicator, request or context.
fn on(handle: *mut c_void, work: impl FnOnce(&'static Plugin) -> Outcome<()>) -> NcclResult {
    entry(|plugin| {
        if handle.is_null() && plugin.has(Fault::WrongResultOnNull) {
            return Ok(());
        }
        work(plugin)
    })
}

/// Returns the memory that a result is written to, or an error if the pointer is null.
///
/// # Safety
///
/// The pointer is null or points to room for one `T`.
pub(crate) unsafe fn output<'a, T>(pointer: *mut T) -> Outcome<&'a mut MaybeUninit<T>> {
    // SAFETY: as above; the memory may be uninitialized.
    unsafe { pointer.cast::<MaybeUninit<T>>().as_mut() }.ok_or(NcclResult::INVALID_ARGUMENT)
}

/// Returns `count` values, or an error if the pointer is null.
///
/// # Safety
///
/// The pointer is null or points to `count` values.
unsafe fn values<'a, T>(pointer: *const T, count: usize) -> Outcome<&'a [T]> {
    if pointer.is_null() {
        return Err(NcclResult::INVALID_ARGUMENT);
    }
    // SAFETY: as above.
    Ok(unsafe { std::slice::from_raw_parts(pointer, count) })
}

/// Returns an object's number as the pointer that C sees; null for `None`.
fn pointer(number: Option<u64>) -> *mut c_void {
    number.map_or(null_mut(), |number| without_provenance_mut(number as usize))
}

fn number(pointer: *mut c_void) -> u64 {
    pointer.addr() as u64
}

pub(crate) fn check_device(plugin: &Plugin, device: c_int) -> Outcome<()> {
    let is_there = (0..plugin.devices()).contains(&device);
    if is_there { Ok(()) } else { Err(NcclResult::INVALID_ARGUMENT) }
}

pub(crate) unsafe extern "C" fn init(
    context: *mut *mut c_void,
    _comm: u64,
    _config: *mut CommConfig,
    _logger: Logger,
    profiler: Profiler,
) -> NcclResult {
    entry(|plugin| {
        plugin.set_profiler(profiler);
        // SAFETY: the caller passes null or room for the context.
        let context = unsafe { output(context) }?;
        context.write(pointer(Some(plugin.init()?)));
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn devices(count: *mut c_int) -> NcclResult {
    entry(|plugin| {
        // SAFETY: the caller passes null or room for the number.
        unsafe { output(count) }?.write(plugin.devices());
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn make_device<const N: usize>(
    number: *mut c_int,
    parts: *mut Parts<N>,
) -> NcclResult {
    entry(|plugin| {
        // SAFETY: the caller passes null or room for the number.
        let number = unsafe { output(number) }?;
        // SAFETY: the caller passes null or a list of the device's parts.
        let parts = unsafe { parts.as_ref() }.ok_or(NcclResult::INVALID_ARGUMENT)?;
        let parts = parts.get().ok_or(NcclResult::INVALID_ARGUMENT)?;
        number.write(plugin.make_device(parts)?);
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn listen(
    context: *mut c_void,
    device: c_int,
    handle: *mut c_void,
    comm: *mut *mut c_void,
) -> NcclResult {
    on(context, |plugin| {
        plugin.check_context(number(context))?;
        // SAFETY: the caller passes null or 128 bytes for the handle, and null or room for the
        // communicator.
        unsafe { listen_anywhere(plugin, device, handle, comm) }
    })
}

/// Listens without checking a context.
///
/// # Safety
///
/// The pointers are as for `listen`.
pub(crate) unsafe fn listen_anywhere(
    plugin: &Plugin,
    device: c_int,
    handle: *mut c_void,
    comm: *mut *mut c_void,
) -> Outcome<()> {
    check_device(plugin, device)?;
    // SAFETY: the caller has room for a handle.
    let handle = unsafe { output(handle.cast::<Handle>()) }?;
    // SAFETY: the caller passes null or room for the communicator.
    let comm = unsafe { output(comm) }?;
    let (listener, found_by) = plugin.listen()?;
    handle.write(found_by);
    comm.write(pointer(Some(listener)));
    Ok(())
}

pub(crate) unsafe extern "C" fn connect(
    context: *mut c_void,
    device: c_int,
    handle: *mut c_void,
    comm: *mut *mut c_void,
    device_handle: *mut *mut DeviceHandle,
) -> NcclResult {
    on(context, |plugin| {
        plugin.check_context(number(context))?;
        // SAFETY: the caller passes null or a handle, and null or room for the communicator and for
        // its device handle.
        unsafe { connect_anywhere(plugin, device, handle, comm, device_handle) }
    })
}

/// Connects without checking a context.
///
/// # Safety
///
/// The pointers are as for `connect`.
pub(crate) unsafe fn connect_anywhere(
    plugin: &Plugin,
    device: c_int,
    handle: *mut c_void,
    comm: *mut *mut c_void,
    device_handle: *mut *mut DeviceHandle,
) -> Outcome<()> {
    check_device(plugin, device)?;
    // SAFETY: the caller passes null or room for the communicator.
    let comm = unsafe { output(comm) }?;
    comm.write(null_mut());
    if plugin.has(Fault::DeviceHandle) {
        // SAFETY: the caller passes null or room for the device handle's pointer.
        unsafe { output(device_handle) }?.write(Box::leak(Box::new(DEVICE_SIDE)));
    }
    // SAFETY: the caller passes null or an initialized handle.
    let handle = unsafe { handle.cast::<Handle>().as_mut() };
    let handle = handle.ok_or(NcclResult::INVALID_ARGUMENT)?;
    comm.write(pointer(plugin.connect(handle)?));
    Ok(())
}

pub(crate) unsafe extern "C" fn accept(
    listener: *mut c_void,
    comm: *mut *mut c_void,
    _device_handle: *mut *mut DeviceHandle,
) -> NcclResult {
    on(listener, |plugin| {
        // SAFETY: the caller passes null or room for the communicator.
        let comm = unsafe { output(comm) }?;
        comm.write(null_mut());
        comm.write(pointer(plugin.accept(number(listener))?));
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn register(
    comm: *mut c_void,
    data: *mut c_void,
    bytes: usize,
    kind: c_int,
    registration: *mut *mut c_void,
) -> NcclResult {
    on(comm, |plugin| {
        // SAFETY: the caller passes null or room for the registration.
        let registration = unsafe { output(registration) }?;
        let id = plugin.register(number(comm), data.addr(), bytes, kind)?;
        registration.write(pointer(Some(id)));
        Ok(())
    })
}

/// Refuses every registration, because sockets cannot reach device memory. With
/// [`Fault::AnyDescriptor`], registers the memory as host memory instead. The properties offer
/// DMA-BUF only with that fault or with [`Fault::ClosesDescriptor`].
pub(crate) unsafe extern "C" fn register_dma_buf(
    comm: *mut c_void,
    data: *mut c_void,
    bytes: usize,
    _kind: c_int,
    _offset: u64,
    descriptor: c_int,
    registration: *mut *mut c_void,
) -> NcclResult {
    let plugin = Plugin::of_process();
    if plugin.has(Fault::ClosesDescriptor) && descriptor >= 0 {
        // SAFETY: the descriptor is open. Closing the caller's descriptor is the planted fault.
        drop(unsafe { OwnedFd::from_raw_fd(descriptor) });
    }
    if !plugin.has(Fault::AnyDescriptor) {
        return NcclResult::INVALID_ARGUMENT;
    }
    // SAFETY: `register` gets the caller's pointers unchanged.
    unsafe { register(comm, data, bytes, HOST, registration) }
}

pub(crate) unsafe extern "C" fn deregister(
    comm: *mut c_void,
    registration: *mut c_void,
) -> NcclResult {
    on(comm, |plugin| plugin.deregister(number(comm), number(registration)))
}

/// Refuses every call unless [`Fault::ClaimsDevice`] is planted: the plugin has no device side.
pub(crate) unsafe extern "C" fn device_registration(
    comm: *mut c_void,
    _registration: *mut c_void,
    device: *mut *mut c_void,
) -> NcclResult {
    on(comm, |plugin| {
        // SAFETY: the caller passes null or room for the device's pointer.
        unsafe { output(device) }?.write(null_mut());
        if plugin.has(Fault::ClaimsDevice) { Ok(()) } else { Err(NcclResult::INVALID_USAGE) }
    })
}

/// Misuses a profiler event as the planted fault demands; without a fault, does nothing.
fn look_at(plugin: &Plugin, event: *mut c_void) -> Outcome<()> {
    if plugin.has(Fault::RefusesEvents) && !event.is_null() {
        return Err(NcclResult::INVALID_ARGUMENT);
    }
    if plugin.has(Fault::StrayEvents)
        && let Some(tell) = plugin.profiler()
    {
        let mut begun = null_mut();
        // SAFETY: the callback is the caller's own, and `begun` has room for the event.
        let _ = unsafe { tell(&raw mut begun, 0, event, 0, null_mut()) };
    }
    Ok(())
}

pub(crate) unsafe extern "C" fn isend(
    comm: *mut c_void,
    data: *mut c_void,
    bytes: usize,
    tag: c_int,
    registration: *mut c_void,
    event: *mut c_void,
    request: *mut *mut c_void,
) -> NcclResult {
    on(comm, |plugin| {
        // SAFETY: the caller passes null or room for the request.
        let request = unsafe { output(request) }?;
        request.write(null_mut());
        look_at(plugin, event)?;
        // SAFETY: the caller leaves the bytes to the plugin until the request is done.
        let span = unsafe { plugin.span(data.cast(), bytes, number(registration)) }?;
        request.write(pointer(plugin.send(number(comm), span, tag)?));
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn irecv(
    comm: *mut c_void,
    count: c_int,
    data: *mut *mut c_void,
    bytes: *mut usize,
    tags: *mut c_int,
    registrations: *mut *mut c_void,
    events: *mut *mut c_void,
    request: *mut *mut c_void,
) -> NcclResult {
    on(comm, |plugin| {
        let count = usize::try_from(count).ok().filter(|count| (1..=GROUP_MAX).contains(count));
        let count = count.ok_or(NcclResult::INVALID_ARGUMENT)?;
        // SAFETY: the caller passes null or `count` values.
        let data = unsafe { values(data, count) }?;
        // SAFETY: the caller passes null or `count` values.
        let bytes = unsafe { values(bytes, count) }?;
        // SAFETY: the caller passes null or `count` values.
        let tags = unsafe { values(tags, count) }?;
        // SAFETY: the caller passes null or `count` values.
        let registrations = unsafe { values(registrations, count) }?;
        if !events.is_null() {
            // SAFETY: the caller passes null or `count` values.
            let events = unsafe { values(events, count) }?;
            events.iter().try_for_each(|event| look_at(plugin, *event))?;
        }
        // SAFETY: the caller passes null or room for the request. The old value there may be NCCL's
        // hint `OPTIONAL_COMPLETION`, which is ignored.
        let request = unsafe { output(request) }?;
        request.write(null_mut());
        let mut pieces = Vec::with_capacity(count);
        for part in 0..count {
            let (start, registration) = (data[part].cast(), number(registrations[part]));
            // SAFETY: the caller leaves the bytes to the plugin until the request is done.
            let span = unsafe { plugin.span(start, bytes[part], registration) }?;
            pieces.push((span, tags[part]));
        }
        request.write(pointer(plugin.receive(number(comm), pieces)?));
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn iflush(
    comm: *mut c_void,
    _count: c_int,
    _data: *mut *mut c_void,
    _bytes: *mut c_int,
    _registrations: *mut *mut c_void,
    request: *mut *mut c_void,
) -> NcclResult {
    on(comm, |plugin| {
        // SAFETY: the caller passes null or room for the request.
        let request = unsafe { output(request) }?;
        request.write(null_mut());
        request.write(pointer(plugin.flush(number(comm))?));
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn test(
    request: *mut c_void,
    done: *mut c_int,
    sizes: *mut c_int,
) -> NcclResult {
    on(request, |plugin| {
        // SAFETY: the caller passes null or room for the flag.
        let done = unsafe { output(done) }?;
        done.write(0);
        let Some((parts, received)) = plugin.test(number(request))? else { return Ok(()) };
        done.write(1);
        if sizes.is_null() {
            return Ok(());
        }
        for (part, bytes) in received.iter().take(parts).enumerate() {
            // SAFETY: the caller has room for the size of each part.
            let size = unsafe { output(sizes.wrapping_add(part)) }?;
            size.write(c_int::try_from(*bytes).unwrap_or(c_int::MAX));
        }
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn consumed(
    comm: *mut c_void,
    _count: c_int,
    request: *mut c_void,
) -> NcclResult {
    on(comm, |plugin| plugin.consumed(number(comm), number(request)))
}

pub(crate) unsafe extern "C" fn close_send(comm: *mut c_void) -> NcclResult {
    on(comm, |plugin| plugin.close_send(number(comm)))
}

pub(crate) unsafe extern "C" fn close_receive(comm: *mut c_void) -> NcclResult {
    on(comm, |plugin| plugin.close_receive(number(comm)))
}

pub(crate) unsafe extern "C" fn close_listen(comm: *mut c_void) -> NcclResult {
    on(comm, |plugin| plugin.close_listen(number(comm)))
}

pub(crate) unsafe extern "C" fn finalize(context: *mut c_void) -> NcclResult {
    on(context, |plugin| plugin.finalize(number(context)))
}

pub(crate) unsafe extern "C" fn set_attributes(
    context: *mut c_void,
    _attributes: *mut Attributes,
) -> NcclResult {
    on(context, |plugin| plugin.check_context(number(context)))
}
