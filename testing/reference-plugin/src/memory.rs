//! Memory of the caller: registered ranges, and the buffers of requests.

use std::ops::Range;
use std::slice::{from_raw_parts, from_raw_parts_mut};
use std::sync::Arc;

/// Registered range of memory. Sockets need no registration, but the plugin checks that every
/// transfer, unless it is empty, lies inside a registered range.
#[derive(Debug)]
pub(crate) struct Registration {
    start: usize,
    bytes: usize,
}

impl Registration {
    pub(crate) fn new(start: usize, bytes: usize) -> Registration {
        Registration { start, bytes }
    }

    /// Returns whether a range lies inside the registration.
    pub(crate) fn covers(&self, start: usize, bytes: usize) -> bool {
        let end = start.checked_add(bytes);
        start >= self.start && end.is_some_and(|end| end <= self.start.saturating_add(self.bytes))
    }
}

/// Buffer of a request.
#[derive(Debug)]
pub(crate) struct Span {
    start: *mut u8,
    bytes: usize,
    registration: Option<Arc<Registration>>,
}

// SAFETY: a span is an address and a length. The caller leaves the bytes to the request until the
// request ends, so any thread may read and write them.
unsafe impl Send for Span {}

impl Span {
    /// Creates a buffer inside a registration. The plugin passes `None` as the registration only if
    /// the buffer is empty.
    ///
    /// # Safety
    ///
    /// The bytes are valid, and nobody else uses them, until the span is dropped.
    pub(crate) unsafe fn new(
        start: *mut u8,
        bytes: usize,
        registration: Option<Arc<Registration>>,
    ) -> Span {
        Span { start, bytes, registration }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns whether the buffer lies in that registration.
    pub(crate) fn is_of(&self, registration: &Arc<Registration>) -> bool {
        self.registration.as_ref().is_some_and(|own| Arc::ptr_eq(own, registration))
    }

    /// Returns a part of the buffer to read; an empty slice if the part reaches beyond the buffer.
    pub(crate) fn readable(&self, part: Range<usize>) -> &[u8] {
        if part.is_empty() || part.end > self.bytes {
            return &[];
        }
        // SAFETY: the part lies inside. By the contract of `new`, the bytes are valid, and nobody
        // else uses them, while the span exists.
        unsafe { from_raw_parts(self.start.wrapping_add(part.start), part.len()) }
    }

    /// Returns a part of the buffer to write; an empty slice if the part reaches beyond the buffer.
    pub(crate) fn writable(&mut self, part: Range<usize>) -> &mut [u8] {
        if part.is_empty() || part.end > self.bytes {
            return &mut [];
        }
        // SAFETY: the part lies inside. By the contract of `new`, the bytes are valid, and nobody
        // else uses them, while the span exists.
        unsafe { from_raw_parts_mut(self.start.wrapping_add(part.start), part.len()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_registration_covers_what_lies_inside() {
        let registration = Registration::new(1000, 24);
        for (start, bytes) in [(1000, 24), (1000, 0), (1024, 0), (1023, 1)] {
            assert!(registration.covers(start, bytes), "{start} {bytes}");
        }
        for (start, bytes) in [(999, 1), (1000, 25), (1024, 1), (1001, usize::MAX)] {
            assert!(!registration.covers(start, bytes), "{start} {bytes}");
        }
    }

    #[test]
    fn a_part_that_reaches_beyond_the_buffer_is_an_empty_slice() {
        let mut bytes = [7; 4];
        // SAFETY: the array outlives the span.
        let mut span = unsafe { Span::new(bytes.as_mut_ptr(), 4, None) };
        assert_eq!((span.readable(1..4), span.readable(1..5)), (&[7; 3][..], &[][..]));
        assert_eq!((span.writable(0..4).len(), span.writable(4..5).len()), (4, 0));
    }
}
