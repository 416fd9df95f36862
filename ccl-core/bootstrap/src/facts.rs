//! Facts about the ranks: deaths, failures, goodbyes and verdicts. Every rank keeps the facts in a
//! log that only grows, and passes them on to its neighbours in the order in which it learned them.
//! A rank that learns a fact from a neighbour therefore knows everything that this neighbour had
//! learned before that fact.

use super::failure::{Failure, FailureReason};
use super::message::Message;
use super::verdict::Verdict;
use ccl_core::types::Rank;
use std::collections::{BTreeMap, BTreeSet};

/// Facts that this rank was told or found out.
#[derive(Debug)]
pub(super) struct Facts {
    rank: Rank,
    ranks: u32,
    pub(super) dead: BTreeMap<Rank, FailureReason>,
    /// Ranks that left, each with the number of control-plane exchanges that it took part in.
    pub(super) left: BTreeMap<Rank, u64>,
    /// Cause of the communicator's end, as far as this rank knows.
    pub(super) first: Option<Failure>,
    /// Failure of this rank, as other ranks report it. Once set, this rank takes part in nothing.
    pub(super) condemned: Option<Failure>,
    pub(super) verdict: Option<Verdict>,
    /// True if this rank coordinates, and wants to go on with the ranks that are still here. Then a
    /// new verdict is due when a survivor of the last verdict has left or died; otherwise, only
    /// when one has died.
    pub(super) reconvenes: bool,
    /// Ranks that gave up after the failure.
    pub(super) withdrawn: BTreeMap<Rank, Failure>,
    blamed: BTreeSet<Rank>,
    /// All facts as messages, in order, for new neighbours.
    log: Vec<Message>,
}

impl Facts {
    pub(super) fn new(rank: Rank, ranks: u32) -> Facts {
        Facts {
            rank,
            ranks,
            dead: BTreeMap::new(),
            left: BTreeMap::new(),
            first: None,
            condemned: None,
            verdict: None,
            reconvenes: false,
            withdrawn: BTreeMap::new(),
            blamed: BTreeSet::new(),
            log: Vec::new(),
        }
    }

    pub(super) fn log(&self) -> &[Message] {
        &self.log
    }

    /// Returns the fact that ended the communicator.
    pub(super) fn cause(&self) -> Option<&Message> {
        self.log.iter().find(|fact| matches!(fact, Message::Dead(_) | Message::Failed(_)))
    }

    /// Returns whether a rank is dead or has left.
    pub(super) fn is_gone(&self, rank: Rank) -> bool {
        self.dead.contains_key(&rank) || self.left.contains_key(&rank)
    }

    /// Returns the ranks that have neither died nor left. This rank can be one of them.
    pub(super) fn living(&self) -> impl Iterator<Item = Rank> {
        (0..self.ranks).filter(|rank| !self.is_gone(*rank))
    }

    /// Takes in a message that is a fact. Returns whether the fact was news.
    pub(super) fn insert(&mut self, message: &Message) -> bool {
        let news = match message {
            Message::Dead(failure) => self.insert_death(failure),
            Message::Failed(failure) => {
                self.first.get_or_insert_with(|| failure.clone());
                match failure.reason {
                    FailureReason::Withdrew { .. } => {
                        self.withdrawn.insert(failure.rank, failure.clone()).is_none()
                    }
                    _ => self.blamed.insert(failure.rank),
                }
            }
            Message::Left { rank, exchanges } => self.insert_leave(*rank, *exchanges),
            Message::Decided(verdict) => self.insert_verdict(verdict),
            _ => false,
        };
        if news {
            self.log.push(message.clone());
        }
        news
    }

    /// Takes in a death, which overrides a goodbye: a rank that was killed while it said goodbye
    /// has not told every rank, and all ranks must come to the same view of that rank. For the same
    /// reason, a proof overrides a doubt.
    fn insert_death(&mut self, failure: &Failure) -> bool {
        if let Some(known) = self.dead.get_mut(&failure.rank) {
            let is_news = !known.is_proof() && failure.reason.is_proof();
            if is_news {
                *known = failure.reason.clone();
            }
            return is_news;
        }
        self.left.remove(&failure.rank);
        if failure.rank == self.rank {
            self.condemned.get_or_insert_with(|| failure.clone());
        }
        self.dead.insert(failure.rank, failure.reason.clone());
        self.first.get_or_insert_with(|| failure.clone());
        true
    }

