//! Comparison of notes: a rank whose deadline has passed asks all living ranks for their [`Note`]s
//! of what they are doing, and announces a verdict: which rank holds up the others. If several
//! ranks ask, the lowest of them continues.
//!
//! Suppose that rank r reaches a verdict, and sends it at once, as the failure that ends the
//! communicator. By then, every higher asker has got r's question, and defers to r or to an asker
//! below r. No question of a lower asker has reached r (else r would have deferred to that asker),
//! so each lower asker still lacks r's note. Connections keep messages in order: lower askers get
//! the verdict before anything that r sends later, and reach no verdict of their own.
//! There can be two verdicts only if ranks did not answer in time; the agreement after the failure
//! then takes one of the two.

use crate::agreement::Action;
use crate::facts::Facts;
use crate::failure::{Failure, FailureReason};
use crate::gate::ConnectionId;
use crate::message::Message;
use crate::notes::{Activity, Note, Noted, Observed, find_stuck};
use ccl_core::time::Instant;
use ccl_core::types::Rank;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Interval at which an asker, or an overdue rank that defers to a lower asker, checks whether the
/// comparison can go on.
const LOOK: Duration = Duration::from_millis(50);
/// Time that an asker waits for notes.
const PATIENCE: Duration = Duration::from_millis(500);
/// Interval at which an asker repeats its question: a note gets lost if a rank that passes it on
/// dies.
const REPEAT: Duration = Duration::from_millis(150);
/// Shortest gap between two checks that counts as sleep: this rank did not run in between.
const SLEPT: Duration = Duration::from_millis(300);
/// Time that this rank waits for a lower asker's verdict before it asks for notes itself.
const DEFERENCE: Duration = Duration::from_millis(650);

/// Question of this rank, and the notes that came in answer.
#[derive(Debug)]
struct Lead {
    since: Instant,
    asked: Instant,
    seen: BTreeMap<Rank, Note>,
}

/// State of one rank in the comparison of notes.
#[derive(Debug)]
pub(super) struct Inquiry {
    rank: Rank,
    /// Time for which this rank's operation had stalled when its deadline passed, in milliseconds.
    stalled_ms: Option<u32>,
    lead: Option<Lead>,
    /// Asker of lower rank that this rank defers to, and the time when it began to defer.
    defers_to: Option<(Rank, Instant)>,
    /// Per asker: its newest question, and the connection that brought it.
    routes: BTreeMap<Rank, (u32, ConnectionId)>,
    /// Questions that this rank has still to answer.
    owed: Vec<(Rank, u32)>,
    attempt: u32,
    /// Time of the last check whether the comparison can go on.
    looked: Instant,
    /// True if a note has come since the check at `looked`.
    has_news: bool,
    actions: VecDeque<Action>,
}

impl Inquiry {
    pub(super) fn new(rank: Rank) -> Inquiry {
        Inquiry {
            rank,
            stalled_ms: None,
            lead: None,
            defers_to: None,
            routes: BTreeMap::new(),
            owed: Vec::new(),
            attempt: 0,
            looked: Instant::ZERO,
            has_news: false,
            actions: VecDeque::new(),
        }
    }

    pub(super) fn next_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Returns whether this rank must say what it is doing.
    pub(super) fn wants_note(&self) -> bool {
        let own = self.lead.as_ref().is_some_and(|lead| !lead.seen.contains_key(&self.rank));
        own || !self.owed.is_empty()
    }

    /// Records that this rank's operation has stalled for too long. Asks all ranks for their notes,
    /// unless this rank is asking already or defers to a lower asker.
    pub(super) fn overdue(&mut self, stalled_ms: u32, now: Instant) {
        self.stalled_ms.get_or_insert(stalled_ms);
        self.looked = now;
        if self.lead.is_none() && self.defers_to.is_none() {
            self.ask(now, now);
        }
    }

    fn ask(&mut self, since: Instant, now: Instant) {
        self.attempt += 1;
        let seen = self.lead.take().map_or_else(BTreeMap::new, |lead| lead.seen);
        self.lead = Some(Lead { since, asked: now, seen });
        let ask = Message::Inquire { asker: self.rank, attempt: self.attempt };
        self.actions.push_back(Action::Flood(ask, None));
    }

    /// Takes this rank's note, and sends it to all ranks that have asked.
    pub(super) fn note(&mut self, mut note: Note) {
        if self.stalled_ms.is_some() {
            // This rank only waits for the verdict now.
            note.activity = Activity::Waiting;
        }
        for (asker, attempt) in std::mem::take(&mut self.owed) {
            if let Some((_, route)) = self.routes.get(&asker) {
                let noted = Noted { asker, attempt, rank: self.rank, note: note.clone() };
                self.actions.push_back(Action::Send(*route, Message::Noted(noted)));
            }
        }
        if let Some(lead) = &mut self.lead {
            self.has_news = true;
            lead.seen.insert(self.rank, note);
        }
    }

