//! From a schedule to a program: fuses ops, infers dependencies, flattens loops.
//!
//! The one instruction that touches data is [`Fold`]: it reads one or more places, combines them
//! from left to right, and writes the result to one or more places. A place is memory of the
//! caller, scratch, or *the slot of a link itself*: a message that is reduced and passed on is
//! read where it arrived and written where it leaves from, without a stop in between.
//!
//! A program consists of *strands*. Instructions of a strand run in order; strands run side by
//! side. Everything that uses one direction of one link is in one strand, so that messages keep
//! their order; what is left to order between strands is inferred from what they read and write
//! and becomes [`Instr::Await`].

mod fuse;
mod strands;

use std::fmt;

use crate::schedule::{Affine, Buffer, Extent, Parts, RankSchedule};
use crate::types::{Collective, Rank};

pub(crate) use fuse::Lowered;
pub use strands::Footprint;

/// Where an operand of a fold is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Location {
    /// Parts of a buffer.
    Memory(Buffer, Parts),
    /// The next message of this peer, or room for the next message to it.
    Slot(Affine),
}

/// Something that a fold reads, `repeat` times along [`crate::schedule::TERM`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// Where from.
    pub location: Location,
    /// How many.
    pub repeat: u32,
}

/// Something that a fold writes, `repeat` times along [`crate::schedule::TERM`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// Where to.
    pub location: Location,
    /// How many.
    pub repeat: u32,
}

/// `targets[*] = sources[0] ⊕ sources[1] ⊕ …` for as many elements as the extent has in the
/// chunk at hand; nothing at all, not even a message, if that is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fold {
    /// What is combined, in order.
    pub sources: Vec<Source>,
    /// Where the result goes.
    pub targets: Vec<Target>,
    /// How long it is.
    pub extent: Extent,
    /// Whether the result holds all contributions, so that an average is divided here.
    pub last: bool,
    /// Whether nothing before it in the schedule touches the memory that it writes: a message that
    /// it only moves there may come there before its turn.
    pub early: bool,
}

/// An instruction of a strand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Instr {
    /// Waits for what it reads and for room where it sends, then combines.
    Fold(Fold),
    /// Sets the counter of `dimension` to zero.
    Loop {
        /// Which counter.
        dimension: u8,
    },
    /// Adds one to the counter and goes back to `start` until it is `count`.
    Next {
        /// Which counter.
        dimension: u8,
        /// Iterations.
        count: u32,
        /// The first instruction of the body.
        start: u32,
    },
    /// Waits until `unit` of this chunk (`lag` 0) or of the chunk before it (`lag` 1) is done.
    Await {
        /// Which.
        unit: u32,
        /// Chunks ago.
        lag: u32,
    },
    /// Says that `unit` of this chunk is done.
    Done {
        /// Which.
        unit: u32,
    },
}

/// Instructions that run in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Strand {
    /// The instructions for one chunk.
    pub code: Vec<Instr>,
}

/// What one rank runs for every chunk of a collective.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Whose it is.
    pub rank: Rank,
    /// Among how many.
    pub ranks: u32,
    /// Into how many parts each block is cut.
    pub split: u32,
    /// What runs side by side.
    pub strands: Vec<Strand>,
    /// Units that [`Instr::Done`] and [`Instr::Await`] speak of.
    pub units: u32,
    /// Parts of each scratch buffer that is still needed after fusing; 0 for the others.
    pub scratch_parts: Vec<u32>,
    /// As [`RankSchedule::whole_messages`].
    pub whole_messages: bool,
    /// The most parts in one message.
    pub message_parts: u32,
    /// Peers that are sent to, ascending.
    pub send_peers: Vec<Rank>,
    /// Peers that are received from, ascending.
    pub recv_peers: Vec<Rank>,
}

