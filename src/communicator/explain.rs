//! Says what would be done and why: the plan of a call, without making it.

use std::fmt;

use ccl_core::algorithm::{self, Params};
use ccl_core::config::Config;
use ccl_core::cost::models;
use ccl_core::cost::predict::{self, Programs};
use ccl_core::execution::Numbers;
use ccl_core::lower::{Alias, lower_for_slots};
use ccl_core::schedule::shape::Sizes;
use ccl_core::spread::{Situation, Spread, Tier};
use ccl_core::topology::Hosts;
use ccl_core::types::Rank;
use serde::Serialize;

use super::call::usage;
use super::engine::choice;
use super::segment::Segment;
use super::{Call, Communicator, Error};

/// What is taken for a network of which nothing is known.
const NETWORK_BYTES_PER_S: f64 = 10e9;

/// Of more, it would take too long to say.
const EXPECTED_RANKS_MAX: u32 = 8;

/// The plan of a call, for people (`Display`) and programs (`Serialize`).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Explanation {
    /// The collective.
    pub collective: String,
    /// Ranks of the communicator.
    pub ranks: u32,
    /// Hosts that they are on.
    pub hosts: u32,
    /// The algorithm taken.
    pub algorithm: String,
    /// What it does.
    pub summary: String,
    /// Why it was taken.
    pub reason: String,
    /// The other algorithms there are.
    pub alternatives: Vec<String>,
    /// How long each of them would take, the fastest first; only where [`expected`] was asked.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub expected: Vec<Expected>,
    /// The transport that joins the ranks.
    pub transport: String,
    /// How messages are spread over the queue pairs of a link, and the rule that says so; none over
    /// other transports than verbs.
    pub spread: Option<Spreading>,
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
    /// Memory that this rank uses for connections to other hosts.
    pub network_bytes: usize,
    /// The formula behind `network_bytes`.
    pub network_formula: String,
    /// Whether the bits depend on nothing but the data.
    pub deterministic: bool,
    /// This rank's schedule.
    pub schedule: String,
    /// What it was lowered to.
    pub program: String,
}

/// How long an algorithm takes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Expected {
    /// Its name.
    pub algorithm: String,
    /// In microseconds.
    pub time_us: f64,
    /// Whether that was measured (`FERROCCL_TUNING`), or is predicted by a walk through all ranks'
    /// programs with figures of the order of what this library's links take.
    pub is_measured: bool,
}

/// How messages are spread, and why.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Spreading {
    /// How.
    pub spread: Spread,
    /// The rule of the policy that says so.
    pub rule: String,
    /// Ranks that this one sends to.
    pub fan_out: u32,
}

impl Communicator {
    /// The plan of a call. Local: nothing is sent.
    ///
    /// # Errors
    ///
    /// As the call itself, for what is wrong with its arguments.
    pub fn explain(&self, call: &Call<'_>) -> Result<Explanation, Error> {
        explain(self.config(), self.rank(), &self.engine.hosts, call)
    }
}

/// The plan that `rank` of the ranks on `hosts` would take for a call, without any of them.
///
/// # Errors
///
/// As the call itself, for what is wrong with its arguments.
pub fn explain(
    config: &Config,
    rank: Rank,
    hosts: &Hosts,
    call: &Call<'_>,
) -> Result<Explanation, Error> {
    let ranks = hosts.ranks();
    if rank >= ranks {
        return Err(usage(format!("there is no rank {rank} among {ranks}")));
    }
    let (input_bytes, output_bytes) = call.check(rank, ranks)?;
    let segment = Segment::new(hosts, rank, config);
    let choice = choice(config, &segment, hosts, call)?;
    let params = Params { rank, ranks, root: call.root, hosts };
    let schedule = (choice.algorithm.schedule)(&params);
    let program = lower_for_slots(&schedule, Alias::APART, segment.shape.slots);
    let numbers = numbers(call, rank, &segment, schedule.split)?;
    let longest = numbers.input.longest_part().max(numbers.output.longest_part());
    let piece_elements = numbers.piece_elements(&program);
    let other = |name: &&str| *name != choice.algorithm.name;
    let names = algorithm::of(call.collective).map(|algorithm| algorithm.name);
    let alone = ranks == 1;
    let spread = (config.transport == "verbs" && hosts.count() > 1).then(|| {
        let bytes = input_bytes.max(output_bytes);
        let (collective, fan_out) = (call.collective, schedule.fan_out());
        let situation = Situation { collective, bytes, fan_out, tier: Tier::Network };
        let policy = &config.ib_policy;
        Spreading { spread: policy.choose(&situation), rule: policy.reason(&situation), fan_out }
    });
    let (network_bytes, network_formula) = segment.network();
    Ok(Explanation {
        collective: call.collective.to_string(),
        ranks,
        algorithm: choice.algorithm.name.to_owned(),
        summary: choice.algorithm.summary.to_owned(),
        reason: choice.reason.to_owned(),
        alternatives: names.filter(other).map(str::to_owned).collect(),
        expected: Vec::new(),
        hosts: hosts.count(),
        transport: transports(hosts, config).to_owned(),
        spread,
        channels: segment.channels,
        slots: segment.shape.slots,
        slot_bytes: segment.shape.slot_bytes,
        pieces: longest.div_ceil(piece_elements),
        piece_elements,
        schedule_ops: schedule.size(),
        scratch_bytes: numbers.scratch_bytes(&program) * segment.channels as usize,
        shared_bytes: if alone { 0 } else { segment.bytes() },
        shared_formula: segment.formula(),
        network_bytes,
        network_formula,
        deterministic: config.deterministic,
        schedule: schedule.to_string(),
        program: program.to_string(),
    })
}

