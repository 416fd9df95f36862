//! Judgement of which rank holds up the others, based only on the notes of the ranks.
//!
//! Ranks that make different calls are looked for first. If there are none, the candidates are the
//! ranks that others wait for and that do not wait themselves, and the ranks that wait although no
//! rank holds them up. The candidate furthest behind is to blame. If there is no candidate, ranks
//! wait in a circle.

use super::{Activity, Awaited, Note};
use crate::ranks::in_words;
use ccl_core::types::Rank;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Largest number of ranks that a text names one by one, in a list or in a circle of waits.
const NAMED_MAX: usize = 4;

/// State of a rank, as known to the asker.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Observed {
    /// Note that the rank sent.
    Noted(Note),
    /// The rank lives, but does not answer.
    Silent {
        /// Time for which nothing was heard of the rank, in milliseconds.
        silent_ms: u32,
    },
}

/// Rank that holds up the others, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stuck {
    /// Rank that holds up the others.
    pub rank: Rank,
    /// Description of how the rank holds up the others, to be read after "rank N".
    pub text: String,
}

impl std::fmt::Display for Stuck {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "rank {} {}", self.rank, self.text)
    }
}

/// Returns the rank that holds up the others, if at least one rank in `seen` waits. Nothing is
/// known of ranks that `seen` leaves out.
#[must_use]
pub fn find_stuck(seen: &BTreeMap<Rank, Observed>) -> Option<Stuck> {
    let case = Case { seen };
    case.waiting().next()?;
    let mut stuck = case.disagreement().or_else(|| case.holder()).or_else(|| case.circle())?;
    case.tell_silent(&mut stuck);
    Some(stuck)
}

struct Case<'a> {
    seen: &'a BTreeMap<Rank, Observed>,
}

impl<'a> Case<'a> {
    fn notes(&self) -> impl Iterator<Item = (Rank, &'a Note)> {
        self.seen.iter().filter_map(|(rank, sight)| match sight {
            Observed::Noted(note) => Some((*rank, note)),
            Observed::Silent { .. } => None,
        })
    }

    fn waiting(&self) -> impl Iterator<Item = (Rank, &'a Note)> {
        self.notes().filter(|(_, note)| note.activity == Activity::Waiting)
    }

