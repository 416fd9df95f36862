//! Simulation of a collective of all ranks, message by message: the ranks' programs run, and their
//! messages between hosts are simulated as flows.
//!
//! Each rank runs its program (`machine`) over ports (`world`). Each link has two ends (`ends`):
//! the sender's end holds the credits, and the receiver's end holds the slots. Up to
//! [`REAL_RANKS_MAX`] ranks use the real execution and the real admission. More ranks, or any
//! number of ranks with [`RunParams::lean`], use lean machines and counters that do the same.
//!
//! A message is sent when its link has a credit, becomes flows when the rank's NICs have room, and
//! arrives when these flows end. The receiver returns credits for half of a link's slots at a time,
//! as it consumes messages. Within a host, a rank's messages go one after another. Reductions and
//! copies take time in proportion to their bytes, if [`RunParams::fold_bytes_per_s`] is finite.

mod ends;
mod folding;
mod machine;
mod world;

use std::sync::Arc;

use ccl_core::admission;
use ccl_core::cost::engine;
use ccl_core::execution::{CallParams, Execution};
use ccl_core::lower::{Alias, Instr, Location, Program, Strand, Target, lower_for_slots};
use ccl_core::queue_pairs::Striping;
use ccl_core::schedule::shape::{Seat, Sizes};
use ccl_core::topology::Hosts;
use ccl_core::types::{Collective, Rank};

use crate::SimError;
use crate::network::Network;
use crate::routing::{Router, Scheme};
use crate::streams::links_passed;
use crate::workload::{Call, ELEMENT_BYTES, Job};
use ends::{Admitted, Counted, Ends};
pub use folding::Folding;
use machine::{Machine, Walk};
use world::World;

/// Largest number of ranks that run the real executions and the real admission.
pub const REAL_RANKS_MAX: u32 = 1_024;

/// Parameters of a run.
#[derive(Clone, Debug)]
pub struct RunParams {
    /// Channels, slots and budget of every rank.
    pub links: admission::Config,
    /// Striping of messages over queue pairs, and limits on the bytes and messages in flight from
    /// all NICs of a rank together.
    pub spread: Striping,
    /// Shortest time between computations of the rates ([`crate::flows::Flows::new`]), in seconds.
    pub settle_s: f64,
    /// Bytes per second that a rank's reductions and copies produce; infinite if they take no time.
    pub fold_bytes_per_s: f64,
    /// Ranks that begin late, each with its delay in seconds.
    pub late: Vec<(Rank, f64)>,
    /// True to use the lean machines and counters instead of the real execution and admission, even
    /// for few ranks.
    pub lean: bool,
}

impl Default for RunParams {
    /// Returns two channels of eight slots of 128 KiB, one queue pair, 2 MiB in flight from a rank.
    fn default() -> RunParams {
        RunParams {
            links: admission::Config {
                channels: 2,
                slots: 8,
                slot_bytes: 128 << 10,
                slots_min: 2,
                budget_bytes: 64 << 20,
                zero_copy_bytes_min: usize::MAX,
                registered_bytes_max: 0,
            },
            spread: Striping { pairs: 1, budget_bytes: 2 << 20, ..Striping::default() },
            settle_s: 0.0,
            fold_bytes_per_s: f64::INFINITY,
            late: Vec::new(),
            lean: false,
        }
    }
}

/// Result of a run.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Time when each simulated rank was done, in seconds.
    pub ends_s: Vec<f64>,
    /// Time when the last rank was done, in seconds.
    pub time_s: f64,
    /// Messages sent by the simulated ranks.
    pub messages: u64,
    /// Bytes of all messages that the simulated ranks sent.
    pub message_bytes: u64,
    /// Bytes that passed each link; 0 for links of ranks that are not simulated ([`Folding`]).
    pub carried_bytes: Vec<f64>,
    /// Largest number of bytes that were in flight to one rank.
    pub in_flight_bytes_max: u64,
    /// Largest number of bytes that admission allows in flight to one rank.
    pub credit_bytes_max: u64,
    /// Number of times that the flows' rates were recomputed.
    pub settled: u64,
    /// Ranks that were simulated.
    pub simulated: u32,
}

