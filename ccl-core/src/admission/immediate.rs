//! Encoding of immediates.

use crate::transport::IMMEDIATE_MAX;

const NUMBER_BITS: u32 = 20;
const NUMBER_MASK: u32 = (1 << NUMBER_BITS) - 1;
const CHANNEL_BITS: u32 = 6;
const KIND_SHIFT: u32 = NUMBER_BITS + CHANNEL_BITS;
const _: () =
    assert!(IMMEDIATE_MAX >> KIND_SHIFT == 3, "two bits are left for the kind of immediate");

/// The most channels that an immediate can encode.
pub const CHANNELS_MAX: u32 = 1 << CHANNEL_BITS;

/// The most slots of a link: a quarter of the 2^20 message numbers, so that old, current and forged
/// numbers cannot be confused.
pub const SLOTS_MAX: u32 = 1 << (NUMBER_BITS - 2);

/// The number of at most 28 bits that travels with a put, decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Immediate {
    /// A message has been put into the slot of its number.
    Message {
        /// Channel of the message.
        channel: u32,
        /// Number of the message in its link, modulo 2^20.
        number: u32,
    },
    /// A message has been placed where its CTS says.
    Placed {
        /// Channel of the message.
        channel: u32,
        /// Number of the message in its link, modulo 2^20.
        number: u32,
    },
    /// Messages below a number may be sent.
    Credit {
        /// Channel of the messages.
        channel: u32,
        /// The number, modulo 2^20.
        below: u32,
    },
}

impl Immediate {
    /// Returns the immediate of message `number` of a channel.
    #[must_use]
    pub const fn message(channel: u32, number: u64) -> Immediate {
        Immediate::Message { channel, number: number as u32 & NUMBER_MASK }
    }

    /// Returns the immediate of message `number` of a channel, placed where its CTS says.
    #[must_use]
    pub const fn placed(channel: u32, number: u64) -> Immediate {
        Immediate::Placed { channel, number: number as u32 & NUMBER_MASK }
    }

    /// Returns the immediate that grants all messages below `below` of a channel.
    #[must_use]
    pub const fn credit(channel: u32, below: u64) -> Immediate {
        Immediate::Credit { channel, below: below as u32 & NUMBER_MASK }
    }

    /// Returns the number that encodes the immediate.
    #[must_use]
    pub const fn encode(self) -> u32 {
        let (kind, channel, number) = match self {
            Immediate::Message { channel, number } => (0, channel, number),
            Immediate::Credit { channel, below } => (1, channel, below),
            Immediate::Placed { channel, number } => (2, channel, number),
        };
        kind << KIND_SHIFT | channel << NUMBER_BITS | number
    }

    /// Returns the immediate that a number encodes; none if the number encodes no immediate.
    #[must_use]
    pub const fn decode(immediate: u32) -> Option<Immediate> {
        if immediate > IMMEDIATE_MAX {
            return None;
        }
        let channel = immediate >> NUMBER_BITS & (CHANNELS_MAX - 1);
        let number = immediate & NUMBER_MASK;
        match immediate >> KIND_SHIFT {
            0 => Some(Immediate::Message { channel, number }),
            1 => Some(Immediate::Credit { channel, below: number }),
            2 => Some(Immediate::Placed { channel, number }),
            _ => None,
        }
    }
}

/// Returns the distance from `from` to `number`, modulo 2^20.
pub(super) const fn ahead(from: u64, number: u32) -> u64 {
    (number.wrapping_sub(from as u32) & NUMBER_MASK) as u64
}

/// Returns whether this distance, as [`ahead`] returns it, means that `number` equals `from` or is
/// older.
pub(super) const fn behind(ahead: u64) -> bool {
    ahead == 0 || ahead > 1 << (NUMBER_BITS - 1)
}
