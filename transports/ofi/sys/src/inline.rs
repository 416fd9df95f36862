//! Calls that the headers define as inline functions. Each uses the function pointers of an object.

use std::ptr;

use libc::{ENOSYS, c_char, c_int, c_void, size_t, ssize_t};

use crate::types::*;
use crate::{FI_ADDR_UNSPEC, FI_ENABLE, FI_GETWAIT, FI_OPT_ENDPOINT};

/// Calls a function of an object's table; gives `-ENOSYS` if the provider lacks it.
macro_rules! call {
    ($table:expr, $function:ident($($argument:expr),* $(,)?)) => {
        // SAFETY: the object is open, so its table is valid or null; the caller keeps the rest of
        // the contract.
        unsafe {
            match $table.as_ref().and_then(|table| table.$function) {
                Some(function) => function($($argument),*),
                None => (-ENOSYS) as _,
            }
        }
    };
}

/// Calls a function that every provider has.
macro_rules! call_required {
    ($table:expr, $function:ident($($argument:expr),* $(,)?)) => {
        // SAFETY: the object is open, so its table is valid; the caller keeps the rest of the
        // contract.
        unsafe { ((*$table).$function)($($argument),*) }
    };
}

/// Closes an object.
///
/// # Safety
///
/// The object is open, and no object that depends on it is open.
pub unsafe fn fi_close(object: *mut fid) -> c_int {
    call!((*object).ops, close(object))
}

/// Binds an endpoint to a queue or to an address vector.
///
/// # Safety
///
/// Both objects are open, and `endpoint` is not enabled yet.
pub unsafe fn fi_ep_bind(endpoint: *mut fid_ep, to: *mut fid, flags: u64) -> c_int {
    call!((*endpoint).fid.ops, bind(&raw mut (*endpoint).fid, to, flags))
}

/// Enables an endpoint, after its queues and its address vector are bound to it.
///
/// # Safety
///
/// The endpoint is open.
pub unsafe fn fi_enable(endpoint: *mut fid_ep) -> c_int {
    let none = ptr::null_mut();
    call!((*endpoint).fid.ops, control(&raw mut (*endpoint).fid, FI_ENABLE, none))
}

/// Binds memory to an endpoint, as providers with `FI_MR_ENDPOINT` require.
///
/// # Safety
///
/// Both objects are open.
pub unsafe fn fi_mr_bind(memory: *mut fid_mr, endpoint: *mut fid_ep) -> c_int {
    call!((*memory).fid.ops, bind(&raw mut (*memory).fid, &raw mut (*endpoint).fid, 0))
}

/// Enables memory that was bound.
///
/// # Safety
///
/// The memory is registered.
pub unsafe fn fi_mr_enable(memory: *mut fid_mr) -> c_int {
    let none = ptr::null_mut();
    call!((*memory).fid.ops, control(&raw mut (*memory).fid, FI_ENABLE, none))
}

/// Opens a domain of a fabric.
///
/// # Safety
///
/// The fabric is open, and `info` is an offer of its provider.
pub unsafe fn fi_domain(
    fabric: *mut fid_fabric,
    info: *mut fi_info,
    domain: *mut *mut fid_domain,
) -> c_int {
    call_required!((*fabric).ops, domain(fabric, info, domain, ptr::null_mut()))
}

/// Opens an address vector.
///
/// # Safety
///
/// The domain is open.
pub unsafe fn fi_av_open(
    domain: *mut fid_domain,
    attributes: *mut fi_av_attr,
    vector: *mut *mut fid_av,
) -> c_int {
    call_required!((*domain).ops, av_open(domain, attributes, vector, ptr::null_mut()))
}

/// Opens a completion queue.
///
/// # Safety
///
/// The domain is open.
pub unsafe fn fi_cq_open(
    domain: *mut fid_domain,
    attributes: *mut fi_cq_attr,
    queue: *mut *mut fid_cq,
) -> c_int {
    call_required!((*domain).ops, cq_open(domain, attributes, queue, ptr::null_mut()))
}

