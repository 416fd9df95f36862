//! Functions that NCCL calls; a suffix names the newest version of the interface in which the
//! function has this signature.

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;

use nccl_net_abi::{
    Attributes, CommConfig, DeviceHandle, HANDLE_BYTES, Logger, NcclResult, Parts, Profiler,
};

use super::{guard, id, null, put, region, registration, request, slice, with};
use crate::comm::wire::GROUP_MAX;
use crate::context::{Context, Known};
use crate::error::NetError;
use crate::plugin::{self, Plugin};

pub(super) unsafe extern "C" fn init_v12(
    context: *mut *mut c_void,
    _: u64,
    config: *mut CommConfig,
    logger: Logger,
    _: Profiler,
) -> NcclResult {
    guard("init", || {
        if context.is_null() {
            return Err(null("the pointer for the context"));
        }
        // SAFETY: `config` is null or NCCL's configuration.
        let known = unsafe { read_config(config) };
        plugin::init(logger)?;
        let id = plugin::plugin()?.add_context(known)?;
        // SAFETY: NCCL has room for the context at `context`.
        unsafe { put(context, id.pointer()) }
    })
}

/// Creates a context from NCCL's configuration; a default one for a null pointer.
///
/// # Safety
///
/// The pointer is null, or valid.
unsafe fn read_config(config: *mut CommConfig) -> Context {
    NonNull::new(config).map_or_else(Context::default, |config| {
        // SAFETY: as above.
        Context::new(unsafe { config.read() }.traffic_class)
    })
}

/// Returns the context of a call; a default one for a null pointer.
fn context(pointer: *mut c_void) -> Result<Known, NetError> {
    match pointer.is_null() {
        true => Ok(Known::Here(Context::default())),
        false => id(pointer, "the context").map(Known::By),
    }
}

pub(super) unsafe extern "C" fn init_v10(logger: Logger, _: Profiler) -> NcclResult {
    guard("init", || init_anew(logger))
}

pub(super) unsafe extern "C" fn init_v9(logger: Logger) -> NcclResult {
    guard("init", || init_anew(logger))
}

/// Initialises the plugin without a context. NCCL calls this once, and again only after it has
/// closed the library (`dlclose`). The library stays mapped (`-z nodelete`) and still knows the
/// devices that NCCL merged before; this function makes it forget them.
fn init_anew(logger: Logger) -> Result<(), NetError> {
    plugin::init(logger)?;
    plugin::plugin()?.devices.forget_made();
    Ok(())
}

pub(super) unsafe extern "C" fn devices(count: *mut c_int) -> NcclResult {
    with("devices", |plugin| {
        let devices = plugin.devices.count() as c_int;
        // SAFETY: NCCL has room for the number at `count`.
        unsafe { put(count, devices) }
    })
}

pub(super) unsafe extern "C" fn make_device<const N: usize>(
    number: *mut c_int,
    parts: *mut Parts<N>,
) -> NcclResult {
    with("makeVDevice", |plugin| {
        if number.is_null() {
            return Err(null("the pointer for the device's number"));
        }
        let parts = NonNull::new(parts).ok_or_else(|| null("the list of the device's parts"))?;
        // SAFETY: NCCL has the parts at `parts`.
        let parts = unsafe { parts.read() };
        let known = parts.get().ok_or_else(|| {
            let count = parts.count;
            NetError::argument(format!("cannot merge {count} devices; the list holds at most {N}"))
        })?;
        let made = plugin.devices.make(known)?;
        // SAFETY: NCCL has room for the number at `number`.
        unsafe { put(number, made) }
    })
}

pub(super) unsafe extern "C" fn listen_v12(
    known: *mut c_void,
    device: c_int,
    handle: *mut c_void,
    comm: *mut *mut c_void,
) -> NcclResult {
    with("listen", |plugin| {
        if handle.is_null() || comm.is_null() {
            return Err(null("the handle or the listening communicator"));
        }
        let (bytes, id) = plugin.listen(context(known)?, device)?;
        // SAFETY: NCCL has room for a handle at `handle`.
        unsafe { put(handle.cast(), bytes) }?;
        // SAFETY: NCCL has room for the communicator at `comm`.
        unsafe { put(comm, id.pointer()) }
    })
}

pub(super) unsafe extern "C" fn listen_v10(
    device: c_int,
    handle: *mut c_void,
    comm: *mut *mut c_void,
) -> NcclResult {
    // SAFETY: as for `listen_v12`, which gets the same pointers and no context.
    unsafe { listen_v12(std::ptr::null_mut(), device, handle, comm) }
}

