//! Fault matrix: every fault, with every family of algorithms and every collective, ends in right
//! data or in errors on all survivors. The errors name the right rank, and the survivors agree on
//! the last completed operation.
//!
//! A cell is one fault with one family and one collective. Its job has four ranks on two hosts, two
//! on each. The job uses shared memory within a host and TCP between hosts, or RDMA or libfabric
//! between all ranks. CI runs only some cells: together, they cover every pair of a fault and a
//! family, of a fault and a collective, and of a family and a collective. The full run takes all
//! cells, and `cargo xtask test --full` writes their results into docs/fault-matrix.md.

mod inject;
mod judge;
mod ofi;
mod rank;
mod rdma;
mod selection;
mod table;

use ccl_harness::netns::Network;
use ccl_harness::processes::{Case, say};
use ccl_harness::skip;
use inject::{Attempt, Over, netem, run};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;
use table::{CELL, COLLECTIVES, Cell, Family, Fault, WRONG, assert_page};

pub(crate) const CASES: &[Case] = &[("matrix", rank::run)];

/// Number of ranks of a cell's job.
const RANKS: u32 = 4;
const PER_HOST: u32 = 2;
/// Text in the error of a cell whose fault did not hit its job. On a busy machine a job may end
/// early, or a queue may be full only between two checks. Such a cell runs again.
const INCONCLUSIVE: &str = "the cell is inconclusive";
/// Maximum number of runs of a cell.
const ATTEMPTS: usize = 5;
/// Number of jobs that run at the same time; more than one, because a job mostly waits.
const ABREAST: usize = 2;
/// Faults that last as long as their job, and so act on each of its cells. All cells of such a
/// fault are one job, except in the full run.
const LASTING: [Fault; 3] = [Fault::FullSendBuffer, Fault::HalfOpen, Fault::SlowReader];
/// Variable that makes a test fail, instead of being skipped, if `tc netem` does not work.
const NETEM: &str = "FERROCCL_TEST_NETEM";
/// Variable that selects the full run.
const FULL: &str = "FERROCCL_TEST_FULL";
/// Variable with the seed, which is 1 by default.
const SEED: &str = "FERROCCL_TEST_SEED";
/// Variable that selects the cells whose names contain its value.
const ONLY: &str = "FERROCCL_TEST_CELLS";

pub(crate) fn full() -> bool {
    std::env::var_os(FULL).is_some()
}

fn seed() -> u64 {
    std::env::var(SEED).map_or(1, |seed| seed.parse().unwrap())
}

/// Returns the cells to run now, among those for which `fits` is true.
fn chosen(fits: impl Fn(&Cell) -> bool) -> Vec<Cell> {
    let all: Vec<Cell> = Cell::all().into_iter().filter(fits).collect();
    match std::env::var(ONLY) {
        Ok(only) => all.into_iter().filter(|cell| cell.name().contains(&only)).collect(),
        Err(_) if full() => all,
        Err(_) => selection::pairwise(&all),
    }
}

/// Runs jobs of cells on hosts that are network namespaces.
fn run_all(place: &str, jobs: &[Vec<Cell>]) {
    run_jobs(place, jobs, ABREAST, |cells, attempt| run(cells, attempt, Over::Tcp));
}