/// Opens an endpoint.
///
/// # Safety
///
/// The domain is open, and `info` is the offer with which the domain was opened.
pub unsafe fn fi_endpoint(
    domain: *mut fid_domain,
    info: *mut fi_info,
    endpoint: *mut *mut fid_ep,
) -> c_int {
    call_required!((*domain).ops, endpoint(domain, info, endpoint, ptr::null_mut()))
}

/// Chooses an endpoint's own address. Some providers lack the call.
///
/// # Safety
///
/// The endpoint is open and not enabled yet, and `address` has `bytes` readable bytes in the
/// provider's format.
pub unsafe fn fi_setname(endpoint: *mut fid_ep, address: *mut c_void, bytes: size_t) -> c_int {
    call!((*endpoint).cm, setname(&raw mut (*endpoint).fid, address, bytes))
}

/// Stores an endpoint's own address in `address`. `bytes` is the room for the address, and after
/// the call the length of the address.
///
/// # Safety
///
/// The endpoint is enabled, and `address` has as much room as `bytes` says.
pub unsafe fn fi_getname(endpoint: *mut fid_ep, address: *mut c_void, bytes: *mut size_t) -> c_int {
    call!((*endpoint).cm, getname(&raw mut (*endpoint).fid, address, bytes))
}

/// Reads a `bool` option of an endpoint; returns an error if there is no such option.
///
/// # Safety
///
/// The endpoint is open, and a provider that knows the option defines it as a `bool`.
pub unsafe fn fi_getopt_bool(endpoint: *mut fid_ep, option: c_int, value: &mut bool) -> c_int {
    let mut bytes = size_of::<bool>();
    let into = ptr::from_mut(value).cast();
    call!((*endpoint).ops, getopt(endpoint.cast(), FI_OPT_ENDPOINT, option, into, &raw mut bytes))
}

/// Inserts one address; returns how many were inserted, or an error.
///
/// # Safety
///
/// The vector is open and not bound to an event queue, and `address` has the address format of the
/// vector's provider.
pub unsafe fn fi_av_insert(
    vector: *mut fid_av,
    address: *const c_void,
    number: *mut fi_addr_t,
) -> c_int {
    call_required!((*vector).ops, insert(vector, address, 1, number, 0, ptr::null_mut()))
}

/// Registers memory.
///
/// # Safety
///
/// The domain is open, and the memory is valid until the registration is closed. With
/// `FI_MR_DMABUF`, the attributes name an `fi_mr_dmabuf`.
pub unsafe fn fi_mr_regattr(
    domain: *mut fid_domain,
    attributes: *const fi_mr_attr,
    flags: u64,
    memory: *mut *mut fid_mr,
) -> c_int {
    call!((*domain).mr, regattr(&raw mut (*domain).fid, attributes, flags, memory))
}

/// Takes completions; returns how many, or an error.
///
/// # Safety
///
/// The queue is open, and `entries` has room for `count` entries of the queue's format.
pub unsafe fn fi_cq_read(queue: *mut fid_cq, entries: *mut c_void, count: size_t) -> ssize_t {
    call_required!((*queue).ops, read(queue, entries, count))
}

/// Takes the completion of a failed request.
///
/// # Safety
///
/// The queue is open.
pub unsafe fn fi_cq_readerr(queue: *mut fid_cq, entry: *mut fi_cq_err_entry) -> ssize_t {
    call_required!((*queue).ops, readerr(queue, entry, 0))
}

/// Returns the provider's text for a failure; null if there is none.
///
/// # Safety
///
/// The queue is open, and `entry` is the last that [`fi_cq_readerr`] took from it.
pub unsafe fn fi_cq_strerror(
    queue: *mut fid_cq,
    entry: &fi_cq_err_entry,
    text: &mut [c_char],
) -> *const c_char {
    // SAFETY: the queue is open.
    let table = unsafe { (*queue).ops };
    // SAFETY: the table of an open queue is valid.
    let strerror = unsafe { (*table).strerror };
    strerror.map_or(ptr::null(), |strerror| {
        // SAFETY: the caller keeps the contract; at most `text.len()` characters are written.
        unsafe { strerror(queue, entry.prov_errno, entry.err_data, text.as_mut_ptr(), text.len()) }
    })
}

