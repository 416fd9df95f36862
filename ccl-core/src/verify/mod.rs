//! Verification of schedules, for all ranks together, on the programs that really run.
//!
//! [`check`] lowers the schedules of all ranks and passes the programs to [`check_programs`], which
//! runs the real [`Execution`] of each rank on ports into a symbolic world. Links are FIFOs with
//! the case's number of slots, and every element of memory holds the formula that produced it
//! instead of a number. The proof holds for the numbers of the case (lengths, chunks, slots,
//! channels) and for **every** timing of strands and messages:
//!
//! * **Matching**: each message has the length of the receive that takes it and fits into a slot;
//!   at the end no message is left.
//! * **No cyclic wait**. One run shows this for all runs. A direction of a link has one reading and
//!   one writing strand (checked first), strands are sequential and never choose between steps, and
//!   only the strand itself can take away the event that it waits for: a message, a free slot, or
//!   the end of a unit (a top-level fold or loop of the program). A possible step therefore stays
//!   possible until it happens, steps of different strands commute, and every maximal run consists
//!   of the same steps: if this run ends, all runs do; if it gets stuck, all runs do, at the same
//!   step.
//! * **More slots never hurt**. Suppose that a run with one slot per link completes. Suppose also
//!   that another run, in which each link always has one slot or more, is stuck. Take the first
//!   step of the complete run that the stuck run did not do. The stuck run did all steps before it,
//!   so the messages and units that the step needs are there. These steps also took all earlier
//!   messages out of each link that the step sends on: the complete run has only one slot there. No
//!   later message was put in, because one strand writes the link in order. So a slot is free, and
//!   the step is possible. Hence a receiver's byte budget, from which further slots are granted in
//!   any order, is safe if it holds one slot per active sender ([`Violation::Budget`]) and the
//!   program completes with one slot. By the same argument fewer waits never hurt. So some ranks
//!   can run programs with the dependencies of the in-place form while other ranks run programs
//!   without these dependencies ([`Alias::APART`]).
//! * **No race**. A vector clock per strand records the steps that certainly happened before:
//!   earlier steps of the strand, steps up to the end of an awaited unit *in the awaited chunk, not
//!   in later ones*, and steps before the sending of a message that was read. A returned slot
//!   orders nothing here: that order would depend on timing. Two accesses to a cell are a race if
//!   one of them is a write and the clocks do not order them. As all runs have the same steps and
//!   messages, they have the same clocks.
//! * **Results**. Without races every run computes the same formulas. At the end each output
//!   element must hold exactly the value that the collective defines: each contribution once, of
//!   the right element, and, for reductions, through exactly one fold marked last (as completing
//!   the reduction). The run also finds reads of garbage, writes to the input, accesses outside a
//!   buffer, operands that overlap in part, and writes to memory between the blocks. With
//!   [`Case::rank_order`] each result must be one fold over the ranks in ascending order, as
//!   deterministic mode promises for any length.
//! * **Barriers** are checked by the clocks: at the end every rank has heard of every other rank.

mod memory;
mod placements;
mod spec;
mod value;
mod violation;
mod wait;
mod world;

use std::sync::Arc;

use crate::execution::{Execution, Progress};
use crate::lower::{Alias, Program, lower_for_slots};
use crate::schedule::RankSchedule;
use crate::types::{Collective, Rank};
pub use placements::placements;
use spec::Setup;
use value::Mode;
pub use violation::{Access, Misfold, Reason, Spot, Violation, Waiting};
use world::{Member, RankPorts, World};

/// Numbers of elements that the collective moves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Counts {
    /// Elements of every block.
    Even(usize),
    /// Elements of each rank's block, for all v-variants except `all_to_all_v`.
    PerRank(Vec<usize>),
    /// Elements from each rank (row) to each rank (column), for `all_to_all_v`.
    Pairs(Vec<Vec<usize>>),
    /// Sends and receives of each rank in order, for `send_recv`: peers and numbers of elements.
    Messages {
        /// Sends of each rank: the receiver, and the number of elements.
        sends: Vec<Vec<(Rank, usize)>>,
        /// Receives of each rank: the sender, and the number of elements.
        recvs: Vec<Vec<(Rank, usize)>>,
    },
}

