//! Fault matrix in virtual time. In each cell, a few ranks with real control planes make one call
//! after the other, and a fault happens in the middle.

use std::io::Write;
use std::time::Duration;

use ccl_bootstrap::{ControlTiming, Verdict};
use ccl_core::admission::MessageLinks;
use ccl_core::time::Instant;
use ccl_core::types::{Collective, DataType};
use ccl_links::Links;
use ccl_links::mapped::MappedLinks;
use ccl_links::ports::CpuPorts;
use ccl_transport_sim::{Conditions, Cut, Operation, Process, Random, Step, World};

use crate::control::{ControlNet, FOREVER};
use crate::harness::{Buffers, Job, connect, full, mapped, messages, prepare, seeds};
use crate::table::{CELL, Cell, Fault, assert_page};

const RANKS: u32 = 4;
const PER_HOST: u32 = 2;
/// Number of calls that each rank makes in a job whose fault is harmless.
const CALLS: u64 = 12;
const SILENCE: Duration = Duration::from_secs(2);
const TIMING: ControlTiming =
    ControlTiming { heartbeat: Duration::from_millis(200), silence: SILENCE };
/// Duration of a short fault: less than the silence after which a rank counts as dead.
const MOMENT: Duration = Duration::from_millis(500);
/// Time after a fault within which every survivor has its error and the agreement.
const ENDED: Duration = Duration::from_secs(5);
/// Time within which every job has ended; a job with [`Fault::Delay`] has five times as long.
const BOUND: Duration = Duration::from_secs(12);
/// Time within which the control planes have connected.
const MET: Duration = Duration::from_millis(300);

/// Defect that is planted in one rank, to check that the run of a cell finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Plant {
    Nothing,
    /// One rank tells the others a number of completed operations that is one too low.
    CountsTooLittle,
    /// One rank takes an error for success.
    SwallowsErrors,
    /// One rank's error names the rank after the right one.
    BlamesAnother,
    /// One rank's output is changed before it is checked.
    SpoilsData,
    /// One rank waits forever.
    NeverNotices,
}

/// One call of a job, with the inputs and the expected outputs of all ranks.
struct Round {
    job: Job,
    inputs: Vec<Vec<u8>>,
    expected: Vec<Vec<u8>>,
}

/// Error of a rank: its time, and the rank that it names.
#[derive(Clone, Copy, Debug)]
struct Noted {
    at: Instant,
    named: u32,
}

type Call = Operation<CpuPorts>;

struct Member {
    rank: u32,
    links: Option<MessageLinks>,
    call: Option<(Call, Buffers)>,
    completed: u64,
    /// Time of the next call.
    ready: Instant,
    /// Pause after each call.
    late: Duration,
    error: Option<Noted>,
    wrong: Option<String>,
    plant: Plant,
}

impl Member {
    /// Does the work that can be done now.
    fn step(&mut self, rounds: &[Round], calls: u64, net: &mut ControlNet, now: Instant) {
        while self.error.is_none() && self.completed < calls && self.ready <= now {
            let round = &rounds[self.completed as usize % rounds.len()];
            if let Some(links) = self.links.take() {
                self.call = Some(begin(round, self.rank, links));
            }
            let Some((call, _)) = &mut self.call else { return };
            match call.step(now) {
                Step::Moved => {}
                Step::Waiting => return self.check_stall(round, net, now),
                Step::Ended(Ok(())) if self.end(round, net, now) => {}
                Step::Ended(Ok(())) => return self.check_stall(round, net, now),
                Step::Ended(Err(error)) => return self.fail(round, &error, net, now),
            }
        }
    }

    fn check_stall(&mut self, round: &Round, net: &ControlNet, now: Instant) {
        let failure = net.nodes[self.rank as usize].control.failure();
        if let Some(failure) = failure {
            self.end_badly(round, failure.rank, now);
        }
    }

