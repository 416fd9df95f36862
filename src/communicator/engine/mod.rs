//! Engine of a communicator: plans and binds calls, and drives their executions over the ports.

mod watch;
mod wired;

use std::sync::Arc;
use std::time::{Duration, Instant};

use ccl_core::admission::{MessageLinks, Peek};
use ccl_core::algorithm::{Algorithm, Params};
use ccl_core::config::Config;
use ccl_core::execution::{CallParams, Execution, Progress};
use ccl_core::lower::{Alias, Program, lower_for_slots};
use ccl_core::schedule::shape::Sizes;
use ccl_core::schedule::{Layout, RankSchedule};
use ccl_core::select::variant::{self, SlotFraction, Variant};
use ccl_core::select::{Choice, Situation, choose};
use ccl_core::topology::Hosts;
use ccl_core::transport::TransportError;
use ccl_core::types::{Collective, DataType, Rank, ReduceOp};
use ccl_kernels_cpu::{Kernel, Scalar};
use ccl_links::Links;
use ccl_links::ports::{CallMemory, CpuPorts};
use ccl_memory::Region;
use ccl_socket::fork;

use super::call::{Buffers, Call};
use super::error::{CallError, Error};
use super::group::Messages;
use super::prediction_cache::PredictionCache;
use super::segment::Segment;
use super::wait::{Pause, PollCost, Wait, WaitPolicy};
use super::wiring::Wiring;
use crate::bootstrap::ControlPlane;
use crate::clock;
use crate::recorder::{CallRecord, MESSAGES, Sent, Shown, Timed, Writer};
use watch::StallDetector;

pub(super) use watch::{Lost, sentence};

/// Largest number of plans that are kept; a new plan replaces the least recently used one.
const PLANS_MAX: usize = 64;
/// Longest sleep without a check of progress; bounds the cost of a missed doorbell.
const SLEEP_MAX: Duration = Duration::from_millis(5);
/// Longest sleep if peers on this host cannot end the sleep.
const SLEEP_MIXED: Duration = Duration::from_micros(200);
/// Largest number of peeks at the links before the next look for progress.
const PEEKS_MAX: u32 = 64;
/// Tag of point-to-point messages, which belong to no numbered call.
pub(super) const MESSAGE_TAG: u64 = u64::MAX;

/// Key of a plan: the calls that it fits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PlanKey {
    Collective { algorithm: &'static str, collective: Collective, root: Rank, in_place: bool },
    Group { sends: Vec<Rank>, recvs: Vec<Rank> },
}

/// A prepared program, with the numbers (layouts and sizes) of the last call that used it.
#[derive(Debug)]
pub(super) struct Plan {
    key: PlanKey,
    split: u32,
    /// Number of ranks that this rank sends to.
    fan_out: u32,
    pub(super) execution: Execution,
    numbers: CallParams,
    /// True if the execution's last run had these numbers: a new run then needs no binding.
    is_bound: bool,
    used: u64,
    /// Number of queued calls that use the plan. The plan is replaced only if there are none.
    pins: u32,
}

/// The last call, planned and checked. If the same call follows, only its buffers are checked.
#[derive(Debug)]
struct PlannedCall {
    collective: Collective,
    data_type: DataType,
    op: ReduceOp,
    scalar: [u8; 8],
    root: Rank,
    /// Count of a call with equal blocks ([`Sizes::Even`]); none for other calls, which are
    /// prepared each time.
    count: Option<usize>,
    in_place: bool,
    /// Variant that the call asks for.
    variant: Option<Variant>,
    /// Number of the algorithm ([`registry_number`]) and slot fraction in the call's record; 0 and
    /// the whole slot if ranks do not compare the choice.
    asked: (u8, SlotFraction),
    plan: usize,
    kernel: Kernel,
    input_bytes: usize,
    output_bytes: usize,
    /// The call's kind, as records encode it.
    kind: u64,
    /// Bytes of the larger buffer and number of the algorithm, as the recording encodes them.
    size: u64,
}

impl PlannedCall {
    #[inline]
    fn is(&self, call: &Call<'_>, in_place: bool) -> bool {
        matches!(call.sizes, Sizes::Even(count) if Some(count) == self.count)
            && self.collective == call.collective
            && self.data_type == call.data_type
            && self.op == call.op
            && self.root == call.root
            && self.scalar == call.scalar
            && self.in_place == in_place
            && self.asks_like(call.algorithm)
    }

    fn asks_like(&self, text: Option<&str>) -> bool {
        match (self.variant, text) {
            (None, None) => true,
            (Some(Variant { algorithm, slot_fraction }), Some(text)) => {
                variant::split(text) == Ok((algorithm, slot_fraction))
            }
            _ => false,
        }
    }
}

