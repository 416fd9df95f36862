//! Test driver that runs the ops of all ranks over symbols: each value records how it was made.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::rc::Rc;

use super::world::World;
use crate::algorithm::{Algorithm, Family, Order};
use crate::lower::Alias;
use crate::schedule::{Buffer, Counters, Op, RankSchedule, Slice, TERM, Terms};
use crate::types::{Collective, Rank};

/// A value with its history.
#[derive(Debug, PartialEq, Eq)]
enum Value {
    /// The given part of the given rank's input.
    Input(Rank, u32),
    /// A fold of these values, in order. The flag is true if the fold's op is marked `last`: the
    /// result is then complete.
    Fold(Vec<Rc<Value>>, bool),
}

impl Value {
    fn contributions(&self, into: &mut Vec<(Rank, u32)>) {
        match self {
            Value::Input(rank, part) => into.push((*rank, *part)),
            Value::Fold(terms, _) => terms.iter().for_each(|term| term.contributions(into)),
        }
    }
}

/// A value, and the length of the longest chain of messages that led to it.
type Traced = (Rc<Value>, u32);

type Piece = (Traced, usize);

struct Party {
    rank: Rank,
    alias: Option<Alias>,
    lengths: BTreeMap<Buffer, Vec<usize>>,
    split: u32,
    memory: HashMap<(Buffer, u32), Traced>,
    ops: VecDeque<(Op, Counters)>,
}

impl Party {
    fn new(world: &World, schedule: &RankSchedule, in_place: bool) -> Party {
        let (rank, split) = (schedule.rank, schedule.split);
        let mut ops = VecDeque::new();
        schedule.for_each(&mut |op, at| ops.push_back((op.clone(), *at)));
        let buffers = [Buffer::Input, Buffer::Output];
        let lengths = buffers.into_iter().filter_map(|b| Some((b, world.blocks(rank, b)?)));
        let mut party = Party {
            rank,
            alias: in_place.then(|| world.alias(rank, split, true)),
            lengths: lengths.collect(),
            split,
            memory: HashMap::new(),
            ops,
        };
        let inputs = party.lengths.get(&Buffer::Input).map_or(0, Vec::len) as u32 * split;
        for part in 0..inputs {
            let cell = party.cell(Buffer::Input, part);
            party.memory.insert(cell, (Rc::new(Value::Input(rank, part)), 0));
        }
        party
    }

    /// Returns the cell of a part. In an in-place call, input and output share cells. Panics if
    /// there is no such part.
    fn cell(&self, buffer: Buffer, part: u32) -> (Buffer, u32) {
        if let Buffer::Scratch(_) = buffer {
            return (buffer, part);
        }
        self.length(buffer, part);
        match (self.alias, buffer) {
            (Some(alias), Buffer::Input) => (Buffer::Output, part + alias.input),
            (Some(alias), _) => (Buffer::Output, part + alias.output),
            (None, _) => (buffer, part),
        }
    }

    fn length(&self, buffer: Buffer, part: u32) -> usize {
        let rank = self.rank;
        let counts = self.lengths.get(&buffer);
        let counts = counts.unwrap_or_else(|| panic!("rank {rank} has no {buffer:?}"));
        let count = counts.get((part / self.split) as usize);
        let count = count.unwrap_or_else(|| panic!("rank {rank} has no part {part} in {buffer:?}"));
        crate::schedule::Layout::even(*count, self.split, 1).part(part % self.split).1
    }

    fn lengths(&self, slice: &Slice, at: &Counters) -> Vec<usize> {
        let parts = &slice.extent.parts;
        assert_eq!(parts.total, slice.parts.total, "number of parts of {slice}");
        (0..parts.total).map(|i| self.length(slice.extent.buffer, parts.part(i, at))).collect()
    }

    fn read(&self, slice: &Slice, at: &Counters) -> Vec<Piece> {
        let lengths = self.lengths(slice, at);
        (0..slice.parts.total)
            .zip(lengths)
            .map(|(index, length)| {
                let cell = self.cell(slice.buffer, slice.parts.part(index, at));
                let value = self.memory.get(&cell);
                let value = value.unwrap_or_else(|| panic!("rank {}: {slice} is unset", self.rank));
                (value.clone(), length)
            })
            .collect()
    }

    fn write(&mut self, slice: &Slice, at: &Counters, chunks: Vec<Piece>) {
        let lengths: Vec<usize> = chunks.iter().map(|(_, length)| *length).collect();
        assert_eq!(lengths, self.lengths(slice, at), "rank {} writes {slice}", self.rank);
        for (index, (value, _)) in (0..).zip(chunks) {
            let cell = self.cell(slice.buffer, slice.parts.part(index, at));
            self.memory.insert(cell, value);
        }
    }

    fn fold(&self, terms: &[Terms], at: &Counters, last: bool) -> Vec<Piece> {
        let mut operands: Vec<Vec<Piece>> = Vec::new();
        for Terms { slice, repeat } in terms {
            for term in 0..*repeat {
                let mut at = *at;
                at[TERM] = term;
                operands.push(self.read(slice, &at));
            }
        }
        (0..operands[0].len())
            .map(|index| {
                let operand = |o: &Vec<Piece>| o[index].0.0.clone();
                let values: Vec<Rc<Value>> = operands.iter().map(operand).collect();
                let hops = operands.iter().map(|o| o[index].0.1).max().unwrap_or(0);
                let done = values.iter().any(|v| matches!(**v, Value::Fold(_, true)));
                assert!(!done, "rank {} folds a complete result", self.rank);
                let length = operands[0][index].1;
                assert!(operands.iter().all(|operand| operand[index].1 == length));
                ((Rc::new(Value::Fold(values, last)), hops), length)
            })
            .collect()
    }
}

