//! Agreement after a failure. The lowest living rank coordinates: it asks all living ranks for
//! their progress, and they promise to complete no more operations and to heed no coordinator of
//! lower rank. Then the coordinator proposes a [`Verdict`] (the dead ranks, the survivors, and the
//! last operation that every survivor had completed) and, once all living ranks have accepted the
//! verdict, announces it. If the coordinator dies, the next living rank coordinates. If ranks have
//! already accepted verdicts, the new coordinator proposes the latest of these verdicts. Each
//! coordinator is a higher rank than those before, so the latest verdict is that of the highest
//! earlier coordinator.
//!
//! Nothing here happens before a failure is known.

use super::completed::Completed;
use super::facts::Facts;
use super::failure::Failure;
use super::gate::ConnectionId;
use super::message::Message;
use super::verdict::{Answer, Ask, Question, Verdict, Vote};
use ccl_core::time::Instant;
use ccl_core::types::Rank;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// Action for the control plane: a message to send or a fact to learn. The agreement queues
/// actions, and so does the search for stalled ranks (`inquiry`); the control plane carries out
/// each queue in order.
#[derive(Debug)]
pub(super) enum Action {
    /// Message to all neighbours, except the one on this connection (if any).
    Flood(Message, Option<ConnectionId>),
    /// Message to one neighbour.
    Send(ConnectionId, Message),
    /// Verdict to record as a fact, and the connection that brought it, if any.
    Learn(Verdict, Option<ConnectionId>),
    /// Failure that ends the communicator.
    Fail(Failure),
}

/// Per rank: its progress, and the verdict that it has accepted, with that verdict's coordinator.
type Promises = BTreeMap<Rank, (u64, Option<(Rank, Verdict)>)>;

#[derive(Debug)]
enum Phase {
    Preparing { promises: Promises },
    Accepting { verdict: Verdict, accepted: BTreeSet<Rank> },
}

/// State of a coordinator.
#[derive(Debug)]
struct Lead {
    phase: Phase,
    attempt: u32,
    since: Instant,
}

/// Fault planted to check that the tests find it.
#[cfg(test)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    ForgetVote,
    IgnoreAccepted,
    DecideUnaccepted,
    NeverFreeze,
    /// Every close of a connection counts as the proof of a death.
    TrustCloses,
}

/// State of one rank in the agreement.
#[derive(Debug)]
pub(super) struct Agreement {
    rank: Rank,
    /// Number of the verdict to be reached next.
    epoch: u64,
    promised: Option<Rank>,
    accepted: Option<(Rank, Verdict)>,
    /// Epoch, coordinator and attempt of the newest question, which came on the connection `route`
    /// unless this rank asked it.
    seen: (u64, Rank, u32),
    route: Option<ConnectionId>,
    lead: Option<Lead>,
    /// Rank that should coordinate, and the start of the wait for its next question.
    awaited: (Rank, Instant),
    pub(super) rendezvous_port: Option<u16>,
    actions: VecDeque<Action>,
    #[cfg(test)]
    pub(super) fault: Option<Fault>,
}

impl Agreement {
    pub(super) fn new(rank: Rank) -> Agreement {
        Agreement {
            rank,
            epoch: 0,
            promised: None,
            accepted: None,
            seen: (0, 0, 0),
            route: None,
            lead: None,
            awaited: (rank, Instant::ZERO),
            rendezvous_port: None,
            actions: VecDeque::new(),
            #[cfg(test)]
            fault: None,
        }
    }