/// Everything that moves payload; used by one thread at a time.
#[derive(Debug)]
pub(super) struct Engine {
    pub(super) rank: Rank,
    pub(super) ranks: u32,
    /// Groups of ranks that share memory.
    pub(super) hosts: Hosts,
    pub(super) config: Config,
    pub(super) control: Arc<ControlPlane>,
    /// Recorder of this rank's operations.
    pub(super) writer: Option<Writer>,
    /// Recorder with times, instead of `writer`, if calls are timed.
    pub(super) timed: Option<Box<Timed>>,
    pub(super) segment: Segment,
    pub(super) ports: CpuPorts,
    pub(super) wait_policy: WaitPolicy,
    pub(super) own_record: Option<Region>,
    /// Memory in which each peer that shares memory with this rank publishes the record of its
    /// call, by rank; none for this rank and for ranks that share no memory with it.
    pub(super) peer_records: Vec<Option<Region>>,
    /// The connections behind the links; none for a single rank.
    pub(super) wiring: Option<Wiring>,
    /// Peers whose connection is gone.
    pub(super) lost: Vec<Lost>,
    pub(super) plans: Vec<Plan>,
    stall_detector: StallDetector,
    recent: Option<PlannedCall>,
    /// Index of the plan of the last group that has sends, and index of the plan of the last group
    /// that has receives only.
    last_groups: [usize; 2],
    predictions: PredictionCache,
    /// Kernel of messages, which are bytes.
    byte_kernel: Kernel,
    scratch: Region,
    sequence: u64,
    uses: u64,
    /// Time since which polls of the started call have moved nothing.
    idle_since: Option<Instant>,
    /// Fork generation ([`fork::generation`]) of the process that made the engine.
    generation: u32,
}

impl Drop for Engine {
    fn drop(&mut self) {
        if self.generation != fork::generation() {
            self.ports.abandon();
        }
    }
}

/// Guard that unbinds the call's buffers on every exit path, panics included. A panic can come from
/// the application's tracing subscriber.
pub(super) struct UnbindGuard<'e> {
    pub(super) engine: &'e mut Engine,
    /// True if the thread was unwinding before the call: such calls are allowed.
    unwinding: bool,
}

impl<'e> UnbindGuard<'e> {
    #[inline]
    pub(super) fn new(engine: &'e mut Engine) -> UnbindGuard<'e> {
        UnbindGuard { engine, unwinding: std::thread::panicking() }
    }
}

impl Drop for UnbindGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        if std::thread::panicking() && !self.unwinding {
            // Without a report, the other ranks wait, or only see this rank's connections end.
            let Engine { control, rank, .. } = &*self.engine;
            control.report(*rank, "this rank panicked in the middle of a call");
        }
        self.engine.ports.unbind();
    }
}

/// A call that was checked and planned, and may be in progress.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) plan: usize,
    pub(super) what: CallKind,
    memory: Memory,
    /// Bytes of the call's larger buffer, or of all messages of the group.
    bytes: usize,
    /// Values that the recording shows of the call.
    shown: Shown,
    /// Numbers of a queued call: meanwhile, other calls can use its plan with other numbers.
    numbers: Option<Box<CallParams>>,
}

/// Memory of a call's operands.
#[derive(Clone, Copy, Debug)]
enum Memory {
    Buffers { input: (*const u8, usize), output: (*mut u8, usize), kernel: Kernel, tag: u64 },
    Addresses { kernel: Kernel },
}

// SAFETY: the caller of `begin` vouches for the buffers that the pointers refer to, even if the
// communicator is moved before the call ends; only one thread at a time uses the pointers.
unsafe impl Send for Memory {}

/// Name of a call or group, for error messages.
#[derive(Clone, Copy, Debug)]
pub(super) enum CallKind {
    Call(CallRecord),
    Messages { sends: usize, recvs: usize },
}

impl std::fmt::Display for CallKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            CallKind::Call(record) => write!(f, "{record}"),
            CallKind::Messages { sends, recvs } => write!(f, "{sends} sends and {recvs} receives"),
        }
    }
}

