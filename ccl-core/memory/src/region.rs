//! An address range with an owner that keeps it alive.

use std::alloc::Layout;
use std::any::Any;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// A range of memory, possibly shared with other processes. Clones share the owner; the memory
/// lives until the last clone is gone.
#[derive(Clone)]
pub struct Region {
    start: NonNull<u8>,
    bytes: usize,
    owner: Arc<dyn Any + Send + Sync>,
}

// SAFETY: a region is an address, a length and a shared owner that is itself Send and Sync; the
// bytes are only reached through raw pointers or atomics, whose users answer for races.
unsafe impl Send for Region {}
// SAFETY: as above; no method gives out a reference to non-atomic bytes.
unsafe impl Sync for Region {}

/// Error for a range that does not lie inside its region or is not aligned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionError {
    /// First byte asked for.
    pub offset: usize,
    /// Bytes asked for.
    pub bytes: usize,
    /// Number of bytes of the region.
    pub region_bytes: usize,
}

impl fmt::Display for RegionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} bytes at offset {} exceed a memory region of {} bytes or are not aligned",
            self.bytes, self.offset, self.region_bytes
        )
    }
}

impl std::error::Error for RegionError {}

/// Error for an allocation that fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemory {
    /// Bytes asked for.
    pub bytes: usize,
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes of memory cannot be allocated for this process", self.bytes)
    }
}

impl std::error::Error for OutOfMemory {}

