//! Explanation of a stuck [`World`] (the memory and links of all ranks): the chain of strands that
//! wait for each other.

use std::collections::BTreeMap;

use super::violation::{Reason, Violation, Waiting};
use super::world::World;
use crate::execution::{Execution, NextStep, StrandPosition};
use crate::lower::{Instr, Program};
use crate::types::Rank;

/// Identity of a strand: its rank, its channel, and its number in the rank's program.
type Position = (Rank, u32, u32);

/// Follows the waits of a stuck world, from the first stuck strand to a cycle or to an event that
/// never comes.
pub(super) fn explain(world: &World, executions: &[Execution], slots: u32) -> Violation {
    let mut stuck: BTreeMap<Position, StrandPosition> = BTreeMap::new();
    for (rank, execution) in executions.iter().enumerate() {
        for standing in execution.strand_positions() {
            stuck.insert((rank as Rank, standing.channel, standing.strand), standing);
        }
    }
    let mut chain: Vec<(Position, Waiting)> = Vec::new();
    let mut at = stuck.keys().next().copied();
    while let Some(position) = at {
        if let Some(begin) = chain.iter().position(|(seen, _)| *seen == position) {
            let cycle = chain.split_off(begin).into_iter().map(|(_, waiting)| waiting).collect();
            return Violation::Deadlock { slots, cycle };
        }
        let Some(standing) = stuck.get(&position) else { break };
        let Some((waiting, next)) = step(world, executions, position.0, standing) else { break };
        chain.push((position, waiting));
        at = next;
    }
    Violation::Starved { chain: chain.into_iter().map(|(_, waiting)| waiting).collect() }
}

/// Returns the reason for which a stuck strand waits, and the strand that should end the wait.
fn step(
    world: &World,
    executions: &[Execution],
    rank: Rank,
    standing: &StrandPosition,
) -> Option<(Waiting, Option<Position>)> {
    let program = executions[rank as usize].program();
    let channel = standing.channel;
    let (reason, next, instruction) = match &standing.at {
        NextStep::Fold { instr, recvs, sends } => {
            let text = text_of(program, standing.strand, *instr);
            let silent = recvs.iter().find(|&&peer| world.waiting(peer, rank, channel) == 0);
            let full = sends.iter().find(|&&peer| world.room(rank, peer, channel) == 0);
            let (reason, peer, receives) = match (silent, full) {
                (Some(&peer), _) => (Reason::Message(peer), peer, false),
                (None, Some(&peer)) => (Reason::Room(peer), peer, true),
                (None, None) => return None,
            };
            let strand = user_of(&executions[peer as usize], rank, receives);
            (reason, strand.map(|strand| (peer, channel, strand)), text)
        }
        NextStep::Await { unit, lag } => {
            let text = Instr::Await { unit: *unit, lag: *lag }.to_string();
            let strand = strand_that_does(program, *unit);
            (Reason::Unit(*unit), strand.map(|strand| (rank, channel, strand)), text)
        }
        NextStep::Other => return None,
    };
    let StrandPosition { strand, chunk, .. } = *standing;
    Some((Waiting { rank, strand, channel, chunk, instruction, reason }, next))
}

fn text_of(program: &Program, strand: u32, instr: u32) -> String {
    let code = program.strands.get(strand as usize).map(|strand| &strand.code);
    code.and_then(|code| code.get(instr as usize)).map(Instr::to_string).unwrap_or_default()
}

/// Returns the strand that uses the link with `peer` in an execution: to receive if `receives` is
/// true, else to send.
fn user_of(execution: &Execution, peer: Rank, receives: bool) -> Option<u32> {
    let uses = execution.link_uses();
    uses.iter().find(|l| l.peer == peer && l.receives == receives).map(|link| link.strand)
}

fn strand_that_does(program: &Program, unit: u32) -> Option<u32> {
    let does = |code: &[Instr]| code.contains(&Instr::Done { unit });
    program.strands.iter().position(|strand| does(&strand.code)).map(|strand| strand as u32)
}
