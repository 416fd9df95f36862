//! Violations that verification can find in schedules, with the facts that locate them.

use std::fmt;

use crate::schedule::Buffer;
use crate::types::Rank;

/// Access of a strand to a rank's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// The strand.
    pub strand: u32,
    /// The channel.
    pub channel: u32,
    /// True if the access is a write.
    pub write: bool,
    /// The fold, with operands as ranges of elements instead of parts; empty if unknown.
    pub fold: String,
}

/// One element of a rank's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spot {
    /// The rank.
    pub rank: Rank,
    /// The buffer; scratch buffers are not distinguished (`Scratch(0)`).
    pub buffer: Buffer,
    /// Index of the element in the buffer.
    pub element: usize,
}

/// Strand that cannot continue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The rank.
    pub rank: Rank,
    /// The strand.
    pub strand: u32,
    /// The channel.
    pub channel: u32,
    /// The chunk.
    pub chunk: usize,
    /// The instruction at which the strand waits.
    pub instruction: String,
    /// Reason of the wait.
    pub reason: Reason,
}

/// Reason of a strand's wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// A message from this rank.
    Message(Rank),
    /// A free slot towards this rank.
    Room(Rank),
    /// A unit (top-level fold or loop) of another strand of the rank.
    Unit(u32),
}

/// Reason why a fold is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Misfold {
    /// A fold without sources.
    Nothing,
    /// Operands that hold different elements.
    Mixed,
    /// A fold of several operands, or a fold marked last, in a collective that only moves data.
    NotReduction,
    /// The contribution of this rank in more than one operand.
    CountedTwice(Rank),
    /// A fold marked last (as completing a reduction) although this rank's contribution is missing.
    LastTooEarly(Rank),
    /// An operand that an earlier fold, marked last, has completed: an average would be divided
    /// again.
    AlreadyComplete,
}

