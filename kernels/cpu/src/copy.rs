//! Plain and streaming copies.

/// Smallest number of bytes for which streaming saves more than it costs.
#[cfg(target_arch = "x86_64")]
const STREAM_BYTES_MIN: usize = 4096;

/// Copies `bytes` bytes from `src` to each of `dsts`; skips a destination that equals `src`.
///
/// # Safety
/// `src` is valid for reading `bytes` bytes, and each of `dsts` for writing as many. A destination
/// is exactly `src` or does not overlap it. Destinations do not overlap each other. During the
/// call, nothing else writes to this memory.
#[inline]
pub unsafe fn copy(dsts: &[*mut u8], src: *const u8, bytes: usize) {
    for &dst in dsts {
        if !std::ptr::eq(dst, src) {
            // SAFETY: the caller's promise; `dst` is not `src`, so they do not overlap.
            unsafe { std::ptr::copy_nonoverlapping(src, dst, bytes) };
        }
    }
}

/// Copies `bytes` bytes past the caches where the processor can (x86). Meant for a destination that
/// is larger than the cache, or that this core will not read soon. Short copies, and copies on
/// other processors, are plain. Measure before use: where the last-level cache is large, [`copy`]
/// is faster (`fold_bench` prints both). All bytes are visible to a thread that synchronises with
/// this one afterwards.
///
/// # Safety
/// The requirements of [`copy`], for one destination.
pub unsafe fn copy_streaming(dst: *mut u8, src: *const u8, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    if bytes >= STREAM_BYTES_MIN && !std::ptr::eq(dst, src) {
        // SAFETY: the caller's promise; `dst` is not `src`, so they do not overlap.
        return unsafe { stream(dst, src, bytes) };
    }
    // SAFETY: the caller's promise.
    unsafe { copy(&[dst], src, bytes) };
}

/// Copies lines of 64 bytes by non-temporal stores, the rest by plain ones.
///
/// # Safety
/// The requirements of [`copy`], for one destination that is not `src`.
#[cfg(target_arch = "x86_64")]
unsafe fn stream(dst: *mut u8, src: *const u8, bytes: usize) {
    use std::arch::x86_64::_mm_sfence;
    const LINE_BYTES: usize = 64;
    let head = Ord::min(dst.align_offset(LINE_BYTES), bytes);
    // SAFETY: the caller's promise; the first `head` bytes.
    unsafe { std::ptr::copy_nonoverlapping(src, dst, head) };
    let mut done = head;
    while bytes - done >= LINE_BYTES {
        let (dst, src) = (dst.wrapping_add(done), src.wrapping_add(done));
        // SAFETY: the caller's promise, within `bytes`; `head` makes the address a multiple of 64.
        unsafe { stream_line(dst, src) };
        done += LINE_BYTES;
    }
    // SAFETY: every x86-64 processor has SSE, which this instruction belongs to.
    unsafe { _mm_sfence() };
    let (dst, src) = (dst.wrapping_add(done), src.wrapping_add(done));
    // SAFETY: the caller's promise; the remaining bytes.
    unsafe { std::ptr::copy_nonoverlapping(src, dst, bytes - done) };
}

/// Copies one line of 64 bytes by non-temporal stores.
///
/// # Safety
/// `src` is valid for reading 64 bytes. `dst` is a multiple of 16, and valid for writing 64 bytes.
/// The caller fences before another thread or a device may read `dst`.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn stream_line(dst: *mut u8, src: *const u8) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};
    // SAFETY: the caller's promise; an unaligned read.
    let line: [__m128i; 4] = std::array::from_fn(|part| unsafe {
        _mm_loadu_si128(src.cast::<__m128i>().wrapping_add(part))
    });
    for (part, value) in line.into_iter().enumerate() {
        // SAFETY: the caller's promise; the address is a multiple of 16.
        unsafe { _mm_stream_si128(dst.cast::<__m128i>().wrapping_add(part), value) };
    }
}
