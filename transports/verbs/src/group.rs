//! The queue pairs of a link, and which of them a put takes.

use std::ops::Range;

use ccl_core::queue_pairs::{Order, PARTS_MAX, Striping};

use crate::Options;
use crate::line::Line;

/// The smallest share of a link's room that a queue pair has, as a divisor: a rule that uses one of
/// 16 must not be left with a sixteenth. Credits, which are fewer than puts, have as much.
const SHARES_MAX: u32 = 4;
/// Parts of a put begin at multiples of so many bytes.
const ALIGNMENT: usize = 64;

/// A queue pair that a link needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Need {
    pub(crate) traffic_class: u8,
    /// Writes that it may have under way.
    pub(crate) writes: u32,
    /// Immediates that may come over it before the lane is polled.
    pub(crate) immediates: u32,
}

/// The queue pairs that each link needs: first the one for credits and CTS, which tell the peer
/// what it may send and must not wait behind data.
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

/// Queue pairs of one traffic class, among a link's.
#[derive(Debug)]
pub(crate) struct Group {
    traffic_class: Option<u8>,
    first: usize,
    count: usize,
    /// The one whose turn is next.
    turn: usize,
}

/// Where a put goes: in so many parts of so many bytes, to this line and those after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Selection {
    first: usize,
    count: usize,
    at: usize,
    pub(crate) parts: usize,
    pub(crate) part_bytes: usize,
}

impl Selection {
    /// The line of a part.
    pub(crate) fn line(&self, part: usize) -> usize {
        let at = self.at + part;
        self.first + if at < self.count { at } else { at - self.count }
    }
}

/// All of a link's, as [`needs`] lists them.
#[derive(Debug)]
pub(crate) struct Groups {
    groups: Vec<Group>,
    striping: Striping,
    /// That of the spread's traffic class.
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

    /// Spreads puts so from now on. A traffic class without queue pairs leaves it to the first.
    pub(crate) fn apply(&mut self, striping: &Striping) {
        self.striping = *striping;
        let own = |group: &Group| group.traffic_class == striping.traffic_class;
        self.current = self.groups.iter().position(own).unwrap_or(0);
    }

    /// The queue pairs that puts take now, among a link's.
    pub(crate) fn range(&self) -> Range<usize> {
        self.groups.get(self.current).map_or(0..0, |group| {
            let count = group.count.min(self.striping.pairs as usize).max(1);
            group.first..group.first + count
        })
    }

    /// The most puts that are under way at once.
    pub(crate) fn in_flight(&self) -> usize {
        self.striping.in_flight as usize
    }

    /// The most bytes that may be under way from the port.
    pub(crate) fn budget_bytes(&self) -> usize {
        self.striping.budget_bytes
    }

    /// Where a credit of so many bytes goes now, if there is room.
    pub(crate) fn aside(lines: &[Line], bytes: usize) -> Option<Selection> {
        let alone = Selection { first: 0, count: 1, at: 0, parts: 1, part_bytes: bytes };
        lines.first()?.has_room().then_some(alone)
    }

    /// Where so many bytes go now, if there is room.
    pub(crate) fn selection(&mut self, lines: &[Line], bytes: usize) -> Option<Selection> {
        let Striping { order, chunk_bytes, .. } = self.striping;
        let range = self.range();
        let (first, count) = (range.start, range.len());
        let group = self.groups.get_mut(self.current)?;
        let lines = lines.get(range)?;
        let (mut parts, mut part_bytes) = (1, bytes);
        if order == Order::Split && bytes / 2 >= chunk_bytes {
            parts = (bytes / chunk_bytes.max(1)).clamp(1, count.min(PARTS_MAX as usize));
            part_bytes = bytes.div_ceil(parts).next_multiple_of(ALIGNMENT).min(bytes);
            parts = bytes.div_ceil(part_bytes.max(1)).max(1);
        }
        // It may have been that of a wider spread.
        let turn = if group.turn < count { group.turn } else { 0 };
        let at = if parts > 1 {
            (0..parts).all(|part| lines[(turn + part) % count].has_room()).then_some(turn)?
        } else {
            let mut free = (turn..count).chain(0..turn).filter(|at| lines[*at].has_room());
            match order {
                Order::LoadAware => free.min_by_key(|at| lines[*at].bytes())?,
                Order::RoundRobin | Order::Split => free.next()?,
            }
        };
        let next = at + parts;
        group.turn = if next < count { next } else { next - count };
        Some(Selection { first, count, at, parts, part_bytes })
    }
}