pub(super) unsafe extern "C" fn connect_v12(
    known: *mut c_void,
    device: c_int,
    handle: *mut c_void,
    comm: *mut *mut c_void,
    _: *mut *mut DeviceHandle,
) -> NcclResult {
    // SAFETY: NCCL passes a handle and room for the communicator, as `connect` requires.
    with("connect", |plugin| unsafe { connect(plugin, context(known)?, device, handle, comm) })
}

pub(super) unsafe extern "C" fn connect_v10(
    device: c_int,
    config: *mut CommConfig,
    handle: *mut c_void,
    comm: *mut *mut c_void,
    _: *mut *mut DeviceHandle,
) -> NcclResult {
    // SAFETY: `config` is null or NCCL's configuration.
    let known = Known::Here(unsafe { read_config(config) });
    // SAFETY: NCCL passes a handle and room for the communicator, as `connect` requires.
    with("connect", |plugin| unsafe { connect(plugin, known, device, handle, comm) })
}

pub(super) unsafe extern "C" fn connect_v9(
    device: c_int,
    handle: *mut c_void,
    comm: *mut *mut c_void,
    _: *mut *mut DeviceHandle,
) -> NcclResult {
    // SAFETY: NCCL passes a handle and room for the communicator, as `connect` requires.
    with("connect", |plugin| unsafe {
        connect(plugin, Known::Here(Context::default()), device, handle, comm)
    })
}

/// Advances a connection. `known` is the connection's context, by its number or as a value.
///
/// # Safety
///
/// The handle is null or of the right size; `comm` is null or may be written to.
unsafe fn connect(
    plugin: &'static Plugin,
    known: Known,
    device: c_int,
    handle: *mut c_void,
    comm: *mut *mut c_void,
) -> Result<(), NetError> {
    // SAFETY: NCCL has room for the communicator at `comm`. Null means that there is none yet.
    unsafe { put(comm, std::ptr::null_mut()) }?;
    let handle: *mut [u8; HANDLE_BYTES] = handle.cast();
    let mut handle = NonNull::new(handle).ok_or_else(|| null("the handle"))?;
    // SAFETY: a handle has `HANDLE_BYTES` bytes, and only this call uses them.
    let handle = unsafe { handle.as_mut() };
    let Some(id) = plugin.connect(known, device, handle)? else { return Ok(()) };
    // SAFETY: as above.
    unsafe { put(comm, id.pointer()) }
}

pub(super) unsafe extern "C" fn accept(
    listener: *mut c_void,
    comm: *mut *mut c_void,
    _: *mut *mut DeviceHandle,
) -> NcclResult {
    with("accept", |plugin| {
        // SAFETY: NCCL has room for the communicator at `comm`. Null means that there is none yet.
        unsafe { put(comm, std::ptr::null_mut()) }?;
        let Some(id) = plugin.accept(id(listener, "the listening communicator")?)? else {
            return Ok(());
        };
        // SAFETY: as above.
        unsafe { put(comm, id.pointer()) }
    })
}

pub(super) unsafe extern "C" fn register(
    comm: *mut c_void,
    data: *mut c_void,
    bytes: usize,
    kind: c_int,
    mr: *mut *mut c_void,
) -> NcclResult {
    with("regMr", |plugin| {
        let comm = id(comm, "the communicator")?;
        if mr.is_null() {
            return Err(null("the pointer for the registration"));
        }
        // SAFETY: NCCL keeps memory valid until it deregisters that memory.
        let region = unsafe { region(data, bytes) }?;
        let registered = plugin.register(comm, region, kind)?;
        // SAFETY: NCCL has room for the registration at `mr`.
        unsafe { put(mr, registered.pointer()) }
    })
}

/// Registers memory that has a DMA-BUF descriptor. The descriptor is not used: host memory is
/// registered by its address, and GPU memory is declined, as the properties announce.
pub(super) unsafe extern "C" fn register_dma_buf(
    comm: *mut c_void,
    data: *mut c_void,
    bytes: usize,
    kind: c_int,
    _: u64,
    _: c_int,
    mr: *mut *mut c_void,
) -> NcclResult {
    // SAFETY: as for `register`, which gets the same pointers; the descriptor is not used.
    unsafe { register(comm, data, bytes, kind, mr) }
}

