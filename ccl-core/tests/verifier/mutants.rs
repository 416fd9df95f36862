//! Breaks correct algorithms at random and counts the mutants that the verifier rejects. A mutant
//! that passes every trial of the suite counts as redundant.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use ccl_core::algorithm::{self, Algorithm};
use ccl_core::lower::{Instr, Program};
use ccl_core::schedule::{Affine, DEPTH, Node, Op, Slice};
use ccl_core::topology::Hosts;
use ccl_core::types::Collective;

use crate::full;
use crate::numbers::{Group, Trial, hosts, roots};
use crate::suite::on_two_threads;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    DropAwait,
    DropRecv,
    DropSend,
    SwapOps,
    ShiftPart,
    ChangePeer,
    DropSource,
    DropTarget,
}

const KINDS: [Kind; 8] = [
    Kind::DropAwait,
    Kind::DropRecv,
    Kind::DropSend,
    Kind::SwapOps,
    Kind::ShiftPart,
    Kind::ChangePeer,
    Kind::DropSource,
    Kind::DropTarget,
];

/// Random number generator: splitmix64 by Steele, Lea and Flood.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % bound.max(1) as u64) as usize
    }

    fn pick<T>(&mut self, mut of: Vec<T>) -> Option<T> {
        let index = self.below(of.len());
        (!of.is_empty()).then(|| of.swap_remove(index))
    }
}

/// Collects the outermost bodies with fitting ops, and the positions of these ops.
fn places<'a>(
    body: &'a mut Vec<Node>,
    fits: &dyn Fn(&Op) -> bool,
    found: &mut Vec<(&'a mut Vec<Node>, Vec<usize>)>,
) {
    let is = |node: &Node| matches!(node, Node::Op(op) if fits(op));
    let here: Vec<usize> = (0..body.len()).filter(|&index| is(&body[index])).collect();
    if !here.is_empty() {
        found.push((body, here));
        return;
    }
    for node in body {
        if let Node::Loop { body, .. } = node {
            places(body, fits, found);
        }
    }
}

/// Returns `body` or the body of a loop inside it, and the position of a fitting op in the returned
/// body. Both are chosen at random.
fn place<'a>(
    body: &'a mut Vec<Node>,
    dice: &mut Dice,
    fits: &dyn Fn(&Op) -> bool,
) -> Option<(&'a mut Vec<Node>, usize)> {
    let is = |node: &Node| matches!(node, Node::Op(op) if fits(op));
    let deeper = body.iter().any(|node| matches!(node, Node::Loop { .. }));
    if deeper && (dice.below(2) == 0 || !body.iter().any(is)) {
        let mut found = Vec::new();
        for node in body {
            if let Node::Loop { body, .. } = node {
                places(body, fits, &mut found);
            }
        }
        let (body, here) = dice.pick(found)?;
        return Some((body, dice.pick(here)?));
    }
    let here: Vec<usize> = (0..body.len()).filter(|&index| is(&body[index])).collect();
    let index = dice.pick(here)?;
    Some((body, index))
}

fn slices(op: &mut Op) -> Vec<&mut Slice> {
    match op {
        Op::Send { source: slice, .. } | Op::Recv { target: slice, .. } => vec![slice],
        Op::Copy { target, source } => vec![target, source],
        Op::Reduce { target, terms, .. } => {
            std::iter::once(target).chain(terms.iter_mut().map(|terms| &mut terms.slice)).collect()
        }
    }
}