/// The first violation found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// A case that cannot be checked.
    #[error("the case cannot be checked: {0}")]
    Case(String),
    /// A message that a rank exchanges with itself, or with a rank that does not exist.
    #[error("rank {rank}, strand {strand}: there is no link with rank {peer}")]
    NoSuchPeer {
        /// The rank.
        rank: Rank,
        /// The strand.
        strand: u32,
        /// The peer.
        peer: Rank,
    },
    /// Two strands that use one direction of a link, so that the order of messages depends on
    /// timing.
    #[error(
        "rank {rank}: strands {} and {} both {} rank {peer}; one direction of a link belongs to \
         one strand", strands.0, strands.1,
        if *receives { "receive from" } else { "send to" }
    )]
    SharedLink {
        /// The rank.
        rank: Rank,
        /// Peer at the other end.
        peer: Rank,
        /// True for the direction from the peer.
        receives: bool,
        /// The strands.
        strands: (u32, u32),
    },
    /// A fold that sends or receives twice on one link.
    #[error(
        "rank {rank}: one fold has two messages on the link with rank {peer} (channel {channel}); \
         the second needs a fold of its own"
    )]
    TwoMessages {
        /// The rank.
        rank: Rank,
        /// Peer at the other end.
        peer: Rank,
        /// The channel.
        channel: u32,
    },
    /// A message of another length than its receive.
    #[error(
        "rank {to} expects {expected} B from rank {from} (channel {channel}, message {number}) but \
         {sent} B were sent"
    )]
    Length {
        /// Sender.
        from: Rank,
        /// Receiver.
        to: Rank,
        /// The channel.
        channel: u32,
        /// Number of earlier messages of the link.
        number: usize,
        /// Bytes sent.
        sent: usize,
        /// Bytes expected.
        expected: usize,
    },
    /// A message that is longer than a slot.
    #[error("rank {from} sends {bytes} B to rank {to} in one message; a slot holds {slot_bytes} B")]
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
    /// Messages that no receive takes.
    #[error(
        "{messages} messages from rank {from} to rank {to} (channel {channel}) are never received"
    )]
    Unreceived {
        /// Sender.
        from: Rank,
        /// Receiver.
        to: Rank,
        /// The channel.
        channel: u32,
        /// Number of these messages.
        messages: usize,
    },
    /// Strands that wait for each other, each for the next, the last for the first.
    #[error("cyclic wait with {slots} slots per link: {}", sentence(cycle))]
    Deadlock {
        /// Slots of each link in this run.
        slots: u32,
        /// Strands of the cycle.
        cycle: Vec<Waiting>,
    },
    /// A strand that waits for an event that never comes, and the strands that wait for it.
    #[error("a strand waits for an event that never comes: {}", sentence(chain))]
    Starved {
        /// Strands of the chain; the last one waits for an event that never comes.
        chain: Vec<Waiting>,
    },
    /// A budget of less than one slot per sender and channel.
    #[error(
        "rank {rank} has {senders} active senders on {channels} channels and needs {needed_bytes} \
         B for one slot each; its budget is {budget_bytes} B: raise the budget or use smaller slots"
    )]
    Budget {
        /// The rank.
        rank: Rank,
        /// Number of peers that send to the rank.
        senders: usize,
        /// Number of channels.
        channels: u32,
        /// Bytes of one slot per sender and channel.
        needed_bytes: usize,
        /// Bytes of the rank's budget.
        budget_bytes: usize,
    },
    /// Conflicting accesses whose order depends on timing.
    #[error("race at {spot}: {first} and {second} are not ordered")]
    Race {
        /// The element.
        spot: Spot,
        /// Access that was seen first.
        first: Box<Access>,
        /// Access that was seen second.
        second: Box<Access>,
    },
    /// Operands of one fold that overlap without being the same memory.
    #[error("rank {rank}, strand {strand}: operands of one fold overlap in part: {fold}")]
    Overlap {
        /// The rank.
        rank: Rank,
        /// The strand.
        strand: u32,
        /// The fold.
        fold: String,
    },
    /// An access outside the buffer, or to a buffer that the rank does not have.
    #[error(
        "rank {rank}, strand {strand}: access outside the buffer of {elements} elements: {fold}"
    )]
    OutOfBounds {
        /// The rank.
        rank: Rank,
        /// The strand.
        strand: u32,
        /// Number of elements of the buffer.
        elements: usize,
        /// The fold.
        fold: String,
    },
    /// A write to the input.
    #[error("rank {rank}, strand {strand}: the input is written: {fold}")]
    InputWritten {
        /// The rank.
        rank: Rank,
        /// The strand.
        strand: u32,
        /// The fold.
        fold: String,
    },
    /// A read of memory that was never written.
    #[error("{spot} is read by strand {strand} before it was written: {fold}")]
    Uninitialised {
        /// The element.
        spot: Spot,
        /// Strand that accesses the element.
        strand: u32,
        /// The fold.
        fold: String,
    },
    /// A message with an element that was never written.
    #[error("rank {from} sends rank {to} a message whose element {element} was never written")]
    HoleInMessage {
        /// Sender.
        from: Rank,
        /// Receiver.
        to: Rank,
        /// Index of the element in the message.
        element: usize,
    },
    /// A read of an in-place input after a result has overwritten it.
    #[error("{spot} is read as input by strand {strand} after it was overwritten: {fold}")]
    InputGone {
        /// The element.
        spot: Spot,
        /// Strand that accesses the element.
        strand: u32,
        /// The fold.
        fold: String,
    },
    /// A read of an output element that, in place, still holds the input. Out of place, the same
    /// read finds garbage. In place, the read finds a value that is not scaled: a premultiplied sum
    /// scales a value only when a fold reads the value from the input.
    #[error("{spot} is read as output by strand {strand} while it still holds the input: {fold}")]
    InputAsOutput {
        /// The element.
        spot: Spot,
        /// Strand that accesses the element.
        strand: u32,
        /// The fold.
        fold: String,
    },
    /// A fold that is wrong.
    #[error("rank {rank}, strand {strand}: {misfold}: {fold} ({operands})")]
    Misfold {
        /// The rank.
        rank: Rank,
        /// The strand.
        strand: u32,
        /// Reason.
        misfold: Misfold,
        /// The fold.
        fold: String,
        /// Content of the operands.
        operands: String,
    },
    /// An output element with the wrong content.
    #[error("{spot} (block {block}, element {index}) holds {found}, not {expected}")]
    Wrong {
        /// The element.
        spot: Spot,
        /// Block of the element.
        block: u32,
        /// Index of the element in the block.
        index: usize,
        /// Content of the element.
        found: String,
        /// Required content of the element.
        expected: String,
    },
    /// A result that has every rank's contribution but did not pass through a fold marked last.
    #[error(
        "{spot} holds {found}, with every rank's contribution, but no fold was marked last, so an \
         average would not be divided"
    )]
    NeverLast {
        /// The element.
        spot: Spot,
        /// Content of the element.
        found: String,
    },
    /// A change of memory that lies in no block of the output.
    #[error("{spot} lies in no block of the output but was changed")]
    Touched {
        /// The element.
        spot: Spot,
    },
    /// A reduction that is not one fold in rank order.
    #[error("{spot} holds {found}, which is not one fold over the ranks in ascending order")]
    NotInRankOrder {
        /// The element.
        spot: Spot,
        /// Content of the element.
        found: String,
    },
    /// A rank that can leave a barrier before another rank has entered it.
    #[error("rank {rank} may leave the barrier before rank {unheard} has entered it")]
    Barrier {
        /// Rank that may leave.
        rank: Rank,
        /// Rank that possibly has not entered yet.
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
        let kind = if self.write { "write" } else { "read" };
        write!(f, "the {kind} of strand {} on channel {}", self.strand, self.channel)?;
        if self.fold.is_empty() { Ok(()) } else { write!(f, " ({})", self.fold) }
    }
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Waiting { rank, strand, channel, chunk, instruction, reason } = self;
        write!(f, "rank {rank} strand {strand} (channel {channel}, chunk {chunk}) at ")?;
        write!(f, "`{instruction}` waits for ")?;
        match reason {
            Reason::Message(peer) => write!(f, "a message from rank {peer}"),
            Reason::Room(peer) => write!(f, "a free slot towards rank {peer}"),
            Reason::Unit(unit) => write!(f, "unit {unit} of another strand"),
        }
    }
}

impl fmt::Display for Misfold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Misfold::Nothing => f.write_str("there is nothing to combine"),
            Misfold::Mixed => f.write_str("operands that hold different elements are combined"),
            Misfold::NotReduction => {
                f.write_str("operands are folded in a collective that only moves data")
            }
            Misfold::CountedTwice(rank) => {
                write!(f, "the contribution of rank {rank} is counted twice")
            }
            Misfold::LastTooEarly(rank) => {
                write!(f, "the fold is marked last, but the contribution of rank {rank} is missing")
            }
            Misfold::AlreadyComplete => {
                f.write_str("an operand is already complete, so an average would be divided twice")
            }
        }
    }
}

fn sentence(waits: &[Waiting]) -> String {
    waits.iter().map(Waiting::to_string).collect::<Vec<_>>().join("; ")
}
