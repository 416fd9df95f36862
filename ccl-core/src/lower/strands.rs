//! Division of a fused schedule into strands, and inference of the waits between them.

use std::collections::{BTreeMap, BTreeSet};

use super::fuse::Lowered;
use super::{Alias, Fold, Instr, Location, Program, Source, Strand};
use crate::schedule::{Buffer, Counters, DEPTH, RankSchedule, TERM};
use crate::types::Rank;

/// Part of a buffer, for finding dependencies; input and output share one index space (see
/// [`Alias`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Cell {
    User(u32),
    Scratch(u8, u32),
}

/// Links and memory that a unit (a top-level fold or loop) touches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Footprint {
    sends: BTreeSet<Rank>,
    recvs: BTreeSet<Rank>,
    reads: BTreeSet<Cell>,
    writes: BTreeSet<Cell>,
}

impl Footprint {
    fn of(node: &Lowered, alias: Alias) -> Footprint {
        let mut footprint = Footprint::default();
        footprint.add(node, 0, &mut [0; DEPTH], alias);
        footprint
    }

    fn add(&mut self, node: &Lowered, depth: usize, at: &mut Counters, alias: Alias) {
        match node {
            Lowered::Loop { count, body } => {
                for iteration in 0..*count {
                    at[depth] = iteration;
                    body.iter().for_each(|node| self.add(node, depth + 1, at, alias));
                }
                at[depth] = 0;
            }
            Lowered::Fold(fold) => self.add_fold(fold, at, alias),
        }
    }

    fn add_fold(&mut self, fold: &Fold, at: &mut Counters, alias: Alias) {
        for source in &fold.sources {
            for term in 0..source.repeat {
                at[TERM] = term;
                match source.location {
                    Location::Slot(peer) => drop(self.recvs.insert(peer.eval(at))),
                    location @ Location::Memory(..) => cells(location, at, alias, &mut self.reads),
                }
            }
        }
        for target in &fold.targets {
            for term in 0..target.repeat {
                at[TERM] = term;
                match target.location {
                    Location::Slot(peer) => drop(self.sends.insert(peer.eval(at))),
                    location @ Location::Memory(..) => cells(location, at, alias, &mut self.writes),
                }
            }
        }
        at[TERM] = 0;
    }

    fn shares_link(&self, other: &Footprint) -> bool {
        !self.sends.is_disjoint(&other.sends) || !self.recvs.is_disjoint(&other.recvs)
    }

    fn conflicts(&self, other: &Footprint, scratch_only: bool) -> bool {
        let hit = |a: &BTreeSet<Cell>, b: &BTreeSet<Cell>| {
            a.intersection(b).any(|cell| !scratch_only || matches!(cell, Cell::Scratch(..)))
        };
        hit(&self.writes, &other.reads)
            || hit(&self.reads, &other.writes)
            || hit(&self.writes, &other.writes)
    }
}

fn cells(location: Location, at: &Counters, alias: Alias, into: &mut BTreeSet<Cell>) {
    if let Location::Memory(buffer, parts) = location {
        into.extend((0..parts.total).map(|index| {
            let part = parts.part(index, at);
            match buffer {
                Buffer::Input => Cell::User(part + alias.input),
                Buffer::Output => Cell::User(part + alias.output),
                Buffer::Scratch(id) => Cell::Scratch(id, part),
            }
        }));
    }
}

/// Sets [`Fold::early`] for each fold whose only source is a slot, provided that each iteration of
/// the fold writes only memory that nothing before this iteration touches.
pub(super) fn mark_early(nodes: &mut [Lowered], alias: Alias) {
    nodes.iter_mut().for_each(begin);
    let mut touched = BTreeSet::new();
    nodes.iter_mut().for_each(|node| touch(node, 0, &mut [0; DEPTH], alias, &mut touched));
}

/// Marks as early every fold whose only source is a slot; `touch` removes the wrong marks.
fn begin(node: &mut Lowered) {
    match node {
        Lowered::Loop { body, .. } => body.iter_mut().for_each(begin),
        Lowered::Fold(fold) => {
            let slot = |source: &Source| matches!(source.location, Location::Slot(_));
            fold.early = matches!(fold.sources.as_slice(), [only] if slot(only));
        }
    }
}

fn touch(
    node: &mut Lowered,
    depth: usize,
    at: &mut Counters,
    alias: Alias,
    touched: &mut BTreeSet<Cell>,
) {
    match node {
        Lowered::Loop { count, body } => {
            for iteration in 0..*count {
                at[depth] = iteration;
                body.iter_mut().for_each(|node| touch(node, depth + 1, at, alias, touched));
            }
            at[depth] = 0;
        }
        Lowered::Fold(fold) => {
            let mut footprint = Footprint::default();
            footprint.add_fold(fold, at, alias);
            fold.early &= footprint.writes.is_disjoint(touched);
            touched.extend(footprint.reads.into_iter().chain(footprint.writes));
        }
    }
}

