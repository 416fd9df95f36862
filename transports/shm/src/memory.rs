//! Memory that can be handed to another process: sealed memfds and their mappings.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use ccl_core::transport::TransportError;
use ccl_memory::Region;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use rustix::process::{Pid, Resource};

use crate::{DESCRIPTORS, available, os};

/// Seals that a descriptor must have before it is mapped. They fix the size of the memory for ever,
/// so no access inside the mapping can fail.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// Smallest mapping for which huge pages are requested, in bytes.
const HUGE_BYTES: usize = 2 << 20;

/// Bytes of memory committed per step. After a signal, only the interrupted step is repeated.
const COMMIT_BYTES: usize = 64 << 20;

const FREE_MEMORY: &str = "use less memory (fewer ranks, channels or slots, smaller buffers), or \
                           raise the memory limit of the container or of `ulimit -v`";

/// Descriptor by which peers map memory; none for memory that was only registered.
pub(crate) type File = Option<Arc<OwnedFd>>;

/// Memory of this process that can be shared.
#[derive(Debug)]
pub(crate) struct Segment {
    /// Descriptor of the memory.
    pub(crate) file: OwnedFd,
    /// Mapping of the memory in this process.
    pub(crate) region: Region,
}

/// A mapping, unmapped when its last region is dropped.
struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
    process: Pid,
}

// SAFETY: the fields only describe an address range and the process that mapped it, and only `drop`
// uses them.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // A forked child has not inherited the mapping, and may have mapped something else at the
        // same address.
        if rustix::process::getpid() == self.process {
            // SAFETY: mapped by `map` with this length; no region is left.
            let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.bytes) };
        }
    }
}

/// Allocates `bytes` bytes of zeroed memory and commits all pages, so that a later use never lacks
/// memory. Nobody can make the memory smaller.
pub(crate) fn allocate(bytes: usize) -> Result<Segment, TransportError> {
    allocate_as("ferroccl", bytes)
}

fn allocate_as(name: &str, bytes: usize) -> Result<Segment, TransportError> {
    check_limits(bytes)?;
    let file = create(name)?;
    rustix::fs::ftruncate(&file, file_bytes(bytes) as u64)
        .map_err(|error| os("ftruncate of shared memory", error, FREE_MEMORY))?;
    rustix::fs::fcntl_add_seals(&file, SEALS)
        .map_err(|error| os("sealing of shared memory", error, "this kernel is not usable"))?;
    let region = map(file.as_fd(), bytes)?;
    commit(file.as_fd(), &region)
        .map_err(|error| os("committing shared memory", error, FREE_MEMORY))?;
    Ok(Segment { file, region })
}

/// Allocates zeroed memory that other processes find by its name among this process's descriptors
/// in `/proc`. The name lasts as long as the descriptor, and vanishes with the process.
///
/// # Errors
///
/// When the process can get no descriptor or no memory.
pub fn named_memory(name: &str, bytes: usize) -> Result<(OwnedFd, Region), TransportError> {
    let Segment { file, region } = allocate_as(name, bytes)?;
    Ok((file, region))
}

/// Maps a peer's memory after checking that it is sealed and has exactly `bytes` bytes.
pub(crate) fn adopt(file: impl AsFd, bytes: usize, peer: &str) -> Result<Region, TransportError> {
    let refused = |reason: String| TransportError::Refused { peer: peer.to_owned(), reason };
    // The call fails for a file that cannot have seals. A file of tmpfs has only one of `SEALS`:
    // `F_SEAL_SEAL`.
    let seals = rustix::fs::fcntl_get_seals(file.as_fd()).unwrap_or(SealFlags::empty());
    if !seals.contains(SEALS) {
        return Err(refused("it sent a descriptor that is not sealed memory".to_owned()));
    }
    let found = rustix::fs::fstat(file.as_fd())
        .map_err(|error| os("fstat of a peer's memory", error, "the memory cannot be used"))?
        .st_size;
    if u64::try_from(found) != Ok(file_bytes(bytes) as u64) {
        return Err(refused(format!("it announced {bytes} bytes of memory and sent {found}")));
    }
    map(file.as_fd(), bytes)
}