/// Changes one rank's schedule; `None` if this kind of change is impossible or has no effect.
fn mutate_schedule(group: &Group, kind: Kind, dice: &mut Dice) -> Option<(Group, String)> {
    let mut schedules = group.schedules.clone();
    let rank = dice.below(schedules.len());
    let body = &mut schedules[rank].body;
    let what = match kind {
        Kind::DropRecv | Kind::DropSend => {
            let recv = kind == Kind::DropRecv;
            let fits = |op: &Op| match op {
                Op::Recv { .. } => recv,
                Op::Send { .. } => !recv,
                _ => false,
            };
            let (body, index) = place(body, dice, &fits)?;
            let Node::Op(op) = body.remove(index) else { return None };
            format!("without {op}")
        }
        Kind::SwapOps => {
            let (body, index) = place(body, dice, &|_| true)?;
            let other = dice.below(body.len());
            if body[index] == body[other] {
                return None;
            }
            body.swap(index, other);
            format!("with nodes {index} and {other} of a body swapped: {:?}", body[other])
        }
        Kind::ShiftPart => {
            let (body, index) = place(body, dice, &|_| true)?;
            let Node::Op(op) = &mut body[index] else { return None };
            let by = [1, -1][dice.below(2)];
            let slice = dice.pick(slices(op))?;
            let before = slice.parts.first;
            slice.parts.first = before.plus(by);
            if before.eval(&[0; DEPTH]) == slice.parts.first.eval(&[0; DEPTH]) {
                // The shift has no effect: `Affine::eval` returns 0 for a part number below zero,
                // and a part number modulo 1 is always 0.
                return None;
            }
            format!("with a part number shifted by {by}: {op}")
        }
        Kind::ChangePeer => {
            let fits = |op: &Op| matches!(op, Op::Recv { .. } | Op::Send { .. });
            let (body, index) = place(body, dice, &fits)?;
            let Node::Op(Op::Recv { peer, .. } | Op::Send { peer, .. }) = &mut body[index] else {
                return None;
            };
            let other = Affine::constant(dice.below(group.ranks as usize) as u32);
            if other.eval(&[0; DEPTH]) == peer.eval(&[0; DEPTH]) {
                return None;
            }
            *peer = other;
            format!("with another peer: {:?}", body[index])
        }
        _ => return None,
    };
    Some((Group::of(group.algorithm, group.root, schedules), format!("rank {rank} {what}")))
}

/// Changes one rank's program.
fn mutate_program(group: &Group, kind: Kind, dice: &mut Dice) -> Option<(Group, String)> {
    let mut group = group.clone();
    let (which, apart) = (dice.below(2), dice.below(2));
    let rank = dice.below(group.ranks as usize);
    let program: &mut Program = Arc::make_mut(&mut group.programs[which][apart][rank]);
    let strands = program.strands.iter().enumerate();
    let places = strands.flat_map(|(s, strand)| (0..strand.code.len()).map(move |at| (s, at)));
    let fits = |&(s, at): &(usize, usize)| match &program.strands[s].code[at] {
        Instr::Await { .. } => kind == Kind::DropAwait,
        Instr::Fold(fold) => match kind {
            Kind::DropSource => fold.sources.iter().map(|source| source.repeat).sum::<u32>() > 1,
            Kind::DropTarget => true,
            _ => false,
        },
        _ => false,
    };
    let places: Vec<(usize, usize)> = places.filter(fits).collect();
    let (strand, at) = dice.pick(places)?;
    let code = &mut program.strands[strand].code;
    let what = code[at].to_string();
    match &mut code[at] {
        Instr::Fold(fold) if kind == Kind::DropSource => {
            let index = dice.below(fold.sources.len());
            match &mut fold.sources[index].repeat {
                1 => drop(fold.sources.remove(index)),
                repeat => *repeat -= 1,
            }
        }
        Instr::Fold(fold) => {
            let index = dice.below(fold.targets.len());
            match &mut fold.targets[index].repeat {
                1 => drop(fold.targets.remove(index)),
                repeat => *repeat -= 1,
            }
        }
        _ => {
            code.remove(at);
            for instr in code.iter_mut() {
                if let Instr::Next { start, .. } = instr
                    && *start as usize > at
                {
                    *start -= 1;
                }
            }
        }
    }
    let slots = which + 1;
    Some((group, format!("rank {rank} strand {strand} for {slots} slots, {kind:?} at `{what}`")))
}

fn mutate(group: &Group, kind: Kind, dice: &mut Dice) -> Option<(Group, String)> {
    match kind {
        Kind::DropAwait | Kind::DropSource | Kind::DropTarget => mutate_program(group, kind, dice),
        _ => mutate_schedule(group, kind, dice),
    }
}

#[derive(Default)]
struct Tally {
    mutants: u32,
    rejected: u32,
    /// Number of mutants that pass every trial of the suite.
    redundant: u32,
    examples: Vec<String>,
    /// Number of times that each violation was the first one found.
    violations: BTreeMap<String, u32>,
}

impl Tally {
    fn add(&mut self, other: Tally) {
        self.mutants += other.mutants;
        self.rejected += other.rejected;
        self.redundant += other.redundant;
        self.examples.extend(other.examples);
        for (name, count) in other.violations {
            *self.violations.entry(name).or_default() += count;
        }
    }
}