impl Engine {
    /// Makes an engine whose links are up.
    pub(super) fn new(
        control: Arc<ControlPlane>,
        config: Config,
        hosts: Hosts,
        segment: Segment,
        links: Links,
        wait_policy: WaitPolicy,
    ) -> Engine {
        let (rank, ranks) = (control.rank(), control.ranks());
        let timed = control.recorder().timed();
        Engine {
            rank,
            ranks,
            hosts,
            config,
            writer: control.recorder().writer().filter(|_| timed.is_none()),
            timed,
            control,
            segment,
            ports: CpuPorts::new(links, ranks as usize),
            wait_policy,
            own_record: None,
            peer_records: Vec::new(),
            wiring: None,
            lost: Vec::new(),
            plans: Vec::new(),
            stall_detector: StallDetector::default(),
            recent: None,
            last_groups: [0; 2],
            predictions: PredictionCache::default(),
            byte_kernel: Kernel::select(DataType::Uint8, ReduceOp::Sum, Scalar::NONE, 1),
            scratch: Region::private(0),
            sequence: 0,
            uses: 0,
            idle_since: None,
            generation: fork::generation(),
        }
    }

    /// Makes an engine of one rank, which has no links.
    pub(super) fn alone(control: Arc<ControlPlane>, config: Config) -> Engine {
        let segment = Segment::of_one_host(1, &config);
        let wait_policy = WaitPolicy::new(&config, 1, PollCost::Memory, None);
        Engine::new(control, config, Hosts::one(1), segment, Links::default(), wait_policy)
    }

    /// Checks, plans and binds a call. Nothing is sent.
    ///
    /// The caller vouches that until the call has ended, the buffers stay valid, no other code
    /// writes them, and no other code reads the output.
    pub(super) fn begin(&mut self, call: &Call<'_>, buffers: Buffers) -> Result<Running, Error> {
        let planned = match &self.recent {
            Some(recent) if recent.is(call, buffers.in_place) => recent,
            _ => self.prepare(call, buffers.in_place)?,
        };
        let PlannedCall { plan, kernel, input_bytes, output_bytes, asked, kind, size, .. } =
            *planned;
        check_buffer(call, "input", input_bytes, buffers.input_bytes)?;
        check_buffer(call, "output", output_bytes, buffers.output_bytes)?;
        check_overlap(call, &buffers, input_bytes, output_bytes)?;
        self.sequence += 1;
        let record = self.record(call, asked);
        let CallRecord { sequence, count, .. } = record;
        let tag = CallRecord::tag_of(self.config.check_calls, sequence, kind, count);
        let (input, output) = ((buffers.input, input_bytes), (buffers.output, output_bytes));
        let memory = Memory::Buffers { input, output, kernel, tag };
        let shown = [kind, count, sequence, size];
        let bytes = input_bytes.max(output_bytes);
        Ok(Running { plan, what: CallKind::Call(record), memory, bytes, shown, numbers: None })
    }

    #[inline]
    fn record(
        &self,
        call: &Call<'_>,
        (algorithm, slot_fraction): (u8, SlotFraction),
    ) -> CallRecord {
        CallRecord {
            sequence: self.sequence,
            collective: call.collective,
            data_type: call.data_type,
            op: call.op,
            root: call.root,
            algorithm,
            slot_fraction,
            count: call.compared_count(),
        }
    }

    /// Checks and plans a call that differs from the previous call.
    fn prepare(&mut self, call: &Call<'_>, in_place: bool) -> Result<&PlannedCall, Error> {
        self.recent = None;
        let (input_bytes, output_bytes) = call.check(self.rank, self.ranks)?;
        let Choice { algorithm, slot_fraction, reason, .. } =
            choice(&self.config, &self.segment, &self.hosts, call, &mut self.predictions)?;
        tracing::debug!(collective = %call.collective, input_bytes, algorithm.name, reason);
        let plan = self.plan(algorithm, call, in_place)?;
        self.bind(plan, call, slot_fraction)?;
        // Ranks compare a choice made by predictions, too, because each rank predicts by itself.
        let is_compared = call.algorithm.is_some() || self.config.tuning.model.is_some();
        let asked = match is_compared {
            true => (registry_number(algorithm), slot_fraction),
            false => (0, SlotFraction::WHOLE),
        };
        let op = if call.collective.reduces() { call.op } else { ReduceOp::Sum };
        let kernel = Kernel::select(call.data_type, op, Scalar(call.scalar), self.ranks);
        let planned = PlannedCall {
            collective: call.collective,
            data_type: call.data_type,
            op: call.op,
            scalar: call.scalar,
            root: call.root,
            count: if let Sizes::Even(count) = call.sizes { Some(count) } else { None },
            in_place,
            variant: call.algorithm.map(|_| Variant { algorithm: algorithm.name, slot_fraction }),
            asked,
            plan,
            kernel,
            input_bytes,
            output_bytes,
            kind: self.record(call, asked).kind(),
            size: size(input_bytes.max(output_bytes), registry_number(algorithm)),
        };
        Ok(self.recent.insert(planned))
    }

