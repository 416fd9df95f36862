//! What immediates mean.

const NUMBER_BITS: u32 = 24;
const NUMBER_MASK: u32 = (1 << NUMBER_BITS) - 1;
const GRANT: u32 = 1 << 31;

/// The most channels that an immediate can tell apart.
pub const CHANNELS_MAX: u32 = 1 << (31 - NUMBER_BITS);

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
        /// Its number in the link, modulo 2^24.
        number: u32,
    },
    /// Messages below a number may be sent.
    Grant {
        /// Their channel.
        channel: u32,
        /// The number, modulo 2^24.
        below: u32,
    },
}

impl Name {
    /// The name of message `number` of a channel.
    #[must_use]
    pub const fn message(channel: u32, number: u64) -> Name {
        Name::Message { channel, number: number as u32 & NUMBER_MASK }
    }

    /// The grant of all messages below `below` of a channel.
    #[must_use]
    pub const fn grant(channel: u32, below: u64) -> Name {
        Name::Grant { channel, below: below as u32 & NUMBER_MASK }
    }

    /// As an immediate.
    #[must_use]
    pub const fn encode(self) -> u32 {
        match self {
            Name::Message { channel, number } => channel << NUMBER_BITS | number,
            Name::Grant { channel, below } => GRANT | channel << NUMBER_BITS | below,
        }
    }

    /// From an immediate; every value means something.
    #[must_use]
    pub const fn decode(immediate: u32) -> Name {
        let channel = (immediate & !GRANT) >> NUMBER_BITS;
        let number = immediate & NUMBER_MASK;
        if immediate & GRANT == 0 {
            Name::Message { channel, number }
        } else {
            Name::Grant { channel, below: number }
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