/// How long a call whose blocks are all alike would take by each algorithm, the fastest first. It
/// takes some milliseconds to find out for 8 ranks; among more nothing is said.
///
/// # Errors
///
/// As the call itself, for what is wrong with its arguments.
pub fn expected(config: &Config, hosts: &Hosts, call: &Call<'_>) -> Result<Vec<Expected>, Error> {
    let Sizes::Even(count) = call.sizes else { return Ok(Vec::new()) };
    if hosts.ranks() > EXPECTED_RANKS_MAX || call.collective.even_blocks(1).is_none() {
        return Ok(Vec::new());
    }
    let (input_bytes, output_bytes) = call.check(0, hosts.ranks())?;
    let bytes = input_bytes.max(output_bytes);
    let Segment { channels, shape, .. } = Segment::new(hosts, 0, config);
    let model = models::processors(NETWORK_BYTES_PER_S);
    let measured = |name: &str| {
        let point = config.tuning.point(call.collective, (hosts.ranks(), hosts.count()), bytes);
        let times = point.into_iter().flat_map(|point| &point.times);
        times.into_iter().find(|time| time.algorithm == name).map(|time| time.median_ns as f64)
    };
    let mut all = Vec::new();
    for algorithm in algorithm::of(call.collective) {
        let programs = Programs::new(algorithm, call.root, hosts.clone(), shape.slots);
        let element_bytes = call.data_type.bytes();
        let walked = predict::Call {
            programs: &programs,
            count,
            element_bytes,
            buffer_bytes: bytes,
            channels,
            slot_bytes: shape.slot_bytes,
        };
        let measured = measured(algorithm.name);
        let predicted = || predict::predict(&walked, &model).map(|seen| seen.time_ns);
        let time_ns = measured.map_or_else(predicted, Ok);
        let time_us = time_ns.map_err(|error| usage(error.to_string()))? / 1e3;
        let algorithm = algorithm.name.to_owned();
        all.push(Expected { algorithm, time_us, is_measured: measured.is_some() });
    }
    all.sort_by(|one, other| one.time_us.total_cmp(&other.time_us));
    Ok(all)
}

/// The transports that join the ranks.
fn transports(hosts: &Hosts, config: &Config) -> &'static str {
    let over_verbs = config.transport == "verbs";
    match (hosts.ranks(), hosts.count()) {
        (1, _) => "self",
        (_, 1) => "shm",
        (ranks, count) if ranks == count => {
            if over_verbs {
                "verbs"
            } else {
                "tcp"
            }
        }
        _ => {
            if over_verbs {
                "shm+verbs"
            } else {
                "shm+tcp"
            }
        }
    }
}

fn numbers(call: &Call<'_>, rank: Rank, segment: &Segment, split: u32) -> Result<Numbers, Error> {
    let width = call.data_type.bytes();
    let seat = call.seat(rank, segment.ranks);
    let (input, output) = seat
        .layouts(call.sizes, split, (64 / width).max(1))
        .map_err(|error| usage(error.to_string()))?;
    let slot_bytes = segment.shape.slot_bytes;
    Ok(Numbers { input, output, element_bytes: width, slot_bytes })
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Explanation { collective, ranks, hosts, algorithm, .. } = self;
        let place = if *hosts > 1 { format!(" on {hosts} hosts") } else { String::new() };
        writeln!(f, "{collective} over {ranks} ranks{place}: {algorithm}")?;
        writeln!(f, "  what       {}", self.summary)?;
        writeln!(f, "  why        {}", self.reason)?;
        writeln!(f, "  instead    {}", self.alternatives.join(", "))?;
        for Expected { algorithm, time_us, is_measured } in &self.expected {
            let how = if *is_measured { "measured" } else { "predicted" };
            writeln!(f, "  {how:<9}  {time_us:>10.2} us by {algorithm}")?;
        }
        let Explanation { transport, channels, slots, slot_bytes, .. } = self;
        writeln!(
            f,
            "  transport  {transport}, channels: {channels}, slots: {slots} of {slot_bytes} bytes"
        )?;
        if let Some(Spreading { spread, rule, fan_out }) = &self.spread {
            writeln!(f, "  spread     {spread}, sending to {fan_out}, by the rule \"{rule}\"")?;
        }
        let Explanation { pieces, piece_elements, schedule_ops, .. } = self;
        writeln!(
            f,
            "  pieces     {pieces} of up to {piece_elements} elements per part; {schedule_ops} ops"
        )?;
        writeln!(f, "  scratch    {} bytes on this rank", self.scratch_bytes)?;
        writeln!(f, "  shared     {}", self.shared_formula)?;
        if self.hosts > 1 {
            writeln!(f, "  network    {}", self.network_formula)?;
        }
        let mode = if self.deterministic { "on" } else { "off" };
        writeln!(f, "  determin.  {mode}")?;
        writeln!(f, "\nschedule: {}", self.schedule)?;
        write!(f, "{}", self.program)
    }
}