/// Runs jobs of cells, prints a line with the result of each cell, and fails with all errors.
fn run_jobs<F>(place: &str, jobs: &[Vec<Cell>], abreast: usize, run: F)
where
    F: Fn(&[Cell], Attempt) -> Result<String, String> + Copy + Send + Sync,
{
    let next = AtomicUsize::new(0);
    let outcomes: Vec<OnceLock<String>> = jobs.iter().map(|_| OnceLock::new()).collect();
    let work = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(cells) = jobs.get(index) else { return };
            let start = Instant::now();
            let job = cells.clone();
            // A panic counts as a wrong result, and the other jobs go on.
            let attempt = |before: usize| match thread::scope(|scope| {
                scope.spawn(|| run(&job, (seed(), before as u32))).join()
            }) {
                Ok(Ok(outcome)) => outcome,
                Ok(Err(error)) => format!("{WRONG}{error}"),
                Err(panic) => format!("{WRONG}{}", text_of(&*panic)),
            };
            let mut attempts = (0..ATTEMPTS - 1).map(attempt);
            let conclusive = attempts.find(|outcome| !outcome.contains(INCONCLUSIVE));
            let outcome = conclusive.unwrap_or_else(|| attempt(ATTEMPTS - 1));
            let took = start.elapsed().as_secs_f64();
            let first_line = outcome.lines().next().unwrap_or_default();
            say(&format!(
                "the job that starts with cell {} took {took:.1} s: {first_line}",
                cells[0].name()
            ));
            outcomes[index].set(outcome).unwrap();
        }
    };
    thread::scope(|scope| (0..abreast).for_each(|_| drop(scope.spawn(work))));
    let mut wrong = Vec::new();
    for (cells, outcome) in jobs.iter().zip(outcomes) {
        let outcome = outcome.into_inner().unwrap();
        let first_line = outcome.lines().next().unwrap_or_default();
        for cell in cells {
            let (name, algorithm) = (cell.name(), cell.algorithm());
            say(&format!("{CELL}{place} | {name} | {algorithm} | {first_line}"));
        }
        if outcome.starts_with(WRONG) {
            wrong.push(format!("the job that starts with cell {}: {outcome}", cells[0].name()));
        }
    }
    assert!(wrong.is_empty(), "{} of {} jobs fail:\n{}", wrong.len(), jobs.len(), wrong.join("\n"));
}

fn text_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("a panic").to_owned()
}

#[test]
fn faults_end_in_right_data_or_agreed_errors() {
    if Network::switched(2).is_some() {
        let lasts = |cell: &Cell| LASTING.contains(&cell.fault) && !full();
        let cells = chosen(|cell| netem(cell.fault).is_none());
        let (lasting, others): (Vec<Cell>, Vec<Cell>) = cells.into_iter().partition(lasts);
        let mut jobs: Vec<Vec<Cell>> = others.into_iter().map(|cell| vec![cell]).collect();
        let job = |fault| lasting.iter().filter(|cell| cell.fault == fault).copied().collect();
        jobs.extend(LASTING.map(job).into_iter().filter(|cells: &Vec<Cell>| !cells.is_empty()));
        run_all("network", &jobs);
    }
}

/// Returns the jobs of the faults of `tc netem`. Returns none, and reports the test as skipped, if
/// the kernel lacks `tc netem`. The guest (the virtual machine of `cargo xtask guest`) has it.
fn netem_jobs() -> Option<Vec<Vec<Cell>>> {
    let network = Network::switched(2)?;
    if let Err(reason) = network.hosts[0].netem("delay 1ms") {
        assert!(std::env::var_os(NETEM).is_none(), "{NETEM} is set, but netem fails: {reason}");
        skip(&format!("this kernel has no netem ({reason}); use `cargo xtask guest`"));
        return None;
    }
    // In the guest, starting processes takes most of the time: all cells of a fault are one job.
    let job = |fault: &Fault| chosen(|cell| cell.fault == *fault);
    let netem = Fault::ALL.iter().filter(|fault| netem(**fault).is_some());
    Some(netem.map(job).filter(|cells| !cells.is_empty()).collect())
}

#[test]
fn netem_faults_end_in_right_data() {
    if let Some(jobs) = netem_jobs() {
        run_all("guest", &jobs);
    }
}

#[test]
fn the_page_has_every_cell() {
    let page = include_str!("../../docs/fault-matrix.md");
    let parts: Vec<&str> = page.split("\n## ").collect();
    let [_, network, guest, rdma, ref ofi @ .., _simulator] = parts[..] else {
        panic!("docs/fault-matrix.md has only {} parts", parts.len())
    };
    let (lossy, others): (Vec<Fault>, _) = Fault::ALL.iter().partition(|f| netem(**f).is_some());
    assert_page(network, &others);
    assert_page(guest, &lossy);
    assert_page(rdma, &rdma::FAULTS);
    for part in ofi {
        let title = part.lines().next().unwrap_or_default();
        let (is_local, in_guest) = (title.contains("on one host"), title.contains("virtual"));
        let crashes = ofi::RESETS_CRASH.iter().any(|version| title.contains(version));
        let is_taken = |fault: &Fault| match fault {
            _ if is_local => ofi::FAULTS.contains(fault),
            _ if in_guest => lossy.contains(fault),
            Fault::Broken => !crashes,
            _ => others.contains(fault),
        };
        assert_page(part, &Vec::from_iter(Fault::ALL.into_iter().filter(is_taken)));
    }
    assert_eq!(ofi.len(), 8, "tables of libfabric");
}