    #[cfg(test)]
    pub(super) fn is_planted(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    pub(super) fn next_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Returns whether this rank coordinates and lacks a rendezvous port for the survivors.
    pub(super) fn wants_rendezvous_port(&self) -> bool {
        self.lead.is_some() && self.rendezvous_port.is_none()
    }

    /// Returns the ranks that count as living but have kept this rank waiting for `patience` or
    /// longer: this rank must find out by itself whether they are alive. A coordinator awaits
    /// answers; every other rank awaits the coordinator's question, which is repeated.
    pub(super) fn late_ranks(&self, facts: &Facts, patience: Duration, now: Instant) -> Vec<Rank> {
        let (coordinator, since) = self.awaited;
        match &self.lead {
            Some(lead) if now.since(lead.since) >= patience => {
                facts.living().filter(|rank| !lead.has(*rank)).collect()
            }
            None if self.needs_verdict(facts)
                && now.since(since) >= patience
                && facts.living().next() == Some(coordinator) =>
            {
                vec![coordinator]
            }
            _ => Vec::new(),
        }
    }

    /// Returns whether there is something to agree on.
    fn needs_verdict(&self, facts: &Facts) -> bool {
        facts.first.is_some() && facts.condemned.is_none() && is_due(facts, true)
    }

    /// Makes this rank coordinate if it must, and continues an agreement that it coordinates. If
    /// `regular` is true (at a heartbeat), a coordinator repeats its question: answers get lost if
    /// a rank that forwards them dies.
    pub(super) fn drive(
        &mut self,
        facts: &Facts,
        completed: &Completed,
        regular: bool,
        now: Instant,
    ) {
        let lowest = facts.living().next().unwrap_or(self.rank);
        if self.awaited.0 != lowest || !self.needs_verdict(facts) {
            self.awaited = (lowest, now);
        }
        if !self.needs_verdict(facts) {
            self.lead = None;
            return;
        }
        if self.lead.is_some() {
            if regular {
                self.ask(facts, completed);
            }
            self.advance(facts, completed, now);
            return;
        }
        let is_heeded = self.promised.is_none_or(|promised| promised <= self.rank);
        if lowest == self.rank && is_heeded && is_due(facts, regular) {
            let phase = Phase::Preparing { promises: BTreeMap::new() };
            self.lead = Some(Lead { phase, attempt: 0, since: now });
            self.ask(facts, completed);
            self.advance(facts, completed, now);
        }
    }

    fn ask(&mut self, facts: &Facts, completed: &Completed) {
        let Some(lead) = &mut self.lead else { return };
        lead.attempt += 1;
        let question = match &lead.phase {
            Phase::Preparing { .. } => Question::Prepare,
            Phase::Accepting { verdict, .. } => Question::Accept(verdict.clone()),
        };
        let ask = Ask {
            epoch: self.epoch,
            coordinator: self.rank,
            attempt: lead.attempt,
            question,
            previous: facts.verdict.clone(),
        };
        self.seen = (ask.epoch, ask.coordinator, ask.attempt);
        let own = self.vote(&ask, completed);
        self.count(own);
        self.actions.push_back(Action::Flood(Message::Ask(ask), None));
    }

    /// Takes in a coordinator's question.
    pub(super) fn asked(
        &mut self,
        ask: Ask,
        from: ConnectionId,
        facts: &Facts,
        completed: &Completed,
        now: Instant,
    ) {
        if ask.epoch < self.epoch {
            let known =
                facts.verdict.clone().map(|verdict| Action::Send(from, Message::Decided(verdict)));
            return self.actions.extend(known);
        }
        if ask.epoch > self.epoch {
            let Some(previous) = ask.previous.clone() else { return };
            self.decided(&previous);
            self.actions.push_back(Action::Learn(previous, Some(from)));
        }
        let key = (ask.epoch, ask.coordinator, ask.attempt);
        let is_promised = self.promised.is_some_and(|promised| promised > ask.coordinator);
        if is_promised
            || ask.epoch != self.epoch
            || key <= self.seen
            || facts.is_gone(ask.coordinator)
        {
            return;
        }
        self.seen = key;
        self.route = Some(from);
        self.awaited = (ask.coordinator, now);
        self.lead = None;
        let answer = self.vote(&ask, completed);
        self.actions.push_back(Action::Flood(Message::Ask(ask), Some(from)));
        self.actions.push_back(Action::Send(from, Message::Answer(answer)));
    }

    fn vote(&mut self, ask: &Ask, completed: &Completed) -> Answer {
        self.promised = Some(ask.coordinator);
        let vote = match &ask.question {
            Question::Prepare => {
                #[cfg(test)]
                let completed = if self.is_planted(Fault::NeverFreeze) {
                    completed.number()
                } else {
                    completed.freeze()
                };
                #[cfg(not(test))]
                let completed = completed.freeze();
                Vote::Promised { completed, accepted: self.accepted.clone() }
            }
            Question::Accept(verdict) => {
                self.accepted = Some((ask.coordinator, verdict.clone()));
                Vote::Accepted
            }
        };
        Answer { epoch: ask.epoch, coordinator: ask.coordinator, rank: self.rank, vote }
    }

    /// Takes in an answer. Counts it if this rank asked the question; otherwise passes it back
    /// along the question's route.
    pub(super) fn answered(&mut self, answer: Answer) {
        if answer.epoch != self.epoch {
            return;
        }
        if answer.coordinator == self.rank {
            self.count(answer);
        } else if answer.coordinator == self.seen.1
            && let Some(route) = self.route
        {
            self.actions.push_back(Action::Send(route, Message::Answer(answer)));
        }
    }

    fn count(&mut self, answer: Answer) {
        match (self.lead.as_mut().map(|lead| &mut lead.phase), answer.vote) {
            (Some(Phase::Preparing { promises }), Vote::Promised { completed, accepted }) => {
                promises.insert(answer.rank, (completed, accepted));
            }
            (Some(Phase::Accepting { accepted, .. }), Vote::Accepted) => {
                accepted.insert(answer.rank);
            }
            _ => {}
        }
    }

    /// Returns whether all living ranks have answered and form a quorum.
    fn is_complete(&self, lead: &Lead, facts: &Facts) -> bool {
        let lacking = facts.living().filter(|rank| !lead.has(*rank)).count();
        #[cfg(test)]
        let lacking = match (&lead.phase, self.fault) {
            (Phase::Preparing { .. }, Some(Fault::ForgetVote))
            | (Phase::Accepting { .. }, Some(Fault::DecideUnaccepted)) => 0,
            _ => lacking,
        };
        lacking == 0 && facts.has_quorum()
    }

    fn advance(&mut self, facts: &Facts, completed: &Completed, now: Instant) {
        let Some(lead) = &self.lead else { return };
        if !self.is_complete(lead, facts) {
            return;
        }
        match &lead.phase {
            Phase::Preparing { promises } => {
                let taken_up = promises.values().filter_map(|(_, accepted)| accepted.as_ref());
                let taken_up = taken_up.max_by_key(|(from, _)| *from).map(|(_, v)| v.clone());
                #[cfg(test)]
                let taken_up = taken_up.filter(|_| !self.is_planted(Fault::IgnoreAccepted));
                let fresh = || self.propose(promises, facts);
                let Some(verdict) = taken_up.or_else(fresh) else { return };
                let phase = Phase::Accepting { verdict, accepted: BTreeSet::new() };
                let attempt = lead.attempt;
                self.lead = Some(Lead { phase, attempt, since: now });
                self.ask(facts, completed);
                self.advance(facts, completed, now);
            }
            Phase::Accepting { verdict, .. } => {
                let verdict = verdict.clone();
                self.decided(&verdict);
                self.actions.push_back(Action::Learn(verdict, None));
            }
        }
    }

    fn propose(&self, promises: &Promises, facts: &Facts) -> Option<Verdict> {
        let cause = facts.first.clone()?;
        let survivors: Vec<_> = facts.living().collect();
        let completed = survivors.iter().filter_map(|rank| Some(promises.get(rank)?.0));
        // The cause and the last completed operation of an earlier verdict stay valid: all
        // survivors of the new verdict have completed that operation.
        let before = facts.verdict.as_ref();
        Some(Verdict {
            epoch: self.epoch,
            dead: facts.dead.keys().copied().collect(),
            cause: before.map_or(cause, |verdict| verdict.cause.clone()),
            last_completed: before
                .map(|verdict| verdict.last_completed)
                .or_else(|| completed.min())?,
            survivors,
            rendezvous_port: self.rendezvous_port?,
        })
    }

    /// Takes in a verdict: the next question is about the verdict after it.
    pub(super) fn decided(&mut self, verdict: &Verdict) {
        if verdict.epoch >= self.epoch {
            self.epoch = verdict.epoch + 1;
            self.promised = None;
            self.accepted = None;
            self.lead = None;
            // The survivors of this verdict may use the port; the next verdict needs another port.
            self.rendezvous_port = None;
        }
    }
}

impl Lead {
    fn has(&self, rank: Rank) -> bool {
        match &self.phase {
            Phase::Preparing { promises } => promises.contains_key(&rank),
            Phase::Accepting { accepted, .. } => accepted.contains(&rank),
        }
    }
}

/// Returns whether a verdict is lacking: there is none yet, or a survivor of the last one has died
/// or left since. A death counts only at a heartbeat (if `regular` is true): after a verdict, the
/// programs of many ranks end, these ranks count as dead, and a single agreement at the next
/// heartbeat covers all of them. A leave counts only if this rank is to go on with the ranks that
/// are still here.
fn is_due(facts: &Facts, regular: bool) -> bool {
    match &facts.verdict {
        None => true,
        Some(verdict) => {
            let mut survivors = verdict.survivors.iter();
            (regular && survivors.clone().any(|rank| facts.dead.contains_key(rank)))
                || (facts.reconvenes && survivors.any(|rank| facts.left.contains_key(rank)))
        }
    }
}
