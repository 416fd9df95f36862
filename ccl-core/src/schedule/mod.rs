//! A collective as data: what one rank sends, receives, reduces and copies.
//!
//! An algorithm is a pure function that returns a [`RankSchedule`] (see [`crate::algorithm`]). It
//! says nothing of slots, chunks, threads or dependencies: those are inferred from what each op
//! reads and writes ([`crate::lower`]), proved ([`crate::verify`]) and carried out
//! ([`crate::execution`]) from this one object.
//!
//! Lengths are symbolic. A schedule numbers the *parts* of the user's buffers ([`Layout`]) and
//! describes the journey of one *chunk*, a bounded number of elements of every part. Execution
//! repeats it until every part is done, so that a schedule's size depends neither on the length
//! nor on the number of chunks. An op whose extent is empty for some chunk does nothing, on both
//! sides of a message.

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

/// A buffer that ops read and write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Buffer {
    /// The caller's input, never written unless it is also the output (in place).
    Input,
    /// The caller's output.
    Output,
    /// Room for chunks under way, private to one operation; the number tells them apart.
    Scratch(u8),
}

/// Some parts of a buffer: `total` of them in runs of `run`, the runs `period` apart, from
/// `first`, wrapping at `wrap` (0: never).
///
/// A single part is a run of one; the parts whose number has bit k set are runs of 2^k at period
/// 2^(k+1); a period of -1 modulo the wrap counts downwards; one of 0 names a run again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Parts {
    /// The first part.
    pub first: Affine,
    /// Neighbouring parts in a run.
    pub run: u32,
    /// From the beginning of a run to the beginning of the next.
    pub period: u32,
    /// Parts in all.
    pub total: u32,
    /// Numbers wrap here; 0 for never.
    pub wrap: u32,
}

impl Parts {
    /// One part.
    #[must_use]
    pub const fn one(first: Affine) -> Parts {
        Parts { first, run: 1, period: 1, total: 1, wrap: 0 }
    }

    /// `total` neighbouring parts, wrapping at `wrap`.
    #[must_use]
    pub const fn range(first: Affine, total: u32, wrap: u32) -> Parts {
        Parts { first, run: total, period: total, total, wrap }
    }

    /// `total` parts in runs of `run`, each run `period` after the one before.
    #[must_use]
    pub const fn runs(first: Affine, run: u32, period: u32, total: u32) -> Parts {
        Parts { first, run, period, total, wrap: 0 }
    }

    /// The same part `total` times: the length of a message with that many equal parts, for a
    /// rank whose own buffer has only one.
    #[must_use]
    pub const fn again(part: Affine, total: u32) -> Parts {
        Parts { first: part, run: 1, period: 0, total, wrap: 0 }
    }

    /// The same, with numbers that wrap at `wrap`.
    #[must_use]
    pub const fn wrapping(mut self, wrap: u32) -> Parts {
        self.wrap = wrap;
        self
    }

    /// The number of the `index`th of these parts.
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

    /// How many of these parts, from the `index`th on, which is `part`, are neighbours or evenly
    /// spaced and in a range that it is in.
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

/// How many elements a slice has: as many as these parts of the input or output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Extent {
    /// `Input` or `Output`.
    pub buffer: Buffer,
    /// Which parts.
    pub parts: Parts,
}

/// What an op reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Slice {
    /// Where.
    pub buffer: Buffer,
    /// Which parts of it.
    pub parts: Parts,
    /// How long each part is; for the input and the output their own parts.
    pub extent: Extent,
}

impl Slice {
    /// Gives a scratch slice its length: that of `other`.
    #[must_use]
    pub const fn like(mut self, other: Slice) -> Slice {
        self.extent = other.extent;
        self
    }
}

/// An operand of a reduction, possibly repeated: `repeat` slices along the counter [`TERM`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Terms {
    /// The slice; its expressions may step along [`TERM`].
    pub slice: Slice,
    /// How many.
    pub repeat: u32,
}

impl From<Slice> for Terms {
    fn from(slice: Slice) -> Terms {
        Terms { slice, repeat: 1 }
    }
}

/// One thing that a rank does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// One message with the slice's parts, in their order.
    Send {
        /// To whom.
        peer: Affine,
        /// What.
        source: Slice,
    },
    /// The next message of `peer`, which is exactly as long as the slice.
    Recv {
        /// From whom.
        peer: Affine,
        /// Where to.
        target: Slice,
    },
    /// `target = terms[0] ⊕ terms[1] ⊕ …`, in that order, accumulated in the type's accumulator
    /// and rounded once.
    Reduce {
        /// Where to.
        target: Slice,
        /// What, in order.
        terms: Vec<Terms>,
        /// Whether the result is complete: all ranks' contributions are in it.
        last: bool,
    },
    /// `target = source`.
    Copy {
        /// Where to.
        target: Slice,
        /// What.
        source: Slice,
    },
}

/// An op, or a loop over others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Node {
    /// An op.
    Op(Op),
    /// The body, `count` times; its counter has the dimension of the nesting depth.
    Loop {
        /// Iterations.
        count: u32,
        /// What is repeated.
        body: Vec<Node>,
    },
}

/// What one rank does in a collective, for every chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankSchedule {
    /// Whose it is.
    pub rank: Rank,
    /// Among how many.
    pub ranks: u32,
    /// Into how many parts each block of the user's buffers is cut.
    pub split: u32,
    /// Parts of each scratch buffer; a part holds one chunk.
    pub scratch_parts: Vec<u32>,
    /// The largest number of parts in one message of *any* rank: a slot must hold that many
    /// chunks, and ranks must agree on the size of a chunk.
    pub message_parts: u32,
    /// Whether all chunks of an op come before the next op of its link, instead of all ops of a
    /// chunk before the next chunk: so that the two ends of a link need to agree on the order of
    /// messages only, not on which of them are grouped.
    pub whole_messages: bool,
    /// In program order.
    pub body: Vec<Node>,
}

impl RankSchedule {
    /// Calls `visit` for every op in program order with the counters it runs under.
    pub fn for_each(&self, visit: &mut dyn FnMut(&Op, &Counters)) {
        walk(&self.body, 0, &mut [0; DEPTH], visit);
    }

    /// Ranks that this one sends to.
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

    /// Ops as written, loops counted once: the size of the schedule.
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
