//! The queue pairs of a link, and the selection of those that carry a put.

use std::ops::Range;

use ccl_core::queue_pairs::{Order, PARTS_MAX, Striping};

use crate::Options;
use crate::queue_pair::QueuePair;

/// Largest number of shares into which [`Options::writes`] and [`Options::immediates`] are divided.
/// Each queue pair has room for one share of each, so for at least a quarter, even if 16 queue
/// pairs have the same traffic class: a policy can have rules that use only one of the 16. The
/// queue pair for credits and CTS has room for a quarter, since credits and CTS are fewer than data
/// puts.
const SHARES_MAX: u32 = 4;
/// Alignment of the parts of a put, in bytes.
const ALIGNMENT: usize = 64;

/// A queue pair that a link needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Need {
    pub(crate) traffic_class: u8,
    /// Number of writes that the queue pair may have under way.
    pub(crate) writes: u32,
    /// Number of immediates that may come over the queue pair before the lane is polled.
    pub(crate) immediates: u32,
}

/// Returns the queue pairs that each link needs. The first one is for credits and CTS, which must
/// not wait behind data.
pub(crate) fn needs(options: &Options) -> impl Iterator<Item = Need> + '_ {
    let need = |traffic_class, sharers: u32| Need {
        traffic_class,
        writes: options.writes.div_ceil(sharers.clamp(1, SHARES_MAX)),
        immediates: options.immediates.div_ceil(sharers.clamp(1, SHARES_MAX)),
    };
    let control = options.control_traffic_class.unwrap_or(options.traffic_class);
    let first = need(control, SHARES_MAX);
    let others = options.policy.groups().into_iter().flat_map(move |group| {
        let traffic_class = group.traffic_class.unwrap_or(options.traffic_class);
        (0..group.pairs).map(move |_| need(traffic_class, group.pairs))
    });
    std::iter::once(first).chain(others)
}

/// Queue pairs of a link that have one traffic class.
#[derive(Debug)]
pub(crate) struct Group {
    traffic_class: Option<u8>,
    first: usize,
    count: usize,
    /// Index of the queue pair whose turn is next.
    turn: usize,
}

/// Queue pairs that a put takes: `parts` parts of `part_bytes` bytes go to successive queue pairs
/// of a group, cyclically from index `at`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Selection {
    first: usize,
    count: usize,
    at: usize,
    pub(crate) parts: usize,
    pub(crate) part_bytes: usize,
}

impl Selection {
    /// Returns the queue pair of a part.
    pub(crate) fn queue_pair(&self, part: usize) -> usize {
        let at = self.at + part;
        self.first + if at < self.count { at } else { at - self.count }
    }
}

/// All groups of a link, in the order in which [`needs`] lists their queue pairs.
#[derive(Debug)]
pub(crate) struct Groups {
    groups: Vec<Group>,
    striping: Striping,
    /// Index of the group with the traffic class of `striping`.
    current: usize,
}

impl Groups {
    pub(crate) fn new(options: &Options) -> Groups {
        let mut first = 1;
        let mut groups = Vec::new();
        for group in options.policy.groups() {
            let (traffic_class, count) = (group.traffic_class, group.pairs as usize);
            groups.push(Group { traffic_class, first, count, turn: 0 });
            first += count;
        }
        let mut groups = Groups { groups, striping: Striping::default(), current: 0 };
        groups.apply(&options.policy.otherwise());
        groups
    }

    /// Sets the striping of puts from now on. If no queue pairs have the traffic class of
    /// `striping`, the first group takes the puts.
    pub(crate) fn apply(&mut self, striping: &Striping) {
        self.striping = *striping;
        let own = |group: &Group| group.traffic_class == striping.traffic_class;
        self.current = self.groups.iter().position(own).unwrap_or(0);
    }

    /// Returns the range of a link's queue pairs that data puts use now.
    pub(crate) fn range(&self) -> Range<usize> {
        self.groups.get(self.current).map_or(0..0, |group| {
            let count = group.count.min(self.striping.pairs as usize).max(1);
            group.first..group.first + count
        })
    }

    /// Returns the most data puts that the link may have under way at once.
    pub(crate) fn in_flight(&self) -> usize {
        self.striping.in_flight as usize
    }

    /// Returns the most bytes that all links of the port together may have under way.
    pub(crate) fn budget_bytes(&self) -> usize {
        self.striping.budget_bytes
    }

    /// Selects the queue pair for a credit or CTS of `bytes` bytes, if there is room.
    pub(crate) fn aside(queue_pairs: &[QueuePair], bytes: usize) -> Option<Selection> {
        let alone = Selection { first: 0, count: 1, at: 0, parts: 1, part_bytes: bytes };
        queue_pairs.first()?.has_room().then_some(alone)
    }

    /// Selects the queue pairs for a put of `bytes` bytes, if there is room.
    pub(crate) fn selection(
        &mut self,
        queue_pairs: &[QueuePair],
        bytes: usize,
    ) -> Option<Selection> {
        let Striping { order, chunk_bytes, .. } = self.striping;
        let range = self.range();
        let (first, count) = (range.start, range.len());
        let group = self.groups.get_mut(self.current)?;
        let queue_pairs = queue_pairs.get(range)?;
        let (mut parts, mut part_bytes) = (1, bytes);
        if order == Order::Split && bytes / 2 >= chunk_bytes {
            parts = (bytes / chunk_bytes.max(1)).clamp(1, count.min(PARTS_MAX as usize));
            part_bytes = bytes.div_ceil(parts).next_multiple_of(ALIGNMENT).min(bytes);
            parts = bytes.div_ceil(part_bytes.max(1)).max(1);
        }
        // The turn may stem from a striping with more queue pairs.
        let turn = if group.turn < count { group.turn } else { 0 };
        // Inline puts stay on one queue pair: they are too short for several queue pairs to help,
        // and a change costs more than it gains. With the load-aware order they stay only while
        // that queue pair has few bytes outstanding.
        let own = &queue_pairs[turn];
        let is_inline = own.is_inline(bytes);
        let may_stay = order != Order::LoadAware || own.is_inline(own.bytes());
        let at = if parts == 1 && is_inline && may_stay && own.has_room() {
            turn
        } else if parts > 1 {
            (0..parts).all(|part| queue_pairs[(turn + part) % count].has_room()).then_some(turn)?
        } else {
            let mut free = (turn..count).chain(0..turn).filter(|at| queue_pairs[*at].has_room());
            match order {
                Order::LoadAware => free.min_by_key(|at| queue_pairs[*at].bytes())?,
                Order::RoundRobin | Order::Split => free.next()?,
            }
        };
        let next = if is_inline { at } else { at + parts };
        group.turn = if next < count { next } else { next - count };
        Some(Selection { first, count, at, parts, part_bytes })
    }
}
