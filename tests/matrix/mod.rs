//! The fault matrix: every fault, met by every family of algorithms in every collective, ends in
//! right data, or in errors on all survivors that name the right rank and agree how far all came.
//!
//! A cell is a job of four ranks on two hosts, two on each, so that shared memory, TCP and both
//! together are in play. The run in CI takes cells that cover all pairs; the full run takes all,
//! and `cargo xtask test --full` writes what it says into docs/fault-matrix.md.

mod inject;
mod judge;
mod rank;
mod selection;

use crate::harness::netns::{Network, skip};
use crate::harness::processes::{Case, say};
use ccl_core::types::Collective;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

pub(crate) const CASES: &[Case] = &[("matrix", rank::run)];

/// Ranks of a cell's job.
const RANKS: u32 = 4;
const PER_HOST: u32 = 2;
/// Cells that run at the same time: they mostly wait.
const ABREAST: usize = 2;
/// With this variable, `tc netem` must work.
const NETEM: &str = "FERROCCL_TEST_NETEM";
/// The full run.
const FULL: &str = "FERROCCL_TEST_FULL";
/// Another seed than the usual one.
const SEED: &str = "FERROCCL_TEST_SEED";
/// What the lines begin with that `cargo xtask test` makes the table of.
const CELL: &str = "CELL: ";
/// What the outcome of a cell begins with that is not what it must be.
const WRONG: &str = "WRONG: ";
/// Only cells whose names contain this.
const ONLY: &str = "FERROCCL_TEST_CELLS";

/// What happens to a job in the middle of its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Kill,
    LongStop,
    ShortStop,
    LongCut,
    ShortCut,
    FullSendBuffer,
    Stranger,
    HalfOpen,
    SlowReader,
    Loss,
    Delay,
    Reordering,
}

impl Fault {
    const ALL: [Fault; 12] = [
        Fault::Kill,
        Fault::LongStop,
        Fault::ShortStop,
        Fault::LongCut,
        Fault::ShortCut,
        Fault::FullSendBuffer,
        Fault::Stranger,
        Fault::HalfOpen,
        Fault::SlowReader,
        Fault::Loss,
        Fault::Delay,
        Fault::Reordering,
    ];

    fn name(self) -> &'static str {
        match self {
            Fault::Kill => "kill -9",
            Fault::LongStop => "stopped for longer than the deadline",
            Fault::ShortStop => "stopped for a moment",
            Fault::LongCut => "link down for longer than the deadline",
            Fault::ShortCut => "link down for a moment",
            Fault::FullSendBuffer => "full send buffer",
            Fault::Stranger => "strangers with random bytes",
            Fault::HalfOpen => "half-open connections",
            Fault::SlowReader => "slow reader",
            Fault::Loss => "1 % loss",
            Fault::Delay => "50 ms delay",
            Fault::Reordering => "reordering",
        }
    }

    /// What `tc netem` is told; this fault runs in the guest.
    fn netem(self) -> Option<&'static str> {
        match self {
            Fault::Loss => Some("loss 1%"),
            Fault::Delay => Some("delay 50ms"),
            Fault::Reordering => Some("delay 10ms reorder 25%"),
            _ => None,
        }
    }
}

/// The shape of the algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    Ring,
    Tree,
    Direct,
    Hierarchical,
}

impl Family {
    const ALL: [Family; 4] = [Family::Ring, Family::Tree, Family::Direct, Family::Hierarchical];

    fn name(self) -> &'static str {
        match self {
            Family::Ring => "ring",
            Family::Tree => "tree",
            Family::Direct => "direct",
            Family::Hierarchical => "hierarchical",
        }
    }
}

const COLLECTIVES: [Collective; 3] =
    [Collective::AllReduce, Collective::AllToAll, Collective::Broadcast];

/// One cell of the matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cell {
    fault: Fault,
    family: Family,
    collective: Collective,
}

impl Cell {
    fn all() -> Vec<Cell> {
        let mut all = Vec::new();
        for fault in Fault::ALL {
            for collective in COLLECTIVES {
                all.extend(Family::ALL.map(|family| Cell { fault, family, collective }));
            }
        }
        all
    }

    /// The family's algorithm for the collective, or its next of kin: in an all_to_all nothing is
    /// merged or passed to all, so there is neither ring nor tree; Bruck's algorithm goes around
    /// the circle, in as many steps as a tree has levels.
    fn algorithm(&self) -> &'static str {
        match (self.collective, self.family) {
            (Collective::AllToAll, Family::Ring | Family::Tree) => "bruck",
            (Collective::AllReduce, Family::Tree) => "double_tree",
            (_, family) => family.name(),
        }
    }

    /// Whether a rank of the job takes its time.
    fn is_slow(&self) -> bool {
        matches!(self.fault, Fault::FullSendBuffer | Fault::SlowReader)
    }

    fn name(&self) -> String {
        format!("{} | {} | {}", self.fault.name(), self.collective, self.family.name())
    }
}