impl Region {
    /// Returns a region over `bytes` bytes from `start`. The region keeps `owner` alive.
    ///
    /// # Safety
    ///
    /// The range is valid for reads and writes for as long as `owner` exists, and nobody holds a
    /// Rust reference into it while it is written through the region, or by a peer.
    #[must_use]
    pub unsafe fn new(
        start: NonNull<u8>,
        bytes: usize,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> Region {
        Region { start, bytes, owner }
    }

    /// Returns a zeroed region that is private to this process, aligned to cache lines. If the
    /// allocation fails, the process ends: use this only for a few indispensable bytes, and
    /// [`Region::allocate`] for all others.
    #[must_use]
    pub fn private(bytes: usize) -> Region {
        Region::allocate(bytes)
            .unwrap_or_else(|_| std::alloc::handle_alloc_error(Allocation::layout(bytes)))
    }

    /// Returns a zeroed region that is private to this process, aligned to cache lines.
    ///
    /// # Errors
    ///
    /// When the allocation fails.
    pub fn allocate(bytes: usize) -> Result<Region, OutOfMemory> {
        let layout = Allocation::layout(bytes);
        if layout.size() < bytes {
            return Err(OutOfMemory { bytes });
        }
        // SAFETY: the layout is not of size zero.
        let start = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) });
        let start = start.ok_or(OutOfMemory { bytes })?;
        let owner: Arc<dyn Any + Send + Sync> = Arc::new(Allocation(start, layout));
        #[cfg(any(loom, shuttle))]
        let owner = crate::model::owner(start, bytes, owner);
        Ok(Region { start, bytes, owner })
    }

    /// Returns the number of bytes of the region.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the address of the first byte.
    #[must_use]
    pub fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Returns a part of this region, with the same owner.
    ///
    /// # Errors
    ///
    /// When the part does not lie inside the region.
    pub fn part(&self, offset: usize, bytes: usize) -> Result<Region, RegionError> {
        let start = self.check(offset, bytes, 1)?;
        Ok(Region { start, bytes, owner: Arc::clone(&self.owner) })
    }

    /// Returns whether anyone else holds the region's owner, such as a clone or a part of the
    /// region. If not, all accesses through clones and parts that were dropped have ended.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        let is_shared = Arc::strong_count(&self.owner) > 1;
        if !is_shared {
            // Pairs with the release at which another region gave up the owner.
            fence(Ordering::Acquire);
        }
        is_shared
    }

    /// Returns the atomic word at a byte offset, which must be a multiple of 4.
    ///
    /// # Errors
    ///
    /// When the word exceeds the region or is not aligned.
    pub fn word32(&self, offset: usize) -> Result<&AtomicU32, RegionError> {
        self.check(offset, 4, 4)?;
        // SAFETY: just checked.
        Ok(unsafe { self.word32_unchecked(offset) })
    }

    /// Returns the atomic word at a byte offset, which must be a multiple of 8.
    ///
    /// # Errors
    ///
    /// When the word exceeds the region or is not aligned.
    pub fn word64(&self, offset: usize) -> Result<&AtomicU64, RegionError> {
        self.check(offset, 8, 8)?;
        // SAFETY: just checked.
        Ok(unsafe { self.word64_unchecked(offset) })
    }

    /// Returns the word as [`Region::word32`] does, without checks.
    ///
    /// # Safety
    ///
    /// The word lies inside the region and is aligned.
    #[inline]
    pub(crate) unsafe fn word32_unchecked(&self, offset: usize) -> &AtomicU32 {
        let at = self.start.as_ptr().wrapping_add(offset);
        #[cfg(any(loom, shuttle))]
        return crate::model::word32(self.owner(), at);
        // SAFETY: inside the region, aligned, alive as long as `self`; only atomics touch it.
        #[cfg(not(any(loom, shuttle)))]
        return unsafe { &*at.cast() };
    }

    /// Returns the word as [`Region::word64`] does, without checks.
    ///
    /// # Safety
    ///
    /// The word lies inside the region and is aligned.
    #[inline]
    pub(crate) unsafe fn word64_unchecked(&self, offset: usize) -> &AtomicU64 {
        let at = self.start.as_ptr().wrapping_add(offset);
        #[cfg(any(loom, shuttle))]
        return crate::model::word64(self.owner(), at);
        // SAFETY: inside the region, aligned, alive as long as `self`; only atomics touch it.
        #[cfg(not(any(loom, shuttle)))]
        return unsafe { &*at.cast() };
    }

    #[cfg(any(loom, shuttle))]
    pub(crate) fn owner(&self) -> &(dyn Any + Send + Sync) {
        &*self.owner
    }

    /// Copies `from` into the region.
    ///
    /// # Errors
    ///
    /// When `from` does not fit at that offset.
    pub fn write(&self, offset: usize, from: &[u8]) -> Result<(), RegionError> {
        let at = self.check(offset, from.len(), 1)?;
        // SAFETY: the target lies inside the region and no reference into it exists.
        unsafe { std::ptr::copy(from.as_ptr(), at.as_ptr(), from.len()) };
        Ok(())
    }

    /// Copies bytes of the region into `to`.
    ///
    /// # Errors
    ///
    /// When the bytes do not lie inside the region.
    pub fn read(&self, offset: usize, to: &mut [u8]) -> Result<(), RegionError> {
        let at = self.check(offset, to.len(), 1)?;
        // SAFETY: the source lies inside the region, and no reference to it is made. If a peer
        // writes at the same time, the copied bytes may be torn.
        unsafe { std::ptr::copy(at.as_ptr().cast_const(), to.as_mut_ptr(), to.len()) };
        Ok(())
    }

    /// Returns `N` bytes that a device or another process may be writing. The bytes are read as
    /// words of 8 bytes. No word is torn, and the first word is read before the others.
    ///
    /// # Errors
    ///
    /// When the bytes exceed the region or do not begin at a multiple of 8.
    pub fn read_words<const N: usize>(&self, offset: usize) -> Result<[u8; N], RegionError> {
        const { assert!(N.is_multiple_of(8)) };
        let mut bytes = [0; N];
        let mut order = Ordering::Acquire;
        for (at, word) in bytes.as_chunks_mut().0.iter_mut().enumerate() {
            *word = self.word64(offset + 8 * at)?.load(order).to_ne_bytes();
            order = Ordering::Relaxed;
        }
        Ok(bytes)
    }

    /// Copies bytes of another region, or of this one, into this one.
    ///
    /// # Errors
    ///
    /// When the bytes do not lie inside their region.
    pub fn copy_from(
        &self,
        offset: usize,
        from: &Region,
        from_offset: usize,
        bytes: usize,
    ) -> Result<(), RegionError> {
        let source = from.check(from_offset, bytes, 1)?;
        let at = self.check(offset, bytes, 1)?;
        // SAFETY: both ranges lie inside their regions and may overlap. No reference into the
        // target exists. If a peer writes to the source meanwhile, the copied bytes may be torn.
        unsafe { std::ptr::copy(source.as_ptr().cast_const(), at.as_ptr(), bytes) };
        Ok(())
    }

    fn check(&self, offset: usize, bytes: usize, align: usize) -> Result<NonNull<u8>, RegionError> {
        let inside = offset.checked_add(bytes).is_some_and(|end| end <= self.bytes);
        let address = self.start.as_ptr().wrapping_add(offset);
        if !inside || !(address as usize).is_multiple_of(align) {
            return Err(RegionError { offset, bytes, region_bytes: self.bytes });
        }
        // SAFETY: `offset` is at most `self.bytes`, so the address is in or one past the region.
        Ok(unsafe { self.start.add(offset) })
    }
}

