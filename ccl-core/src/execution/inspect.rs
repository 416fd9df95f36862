//! Looks at an execution from outside, for reports and for the verifier.

use super::bound::{Step, range};
use super::{Execution, Link};
use crate::types::Rank;

/// A direction of a link that a strand uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LinkUse {
    /// The strand.
    pub strand: u32,
    /// The other end.
    pub peer: Rank,
    /// Whether messages come from there.
    pub receives: bool,
}

/// Where an unfinished strand stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// The strand.
    pub strand: u32,
    /// The channel.
    pub channel: u32,
    /// The chunk that it works on.
    pub chunk: usize,
    /// What comes next.
    pub at: StandsAt,
}

/// The next step of a strand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StandsAt {
    /// A fold.
    Fold {
        /// Which instruction of the strand.
        instr: u32,
        /// Peers of which it needs a message.
        recvs: Vec<Rank>,
        /// Peers towards which it needs room.
        sends: Vec<Rank>,
    },
    /// Waiting for a unit.
    Await {
        /// The unit.
        unit: u32,
        /// The number of chunks between that unit and the strand's own chunk.
        lag: u32,
    },
    /// Something that never waits.
    Other,
}

impl Execution {
    /// The links that each strand of the started run uses, each once per strand.
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

    /// Where every unfinished strand stands.
    #[must_use]
    pub fn standings(&self) -> Vec<Standing> {
        let peers = |peers| self.bound.peers[range(peers)].to_vec();
        let standing = |(strand, channel, chunk, step): (u32, u32, usize, Option<&Step>)| {
            let at = match step {
                Some(Step::Fold(fold)) => StandsAt::Fold {
                    instr: fold.instr,
                    recvs: peers(fold.recvs),
                    sends: peers(fold.sends),
                },
                Some(&Step::Await { unit, lag }) => StandsAt::Await { unit, lag },
                Some(Step::Done { .. }) | None => StandsAt::Other,
            };
            Standing { strand, channel, chunk, at }
        };
        self.unfinished().map(standing).collect()
    }

    /// Each unfinished strand, its channel, its chunk, and its next step of that.
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

    /// Folds of the whole started run, of which [`Execution::folds`] are done.
    #[must_use]
    pub fn folds_in_all(&self) -> u64 {
        let folds = |step: &&Step| matches!(step, Step::Fold(_));
        self.bound.steps.iter().filter(folds).count() as u64 * self.bound.chunks as u64
    }

    /// Finds the links that unfinished strands stand at, and whether to receive, receives first:
    /// for the report on a stuck operation. What was in `waits` goes; its memory is used again, as
    /// a call that waits for long asks often.
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
