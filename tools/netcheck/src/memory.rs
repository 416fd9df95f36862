//! Memory that a plugin reads and writes, with patterns that show whether it did so correctly.
//!
//! The memory consists of atomics, because a defective plugin may write to it at any time. It is
//! never freed, because such a plugin may write late. It does not pile up, because each point of
//! the check has a process of its own.

use std::ops::Range;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::stop::{Outcome, failed};

/// Value of bytes that nothing was received into.
const UNTOUCHED: u8 = 0xA5;
/// Bytes after each receive buffer, which must stay untouched.
pub(crate) const GUARD: usize = 64;

/// All memory: reachable from here, so that leak detectors do not report it.
static KEPT: Mutex<Vec<&'static [AtomicU8]>> = Mutex::new(Vec::new());

/// Bytes that live as long as the process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory(&'static [AtomicU8]);

impl Memory {
    /// Allocates `bytes` untouched bytes.
    pub(crate) fn new(bytes: usize) -> Memory {
        let memory: Vec<AtomicU8> = (0..bytes).map(|_| AtomicU8::new(UNTOUCHED)).collect();
        let memory = memory.leak();
        KEPT.lock().unwrap_or_else(PoisonError::into_inner).push(memory);
        Memory(memory)
    }

    /// Returns the number of bytes.
    pub(crate) fn len(self) -> usize {
        self.0.len()
    }

    /// Returns a part of the memory. The range must lie within.
    pub(crate) fn part(self, range: Range<usize>) -> Memory {
        Memory(&self.0[range])
    }

    /// Returns the address.
    pub(crate) fn address(self) -> *mut std::ffi::c_void {
        self.0.as_ptr().cast_mut().cast()
    }

    /// Fills the memory with the message of that seed.
    pub(crate) fn fill(self, seed: u64) {
        for (index, bytes) in self.0.chunks(8).enumerate() {
            for (byte, value) in bytes.iter().zip(word(seed, index)) {
                byte.store(value, Ordering::Relaxed);
            }
        }
    }

    /// Makes all bytes untouched again.
    pub(crate) fn clear(self) {
        self.0.iter().for_each(|byte| byte.store(UNTOUCHED, Ordering::Relaxed));
    }

    /// Returns whether the memory holds the message of that seed.
    pub(crate) fn holds(self, seed: u64) -> bool {
        self.first_wrong(seed).is_none()
    }

    /// Fails unless the first `sent` bytes hold the message of that seed, and the bytes after the
    /// first `posted` are untouched.
    pub(crate) fn verify(self, seed: u64, sent: usize, posted: usize) -> Outcome {
        if let Some((at, expected, found)) = self.part(0..sent).first_wrong(seed) {
            let what = if found == UNTOUCHED { "as if nothing had arrived" } else { "other data" };
            return failed(format!(
                "received byte {at} of {sent} is {found:#04x} ({what}), expected {expected:#04x}"
            ));
        }
        let behind = self.0[posted..].iter().position(|b| b.load(Ordering::Relaxed) != UNTOUCHED);
        match behind {
            Some(at) => failed(format!(
                "the plugin wrote past the {posted} bytes that it may write, at byte {}",
                posted + at
            )),
            None => Ok(()),
        }
    }

    /// Returns the first byte that differs from the message of that seed: its index, the expected
    /// value, and the value found.
    fn first_wrong(self, seed: u64) -> Option<(usize, u8, u8)> {
        self.0.chunks(8).enumerate().find_map(|(index, bytes)| {
            let pairs = bytes.iter().zip(word(seed, index)).enumerate();
            pairs
                .map(|(at, (byte, expected))| (at, expected, byte.load(Ordering::Relaxed)))
                .find(|(_, expected, found)| expected != found)
                .map(|(at, expected, found)| (index * 8 + at, expected, found))
        })
    }
}

/// Returns eight bytes of the message of that seed: a counter whose bits are mixed, so that
/// neighbours have nothing in common.
fn word(seed: u64, index: usize) -> [u8; 8] {
    let mut bits = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(index as u64 + 1);
    for _ in 0..2 {
        bits ^= bits >> 32;
        bits = bits.wrapping_mul(0xD6E8_FEB8_6659_FD93);
    }
    (bits ^ (bits >> 32)).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_recognised_by_its_seed_and_offset() {
        let memory = Memory::new(100 + GUARD);
        memory.part(0..100).fill(1);
        assert!(memory.verify(1, 100, 100).is_ok());
        assert!(memory.verify(1, 37, 100).is_ok());
        assert!(memory.verify(2, 100, 100).is_err());
        assert!(memory.part(8..100).verify(1, 80, 92).is_err());
    }

    #[test]
    fn a_write_past_the_end_of_a_buffer_is_found() {
        let memory = Memory::new(100 + GUARD);
        memory.part(0..101).fill(1);
        assert!(memory.verify(1, 100, 100).is_err());
        memory.clear();
        assert!(memory.verify(1, 0, 0).is_ok());
        assert!(memory.verify(1, 1, 100).is_err());
    }
}