impl Counts {
    /// Returns the number of elements of the longest block; at least 1 for [`Counts::Even`].
    #[must_use]
    pub fn longest(&self) -> usize {
        match self {
            Counts::Even(count) => (*count).max(1),
            Counts::PerRank(counts) => counts.iter().copied().max().unwrap_or(0),
            Counts::Pairs(rows) => rows.iter().flatten().copied().max().unwrap_or(0),
            Counts::Messages { sends, .. } => {
                sends.iter().flatten().map(|&(_, count)| count).max().unwrap_or(0)
            }
        }
    }
}

/// Parameters with which schedules are checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Case {
    /// Collective that the schedules implement.
    pub collective: Collective,
    /// The root, if the collective has one.
    pub root: Rank,
    /// Numbers of elements.
    pub counts: Counts,
    /// Length of the gap before each block, in elements; programs must neither read nor write gaps.
    /// Only buffers whose blocks can differ in length have gaps.
    pub gap: usize,
    /// Bytes of one element.
    pub element_bytes: usize,
    /// Unit of part lengths, in elements: each length is a multiple of it, except that of the last
    /// non-empty part of a block.
    pub grain: usize,
    /// Longest payload of a message; it determines the number of chunks.
    pub slot_bytes: usize,
    /// Slots per link and channel.
    pub slots: u32,
    /// Number of channels; chunks use them in turn.
    pub channels: u32,
    /// Bytes that a receiver admits from all senders together; `None` for no limit.
    pub budget_bytes: Option<usize>,
    /// True if the buffers are in the in-place form: on ranks that have an input and an output, the
    /// smaller buffer lies inside the larger one.
    pub in_place: bool,
    /// True if every result must be one fold in rank order.
    pub rank_order: bool,
}

impl Case {
    /// Returns an out-of-place case with one slot, one channel, no budget, 4-byte elements, and
    /// slots of 1024 bytes.
    #[must_use]
    pub fn new(collective: Collective, root: Rank, counts: Counts) -> Case {
        Case {
            collective,
            root,
            counts,
            gap: 0,
            element_bytes: 4,
            grain: 1,
            slot_bytes: 1024,
            slots: 1,
            channels: 1,
            budget_bytes: None,
            in_place: false,
            rank_order: false,
        }
    }
}

/// Report of a correct run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Largest number of chunks of any rank.
    pub chunks: usize,
    /// Number of folds of all ranks.
    pub folds: u64,
    /// Number of messages of all ranks.
    pub messages: u64,
    /// Payload of all messages, in bytes.
    pub message_bytes: u64,
    /// Largest number of bytes that were under way to one rank in this run.
    pub in_flight_bytes_max: usize,
}

/// Lowers the schedules of all ranks and checks the programs. `schedules` is in rank order. If any
/// link is guaranteed only one slot ([`sure_slots`]), all schedules are lowered for links with one
/// slot, else for links with more slots.
///
/// # Errors
///
/// The first violation found.
pub fn check(case: &Case, schedules: &[RankSchedule]) -> Result<Report, Violation> {
    let with = |slots: u32| -> Vec<Arc<Program>> {
        let lowered = |schedule: &RankSchedule| {
            let alias = Alias::of(case.collective, schedule.rank, schedule.split);
            Arc::new(lower_for_slots(schedule, alias, slots))
        };
        schedules.iter().map(lowered).collect()
    };
    let programs = with(case.slots);
    match sure_slots(case, &programs) {
        1 if case.slots > 1 => check_programs(case, &with(1)),
        _ => check_programs(case, &programs),
    }
}

/// Returns the number of slots that the case's budget guarantees to every link of these programs.
/// The result is 1 even if the budget is too small for one slot; [`check_programs`] then refuses
/// the case.
#[must_use]
pub fn sure_slots(case: &Case, programs: &[Arc<Program>]) -> u32 {
    let least = |program: &Arc<Program>| {
        let needed = program.recv_peers.len() * case.channels.max(1) as usize * case.slot_bytes;
        let held = case.budget_bytes.map_or(usize::MAX, |budget| budget / needed.max(1));
        case.slots.min(u32::try_from(held).unwrap_or(u32::MAX)).max(1)
    };
    programs.iter().map(least).min().unwrap_or(case.slots)
}

