//! Wire format of the messages between the two ends of a connection: records of CTS, headers of
//! chunks, immediates, notes.

use bytemuck::{Pod, Zeroable};
use ccl_core::encoding::{decode, encode};
use ccl_core::transport::{CTS_BYTES_MAX, IMMEDIATE_MAX, RemoteKey};
use ccl_transport_multirail::TURNS;
use serde::{Deserialize, Serialize};

/// Largest number of buffers in one group.
pub(crate) const GROUP_MAX: usize = 8;
/// Largest number of groups that a receiver may have outstanding.
pub(crate) const GROUPS: usize = 64;
/// Bytes that the ring has for each CTS record; a record with few buffers fills fewer of them.
pub(crate) const RECORD_BYTES: usize = CTS_BYTES_MAX;
/// Bytes before a chunk's payload.
pub(crate) const HEADER_BYTES: usize = 64;
/// Largest number of slots of a receiver.
pub(crate) const SLOTS_MAX: usize = 16;
/// Memory number of a buffer that the peer cannot reach: its message comes through slots.
pub(crate) const THROUGH_SLOTS: u32 = u32::MAX;

/// Largest number of characters of a peer's name that are shown.
const PEER_CHARS_MAX: usize = 200;
/// Bits of a group's number on the wire.
const NUMBER_BITS: u32 = 26;
pub(crate) const NUMBER_MASK: u32 = (1 << NUMBER_BITS) - 1;

/// Destination of one message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Receive {
    pub(crate) tag: i32,
    /// Index among all buffers with this tag, modulo 2^32. The message for the buffer has the same
    /// index among all messages with this tag.
    pub(crate) ordinal: u32,
    /// The receiver's number for the memory, or [`THROUGH_SLOTS`].
    pub(crate) memory: u32,
    /// Offset of the buffer in that memory; 48 bits.
    pub(crate) offset: u64,
    /// Bytes that the buffer has room for; 48 bits.
    pub(crate) bytes: u64,
}

/// A group of buffers that one CTS announces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    /// Number of the group, modulo 2^26.
    pub(crate) group: u32,
    pub(crate) count: usize,
    pub(crate) receives: [Receive; GROUP_MAX],
}

impl Record {
    /// Encodes the record. Returns the bytes, and how many of them are used.
    pub(crate) fn encode(&self) -> ([u8; RECORD_BYTES], usize) {
        let mut layout = RecordLayout::zeroed();
        layout.word = (self.group & NUMBER_MASK) | (self.count as u32) << NUMBER_BITS;
        for (entry, receive) in layout.entries.iter_mut().zip(&self.receives[..self.count]) {
            let Receive { tag, ordinal, memory, offset, bytes } = *receive;
            *entry = Entry { tag, ordinal, memory, offset: low48(offset), bytes: low48(bytes) };
        }
        let used = 8 + self.count * size_of::<Entry>();
        layout.sum = sum(&bytemuck::bytes_of(&layout)[..used]);
        let mut bytes = [0; RECORD_BYTES];
        bytes[..size_of::<RecordLayout>()].copy_from_slice(bytemuck::bytes_of(&layout));
        (bytes, used)
    }

    /// Decodes a record; returns none if the bytes are not a complete record.
    pub(crate) fn decode(bytes: &[u8; RECORD_BYTES]) -> Option<Record> {
        let layout: RecordLayout =
            bytemuck::pod_read_unaligned(bytes.get(..size_of::<RecordLayout>())?);
        let (group, count) = (layout.word & NUMBER_MASK, (layout.word >> NUMBER_BITS) as usize);
        let is_whole = || layout.sum == sum(&bytes[..8 + count * size_of::<Entry>()]);
        if !(1..=GROUP_MAX).contains(&count) || !is_whole() {
            return None;
        }
        let mut receives = [Receive::default(); GROUP_MAX];
        for (receive, entry) in receives.iter_mut().zip(&layout.entries).take(count) {
            let Entry { tag, ordinal, memory, offset, bytes } = *entry;
            *receive = Receive { tag, ordinal, memory, offset: u48(offset), bytes: u48(bytes) };
        }
        Some(Record { group, count, receives })
    }
}

/// A record as it is sent; all hosts are little-endian.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct RecordLayout {
    /// Number of the group in the low 26 bits; count of its buffers in the other bits.
    word: u32,
    sum: u32,
    entries: [Entry; GROUP_MAX],
}
const _: () = assert!(size_of::<RecordLayout>() <= RECORD_BYTES);
const _: () = assert!(cfg!(target_endian = "little"), "records need a little-endian host");

/// A [`Receive`] as it is sent.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Entry {
    tag: i32,
    ordinal: u32,
    memory: u32,
    offset: [u8; 6],
    bytes: [u8; 6],
}