    /// Checks, plans and binds point-to-point messages.
    ///
    /// The caller vouches for the same as in [`Engine::begin`].
    pub(super) fn begin_messages(&mut self, messages: &Messages) -> Result<Running, Error> {
        self.recent = None;
        let plan = self.message_plan(messages)?;
        messages.check_own(self.rank)?;
        let Plan { numbers, is_bound, .. } = &mut self.plans[plan];
        let (sends, recvs) = (&messages.sends, &messages.recvs);
        *is_bound &= !numbers.input.set_vector(&sends.bytes, &sends.addresses, 1, 1);
        *is_bound &= !numbers.output.set_vector(&recvs.bytes, &recvs.addresses, 1, 1);
        let kernel = self.byte_kernel;
        let what = CallKind::Messages { sends: sends.peers.len(), recvs: recvs.peers.len() };
        let bytes = sends.bytes.iter().chain(&recvs.bytes).sum();
        let count = (sends.peers.len() as u64) << 32 | recvs.peers.len() as u64;
        let shown = [MESSAGES, count, self.sequence, size(bytes, 0)];
        let memory = Memory::Addresses { kernel };
        Ok(Running { plan, what, memory, bytes, shown, numbers: None })
    }

    /// Keeps the plan and numbers of a begun call that is queued, until [`Engine::forget`].
    pub(super) fn keep(&mut self, running: &mut Running) {
        let plan = &mut self.plans[running.plan];
        plan.pins += 1;
        running.numbers = Some(Box::new(plan.numbers.clone()));
    }

    /// Releases the plan of a kept call, which has ended.
    pub(super) fn forget(&mut self, running: &Running) {
        self.plans[running.plan].pins -= 1;
    }

    /// Starts a begun call on the ports.
    pub(super) fn start(&mut self, running: &Running) -> Result<(), Error> {
        if let (CallKind::Call(_), Some(to)) = (&running.what, &self.own_record) {
            let [kind, count, sequence, _] = running.shown;
            CallRecord::publish(to, sequence, kind, count)?;
        }
        self.record_begin(running);
        if let Some(numbers) = &running.numbers {
            self.recent = None;
            let plan = &mut self.plans[running.plan];
            plan.numbers.clone_from(numbers);
            plan.is_bound = false;
        }
        self.idle_since = None;
        let plan = &mut self.plans[running.plan];
        match std::mem::replace(&mut plan.is_bound, true) {
            true => plan.execution.restart(),
            false => plan.execution.start(&plan.numbers),
        }
        // True if the call has enough bytes for zero copy.
        let mut uses_buffers = false;
        if let Some(messages) = self.ports.links().messages() {
            let collective = match &running.what {
                CallKind::Call(record) => record.collective,
                CallKind::Messages { .. } => Collective::SendRecv,
            };
            messages.begin(collective, running.bytes, plan.fan_out);
            uses_buffers = running.bytes >= messages.zero_copy_bytes_min();
        }
        let scratch = self.scratch_for(running.plan)?;
        match running.memory {
            Memory::Buffers { input, output, kernel, tag } => {
                // SAFETY: `begin` checked that the buffers hold what the call touches and overlap
                // only in the in-place form; its caller vouches for the rest; scratch is this
                // engine's own.
                self.ports
                    .bind(unsafe { CallMemory::new(input.0, output.0, scratch, kernel, tag) });
                if uses_buffers {
                    let buffers = [(input.0.addr(), input.1), (output.0.addr(), output.1)];
                    // SAFETY: as above; every way out of a call unbinds before the buffers are
                    // given back.
                    unsafe { self.ports.open(buffers.into_iter()) };
                }
            }
            Memory::Addresses { kernel } => {
                // SAFETY: the layouts hold exposed addresses of buffers that the caller of
                // `begin_messages` vouches for.
                self.ports.bind(unsafe { CallMemory::absolute(kernel, MESSAGE_TAG) });
                if uses_buffers {
                    let Plan { key, numbers, .. } = &self.plans[running.plan];
                    // SAFETY: as above.
                    unsafe { self.ports.open(message_buffers(key, numbers)) };
                }
            }
        }
        Ok(())
    }

    /// Makes all progress that is possible without waiting. Returns whether the call has ended.
    pub(super) fn poll(&mut self, running: &Running) -> Result<bool, Error> {
        loop {
            match self.advance(running.plan)? {
                Progress::Done => {
                    self.confirm(running)?;
                    self.record_end();
                    return Ok(true);
                }
                Progress::Moved => {
                    self.record_moved(running);
                    self.idle_since = None;
                }
                Progress::Blocked => break,
            }
        }
        let now = Instant::now();
        let stalled = now - *self.idle_since.get_or_insert(now);
        self.check_stall(running, stalled)?;
        if stalled > self.config.timeout {
            return Err(self.deadline(running, stalled));
        }
        Ok(false)
    }