/// Checks the programs of all ranks. `programs` is in rank order.
///
/// # Errors
///
/// The first violation found.
pub fn check_programs(case: &Case, programs: &[Arc<Program>]) -> Result<Report, Violation> {
    let setups = setups(case, programs)?;
    let mut executions: Vec<Execution> = Vec::with_capacity(programs.len());
    for (program, setup) in programs.iter().zip(&setups) {
        let mut execution = Execution::new(program.clone(), case.channels);
        execution.start(&setup.numbers);
        executions.push(execution);
    }
    check_links(&executions)?;
    let members = members(case, &executions)?;
    let world = World::new(&setups, &members, case.channels.max(1));
    let (mut world, stuck) = run(world, &mut executions);
    if let Some(violation) = world.violation.take() {
        return Err(with_texts(violation, &world, case, &setups, &members, &mut executions));
    }
    if stuck {
        let slots = members.iter().map(|member| member.slots as u32).min();
        return Err(wait::explain(&world, &executions, slots.unwrap_or(case.slots)));
    }
    check_results(case, &setups, &world)?;
    Ok(Report {
        chunks: executions.iter().map(|execution| execution.chunks().0).max().unwrap_or(0),
        folds: executions.iter().map(Execution::folds).sum(),
        messages: world.messages,
        message_bytes: world.message_bytes,
        in_flight_bytes_max: world.ranks.iter().map(|r| r.in_flight_bytes_max).max().unwrap_or(0),
    })
}

fn setups(case: &Case, programs: &[Arc<Program>]) -> Result<Vec<Setup>, Violation> {
    let ranks = u32::try_from(programs.len()).unwrap_or(u32::MAX);
    if ranks == 0 || case.element_bytes == 0 || case.slots == 0 {
        let error = "it needs at least one rank, one slot per link, and one byte per element";
        return Err(Violation::Case(error.to_owned()));
    }
    if case.collective.has_root() && case.root >= ranks {
        return Err(Violation::Case(format!("root {} is not among the {ranks} ranks", case.root)));
    }
    let setup = |(rank, program): (u32, &Arc<Program>)| {
        if program.rank != rank || program.ranks != ranks {
            let error = format!(
                "program {rank} of {ranks} belongs to rank {} of {} ranks",
                program.rank, program.ranks
            );
            return Err(Violation::Case(error));
        }
        Setup::new(case, rank, ranks, program.split)
    };
    (0..ranks).zip(programs).map(setup).collect()
}

/// Checks that each direction of a link has one strand, and that peers exist.
fn check_links(executions: &[Execution]) -> Result<(), Violation> {
    for (rank, execution) in executions.iter().enumerate() {
        let rank = rank as Rank;
        let mut uses = execution.link_uses();
        uses.sort_by_key(|link| (link.receives, link.peer, link.strand));
        for link in &uses {
            if link.peer == rank || link.peer as usize >= executions.len() {
                let (strand, peer) = (link.strand, link.peer);
                return Err(Violation::NoSuchPeer { rank, strand, peer });
            }
        }
        for pair in uses.windows(2) {
            if (pair[0].receives, pair[0].peer) == (pair[1].receives, pair[1].peer) {
                let (peer, receives) = (pair[0].peer, pair[0].receives);
                let strands = (pair[0].strand, pair[1].strand);
                return Err(Violation::SharedLink { rank, peer, receives, strands });
            }
        }
    }
    Ok(())
}

/// Returns the resources of each rank. For each sender and channel, a rank has the case's number of
/// slots, or fewer if its budget permits only fewer. A budget that permits no slot is a violation.
fn members(case: &Case, executions: &[Execution]) -> Result<Vec<Member>, Violation> {
    let channels = case.channels.max(1);
    let member = |(rank, execution): (usize, &Execution)| {
        let uses = execution.link_uses();
        let senders = uses.iter().filter(|link| link.receives).count();
        let mut slots = case.slots as usize;
        let needed_bytes = senders * channels as usize * case.slot_bytes;
        if let Some(budget_bytes) = case.budget_bytes
            && needed_bytes > 0
        {
            let rank = rank as Rank;
            if budget_bytes < needed_bytes {
                let channels = case.channels;
                return Err(Violation::Budget {
                    rank,
                    senders,
                    channels,
                    needed_bytes,
                    budget_bytes,
                });
            }
            slots = slots.min(budget_bytes / needed_bytes);
        }
        Ok(Member {
            strands: execution.program().strands.len(),
            units: execution.program().units as usize,
            scratch_elements: execution.scratch_bytes() / case.element_bytes,
            slots,
        })
    };
    executions.iter().enumerate().map(member).collect()
}

