//! Frame that precedes a message: its size, tag and first bytes. Every frame has the same length,
//! so that a short message takes one write and one read.

use nccl_net_abi::TRANSFER_BYTES_MAX;

const HEAD_BYTES: usize = 16;
/// Largest number of bytes of a message that its frame carries.
pub(crate) const INLINE_BYTES: usize = 128;
/// Length of a frame on the wire.
pub(crate) const FRAME_BYTES: usize = HEAD_BYTES + INLINE_BYTES;

/// Frame on the wire.
pub(crate) type Frame = [u8; FRAME_BYTES];

/// Returns the frame of a message.
pub(crate) fn encode(tag: i32, bytes: usize, inline: &[u8]) -> Frame {
    let mut frame = [0; FRAME_BYTES];
    frame[..8].copy_from_slice(&(bytes as u64).to_le_bytes());
    frame[8..12].copy_from_slice(&tag.to_le_bytes());
    frame[HEAD_BYTES..HEAD_BYTES + inline.len()].copy_from_slice(inline);
    frame
}

/// Returns the tag, the message's length and the bytes in the frame; `None` if the frame is
/// invalid.
pub(crate) fn decode(frame: &Frame) -> Option<(i32, usize, &[u8])> {
    let bytes = u64::from_le_bytes(*frame.first_chunk()?);
    let bytes = usize::try_from(bytes).ok().filter(|bytes| *bytes <= TRANSFER_BYTES_MAX)?;
    let tag = i32::from_le_bytes(*frame.get(8..)?.first_chunk()?);
    Some((tag, bytes, &frame[HEAD_BYTES..HEAD_BYTES + inline(bytes)]))
}

/// Returns the number of a message's bytes that its frame carries.
pub(crate) fn inline(bytes: usize) -> usize {
    bytes.min(INLINE_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_encoded_frame_is_decoded_unchanged() {
        assert_eq!(decode(&encode(-3, 2, &[5, 6])), Some((-3, 2, &[5, 6][..])));
        assert_eq!(decode(&encode(7, 0, &[])), Some((7, 0, &[][..])));
        let long = encode(1, 1 << 40, &[9; 128]);
        assert_eq!(decode(&long), Some((1, 1 << 40, &[9; 128][..])));
        assert_eq!(decode(&[0xff; FRAME_BYTES]), None);
    }
}