    /// Drives the started call to its end.
    #[inline]
    pub(super) fn finish(&mut self, running: &Running, timeout: Duration) -> Result<(), Error> {
        let mut wait = Wait::default();
        loop {
            match self.advance(running.plan)? {
                Progress::Done => {
                    wait.over(&mut self.wait_policy);
                    self.confirm(running)?;
                    self.record_end();
                    return Ok(());
                }
                Progress::Moved => {
                    self.record_moved(running);
                    wait.over(&mut self.wait_policy);
                }
                Progress::Blocked => {
                    let stalled = match wait.pause(&self.wait_policy) {
                        Pause::Over => {
                            if self.peek(&mut wait)? == Progress::Moved {
                                self.record_moved(running);
                                wait.over(&mut self.wait_policy);
                            }
                            continue;
                        }
                        Pause::Check(stalled) => stalled,
                        Pause::Sleep(stalled) => {
                            self.sleep(running.plan);
                            stalled
                        }
                    };
                    self.check_stall(running, stalled)?;
                    if stalled > timeout {
                        return Err(self.deadline(running, stalled));
                    }
                }
            }
        }
    }

    /// Returns the recording of operations, if there is one.
    #[inline]
    pub(super) fn recording(&self) -> Option<&Writer> {
        self.writer.as_ref().or_else(|| self.timed.as_ref().map(|timed| &timed.writer))
    }

    #[inline]
    fn record_begin(&mut self, running: &Running) {
        if let Some(writer) = &mut self.writer {
            writer.begin(running.shown);
        } else if let Some(timed) = &mut self.timed {
            let Plan { key, numbers, .. } = &self.plans[running.plan];
            let numbers = running.numbers.as_deref().unwrap_or(numbers);
            timed.begin(running.shown, messages_of(key, numbers));
        }
    }

    #[inline]
    fn record_moved(&self, running: &Running) {
        if let Some(writer) = self.recording() {
            writer.moved(self.plans[running.plan].execution.folds());
        }
    }

    #[inline]
    fn record_end(&mut self) {
        if let Some(writer) = &self.writer {
            writer.end();
        } else if let Some(timed) = &mut self.timed {
            timed.end();
        }
    }

    /// Advances a plan's execution and the links to other hosts as far as possible now.
    #[inline]
    pub(super) fn advance(&mut self, plan: usize) -> Result<Progress, Error> {
        let progress = self.plans[plan].execution.advance(&mut self.ports);
        match self.ports.links().messages() {
            None => Ok(progress),
            Some(messages) => carry(messages, progress),
        }
    }

    /// Peeks at the links until something has happened, or it is time to read the clock, up to
    /// [`PEEKS_MAX`] times. A peek costs less than a look for progress, so the rank sees an arrival
    /// sooner. Returns [`Progress::Moved`] if a message has arrived or an event was handled.
    #[inline]
    fn peek(&mut self, wait: &mut Wait) -> Result<Progress, Error> {
        for _ in 0..PEEKS_MAX {
            match self.ports.links().peek() {
                None => break,
                Some(Peek::Nothing) => {
                    if !wait.peeked(&self.wait_policy) {
                        break;
                    }
                }
                Some(Peek::Message) => return Ok(Progress::Moved),
                Some(Peek::Event) => {
                    let messages = self.ports.links().messages();
                    return messages.map_or(Ok(Progress::Blocked), |messages| {
                        carry(messages, Progress::Blocked)
                    });
                }
            }
        }
        Ok(Progress::Blocked)
    }

    /// Sleeps until a peer has made progress, but never for long.
    #[cold]
    fn sleep(&mut self, plan: usize) {
        let Engine { plans, ports, wait_policy, .. } = self;
        match (ports.links().messages(), &wait_policy.doorbell) {
            (Some(messages), None) => messages.sleep(SLEEP_MAX),
            // No single event reports both the peers on this host and the peers on other hosts.
            (Some(messages), Some(_)) => messages.sleep(SLEEP_MIXED),
            (None, None) => std::thread::yield_now(),
            (None, Some(doorbell)) => {
                let execution = &mut plans[plan].execution;
                let mut moved = false;
                doorbell.sleep(SLEEP_MAX, &mut || {
                    moved |= execution.advance(ports) != Progress::Blocked;
                    moved
                });
            }
        }
    }