type Wires = HashMap<(Rank, Rank), VecDeque<Vec<Piece>>>;

/// Executes the party's next op. Returns false if no op is left, or if the op waits for a message
/// that was not sent yet.
fn step(party: &mut Party, wires: &mut Wires) -> bool {
    let Some((op, at)) = party.ops.pop_front() else { return false };
    match &op {
        Op::Send { peer, source } => {
            let peer = peer.eval(&at);
            assert_ne!(peer, party.rank, "a rank sends to itself");
            let mut message = party.read(source, &at);
            message.iter_mut().for_each(|((_, hops), _)| *hops += 1);
            wires.entry((party.rank, peer)).or_default().push_back(message);
        }
        Op::Recv { peer, target } => {
            let wire = wires.entry((peer.eval(&at), party.rank)).or_default();
            match wire.pop_front() {
                Some(message) => party.write(target, &at, message),
                None => {
                    party.ops.push_front((op, at));
                    return false;
                }
            }
        }
        Op::Copy { target, source } => party.write(target, &at, party.read(source, &at)),
        Op::Reduce { target, terms, last } => {
            party.write(target, &at, party.fold(terms, &at, *last));
        }
    }
    true
}

/// Runs an algorithm and checks every part of every output.
pub(super) fn run(algorithm: &Algorithm, world: &World, in_place: bool) {
    let mut wires = Wires::new();
    let schedules: Vec<RankSchedule> =
        (0..world.ranks).map(|rank| (algorithm.schedule)(&world.params(rank))).collect();
    let mut parties: Vec<Party> =
        schedules.iter().map(|schedule| Party::new(world, schedule, in_place)).collect();
    while parties.iter_mut().fold(false, |moved, party| {
        let mut any = moved;
        while step(party, &mut wires) {
            any = true;
        }
        any
    }) {}
    for party in &parties {
        assert!(party.ops.is_empty(), "rank {} waits at {}", party.rank, party.ops[0].0);
    }
    assert!(wires.values().all(VecDeque::is_empty), "some messages were not received");
    let results: Vec<BTreeMap<u32, Rc<Value>>> =
        parties.iter().map(|party| check(algorithm, world, party)).collect();
    check_steps(algorithm, world, &parties);
    if world.collective == Collective::AllReduce {
        assert!(results.iter().all(|result| *result == results[0]), "ranks differ in rounding");
    }
}

fn check(algorithm: &Algorithm, world: &World, party: &Party) -> BTreeMap<u32, Rc<Value>> {
    let blocks = party.lengths.get(&Buffer::Output).map_or(0, Vec::len) as u32;
    let mut results = BTreeMap::new();
    for part in 0..blocks * party.split {
        let (block, cut) = (part / party.split, part % party.split);
        let rank = party.rank;
        let value = party.memory.get(&party.cell(Buffer::Output, part));
        let Some((value, _)) = value else { panic!("rank {rank}: output {part} was not written") };
        let mut contributions = Vec::new();
        value.contributions(&mut contributions);
        let expected: Vec<(Rank, u32)> = world
            .expected(rank, block)
            .into_iter()
            .map(|(from, block)| (from, block * party.split + cut))
            .collect();
        if algorithm.order == Order::Rank {
            assert_eq!(contributions, expected, "rank {rank}: output {part} in rank order");
            let Value::Fold(terms, _) = &**value else { panic!("output {part} is not folded") };
            assert!(terms.iter().all(|term| matches!(**term, Value::Input(..))), "a nested fold");
        }
        contributions.sort_unstable();
        if world.collective == Collective::Barrier {
            contributions.dedup();
        }
        assert_eq!(contributions, expected, "rank {rank}: output {part}");
        let reduces = algorithm.order != Order::None;
        assert_eq!(
            matches!(**value, Value::Fold(_, true)),
            reduces,
            "rank {rank}: output {part} must be marked as complete if and only if the algorithm \
             reduces"
        );
        results.insert(part, value.clone());
    }
    results
}

/// Checks that the longest chain of messages is as long as the algorithm says. The chain may be
/// shorter in four cases: in a tree or at doubling distances, if the number of ranks is not a power
/// of two and the algorithm is not hierarchical; in a double tree, because one tree may be lower;
/// in a `send_recv` group, which may have no messages; in a hierarchical `broadcast` or `reduce`.
fn check_steps(algorithm: &Algorithm, world: &World, parties: &[Party]) {
    let hops = |party: &Party| party.memory.values().map(|(_, hops)| *hops).max().unwrap_or(0);
    let most = parties.iter().map(hops).max().unwrap_or(0);
    let steps = (algorithm.steps)(&world.hosts);
    let doubles = !matches!(algorithm.family, Family::Ring | Family::Direct)
        || algorithm.name == "scatter_all_gather";
    let loose = doubles && !world.ranks.is_power_of_two();
    let loose = loose || algorithm.name == "double_tree" || algorithm.name == "group";
    // The largest host, whose tree is highest, need not be the one furthest from the root.
    let tree = matches!(algorithm.collective, Collective::Broadcast | Collective::Reduce);
    let loose = match algorithm.family {
        Family::Hierarchical => tree,
        _ => loose,
    };
    assert!(most == steps || most < steps && loose, "a chain of {most} messages, not {steps}");
}