/// Runs until all ranks are done, no rank can move, or a violation is found. Returns the world, and
/// whether the run got stuck.
fn run(mut world: World, executions: &mut [Execution]) -> (World, bool) {
    let mut done = vec![false; executions.len()];
    loop {
        let (mut moved, mut open) = (false, false);
        for (rank, execution) in executions.iter_mut().enumerate() {
            let mut ports = RankPorts { world: &mut world, rank: rank as Rank };
            let progress = execution.advance(&mut ports);
            let ended = progress == Progress::Done;
            moved |= progress == Progress::Moved || ended != done[rank];
            open |= !ended;
            done[rank] = ended;
        }
        if world.violation.is_some() || !open {
            return (world, false);
        }
        if !moved {
            return (world, true);
        }
    }
}

/// Adds the texts of both folds to a race: runs the programs once more and records the texts.
fn with_texts(
    violation: Violation,
    found: &World,
    case: &Case,
    setups: &[Setup],
    members: &[Member],
    executions: &mut [Execution],
) -> Violation {
    let (Violation::Race { spot, mut first, mut second }, Some((rank, earlier, later))) =
        (violation.clone(), found.race)
    else {
        return violation;
    };
    for (execution, setup) in executions.iter_mut().zip(setups) {
        execution.start(&setup.numbers);
    }
    let mut world = World::new(setups, members, case.channels.max(1));
    world.sought = vec![(rank, earlier), (rank, later)];
    world.texts = vec![String::new(); 2];
    let (world, _) = run(world, executions);
    first.fold.clone_from(&world.texts[0]);
    second.fold.clone_from(&world.texts[1]);
    Violation::Race { spot, first, second }
}

fn check_results(case: &Case, setups: &[Setup], world: &World) -> Result<(), Violation> {
    if let Some(violation) = world.unreceived() {
        return Err(violation);
    }
    for setup in setups {
        if case.collective == Collective::Barrier {
            if let Some(unheard) = world.unheard(setup.rank) {
                return Err(Violation::Barrier { rank: setup.rank, unheard });
            }
        } else if setup.has_output {
            check_output(case, setup, world)?;
        }
    }
    Ok(())
}

fn check_output(case: &Case, setup: &Setup, world: &World) -> Result<(), Violation> {
    let rank = setup.rank;
    let memory = &world.ranks[rank as usize].memory;
    let spot = |element| Spot { rank, buffer: crate::schedule::Buffer::Output, element };
    for block in 0..setup.blocks.1 {
        let elements = setup.numbers.output.block_elements(block);
        for (index, element) in elements.enumerate() {
            check_element(case, setup, world, spot(element), block, index)?;
        }
    }
    let blocks: Vec<_> =
        (0..setup.blocks.1).map(|block| setup.numbers.output.block_elements(block)).collect();
    match memory.touched(|element| blocks.iter().any(|block| block.contains(&element))) {
        Some(element) => Err(Violation::Touched { spot: spot(element) }),
        None => Ok(()),
    }
}

fn check_element(
    case: &Case,
    setup: &Setup,
    world: &World,
    spot: Spot,
    block: u32,
    index: usize,
) -> Result<(), Violation> {
    let exprs = &world.exprs;
    let expected = setup.expected(block);
    let value = world.ranks[setup.rank as usize].memory.output_value(spot.element);
    let here = value.element == setup.element(expected.block, index);
    let text = || exprs.text(value.expr);
    let right = match expected.of {
        Some(rank) => {
            let untouched = setup.in_place && value.expr == exprs.raw(rank) && rank == setup.rank;
            value.expr == exprs.leaf(rank) || untouched
        }
        None => exprs.holds_all(value.expr),
    };
    if !here || !right {
        let of =
            expected.of.map_or("the fold over all ranks of".to_owned(), |r| format!("rank {r}'s"));
        let expected = format!("{of} element {index} of input block {}", expected.block);
        let longest = setup.longest();
        let (at, element) = (value.element as usize / longest, value.element as usize % longest);
        let found = match value.expr {
            value::GARBAGE => "nothing".to_owned(),
            _ => format!("{} of element {element} of input block {at}", text()),
        };
        return Err(Violation::Wrong { spot, block, index, found, expected });
    }
    if exprs.mode() == Mode::Reduce {
        if !exprs.is_complete(value.expr) {
            return Err(Violation::NeverLast { spot, found: text() });
        }
        if case.rank_order && !exprs.in_rank_order(value.expr) {
            return Err(Violation::NotInRankOrder { spot, found: text() });
        }
    }
    Ok(())
}