/// Returns the length of the file behind a region: at least 1, as a mapping cannot be empty.
fn file_bytes(bytes: usize) -> usize {
    bytes.max(1)
}

fn check_limits(bytes: usize) -> Result<(), TransportError> {
    let bytes = file_bytes(bytes) as u64;
    let left = available::available_bytes().unwrap_or(u64::MAX);
    if bytes > left || bytes > isize::MAX as u64 {
        return Err(TransportError::Os {
            call: "allocation of shared memory",
            code: Errno::NOMEM.raw_os_error(),
            reason: format!("{bytes} bytes are requested, and {left} are available"),
            advice: FREE_MEMORY,
        });
    }
    // Checked here because the kernel kills a process that exceeds this limit (SIGXFSZ).
    let limit = rustix::process::getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX);
    if bytes > limit {
        return Err(TransportError::Os {
            call: "allocation of shared memory",
            code: Errno::FBIG.raw_os_error(),
            reason: format!("{bytes} bytes are requested, and a file may have {limit}"),
            advice: "raise the limit with `ulimit -f unlimited`",
        });
    }
    Ok(())
}

fn create(name: &str) -> Result<OwnedFd, TransportError> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let made = match rustix::fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
        // Kernels before 6.3 do not know the flag.
        Err(Errno::INVAL) => rustix::fs::memfd_create(name, flags),
        made => made,
    };
    made.map_err(|error| os("memfd_create", error, DESCRIPTORS))
}

fn map(file: BorrowedFd<'_>, bytes: usize) -> Result<Region, TransportError> {
    let mapped_bytes = file_bytes(bytes);
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let address = unsafe {
        rustix::mm::mmap(std::ptr::null_mut(), mapped_bytes, protection, MapFlags::SHARED, file, 0)
    }
    .map_err(|error| os("mmap of shared memory", error, FREE_MEMORY))?;
    let start = NonNull::new(address.cast::<u8>())
        .ok_or_else(|| os("mmap of shared memory", Errno::NOMEM, FREE_MEMORY))?;
    let process = rustix::process::getpid();
    let mapping = Mapping { start, bytes: mapped_bytes, process };
    // SAFETY: the only effect of the advice is that forked children do not inherit the new range.
    unsafe { rustix::mm::madvise(address, mapped_bytes, Advice::LinuxDontFork) }
        .map_err(|error| os("madvise(MADV_DONTFORK)", error, "this kernel is not usable"))?;
    if mapped_bytes >= HUGE_BYTES {
        // A failure is ignored: without huge pages everything works, a little slower.
        // SAFETY: as above; this advice concerns only the size of pages.
        let _ = unsafe { rustix::mm::madvise(address, mapped_bytes, Advice::LinuxHugepage) };
    }
    // SAFETY: `mapping` keeps the range mapped, and the seals keep its size. References into it are
    // made only in folds, to bytes that the protocol gives to this side.
    Ok(unsafe { Region::new(start, bytes, Arc::new(mapping)) })
}

/// Commits every page through the mapping, so that huge pages are used and first accesses are
/// quick. On kernels before 5.14, commits the pages through the file.
fn commit(file: BorrowedFd<'_>, region: &Region) -> Result<(), Errno> {
    let bytes = file_bytes(region.bytes());
    match in_steps(bytes, |offset, step| populate(region, offset, step)) {
        Err(Errno::INVAL) => in_steps(bytes, |offset, step| reserve(file, offset, step)),
        done => done,
    }
}

fn in_steps(
    bytes: usize,
    mut commit: impl FnMut(usize, usize) -> Result<(), Errno>,
) -> Result<(), Errno> {
    for offset in (0..bytes).step_by(COMMIT_BYTES) {
        let step = COMMIT_BYTES.min(bytes - offset);
        rustix::io::retry_on_intr(|| commit(offset, step))?;
    }
    Ok(())
}

