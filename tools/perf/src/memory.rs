//! Buffers of a run: allocated once for the largest size, aligned, with guard bytes behind them.

use std::ops::{Deref, DerefMut};

use ferroccl::communicator::Registered;

/// Alignment of buffers: a cache line, which also suits every element type.
const ALIGNMENT_BYTES: usize = 64;

/// Number of guard bytes behind each buffer.
const GUARD_BYTES: usize = 64;

/// Value of the guard bytes.
const GUARD: u8 = 0x6B;

/// Byte that fills buffers before a call.
pub const POISON: u8 = 0xDB;

/// Error for a buffer that cannot be allocated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot allocate a buffer of {bytes} bytes; choose a smaller -e, or fewer ranks (-g)")]
pub struct OutOfMemory {
    bytes: usize,
}

/// Memory of a buffer.
#[derive(Debug)]
pub enum Storage {
    /// Ordinary memory.
    Plain(Vec<u8>),
    /// Memory that is registered for the time of the run.
    Registered(Registered<u8>),
}

impl Default for Storage {
    fn default() -> Storage {
        Storage::Plain(Vec::new())
    }
}

impl Deref for Storage {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Storage::Plain(bytes) => bytes,
            Storage::Registered(bytes) => bytes,
        }
    }
}

impl DerefMut for Storage {
    fn deref_mut(&mut self) -> &mut [u8] {
        match self {
            Storage::Plain(bytes) => bytes,
            Storage::Registered(bytes) => bytes,
        }
    }
}

/// Buffer that is used at many lengths.
#[derive(Debug, Default)]
pub struct GuardedBuffer {
    storage: Storage,
    start: usize,
}

impl GuardedBuffer {
    /// Allocates a buffer for up to `bytes` bytes. The pages are touched here, not during
    /// measurements.
    ///
    /// # Errors
    /// [`OutOfMemory`] when the allocation fails.
    pub fn new(bytes: usize) -> Result<GuardedBuffer, OutOfMemory> {
        let total =
            bytes.checked_add(ALIGNMENT_BYTES + GUARD_BYTES).ok_or(OutOfMemory { bytes })?;
        let mut storage = Vec::new();
        storage.try_reserve_exact(total).map_err(|_| OutOfMemory { bytes })?;
        storage.resize(total, POISON);
        let start = storage.as_ptr().align_offset(ALIGNMENT_BYTES).min(ALIGNMENT_BYTES);
        Ok(GuardedBuffer { storage: Storage::Plain(storage), start })
    }

    /// Passes the memory to `register`, which must not move the bytes, and keeps the result.
    ///
    /// # Errors
    /// The error of `register`.
    pub fn register<E>(
        &mut self,
        register: impl FnOnce(Vec<u8>) -> Result<Storage, E>,
    ) -> Result<(), E> {
        if let Storage::Plain(bytes) = &mut self.storage {
            self.storage = register(std::mem::take(bytes))?;
        }
        Ok(())
    }

    /// Returns the first `bytes` bytes.
    #[must_use]
    pub fn bytes(&self, bytes: usize) -> &[u8] {
        &self.storage[self.start..self.start + bytes]
    }

    /// Returns the first `bytes` bytes, to write.
    pub fn bytes_mut(&mut self, bytes: usize) -> &mut [u8] {
        &mut self.storage[self.start..self.start + bytes]
    }

    /// Sets up the guard bytes behind the first `bytes` bytes.
    pub fn arm(&mut self, bytes: usize) {
        let end = self.start + bytes;
        self.storage[end..end + GUARD_BYTES].fill(GUARD);
    }

    /// Returns the number of guard bytes that were overwritten since [`arm`](Self::arm).
    #[must_use]
    pub fn overrun(&self, bytes: usize) -> u64 {
        let end = self.start + bytes;
        let guard = &self.storage[end..end + GUARD_BYTES];
        guard.iter().filter(|&&byte| byte != GUARD).count() as u64
    }
}

/// Input and output of one rank.
#[derive(Debug, Default)]
pub struct Memory {
    /// Input buffer; an in-place call does not use it.
    pub input: GuardedBuffer,
    /// Output buffer; in an in-place call, the only buffer.
    pub output: GuardedBuffer,
}

impl Memory {
    /// Allocates an input buffer of `input_bytes` and an output buffer of `whole_bytes`.
    ///
    /// # Errors
    /// [`OutOfMemory`] when the allocation fails.
    pub fn new(input_bytes: usize, whole_bytes: usize) -> Result<Memory, OutOfMemory> {
        Ok(Memory {
            input: GuardedBuffer::new(input_bytes)?,
            output: GuardedBuffer::new(whole_bytes)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_and_overruns_are_counted() {
        let mut buffer = GuardedBuffer::new(100).unwrap();
        assert_eq!(buffer.bytes(100).as_ptr().align_offset(ALIGNMENT_BYTES), 0);
        buffer.arm(90);
        buffer.bytes_mut(90).fill(1);
        assert_eq!(buffer.overrun(90), 0);
        buffer.bytes_mut(93)[91] = 2;
        assert_eq!(buffer.overrun(90), 1);
    }

    #[test]
    fn too_much_memory_is_an_error() {
        let error = GuardedBuffer::new(isize::MAX as usize).unwrap_err().to_string();
        assert!(error.contains("smaller -e"), "{error}");
        assert!(GuardedBuffer::new(usize::MAX).is_err());
    }
}
