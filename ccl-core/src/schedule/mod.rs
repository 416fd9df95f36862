//! Collectives as data: the sends, receives, reductions and copies of one rank.
//!
//! An algorithm is a pure function that returns a [`RankSchedule`] (see [`crate::algorithm`]). A
//! schedule does not mention slots, chunks, threads or dependencies. The dependencies are inferred
//! from the operands of each op ([`crate::lower`]). The schedule that is verified
//! ([`crate::verify`]) is the one that is executed ([`crate::execution`]).
//!
//! Lengths are symbolic. A schedule numbers the *parts* of the user's buffers ([`Layout`]) and
//! describes the path of one *chunk*, a bounded number of elements of every part. Execution repeats
//! the schedule until every part is done, so that a schedule's size depends neither on the lengths
//! of the buffers nor on the number of chunks. For a chunk in which an op has no elements, the op
//! does nothing: the sender sends no message, and the receiver expects none.

mod affine;
mod builder;
mod display;
mod layout;
pub mod shape;

pub use affine::{Affine, Counters, DEPTH, TERM};
pub use builder::{Builder, input, output, scratch};
pub use layout::Layout;

use std::collections::BTreeSet;
use std::ops::Range;

use crate::types::Rank;

/// Buffer that ops read and write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Buffer {
    /// The caller's input, never written unless it is also the output (in place).
    Input,
    /// The caller's output.
    Output,
    /// Scratch buffer with this number, which holds chunks between ops; private to one call.
    Scratch(u8),
}

/// Parts of a buffer: `total` parts in runs of `run` neighbouring parts. The first run begins at
/// part `first`, each next run `period` parts further. Numbers wrap at `wrap` (0: never).
///
/// A single part is a run of one. The parts whose number has bit k set are runs of 2^k at period
/// 2^(k+1). A period of `wrap - 1` counts downwards. A period of 0 repeats the same run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Parts {
    /// The first part.
    pub first: Affine,
    /// Number of neighbouring parts in a run.
    pub run: u32,
    /// Distance from the beginning of a run to the beginning of the next.
    pub period: u32,
    /// Number of parts.
    pub total: u32,
    /// Modulus of the part numbers; 0 for none.
    pub wrap: u32,
}

impl Parts {
    /// Returns one part.
    #[must_use]
    pub const fn one(first: Affine) -> Parts {
        Parts { first, run: 1, period: 1, total: 1, wrap: 0 }
    }

    /// Returns `total` neighbouring parts, wrapping at `wrap`.
    #[must_use]
    pub const fn range(first: Affine, total: u32, wrap: u32) -> Parts {
        Parts { first, run: total, period: total, total, wrap }
    }

    /// Returns `total` parts in runs of `run`, each run `period` after the one before.
    #[must_use]
    pub const fn runs(first: Affine, run: u32, period: u32, total: u32) -> Parts {
        Parts { first, run, period, total, wrap: 0 }
    }

    /// Returns the part `part`, `total` times. As the extent of a slice of `total` parts, the
    /// result says that each of these parts is as long as `part`. Ranks need such an extent if
    /// their own buffer has only one part of that length.
    #[must_use]
    pub const fn again(part: Affine, total: u32) -> Parts {
        Parts { first: part, run: 1, period: 0, total, wrap: 0 }
    }

    /// Returns these parts with numbers that wrap at `wrap`.
    #[must_use]
    pub const fn wrapping(mut self, wrap: u32) -> Parts {
        self.wrap = wrap;
        self
    }

    /// Returns the part number of the `index`th of these parts; the first has index 0.
    #[must_use]
    #[inline]
    pub fn part(&self, index: u32, counters: &Counters) -> u32 {
        let first = self.first.eval(counters);
        if self.total == 1 {
            return first;
        }
        let run = self.run.max(1);
        let (runs, within) = (u64::from(index / run), u64::from(index % run));
        let part = u64::from(first) + runs * u64::from(self.period) + within;
        let part = if self.wrap == 0 { part } else { part % u64::from(self.wrap) };
        u32::try_from(part).unwrap_or(u32::MAX)
    }

    /// Returns a count n: the n parts from the `index`th on are evenly spaced, and their numbers
    /// are in `range`. The argument `part` is the number of the `index`th part, and must be in
    /// `range`.
    #[must_use]
    pub(crate) fn stride(&self, index: u32, part: u32, range: &Range<u32>) -> u32 {
        let run = self.run.max(1);
        let (step, left) = match run {
            1 => (self.period, self.total - index),
            run => (1, (run - index % run).min(self.total - index)),
        };
        if step == 0 {
            return left;
        }
        let end = if self.wrap == 0 { range.end } else { range.end.min(self.wrap) };
        (end.saturating_sub(part + 1) / step + 1).min(left)
    }
}

