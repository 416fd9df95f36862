//! Test driver that runs lowered programs through [`Execution`] on 64-bit integers, over links with
//! few slots.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::world::World;
use crate::algorithm::Algorithm;
use crate::execution::{CallParams, Execution, Link, Message, Operand, Ports, Progress, Task};
use crate::lower::lower_for_slots;
use crate::schedule::{Buffer, RankSchedule};
use crate::types::{Collective, Rank};

const ELEMENT_BYTES: usize = 8;

struct Net {
    slots: usize,
    wires: HashMap<(Rank, Rank, u32), VecDeque<Vec<u64>>>,
}

/// Memory of one rank. Input and output share a vector; in-place calls overlap them.
struct Host<'a> {
    world: World,
    rank: Rank,
    net: &'a RefCell<Net>,
    memory: Vec<u64>,
    input: usize,
    output: usize,
    scratch: Vec<u64>,
    filling: HashMap<Link, Vec<u64>>,
}

impl Host<'_> {
    fn position(&mut self, operand: Operand, task: &Task<'_>) -> &mut [u64] {
        let at = |bytes: usize| bytes / ELEMENT_BYTES;
        let elements = task.elements;
        match operand {
            Operand::Input(start) => {
                let from = self.input + at(start + task.chunk_offset);
                &mut self.memory[from..from + elements]
            }
            Operand::Output(start) => {
                let from = self.output + at(start + task.chunk_offset);
                &mut self.memory[from..from + elements]
            }
            Operand::Scratch(start) => {
                let from = at(start + task.scratch_offset);
                &mut self.scratch[from..from + elements]
            }
            Operand::Slot(peer) => {
                let link = Link { peer, channel: task.channel };
                let slot = self.filling.entry(link).or_default();
                slot.resize(at(task.message_bytes), 0);
                let from = at(task.slot_offset);
                &mut slot[from..from + elements]
            }
        }
    }

    fn read(&mut self, operand: Operand, task: &Task<'_>) -> Vec<u64> {
        if let Operand::Slot(peer) = operand {
            let net = self.net.borrow();
            let from = task.slot_offset / ELEMENT_BYTES;
            return net.wires[&(peer, self.rank, task.channel)][0][from..from + task.elements]
                .to_vec();
        }
        self.position(operand, task).to_vec()
    }
}

impl Ports for Host<'_> {
    fn readable(&mut self, link: Link) -> bool {
        let net = self.net.borrow();
        net.wires.get(&(link.peer, self.rank, link.channel)).is_some_and(|wire| !wire.is_empty())
    }

    fn writable(&mut self, link: Link) -> bool {
        let net = self.net.borrow();
        let wire = net.wires.get(&(self.rank, link.peer, link.channel));
        wire.map_or(0, VecDeque::len) < net.slots
    }

    fn accept(&mut self, link: Link, message: Message) -> bool {
        let net = self.net.borrow();
        let length = net.wires[&(link.peer, self.rank, link.channel)][0].len();
        assert_eq!(
            length * ELEMENT_BYTES,
            message.bytes,
            "bytes of the message from rank {} to rank {}",
            link.peer,
            self.rank
        );
        true
    }

    fn fold(&mut self, task: &Task<'_>) {
        let mut sum = vec![0u64; task.elements];
        let world = self.world.clone();
        for source in task.sources {
            let values = self.read(*source, task);
            sum.iter_mut().zip(values).for_each(|(sum, value)| *sum = combine(&world, *sum, value));
        }
        for target in task.targets {
            self.position(*target, task).copy_from_slice(&sum);
        }
    }

    fn publish(&mut self, link: Link, Message { bytes, .. }: Message) {
        let message = self.filling.remove(&link).unwrap();
        assert_eq!(message.len() * ELEMENT_BYTES, bytes);
        let wire = (self.rank, link.peer, link.channel);
        self.net.borrow_mut().wires.entry(wire).or_default().push_back(message);
    }

    fn release(&mut self, link: Link) {
        let wire = (link.peer, self.rank, link.channel);
        self.net.borrow_mut().wires.get_mut(&wire).unwrap().pop_front();
    }
}

/// Combines two values. A sum shows if a rank is missing or counted twice. A barrier may count a
/// rank twice, so its values are combined by OR.
fn combine(world: &World, a: u64, b: u64) -> u64 {
    if world.collective == Collective::Barrier { a | b } else { a.wrapping_add(b) }
}

