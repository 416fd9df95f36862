//! Trials: the sizes and settings with which the verifier checks an algorithm.

use std::sync::Arc;

use ccl_core::algorithm::{Algorithm, Family, Order, Params};
use ccl_core::lower::{Alias, Program, lower_for_slots};
use ccl_core::schedule::RankSchedule;
use ccl_core::topology::Hosts;
use ccl_core::types::Collective;
use ccl_core::verify::{Case, Counts, Report, Violation, check_programs, placements, sure_slots};

/// Schedules and programs of all ranks for one algorithm.
#[derive(Clone)]
pub(crate) struct Group {
    pub(crate) algorithm: &'static Algorithm,
    pub(crate) ranks: u32,
    pub(crate) root: u32,
    /// Step between the trials that are run in builds without debug assertions: 1 runs all trials,
    /// 5 runs every fifth.
    share: usize,
    pub(crate) schedules: Vec<RankSchedule>,
    /// Programs of all ranks. First index: 0 for one slot, 1 for more slots. Second index: 0 for
    /// calls in place and out of place, 1 for calls out of place only.
    pub(crate) programs: [[Vec<Arc<Program>>; 2]; 2],
    /// Largest number of peers that one rank receives from.
    senders: usize,
}

impl Group {
    pub(crate) fn new(algorithm: &'static Algorithm, hosts: &Hosts, root: u32) -> Group {
        let ranks = hosts.ranks();
        let schedule = |rank| (algorithm.schedule)(&Params { rank, ranks, root, hosts });
        Group::of(algorithm, root, (0..ranks).map(schedule).collect())
    }

    /// Returns the group with `share` as the step between its trials: 5 keeps every fifth trial.
    pub(crate) fn sparing(self, share: usize) -> Group {
        Group { share, ..self }
    }

    pub(crate) fn of(
        algorithm: &'static Algorithm,
        root: u32,
        schedules: Vec<RankSchedule>,
    ) -> Group {
        let programs = [1, 2].map(|slots| {
            [false, true].map(|apart| lower_all(algorithm.collective, &schedules, slots, apart))
        });
        let senders = programs[1][0].iter().map(|program| program.recv_peers.len()).max();
        let (ranks, senders) = (schedules.len() as u32, senders.unwrap_or(0));
        Group { algorithm, ranks, root, share: 1, schedules, programs, senders }
    }

    /// Checks a trial with the programs for one slot or for more slots, whichever fits the number
    /// of slots that the budget guarantees to every link.
    pub(crate) fn check(&self, trial: &Trial) -> Result<Report, Violation> {
        let Trial { case, apart } = trial;
        let slots = sure_slots(case, &self.programs[1][0]);
        check_programs(case, &self.programs[usize::from(slots > 1)][usize::from(*apart)])
    }

    /// Returns all trials of this group.
    pub(crate) fn trials(&self) -> impl Iterator<Item = Trial> + '_ {
        let lengths = lengths(self.algorithm.collective, self.ranks);
        let all = lengths.into_iter().flat_map(|length| ways().map(move |way| (length, way)));
        // Builds with debug assertions are slow, and run only a sample.
        let step = match (cfg!(debug_assertions), crate::full()) {
            (false, _) => self.share,
            (true, true) => 5,
            (true, false) => 11,
        };
        // The last argument of `trial` chooses the parameters that a `Way` does not set. It skips
        // one value after the 48 ways of a length. Otherwise each way would have the same
        // parameters at every length, because the periods of the parameters divide 48.
        let trials =
            all.enumerate().map(|(turn, (length, way))| trial(self, length, way, turn + turn / 48));
        trials.step_by(step)
    }
}

/// A case, and the lowering of its schedules.
#[derive(Clone, Debug)]
pub(crate) struct Trial {
    pub(crate) case: Case,
    /// True if the schedules are lowered for calls whose input and output never coincide.
    pub(crate) apart: bool,
}

pub(crate) fn lower_all(
    collective: Collective,
    schedules: &[RankSchedule],
    slots: u32,
    apart: bool,
) -> Vec<Arc<Program>> {
    let lowered = |schedule: &RankSchedule| {
        let alias = Alias::of(collective, schedule.rank, schedule.split);
        let alias = if apart { Alias::APART } else { alias };
        Arc::new(lower_for_slots(schedule, alias, slots))
    };
    schedules.iter().map(lowered).collect()
}

