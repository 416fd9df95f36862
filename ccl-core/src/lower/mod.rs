//! Lowering of a schedule to a program: fuses ops, infers dependencies, flattens loops.
//!
//! The one instruction that touches data is [`Fold`]: it reads one or more locations, combines them
//! from left to right, and writes the result to one or more locations. A location is memory of the
//! caller, scratch, or *the slot of a link itself*: a message that is reduced and forwarded is read
//! in the slot where it arrived and written to the slot that it leaves from, without an
//! intermediate copy.
//!
//! A program consists of *strands*. Instructions of a strand run in order; strands run
//! concurrently. All instructions that use one direction of one link are in one strand, so that
//! messages keep their order. The order between instructions of different strands is inferred from
//! the memory that they read and write. Each such dependency becomes an [`Instr::Await`], unless
//! other waits imply it. An `Await` waits for a *unit* of another strand: a top-level fold or loop.

mod fuse;
mod strands;

use std::fmt;

use crate::schedule::{Affine, Buffer, Extent, Parts, RankSchedule};
use crate::types::{Collective, Rank};

pub(crate) use fuse::Lowered;
pub use strands::Footprint;

/// Location of an operand of a fold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Location {
    /// Parts of a buffer.
    Memory(Buffer, Parts),
    /// The next message from this peer, or the slot for the next message to it.
    Slot(Affine),
}

/// Operand that a fold reads `repeat` times; [`crate::schedule::TERM`] counts the repetitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// Location to read from.
    pub location: Location,
    /// Number of repetitions.
    pub repeat: u32,
}

/// Operand that a fold writes `repeat` times; [`crate::schedule::TERM`] counts the repetitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// Location to write to.
    pub location: Location,
    /// Number of repetitions.
    pub repeat: u32,
}

/// `targets[*] = sources[0] ⊕ sources[1] ⊕ …` for the elements that the extent has in the current
/// chunk. A fold without elements does nothing and sends no message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fold {
    /// Operands to combine, in order.
    pub sources: Vec<Source>,
    /// Targets of the result.
    pub targets: Vec<Target>,
    /// Length of the result.
    pub extent: Extent,
    /// True if the result holds all contributions. In an average, this fold then divides the result
    /// by the number of ranks.
    pub last: bool,
    /// True if the fold's only source is a slot and nothing before the fold in the schedule touches
    /// the memory that the fold writes. The message can then arrive there before the fold's turn.
    pub early: bool,
}

/// An instruction of a strand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Instr {
    /// Waits for the messages that it reads and for the slots that it writes, then combines.
    Fold(Fold),
    /// Sets the counter of `dimension` to zero.
    Loop {
        /// Dimension of the counter.
        dimension: u8,
    },
    /// Adds one to the counter, and goes back to `start` while the counter is below `count`.
    Next {
        /// Dimension of the counter.
        dimension: u8,
        /// Number of iterations.
        count: u32,
        /// Index of the first instruction of the body.
        start: u32,
    },
    /// Waits until `unit` of this chunk (`lag` 0) or of the chunk before it (`lag` 1) is done.
    Await {
        /// The unit.
        unit: u32,
        /// Distance from the unit's chunk to the waiting strand's chunk, in chunks: 0 or 1.
        lag: u32,
    },
    /// Signals that `unit` of this chunk is done.
    Done {
        /// The unit.
        unit: u32,
    },
}

/// Instructions that run in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Strand {
    /// The instructions for one chunk.
    pub code: Vec<Instr>,
}

/// Program that one rank runs for every chunk of a collective.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Rank that runs the program.
    pub rank: Rank,
    /// Number of ranks.
    pub ranks: u32,
    /// Number of parts that each block of a buffer ([`crate::schedule::Layout`]) is cut into.
    pub split: u32,
    /// Strands, which run concurrently.
    pub strands: Vec<Strand>,
    /// Number of units; [`Instr::Done`] and [`Instr::Await`] refer to a unit by its index.
    pub units: u32,
    /// Number of parts of each scratch buffer; 0 for a buffer that fusing made superfluous.
    pub scratch_parts: Vec<u32>,
    /// Copy of [`RankSchedule::whole_messages`].
    pub whole_messages: bool,
    /// Largest number of parts in one message.
    pub message_parts: u32,
    /// Peers that the rank sends to, ascending.
    pub send_peers: Vec<Rank>,
    /// Peers that the rank receives from, ascending.
    pub recv_peers: Vec<Rank>,
}

/// Overlap of input and output in a collective that runs in place: input part i is output part j
/// when `i + input == j + output`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Alias {
    /// Number added to the index of an input part.
    pub input: u32,
    /// Number added to the index of an output part.
    pub output: u32,
}

impl Alias {
    /// Alias for input and output that never coincide: no part numbers are that large.
    pub const APART: Alias = Alias { input: 0, output: 1 << 31 };

    /// Returns the alias of NCCL's in-place forms: the smaller buffer is this rank's block of the
    /// larger one.
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

/// Lowers a schedule to run over links with two slots or more. `alias` says how input and output
/// overlap. With [`Alias::of`] the program is correct in place and out of place; with
/// [`Alias::APART`] it waits less and is correct only out of place.
#[must_use]
pub fn lower(schedule: &RankSchedule, alias: Alias) -> Program {
    lower_for_slots(schedule, alias, 2)
}

/// Lowers a schedule as [`lower`] does, for links with `slots` slots.
///
/// A fold from one slot to another holds the first slot while it waits for the second one. In a
/// ring whose links have a single slot, all ranks would thus wait for each other. With a single
/// slot, an arriving message is therefore stored before it is sent on. The messages are the same
/// with any number of slots.
#[must_use]
pub fn lower_for_slots(schedule: &RankSchedule, alias: Alias, slots: u32) -> Program {
    let (mut nodes, scratch) = fuse::fuse(schedule, slots > 1);
    strands::mark_early(&mut nodes, alias);
    strands::assemble(schedule, &nodes, scratch, alias)
}

/// Returns the folds of a schedule over links with `slots` slots, in the schedule's order, for
/// callers that count them.
pub(crate) fn fused(schedule: &RankSchedule, slots: u32) -> Vec<Lowered> {
    fuse::fuse(schedule, slots > 1).0
}

impl Location {
    /// Returns whether the location is memory of the caller.
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