impl From<u32> for Parts {
    fn from(part: u32) -> Parts {
        Parts::one(Affine::constant(part))
    }
}

impl From<Affine> for Parts {
    fn from(part: Affine) -> Parts {
        Parts::one(part)
    }
}

/// Number of elements of a slice, expressed as parts of the input or output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Extent {
    /// `Input` or `Output`.
    pub buffer: Buffer,
    /// The parts.
    pub parts: Parts,
}

/// Operand of an op.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Slice {
    /// Buffer that holds the parts.
    pub buffer: Buffer,
    /// Parts of the buffer.
    pub parts: Parts,
    /// Parts that give the lengths; for the input and the output, the slice's own parts.
    pub extent: Extent,
}

impl Slice {
    /// Returns this scratch slice with the length of `other`.
    #[must_use]
    pub const fn like(mut self, other: Slice) -> Slice {
        self.extent = other.extent;
        self
    }
}

/// Operand of a reduction: a slice, repeated `repeat` times; [`TERM`] counts the repetitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Terms {
    /// The slice; its expressions may depend on the counter [`TERM`].
    pub slice: Slice,
    /// Number of repetitions.
    pub repeat: u32,
}

impl From<Slice> for Terms {
    fn from(slice: Slice) -> Terms {
        Terms { slice, repeat: 1 }
    }
}

/// Step of a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Send of one message with the slice's parts, in their order.
    Send {
        /// Rank to send to.
        peer: Affine,
        /// Data to send.
        source: Slice,
    },
    /// Receive of the next message of `peer`, which is exactly as long as the slice.
    Recv {
        /// Rank to receive from.
        peer: Affine,
        /// Memory to receive into.
        target: Slice,
    },
    /// Reduction `target = terms[0] ⊕ terms[1] ⊕ …`, in that order, accumulated in the type's
    /// accumulator and rounded once.
    Reduce {
        /// Memory for the result.
        target: Slice,
        /// Operands, in order.
        terms: Vec<Terms>,
        /// True if the result is complete: all ranks' contributions are in it.
        last: bool,
    },
    /// Copy `target = source`.
    Copy {
        /// Memory to copy to.
        target: Slice,
        /// Memory to copy from.
        source: Slice,
    },
}

/// An op, or a loop over nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Node {
    /// An op.
    Op(Op),
    /// Loop that executes the body `count` times. The number of loops around this loop is the index
    /// of this loop's counter in [`Counters`].
    Loop {
        /// Number of iterations.
        count: u32,
        /// Body of the loop.
        body: Vec<Node>,
    },
}

/// Schedule of one rank in a collective, the same for every chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankSchedule {
    /// The rank.
    pub rank: Rank,
    /// Number of ranks.
    pub ranks: u32,
    /// Number of parts that each block of the user's buffers is cut into ([`Layout`]).
    pub split: u32,
    /// Number of parts of each scratch buffer; a part holds one chunk.
    pub scratch_parts: Vec<u32>,
    /// Largest number of parts in one message of *any* rank: a slot must hold one chunk of that
    /// many parts, and ranks must agree on the size of a chunk.
    pub message_parts: u32,
    /// True if all chunks of an op come before the next op of its link, instead of all ops of a
    /// chunk before the next chunk. The two ends of a link then need to agree only on the order of
    /// their sends and receives, not on the groups in which the callers make them.
    pub whole_messages: bool,
    /// Ops and loops, in program order.
    pub body: Vec<Node>,
}

impl RankSchedule {
    /// Calls `visit` for every op in program order, with the loop counters of that op.
    pub fn for_each(&self, visit: &mut dyn FnMut(&Op, &Counters)) {
        walk(&self.body, 0, &mut [0; DEPTH], visit);
    }

    /// Returns the number of ranks that this one sends to.
    #[must_use]
    pub fn fan_out(&self) -> u32 {
        let mut peers = BTreeSet::new();
        self.for_each(&mut |op, counters| {
            if let Op::Send { peer, .. } = op {
                peers.insert(peer.eval(counters));
            }
        });
        peers.len() as u32
    }

    /// Returns the number of ops and loops as written, loop bodies counted once.
    #[must_use]
    pub fn size(&self) -> usize {
        fn count(nodes: &[Node]) -> usize {
            nodes
                .iter()
                .map(|node| match node {
                    Node::Op(_) => 1,
                    Node::Loop { body, .. } => 1 + count(body),
                })
                .sum()
        }
        count(&self.body)
    }
}

fn walk(nodes: &[Node], depth: usize, at: &mut Counters, visit: &mut dyn FnMut(&Op, &Counters)) {
    for node in nodes {
        match node {
            Node::Op(op) => visit(op, at),
            Node::Loop { count, body } => {
                for iteration in 0..*count {
                    at[depth] = iteration;
                    walk(body, depth + 1, at, visit);
                }
                at[depth] = 0;
            }
        }
    }
}