fn populate(region: &Region, offset: usize, bytes: usize) -> Result<(), Errno> {
    let at = region.start().wrapping_add(offset).cast();
    // SAFETY: a part of the mapping; touching its pages does not change their bytes.
    unsafe { rustix::mm::madvise(at, bytes, Advice::LinuxPopulateWrite) }
}

fn reserve(file: BorrowedFd<'_>, offset: usize, bytes: usize) -> Result<(), Errno> {
    let flags = rustix::fs::FallocateFlags::empty();
    rustix::fs::fallocate(file, flags, offset as u64, bytes as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unsealed(bytes: u64) -> OwnedFd {
        let file = create("ferroccl").unwrap();
        rustix::fs::ftruncate(&file, bytes).unwrap();
        file
    }

    #[test]
    fn two_mappings_are_one_memory() {
        for bytes in [0, 1, 4096, 5000, 3 << 20] {
            let segment = allocate(bytes).unwrap();
            let other = adopt(&segment.file, bytes, "test").unwrap();
            assert_eq!((segment.region.bytes(), other.bytes()), (bytes, bytes));
            let Some(last) = bytes.checked_sub(1) else { continue };
            let mut byte = [1];
            other.read(last, &mut byte).unwrap();
            assert_eq!(byte, [0], "new memory must be zeroed");
            segment.region.write(last, &[9]).unwrap();
            drop(segment);
            other.read(last, &mut byte).unwrap();
            assert_eq!(byte, [9]);
        }
    }

    fn committed_bytes(file: &OwnedFd) -> i64 {
        rustix::fs::fstat(file).unwrap().st_blocks * 512
    }

    #[test]
    fn an_allocation_commits_all_its_pages() {
        let segment = allocate(3 << 20).unwrap();
        assert_eq!(committed_bytes(&segment.file), 3 << 20);
        // The path for older kernels.
        let file = unsealed(3 << 20);
        assert_eq!(committed_bytes(&file), 0);
        rustix::fs::fcntl_add_seals(&file, SEALS).unwrap();
        in_steps(3 << 20, |offset, step| reserve(file.as_fd(), offset, step)).unwrap();
        assert_eq!(committed_bytes(&file), 3 << 20);
    }

    #[test]
    fn the_steps_cover_every_byte_once() {
        for bytes in [1, COMMIT_BYTES, COMMIT_BYTES + 1, 3 * COMMIT_BYTES] {
            let mut next = 0;
            let walk = |offset, step| {
                assert!(offset == next && step <= COMMIT_BYTES);
                next += step;
                Ok(())
            };
            in_steps(bytes, walk).unwrap();
            assert_eq!(next, bytes);
        }
    }

    #[test]
    fn more_memory_than_is_available_is_an_error() {
        for bytes in [1 << 50, isize::MAX as usize, usize::MAX] {
            let error = allocate(bytes).unwrap_err();
            let TransportError::Os { code, .. } = &error else { panic!("{error}") };
            assert_eq!(*code, Errno::NOMEM.raw_os_error(), "{error}");
        }
    }

    #[test]
    fn a_descriptor_that_is_not_sealed_memory_is_refused() {
        let error = adopt(unsealed(4096), 4096, "somebody").unwrap_err();
        assert!(error.to_string().contains("not sealed"), "{error}");
        let half = unsealed(4096);
        rustix::fs::fcntl_add_seals(&half, SealFlags::GROW | SealFlags::SEAL).unwrap();
        assert!(adopt(half, 4096, "somebody").is_err(), "memory that may shrink was accepted");
        let (pipe, _end) = rustix::pipe::pipe().unwrap();
        assert!(adopt(pipe, 4096, "somebody").is_err(), "a pipe was accepted as memory");
        let segment = allocate(4096).unwrap();
        for wrong in [0, 1, 4095, 4097, usize::MAX] {
            let error = adopt(&segment.file, wrong, "somebody").unwrap_err();
            assert!(error.to_string().contains("announced"), "{error}");
        }
        assert!(rustix::fs::ftruncate(&segment.file, 0).is_err(), "sealed memory shrank");
        assert!(rustix::fs::ftruncate(&segment.file, 8192).is_err(), "sealed memory grew");
    }
}
