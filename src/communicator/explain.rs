//! Explanation of a call: the plan and its reasons, without making the call.

use std::fmt;

use ccl_core::algorithm::{self, Params};
use ccl_core::config::Config;
use ccl_core::execution::CallParams;
use ccl_core::lower::{Alias, lower_for_slots};
use ccl_core::queue_pairs::{Situation, Striping, Tier};
use ccl_core::schedule::RankSchedule;
use ccl_core::topology::Hosts;
use ccl_core::types::Rank;
use serde::Serialize;

use super::engine::{check_message, choice, message_bytes};
use super::expected::{Expected, sharing};
use super::prediction_cache::PredictionCache;
use super::segment::Segment;
use super::{Call, CallError, Communicator, Error};
use crate::transports::Choice;

/// The plan of a call, for people (`Display`) and programs (`Serialize`).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Explanation {
    /// The collective.
    pub collective: String,
    /// Number of ranks of the communicator.
    pub ranks: u32,
    /// Number of hosts of the ranks; ranks that share no memory count as hosts of their own.
    pub hosts: u32,
    /// The algorithm taken.
    pub algorithm: String,
    /// Largest fraction of a slot that a message fills: empty for a whole slot, `/4` for a quarter.
    pub slot_fraction: String,
    /// Summary of the algorithm.
    pub summary: String,
    /// The reason for the algorithm.
    pub reason: String,
    /// The rule that chose the algorithm, in the format of `ferroccl explain --rules`; none if no
    /// rule chose it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// The other algorithms of the collective.
    pub alternatives: Vec<String>,
    /// Durations of the call, one per variant, the fastest first; empty unless the caller fills the
    /// list in with the result of [`super::expected()`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub expected: Vec<Expected>,
    /// The transport that joins the ranks.
    pub transport: String,
    /// The reason for the transport between hosts, if `auto` chose it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transport_reason: Option<String>,
    /// RDMA devices of this rank: address, packet size, and the traffic class of credits and CTS,
    /// with the reason for that class. Empty without a communicator.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<String>,
    /// Distribution of messages over the queue pairs of a link, and the rule that sets it; none
    /// over other transports than verbs.
    pub striping: Option<StripingPlan>,
    /// Parallel channels per pair of ranks.
    pub channels: u32,
    /// Slots of each link; between hosts, as many as a link's equal share of the budget holds.
    pub slots: u32,
    /// Largest payload of one slot, in bytes.
    pub slot_bytes: usize,
    /// Largest payload of a message of this call, in bytes: a slot, or a fraction of a slot.
    pub message_bytes: usize,
    /// Number of times that the schedule is repeated to cover the buffers.
    pub chunks: usize,
    /// Largest number of elements of each part in one chunk.
    pub chunk_elements: usize,
    /// Number of ops and loops in this rank's schedule; the body of a loop counts once.
    pub schedule_ops: usize,
    /// Bytes of scratch memory of this rank.
    pub scratch_bytes: usize,
    /// Bytes of shared memory of this rank.
    pub shared_bytes: usize,
    /// The formula behind `shared_bytes`.
    pub shared_formula: String,
    /// Bytes that this rank uses for connections to other hosts.
    pub network_bytes: usize,
    /// The formula behind `network_bytes`.
    pub network_formula: String,
    /// Notes from joining: on defaults that were changed to suit the network, on slots that the
    /// budget made shorter or fewer, and on an oversubscribed network.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// True if the bits of the result depend on nothing but the data.
    pub deterministic: bool,
    /// This rank's schedule.
    pub schedule: String,
    /// Program that the schedule was lowered to.
    pub program: String,
}

/// Distribution of messages over queue pairs, and its reason.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StripingPlan {
    /// The distribution.
    pub striping: Striping,
    /// The rule of the policy that sets the distribution.
    pub rule: String,
    /// Number of ranks that this rank sends to.
    pub fan_out: u32,
}

impl Communicator {
    /// Returns the plan of a call. Nothing is sent.
    ///
    /// # Errors
    ///
    /// The errors of the call itself, for wrong arguments.
    pub fn explain(&self, call: &Call<'_>) -> Result<Explanation, Error> {
        let wiring = self.engine.wiring.as_ref();
        let config = wiring.map_or(self.config(), |wiring| &wiring.config);
        Ok(Explanation {
            note: self.note(),
            transport_reason: wiring.and_then(|wiring| wiring.why.clone()),
            devices: wiring.map_or_else(Vec::new, |wiring| wiring.rdma.clone()),
            ..explain(config, self.rank(), &self.engine.hosts, call)?
        })
    }
}

impl Explanation {
    /// Returns the chosen variant: the algorithm and the slot fraction, such as `ring/4`.
    #[must_use]
    pub fn variant(&self) -> String {
        format!("{}{}", self.algorithm, self.slot_fraction)
    }
}

