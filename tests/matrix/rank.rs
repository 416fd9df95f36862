//! A rank of the job that tests a cell of the fault matrix. The rank repeats collectives, checks
//! their data and reports the result. After a failure, it also reports the agreement.

use super::RANKS;
use ccl_core::types::{Collective, DataType, Rank};
use ccl_harness::processes::say;
use ferroccl::communicator::Call;
use ferroccl::{Communicator, Error, Reduction};
use rustix::process::{Signal, getpid, kill_process};
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Environment variable with the [`Plan`].
pub(super) const PLAN: &str = "FERROCCL_TEST_PLAN";
/// Environment variable with the [`OwnSignal`] of a rank; not set for other ranks.
pub(super) const OWN_SIGNAL: &str = "FERROCCL_TEST_OWN_SIGNAL";
/// Time within which a signal that a rank sends itself reaches all its threads.
const STOPPED_WITHIN: Duration = Duration::from_millis(200);
/// End of the line that a rank prints before it sends itself a signal; the line begins with the
/// time, by the system's clock.
pub(super) const ANNOUNCES_SIGNAL: &str = " ms: sends itself a signal";
/// Start of the line with the [`Report`].
pub(super) const REPORT: &str = "report ";
/// Longest time for the agreement of the survivors. A rank that is cut off from them waits for this
/// time.
const AGREED: Duration = Duration::from_secs(4);

/// Work of one rank.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Plan {
    /// Collectives and algorithms of the rounds, in order; each runs at least once.
    pub(super) steps: Vec<(String, String)>,
    pub(super) seed: u64,
    /// Minimum duration of the work, in milliseconds: rank 0 ends the work when this time is over
    /// and each step has run.
    pub(super) duration_ms: u64,
    /// Bytes of each call of a round.
    pub(super) sizes: Vec<usize>,
    /// Delay of this rank before each call, in milliseconds.
    pub(super) late_ms: u64,
}

/// Signal that a rank sends itself between two calls: the rank is then in none of its transport's
/// functions.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct OwnSignal {
    pub(super) signal: i32,
    /// Time from the end of the first round to the signal.
    pub(super) after: Duration,
}

/// Result of `agree()` on a survivor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Agreed {
    pub(super) last_completed: u64,
    pub(super) dead: Vec<Rank>,
    pub(super) survivors: Vec<Rank>,
    pub(super) cause: String,
}

/// Report of one rank.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Report {
    pub(super) rank: Rank,
    /// Number of completed operations.
    pub(super) completed: u64,
    /// Description of wrong data, if there was any.
    pub(super) wrong: Option<String>,
    /// First error.
    pub(super) error: Option<String>,
    /// Time of the first error, by the system's clock.
    pub(super) error_ms: u64,
    pub(super) agreed: Option<Agreed>,
    /// Reason why there is no agreement.
    pub(super) disagreed: Option<String>,
    /// Time of the agreement, or of its failure.
    pub(super) agreed_ms: u64,
    /// Error of one more operation after the agreement.
    pub(super) later: Option<String>,
}

/// Returns the system's clock in milliseconds.
pub(super) fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64
}