/// Memory of this process.
struct Allocation(NonNull<u8>, Layout);

// SAFETY: plain bytes without thread affinity.
unsafe impl Send for Allocation {}
// SAFETY: never read through this handle.
unsafe impl Sync for Allocation {}

impl Allocation {
    const LINE: usize = 64;

    /// Returns a layout of whole cache lines, at least one. If no layout can hold `bytes` bytes,
    /// the layout has a single line, and [`Region::allocate`] returns an error.
    fn layout(bytes: usize) -> Layout {
        let lines = bytes.max(1).checked_next_multiple_of(Allocation::LINE);
        let layout = Layout::from_size_align(lines.unwrap_or(usize::MAX), Allocation::LINE);
        layout.unwrap_or(Layout::new::<[u64; 8]>())
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: exactly what `allocate` got for this layout, given back once.
        unsafe { std::alloc::dealloc(self.0.as_ptr(), self.1) };
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Region({:p}, {} bytes)", self.start, self.bytes)
    }
}

#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn an_allocation_that_cannot_succeed_is_an_error() {
        for bytes in [usize::MAX, usize::MAX - 64, isize::MAX as usize, 1 << 60] {
            assert_eq!(Region::allocate(bytes).unwrap_err(), OutOfMemory { bytes });
        }
        assert_eq!(Region::allocate(0).unwrap().bytes(), 0);
    }

    #[test]
    fn words_are_read_in_order_and_their_range_and_alignment_are_checked() {
        let region = Region::private(24);
        region.write(8, &[1, 2, 3, 4, 5, 6, 7, 8, 9]).unwrap();
        assert_eq!(region.read_words(8), Ok([1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 0, 0, 0, 0, 0, 0]));
        assert!(region.read_words::<16>(16).is_err() && region.read_words::<8>(4).is_err());
    }

    #[test]
    fn a_region_is_shared_while_a_clone_or_a_part_of_it_lives() {
        let region = Region::private(8);
        assert!(!region.is_shared());
        let (clone, part) = (region.clone(), region.part(4, 4).unwrap());
        drop(clone);
        assert!(region.is_shared() && part.is_shared());
        drop(part);
        assert!(!region.is_shared());
    }

    #[test]
    fn ranges_are_checked() {
        let region = Region::private(100);
        assert_eq!(region.start() as usize % 64, 0);
        region.write(90, &[7; 10]).unwrap();
        let mut back = [0; 4];
        region.read(96, &mut back).unwrap();
        assert_eq!(back, [7; 4]);
        assert!(region.write(91, &[7; 10]).is_err());
        assert!(region.read(usize::MAX, &mut back).is_err());
        assert!(region.word64(96).is_err(), "words beyond the end must be refused");
        assert!(region.word64(4).is_err(), "unaligned words must be refused");
        assert!(region.word32(4).is_ok());
        let copy = Region::private(8);
        copy.copy_from(0, &region, 96, 4).unwrap();
        copy.copy_from(2, &copy, 0, 4).unwrap();
        let mut six = [0; 6];
        copy.read(0, &mut six).unwrap();
        assert_eq!(six, [7; 6]);
        assert!(copy.copy_from(0, &region, 97, 4).is_err());
        assert!(copy.copy_from(copy.bytes(), &region, 0, 1).is_err());
        let part = region.part(90, 10).unwrap();
        drop(region);
        part.read(0, &mut back).unwrap();
        assert_eq!(back, [7; 4]);
        assert!(part.part(5, 6).is_err());
    }
}