fn full() -> bool {
    std::env::var(FULL).is_ok_and(|full| full == "1")
}

fn seed() -> u64 {
    std::env::var(SEED).map_or(1, |seed| seed.parse().unwrap())
}

/// The cells to run now, of those that `fits`.
fn chosen(fits: impl Fn(&Cell) -> bool) -> Vec<Cell> {
    let all: Vec<Cell> = Cell::all().into_iter().filter(fits).collect();
    match std::env::var(ONLY) {
        Ok(only) => all.into_iter().filter(|cell| cell.name().contains(&only)).collect(),
        Err(_) if full() => all,
        Err(_) => selection::pairwise(&all),
    }
}

/// Runs jobs of cells, says in a line what became of each cell, and fails with all that went wrong.
fn run_all(place: &str, jobs: &[Vec<Cell>]) {
    let next = AtomicUsize::new(0);
    let outcomes: Vec<OnceLock<String>> = jobs.iter().map(|_| OnceLock::new()).collect();
    let work = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(cells) = jobs.get(index) else { return };
            let start = Instant::now();
            let job = cells.clone();
            // A panic is a result as well, and the others go on.
            let outcome = match thread::spawn(move || inject::run(&job, seed())).join() {
                Ok(Ok(outcome)) => outcome,
                Ok(Err(error)) => format!("{WRONG}{error}"),
                Err(panic) => format!("{WRONG}{}", text_of(&*panic)),
            };
            let took = start.elapsed().as_secs_f64();
            let first_line = outcome.lines().next().unwrap_or_default();
            say(&format!("{} and so on took {took:.1} s: {first_line}", cells[0].name()));
            outcomes[index].set(outcome).unwrap();
        }
    };
    thread::scope(|scope| (0..ABREAST).for_each(|_| drop(scope.spawn(work))));
    let mut wrong = Vec::new();
    for (cells, outcome) in jobs.iter().zip(outcomes) {
        let outcome = outcome.into_inner().unwrap();
        let first_line = outcome.lines().next().unwrap_or_default();
        for cell in cells {
            let (name, algorithm) = (cell.name(), cell.algorithm());
            say(&format!("{CELL}{place} | {name} | {algorithm} | {first_line}"));
        }
        if outcome.starts_with(WRONG) {
            wrong.push(format!("{} and so on: {outcome}", cells[0].name()));
        }
    }
    assert!(wrong.is_empty(), "{} of {} jobs:\n{}", wrong.len(), jobs.len(), wrong.join("\n"));
}

fn text_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("a panic").to_owned()
}

#[test]
fn faults_meet_algorithms_and_collectives() {
    if Network::switched(2).is_some() {
        let cells = chosen(|cell| cell.fault.netem().is_none());
        let jobs: Vec<Vec<Cell>> = cells.into_iter().map(|cell| vec![cell]).collect();
        run_all("network", &jobs);
    }
}

/// A kernel without `tc netem` skips it: the guest has one.
#[test]
fn netem_meets_algorithms_and_collectives() {
    let Some(network) = Network::switched(2) else { return };
    if let Err(reason) = network.hosts[0].netem("delay 1ms") {
        assert!(std::env::var_os(NETEM).is_none(), "{NETEM} is set: {reason}");
        return skip(&format!("this kernel has no netem, `cargo xtask guest` has one: {reason}"));
    }
    // Starting processes is what takes time in the guest: all cells of a fault are one job.
    let job = |fault: &Fault| chosen(|cell| cell.fault == *fault);
    let netem = Fault::ALL.iter().filter(|fault| fault.netem().is_some());
    let jobs: Vec<Vec<Cell>> = netem.map(job).filter(|cells| !cells.is_empty()).collect();
    run_all("guest", &jobs);
}

#[test]
fn every_cell_has_its_algorithm() {
    for cell in Cell::all() {
        ccl_core::algorithm::find(cell.collective, cell.algorithm()).unwrap();
    }
}

/// The page in the docs shows all of the matrix, and nothing wrong.
#[test]
fn the_page_is_of_this_matrix() {
    let page = include_str!("../../docs/fault-matrix.md");
    assert!(!page.contains(WRONG.trim()));
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    let rows: Vec<String> = page.lines().map(words).collect();
    let head =
        ["| fault | collective |", &Family::ALL.map(Family::name).join(" | "), "|"].join(" ");
    assert!(rows.iter().filter(|row| **row == head).count() >= 2, "no {head}");
    for fault in Fault::ALL {
        for collective in COLLECTIVES {
            let start = format!("| {} | {collective} | ", fault.name());
            let row = rows.iter().find_map(|row| row.strip_prefix(&start));
            let row = row.unwrap_or_else(|| panic!("no {start}"));
            let cells: Vec<&str> = row.trim_end_matches('|').split(" | ").collect();
            assert!(cells.len() == Family::ALL.len(), "{row}");
            assert!(cells.iter().all(|cell| !cell.trim().is_empty()), "{row}");
        }
    }
}
