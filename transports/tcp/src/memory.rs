//! The only door to raw memory: regions as the kernel reads and writes them, and what it tells of
//! its own.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::OwnedFd;

use ccl_memory::Region;
use rustix::ioctl::{Getter, ioctl};

/// `TIOCOUTQ`, which sockets call SIOCOUTQ.
const OUTPUT_QUEUE: rustix::ioctl::Opcode = 0x5411;

/// Bytes of a region for the kernel to read; empty if they do not lie inside.
pub(crate) fn readable(region: &Region, offset: usize, bytes: usize) -> IoSlice<'_> {
    if offset.checked_add(bytes).is_none_or(|end| end > region.bytes()) {
        return IoSlice::new(&[]);
    }
    // SAFETY: the range lies inside the region, which outlives the slice. Whoever posts a put
    // leaves its bytes alone until it is done, and the slice ends with the system call.
    let slice = unsafe { std::slice::from_raw_parts(region.start().wrapping_add(offset), bytes) };
    IoSlice::new(slice)
}

/// Bytes of a region for the kernel to write; empty if they do not lie inside.
pub(crate) fn writable(region: &Region, offset: usize, bytes: usize) -> IoSliceMut<'_> {
    if offset.checked_add(bytes).is_none_or(|end| end > region.bytes()) {
        return IoSliceMut::new(&mut []);
    }
    // SAFETY: the range lies inside the region, which outlives the slice. It was shared with the
    // peer for it to write, or named by `Lane::redirect` in its place: nobody reads it before the
    // put's immediate has been seen, or writes it, and the slice ends with the system call.
    let slice =
        unsafe { std::slice::from_raw_parts_mut(region.start().wrapping_add(offset), bytes) };
    IoSliceMut::new(slice)
}

/// Bytes that were written to a socket and not yet acknowledged by the peer's kernel.
pub(crate) fn unacknowledged(socket: &OwnedFd) -> usize {
    // SAFETY: this opcode stores an int, on every kind of socket.
    let getter = unsafe { Getter::<OUTPUT_QUEUE, i32>::new() };
    // SAFETY: as above.
    let bytes = unsafe { ioctl(socket, getter) };
    bytes.ok().and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(0)
}
