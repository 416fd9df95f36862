//! Functions that NCCL calls. They check all arguments from C and convert pointers to numbers,
//! slices and regions. All `unsafe` of the plugin is here and in `log.rs`. No panic reaches NCCL.

mod calls;
mod v10;
mod v11;
mod v12;
mod v8;
mod v9;

use std::ffi::{CStr, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::Arc;

use ccl_memory::Region;
use nccl_net_abi::{LogLevel, NcclResult, SUBSYSTEM_NET};

pub use v8::NCCL_NET_PLUGIN_V8;
pub use v9::NCCL_NET_PLUGIN_V9;
pub use v10::NCCL_NET_PLUGIN_V10;
pub use v11::NCCL_NET_PLUGIN_V11;
pub use v12::NCCL_NET_PLUGIN_V12;

use crate::error::NetError;
use crate::log;
use crate::plugin::{Plugin, plugin, read};
use crate::table::{Id, RequestId};

/// Name by which `NCCL_NET` chooses this plugin.
pub const NAME: &CStr = c"ferroccl";

/// A table of functions that C reads.
#[repr(transparent)]
#[derive(Debug)]
pub struct Exported<T>(pub T);

// SAFETY: a table has function pointers and the address of a static text, and is never written to.
unsafe impl<T> Sync for Exported<T> {}

/// Calls the plugin. Writes an error to NCCL's log, and returns the error's [`NcclResult`].
fn guard(what: &str, call: impl FnOnce() -> Result<(), NetError>) -> NcclResult {
    let error = match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(())) => return NcclResult::SUCCESS,
        Ok(Err(error)) => error,
        Err(_) => NetError::new(
            NcclResult::INTERNAL_ERROR,
            "the plugin panicked, which is a bug of ferroccl",
        ),
    };
    log::line(LogLevel::WARN, SUBSYSTEM_NET, &format!("{what}: {error}"));
    error.result
}

/// Calls the plugin with [`guard`]; fails if the plugin is not initialised.
fn with(what: &str, call: impl FnOnce(&'static Plugin) -> Result<(), NetError>) -> NcclResult {
    guard(what, || call(plugin()?))
}

fn null(what: &str) -> NetError {
    NetError::argument(format!("{what} is a null pointer"))
}

/// Writes a value through an output pointer from C.
///
/// # Safety
///
/// `to` is null, or may be written to.
unsafe fn put<T>(to: *mut T, value: T) -> Result<(), NetError> {
    let to = NonNull::new(to).ok_or_else(|| null("the pointer for the result"))?;
    // SAFETY: as above.
    unsafe { to.write(value) };
    Ok(())
}

/// Returns an array from C as a slice.
///
/// # Safety
///
/// `from` is null, or points to `count` valid values that nobody changes while the slice is in use.
unsafe fn slice<'a, T>(from: *const T, count: c_int, what: &str) -> Result<&'a [T], NetError> {
    let count = usize::try_from(count)
        .map_err(|_| NetError::argument(format!("{what} cannot have {count} elements")))?;
    let from = NonNull::new(from.cast_mut()).ok_or_else(|| null(what))?;
    // SAFETY: as above.
    Ok(unsafe { NonNull::slice_from_raw_parts(from, count).as_ref() })
}

/// Returns the caller's memory as a region.
///
/// # Safety
///
/// The bytes are valid until the memory is deregistered.
unsafe fn region(data: *mut c_void, bytes: usize) -> Result<Region, NetError> {
    let start = NonNull::new(data.cast()).ok_or_else(|| null("the memory to register"))?;
    if bytes == 0 || start.addr().get().checked_add(bytes).is_none() {
        return Err(NetError::argument(format!("cannot register {bytes} bytes of memory")));
    }
    // SAFETY: the caller keeps the bytes valid until they are deregistered. `Mr`, the registration
    // that holds the region, accesses none of them after that.
    Ok(unsafe { Region::new(start, bytes, Arc::new(())) })
}

/// Returns the number of a plugin object, from the pointer that C holds.
fn id(pointer: *mut c_void, what: &str) -> Result<Id, NetError> {
    match read(pointer) {
        Some((id, None)) => Ok(id),
        _ if pointer.is_null() => Err(null(what)),
        _ => Err(NetError::argument(format!("{what} was not made by this plugin"))),
    }
}

/// Returns the number of a request, from the pointer that C holds.
fn request(pointer: *mut c_void) -> Result<(Id, RequestId), NetError> {
    match read(pointer) {
        Some((id, Some(request))) => Ok((id, request)),
        _ if pointer.is_null() => Err(null("the request")),
        _ => Err(NetError::argument("the request was not made by this plugin")),
    }
}

/// Returns the number of a registration, or none, from the pointer that C holds.
fn registration(pointer: *mut c_void) -> Option<Id> {
    id(pointer, "a registration").ok()
}
