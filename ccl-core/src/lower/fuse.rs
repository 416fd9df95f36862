//! Fusion of ops into folds: messages are combined in their slots instead of being copied out
//! first.
//!
//! Two patterns cover all algorithms. *Deferring*: receives into scratch become slot operands of
//! the op right after them, if only that op reads the scratch. *Absorbing*: sends and copies of the
//! result of an op become further targets of that op. Neither pattern moves a message past another
//! one of the same link.

use std::collections::BTreeMap;

use super::{Fold, Location, Source, Target};
use crate::schedule::{Affine, Buffer, DEPTH, Node, Op, Parts, RankSchedule, Slice, TERM};

/// A fold, or a loop over folds.
#[derive(Clone, Debug)]
pub(crate) enum Lowered {
    Fold(Fold),
    Loop { count: u32, body: Vec<Lowered> },
}

/// Fuses a schedule. Returns the folds, and the number of parts of each scratch buffer: 0 if no
/// fold uses the buffer any more. Without `relay`, no fold both reads a slot and writes one.
pub(super) fn fuse(schedule: &RankSchedule, relay: bool) -> (Vec<Lowered>, Vec<u32>) {
    let uses = Uses::of(&schedule.body, relay);
    let nodes = fuse_body(&schedule.body, 0, &uses);
    let mut scratch = vec![0; schedule.scratch_parts.len()];
    mark_scratch(&nodes, &schedule.scratch_parts, &mut scratch);
    (nodes, scratch)
}

/// Number of writes and reads of each scratch buffer in the schedule; the body of a loop counts
/// once.
struct Uses {
    scratch: BTreeMap<u8, (u32, u32)>,
    /// True if a fold may pass a message from slot to slot.
    relay: bool,
}

impl Uses {
    fn of(body: &[Node], relay: bool) -> Uses {
        let mut uses = Uses { scratch: BTreeMap::new(), relay };
        uses.count(body);
        uses
    }

    fn count(&mut self, body: &[Node]) {
        for node in body {
            match node {
                Node::Loop { body, .. } => self.count(body),
                Node::Op(Op::Send { source, .. }) => self.read(source),
                Node::Op(Op::Recv { target, .. }) => self.written(target),
                Node::Op(Op::Copy { target, source }) => {
                    self.read(source);
                    self.written(target);
                }
                Node::Op(Op::Reduce { target, terms, .. }) => {
                    terms.iter().for_each(|terms| self.read(&terms.slice));
                    self.written(target);
                }
            }
        }
    }

    fn written(&mut self, slice: &Slice) {
        if let Buffer::Scratch(id) = slice.buffer {
            self.scratch.entry(id).or_default().0 += 1;
        }
    }

    fn read(&mut self, slice: &Slice) {
        if let Buffer::Scratch(id) = slice.buffer {
            self.scratch.entry(id).or_default().1 += 1;
        }
    }

    /// Returns whether the schedule writes this scratch buffer once and reads it `reads` times.
    fn only(&self, buffer: Buffer, reads: u32) -> bool {
        match buffer {
            Buffer::Scratch(id) => self.scratch.get(&id) == Some(&(1, reads)),
            _ => false,
        }
    }
}

fn fuse_body(body: &[Node], depth: usize, uses: &Uses) -> Vec<Lowered> {
    let mut out = Vec::new();
    let mut at = 0;
    while at < body.len() {
        let run = deferrable_run(&body[at..], depth, uses);
        let consumer = at + run.len();
        let (fold, next) = match &body[consumer] {
            Node::Loop { count, body } => {
                out.push(Lowered::Loop { count: *count, body: fuse_body(body, depth + 1, uses) });
                at = consumer + 1;
                continue;
            }
            Node::Op(op) => (fold_of(op, &run), consumer + 1),
        };
        let (fold, next) = absorb(fold, written(&body[consumer]), &body[next..], next, depth, uses);
        out.push(Lowered::Fold(fold));
        at = next;
    }
    out
}

/// Receive whose message can be read in its slot: the original target, and the slot.
struct Deferred {
    buffer: Buffer,
    parts: Parts,
    source: Source,
}

/// Returns the receives at the head of `body`, if only the op right after them reads their targets;
/// otherwise nothing.
fn deferrable_run(body: &[Node], depth: usize, uses: &Uses) -> Vec<Deferred> {
    let mut run: Vec<Deferred> = Vec::new();
    for node in body {
        match deferred(node, depth, uses) {
            Some(next) => run.push(next),
            None => {
                let fits = matches!(node, Node::Op(op) if reads_all(op, &run, uses.relay));
                return if fits { run } else { Vec::new() };
            }
        }
    }
    Vec::new()
}

