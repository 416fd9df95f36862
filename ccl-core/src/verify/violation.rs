//! What can be wrong with schedules, said so that the author of one can find the place.

use std::fmt;

use crate::schedule::Buffer;
use crate::types::Rank;

/// Something in a rank's memory that a strand did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// The strand.
    pub strand: u32,
    /// The channel.
    pub channel: u32,
    /// Whether it wrote.
    pub write: bool,
    /// The fold, with elements instead of parts; empty if unknown.
    pub fold: String,
}

/// One element of a rank's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spot {
    /// Whose.
    pub rank: Rank,
    /// Which buffer; scratch buffers are not told apart (`Scratch(0)`).
    pub buffer: Buffer,
    /// Which element of it.
    pub element: usize,
}

/// A strand that cannot go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Whose.
    pub rank: Rank,
    /// The strand.
    pub strand: u32,
    /// The channel.
    pub channel: u32,
    /// The chunk.
    pub chunk: usize,
    /// The instruction that it stands at.
    pub instruction: String,
    /// What it waits for.
    pub reason: Reason,
}

/// What a strand waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// A message of this rank.
    Message(Rank),
    /// A free slot towards this rank.
    Room(Rank),
    /// A unit of the strand.
    Unit(u32),
}

/// Why a fold makes no sense.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Misfold {
    /// There is nothing to combine.
    Nothing,
    /// Elements that do not belong together.
    Mixed,
    /// The collective combines nothing.
    NotReduction,
    /// A rank's contribution is in more than one operand.
    CountedTwice(Rank),
    /// Said to be the last one while this rank's contribution is missing.
    LastTooEarly(Rank),
    /// An operand was completed by a last fold before: an average would be divided again.
    AlreadyComplete,
}

/// The first thing found wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// The question makes no sense.
    #[error("the case cannot be checked: {0}")]
    Case(String),
    /// A message to or from a rank that does not exist, or to oneself.
    #[error("rank {rank}, strand {strand}: there is no link with rank {peer}")]
    NoSuchPeer {
        /// Whose.
        rank: Rank,
        /// The strand.
        strand: u32,
        /// The peer.
        peer: Rank,
    },
    /// Two strands use one direction of a link, so that the order of messages is left to chance.
    #[error(
        "rank {rank}: strands {} and {} both {} rank {peer}; one direction of a link belongs to \
         one strand", strands.0, strands.1,
        if *receives { "receive from" } else { "send to" }
    )]
    SharedLink {
        /// Whose.
        rank: Rank,
        /// The other end.
        peer: Rank,
        /// Which direction.
        receives: bool,
        /// Who.
        strands: (u32, u32),
    },
    /// A fold sends or receives twice on one link.
    #[error(
        "rank {rank}: one fold has two messages on the link with rank {peer} (channel {channel}); \
         the second needs a fold of its own"
    )]
    TwoMessages {
        /// Whose.
        rank: Rank,
        /// The other end.
        peer: Rank,
        /// The channel.
        channel: u32,
    },
    /// A message of another length than its receive.
    #[error(
        "rank {to} expects {expected} B of rank {from} (channel {channel}, message {number}) but \
         {sent} B were sent"
    )]
    Length {
        /// Sender.
        from: Rank,
        /// Receiver.
        to: Rank,
        /// The channel.
        channel: u32,
        /// How many messages of the link came before.
        number: usize,
        /// Bytes sent.
        sent: usize,
        /// Bytes expected.
        expected: usize,
    },
    /// A message longer than a slot.
    #[error("rank {from} sends {bytes} B to rank {to} at once; a slot holds {slot_bytes} B")]
    TooLong {
        /// Sender.
        from: Rank,
        /// Receiver.
        to: Rank,
        /// Bytes of the message.
        bytes: usize,
        /// Bytes of a slot.
        slot_bytes: usize,
    },
    /// Messages that nobody receives.
    #[error(
        "{messages} messages from rank {from} to rank {to} (channel {channel}) stay unreceived"
    )]
    Unreceived {
        /// Sender.
        from: Rank,
        /// Receiver.
        to: Rank,
        /// The channel.
        channel: u32,
        /// How many.
        messages: usize,
    },
    /// Strands that wait for each other, each for the next, the last for the first.
    #[error("cyclic wait with {slots} slots per link: {}", sentence(cycle))]
    Deadlock {
        /// Slots of each link in this run.
        slots: u32,
        /// Who waits.
        cycle: Vec<Waiting>,
    },
    /// A strand that waits for something that never comes, and those that wait for it.
    #[error("nobody answers: {}", sentence(chain))]
    Starved {
        /// Who waits; the last one waits for something that never happens.
        chain: Vec<Waiting>,
    },
    /// Less than one slot per active sender.
    #[error(
        "rank {rank} has {senders} active senders on {channels} channels and needs {needed_bytes} \
         B for one slot each; its budget is {budget_bytes} B: raise the budget or use smaller slots"
    )]
    Budget {
        /// Whose.
        rank: Rank,
        /// Peers that send to it.
        senders: usize,
        /// Channels.
        channels: u32,
        /// What it needs.
        needed_bytes: usize,
        /// What it has.
        budget_bytes: usize,
    },
    /// Conflicting accesses whose order is left to chance.
    #[error("race at {spot}: {first} and {second} are not ordered")]
    Race {
        /// Where.
        spot: Spot,
        /// Seen first.
        first: Box<Access>,
        /// Seen second.
        second: Box<Access>,
    },
    /// Operands of one fold that overlap without being the same.
    #[error("rank {rank}, strand {strand}: operands of one fold overlap in part: {fold}")]
    Overlap {
        /// Whose.
        rank: Rank,
        /// The strand.
        strand: u32,
        /// The fold.
        fold: String,
    },
    /// An access outside the buffer, or to a buffer that the rank does not have.
    #[error("rank {rank}, strand {strand}: outside of the buffer ({elements} elements): {fold}")]
    OutOfBounds {
        /// Whose.
        rank: Rank,
        /// The strand.
        strand: u32,
        /// What the buffer has.
        elements: usize,
        /// The fold.
        fold: String,
    },
    /// The input is written.
    #[error("rank {rank}, strand {strand}: the input is written: {fold}")]
    InputWritten {
        /// Whose.
        rank: Rank,
        /// The strand.
        strand: u32,
        /// The fold.
        fold: String,
    },
    /// Garbage is read.
    #[error("{spot} is read before anything was written there, by strand {strand}: {fold}")]
    Uninitialised {
        /// Where.
        spot: Spot,
        /// By which strand.
        strand: u32,
        /// The fold.
        fold: String,
    },
    /// A message of which not every element was written.
    #[error("rank {from} sends rank {to} a message of which element {element} was never written")]
    HoleInMessage {
        /// Sender.
        from: Rank,
        /// Receiver.
        to: Rank,
        /// Which element.
        element: usize,
    },
    /// In place: the input is read when a result has already taken its place.
    #[error("{spot} is read as input by strand {strand} after it was overwritten: {fold}")]
    InputGone {
        /// Where.
        spot: Spot,
        /// By which strand.
        strand: u32,
        /// The fold.
        fold: String,
    },
    /// In place: an input is read as output, which out of place would be garbage, and which a
    /// premultiplied sum would not scale.
    #[error("{spot} is read as output by strand {strand} while it still is the input: {fold}")]
    InputAsOutput {
        /// Where.
        spot: Spot,
        /// By which strand.
        strand: u32,
        /// The fold.
        fold: String,
    },
    /// A fold that makes no sense.
    #[error("rank {rank}, strand {strand}: {misfold} in {fold} ({operands})")]
    Misfold {
        /// Whose.
        rank: Rank,
        /// The strand.
        strand: u32,
        /// Why.
        misfold: Misfold,
        /// The fold.
        fold: String,
        /// What its operands hold.
        operands: String,
    },
    /// An output element that does not hold what it must.
    #[error("{spot} (block {block}, element {index}) holds {found}, not {expected}")]
    Wrong {
        /// Where.
        spot: Spot,
        /// Which block.
        block: u32,
        /// Which element of the block.
        index: usize,
        /// What it holds.
        found: String,
        /// What it must hold.
        expected: String,
    },
    /// A complete reduction that did not pass through a last fold.
    #[error(
        "{spot} holds {found}: complete, but no fold was marked last, so no average is divided"
    )]
    NeverLast {
        /// Where.
        spot: Spot,
        /// What it holds.
        found: String,
    },
    /// Memory that is nobody's output was changed.
    #[error("{spot} lies in no block of the output but was changed")]
    Touched {
        /// Where.
        spot: Spot,
    },
    /// A reduction that is not one fold in rank order.
    #[error("{spot} holds {found}: not one fold over the ranks in ascending order")]
    NotInRankOrder {
        /// Where.
        spot: Spot,
        /// What it holds.
        found: String,
    },
    /// A rank can leave a barrier before another one entered.
    #[error("rank {rank} may leave the barrier before rank {unheard} has entered it")]
    Barrier {
        /// Who leaves.
        rank: Rank,
        /// Who may be late.
        unheard: Rank,
    },
}

