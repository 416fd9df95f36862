//! Inspection of an execution from outside, for reports and for the verifier.

use super::bound::{Step, range};
use super::{Execution, Link};
use crate::types::Rank;

/// Use of a link by a strand, in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LinkUse {
    /// The strand.
    pub strand: u32,
    /// Peer at the other end.
    pub peer: Rank,
    /// True if the strand receives from the peer.
    pub receives: bool,
}

/// Position of an unfinished strand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StrandPosition {
    /// The strand.
    pub strand: u32,
    /// The channel.
    pub channel: u32,
    /// The chunk that the strand works on.
    pub chunk: usize,
    /// The next step.
    pub at: NextStep,
}

/// Next step of a strand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NextStep {
    /// A fold.
    Fold {
        /// Index of the instruction in the strand.
        instr: u32,
        /// Peers from which the fold needs a message.
        recvs: Vec<Rank>,
        /// Peers to which the fold needs a slot.
        sends: Vec<Rank>,
    },
    /// Wait for a unit: a top-level fold or loop of the program.
    Await {
        /// The unit.
        unit: u32,
        /// The number of chunks that the unit may be behind the strand.
        lag: u32,
    },
    /// Step that never waits.
    Other,
}

impl Execution {
    /// Returns the links that the strands of the started run use, each once per strand.
    #[must_use]
    pub fn link_uses(&self) -> Vec<LinkUse> {
        let mut uses = Vec::new();
        for strand in 0..self.program.strands.len() {
            let steps = self.bound.strands[strand]..self.bound.strands[strand + 1];
            for step in &self.bound.steps[range((steps.start, steps.end))] {
                let Step::Fold(fold) = step else { continue };
                for (peers, receives) in [(fold.recvs, true), (fold.sends, false)] {
                    let peers = self.bound.peers[range(peers)].iter();
                    let strand = strand as u32;
                    uses.extend(peers.map(|&peer| LinkUse { strand, peer, receives }));
                }
            }
        }
        uses.sort_unstable();
        uses.dedup();
        uses
    }

    /// Returns the position of every unfinished strand.
    #[must_use]
    pub fn strand_positions(&self) -> Vec<StrandPosition> {
        let peers = |peers| self.bound.peers[range(peers)].to_vec();
        let standing = |(strand, channel, chunk, step): (u32, u32, usize, Option<&Step>)| {
            let at = match step {
                Some(Step::Fold(fold)) => NextStep::Fold {
                    instr: fold.instr,
                    recvs: peers(fold.recvs),
                    sends: peers(fold.sends),
                },
                Some(&Step::Await { unit, lag }) => NextStep::Await { unit, lag },
                Some(Step::Done { .. }) | None => NextStep::Other,
            };
            StrandPosition { strand, channel, chunk, at }
        };
        self.unfinished().map(standing).collect()
    }

    /// Returns each unfinished strand with its channel, its chunk, and its next step for that
    /// chunk.
    fn unfinished(&self) -> impl Iterator<Item = (u32, u32, usize, Option<&Step>)> {
        let strands = self.program.strands.len();
        self.states.iter().enumerate().filter_map(move |(index, state)| {
            let (strand, channel) = (index % strands, index / strands);
            let chunk = state.turn * self.channels as usize + channel;
            let ends = state.step >= self.bound.strands[strand + 1];
            let step = (!ends).then(|| &self.bound.steps[state.step as usize]);
            (chunk < self.bound.chunks).then_some((strand as u32, channel as u32, chunk, step))
        })
    }

    /// Returns the number of folds of the whole started run; [`Execution::folds`] of them are done.
    #[must_use]
    pub fn folds_in_all(&self) -> u64 {
        let folds = |step: &&Step| matches!(step, Step::Fold(_));
        self.bound.steps.iter().filter(folds).count() as u64 * self.bound.chunks as u64
    }

    /// Replaces `waits` with all links of the folds that unfinished strands execute next, for the
    /// report on a stuck operation. The flag is true for receives, which come first. Reuses the
    /// memory of `waits`, because this function is called often during a long wait.
    pub fn waits_for(&self, waits: &mut Vec<(Link, bool)>) {
        waits.clear();
        for (_, channel, _, step) in self.unfinished() {
            let Some(Step::Fold(fold)) = step else { continue };
            for (peers, receive) in [(fold.recvs, true), (fold.sends, false)] {
                let peers = self.bound.peers[range(peers)].iter();
                waits.extend(peers.map(|&peer| (Link { peer, channel }, receive)));
            }
        }
        waits.sort_unstable_by_key(|(link, receive)| (!receive, link.peer, link.channel));
    }
}
