//! Length-prefixed frames: the length of the body in four bytes (little endian), then the body.

use thiserror::Error;

const HEADER_BYTES: usize = 4;

/// The body of one frame.
pub type Frame = Vec<u8>;

/// Error for a length prefix that exceeds the bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a frame of {length} bytes was announced, but the limit is {length_max} bytes")]
pub struct FrameError {
    /// Length that the prefix announces, in bytes.
    pub length: usize,
    /// Bound of the decoder when the prefix came, in bytes.
    pub length_max: usize,
}

/// Decoder that cuts a stream of bytes into frames. The decoder holds one frame at a time and
/// reserves memory only for a length within its bound.
#[derive(Debug)]
pub struct Decoder {
    length_max: usize,
    header: [u8; HEADER_BYTES],
    header_filled: usize,
    body: Vec<u8>,
}

impl Decoder {
    /// Returns a decoder that refuses frames with bodies of more than `length_max` bytes.
    #[must_use]
    pub fn new(length_max: usize) -> Decoder {
        Decoder { length_max, header: [0; HEADER_BYTES], header_filled: 0, body: Vec::new() }
    }

    /// Changes the bound for later frames; used once the peer has proved that it knows the secret.
    pub fn set_length_max(&mut self, length_max: usize) {
        self.length_max = length_max;
    }

    /// Takes the missing bytes of the current frame from the front of `bytes`. Returns the frame
    /// once it is complete; `None` when `bytes` is used up.
    ///
    /// # Errors
    /// A length over the bound. The stream cannot be resumed after that.
    pub fn feed(&mut self, bytes: &mut &[u8]) -> Result<Option<Frame>, FrameError> {
        let header = take(bytes, HEADER_BYTES - self.header_filled);
        self.header[self.header_filled..][..header.len()].copy_from_slice(header);
        self.header_filled += header.len();
        if self.header_filled < HEADER_BYTES {
            return Ok(None);
        }
        let length = u32::from_le_bytes(self.header) as usize;
        if length > self.length_max {
            return Err(FrameError { length, length_max: self.length_max });
        }
        if self.body.capacity() < length {
            self.body.reserve_exact(length - self.body.len());
        }
        self.body.extend_from_slice(take(bytes, length - self.body.len()));
        if self.body.len() < length {
            return Ok(None);
        }
        self.header_filled = 0;
        Ok(Some(std::mem::take(&mut self.body)))
    }
}

/// Splits at most `count` bytes off the front of `bytes`.
fn take<'a>(bytes: &mut &'a [u8], count: usize) -> &'a [u8] {
    let (front, rest) = bytes.split_at(count.min(bytes.len()));
    *bytes = rest;
    front
}

/// Appends the frame with this body to `stream`.
pub(super) fn append_frame(stream: &mut Vec<u8>, body: &[u8]) {
    // Bodies are bounded by FRAME_BYTES_MAX where they are made, far below 4 GiB.
    let length = u32::try_from(body.len()).unwrap_or(u32::MAX);
    stream.extend_from_slice(&length.to_le_bytes());
    stream.extend_from_slice(body);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frames(decoder: &mut Decoder, mut bytes: &[u8]) -> Result<Vec<Frame>, FrameError> {
        let mut found = Vec::new();
        while let Some(frame) = decoder.feed(&mut bytes)? {
            found.push(frame);
        }
        Ok(found)
    }

    #[test]
    fn empty_and_full_frames_pass_and_a_longer_one_is_refused() {
        let mut stream = Vec::new();
        for length in [0, 1, 8] {
            append_frame(&mut stream, &vec![7; length]);
        }
        let found = frames(&mut Decoder::new(8), &stream).unwrap();
        assert_eq!(found.iter().map(Vec::len).collect::<Vec<_>>(), [0, 1, 8]);
        let refused = frames(&mut Decoder::new(7), &stream).unwrap_err();
        assert_eq!(refused, FrameError { length: 8, length_max: 7 });
    }

    proptest! {
        #[test]
        fn any_cut_of_the_stream_gives_the_same_frames(
            bodies in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..8),
            cuts in prop::collection::vec(1usize..9, 1..20),
        ) {
            let mut stream = Vec::new();
            bodies.iter().for_each(|body| append_frame(&mut stream, body));
            let (mut decoder, mut found, mut rest) = (Decoder::new(40), Vec::new(), &stream[..]);
            for cut in cuts.iter().cycle() {
                if rest.is_empty() { break; }
                found.extend(frames(&mut decoder, take(&mut rest, *cut)).unwrap());
            }
            prop_assert_eq!(found, bodies);
        }

        #[test]
        fn any_bytes_neither_panic_nor_reserve_more_than_the_bound(
            bytes in prop::collection::vec(any::<u8>(), 0..600), bound in 0usize..300,
        ) {
            let mut decoder = Decoder::new(bound);
            let mut rest = &bytes[..];
            while let Ok(Some(frame)) = decoder.feed(&mut rest) {
                prop_assert!(frame.capacity() <= bound);
            }
            prop_assert!(decoder.body.capacity() <= bound);
        }
    }
}