/// Runs a collective of all ranks of a network; `folding` says which of the ranks are simulated.
///
/// # Errors
///
/// If the run needs more memory or work than the network's plan allows; if a parameter does not fit
/// the collective or the [`Folding`]; if a message has no path, or nothing moves.
pub fn run(
    network: &Network,
    router: &mut Router,
    call: &Call,
    folding: Folding,
    params: &RunParams,
) -> Result<Outcome, SimError> {
    let hosts = Job::first(network.plan().hosts).layout(network.plan().ranks_per_host);
    if folding.stride < folding.ranks && params.late.iter().any(|(_, late_s)| *late_s > 0.0) {
        let reason = "a rank begins late; simulate at most 1,024 ranks, without folding";
        return Err(SimError::NotAlike { reason: reason.to_owned() });
    }
    if u32::try_from(params.links.slot_bytes).is_err() {
        let remedy = "give less than 4 GiB";
        return Err(SimError::number("the slot size, in bytes,", params.links.slot_bytes, remedy));
    }
    let lean = params.lean || folding.ranks > REAL_RANKS_MAX;
    if lean && params.links.slots > 32 {
        let remedy = "give at most 32 for more than 1,024 ranks";
        return Err(SimError::number("the number of slots", params.links.slots, remedy));
    }
    let setup = Setup { network, call, hosts: &hosts, folding, params };
    if lean { setup.run::<Walk, Counted>(router) } else { setup.run::<Execution, Admitted>(router) }
}

/// Estimates the work of a collective of all ranks: the number of its messages, times the links
/// that each passes.
///
/// # Errors
///
/// If the collective's blocks differ in length.
pub(crate) fn steps(
    network: &Network,
    scheme: Scheme,
    call: &Call,
    params: &RunParams,
) -> Result<f64, SimError> {
    let hosts = Job::first(network.plan().hosts).layout(network.plan().ranks_per_host);
    let folding = Folding::none(network.ranks());
    let setup = Setup { network, call, hosts: &hosts, folding, params };
    setup.steps(&setup.program(0), scheme)
}

#[derive(Clone, Copy)]
struct Setup<'a> {
    network: &'a Network,
    call: &'a Call,
    hosts: &'a Hosts,
    folding: Folding,
    params: &'a RunParams,
}