    /// Returns the plan for an algorithm and root; makes a new one if needed.
    fn plan(
        &mut self,
        algorithm: &'static Algorithm,
        call: &Call<'_>,
        in_place: bool,
    ) -> Result<usize, Error> {
        let (collective, root) = (call.collective, call.root);
        let key = PlanKey::Collective { algorithm: algorithm.name, collective, root, in_place };
        if let Some(found) = self.find_plan(&key) {
            return Ok(found);
        }
        let params = Params { rank: self.rank, ranks: self.ranks, root, hosts: &self.hosts };
        let schedule = (algorithm.schedule)(&params);
        // With separate buffers, strands have fewer dependencies.
        let alias = match in_place {
            true => Alias::of(collective, self.rank, schedule.split),
            false => Alias::APART,
        };
        self.add_plan(key, &schedule, alias, (Layout::even(0, 1, 1), Layout::even(0, 1, 1)))
    }

    fn message_plan(&mut self, messages: &Messages) -> Result<usize, Error> {
        let (sends, recvs) = (&messages.sends.peers, &messages.recvs.peers);
        // The lists are short, and `==` would call `memcmp`.
        let is_same =
            |a: &[Rank], b: &[Rank]| a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a == b);
        let is_known = |plan: &Plan| match &plan.key {
            PlanKey::Group { sends: s, recvs: r } => is_same(s, sends) && is_same(r, recvs),
            PlanKey::Collective { .. } => false,
        };
        // Mostly, the plan of the last group fits.
        let side = usize::from(sends.is_empty());
        let last = Some(self.last_groups[side]);
        let last = last.filter(|last| self.plans.get(*last).is_some_and(is_known));
        if let Some(found) = last.or_else(|| self.plans.iter().position(is_known)) {
            self.last_groups[side] = found;
            return Ok(self.touch(found));
        }
        let schedule = ccl_core::algorithm::send_recv(self.rank, self.ranks, sends, recvs)
            .map_err(CallError::Messages)?;
        let key = PlanKey::Group { sends: sends.clone(), recvs: recvs.clone() };
        let empty = || Layout::vector(&[], &[], 1, 1);
        let plan = self.add_plan(
            key,
            &schedule,
            Alias::of(Collective::SendRecv, self.rank, 1),
            (empty(), empty()),
        )?;
        self.plans[plan].numbers.element_bytes = 1;
        Ok(plan)
    }

    fn find_plan(&mut self, key: &PlanKey) -> Option<usize> {
        let found = self.plans.iter().position(|plan| plan.key == *key)?;
        Some(self.touch(found))
    }

    fn touch(&mut self, plan: usize) -> usize {
        self.uses += 1;
        self.plans[plan].used = self.uses;
        plan
    }

    fn add_plan(
        &mut self,
        key: PlanKey,
        schedule: &RankSchedule,
        alias: Alias,
        (input, output): (Layout, Layout),
    ) -> Result<usize, Error> {
        let program = lower_for_slots(schedule, alias, self.segment.slots_least());
        let slot_bytes = self.segment.shape.slot_bytes;
        check_message(&program, slot_bytes)?;
        let numbers = CallParams { input, output, element_bytes: 1, slot_bytes };
        let execution = Execution::new(Arc::new(program), self.segment.channels);
        let (split, fan_out) = (schedule.split, schedule.fan_out());
        let plan =
            Plan { key, split, fan_out, execution, numbers, is_bound: false, used: 0, pins: 0 };
        let idle = (0..self.plans.len()).filter(|&at| self.plans[at].pins == 0);
        let oldest = idle.min_by_key(|&at| self.plans[at].used);
        let at = match oldest {
            Some(oldest) if self.plans.len() >= PLANS_MAX => {
                self.plans[oldest] = plan;
                oldest
            }
            _ => {
                self.plans.push(plan);
                self.plans.len() - 1
            }
        };
        Ok(self.touch(at))
    }

    /// Writes a call's numbers into its plan. Allocates only if the list of blocks in one of the
    /// plan's layouts becomes longer.
    fn bind(
        &mut self,
        plan: usize,
        call: &Call<'_>,
        slot_fraction: SlotFraction,
    ) -> Result<(), Error> {
        let slot_bytes = self.segment.shape.slot_bytes;
        let Plan { numbers, split, execution, is_bound, .. } = &mut self.plans[plan];
        *is_bound = false;
        let width = call.data_type.bytes();
        numbers.element_bytes = width;
        numbers.slot_bytes = message_bytes(slot_fraction, slot_bytes, execution.program());
        let seat = call.seat(self.rank, self.ranks);
        let grain = (64 / width).max(1);
        let (input, output) = (&mut numbers.input, &mut numbers.output);
        let bound = seat.bind(call.sizes, (*split, grain), input, output);
        Ok(bound.map_err(CallError::Shape)?)
    }

    /// Returns scratch memory that is large enough for the started run of a plan.
    fn scratch_for(&mut self, plan: usize) -> Result<*mut u8, Error> {
        let bytes = self.plans[plan].execution.scratch_bytes();
        if bytes > self.scratch.bytes() {
            self.scratch = Region::allocate(bytes).map_err(TransportError::from)?;
        }
        Ok(self.scratch.start())
    }
}