/// Tries mutants of one algorithm and kind, for several numbers of ranks.
fn try_kind(algorithm: &'static Algorithm, kind: Kind, goal: u32, seed: u64) -> Tally {
    let mut dice = Dice(seed);
    let mut tally = Tally::default();
    for attempt in 0..goal * 4 {
        if tally.mutants == goal {
            break;
        }
        let ranks = [2, 3, 4, 5, 7][attempt as usize % 5];
        let roots = roots(algorithm.collective, ranks);
        let root = roots[dice.below(roots.len())];
        let placed = dice.pick(hosts(algorithm, ranks)).unwrap_or(Hosts::one(ranks));
        let right = Group::new(algorithm, &placed, root);
        let Some((mutant, what)) = mutate(&right, kind, &mut dice) else { continue };
        tally.mutants += 1;
        // Long trials first: they find most violations.
        let mut trials: Vec<Trial> = mutant.trials().collect();
        trials.reverse();
        if let Some(violation) = trials.iter().find_map(|trial| mutant.check(trial).err()) {
            tally.rejected += 1;
            let name = format!("{violation:?}");
            let name = name.split([' ', '{', '(']).next().unwrap_or_default();
            *tally.violations.entry(name.to_owned()).or_default() += 1;
        } else {
            tally.redundant += 1;
            let Algorithm { collective, name, .. } = algorithm;
            let case = format!("{collective}/{name} among {ranks} ranks, root {root}, {placed:?}");
            tally.examples.push(format!("{case}: {what}"));
        }
    }
    tally
}

/// Returns whether a change can break anything. Changed data cannot break a barrier, since no rank
/// reads the content of its messages.
fn matters(algorithm: &Algorithm, kind: Kind) -> bool {
    let data = matches!(kind, Kind::DropSource | Kind::DropTarget | Kind::ShiftPart);
    algorithm.collective != Collective::Barrier || !data
}

#[test]
fn broken_algorithms_are_rejected() {
    let goal = if full() { 200 } else { 20 };
    let items: Vec<(&Algorithm, Kind)> = algorithm::all()
        .flat_map(|one| KINDS.map(|kind| (one, kind)))
        .filter(|(algorithm, kind)| matters(algorithm, *kind))
        .collect();
    let tallies: Mutex<BTreeMap<Kind, Tally>> = Mutex::new(BTreeMap::new());
    on_two_threads(&items, |&(algorithm, kind)| {
        let name = algorithm.collective.name().bytes().chain(algorithm.name.bytes());
        let seed = name.fold(kind as u64, |seed, byte| seed.wrapping_mul(31) + u64::from(byte));
        let tally = try_kind(algorithm, kind, goal, seed);
        tallies.lock().unwrap().entry(kind).or_default().add(tally);
    });
    let tallies = tallies.into_inner().unwrap();
    print(&tallies);
    for (kind, tally) in &tallies {
        // A mutant can be redundant if it drops a wait that other waits imply, or swaps independent
        // ops. A changed part number can be redundant in a v-variant's buffer of one block: in the
        // layout, every missing block begins at element 0, where block 0 begins, too. A missing or
        // misdirected message is never redundant.
        let least = match kind {
            Kind::DropRecv | Kind::DropSend | Kind::ChangePeer | Kind::DropSource => 100,
            Kind::DropTarget => 99,
            Kind::ShiftPart => 90,
            Kind::DropAwait | Kind::SwapOps => 60,
        };
        let percent = tally.rejected * 100 / tally.mutants.max(1);
        assert!(tally.mutants >= 100, "{kind:?}: fewer than 100 mutants");
        assert!(percent >= least, "{kind:?}: only {percent} % of the mutants were rejected");
    }
}

fn print(tallies: &BTreeMap<Kind, Tally>) {
    println!("kind       | mutants | rejected | redundant | violations found first");
    for (kind, tally) in tallies {
        let Tally { mutants, rejected, redundant, examples, violations } = tally;
        let kind = format!("{kind:?}");
        let found: Vec<_> = violations.iter().map(|(name, n)| format!("{name} {n}")).collect();
        let found = found.join(", ");
        println!("{kind:<10} | {mutants:>7} | {rejected:>8} | {redundant:>9} | {found}");
        if full() {
            examples.iter().for_each(|example| println!("    redundant: {example}"));
        }
    }
}
