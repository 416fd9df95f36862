//! Notation for algorithms: a few functions that read like the pseudo-code of a textbook.

use super::{Affine, Buffer, Extent, Node, Op, Parts, RankSchedule, Slice, TERM, Terms};
use crate::types::Rank;

/// Returns parts of the caller's input.
pub fn input(parts: impl Into<Parts>) -> Slice {
    user(Buffer::Input, parts.into())
}

/// Returns parts of the caller's output.
pub fn output(parts: impl Into<Parts>) -> Slice {
    user(Buffer::Output, parts.into())
}

/// Returns parts of a scratch buffer; each is as long as the corresponding part of `like`.
pub fn scratch(id: u8, parts: impl Into<Parts>, like: Slice) -> Slice {
    Slice { buffer: Buffer::Scratch(id), parts: parts.into(), extent: like.extent }
}

fn user(buffer: Buffer, parts: Parts) -> Slice {
    Slice { buffer, parts, extent: Extent { buffer, parts } }
}

impl Slice {
    /// Returns this slice as `repeat` operands of a reduction. The slice's expressions may use the
    /// index of the operand, from 0: it is the counter of the dimension [`TERM`].
    #[must_use]
    pub const fn repeat(self, repeat: u32) -> Terms {
        Terms { slice: self, repeat }
    }
}

/// Builder of one rank's schedule.
#[derive(Debug)]
pub struct Builder {
    schedule: RankSchedule,
    open: Vec<(u32, Vec<Node>)>,
}

impl Builder {
    /// Returns the builder of an empty schedule whose blocks are cut into `split` parts.
    #[must_use]
    pub fn new(rank: Rank, ranks: u32, split: u32) -> Builder {
        let schedule = RankSchedule {
            rank,
            ranks,
            split,
            scratch_parts: Vec::new(),
            message_parts: 1,
            whole_messages: false,
            body: Vec::new(),
        };
        Builder { schedule, open: Vec::new() }
    }

    /// Makes all chunks of an op come before the next op: see [`RankSchedule::whole_messages`].
    /// Only for schedules whose ops do not wait for each other.
    pub fn whole_messages(&mut self) {
        self.schedule.whole_messages = true;
    }

    /// Returns the rank of this schedule.
    #[must_use]
    pub fn rank(&self) -> Rank {
        self.schedule.rank
    }

    /// Returns the number of open loops, which is the dimension of the loop that the next
    /// [`Builder::repeat`] opens.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.open.len()
    }

    /// Declares the number of parts of the largest message *of any rank*. This number determines
    /// the size of a chunk, which must be the same on all ranks. The builder itself counts only
    /// this rank's messages, so a schedule needs this call if other ranks' messages can be larger.
    pub fn widest_message(&mut self, parts: u32) {
        self.schedule.message_parts = self.schedule.message_parts.max(parts);
    }

    /// Adds a send of `source` to `peer`.
    pub fn send(&mut self, peer: impl Into<Peer>, source: Slice) {
        self.push(Op::Send { peer: peer.into().0, source });
    }

    /// Adds a receive of the next message of `peer` into `target`.
    pub fn recv(&mut self, peer: impl Into<Peer>, target: Slice) {
        self.push(Op::Recv { peer: peer.into().0, target });
    }

    /// Adds the copy `target = source`.
    pub fn copy(&mut self, target: Slice, source: Slice) {
        self.push(Op::Copy { target, source });
    }

    /// Adds the reduction `target = terms[0] ⊕ terms[1] ⊕ …`, whose result is partial.
    pub fn reduce(&mut self, target: Slice, terms: &[Terms]) {
        self.push(Op::Reduce { target, terms: present(terms), last: false });
    }

    /// Adds the same op as [`Builder::reduce`], and marks the result as complete: every rank's
    /// contribution is in it.
    pub fn reduce_last(&mut self, target: Slice, terms: &[Terms]) {
        self.push(Op::Reduce { target, terms: present(terms), last: true });
    }

    /// Adds a loop that executes `count` times the ops that `body` adds. `body` gets the loop's
    /// dimension. A loop without iterations or without ops is dropped.
    pub fn repeat(&mut self, count: u32, body: impl FnOnce(&mut Builder, usize)) {
        let dimension = self.open.len();
        debug_assert!(dimension < TERM, "schedules nest two loops at most");
        self.open.push((count, Vec::new()));
        body(self, dimension);
        if let Some((count, body)) = self.open.pop()
            && count > 0
            && !body.is_empty()
        {
            self.nodes().push(Node::Loop { count, body });
        }
    }

    /// Returns the finished schedule.
    #[must_use]
    pub fn finish(self) -> RankSchedule {
        self.schedule
    }

    fn nodes(&mut self) -> &mut Vec<Node> {
        match self.open.last_mut() {
            Some((_, body)) => body,
            None => &mut self.schedule.body,
        }
    }

    fn push(&mut self, op: Op) {
        self.size_scratch(&op);
        if let Op::Send { source: slice, .. } | Op::Recv { target: slice, .. } = &op {
            self.widest_message(slice.parts.total);
        }
        self.nodes().push(Node::Op(op));
    }

    /// Enlarges the op's scratch buffers where they lack parts that the op uses.
    fn size_scratch(&mut self, op: &Op) {
        let mut slices: Vec<Terms> = Vec::new();
        match op {
            Op::Send { source, .. } => slices.push((*source).into()),
            Op::Recv { target, .. } => slices.push((*target).into()),
            Op::Copy { target, source } => slices.extend([Terms::from(*target), (*source).into()]),
            Op::Reduce { target, terms, .. } => {
                slices.push((*target).into());
                slices.extend(terms);
            }
        }
        let loops: Vec<u32> = self.open.iter().map(|(count, _)| *count).collect();
        for Terms { slice, repeat } in slices {
            if let Buffer::Scratch(id) = slice.buffer {
                let parts = bound(&slice.parts, &loops, repeat);
                let sizes = &mut self.schedule.scratch_parts;
                if sizes.len() <= usize::from(id) {
                    sizes.resize(usize::from(id) + 1, 0);
                }
                sizes[usize::from(id)] = sizes[usize::from(id)].max(parts);
            }
        }
    }
}

/// Returns an exclusive upper bound on the part numbers that `parts` takes in these loops: the
/// lowest bound or a slightly higher one.
fn bound(parts: &Parts, loops: &[u32], repeat: u32) -> u32 {
    let count = |dimension: usize| loops.get(dimension).copied().unwrap_or(1);
    let first = parts.first.most(&[count(0), count(1), repeat]);
    let run = parts.run.max(1);
    let last = parts.total.saturating_sub(1);
    let most = first + (last / run * parts.period + last % run).max(run.min(parts.total) - 1);
    if parts.wrap == 0 { most + 1 } else { parts.wrap.min(most + 1) }
}

fn present(terms: &[Terms]) -> Vec<Terms> {
    terms.iter().copied().filter(|terms| terms.repeat > 0).collect()
}

/// A peer: a rank, or an expression for a rank.
#[derive(Clone, Copy, Debug)]
pub struct Peer(Affine);

impl From<Rank> for Peer {
    fn from(rank: Rank) -> Peer {
        Peer(Affine::constant(rank))
    }
}

impl From<Affine> for Peer {
    fn from(rank: Affine) -> Peer {
        Peer(rank)
    }
}