/// Returns the deferred form of a node that is a `Recv` into single-use scratch, or a loop with
/// such a `Recv` as its only op.
fn deferred(node: &Node, depth: usize, uses: &Uses) -> Option<Deferred> {
    match node {
        Node::Op(Op::Recv { peer, target }) if uses.only(target.buffer, 1) => Some(Deferred {
            buffer: target.buffer,
            parts: target.parts,
            source: Source { location: Location::Slot(*peer), repeat: 1 },
        }),
        Node::Loop { count, body } => match body.as_slice() {
            [Node::Op(Op::Recv { peer, target })] if uses.only(target.buffer, 1) => {
                let mut parts = target.parts;
                parts.first = parts.first.rename(depth, TERM);
                let location = Location::Slot(peer.rename(depth, TERM));
                Some(Deferred {
                    buffer: target.buffer,
                    parts,
                    source: Source { location, repeat: *count },
                })
            }
            _ => None,
        },
        Node::Op(_) => None,
    }
}

/// Returns whether both hold: `op` reads the targets of all deferred receives, and no two of these
/// receives use the same link. Without `relay`, returns false for every send.
fn reads_all(op: &Op, run: &[Deferred], relay: bool) -> bool {
    if matches!(op, Op::Send { .. }) && !relay {
        return false;
    }
    let sources = sources_of(op);
    let read = |deferred: &Deferred| {
        sources.iter().any(|(slice, repeat)| {
            slice.buffer == deferred.buffer
                && slice.parts == deferred.parts
                && *repeat == deferred.source.repeat
        })
    };
    run.iter().all(read) && distinct_peers(run)
}

fn distinct_peers(run: &[Deferred]) -> bool {
    let mut all = Vec::new();
    for deferred in run {
        match deferred.source.location {
            Location::Slot(peer) => Series::of(&peer, deferred.source.repeat, &mut all),
            Location::Memory(..) => return false,
        }
    }
    all.sort_unstable_by_key(|series| series.least);
    (1..).zip(&all).all(|(next, one)| {
        let near = all[next..].iter().take_while(|other| other.least <= one.most);
        near.into_iter().all(|other| !one.meets(other))
    })
}

/// Evenly spaced ranks. The peers of a loop are usually one or two series, however many iterations
/// the loop has.
#[derive(Clone, Copy, Debug)]
struct Series {
    least: u32,
    most: u32,
    step: u32,
}

impl Series {
    /// Appends the peers of `repeat` terms. If successive terms have the same peer, this peer
    /// becomes two equal series: [`Series::meets`] holds for the two, so `distinct_peers` returns
    /// false.
    fn of(peer: &Affine, repeat: u32, into: &mut Vec<Series>) {
        let mut counters = [0; DEPTH];
        let mut first = 0;
        while first < repeat {
            counters[TERM] = first;
            let begin = peer.eval(&counters);
            let count = peer.stays(&counters, TERM, &(0..u32::MAX)).min(repeat - first);
            first += count;
            counters[TERM] = first - 1;
            let end = peer.eval(&counters);
            let (least, most) = (begin.min(end), begin.max(end));
            let step = ((most - least) / (count - 1).max(1)).max(1);
            let times = if count > 1 && least == most { 2 } else { 1 };
            into.extend(std::iter::repeat_n(Series { least, most, step }, times));
        }
    }

    fn has(&self, rank: u32) -> bool {
        (self.least..=self.most).contains(&rank) && (rank - self.least).is_multiple_of(self.step)
    }

    /// Returns whether some rank is in both series.
    fn meets(&self, other: &Series) -> bool {
        let (few, many) = if self.step < other.step { (other, self) } else { (self, other) };
        let from = many.least.saturating_sub(few.least).div_ceil(few.step) * few.step + few.least;
        let to = few.most.min(many.most);
        (from..=to).step_by(few.step as usize).any(|rank| many.has(rank))
    }
}

fn sources_of(op: &Op) -> Vec<(Slice, u32)> {
    match op {
        Op::Send { source, .. } | Op::Copy { source, .. } => vec![(*source, 1)],
        Op::Reduce { terms, .. } => terms.iter().map(|t| (t.slice, t.repeat)).collect(),
        Op::Recv { .. } => Vec::new(),
    }
}

/// Returns the memory that an op writes; none for a send or a loop.
fn written(node: &Node) -> Option<Slice> {
    match node {
        Node::Op(Op::Recv { target, .. } | Op::Copy { target, .. } | Op::Reduce { target, .. }) => {
            Some(*target)
        }
        _ => None,
    }
}

fn fold_of(op: &Op, run: &[Deferred]) -> Fold {
    let sources: Vec<Source> = match op {
        Op::Recv { peer, .. } => vec![Source { location: Location::Slot(*peer), repeat: 1 }],
        _ => sources_of(op).iter().map(|(slice, repeat)| source(slice, *repeat, run)).collect(),
    };
    let (target, extent, last) = match op {
        Op::Send { peer, source } => (Location::Slot(*peer), source.extent, false),
        Op::Recv { target, .. } | Op::Copy { target, .. } => (memory(target), target.extent, false),
        Op::Reduce { target, last, .. } => (memory(target), target.extent, *last),
    };
    let targets = vec![Target { location: target, repeat: 1 }];
    Fold { sources, targets, extent, last, early: false }
}

