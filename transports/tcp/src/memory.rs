//! Access to raw memory: mapped pages, regions for the kernel to read or write, and an ioctl.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;

use ccl_core::transport::TransportError;
use ccl_memory::{OutOfMemory, Region};
use rustix::ioctl::{Getter, ioctl};
use rustix::mm::{Advice, MapFlags, ProtFlags};

/// `TIOCOUTQ`, which sockets call SIOCOUTQ.
const OUTPUT_QUEUE: rustix::ioctl::Opcode = 0x5411;

/// Pages that this process has mapped.
struct Mapping(NonNull<u8>, usize);

// SAFETY: plain bytes without thread affinity.
unsafe impl Send for Mapping {}
// SAFETY: never read through this handle.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this range was mapped with this length, and is unmapped once; no region in it is
        // left. An error would mean that the range is not mapped.
        let _ = unsafe { rustix::mm::munmap(self.0.as_ptr().cast(), self.1) };
    }
}

/// Reserves a zeroed region whose pages are allocated at first touch: most bytes sent to slots are
/// redirected elsewhere ([`ccl_core::transport::Lane::redirect`]), so many pages stay untouched.
pub(crate) fn reserve(bytes: usize) -> Result<Region, TransportError> {
    let none = || TransportError::from(OutOfMemory { bytes });
    let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    // SAFETY: a new mapping at an address of the kernel's choice.
    let mapped =
        unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), bytes, protection, flags) };
    let address = mapped.map_err(|_| none())?;
    let start = NonNull::new(address.cast::<u8>()).ok_or_else(none)?;
    // With huge pages, the first byte of each slot would take a whole huge page. The call fails
    // only on kernels without huge pages.
    // SAFETY: the advice concerns only the page size of the range that was just mapped.
    let _ = unsafe { rustix::mm::madvise(address, bytes, Advice::LinuxNoHugepage) };
    // SAFETY: the mapping lasts as long as its owner. References into it are made only for system
    // calls and in folds, to bytes that nobody else writes meanwhile.
    Ok(unsafe { Region::new(start, bytes, Arc::new(Mapping(start, bytes))) })
}

/// Returns bytes of a region for the kernel to read; no bytes if the range exceeds the region.
pub(crate) fn readable(region: &Region, offset: usize, bytes: usize) -> IoSlice<'_> {
    if offset.checked_add(bytes).is_none_or(|end| end > region.bytes()) {
        return IoSlice::new(&[]);
    }
    // SAFETY: the range lies inside the region, which outlives the slice. The caller that posted
    // the put leaves the bytes unchanged until the put is done, and the slice ends with the system
    // call.
    let slice = unsafe { std::slice::from_raw_parts(region.start().wrapping_add(offset), bytes) };
    IoSlice::new(slice)
}

/// Returns bytes of a region for the kernel to write; no bytes if the range exceeds the region.
pub(crate) fn writable(region: &Region, offset: usize, bytes: usize) -> IoSliceMut<'_> {
    if offset.checked_add(bytes).is_none_or(|end| end > region.bytes()) {
        return IoSliceMut::new(&mut []);
    }
    // SAFETY: the range lies inside the region, which outlives the slice. Either the range
    // was shared for the peer to write, or `Lane::redirect` has named it as a target, or it is a
    // note's own memory. In each case, no other code reads or writes it until the put's immediate
    // has been seen, or the whole note has arrived. The slice ends with the system call.
    let slice =
        unsafe { std::slice::from_raw_parts_mut(region.start().wrapping_add(offset), bytes) };
    IoSliceMut::new(slice)
}

/// Returns the number of bytes that were written to a socket, and that the peer's kernel has not
/// acknowledged yet.
pub(crate) fn unacknowledged(socket: &OwnedFd) -> usize {
    // SAFETY: this opcode stores an int, on every kind of socket.
    let getter = unsafe { Getter::<OUTPUT_QUEUE, i32>::new() };
    // SAFETY: as above.
    let bytes = unsafe { ioctl(socket, getter) };
    bytes.ok().and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(0)
}
