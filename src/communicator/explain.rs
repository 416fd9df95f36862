//! Says what would be done and why: the plan of a call, without making it.

use std::fmt;

use ccl_core::algorithm::{self, Params};
use ccl_core::execution::Numbers;
use ccl_core::lower::{Alias, lower};
use ccl_core::schedule::RankSchedule;
use serde::Serialize;

use super::call::usage;
use super::{Call, Communicator, Error};

/// The plan of a call, for people (`Display`) and programs (`Serialize`).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Explanation {
    /// The collective.
    pub collective: String,
    /// Ranks of the communicator.
    pub ranks: u32,
    /// The algorithm taken.
    pub algorithm: String,
    /// What it does.
    pub summary: String,
    /// Why it was taken.
    pub reason: String,
    /// The other algorithms there are.
    pub alternatives: Vec<String>,
    /// The transport that joins the ranks.
    pub transport: String,
    /// Parallel channels per pair of ranks.
    pub channels: u32,
    /// Slots of each link.
    pub slots: u32,
    /// The most payload of one slot.
    pub slot_bytes: usize,
    /// How often the schedule is repeated to cover the buffers.
    pub pieces: usize,
    /// The most elements of each part that one piece takes.
    pub piece_elements: usize,
    /// Ops of this rank's schedule as written, loops counted once.
    pub schedule_ops: usize,
    /// Bytes of scratch memory of this rank.
    pub scratch_bytes: usize,
    /// Bytes of shared memory of this rank.
    pub shared_bytes: usize,
    /// The formula behind `shared_bytes`.
    pub shared_formula: String,
    /// Whether the bits depend on nothing but the data.
    pub deterministic: bool,
    /// This rank's schedule.
    pub schedule: String,
    /// What it was lowered to.
    pub program: String,
}

impl Communicator {
    /// The plan of a call. Local: nothing is sent.
    ///
    /// # Errors
    ///
    /// As the call itself, for what is wrong with its arguments.
    pub fn explain(&self, call: &Call<'_>) -> Result<Explanation, Error> {
        let engine = &self.engine;
        call.check(engine.rank, engine.ranks)?;
        let choice = engine.choice(call)?;
        let params = Params { rank: engine.rank, ranks: engine.ranks, root: call.root };
        let schedule: RankSchedule = (choice.algorithm.schedule)(&params);
        let alias = Alias::of(call.collective, engine.rank, schedule.split);
        let program = lower(&schedule, alias);
        let width = call.data_type.bytes();
        let seat = call.seat(engine.rank, engine.ranks);
        let (input, output) = seat
            .layouts(call.sizes, schedule.split, (64 / width).max(1))
            .map_err(|error| usage(error.to_string()))?;
        let longest = input.longest_part().max(output.longest_part());
        let shape = engine.segment.shape;
        let slot_bytes = shape.slot_bytes;
        let numbers = Numbers { input, output, element_bytes: width, slot_bytes };
        let piece_elements = numbers.piece_elements(&program);
        let other = |name: &&str| *name != choice.algorithm.name;
        let names = algorithm::of(call.collective).map(|algorithm| algorithm.name);
        let alone = engine.ranks == 1;
        Ok(Explanation {
            collective: call.collective.to_string(),
            ranks: engine.ranks,
            algorithm: choice.algorithm.name.to_owned(),
            summary: choice.algorithm.summary.to_owned(),
            reason: choice.reason.to_owned(),
            alternatives: names.filter(other).map(str::to_owned).collect(),
            transport: self.transport().to_owned(),
            channels: engine.segment.channels,
            slots: shape.slots,
            slot_bytes,
            pieces: longest.div_ceil(piece_elements),
            piece_elements,
            schedule_ops: schedule.size(),
            scratch_bytes: numbers.scratch_bytes(&program) * engine.segment.channels as usize,
            shared_bytes: if alone { 0 } else { engine.segment.bytes() },
            shared_formula: engine.segment.formula(),
            deterministic: engine.config.deterministic,
            schedule: schedule.to_string(),
            program: program.to_string(),
        })
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} over {} ranks: {}", self.collective, self.ranks, self.algorithm)?;
        writeln!(f, "  what       {}", self.summary)?;
        writeln!(f, "  why        {}", self.reason)?;
        writeln!(f, "  instead    {}", self.alternatives.join(", "))?;
        let Explanation { transport, channels, slots, slot_bytes, .. } = self;
        writeln!(
            f,
            "  transport  {transport}, {channels} channels, {slots} slots of {slot_bytes} bytes"
        )?;
        let Explanation { pieces, piece_elements, schedule_ops, .. } = self;
        writeln!(
            f,
            "  pieces     {pieces} of at most {piece_elements} elements per part; {schedule_ops} ops"
        )?;
        writeln!(f, "  scratch    {} bytes on this rank", self.scratch_bytes)?;
        writeln!(f, "  shared     {}", self.shared_formula)?;
        let mode = if self.deterministic { "on" } else { "off" };
        writeln!(f, "  determin.  {mode}")?;
        writeln!(f, "\nschedule: {}", self.schedule)?;
        write!(f, "{}", self.program)
    }
}