fn memory(slice: &Slice) -> Location {
    Location::Memory(slice.buffer, slice.parts)
}

fn source(slice: &Slice, repeat: u32, run: &[Deferred]) -> Source {
    run.iter()
        .find(|deferred| deferred.buffer == slice.buffer && deferred.parts == slice.parts)
        .map_or(Source { location: memory(slice), repeat }, |deferred| deferred.source)
}

/// Absorbs the sends and copies of a fold's result that come right after the fold: they become
/// targets of the fold. Drops the fold's original target if this is scratch that only the absorbed
/// sends and copies read. Returns the fold and the next node's index.
fn absorb(
    mut fold: Fold,
    written: Option<Slice>,
    followers: &[Node],
    mut next: usize,
    depth: usize,
    uses: &Uses,
) -> (Fold, usize) {
    let Some(written) = written else { return (fold, next) };
    let mut reads = 0;
    for node in followers {
        let Some(target) = follower(node, &written, depth) else { break };
        if sends_twice(&fold, &target) || relays(&fold, &target) && !uses.relay {
            break;
        }
        fold.targets.push(target);
        reads += 1;
        next += 1;
    }
    if reads > 0 && uses.only(written.buffer, reads) {
        fold.targets.remove(0);
    }
    (fold, next)
}

/// Returns the target that `node` adds, if the node only forwards `written`.
fn follower(node: &Node, written: &Slice, depth: usize) -> Option<Target> {
    match node {
        Node::Op(Op::Send { peer, source }) if same(source, written) => {
            Some(Target { location: Location::Slot(*peer), repeat: 1 })
        }
        Node::Op(Op::Copy { target, source }) if same(source, written) => {
            Some(Target { location: memory(target), repeat: 1 })
        }
        Node::Loop { count, body } => match body.as_slice() {
            [Node::Op(Op::Send { peer, source })] if same(source, written) => {
                Some(Target { location: Location::Slot(peer.rename(depth, TERM)), repeat: *count })
            }
            _ => None,
        },
        _ => None,
    }
}

fn same(a: &Slice, b: &Slice) -> bool {
    a.buffer == b.buffer && a.parts == b.parts
}

/// Returns whether the fold already sends to a peer of `target`: a fold sends at most one message
/// per link.
fn sends_twice(fold: &Fold, target: &Target) -> bool {
    let peers = |target: &Target| {
        let mut peers = Vec::new();
        if let Location::Slot(peer) = target.location {
            Series::of(&peer, target.repeat, &mut peers);
        }
        peers
    };
    let new = peers(target);
    fold.targets.iter().flat_map(peers).any(|peers| new.iter().any(|new| peers.meets(new)))
}

/// Returns whether the target would make the fold pass a message from slot to slot.
fn relays(fold: &Fold, target: &Target) -> bool {
    let slot = |location: &Location| matches!(location, Location::Slot(_));
    slot(&target.location) && fold.sources.iter().any(|source| slot(&source.location))
}

fn mark_scratch(nodes: &[Lowered], declared: &[u32], used: &mut [u32]) {
    for node in nodes {
        match node {
            Lowered::Loop { body, .. } => mark_scratch(body, declared, used),
            Lowered::Fold(fold) => {
                let locations = fold.sources.iter().map(|source| source.location);
                for location in locations.chain(fold.targets.iter().map(|target| target.location)) {
                    if let Location::Memory(Buffer::Scratch(id), _) = location {
                        used[usize::from(id)] = declared[usize::from(id)];
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_contain_the_ranks_of_a_loop() {
        let loops = [
            (Affine::constant(3).step(TERM, 1).modulo(7), 6),
            (Affine::constant(3).step(TERM, -1).modulo(7), 9),
            (Affine::constant(1).step(TERM, 3).modulo(9).offset(2), 3),
            (Affine::constant(2).step(TERM, 4), 5),
            (Affine::constant(20).step(TERM, -3), 4),
            (Affine::constant(6), 1),
            (Affine::constant(6), 2),
        ];
        let ranks = |(peer, repeat): &(Affine, u32)| -> Vec<u32> {
            (0..*repeat).map(|term| peer.eval(&[0, 0, term])).collect()
        };
        let series = |(peer, repeat): &(Affine, u32)| {
            let mut all = Vec::new();
            Series::of(peer, *repeat, &mut all);
            all
        };
        for one in &loops {
            let mut named: Vec<u32> = series(one)
                .iter()
                .flat_map(|series| (0..100).filter(|rank| series.has(*rank)))
                .collect();
            let mut expected = ranks(one);
            named.sort_unstable();
            expected.sort_unstable();
            assert_eq!(named, expected, "{one:?}");
            for other in &loops {
                let meet = ranks(one).iter().any(|rank| ranks(other).contains(rank));
                let others = series(other);
                let found =
                    series(one).iter().any(|one| others.iter().any(|other| one.meets(other)));
                assert_eq!(found, meet, "{one:?} {other:?}");
            }
        }
    }
}