pub(super) unsafe extern "C" fn deregister(comm: *mut c_void, mr: *mut c_void) -> NcclResult {
    with("deregMr", |plugin| {
        plugin.deregister(id(comm, "the communicator")?, id(mr, "the registration")?)
    })
}

pub(super) unsafe extern "C" fn isend_v12(
    comm: *mut c_void,
    data: *mut c_void,
    bytes: usize,
    tag: c_int,
    mr: *mut c_void,
    _: *mut c_void,
    request: *mut *mut c_void,
) -> NcclResult {
    // SAFETY: as for `isend_v9`, which gets the same pointers; the event is not used.
    unsafe { isend_v9(comm, data, bytes, tag, mr, request) }
}

pub(super) unsafe extern "C" fn isend_v9(
    comm: *mut c_void,
    data: *mut c_void,
    bytes: usize,
    tag: c_int,
    mr: *mut c_void,
    request: *mut *mut c_void,
) -> NcclResult {
    with("isend", |plugin| {
        // SAFETY: NCCL has room for the request at `request`. Null asks NCCL to call again.
        unsafe { put(request, std::ptr::null_mut()) }?;
        let comm = id(comm, "the sending communicator")?;
        let sent = plugin.isend(comm, data.addr(), bytes, tag, registration(mr))?;
        let Some(sent) = sent else { return Ok(()) };
        // SAFETY: as above.
        unsafe { put(request, comm.request(sent)) }
    })
}

pub(super) unsafe extern "C" fn isend_v8(
    comm: *mut c_void,
    data: *mut c_void,
    bytes: c_int,
    tag: c_int,
    mr: *mut c_void,
    request: *mut *mut c_void,
) -> NcclResult {
    let Ok(bytes) = usize::try_from(bytes) else {
        return guard("isend", || Err(NetError::argument(format!("cannot send {bytes} bytes"))));
    };
    // SAFETY: as for `isend_v9`, which gets the same pointers; only the type of the length differs.
    unsafe { isend_v9(comm, data, bytes, tag, mr, request) }
}

pub(super) unsafe extern "C" fn irecv_v12(
    comm: *mut c_void,
    count: c_int,
    data: *mut *mut c_void,
    bytes: *mut usize,
    tags: *mut c_int,
    mrs: *mut *mut c_void,
    _: *mut *mut c_void,
    request: *mut *mut c_void,
) -> NcclResult {
    // SAFETY: as for `irecv_v9`, which gets the same pointers; the events are not used.
    unsafe { irecv_v9(comm, count, data, bytes, tags, mrs, request) }
}

pub(super) unsafe extern "C" fn irecv_v9(
    comm: *mut c_void,
    count: c_int,
    data: *mut *mut c_void,
    bytes: *mut usize,
    tags: *mut c_int,
    mrs: *mut *mut c_void,
    request: *mut *mut c_void,
) -> NcclResult {
    with("irecv", |plugin| {
        // SAFETY: NCCL has as many lengths as buffers.
        let bytes = unsafe { slice(bytes, count, "the list of lengths") }?;
        // SAFETY: NCCL passes arrays of `count` elements and room for the request.
        unsafe { receive(plugin, comm, data, bytes.iter().copied(), tags, mrs, request) }
    })
}

pub(super) unsafe extern "C" fn irecv_v8(
    comm: *mut c_void,
    count: c_int,
    data: *mut *mut c_void,
    bytes: *mut c_int,
    tags: *mut c_int,
    mrs: *mut *mut c_void,
    request: *mut *mut c_void,
) -> NcclResult {
    with("irecv", |plugin| {
        // SAFETY: NCCL has as many lengths as buffers.
        let bytes = unsafe { slice(bytes, count, "the list of lengths") }?;
        if let Some(bytes) = bytes.iter().find(|bytes| **bytes < 0) {
            return Err(NetError::argument(format!("cannot receive {bytes} bytes")));
        }
        let bytes = bytes.iter().map(|bytes| *bytes as usize);
        // SAFETY: NCCL passes arrays of `count` elements and room for the request.
        unsafe { receive(plugin, comm, data, bytes, tags, mrs, request) }
    })
}

