//! Encoding of the remote CQ data of a write: the sender, the immediate and the length.
//!
//! An endpoint has many peers, and a completion does not name the sender. So each side gives each
//! peer a number, which the peer's writes carry. CQ data of eight bytes also carries the length,
//! since some completions of libfabric 1.17 lack it. Providers with four bytes of CQ data (EFA)
//! have the length in the completion.

/// Bits of an immediate.
const IMMEDIATE_BITS: u32 = 28;
/// Bits of the length, if the data has room for a length.
const LENGTH_BITS: u32 = 24;
/// Bits of the peer's number: in data with a length, and in data without a length.
const NUMBER_BITS: [u32; 2] = [12, 4];

/// Layout of the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    has_length: bool,
}

/// Decoded data of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tag {
    pub(crate) number: u32,
    pub(crate) immediate: u32,
    /// Length of the write; none if the completion has it.
    pub(crate) bytes: Option<usize>,
}

impl Layout {
    /// Returns the layout for a provider with `data_bytes` bytes of data, at least four.
    pub(crate) fn new(data_bytes: usize) -> Layout {
        Layout { has_length: data_bytes >= 8 }
    }

    /// Returns the number of peers that can be told apart.
    pub(crate) fn peers_max(self) -> usize {
        1 << NUMBER_BITS[usize::from(!self.has_length)]
    }

    /// Returns the largest number of bytes of a write.
    pub(crate) fn bytes_max(self) -> usize {
        if self.has_length { (1 << LENGTH_BITS) - 1 } else { usize::MAX }
    }

    pub(crate) fn encode(self, number: u32, immediate: u32, bytes: usize) -> u64 {
        let length = if self.has_length { bytes as u64 } else { 0 };
        let number = u64::from(number) << IMMEDIATE_BITS;
        let length = length << (IMMEDIATE_BITS + NUMBER_BITS[0]);
        length | number | u64::from(immediate)
    }

    pub(crate) fn decode(self, data: u64) -> Tag {
        let bits = |from: u32, bits: u32| data >> from & ((1 << bits) - 1);
        let number_bits = NUMBER_BITS[usize::from(!self.has_length)];
        let length = bits(IMMEDIATE_BITS + NUMBER_BITS[0], LENGTH_BITS) as usize;
        Tag {
            number: bits(IMMEDIATE_BITS, number_bits) as u32,
            immediate: bits(0, IMMEDIATE_BITS) as u32,
            bytes: self.has_length.then_some(length),
        }
    }
}

#[cfg(test)]
mod tests {
    use ccl_core::transport::IMMEDIATE_MAX;

    use super::*;

    #[test]
    fn tags_decode_at_the_bounds_of_their_fields() {
        for (data_bytes, peers) in [(8, 4096), (4, 16)] {
            let layout = Layout::new(data_bytes);
            assert_eq!(layout.peers_max(), peers);
            for number in [0, peers as u32 - 1] {
                for immediate in [0, IMMEDIATE_MAX] {
                    for bytes in [0, layout.bytes_max().min(1 << 30)] {
                        let data = layout.encode(number, immediate, bytes);
                        assert!(data_bytes == 8 || data <= u64::from(u32::MAX));
                        let tag = layout.decode(data);
                        assert_eq!((tag.number, tag.immediate), (number, immediate));
                        assert_eq!(tag.bytes, (data_bytes == 8).then_some(bytes));
                    }
                }
            }
        }
    }
}