/// Reason for which a rank stops working.
enum Stop {
    Wrong(String),
    Failed(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Stop {
        Stop::Failed(error)
    }
}

pub(super) fn run() -> Result<(), Error> {
    let plan: Plan = serde_json::from_str(&std::env::var(PLAN).unwrap()).unwrap();
    let mut communicator = Communicator::from_environment()?;
    communicator.barrier()?;
    let mut report = Report { rank: communicator.rank(), completed: 1, ..Report::default() };
    match work(&mut communicator, &plan, &mut report.completed) {
        Ok(()) => {}
        Err(Stop::Wrong(text)) => report.wrong = Some(text),
        Err(Stop::Failed(error)) => {
            report.error_ms = now_ms();
            report.error = Some(error.to_string());
            ask(&mut communicator, &mut report);
        }
    }
    say(&format!("{REPORT}{}", serde_json::to_string(&report).unwrap()));
    Ok(())
}

/// Asks for the agreement after a failure and adds it to the report.
fn ask(communicator: &mut Communicator, report: &mut Report) {
    match communicator.agree(AGREED) {
        Ok(verdict) => {
            report.agreed = Some(Agreed {
                last_completed: verdict.last_completed,
                dead: verdict.dead,
                survivors: verdict.survivors,
                cause: verdict.cause.to_string(),
            });
        }
        Err(error) => report.disagreed = Some(error.to_string()),
    }
    report.agreed_ms = now_ms();
    report.later = communicator.barrier().err().map(|error| error.to_string());
}

/// Runs rounds of calls until rank 0 ends them.
fn work(communicator: &mut Communicator, plan: &Plan, completed: &mut u64) -> Result<(), Stop> {
    let begin = Instant::now();
    let own = std::env::var(OWN_SIGNAL).ok();
    let mut own: Option<OwnSignal> = own.map(|own| serde_json::from_str(&own).unwrap());
    let mut working_since = None;
    for round in 0u64.. {
        let (name, algorithm) = &plan.steps[round as usize % plan.steps.len()];
        let collective = super::COLLECTIVES.into_iter().find(|one| one.to_string() == *name);
        let collective = collective.unwrap();
        for turn in 0..plan.sizes.len() {
            // The sizes are rotated from round to round.
            let bytes = plan.sizes[(turn + (round ^ plan.seed) as usize) % plan.sizes.len()];
            std::thread::sleep(Duration::from_millis(plan.late_ms));
            let works_for = working_since.map(|since: Instant| since.elapsed());
            if let Some(own) = own.take_if(|own| works_for >= Some(own.after)) {
                say(&format!("{}{ANNOUNCES_SIGNAL}", now_ms()));
                let signal = Signal::from_named_raw(own.signal).unwrap();
                kill_process(getpid(), signal).unwrap();
                // The kernel may stop another thread of this process first, and this one
                // milliseconds later.
                std::thread::sleep(STOPPED_WITHIN);
            }
            operate(communicator, collective, algorithm, *completed, bytes)?;
            *completed += 1;
        }
        let all = round + 1 >= plan.steps.len() as u64;
        let enough = all && begin.elapsed() >= Duration::from_millis(plan.duration_ms);
        let mut vote = [u32::from(enough && communicator.rank() == 0)];
        communicator.all_reduce_in_place(&mut vote, Reduction::Max)?;
        *completed += 1;
        if round == 0 {
            say("working");
            working_since = Some(Instant::now());
        }
        if vote[0] == 1 {
            return Ok(());
        }
    }
    Ok(())
}

/// Returns content that depends on the operation, sender, receiver and index.
fn element(operation: u64, from: Rank, to: Rank, index: usize) -> u32 {
    let seed = operation << 16 | u64::from(from) << 8 | u64::from(to);
    let mixed = (seed ^ 0x2545_f491_4f6c_dd1d).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    (mixed as u32).wrapping_add((index as u32).wrapping_mul(2_654_435_761))
}

/// Makes one call whose larger buffer has about `bytes` bytes, and checks the result.
fn operate(
    communicator: &mut Communicator,
    collective: Collective,
    algorithm: &str,
    operation: u64,
    bytes: usize,
) -> Result<(), Stop> {
    let (rank, ranks) = (communicator.rank(), communicator.ranks());
    let root = (operation % u64::from(ranks)) as Rank;
    let blocks = if collective == Collective::AllToAll { ranks } else { 1 };
    let count = (bytes / 4 / blocks as usize).max(1);
    let block = |from: Rank, to: Rank| (0..count).map(move |i| element(operation, from, to, i));
    let (input, expected): (Vec<u32>, Vec<u32>) = match collective {
        Collective::AllReduce => (block(rank, 0).collect(), {
            let all = |i| (0..ranks).map(move |from| element(operation, from, 0, i));
            (0..count).map(|i| all(i).fold(0, u32::wrapping_add)).collect()
        }),
        Collective::AllToAll => (
            (0..ranks).flat_map(|to| block(rank, to)).collect(),
            (0..ranks).flat_map(|from| block(from, rank)).collect(),
        ),
        _ if rank == root => (block(root, 0).collect(), block(root, 0).collect()),
        _ => (Vec::new(), block(root, 0).collect()),
    };
    let mut output = vec![0u32; expected.len()];
    let algorithm = Some(algorithm);
    let call = Call { root, algorithm, ..Call::even(collective, DataType::Uint32, count) };
    communicator.call(
        &call,
        bytemuck::cast_slice(&input),
        bytemuck::cast_slice_mut(&mut output),
    )?;
    match output.iter().zip(&expected).position(|(got, wanted)| got != wanted) {
        None => Ok(()),
        Some(at) => Err(Stop::Wrong(format!(
            "operation {operation} of {bytes} bytes: element {at} of {}",
            expected.len()
        ))),
    }
}

#[test]
fn elements_of_different_operations_senders_receivers_or_indices_differ() {
    let mut all = Vec::new();
    for (operation, from) in (0..50).flat_map(|n| (0..RANKS).map(move |from| (n, from))) {
        all.extend((0..RANKS).flat_map(|to| [0, 1, 1 << 20].map(|i| (operation, from, to, i))));
    }
    let mut content: Vec<u32> =
        all.iter().map(|(n, from, to, i)| element(*n, *from, *to, *i)).collect();
    content.sort_unstable();
    content.dedup();
    assert_eq!(content.len(), all.len());
}