/// Assembles the program from fused nodes.
pub(super) fn assemble(
    schedule: &RankSchedule,
    nodes: &[Lowered],
    scratch_parts: Vec<u32>,
    alias: Alias,
) -> Program {
    let units: Vec<Footprint> = nodes.iter().map(|node| Footprint::of(node, alias)).collect();
    let strand_of = assign(&units);
    let awaits = needed(infer(&units, &strand_of), &strand_of);
    let awaited: BTreeSet<usize> = awaits.values().flatten().map(|(unit, _)| *unit).collect();
    let mut strands: Vec<Strand> = Vec::new();
    let count = strand_of.iter().max().map_or(0, |most| most + 1);
    strands.resize_with(count, Strand::default);
    for (unit, node) in nodes.iter().enumerate() {
        let code = &mut strands[strand_of[unit]].code;
        for (other, lag) in awaits.get(&unit).into_iter().flatten() {
            code.push(Instr::Await { unit: number(*other), lag: *lag });
        }
        emit(node, 0, code);
        if awaited.contains(&unit) {
            code.push(Instr::Done { unit: number(unit) });
        }
    }
    let peers = |side: fn(&Footprint) -> &BTreeSet<Rank>| -> Vec<Rank> {
        units.iter().flat_map(side).copied().collect::<BTreeSet<_>>().into_iter().collect()
    };
    Program {
        rank: schedule.rank,
        ranks: schedule.ranks,
        split: schedule.split,
        strands,
        units: number(nodes.len()),
        scratch_parts,
        message_parts: schedule.message_parts,
        send_peers: peers(|unit| &unit.sends),
        whole_messages: schedule.whole_messages,
        recv_peers: peers(|unit| &unit.recvs),
    }
}

fn number(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
}

/// Returns the strand of each unit: units that share a direction of a link are in one strand.
fn assign(units: &[Footprint]) -> Vec<usize> {
    let mut group: Vec<usize> = (0..units.len()).collect();
    for later in 0..units.len() {
        for earlier in 0..later {
            if units[earlier].shares_link(&units[later]) && group[earlier] != group[later] {
                let (keep, merge) = (group[earlier], group[later]);
                let (keep, merge) = (keep.min(merge), keep.max(merge));
                group.iter_mut().filter(|g| **g == merge).for_each(|g| *g = keep);
            }
        }
    }
    // A unit without links (a copy) joins the strand of the unit before it or, if it is the first
    // unit, the strand of the unit after it.
    for unit in 0..units.len() {
        if units[unit].sends.is_empty() && units[unit].recvs.is_empty() {
            group[unit] = if unit > 0 { group[unit - 1] } else { *group.get(1).unwrap_or(&0) };
        }
    }
    let mut names: BTreeMap<usize, usize> = BTreeMap::new();
    group
        .into_iter()
        .map(|g| {
            let fresh = names.len();
            *names.entry(g).or_insert(fresh)
        })
        .collect()
}

/// Returns, for each unit, the units of other strands that it waits for: earlier units of the same
/// chunk that conflict with it in any memory, and later units of the previous chunk that conflict
/// with it in scratch.
fn infer(units: &[Footprint], strand_of: &[usize]) -> BTreeMap<usize, Vec<(usize, u32)>> {
    let mut awaits: BTreeMap<usize, Vec<(usize, u32)>> = BTreeMap::new();
    for later in 0..units.len() {
        for earlier in 0..later {
            if strand_of[earlier] == strand_of[later] {
                continue;
            }
            if units[earlier].conflicts(&units[later], false) {
                awaits.entry(later).or_default().push((earlier, 0));
            }
            if units[earlier].conflicts(&units[later], true) {
                awaits.entry(earlier).or_default().push((later, 1));
            }
        }
    }
    awaits
}

/// Drops waits that other waits imply. A strand runs its units in order: if one of its units is
/// done for a chunk, the units before it in the strand are done for this chunk, and all units of
/// the strand are done for the chunk before.
fn needed(
    awaits: BTreeMap<usize, Vec<(usize, u32)>>,
    strand_of: &[usize],
) -> BTreeMap<usize, Vec<(usize, u32)>> {
    // Key: the waiting strand and the awaited strand. Value, for this chunk and for the chunk
    // before: the index after the awaited strand's last unit that is known to be done, or 0.
    let mut known: BTreeMap<(usize, usize), [usize; 2]> = BTreeMap::new();
    let mut left: BTreeMap<usize, Vec<(usize, u32)>> = BTreeMap::new();
    for (unit, mut others) in awaits {
        others.sort_by_key(|&(other, lag)| (lag, std::cmp::Reverse(other)));
        for (other, lag) in others {
            let [now, before] = known.entry((strand_of[unit], strand_of[other])).or_insert([0, 0]);
            let news = if lag == 0 { other >= *now } else { *now == 0 && other >= *before };
            if news {
                *(if lag == 0 { now } else { before }) = other + 1;
                left.entry(unit).or_default().push((other, lag));
            }
        }
    }
    left
}

fn emit(node: &Lowered, depth: u8, code: &mut Vec<Instr>) {
    match node {
        Lowered::Fold(fold) => code.push(Instr::Fold(fold.clone())),
        Lowered::Loop { count, body } => {
            code.push(Instr::Loop { dimension: depth });
            let start = number(code.len());
            body.iter().for_each(|node| emit(node, depth + 1, code));
            code.push(Instr::Next { dimension: depth, count: *count, start });
        }
    }
}