    /// Ends a call successfully and returns true. Returns false, and leaves the call open, if the
    /// number of completed calls is frozen for the survivors' agreement after a failure. A call
    /// that is left open fails in `check_stall`, once the control plane reports the failure.
    fn end(&mut self, round: &Round, net: &ControlNet, now: Instant) -> bool {
        let counted = self.completed + u64::from(self.plant != Plant::CountsTooLittle);
        let ends = net.nodes[self.rank as usize].completed.finish(counted);
        if ends {
            self.end_well(round, now);
        }
        ends
    }

    fn end_well(&mut self, round: &Round, now: Instant) {
        let Some((call, buffers)) = self.call.take() else { return };
        self.links = call.into_ports().into_links().into_messages();
        let mut output = buffers.into_output();
        if self.plant == Plant::SpoilsData && !output.is_empty() {
            output[0] ^= 1;
        }
        self.completed += 1;
        if output != round.expected[self.rank as usize] {
            self.wrong.get_or_insert(format!("after call {}", self.completed));
        }
        self.ready = now + self.late;
    }

    fn fail(&mut self, round: &Round, error: &str, net: &mut ControlNet, now: Instant) {
        let control = &mut net.nodes[self.rank as usize].control;
        let gone = error.split_once("rank ").and_then(|(_, rest)| rest.split_once(' '));
        if let Some(Ok(gone)) = gone.map(|(rank, _)| rank.parse()) {
            control.report(gone, error.to_owned(), now);
        }
        let named = control.failure().map_or(self.rank, |failure| failure.rank);
        self.end_badly(round, named, now);
    }

    fn end_badly(&mut self, round: &Round, named: u32, now: Instant) {
        match self.plant {
            Plant::SwallowsErrors => {
                self.plant = Plant::Nothing;
                self.end_well(round, now);
            }
            Plant::NeverNotices => {}
            _ => self.note(named, now),
        }
    }

    fn note(&mut self, named: u32, at: Instant) {
        let named = if self.plant == Plant::BlamesAnother { (named + 1) % RANKS } else { named };
        self.error.get_or_insert(Noted { at, named });
    }
}

fn begin(round: &Round, rank: u32, links: MessageLinks) -> (Call, Buffers) {
    let input = &round.inputs[rank as usize];
    let links = Links::new(MappedLinks::default(), Some(links));
    let (execution, ports, buffers) = prepare(&round.job, rank, input, links);
    let mismatch = |ports: &CpuPorts| ports.mismatch().map(|mismatch| format!("{mismatch:?}"));
    (Operation::new(execution, ports, messages, mismatch), buffers)
}

/// Job of a cell with its fault.
struct Run {
    fault: Fault,
    world: World,
    net: ControlNet,
    members: Vec<Member>,
    rounds: Vec<Round>,
    /// Number of calls that each rank makes.
    calls: u64,
    random: Random,
    victim: u32,
    start: Instant,
    fault_at: Instant,
    injected: bool,
    /// True if the fault happened before the job was over.
    hit: bool,
}

fn rounds(cell: &Cell, seed: u64, random: &mut Random) -> Vec<Round> {
    let algorithm = ccl_core::algorithm::find(cell.collective, cell.algorithm()).unwrap();
    let channels = 1 + random.below(2) as u32;
    let round = |count: usize| {
        let mut job = Job::new(RANKS, algorithm, count);
        job.data_type = DataType::Uint32;
        job.per_host = PER_HOST;
        job.config.channels = channels;
        job.root = random.below(u64::from(RANKS)) as u32;
        if cell.fault == Fault::FullSendBuffer {
            (job.config.slots, job.config.budget_bytes) = (1, 1);
        }
        let inputs = job.inputs(seed ^ count as u64);
        let expected = mapped(&job, &inputs);
        Round { job, inputs, expected }
    };
    [3, 4000, 700].map(round).into()
}

/// Returns the conditions of a fault that happens at that time.
fn conditions(fault: Fault, victim: u32, at: Instant) -> Conditions {
    let mut conditions = Conditions { retransmissions_max: 12, ..Conditions::default() };
    let cut = |until| Some(Cut { ranks: (PER_HOST..RANKS).collect(), from: at, until });
    match fault {
        Fault::Loss => conditions.loss = 0.01,
        Fault::Delay => conditions.latency = Duration::from_millis(50),
        Fault::Reordering => conditions.reordering = 0.25,
        Fault::SlowReader => conditions.slow = vec![(victim, 20)],
        Fault::FullSendBuffer => conditions.depth_max = 1,
        Fault::LongCut => conditions.cut = cut(FOREVER),
        Fault::ShortCut => conditions.cut = cut(at + MOMENT),
        _ => {}
    }
    conditions
}