/// Returns the least number of payload bytes for which a message must have room: 8 (the longest
/// element) for each part of the message with the most parts.
fn message_bytes_min(program: &Program) -> usize {
    program.message_parts as usize * 8
}

/// Checks that a slot has room for one element of each part of a message.
pub(super) fn check_message(program: &Program, slot_bytes: usize) -> Result<(), Error> {
    if message_bytes_min(program) <= slot_bytes {
        return Ok(());
    }
    Err(CallError::SlotTooSmall { parts: program.message_parts, slot_bytes }.into())
}

/// Returns the largest payload of a message, in bytes.
pub(super) fn message_bytes(
    slot_fraction: SlotFraction,
    slot_bytes: usize,
    program: &Program,
) -> usize {
    slot_fraction.bytes(slot_bytes, message_bytes_min(program))
}

/// Returns address and length of each buffer of a group.
fn message_buffers(key: &PlanKey, numbers: &CallParams) -> impl Iterator<Item = (usize, usize)> {
    let (sends, recvs) = match key {
        PlanKey::Group { sends, recvs } => (sends.len() as u32, recvs.len() as u32),
        PlanKey::Collective { .. } => (0, 0),
    };
    let sent = (0..sends).map(|part| numbers.input.part(part));
    sent.chain((0..recvs).map(|part| numbers.output.part(part)))
}

/// Returns the peers and bytes that a group sends and receives; empty for a collective.
fn messages_of(key: &PlanKey, numbers: &CallParams) -> Sent {
    let PlanKey::Group { sends, recvs } = key else { return Sent::default() };
    let bytes = |layout: &Layout, part| layout.part(part).1 as u64;
    let sends = (0..).zip(sends).map(|(part, peer)| (*peer, bytes(&numbers.input, part)));
    let recvs = (0..).zip(recvs).map(|(part, peer)| (*peer, bytes(&numbers.output, part)));
    Sent { sends: sends.collect(), recvs: recvs.collect() }
}

/// Sends and receives messages to and from other hosts. Returns the call's progress, which is
/// `Done` only once all its messages have left this process.
#[inline(never)]
fn carry(messages: &mut MessageLinks, progress: Progress) -> Result<Progress, Error> {
    // The usual case after a receive: the clock need not be read.
    if progress == Progress::Done && messages.is_over() {
        return Ok(progress);
    }
    let now = clock::now();
    let has_queued = messages.has_queued();
    messages.flush(now)?;
    // Another look costs less than a poll. But after a send, the next step mostly is an arrival,
    // and unfinished sends may need polls.
    if progress == Progress::Moved && !has_queued && messages.is_drained() {
        return Ok(progress);
    }
    if progress == Progress::Done && messages.is_drained() && messages.is_settled(now) {
        return Ok(progress);
    }
    let arrived = messages.poll(now)?;
    Ok(if arrived || progress == Progress::Moved { Progress::Moved } else { Progress::Blocked })
}

/// Returns the size of a call as the recording encodes it: the bytes and the algorithm's number.
fn size(bytes: usize, algorithm: u8) -> u64 {
    (bytes as u64) << 8 | u64::from(algorithm)
}

/// Returns 1 + the algorithm's index in the registry, which is the same on all ranks; 0 if the
/// registry lacks the algorithm.
fn registry_number(algorithm: &Algorithm) -> u8 {
    let same = |other: &&Algorithm| {
        (other.collective, other.name) == (algorithm.collective, algorithm.name)
    };
    let number = ccl_core::algorithm::all().position(|other| same(&other));
    number.and_then(|number| u8::try_from(number + 1).ok()).unwrap_or(0)
}

/// Returns the choice of the planner for a call.
pub(super) fn choice<'c>(
    config: &'c Config,
    segment: &Segment,
    hosts: &'c Hosts,
    call: &'c Call<'_>,
    predictions: &'c mut PredictionCache,
) -> Result<Choice<'c>, Error> {
    let (collective, tuning) = (call.collective, &config.tuning);
    let bytes = call.elements(segment.ranks).saturating_mul(call.data_type.bytes());
    let situation = Situation {
        collective,
        bytes,
        hosts,
        deterministic: config.deterministic,
        slot_bytes: segment.shape.slot_bytes,
        call: call.algorithm,
        configured: &config.algorithm,
        tuning,
        predicted: &[],
    };
    if !situation.is_open() {
        return Ok(choose(&situation)?);
    }
    let predicted = predictions.variants(config, hosts, collective, bytes);
    Ok(choose(&Situation { predicted, ..situation })?)
}