fn low48(value: u64) -> [u8; 6] {
    let [a, b, c, d, e, f, ..] = value.to_le_bytes();
    [a, b, c, d, e, f]
}

fn u48([a, b, c, d, e, f]: [u8; 6]) -> u64 {
    u64::from_le_bytes([a, b, c, d, e, f, 0, 0])
}

/// Returns the checksum of a record's bytes, without the bytes of the checksum itself. A record may
/// be overwritten while it is read: the checksum is then wrong, and the new record is announced by
/// an immediate of its own.
fn sum(record: &[u8]) -> u32 {
    let (words, _) = record.as_chunks();
    let sum = words.iter().enumerate().fold(1u64, |sum, (at, word)| {
        let word = u64::from_le_bytes(*word);
        // Leaves out the sum itself, the upper half of the first word.
        let word = if at == 0 { word & u64::from(u32::MAX) } else { word };
        (sum.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    });
    (sum >> 32) as u32
}

/// The header of a chunk in a slot, as it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Header {
    pub(crate) tag: i32,
    /// Index among all messages with this tag, modulo 2^32.
    pub(crate) ordinal: u32,
    /// Offset of the chunk in the message.
    pub(crate) at: u64,
    /// Bytes of the chunk.
    pub(crate) bytes: u64,
    /// Bytes of the message. A sender that has the CTS of the buffer sends no more bytes than the
    /// buffer has.
    pub(crate) total: u64,
}

impl Header {
    pub(crate) fn encode(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..size_of::<Header>()].copy_from_slice(bytemuck::bytes_of(&self));
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; HEADER_BYTES]) -> Header {
        bytemuck::pod_read_unaligned(&bytes[..size_of::<Header>()])
    }
}

/// A decoded immediate. After a rail has failed, the two sides tell the rail's puts apart by the
/// immediates. Successive chunks for one slot would have equal immediates, so each immediate of a
/// chunk has a turn, a counter modulo a power of two. Immediates of credits have a turn for the
/// same reason. The turn serves no other purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Immediate {
    /// Tells the receiver that a chunk is in this slot.
    Chunk { slot: usize, turn: u32 },
    /// Tells the sender that the record of this group is in the sender's ring.
    Cts(u32),
    /// Tells the receiver that the message for this buffer of this group is in the buffer.
    Direct(u32, usize),
    /// Tells the sender that `count` slots (at least one) from `first` on are free again.
    Credits { first: usize, count: usize, turn: u32 },
}

const KIND_SHIFT: u32 = NUMBER_BITS;
const _: () = assert!(IMMEDIATE_MAX >> KIND_SHIFT == 3, "two bits are left for the kind");
const SLOT_BITS: u32 = 4;
const CHUNK_TURNS: u32 = 1 << (NUMBER_BITS - SLOT_BITS);
const CREDIT_TURNS: u32 = CHUNK_TURNS >> SLOT_BITS;
const _: () = assert!(SLOTS_MAX == 1 << SLOT_BITS && CREDIT_TURNS as usize >= TURNS);

impl Immediate {
    pub(crate) fn encode(self) -> u32 {
        let (kind, value) = match self {
            Immediate::Chunk { slot, turn } => (0, (turn % CHUNK_TURNS) << SLOT_BITS | slot as u32),
            Immediate::Cts(group) => (1, group & NUMBER_MASK),
            Immediate::Direct(group, index) => (2, (group << 3 | index as u32) & NUMBER_MASK),
            Immediate::Credits { first, count, turn } => {
                let last = (count as u32).wrapping_sub(1) % SLOTS_MAX as u32;
                (3, ((turn % CREDIT_TURNS) << SLOT_BITS | last) << SLOT_BITS | first as u32)
            }
        };
        kind << KIND_SHIFT | value
    }

    /// Decodes an immediate. [`Immediate::Direct`] holds only the low 23 bits of its group's
    /// number.
    pub(crate) fn decode(immediate: u32) -> Option<Immediate> {
        let value = immediate & NUMBER_MASK;
        let (low, high) = (value as usize % SLOTS_MAX, value >> SLOT_BITS);
        match immediate >> KIND_SHIFT {
            0 => Some(Immediate::Chunk { slot: low, turn: high }),
            1 => Some(Immediate::Cts(value)),
            2 => Some(Immediate::Direct(value >> 3, (value & 7) as usize)),
            3 => {
                let count = high as usize % SLOTS_MAX + 1;
                let turn = high >> SLOT_BITS;
                (low + count <= SLOTS_MAX).then_some(Immediate::Credits { first: low, count, turn })
            }
            _ => None,
        }
    }

    /// Creates an immediate that announces the first run of adjacent slots in `slots`, a set of
    /// free slots that must not be empty. Returns the immediate and the slots that remain.
    pub(crate) fn freed(slots: u32, turn: u32) -> (Immediate, u32) {
        let first = slots.trailing_zeros();
        let count = (slots >> first).trailing_ones();
        let told = ((1 << count) - 1) << first;
        (Immediate::Credits { first: first as usize, count: count as usize, turn }, slots & !told)
    }
}