/// Returns all cells except those of connection resets. Resets are repaired by a layer below those
/// that the simulator runs.
fn cells() -> Vec<Cell> {
    Cell::all().into_iter().filter(|cell| cell.fault != Fault::Broken).collect()
}

/// Returns whether the fault ends the job.
fn is_deadly(fault: Fault) -> bool {
    matches!(fault, Fault::Kill | Fault::LongStop | Fault::LongCut)
}

impl Run {
    fn new(cell: &Cell, seed: u64, plant: Plant) -> Run {
        let fault = cell.fault;
        let mut random = Random::new(seed ^ 0x3a7);
        let rounds = rounds(cell, seed, &mut random);
        let world = World::new(RANKS, Conditions::default(), seed);
        let links = connect(&rounds[0].job, &world, &mut |_, lane| lane);
        let start = world.now() + MET;
        let victim = random.below(u64::from(RANKS)) as u32;
        let planted = (victim + 1) % RANKS;
        let fault_at = start + Duration::from_nanos(random.below(400_000));
        let conditions = conditions(fault, victim, fault_at);
        let mut net = ControlNet::new(RANKS, TIMING, world.now(), seed);
        net.cut.clone_from(&conditions.cut);
        net.latency = net.latency.max(conditions.latency);
        world.set_conditions(conditions);
        let member = |(rank, links)| Member {
            rank,
            links: Some(links),
            call: None,
            completed: 0,
            ready: start,
            late: match fault {
                Fault::SlowReader | Fault::FullSendBuffer if rank == victim => {
                    Duration::from_millis(1)
                }
                _ => Duration::ZERO,
            },
            error: None,
            wrong: None,
            plant: if rank == planted { plant } else { Plant::Nothing },
        };
        let members = (0..).zip(links).map(member).collect();
        let calls = if is_deadly(fault) { u64::MAX } else { CALLS };
        let (injected, hit) = (false, false);
        Run {
            fault,
            world,
            net,
            members,
            rounds,
            calls,
            random,
            victim,
            start,
            fault_at,
            injected,
            hit,
        }
    }

    /// Returns the ranks that the survivors must declare dead, and which of these still live.
    fn dead(&self) -> (Vec<u32>, Vec<u32>) {
        match self.fault {
            Fault::Kill => (vec![self.victim], Vec::new()),
            Fault::LongStop => (vec![self.victim], vec![self.victim]),
            // The half with the lowest rank goes on.
            Fault::LongCut => ((PER_HOST..RANKS).collect(), (PER_HOST..RANKS).collect()),
            _ => (Vec::new(), Vec::new()),
        }
    }

    fn survivors(&self) -> Vec<u32> {
        let (dead, _) = self.dead();
        (0..RANKS).filter(|rank| !dead.contains(rank)).collect()
    }

    /// Returns the time at which a stopped victim goes on.
    fn woken_at(&self) -> Instant {
        match self.fault {
            Fault::LongStop => self.fault_at + ENDED,
            Fault::ShortStop => self.fault_at + MOMENT,
            _ => self.fault_at,
        }
    }

    fn runs(&self, rank: u32) -> bool {
        let now = self.world.now();
        let stopped = self.fault_at <= now && now < self.woken_at();
        rank != self.victim || !stopped && !self.world.has_crashed(rank)
    }