fn check_buffer(
    call: &Call<'_>,
    buffer: &'static str,
    need: usize,
    have: usize,
) -> Result<(), Error> {
    if have >= need {
        return Ok(());
    }
    let Call { collective, data_type, .. } = *call;
    let (needed, given) = (need / data_type.bytes(), have / data_type.bytes());
    Err(CallError::Buffer { collective, buffer, data_type, needed, given }.into())
}

/// Checks that input and output do not overlap, except in the in-place form.
fn check_overlap(
    call: &Call<'_>,
    buffers: &Buffers,
    input: usize,
    output: usize,
) -> Result<(), Error> {
    let (a, b) = (buffers.input.addr(), buffers.output.addr());
    let apart = a.saturating_add(input) <= b || b.saturating_add(output) <= a;
    if apart || input == 0 || output == 0 || buffers.in_place {
        return Ok(());
    }
    Err(CallError::BuffersOverlap { collective: call.collective }.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Communicator;
    use crate::bootstrap::{Join, Listening, Reach};
    use std::panic::{AssertUnwindSafe, catch_unwind};

    fn overlap(input: usize, output: usize, in_place: bool) -> Result<(), Error> {
        let memory = [0u8; 64];
        let buffers = Buffers {
            input: memory[input..].as_ptr(),
            input_bytes: 16,
            output: memory[output..].as_ptr().cast_mut(),
            output_bytes: 16,
            in_place,
        };
        let call = Call::even(Collective::AllReduce, DataType::Float32, 4);
        check_overlap(&call, &buffers, 16, 16)
    }

    /// Checks that all ranks choose alike: ranks that choose differently wait for each other for
    /// ever.
    #[test]
    fn ranks_of_hosts_that_are_unevenly_filled_choose_alike() {
        let config = Config::default();
        let chosen = |hosts: &Hosts, rank, call: &Call<'_>| {
            let segment = Segment::new(hosts, rank, &config);
            let mut predictions = PredictionCache::default();
            let chosen = choice(&config, &segment, hosts, call, &mut predictions).unwrap();
            (chosen.algorithm.name, chosen.slot_fraction.to_string())
        };
        for seats in [&[0, 0, 0, 1][..], &[0, 1, 1, 1], &[0, 1, 1, 2, 2, 2]] {
            let hosts = Hosts::of(seats);
            let collectives = Collective::ALL.into_iter().filter(|it| *it != Collective::SendRecv);
            for collective in collectives {
                for count in (0..20).flat_map(|power| [1, 3].map(|factor| factor << power)) {
                    let call = Call::even(collective, DataType::Float32, count);
                    let first = chosen(&hosts, 0, &call);
                    for rank in 1..hosts.ranks() {
                        let other = chosen(&hosts, rank, &call);
                        assert_eq!(other, first, "rank {rank} on {seats:?}: {call:?}");
                    }
                }
            }
        }
    }

    /// Checks buffers that the safe interface cannot make, but other interfaces can.
    #[test]
    fn buffers_that_overlap_must_be_the_in_place_form() {
        for (input, output) in [(0, 0), (0, 12), (15, 0), (20, 8)] {
            let error = overlap(input, output, false).unwrap_err().to_string();
            assert!(error.contains("overlap but are not the in-place form"), "{error}");
            overlap(input, output, true).unwrap();
        }
        overlap(0, 16, false).unwrap();
        overlap(32, 16, false).unwrap();
    }

    #[test]
    fn a_panic_during_a_call_is_reported_to_the_other_ranks() {
        let Listening { id, listener } = Listening::new(&Reach::Loopback).unwrap();
        let (mut listener, patience) = (Some(listener), Duration::from_secs(60));
        let ranks = [0, 1].map(|rank| {
            let mut how = Join::new(rank, 2, id.clone());
            how.listener = listener.take();
            std::thread::spawn(move || {
                let mut c = Communicator::join_with(how, Config::default()).unwrap();
                if rank == 1 {
                    let panic = AssertUnwindSafe(|| {
                        let _driven = UnbindGuard::new(&mut c.engine);
                        panic!("a panic like one of a tracing subscriber");
                    });
                    catch_unwind(panic).unwrap_err();
                }
                let begun = Instant::now();
                let error = c.barrier().unwrap_err().to_string();
                assert!(begun.elapsed() < patience, "{error}");
                error
            })
        });
        for error in ranks.map(|rank| rank.join().unwrap()) {
            assert!(
                error.contains("rank 1") && error.contains("panicked in the middle"),
                "{error}"
            );
        }
    }
}