/// How the parts of input and output coincide when a collective runs in place: input part i is
/// output part j when `i + input == j + output`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Alias {
    /// Added to the number of an input part.
    pub input: u32,
    /// Added to the number of an output part.
    pub output: u32,
}

impl Alias {
    /// Input and output never coincide: no part numbers are that large.
    pub const APART: Alias = Alias { input: 0, output: 1 << 31 };

    /// NCCL's in-place forms: the smaller buffer is this rank's block of the larger one.
    #[must_use]
    pub fn of(collective: Collective, rank: Rank, split: u32) -> Alias {
        match collective {
            Collective::AllGather
            | Collective::AllGatherV
            | Collective::Gather
            | Collective::GatherV => Alias { input: rank * split, output: 0 },
            Collective::ReduceScatter
            | Collective::ReduceScatterV
            | Collective::Scatter
            | Collective::ScatterV => Alias { input: 0, output: rank * split },
            // Part i of the input has nothing to do with part i of the output; dependencies between
            // them could close a cycle through several ranks.
            Collective::SendRecv => Alias::APART,
            _ => Alias::default(),
        }
    }
}

/// Makes a schedule ready to run over links with two slots or more. Dependencies are inferred as if
/// input and output coincided as `alias` says: with [`Alias::of`] the result is right in place and
/// out of place alike, with [`Alias::APART`] it waits for less and is right only out of place.
#[must_use]
pub fn lower(schedule: &RankSchedule, alias: Alias) -> Program {
    lower_for_slots(schedule, alias, 2)
}

/// As [`lower`], for links with so many slots.
///
/// A fold from one slot to another holds the first while it waits for the second. Around a ring
/// all would wait so for each other if links had a single slot: there, what arrives is stored
/// before it is sent on. The messages are the same.
#[must_use]
pub fn lower_for_slots(schedule: &RankSchedule, alias: Alias, slots: u32) -> Program {
    let (mut nodes, scratch) = fuse::fuse(schedule, slots > 1);
    strands::mark_early(&mut nodes, alias);
    strands::assemble(schedule, &nodes, scratch, alias)
}

/// The folds of a schedule over links with so many slots, in its order: for those who count them.
pub(crate) fn fused(schedule: &RankSchedule, slots: u32) -> Vec<Lowered> {
    fuse::fuse(schedule, slots > 1).0
}

impl Location {
    /// Whether it is memory of the caller.
    pub(crate) const fn is_user(&self) -> bool {
        matches!(self, Location::Memory(Buffer::Input | Buffer::Output, _))
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Location::Memory(buffer, parts) => write!(f, "{buffer}[{parts}]"),
            Location::Slot(peer) => write!(f, "slot({peer})"),
        }
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, strand) in self.strands.iter().enumerate() {
            writeln!(f, "strand {number}")?;
            for (at, instr) in strand.code.iter().enumerate() {
                writeln!(f, "  {at:3} {instr}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for Instr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Instr::Fold(fold) => write!(f, "{fold}"),
            Instr::Loop { dimension } => write!(f, "loop {dimension}"),
            Instr::Next { dimension, count, start } => {
                write!(f, "next {dimension} < {count} else {start}")
            }
            Instr::Await { unit, lag } => write!(f, "await unit {unit} lag {lag}"),
            Instr::Done { unit } => write!(f, "done unit {unit}"),
        }
    }
}

impl fmt::Display for Fold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let times = |repeat: u32| if repeat == 1 { String::new() } else { format!(" ×{repeat}") };
        let targets: Vec<String> =
            self.targets.iter().map(|t| format!("{}{}", t.location, times(t.repeat))).collect();
        let sources: Vec<String> =
            self.sources.iter().map(|s| format!("{}{}", s.location, times(s.repeat))).collect();
        let last = if self.last { " (last)" } else { "" };
        let early = if self.early { " (early)" } else { "" };
        write!(f, "{} = {}{last}{early}", targets.join(", "), sources.join(" ⊕ "))
    }
}