    fn inject(&mut self) {
        let now = self.world.now();
        if self.injected || now < self.fault_at {
            return;
        }
        self.injected = true;
        self.hit = self.members.iter().any(|member| member.completed < self.calls);
        match self.fault {
            Fault::Kill => {
                self.world.crash_at(self.victim, now);
                self.world.advance(now);
                self.net.kill(self.victim, now);
            }
            Fault::Stranger | Fault::HalfOpen => {
                for rank in (0..RANKS).flat_map(|rank| [rank; 5]) {
                    let most = if self.fault == Fault::HalfOpen { 8 } else { 300 };
                    let length = self.random.below(most);
                    let bytes = (0..length).map(|_| self.random.bits() as u8).collect();
                    self.net.stranger(rank, bytes, now);
                }
            }
            _ => {}
        }
    }

    fn verdict(&self, rank: u32) -> Option<&Verdict> {
        self.net.nodes[rank as usize].control.verdict().ok().flatten()
    }

    fn is_over(&self) -> bool {
        if !is_deadly(self.fault) {
            return self.members.iter().all(|m| m.completed == self.calls || m.error.is_some());
        }
        let noticed = |rank: &u32| self.members[*rank as usize].error.is_some();
        let (_, outcasts) = self.dead();
        self.survivors().iter().all(|rank| noticed(rank) && self.verdict(*rank).is_some())
            && outcasts.iter().all(noticed)
    }

    /// Runs the job.
    fn run(&mut self) -> Result<(), String> {
        // Delay slows everything down.
        let bound = if self.fault == Fault::Delay { BOUND * 5 } else { BOUND };
        let end = self.start + bound;
        while !self.is_over() {
            self.inject();
            let now = self.world.now();
            self.net.deliver(now);
            let first = self.random.below(u64::from(RANKS)) as u32;
            for rank in (0..RANKS).map(|index| (first + index) % RANKS) {
                if self.runs(rank) {
                    self.net.turn(rank, now);
                    let member = &mut self.members[rank as usize];
                    member.step(&self.rounds, self.calls, &mut self.net, now);
                    self.net.turn(rank, now);
                }
            }
            let next = self.next_event().max(now + Duration::from_nanos(1));
            if next > end {
                return Err(format!("the job did not end in {bound:?}: {}", self.story()));
            }
            self.world.advance(next);
        }
        Ok(())
    }

    fn next_event(&self) -> Instant {
        let now = self.world.now();
        let ready = self.members.iter().map(|member| member.ready);
        let times = ready.chain([self.fault_at, self.woken_at()]).filter(|at| *at > now);
        let net = self.net.next_event(|rank| self.runs(rank));
        times.chain(net).chain(self.world.next_event()).min().unwrap_or(FOREVER)
    }

    fn story(&self) -> String {
        let each = self.members.iter().map(|member| {
            let Member { rank, completed, error, .. } = member;
            let control = &self.net.nodes[*rank as usize].control;
            format!(
                "rank {rank} completed {completed} calls, error {error:?}, verdict {:?}",
                control.verdict()
            )
        });
        let (victim, fault_at) = (self.victim, self.fault_at);
        format!(
            "the victim is rank {victim}, the fault comes at {fault_at:?}: {}",
            each.collect::<Vec<_>>().join("; ")
        )
    }

    /// Checks the results of the job; an error says what is wrong.
    fn judge(&self) -> Result<(), String> {
        for Member { rank, completed, error, wrong, .. } in &self.members {
            if let Some(wrong) = wrong {
                return Err(format!("rank {rank} has wrong data {wrong}"));
            }
            if !is_deadly(self.fault) && (*completed != self.calls || error.is_some()) {
                return Err(format!("rank {rank} did not complete: {}", self.story()));
            }
        }
        if is_deadly(self.fault) { self.judge_failure() } else { Ok(()) }
    }