/// Returns the placements to test: all of them if the algorithm depends on the placement, else only
/// the placement of all ranks on one host.
pub(crate) fn hosts(algorithm: &Algorithm, ranks: u32) -> Vec<Hosts> {
    match algorithm.family {
        Family::Hierarchical => placements(ranks),
        _ => vec![Hosts::one(ranks)],
    }
}

/// Returns the roots to test: every rank if there are at most five, else the first two ranks and
/// the last; only rank 0 for a collective that has no root.
pub(crate) fn roots(collective: Collective, ranks: u32) -> Vec<u32> {
    match (collective.has_root(), ranks) {
        (false, _) => vec![0],
        (true, ..=5) => (0..ranks).collect(),
        (true, _) => vec![0, 1, ranks - 1],
    }
}

/// Returns lengths in elements: 0, 1, primes, and some below, near and above the number of ranks.
fn lengths(collective: Collective, ranks: u32) -> Vec<usize> {
    if collective == Collective::Barrier {
        return vec![1];
    }
    let ranks = ranks as usize;
    let mut lengths = vec![0, 1, 2, 3, 7, ranks - 1, ranks, ranks + 1, 31, 257];
    if crate::full() {
        lengths.extend([5, 2 * ranks + 1, 64, 127, 521]);
    }
    lengths.sort_unstable();
    lengths.dedup();
    lengths
}

/// Settings of a trial that vary besides its length.
#[derive(Clone, Copy, Debug)]
struct Way {
    slots: u32,
    /// True if the budget is tight: one slot on each channel for each sender of the rank that has
    /// the most senders.
    tight: bool,
    channels: u32,
    in_place: bool,
    chunks: usize,
}

fn ways() -> impl Iterator<Item = Way> {
    let slots = [(1, false), (2, false), (3, false), (3, true)];
    slots.into_iter().flat_map(|(slots, tight)| {
        (0..12).map(move |index| Way {
            slots,
            tight,
            channels: 1 + index % 2,
            in_place: index / 2 % 2 == 1,
            chunks: [1, 3, 5][index as usize / 4],
        })
    })
}

/// Returns a case of about `length` elements per block; `turn` chooses the other parameters.
fn trial(group: &Group, length: usize, way: Way, turn: usize) -> Trial {
    let collective = group.algorithm.collective;
    let counts = counts(collective, group.ranks as usize, length, turn);
    let grain = [1, 4][turn / 2 % 2];
    let element_bytes = [4, 8, 1][turn / 4 % 3];
    let split = group.schedules[0].split as usize;
    let part = counts.longest().div_ceil(split).next_multiple_of(grain);
    let chunk = part.div_ceil(way.chunks).max(1);
    let parts = group.schedules[0].message_parts as usize;
    let slot_bytes = chunk * parts * element_bytes;
    let budget_bytes = slot_bytes * way.channels as usize * group.senders;
    let case = Case {
        gap: turn % 3,
        element_bytes,
        grain,
        slot_bytes,
        slots: way.slots,
        channels: way.channels,
        budget_bytes: way.tight.then_some(budget_bytes),
        in_place: way.in_place,
        rank_order: group.algorithm.order == Order::Rank,
        ..Case::new(collective, group.root, counts)
    };
    Trial { case, apart: !way.in_place && turn / 3 % 2 == 1 }
}

fn counts(collective: Collective, ranks: usize, length: usize, turn: usize) -> Counts {
    use Collective as C;
    // Counts are equal, alternately empty, or uneven. They are symmetric in i and j, as in-place
    // cases require.
    let count = |i: usize, j: usize| match turn % 3 {
        0 => length,
        1 => length * ((i + j) % 2),
        _ => (length + 3 * (i + j)) % (length + 2),
    };
    match collective {
        C::AllGatherV | C::ReduceScatterV | C::GatherV | C::ScatterV => {
            Counts::PerRank((0..ranks).map(|rank| count(rank, 0)).collect())
        }
        C::AllToAllV => {
            let row = |i| (0..ranks).map(|j| count(i, j)).collect();
            Counts::Pairs((0..ranks).map(row).collect())
        }
        _ => Counts::Even(length),
    }
}
