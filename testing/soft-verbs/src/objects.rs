//! Objects that callers hold, event descriptors, and accesses to payloads in the callers' memory.
//! Only this module reads or writes payloads.

use std::os::raw::c_void;

use libc::c_int;
use rdma_sys::{ibv_context, ibv_sge};

/// Registered memory.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) device: u32,
    pub(crate) domain: u32,
    pub(crate) address: usize,
    pub(crate) bytes: usize,
    pub(crate) access: c_int,
}

/// Opened device.
#[repr(C)]
pub(crate) struct Context {
    pub(crate) base: ibv_context,
    pub(crate) device: u32,
    /// Identifier among the contexts of the same device.
    pub(crate) id: u32,
}

/// Hands an object out to the caller.
pub(crate) fn hand_out<T>(object: T) -> *mut T {
    Box::into_raw(Box::new(object))
}

/// Takes back an object that was handed out.
///
/// # Safety
///
/// The object was handed out as this type, and nobody uses it any more.
pub(crate) unsafe fn take_back<T>(object: *mut T) {
    // SAFETY: the caller keeps the contract.
    drop(unsafe { Box::from_raw(object) });
}

/// Returns the device and the id of a context.
///
/// # Safety
///
/// The context was handed out as a [`Context`], and is open.
pub(crate) unsafe fn opened(context: *mut ibv_context) -> (u32, u32) {
    // SAFETY: the caller keeps the contract.
    let context = unsafe { &*context.cast::<Context>() };
    (context.device, context.id)
}

/// Sets `errno` and returns null.
pub(crate) fn refuse<T>(error: c_int) -> *mut T {
    // SAFETY: the call has no arguments.
    let own = unsafe { libc::__errno_location() };
    // SAFETY: each thread has its own error number.
    unsafe { own.write(error) };
    std::ptr::null_mut()
}

/// Returns an event descriptor that counts how often it was signaled.
pub(crate) fn bell() -> c_int {
    // SAFETY: the call takes no memory.
    unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_SEMAPHORE) }
}

/// Adds one to a descriptor's count.
pub(crate) fn wake(bell: c_int) {
    let once = 1u64;
    // SAFETY: the call reads the eight bytes of `once`.
    unsafe { libc::write(bell, (&raw const once).cast::<c_void>(), 8) };
}

/// Subtracts one from a descriptor's count. If the count is 0, waits, or returns false if the
/// descriptor is non-blocking.
pub(crate) fn hear(bell: c_int) -> bool {
    let mut once = 0u64;
    // SAFETY: the call writes the eight bytes of `once`.
    unsafe { libc::read(bell, (&raw mut once).cast::<c_void>(), 8) == 8 }
}

/// Closes an event descriptor.
pub(crate) fn close(bell: c_int) {
    // SAFETY: the descriptor is ours, and is closed once.
    unsafe { libc::close(bell) };
}

impl Memory {
    /// Returns whether the registration covers all of these bytes.
    pub(crate) fn holds(&self, address: u64, bytes: usize) -> bool {
        let offset = (address as usize).checked_sub(self.address);
        offset.and_then(|offset| offset.checked_add(bytes)).is_some_and(|end| end <= self.bytes)
    }
}

/// Appends bytes of registered memory, or of memory that the caller posts inline.
pub(crate) fn load(address: u64, bytes: usize, into: &mut Vec<u8>) {
    let start = into.len();
    into.resize(start + bytes, 0);
    let from = std::ptr::with_exposed_provenance::<u8>(address as usize);
    // SAFETY: callers keep registered memory valid until they deregister it, and deregistration
    // needs the network's lock, which is held here. Inline memory stays valid until the posting
    // call ends.
    unsafe { from.copy_to_nonoverlapping(into.as_mut_ptr().wrapping_add(start), bytes) };
}

/// Writes bytes to registered memory.
pub(crate) fn store(address: u64, bytes: &[u8]) {
    let to = std::ptr::with_exposed_provenance_mut::<u8>(address as usize);
    // SAFETY: callers keep registered memory valid until they deregister it, and deregistration
    // needs the network's lock, which is held here.
    unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
}

/// Returns the entries of a scatter-gather list.
///
/// # Safety
///
/// The list has `count` entries.
pub(crate) unsafe fn places(list: *const ibv_sge, count: c_int) -> Vec<ibv_sge> {
    // SAFETY: the caller keeps the contract.
    (0..count as usize).map(|at| unsafe { list.wrapping_add(at).read() }).collect()
}
