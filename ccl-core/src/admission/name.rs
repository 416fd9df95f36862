//! What immediates mean.

use crate::transport::IMMEDIATE_MAX;

const NUMBER_BITS: u32 = 20;
const NUMBER_MASK: u32 = (1 << NUMBER_BITS) - 1;
const CHANNEL_BITS: u32 = 6;
const KIND_SHIFT: u32 = NUMBER_BITS + CHANNEL_BITS;
const _: () = assert!(IMMEDIATE_MAX >> KIND_SHIFT == 3, "two bits are left for what is named");

/// The most channels that an immediate can tell apart.
pub const CHANNELS_MAX: u32 = 1 << CHANNEL_BITS;

/// The most slots of a link: a quarter of the numbers, so that old, current and forged ones
/// cannot be mistaken for each other.
pub const SLOTS_MAX: u32 = 1 << (NUMBER_BITS - 2);

/// An immediate, understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Name {
    /// A message has been put into the slot of its number.
    Message {
        /// Its channel.
        channel: u32,
        /// Its number in the link, modulo 2^20.
        number: u32,
    },
    /// A message has been put where its transfer grant says.
    Landed {
        /// Its channel.
        channel: u32,
        /// Its number, as above.
        number: u32,
    },
    /// Messages below a number may be sent.
    Grant {
        /// Their channel.
        channel: u32,
        /// The number, modulo 2^20.
        below: u32,
    },
}

impl Name {
    /// The name of message `number` of a channel.
    #[must_use]
    pub const fn message(channel: u32, number: u64) -> Name {
        Name::Message { channel, number: number as u32 & NUMBER_MASK }
    }

    /// The name of message `number` of a channel that goes where its transfer grant says.
    #[must_use]
    pub const fn landed(channel: u32, number: u64) -> Name {
        Name::Landed { channel, number: number as u32 & NUMBER_MASK }
    }

    /// The grant of all messages below `below` of a channel.
    #[must_use]
    pub const fn grant(channel: u32, below: u64) -> Name {
        Name::Grant { channel, below: below as u32 & NUMBER_MASK }
    }

    /// As an immediate.
    #[must_use]
    pub const fn encode(self) -> u32 {
        let (kind, channel, number) = match self {
            Name::Message { channel, number } => (0, channel, number),
            Name::Grant { channel, below } => (1, channel, below),
            Name::Landed { channel, number } => (2, channel, number),
        };
        kind << KIND_SHIFT | channel << NUMBER_BITS | number
    }

    /// From an immediate, if it means something.
    #[must_use]
    pub const fn decode(immediate: u32) -> Option<Name> {
        if immediate > IMMEDIATE_MAX {
            return None;
        }
        let channel = immediate >> NUMBER_BITS & (CHANNELS_MAX - 1);
        let number = immediate & NUMBER_MASK;
        match immediate >> KIND_SHIFT {
            0 => Some(Name::Message { channel, number }),
            1 => Some(Name::Grant { channel, below: number }),
            2 => Some(Name::Landed { channel, number }),
            _ => None,
        }
    }
}

/// How far `number` is ahead of `from`, modulo the numbers there are.
pub(super) const fn ahead(from: u64, number: u32) -> u64 {
    (number.wrapping_sub(from as u32) & NUMBER_MASK) as u64
}

/// Whether such a distance means that the number lies behind.
pub(super) const fn behind(ahead: u64) -> bool {
    ahead == 0 || ahead > 1 << (NUMBER_BITS - 1)
}