/// Returns the plan of a call on `rank` of the ranks on `hosts`, without a communicator.
///
/// # Errors
///
/// The errors of the call itself, for wrong arguments.
pub fn explain(
    config: &Config,
    rank: Rank,
    hosts: &Hosts,
    call: &Call<'_>,
) -> Result<Explanation, Error> {
    let ranks = hosts.ranks();
    if rank >= ranks {
        return Err(CallError::NoSuchRank { rank, ranks }.into());
    }
    let hosts = &sharing(config, hosts);
    let (input_bytes, output_bytes) = call.check(rank, ranks)?;
    let segment = Segment::new(hosts, rank, config);
    let mut predictions = PredictionCache::default();
    let choice = choice(config, &segment, hosts, call, &mut predictions)?;
    let params = Params { rank, ranks, root: call.root, hosts };
    let schedule = (choice.algorithm.schedule)(&params);
    let program = lower_for_slots(&schedule, Alias::APART, segment.slots_least());
    check_message(&program, segment.shape.slot_bytes)?;
    let slot_bytes = message_bytes(choice.slot_fraction, segment.shape.slot_bytes, &program);
    let numbers = numbers(call, rank, slot_bytes, &schedule)?;
    let longest = numbers.input.longest_part().max(numbers.output.longest_part());
    let chunk_elements = numbers.chunk_elements(&program);
    let other = |name: &&str| *name != choice.algorithm.name;
    let names = algorithm::of(call.collective).map(|algorithm| algorithm.name);
    let striping = (Choice::of(config).stripes() && hosts.count() > 1).then(|| {
        let bytes = input_bytes.max(output_bytes);
        let (collective, fan_out) = (call.collective, schedule.fan_out());
        let situation = Situation { collective, bytes, fan_out, tier: Tier::Network };
        let policy = config.policy();
        StripingPlan {
            striping: policy.choose(&situation),
            rule: policy.reason(&situation),
            fan_out,
        }
    });
    let (network_bytes, network_formula) = segment.network();
    Ok(Explanation {
        collective: call.collective.to_string(),
        ranks,
        algorithm: choice.algorithm.name.to_owned(),
        slot_fraction: choice.slot_fraction.to_string(),
        summary: choice.algorithm.summary.to_owned(),
        reason: choice.reason.to_owned(),
        rule: choice.rule.map(ToString::to_string),
        alternatives: names.filter(other).map(str::to_owned).collect(),
        expected: Vec::new(),
        hosts: hosts.count(),
        transport: transports(hosts, config).to_owned(),
        transport_reason: None,
        devices: Vec::new(),
        striping,
        channels: segment.channels,
        slots: segment.shape.slots,
        slot_bytes: segment.shape.slot_bytes,
        message_bytes: slot_bytes,
        chunks: longest.div_ceil(chunk_elements),
        chunk_elements,
        schedule_ops: schedule.size(),
        scratch_bytes: numbers.scratch_bytes(&program) * segment.channels as usize,
        shared_bytes: if ranks == 1 { 0 } else { segment.bytes() },
        shared_formula: segment.formula(),
        network_bytes,
        network_formula,
        note: None,
        deterministic: config.deterministic,
        schedule: schedule.to_string(),
        program: program.to_string(),
    })
}

/// Returns the name of the transports that join the ranks.
fn transports(hosts: &Hosts, config: &Config) -> &'static str {
    let choice = Choice::of(config);
    match (hosts.ranks(), hosts.count()) {
        (1, _) => "self",
        (_, 1) => Choice { network: None, ..choice }.name(),
        (ranks, count) if ranks == count => Choice { host: None, ..choice }.name(),
        _ => choice.name(),
    }
}

fn numbers(
    call: &Call<'_>,
    rank: Rank,
    slot_bytes: usize,
    schedule: &RankSchedule,
) -> Result<CallParams, Error> {
    let width = call.data_type.bytes();
    let seat = call.seat(rank, schedule.ranks);
    let layouts = seat.layouts(call.sizes, schedule.split, (64 / width).max(1));
    let (input, output) = layouts.map_err(CallError::Shape)?;
    Ok(CallParams { input, output, element_bytes: width, slot_bytes })
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Explanation { collective, ranks, hosts, .. } = self;
        let on_hosts = if *hosts > 1 { format!(" on {hosts} hosts") } else { String::new() };
        writeln!(f, "{collective} over {ranks} ranks{on_hosts}: {}", self.variant())?;
        writeln!(f, "  what       {}", self.summary)?;
        writeln!(f, "  why        {}", self.reason)?;
        if let Some(rule) = &self.rule {
            // Shows the rule's conditions alone: "why" gives the reason for the choice.
            let conditions = rule.split(" (").next().unwrap_or(rule);
            writeln!(f, "  rule       {conditions}")?;
        }
        writeln!(f, "  instead    {}", self.alternatives.join(", "))?;
        for Expected { variant, time_us, is_measured } in &self.expected {
            let how = if *is_measured { "measured" } else { "predicted" };
            writeln!(f, "  {how:<9}  {time_us:>10.2} us by {variant}")?;
        }
        let Explanation { transport, channels, slots, slot_bytes, .. } = self;
        writeln!(
            f,
            "  transport  {transport}, channels: {channels}, slots: {slots} of {slot_bytes} bytes"
        )?;
        if let Some(why) = &self.transport_reason {
            writeln!(f, "             {why}")?;
        }
        for device in &self.devices {
            writeln!(f, "  device     {device}")?;
        }
        if let Some(StripingPlan { striping, rule, fan_out }) = &self.striping {
            let ranks = if *fan_out == 1 { "rank" } else { "ranks" };
            writeln!(
                f,
                "  striping   {striping}, sending to {fan_out} {ranks}, by the rule \"{rule}\""
            )?;
        }
        let Explanation { chunks, chunk_elements, schedule_ops, message_bytes, .. } = self;
        writeln!(
            f,
            "  chunks     {chunks} of up to {chunk_elements} elements per part, messages of up to \
             {message_bytes} bytes; {schedule_ops} ops"
        )?;
        writeln!(f, "  scratch    {} bytes on this rank", self.scratch_bytes)?;
        writeln!(f, "  shared     {}", self.shared_formula)?;
        if self.hosts > 1 {
            writeln!(f, "  network    {}", self.network_formula)?;
        }
        if let Some(note) = &self.note {
            writeln!(f, "  adjusted   {note}")?;
        }
        let mode = if self.deterministic { "on" } else { "off" };
        writeln!(f, "  determin.  {mode}")?;
        writeln!(f, "\nschedule: {}", self.schedule)?;
        write!(f, "{}", self.program)
    }
}