    fn note(&self, rank: Rank) -> Option<&'a Note> {
        match self.seen.get(&rank)? {
            Observed::Noted(note) => Some(note),
            Observed::Silent { .. } => None,
        }
    }

    /// Returns the peers that a waiting rank waits for, except those that have finished the
    /// operation: such peers hold up nobody, even if their messages were lost.
    fn holding(&self, note: &'a Note) -> impl Iterator<Item = Awaited> {
        note.awaited.iter().copied().filter(|on| !self.has_passed(on.peer, note))
    }

    fn has_passed(&self, peer: Rank, note: &Note) -> bool {
        let Some(theirs) = self.note(peer) else { return false };
        let ended = theirs.sequence == note.sequence && theirs.activity == Activity::Outside;
        note.call != 0 && (theirs.sequence > note.sequence || (ended && theirs.call == note.call))
    }

    /// Finds a rank whose call differs from the usual call with the same number. The usual call is
    /// the most frequent one; among equally frequent calls, it is the call of the lowest rank.
    fn disagreement(&self) -> Option<Stuck> {
        let open = self.notes().filter(|(_, note)| note.activity.is_inside() && note.call != 0);
        let mut numbers: Vec<u64> = open.map(|(_, note)| note.sequence).collect();
        numbers.sort_unstable();
        numbers.dedup();
        numbers.into_iter().find_map(|number| self.disagreement_in(number))
    }

    fn disagreement_in(&self, number: u64) -> Option<Stuck> {
        let of_it = || self.notes().filter(|(_, note)| note.call != 0 && note.sequence == number);
        let count = |call: u64| of_it().filter(|(_, note)| note.call == call).count();
        // Takes the first of equally frequent calls; `max_by_key` would take the last.
        let most = of_it().map(|(_, note)| count(note.call)).max()?;
        let (_, usual) = of_it().find(|(_, note)| count(note.call) == most)?;
        let (rank, other) = of_it().find(|(_, note)| note.call != usual.call)?;
        let them: Vec<Rank> =
            of_it().filter(|(_, note)| note.call == usual.call).map(|(rank, _)| rank).collect();
        let (mine, theirs) = (&other.what, &usual.what);
        let text = format!(
            "makes another call than {}: {mine} (for {}) instead of {theirs}; all ranks must make \
             the same calls in the same order",
            named(&them),
            seconds(other.unchanged_ms),
        );
        Some(Stuck { rank, text })
    }

    /// Finds the rank that is furthest behind. Candidates are the ranks that others wait for and
    /// that do not wait themselves, and the ranks that wait although no rank holds them up.
    fn holder(&self) -> Option<Stuck> {
        let awaited = self.waiting().flat_map(|(_, note)| self.holding(note));
        let mut holders: Vec<Rank> = awaited.map(|on| on.peer).collect();
        holders.retain(|peer| self.is_holder(*peer));
        let lone = self.waiting().filter(|(_, note)| self.holding(note).next().is_none());
        holders.extend(lone.map(|(rank, _)| rank));
        let rank = holders.into_iter().min_by_key(|rank| (self.progress(*rank), *rank))?;
        let mut text = self.state(rank);
        self.tell_waiting(rank, &mut text);
        Some(Stuck { rank, text })
    }

    fn is_holder(&self, rank: Rank) -> bool {
        match self.seen.get(&rank) {
            None | Some(Observed::Silent { .. }) => true,
            Some(Observed::Noted(note)) => note.activity != Activity::Waiting,
        }
    }

    /// Returns how far a rank has come: 0 if the rank is silent, the maximum if `seen` leaves the
    /// rank out.
    fn progress(&self, rank: Rank) -> u64 {
        match self.note(rank) {
            None if self.seen.contains_key(&rank) => 0,
            None => u64::MAX,
            // A rank between two collectives is ahead of the ranks in the first one, and behind
            // the ranks in the second one.
            Some(note) => {
                let inside = note.activity.is_inside() && note.call != 0;
                1 + 2 * note.sequence + u64::from(!inside)
            }
        }
    }

    fn state(&self, rank: Rank) -> String {
        let note = match self.seen.get(&rank) {
            Some(Observed::Noted(note)) => note,
            Some(Observed::Silent { silent_ms }) => {
                let silence = seconds(*silent_ms);
                return format!(
                    "does not answer: it is stopped, overloaded or cut off, silent for {silence}"
                );
            }
            None => return "has sent no note, so its state is unknown".to_owned(),
        };
        let (what, step) = (&note.what, steps(note.steps));
        let since = seconds(note.unchanged_ms);
        match note.activity {
            Activity::Outside if what.is_empty() => {
                format!("is behind: it has made no call in the {since} since it joined")
            }
            Activity::Outside => {
                format!("is behind: it has been computing for {since}, since it ended {what}")
            }
            Activity::Aside => format!("is behind: it has been in {what} for {since}"),
            Activity::Undriven => format!(
                "is behind: it began {what} and has not come back to it for {since} ({step})"
            ),
            Activity::Moving => {
                format!("is behind: it is in {what}, at {step}, and last moved {since} ago")
            }
            Activity::Waiting => match note.awaited.first() {
                None => format!(
                    "is behind: it has been in {what} for {since}, at {step}, and \
                     waits until its messages are sent"
                ),
                Some(on) => format!(
                    "is behind: it has been waiting in {what} for {since} for {}, and that rank \
                     has finished this operation: is the path between the two broken?",
                    thing(*on, None)
                ),
            },
        }
    }

    /// Appends the ranks that wait for a rank, and their operation.
    fn tell_waiting(&self, rank: Rank, text: &mut String) {
        let on = |note: &'a Note| self.holding(note).find(|on| on.peer == rank);
        let mut waiting: Vec<_> =
            self.waiting().filter_map(|(by, note)| Some((by, note, on(note)?))).collect();
        waiting.sort_by_key(|(by, ..)| (self.progress(*by), *by));
        let Some((by, note, on)) = waiting.first() else { return };
        let _ = write!(
            text,
            "; rank {by} has been waiting for {} in {} for {}",
            thing(*on, Some(rank)),
            note.what,
            seconds(note.unchanged_ms)
        );
        if waiting.len() > 1 {
            let more: Vec<Rank> = waiting[1..].iter().map(|(by, ..)| *by).collect();
            let _ = write!(
                text,
                ", as {} {}",
                if more.len() == 1 { "has" } else { "have" },
                named(&more)
            );
        }
    }

    /// Finds a circle of waits. There is one if `holder` finds no rank: then each waiting rank
    /// waits for another waiting rank.
    fn circle(&self) -> Option<Stuck> {
        let next = |rank: Rank| {
            let on = self.holding(self.note(rank)?).find(|on| self.note(on.peer).is_some())?;
            Some(on)
        };
        let (mut at, _) = self.waiting().next()?;
        let mut path: Vec<(Rank, Awaited)> = Vec::new();
        while !path.iter().any(|(rank, _)| *rank == at) {
            let on = next(at)?;
            path.push((at, on));
            at = on.peer;
        }
        let begin = path.iter().position(|(rank, _)| *rank == at)?;
        let circle = &mut path[begin..];
        let lowest = (0..circle.len()).min_by_key(|index| circle[*index].0)?;
        circle.rotate_left(lowest);
        let mut text = format!("is in a circle of {} ranks that wait for each other", circle.len());
        for (index, (rank, on)) in circle.iter().take(NAMED_MAX).enumerate() {
            let Some(note) = self.note(*rank) else { continue };
            let _ = write!(
                text,
                "{} rank {rank} waits in {} for {} (for {})",
                if index == 0 { ":" } else { ";" },
                note.what,
                thing(*on, None),
                seconds(note.unchanged_ms)
            );
        }
        if circle.len() > NAMED_MAX {
            text.push_str("; ...");
        }
        Some(Stuck { rank: circle[0].0, text })
    }

    /// Appends the other ranks that do not answer.
    fn tell_silent(&self, stuck: &mut Stuck) {
        let silent = self.seen.iter().filter(|(_, sight)| matches!(sight, Observed::Silent { .. }));
        let (own, silent): (Vec<Rank>, Vec<Rank>) =
            silent.map(|(rank, _)| *rank).partition(|rank| *rank == stuck.rank);
        if !silent.is_empty() {
            let does = if silent.len() == 1 { "does" } else { "do" };
            let either = if own.is_empty() { "" } else { " either" };
            let _ = write!(stuck.text, "; {} {does} not answer{either}", named(&silent));
        }
    }
}

/// Describes the awaited message or slot. `named` is set if the text has named the peer before.
fn thing(on: Awaited, named: Option<Rank>) -> String {
    let whose = match named {
        Some(_) => "it".to_owned(),
        None => format!("rank {}", on.peer),
    };
    if on.receives { format!("a message from {whose}") } else { format!("a free slot at {whose}") }
}

fn seconds(ms: u32) -> String {
    format!("{:.1} s", f64::from(ms) / 1000.0)
}

/// Returns a text such as "rank 3" or "ranks 3, 5".
fn named(ranks: &[Rank]) -> impl std::fmt::Display + '_ {
    let count = u32::try_from(ranks.len()).unwrap_or(u32::MAX);
    in_words(&ranks[..ranks.len().min(NAMED_MAX)], count)
}

fn steps((done, all): (u64, u64)) -> String {
    if all == 0 { format!("step {done}") } else { format!("step {done} of {all}") }
}