/// Stores in `descriptor` the file descriptor that a wait for a completion queue uses
/// (`FI_GETWAIT`).
///
/// # Safety
///
/// The queue is open, with `FI_WAIT_FD`.
pub unsafe fn fi_cq_wait_fd(queue: *mut fid_cq, descriptor: &mut c_int) -> c_int {
    let into = ptr::from_mut(descriptor).cast();
    call!((*queue).fid.ops, control(&raw mut (*queue).fid, FI_GETWAIT, into))
}

/// Prepares a wait for the descriptors of completion queues. Returns an error if a completion is
/// already there, or the provider has work to do: the caller then must not wait.
///
/// # Safety
///
/// The fabric is open, and the queues belong to it and were opened with `FI_WAIT_FD`.
pub unsafe fn fi_trywait(fabric: *mut fid_fabric, queues: &mut [*mut fid]) -> c_int {
    let (first, count) = (queues.as_mut_ptr(), c_int::try_from(queues.len()).unwrap_or(c_int::MAX));
    call!((*fabric).ops, trywait(fabric, first, count))
}

/// Opens an event queue.
///
/// # Safety
///
/// The fabric is open.
pub unsafe fn fi_eq_open(
    fabric: *mut fid_fabric,
    attributes: *mut fi_eq_attr,
    queue: *mut *mut fid_eq,
) -> c_int {
    call!((*fabric).ops, eq_open(fabric, attributes, queue, ptr::null_mut()))
}

/// Takes an error from an event queue.
///
/// # Safety
///
/// The queue is open.
pub unsafe fn fi_eq_readerr(queue: *mut fid_eq, entry: *mut fi_eq_err_entry) -> ssize_t {
    call!((*queue).ops, readerr(queue, entry, 0))
}

/// Posts a receive.
///
/// # Safety
///
/// The endpoint is enabled. Until the receive has completed, the memory is valid, and `context` has
/// the room that the provider asks for.
pub unsafe fn fi_recv(
    endpoint: *mut fid_ep,
    memory: *mut c_void,
    bytes: size_t,
    descriptor: *mut c_void,
    context: *mut c_void,
) -> ssize_t {
    let from = FI_ADDR_UNSPEC;
    call_required!((*endpoint).msg, recv(endpoint, memory, bytes, descriptor, from, context))
}

/// Sends memory, with remote CQ data: a number that the peer finds in its completion.
///
/// # Safety
///
/// The contract is that of [`fi_recv`].
pub unsafe fn fi_senddata(
    endpoint: *mut fid_ep,
    (memory, bytes, descriptor): (*const c_void, size_t, *mut c_void),
    data: u64,
    to: fi_addr_t,
    context: *mut c_void,
) -> ssize_t {
    call!((*endpoint).msg, senddata(endpoint, memory, bytes, descriptor, data, to, context))
}

/// Writes to a peer's memory, with remote CQ data.
///
/// # Safety
///
/// The contract is that of [`fi_recv`].
pub unsafe fn fi_writedata(
    endpoint: *mut fid_ep,
    (memory, bytes, descriptor): (*const c_void, size_t, *mut c_void),
    data: u64,
    to: fi_addr_t,
    (address, key): (u64, u64),
    context: *mut c_void,
) -> ssize_t {
    call!(
        (*endpoint).rma,
        writedata(endpoint, memory, bytes, descriptor, data, to, address, key, context)
    )
}

/// Writes to a peer's memory, from several ranges.
///
/// # Safety
///
/// The contract is that of [`fi_recv`], for the memory and the context that the message names.
pub unsafe fn fi_writemsg(
    endpoint: *mut fid_ep,
    message: *const fi_msg_rma,
    flags: u64,
) -> ssize_t {
    call!((*endpoint).rma, writemsg(endpoint, message, flags))
}

/// Sends several ranges as one message.
///
/// # Safety
///
/// The contract is that of [`fi_recv`], for the memory and the context that the message names.
pub unsafe fn fi_sendmsg(endpoint: *mut fid_ep, message: *const fi_msg, flags: u64) -> ssize_t {
    call!((*endpoint).msg, sendmsg(endpoint, message, flags))
}