    /// Takes in the question of an asker.
    pub(super) fn asked(
        &mut self,
        (asker, attempt): (Rank, u32),
        from: ConnectionId,
        facts: &Facts,
        now: Instant,
    ) {
        let is_old = self.routes.get(&asker).is_some_and(|(known, _)| *known >= attempt);
        if asker == self.rank || is_old || facts.is_gone(asker) || facts.first.is_some() {
            return;
        }
        self.routes.insert(asker, (attempt, from));
        self.actions.push_back(Action::Flood(Message::Inquire { asker, attempt }, Some(from)));
        self.owed.retain(|(other, _)| *other != asker);
        self.owed.push((asker, attempt));
        if asker < self.rank && self.defers_to.is_none_or(|(defers_to, _)| asker <= defers_to) {
            let since = self.defers_to.filter(|(defers_to, _)| *defers_to == asker);
            self.defers_to = Some((asker, since.map_or(now, |(_, since)| since)));
            self.lead = None;
        }
    }

    /// Takes in a note. Keeps it if this rank asked for it; otherwise passes it back along the
    /// question's route.
    pub(super) fn answered(&mut self, noted: Noted) {
        if noted.asker != self.rank {
            if let Some((_, route)) = self.routes.get(&noted.asker) {
                self.actions.push_back(Action::Send(*route, Message::Noted(noted)));
            }
        } else if let Some(lead) = &mut self.lead {
            self.has_news = true;
            lead.seen.insert(noted.rank, noted.note);
        }
    }

    /// Returns the time when [`Inquiry::drive`] is due, if it is.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let heeds = self.defers_to.is_some() && self.stalled_ms.is_some();
        let pause = if self.has_news { Duration::ZERO } else { LOOK };
        (self.lead.is_some() || heeds).then(|| self.looked + pause)
    }

    /// Continues the comparison if possible. Before this, take in all messages that have arrived,
    /// because the verdict may be among them. `silent` returns how long a rank has been silent, if
    /// known.
    pub(super) fn drive(
        &mut self,
        facts: &Facts,
        silent: &dyn Fn(Rank) -> Option<Duration>,
        now: Instant,
    ) {
        if facts.first.is_some() {
            // There is a verdict, or another failure.
            self.lead = None;
            self.defers_to = None;
            self.owed.clear();
            return;
        }
        self.has_news = false;
        if self.has_slept(now) {
            return;
        }
        let is_late = |since: Instant| now.since(since) >= DEFERENCE;
        if self.defers_to.is_some_and(|(_, since)| is_late(since)) {
            self.defers_to = None;
            if self.stalled_ms.is_some() {
                self.ask(now, now);
            }
        }
        let Some(lead) = &self.lead else { return };
        let lacking = facts.living().any(|rank| !lead.seen.contains_key(&rank));
        if !lacking || (now.since(lead.since) >= PATIENCE && lead.seen.contains_key(&self.rank)) {
            return self.conclude(facts, silent, now);
        }
        if now.since(lead.asked) >= REPEAT {
            let since = lead.since;
            self.ask(since, now);
        }
    }

    /// Returns whether this rank did not run for a while, and if so restarts its timeouts. A rank
    /// that did not run cannot judge whether the others have answered: perhaps their answers, or a
    /// verdict, have arrived but are unread.
    fn has_slept(&mut self, now: Instant) -> bool {
        let slept = now.since(self.looked) >= SLEPT;
        self.looked = now;
        if let (true, Some(lead)) = (slept, &mut self.lead) {
            lead.since = now;
        }
        if let (true, Some((_, since))) = (slept, &mut self.defers_to) {
            *since = now;
        }
        slept
    }

    fn conclude(&mut self, facts: &Facts, silent: &dyn Fn(Rank) -> Option<Duration>, now: Instant) {
        let (Some(mut lead), Some(stalled_ms)) = (self.lead.take(), self.stalled_ms) else {
            return;
        };
        let asked_for = now.since(lead.since);
        let seen = facts.living().map(|rank| match lead.seen.remove(&rank) {
            Some(note) => (rank, Observed::Noted(note)),
            None => {
                let silence = silent(rank).map_or(asked_for, |silent| silent.max(asked_for));
                let silent_ms = u32::try_from(silence.as_millis()).unwrap_or(u32::MAX);
                (rank, Observed::Silent { silent_ms })
            }
        });
        // This rank's own note says that it waits, so `find_stuck` returns a verdict.
        let Some(stuck) = find_stuck(&seen.collect()) else { return };
        let reason = FailureReason::Stuck { stalled_ms, text: stuck.text };
        self.actions.push_back(Action::Fail(Failure { rank: stuck.rank, reason }));
    }
}