fn content(rank: Rank, element: usize) -> u64 {
    (u64::from(rank) << 32 | element as u64).wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

fn total(blocks: &[usize]) -> usize {
    blocks.iter().sum()
}

fn host<'a>(world: &World, rank: Rank, in_place: bool, net: &'a RefCell<Net>) -> Host<'a> {
    let blocks = |buffer| world.blocks(rank, buffer).unwrap_or_default();
    let (ins, outs) = (blocks(Buffer::Input), blocks(Buffer::Output));
    let alias = world.alias(rank, 1, true);
    let before =
        |blocks: &[usize], block: u32| total(&blocks[..(block as usize).min(blocks.len())]);
    let (input, output) = match in_place {
        true => (before(&outs, alias.input), before(&ins, alias.output)),
        false => (0, total(&ins)),
    };
    let mut memory = vec![u64::MAX; total(&ins) + total(&outs)];
    (0..total(&ins)).for_each(|element| memory[input + element] = content(rank, element));
    Host {
        world: world.clone(),
        rank,
        net,
        memory,
        input,
        output,
        scratch: Vec::new(),
        filling: HashMap::new(),
    }
}

fn start(schedule: &RankSchedule, world: &World, in_place: bool, slots: u32) -> Execution {
    let rank = schedule.rank;
    let program = lower_for_slots(schedule, world.alias(rank, schedule.split, in_place), slots);
    let mut execution = Execution::new(Arc::new(program), 2);
    execution.start(&CallParams {
        input: world.layout(rank, Buffer::Input, schedule.split),
        output: world.layout(rank, Buffer::Output, schedule.split),
        element_bytes: ELEMENT_BYTES,
        slot_bytes: ELEMENT_BYTES * 7 * schedule.message_parts as usize,
    });
    execution
}

/// Runs an algorithm over links with `slots` slots and checks every element of every output.
/// Programs are lowered for `lowered_for` slots.
pub(super) fn run(
    algorithm: &Algorithm,
    world: &World,
    in_place: bool,
    slots: usize,
    lowered_for: u32,
) {
    let net = RefCell::new(Net { slots, wires: HashMap::new() });
    let schedules: Vec<RankSchedule> =
        (0..world.ranks).map(|rank| (algorithm.schedule)(&world.params(rank))).collect();
    let mut executions: Vec<Execution> =
        schedules.iter().map(|schedule| start(schedule, world, in_place, lowered_for)).collect();
    let mut hosts: Vec<Host<'_>> =
        (0..world.ranks).map(|rank| host(world, rank, in_place, &net)).collect();
    for (host, execution) in hosts.iter_mut().zip(&executions) {
        host.scratch = vec![u64::MAX; execution.scratch_bytes() / ELEMENT_BYTES];
    }
    let mut before = u64::MAX;
    loop {
        let ranks = executions.iter_mut().zip(&mut hosts);
        let seen: Vec<Progress> = ranks.map(|(e, host)| e.advance(host)).collect();
        if seen.iter().all(|progress| *progress == Progress::Done) {
            break;
        }
        let folds = executions.iter().map(Execution::folds).sum();
        if std::mem::replace(&mut before, folds) == folds {
            let waits: Vec<_> = executions.iter().map(Execution::strand_positions).collect();
            let programs: Vec<String> =
                executions.iter().map(|e| format!("{}\n", e.program())).collect();
            panic!("deadlock: {waits:?}\n{}", programs.concat());
        }
    }
    assert!(net.borrow().wires.values().all(VecDeque::is_empty));
    hosts.iter().for_each(|host| check(world, host));
}

fn check(world: &World, host: &Host<'_>) {
    let blocks = world.blocks(host.rank, Buffer::Output).unwrap_or_default();
    let mut at = host.output;
    for (block, count) in (0..).zip(&blocks) {
        for element in 0..*count {
            let expected = world.expected(host.rank, block).into_iter();
            let expected = expected.map(|(from, block)| {
                let blocks = world.blocks(from, Buffer::Input).unwrap();
                content(from, total(&blocks[..block as usize]) + element)
            });
            let expected = expected.fold(0, |a, b| combine(world, a, b));
            assert_eq!(host.memory[at], expected, "rank {}, block {block}", host.rank);
            at += 1;
        }
    }
}
