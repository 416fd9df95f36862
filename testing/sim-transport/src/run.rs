//! Execution of an operation on all ranks of a world, in turn and in virtual time.

use std::time::Duration;

use ccl_core::admission::MessageLinks;
use ccl_core::execution::{Execution, Link, Ports, Progress};
use ccl_core::time::Instant;

use crate::world::World;

/// Result of one turn of a rank's process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Progress; the process can go on at once.
    Moved,
    /// No progress; the process waits for an event.
    Waiting,
    /// End of the process, with a result or an error.
    Ended(Result<(), String>),
}

/// Process that runs on a rank.
pub trait Process {
    /// Does the work that can be done now.
    fn step(&mut self, now: Instant) -> Step;
    /// Returns the result of a process whose deadline has passed.
    fn give_up(&mut self, now: Instant) -> Result<(), String>;
}

/// End of an operation on a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Success.
    Done {
        /// Time of the end.
        at: Instant,
    },
    /// Failure with an error.
    Failed {
        /// Time of the end.
        at: Instant,
        /// Text of the error.
        error: String,
    },
    /// Crash of the rank.
    Crashed,
}

/// Call of a collective on one rank: an execution, and ports over message links.
pub struct Operation<P> {
    execution: Execution,
    ports: P,
    links: fn(&mut P) -> &mut MessageLinks,
    mismatch: fn(&P) -> Option<String>,
    done: bool,
    /// True if the caller has its buffers back.
    closed: bool,
}

impl<P> std::fmt::Debug for Operation<P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Operation").field("done", &self.done).finish_non_exhaustive()
    }
}

impl<P: Ports> Operation<P> {
    /// Creates an operation from a started execution and its ports. `links` finds the ports' links;
    /// `mismatch` describes a message that is not what the schedule expects.
    #[must_use]
    pub fn new(
        execution: Execution,
        ports: P,
        links: fn(&mut P) -> &mut MessageLinks,
        mismatch: fn(&P) -> Option<String>,
    ) -> Operation<P> {
        Operation { execution, ports, links, mismatch, done: false, closed: false }
    }

    /// Returns the ports for another operation, without any reference to this operation's buffers.
    #[must_use]
    pub fn into_ports(mut self) -> P {
        self.links().close();
        self.ports
    }

    /// Returns the message links.
    pub fn links(&mut self) -> &mut MessageLinks {
        (self.links)(&mut self.ports)
    }

    fn try_step(&mut self, now: Instant) -> Result<Step, String> {
        let polled = self.links().poll(now).and_then(|_| self.links().check_all());
        let moved = !self.done && self.advance()?;
        let flushed = self.links().flush(now);
        if self.done && !self.closed && self.links().is_settled(now) {
            self.links().close();
            self.closed = true;
        }
        if self.done && !self.closed {
            return Ok(Step::Waiting);
        }
        if self.done {
            // After `close`, an error in `polled` is ignored, and an error in `flushed` counts as
            // success: a dead peer does not invalidate the result, and needs no more messages.
            return Ok(if flushed.unwrap_or(true) { Step::Ended(Ok(())) } else { Step::Waiting });
        }
        polled.map_err(|error| error.to_string())?;
        flushed.map_err(|error| error.to_string())?;
        Ok(if moved { Step::Moved } else { Step::Waiting })
    }

    fn advance(&mut self) -> Result<bool, String> {
        let progress = self.execution.advance(&mut self.ports);
        self.done = progress == Progress::Done;
        (self.mismatch)(&self.ports).map_or(Ok(progress != Progress::Blocked), Err)
    }
}

impl<P: Ports> Process for Operation<P> {
    fn step(&mut self, now: Instant) -> Step {
        self.try_step(now).unwrap_or_else(|error| Step::Ended(Err(error)))
    }