/// A message that is sent beside the data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Note {
    /// Ring of the data's sender, into which the receiver puts CTS records.
    Ring(RemoteKey),
    /// Slots of the receiver: their number, bytes of payload of each, their memory.
    Slots(u32, u64, RemoteKey),
    /// Says that the side that sends this note has imported the other side's ring or slots. A
    /// connection is ready only after this note, so that the connecting side can try another path
    /// if the import fails.
    Ready,
    /// Number by which CTS records will name some memory, and the remote key of that memory.
    Memory(u32, RemoteKey),
    /// Number of memory that CTS records will not name any more.
    Withdrawn(u32),
    /// Name of the side that sends the note, for people.
    Peer(String),
}

impl Note {
    pub(crate) fn encode(&self) -> Vec<u8> {
        encode(self)
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Note> {
        Some(match decode(bytes).ok()? {
            Note::Peer(name) => {
                let shown = |c: &char| c.is_ascii_graphic() || *c == ' ';
                Note::Peer(name.chars().filter(shown).take(PEER_CHARS_MAX).collect())
            }
            note => note,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(count: usize) -> Record {
        let mut receives = [Receive::default(); GROUP_MAX];
        for (at, receive) in receives.iter_mut().take(count).enumerate() {
            *receive = Receive {
                tag: -7 * at as i32,
                ordinal: u32::MAX - at as u32,
                memory: at as u32,
                offset: (1 << 48) - 1 - at as u64,
                bytes: 1 << 40,
            };
        }
        Record { group: 0x3ff_fff1, count, receives }
    }

    #[test]
    fn records_are_read_as_written_and_torn_records_are_rejected() {
        for count in 1..=GROUP_MAX {
            let (bytes, used) = record(count).encode();
            assert_eq!(Record::decode(&bytes), Some(record(count)));
            for at in 0..used {
                let mut torn = bytes;
                torn[at] ^= 0x10;
                assert_eq!(Record::decode(&torn), None, "byte {at} of a record of {count} entries");
            }
        }
        assert_eq!(Record::decode(&[0; RECORD_BYTES]), None);
    }

    #[test]
    fn free_slots_are_announced_by_one_immediate_per_run_of_adjacent_slots() {
        for slots in [1, 0x8000, 0xffff, 0x0ff0, 0b1011_0111, 0xaaaa] {
            let (mut told, mut left, mut immediates) = (0u32, slots, 0);
            while left != 0 {
                let (immediate, rest) = Immediate::freed(left, 7);
                let Some(Immediate::Credits { first, count, turn: 7 }) =
                    Immediate::decode(immediate.encode())
                else {
                    panic!("{immediate:?}");
                };
                told |= ((1 << count) - 1) << first;
                assert_eq!(told | rest, slots);
                (left, immediates) = (rest, immediates + 1);
            }
            assert_eq!((told, immediates), (slots, (slots & !(slots << 1)).count_ones()));
        }
    }

    #[test]
    fn headers_immediates_and_notes_are_read_as_written() {
        let header = Header { tag: -1, ordinal: 7, at: 1 << 41, bytes: 3, total: 1 << 42 };
        assert_eq!(Header::decode(&header.encode()), header);
        for immediate in [
            Immediate::Chunk { slot: 15, turn: CHUNK_TURNS - 1 },
            Immediate::Chunk { slot: 0, turn: 0 },
            Immediate::Cts(NUMBER_MASK),
            Immediate::Direct(NUMBER_MASK >> 3, 7),
            Immediate::Credits { first: 0, count: 16, turn: CREDIT_TURNS - 1 },
            Immediate::Credits { first: 15, count: 1, turn: 0 },
        ] {
            assert!(immediate.encode() <= IMMEDIATE_MAX);
            assert_eq!(Immediate::decode(immediate.encode()), Some(immediate));
        }
        let beyond = Immediate::Credits { first: 15, count: 2, turn: 0 };
        assert_eq!(Immediate::decode(beyond.encode()), None);
        assert_eq!(Immediate::decode(1 << 28), None);
        let key = || RemoteKey(vec![1, 2, 3]);
        for note in [
            Note::Ring(key()),
            Note::Slots(16, 1 << 40, key()),
            Note::Memory(9, key()),
            Note::Withdrawn(u32::MAX),
            Note::Peer("host-7, process 9".to_owned()),
        ] {
            assert_eq!(Note::decode(&note.encode()), Some(note));
        }
        for short in [&[][..], &[0], &[1, 3], &[2, 1], &[3, 1, 2], &[5]] {
            assert_eq!(Note::decode(short), None);
        }
    }
}