impl fmt::Display for Spot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let buffer = match self.buffer {
            Buffer::Input => "input",
            Buffer::Output => "output",
            Buffer::Scratch(_) => "scratch",
        };
        write!(f, "rank {}, {buffer} element {}", self.rank, self.element)
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let deed = if self.write { "write" } else { "read" };
        write!(f, "the {deed} of strand {} on channel {}", self.strand, self.channel)?;
        if self.fold.is_empty() { Ok(()) } else { write!(f, " ({})", self.fold) }
    }
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Waiting { rank, strand, channel, chunk, instruction, reason } = self;
        write!(f, "rank {rank} strand {strand} (channel {channel}, chunk {chunk}) at ")?;
        write!(f, "`{instruction}` waits for ")?;
        match reason {
            Reason::Message(peer) => write!(f, "a message of rank {peer}"),
            Reason::Room(peer) => write!(f, "room towards rank {peer}"),
            Reason::Unit(unit) => write!(f, "its own unit {unit}"),
        }
    }
}

impl fmt::Display for Misfold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Misfold::Nothing => f.write_str("there is nothing to combine"),
            Misfold::Mixed => f.write_str("elements that do not belong together are combined"),
            Misfold::NotReduction => f.write_str("a collective that only moves data combines it"),
            Misfold::CountedTwice(rank) => {
                write!(f, "the contribution of rank {rank} is counted twice")
            }
            Misfold::LastTooEarly(rank) => {
                write!(f, "marked last while the contribution of rank {rank} is missing")
            }
            Misfold::AlreadyComplete => {
                f.write_str("an operand is already complete: an average would be divided twice")
            }
        }
    }
}

fn sentence(waits: &[Waiting]) -> String {
    waits.iter().map(Waiting::to_string).collect::<Vec<_>>().join("; ")
}