/// Receives into as many buffers as there are lengths.
///
/// # Safety
///
/// Each array is null or has one element per length; `to` is null or may be written to.
unsafe fn receive(
    plugin: &Plugin,
    comm: *mut c_void,
    data: *mut *mut c_void,
    bytes: impl ExactSizeIterator<Item = usize>,
    tags: *mut c_int,
    mrs: *mut *mut c_void,
    to: *mut *mut c_void,
) -> Result<(), NetError> {
    // NCCL may have written its hint `OPTIONAL_COMPLETION` to `to`. Null replaces the hint, and
    // stays if the request cannot be taken.
    // SAFETY: as above.
    unsafe { put(to, std::ptr::null_mut()) }?;
    let comm = id(comm, "the receiving communicator")?;
    let count = bytes.len() as c_int;
    // SAFETY: as above.
    let data = unsafe { slice(data, count, "the list of buffers") }?;
    // SAFETY: as above.
    let tags = unsafe { slice(tags, count, "the list of tags") }?;
    let none = [std::ptr::null_mut(); GROUP_MAX];
    let mrs = match mrs.is_null() {
        true => &none[..data.len().min(GROUP_MAX)],
        // SAFETY: as above.
        false => unsafe { slice(mrs, count, "the list of registrations") }?,
    };
    let mut receives = [(None, 0, 0, 0); GROUP_MAX];
    let parts = data.iter().zip(bytes).zip(tags).zip(mrs);
    for (receives, (((data, bytes), tag), mr)) in receives.iter_mut().zip(parts) {
        *receives = (registration(*mr), data.addr(), bytes, *tag);
    }
    let receives = receives.get(..data.len()).ok_or_else(|| {
        NetError::argument(format!("{count} buffers in one irecv; at most {GROUP_MAX} fit"))
    })?;
    let Some(received) = plugin.irecv(comm, receives)? else { return Ok(()) };
    // SAFETY: as above.
    unsafe { put(to, comm.request(received)) }
}

/// Returns no request: host memory needs no flush.
pub(super) unsafe extern "C" fn iflush(
    comm: *mut c_void,
    _: c_int,
    _: *mut *mut c_void,
    _: *mut c_int,
    _: *mut *mut c_void,
    request: *mut *mut c_void,
) -> NcclResult {
    with("iflush", |_| {
        id(comm, "the receiving communicator")?;
        // SAFETY: NCCL has room for the request at `request`. Null means that no flush is needed.
        unsafe { put(request, std::ptr::null_mut()) }
    })
}

pub(super) unsafe extern "C" fn test(
    pointer: *mut c_void,
    done: *mut c_int,
    sizes: *mut c_int,
) -> NcclResult {
    with("test", |plugin| {
        // SAFETY: NCCL has room for the flag at `done`.
        unsafe { put(done, 0) }?;
        let (comm, request) = request(pointer)?;
        let Some(tested) = plugin.test(comm, request)? else { return Ok(()) };
        if let Some(sizes) = NonNull::new(sizes) {
            for (at, size) in tested.sizes[..tested.count].iter().enumerate() {
                // SAFETY: NCCL has as many sizes as the request has buffers.
                let to = unsafe { sizes.add(at) };
                // No size exceeds `c_int::MAX`: the properties allow 2^30 bytes per transfer.
                let size = c_int::try_from(*size).unwrap_or(c_int::MAX);
                // SAFETY: as above.
                unsafe { to.write(size) };
            }
        }
        // SAFETY: as above.
        unsafe { put(done, 1) }
    })
}

pub(super) unsafe extern "C" fn close_send(comm: *mut c_void) -> NcclResult {
    with("closeSend", |plugin| plugin.close_sender(id(comm, "the sending communicator")?))
}

pub(super) unsafe extern "C" fn close_receive(comm: *mut c_void) -> NcclResult {
    with("closeRecv", |plugin| plugin.close_receiver(id(comm, "the receiving communicator")?))
}

pub(super) unsafe extern "C" fn close_listen(comm: *mut c_void) -> NcclResult {
    with("closeListen", |plugin| plugin.close_listener(id(comm, "the listening communicator")?))
}

pub(super) unsafe extern "C" fn finalize(context: *mut c_void) -> NcclResult {
    with("finalize", |plugin| plugin.finalize(id(context, "the context")?))
}

pub(super) unsafe extern "C" fn set_attributes(
    context: *mut c_void,
    attributes: *mut Attributes,
) -> NcclResult {
    with("setNetAttr", |plugin| {
        let attributes = NonNull::new(attributes).ok_or_else(|| null("the attributes"))?;
        // SAFETY: NCCL's attributes are valid for this call.
        let attributes = unsafe { attributes.read() };
        plugin.hint(id(context, "the context")?, &attributes)
    })
}
