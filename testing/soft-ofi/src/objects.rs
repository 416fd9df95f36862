//! Objects that callers hold, event descriptors, and accesses to payloads in the callers' memory.
//! Only this module reads or writes payloads.

use libc::{c_int, c_void, iovec, size_t};
use libfabric_sys::fid;

/// Range of a caller's memory, with the number of its registration; 0 if there is none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Range {
    pub(crate) start: usize,
    pub(crate) bytes: usize,
    pub(crate) descriptor: u32,
}

/// Returns the range of a request with one buffer.
pub(crate) fn range(start: *const c_void, bytes: size_t, descriptor: *mut c_void) -> Range {
    Range { start: start.expose_provenance(), bytes, descriptor: descriptor.addr() as u32 }
}

/// Hands an object out to the caller.
pub(crate) fn hand_out<T>(object: T) -> *mut T {
    Box::into_raw(Box::new(object))
}

/// Hands an object out through `into`; returns 0, the code of success.
///
/// # Safety
///
/// `into` has room for a pointer.
pub(crate) unsafe fn give<T>(into: *mut *mut T, object: T) -> c_int {
    // SAFETY: the caller keeps the contract.
    unsafe { into.write(hand_out(object)) };
    0
}

/// Hands out an object of zeros.
///
/// # Safety
///
/// All-zero bytes are a valid value of the type.
pub(crate) unsafe fn hand_out_zeros<T>() -> *mut T {
    // SAFETY: the caller keeps the contract.
    hand_out(unsafe { std::mem::zeroed() })
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

/// Encodes a number as a pointer.
pub(crate) fn pointer_of(id: u32) -> *mut c_void {
    std::ptr::without_provenance_mut(id as usize)
}

/// Returns the number of an object.
///
/// # Safety
///
/// The object was handed out, and is open.
pub(crate) unsafe fn id_of<T>(object: *mut T) -> u32 {
    // SAFETY: every object begins with a `fid`.
    unsafe { (*object.cast::<fid>()).context }.addr() as u32
}

/// Returns an event descriptor that [`ring`] makes readable.
pub(crate) fn bell() -> c_int {
    // SAFETY: the call takes no memory.
    unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) }
}

/// Makes a descriptor readable.
pub(crate) fn ring(bell: c_int) {
    let once = 1u64;
    // SAFETY: the call reads the eight bytes of `once`.
    unsafe { libc::write(bell, (&raw const once).cast::<c_void>(), 8) };
}

/// Makes a descriptor unreadable.
pub(crate) fn quiet(bell: c_int) {
    let mut count = 0u64;
    // SAFETY: the call writes the eight bytes of `count`.
    unsafe { libc::read(bell, (&raw mut count).cast::<c_void>(), 8) };
}

/// Closes an event descriptor.
pub(crate) fn close(bell: c_int) {
    // SAFETY: the descriptor comes from `bell`, and is closed once.
    unsafe { libc::close(bell) };
}

/// Appends bytes of a caller's memory to `into`.
pub(crate) fn load(start: usize, bytes: usize, into: &mut Vec<u8>) {
    let at = into.len();
    into.resize(at + bytes, 0);
    let from = std::ptr::with_exposed_provenance::<u8>(start);
    // SAFETY: the caller that posted the memory keeps it valid until the request has completed or
    // the endpoint is closed. Neither can happen now, because both need the lock, held here.
    unsafe { from.copy_to_nonoverlapping(into.as_mut_ptr().wrapping_add(at), bytes) };
}

/// Writes bytes to a caller's memory.
pub(crate) fn store(start: usize, bytes: &[u8]) {
    let to = std::ptr::with_exposed_provenance_mut::<u8>(start);
    // SAFETY: the caller that posted or registered the memory keeps it valid until the receive has
    // completed or the registration is closed. Neither can happen now, because both need the lock,
    // held here.
    unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
}

/// Returns a list of ranges with their descriptors; `descriptors` may be null.
///
/// # Safety
///
/// `list` has `count` entries; `descriptors` has as many, or is null.
pub(crate) unsafe fn ranges(
    list: *const iovec,
    descriptors: *mut *mut c_void,
    count: size_t,
) -> Vec<Range> {
    let range = |at: usize| {
        // SAFETY: the caller keeps the contract.
        let iovec { iov_base, iov_len } = unsafe { list.wrapping_add(at).read() };
        let descriptor = match descriptors.is_null() {
            true => 0,
            // SAFETY: as above.
            false => unsafe { descriptors.wrapping_add(at).read() }.addr() as u32,
        };
        Range { start: iov_base.expose_provenance(), bytes: iov_len, descriptor }
    };
    (0..count).map(range).collect()
}