impl Setup<'_> {
    fn run<M: Machine, E: Ends>(&self, router: &mut Router) -> Result<Outcome, SimError> {
        let collective = self.call.algorithm.collective;
        if !has_equal_blocks(collective) {
            let remedy = "choose one with blocks of equal length, such as all_reduce or all_to_all";
            return Err(SimError::number("the collective", collective, remedy));
        }
        let stride = self.folding.stride;
        let mut programs: Vec<Arc<Program>> = Vec::with_capacity(stride as usize);
        for rank in 0..stride {
            programs.push(Arc::new(self.program(rank)));
            if rank == 0 {
                self.check_memory(&programs[0])?;
                let steps = self.steps(&programs[0], router.scheme())?;
                let what = format!("the messages of {stride} ranks");
                SimError::if_long(what, steps, self.network.plan().work_millions)?;
            }
        }
        let slots = programs.iter().map(|program| self.slots(program)).min().unwrap_or(1);
        let mut world: World<'_, E> =
            World::new(self.network, router, self.folding, self.params, &programs, slots);
        let channels = self.params.links.channels.max(1);
        let mut machines = Vec::with_capacity(stride as usize);
        for program in &programs {
            machines.push(M::new(program, channels, &self.numbers(program)?));
        }
        let open = engine::run(&mut world, &mut machines)?;
        let Some(rank) = open.first() else { return Ok(world.outcome()) };
        Err(SimError::Stuck {
            after_s: world.now_s(),
            open: open.len(),
            ranks: machines.len(),
            rank: *rank,
            waiting: "a message or a credit that never comes".to_owned(),
        })
    }

    /// Estimates the work (see [`steps`]) from the messages of the first rank.
    fn steps(&self, program: &Program, scheme: Scheme) -> Result<f64, SimError> {
        let numbers = self.numbers(program)?;
        let longest = numbers.input.longest_part().max(numbers.output.longest_part());
        let chunks = longest.div_ceil(numbers.chunk_elements(program).max(1));
        let messages = sends(program) * chunks as f64 * f64::from(self.folding.stride);
        Ok(messages * links_passed(self.network, scheme))
    }

    fn program(&self, rank: Rank) -> Program {
        let schedule = self.call.schedule(rank, self.hosts);
        lower_for_slots(&schedule, Alias::APART, self.params.links.slots.min(2))
    }

    /// Returns the number of slots of each link to a rank: an equal share of the rank's budget, but
    /// at least `slots_min` and at most `slots`.
    fn slots(&self, program: &Program) -> u32 {
        self.params.links.equal_slots(program.recv_peers.len())
    }

    fn numbers(&self, program: &Program) -> Result<CallParams, SimError> {
        let (rank, ranks) = (program.rank, program.ranks);
        let collective = self.call.algorithm.collective;
        let seat = Seat { collective, rank, ranks, root: 0 };
        let sizes = Sizes::Even(self.call.count(ranks));
        let layouts = seat.layouts(sizes, program.split, 1);
        let (input, output) = layouts.map_err(|error| {
            let given = format!("invalid: {error}");
            SimError::number("the layout", given, "choose a collective with blocks of equal length")
        })?;
        let slot_bytes = self.params.links.slot_bytes;
        Ok(CallParams { input, output, element_bytes: ELEMENT_BYTES, slot_bytes })
    }

    /// Refuses a run that needs too much memory, by an estimate from the links and peers.
    fn check_memory(&self, program: &Program) -> Result<(), SimError> {
        let peers = program.send_peers.len() as u64;
        let links = peers * u64::from(self.params.links.channels.max(1));
        let lean = self.params.lean || self.folding.ranks > REAL_RANKS_MAX;
        let each = if lean { 24 * links + 16 * peers } else { 500 * links + 300 * peers };
        let bytes = (each + 4096) as f64 * f64::from(self.folding.stride);
        let what = format!("the links of {} ranks", self.folding.stride);
        SimError::if_over(what, bytes, self.network.plan().memory_mib)
    }
}

/// Returns the number of messages that a rank sends for every chunk; loops multiply the messages in
/// their bodies.
fn sends(program: &Program) -> f64 {
    let of_strand = |strand: &Strand| {
        let sent = |target: &Target| match target.location {
            Location::Slot(_) => f64::from(target.repeat),
            Location::Memory(..) => 0.0,
        };
        let of_instr = |instr: &Instr| match instr {
            Instr::Fold(fold) => fold.targets.iter().map(sent).sum(),
            _ => 0.0,
        };
        let mut sends: Vec<f64> = strand.code.iter().map(of_instr).collect();
        for (end, instr) in strand.code.iter().enumerate() {
            if let Instr::Next { count, start, .. } = instr {
                let body = sends.iter_mut().take(end).skip(*start as usize);
                body.for_each(|sends| *sends *= f64::from(*count));
            }
        }
        sends.iter().sum::<f64>()
    };
    program.strands.iter().map(of_strand).sum()
}

/// Returns whether all blocks of a collective have the same length.
fn has_equal_blocks(collective: Collective) -> bool {
    use Collective as C;
    !matches!(
        collective,
        C::SendRecv | C::AllToAllV | C::AllGatherV | C::ReduceScatterV | C::GatherV | C::ScatterV
    )
}

#[cfg(test)]
mod tests;