    fn judge_failure(&self) -> Result<(), String> {
        let ((dead, outcasts), survivors) = (self.dead(), self.survivors());
        let wrong = |what: &str| Err(format!("{what}: {}", self.story()));
        let completed = |rank: &u32| self.members[*rank as usize].completed;
        let least = survivors.iter().map(completed).min().unwrap_or(0);
        for rank in survivors.iter().chain(&outcasts) {
            let outcast = outcasts.contains(rank);
            let since = if outcast { self.woken_at() } else { self.fault_at };
            let Some(error) = self.members[*rank as usize].error else {
                return wrong("an error is missing");
            };
            if error.at < self.fault_at || error.at > since + ENDED {
                return wrong("an error came before the fault or too late");
            }
            let fits = if outcast {
                survivors.contains(&error.named) || error.named == *rank
            } else {
                dead.contains(&error.named)
            };
            if !fits {
                return wrong("an error names the wrong rank");
            }
        }
        if outcasts.iter().any(|rank| self.verdict(*rank).is_some()) {
            return wrong("a dead rank has a verdict");
        }
        let verdicts: Vec<Option<&Verdict>> = survivors.iter().map(|r| self.verdict(*r)).collect();
        let Some(Some(first)) = verdicts.first() else {
            return wrong("the first survivor has no verdict");
        };
        let agrees = verdicts.iter().all(|verdict| verdict == &Some(*first));
        if !agrees || first.dead != dead || first.survivors != survivors {
            return wrong("the verdicts differ or name the wrong dead ranks");
        }
        if !dead.contains(&first.cause.rank) || first.last_completed != least {
            return wrong("the verdict has a wrong cause or a wrong last call");
        }
        let calls = self.rounds[0].job.algorithm.collective;
        let lead = if calls == Collective::Broadcast { 40 } else { 1 };
        if (0..RANKS).any(|rank| completed(&rank) > least + lead) {
            return wrong("a rank is too many calls ahead of the slowest survivor");
        }
        Ok(())
    }
}

/// Runs a cell. Returns whether the fault happened before the job was over.
fn run(cell: &Cell, seed: u64, plant: Plant) -> Result<bool, String> {
    let mut run = Run::new(cell, seed, plant);
    run.run()?;
    run.judge()?;
    Ok(run.hit)
}

#[test]
fn every_cell_ends_as_expected_under_many_seeds() {
    let all = cells();
    let mut ran = vec![0; all.len()];
    let (mut runs, mut hits) = (0, 0);
    let rounds = if full() { 6 } else { 1 };
    seeds(rounds * all.len() as u64, |seed| {
        let index = seed as usize % all.len();
        let cell = &all[index];
        let hit = run(cell, seed, Plant::Nothing);
        hits += u64::from(hit.map_err(|error| format!("{}: {error}", cell.name()))?);
        runs += 1;
        ran[index] += 1;
        Ok(())
    });
    assert!(runs == 1 || hits * 2 > runs, "only {hits} of {runs} faults met a running job");
    for (cell, ran) in all.iter().zip(ran) {
        let (name, algorithm) = (cell.name(), cell.algorithm());
        // L is the last operation that all survivors completed (docs/fault-matrix.md).
        let how = if is_deadly(cell.fault) { "errors, right name, same L" } else { "completes" };
        let line = format!("\n{CELL}simulator | {name} | {algorithm} | {how} ({ran} seeds)\n");
        std::io::stderr().write_all(line.as_bytes()).unwrap();
    }
}

#[test]
fn planted_defects_are_found() {
    let deadly = |cell: &Cell| is_deadly(cell.fault);
    let cells: Vec<Cell> = cells().into_iter().filter(deadly).collect();
    for plant in [
        Plant::CountsTooLittle,
        Plant::SwallowsErrors,
        Plant::BlamesAnother,
        Plant::SpoilsData,
        Plant::NeverNotices,
    ] {
        let found = |(seed, cell): (u64, &Cell)| run(cell, seed, plant).is_err();
        let found = (0..).zip(&cells).filter(|case| found(*case)).count();
        println!("{plant:?} is found in {found} of {} cells", cells.len());
        // Some cells can miss the defect. For example, after a long cut, the wrongly named rank can
        // be dead, too.
        assert!(found * 2 > cells.len(), "{plant:?}: found in only {found} of {}", cells.len());
    }
}

#[test]
fn the_page_has_every_cell() {
    let page = include_str!("../../../../docs/fault-matrix.md");
    let simulator = page.split_once("\n## The simulator").unwrap().1;
    let faults: Vec<Fault> = Fault::ALL.into_iter().filter(|f| *f != Fault::Broken).collect();
    assert_page(simulator, &faults);
}