    fn insert_leave(&mut self, rank: Rank, exchanges: u64) -> bool {
        if self.is_gone(rank) {
            return false;
        }
        self.left.insert(rank, exchanges);
        true
    }

    fn insert_verdict(&mut self, verdict: &Verdict) -> bool {
        if self.verdict.as_ref().is_some_and(|known| known.epoch >= verdict.epoch) {
            return false;
        }
        self.first.get_or_insert_with(|| verdict.cause.clone());
        for rank in &verdict.dead {
            self.insert_death(&Failure { rank: *rank, reason: FailureReason::Agreed });
        }
        self.verdict = Some(verdict.clone());
        self.reconvenes = false;
        true
    }

    /// Returns whether every rank in a message is a rank of this communicator.
    pub(super) fn are_ranks(&self, message: &Message) -> bool {
        let is_rank = |rank: &Rank| *rank < self.ranks;
        let all_ranks = |verdict: &Verdict| {
            verdict.dead.iter().chain(&verdict.survivors).all(is_rank)
                && is_rank(&verdict.cause.rank)
        };
        match message {
            Message::Dead(failure) | Message::Failed(failure) => is_rank(&failure.rank),
            Message::Left { rank, .. } => is_rank(rank),
            Message::Ask(ask) => {
                use super::verdict::Question;
                let accept = match &ask.question {
                    Question::Accept(verdict) => all_ranks(verdict),
                    Question::Prepare => true,
                };
                is_rank(&ask.coordinator) && accept && ask.previous.iter().all(all_ranks)
            }
            Message::Answer(answer) => is_rank(&answer.coordinator) && is_rank(&answer.rank),
            Message::Decided(verdict) => all_ranks(verdict),
            Message::Inquire { asker, .. } => is_rank(asker),
            Message::Noted(noted) => {
                let awaited = noted.note.awaited.iter().all(|on| is_rank(&on.peer));
                is_rank(&noted.asker) && is_rank(&noted.rank) && awaited
            }
            _ => true,
        }
    }

    /// Returns the dead ranks that are not excluded by a verdict, with the reasons.
    fn newly_dead(&self) -> impl Iterator<Item = (Rank, &FailureReason)> {
        let excluded = |rank: &Rank| {
            self.verdict.as_ref().is_some_and(|verdict| verdict.dead.binary_search(rank).is_ok())
        };
        let dead = self.dead.iter().filter(move |(rank, _)| !excluded(rank));
        dead.map(|(rank, reason)| (*rank, reason))
    }

    /// Returns whether a dead rank may live on the other side of a split network.
    pub(super) fn has_doubts(&self) -> bool {
        self.newly_dead().any(|(_, reason)| reason.is_doubt())
    }

    /// Returns the ranks that count as dead but may be alive, except those excluded by a verdict. A
    /// rank that refused a connection is included only if the death of another rank is in doubt:
    /// the other side of a split network refuses once it has gone on, but is silent before that.
    pub(super) fn maybe_alive(&self) -> impl Iterator<Item = Rank> {
        let doubts = self.has_doubts();
        let may_live = move |reason: &FailureReason| {
            reason.is_doubt() || (doubts && *reason == FailureReason::Refused)
        };
        self.newly_dead().filter(move |(_, reason)| may_live(reason)).map(|(rank, _)| rank)
    }

    /// Returns whether the living ranks form a quorum: they outnumber the ranks that `maybe_alive`
    /// returns, or both groups have the same size and the lowest rank of both is known to live. The
    /// second group may live on the other side of a split network; at most one side has a quorum.
    /// Ranks excluded by an earlier verdict do not count.
    pub(super) fn has_quorum(&self) -> bool {
        let count = self.maybe_alive().count();
        let lowest_other = self.maybe_alive().next().unwrap_or(Rank::MAX);
        let living = self.living().count();
        let lowest = self.living().next().unwrap_or(Rank::MAX);
        living > count || (living == count && lowest < lowest_other)
    }
}