    fn give_up(&mut self, _: Instant) -> Result<(), String> {
        if self.done {
            return Ok(());
        }
        let mut waits = Vec::new();
        self.execution.waits_for(&mut waits);
        let links = self.links();
        waits.retain(|(link, receive)| match receive {
            true => !links.readable(*link),
            false => !links.writable(*link),
        });
        let named = |(link, receive): (Link, bool)| match receive {
            true => ("a message from", link),
            false => ("a free slot at", link),
        };
        let unacknowledged = links.unacknowledged().map(|link| ("an acknowledgement from", link));
        let waits = waits.into_iter().map(named).chain(unacknowledged);
        let waits = waits.fold(String::new(), |text, (what, link)| {
            text + &format!(", waits for {what} rank {} on channel {}", link.peer, link.channel)
        });
        Err(format!(
            "the operation has not ended in time: it has done {} folds{waits}",
            self.execution.folds()
        ))
    }
}

/// Runs a process per rank until all have ended or `deadline` has passed; returns how each ended.
/// Ranks that are due at the same time take turns in an order drawn from the seed.
pub fn run<P: Process>(world: &World, processes: &mut [P], deadline: Duration) -> Vec<Outcome> {
    let end = world.now() + deadline;
    let mut outcomes: Vec<Option<Outcome>> = vec![None; processes.len()];
    let mut wakes = vec![Some(world.now()); processes.len()];
    loop {
        let now = world.now();
        let mut moved = false;
        for index in order(world, processes.len()) {
            let due = wakes[index].is_some_and(|at| at <= now);
            if outcomes[index].is_some() || !due {
                continue;
            }
            moved = true;
            wakes[index] = None;
            turn(world, index, &mut processes[index], &mut outcomes[index], &mut wakes[index]);
        }
        bury(world, &mut outcomes);
        if outcomes.iter().all(Option::is_some) {
            break;
        }
        wake(world, &mut wakes);
        if moved {
            continue;
        }
        let waits = wakes.iter().zip(&outcomes).filter(|(_, outcome)| outcome.is_none());
        let next = waits.filter_map(|(wake, _)| *wake).chain(world.next_event()).min();
        match next.filter(|&at| at < end) {
            Some(at) => world.advance(at),
            None => {
                world.advance(end);
                break;
            }
        }
    }
    bury(world, &mut outcomes);
    let now = world.now();
    let late = |process: &mut P| outcome(process.give_up(now), now);
    let ended = outcomes.into_iter().zip(processes);
    ended.map(|(outcome, process)| outcome.unwrap_or_else(|| late(process))).collect()
}

fn outcome(result: Result<(), String>, at: Instant) -> Outcome {
    match result {
        Ok(()) => Outcome::Done { at },
        Err(error) => Outcome::Failed { at, error },
    }
}

/// Returns the ranks in this round's order.
fn order(world: &World, ranks: usize) -> impl Iterator<Item = usize> {
    let first = world.state().random.below(ranks as u64) as usize;
    (0..ranks).map(move |index| (first + index) % ranks)
}

fn turn<P: Process>(
    world: &World,
    index: usize,
    process: &mut P,
    ended: &mut Option<Outcome>,
    wake: &mut Option<Instant>,
) {
    if world.has_crashed(index as u32) {
        return;
    }
    let now = world.now();
    match process.step(now) {
        Step::Moved => *wake = Some(now),
        Step::Waiting => {}
        Step::Ended(result) if !world.has_crashed(index as u32) => {
            *ended = Some(outcome(result, now));
        }
        Step::Ended(_) => {}
    }
}

fn bury(world: &World, outcomes: &mut [Option<Outcome>]) {
    for (rank, outcome) in outcomes.iter_mut().enumerate() {
        if outcome.is_none() && world.has_crashed(rank as u32) {
            *outcome = Some(Outcome::Crashed);
        }
    }
}

/// Schedules a turn for every rank with a new event; turns of slow ranks are later.
fn wake(world: &World, wakes: &mut [Option<Instant>]) {
    let now = world.now();
    let conditions = world.conditions();
    for (rank, wake) in wakes.iter_mut().enumerate() {
        if world.take_dirty(rank as u32) {
            let late = conditions.latency.saturating_mul(conditions.slowness(rank as u32) - 1);
            let at = now + late;
            *wake = Some(wake.map_or(at, |before| before.min(at)));
        }
    }
}
