//! One rail of a link: its puts under way, its arrivals, and its measured bandwidth.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ccl_core::time::Instant;
use ccl_core::transport::{Caps, EndpointId, MrKey, RailState, RemoteMr, WorkRequest};
use crossbeam::utils::CachePadded;

use crate::RAILS_MAX;
use crate::memory::LocalKeys;
use crate::note::{ArrivalReport, RailFailure, WINDOW};

/// Largest number that a put can have; the put after it has number 0.
pub(crate) const NUMBER: u64 = (1 << 36) - 1;
/// Number of remembered arrivals, enough to include every put that the peer may count as under way.
const HEARD: usize = 2 * WINDOW;
/// Number of consecutive puts of a rail whose immediates must all differ, so that the peer never
/// takes a new put for an old one. The peer remembers the immediates of the last [`HEARD`]
/// arrivals, and puts can arrive out of order by up to [`WINDOW`].
const IMMEDIATES: usize = 4 * WINDOW;
/// Number of consecutive puts of a link whose immediates must all differ. A user of the link whose
/// immediates would repeat sooner adds to them a counter of at least `TURNS` values. The reason:
/// when a rail fails, the peer tells the rail's puts apart by their immediates. So no immediate may
/// occur twice among `IMMEDIATES` consecutive puts of a rail. With up to [`RAILS_MAX`] rails that
/// take puts in turn, these puts are among `TURNS` consecutive puts of the link.
pub const TURNS: usize = 1 << 16;
const _: () = assert!(RAILS_MAX * IMMEDIATES <= TURNS);
/// Number of puts with preallocated room, so that calls need not allocate.
const AT_ONCE: usize = 64;
/// First pause before a rail that has failed is tried again; each further pause is twice as long.
const PAUSE: Duration = Duration::from_secs(2);
const PAUSE_MAX: Duration = Duration::from_secs(64);
/// Smallest time that a connection of a rail must last after its first put, so that the next pause
/// is [`PAUSE`] again.
const STEADY: Duration = Duration::from_secs(60);
/// Smallest number of bytes over which bandwidth is measured; `MEASURED_FOR` is the shortest time.
const MEASURED_BYTES: usize = 64 << 10;
const MEASURED_FOR: Duration = Duration::from_millis(1);
/// Age from which a measurement no longer counts against a rail: the rail may have been slow only
/// for a moment.
const MEASURED_LATELY: Duration = Duration::from_millis(50);
/// Expected duration of a put, in seconds, up to which the rails are not compared for the put: the
/// comparison takes about as long as the put.
const AT_ONCE_S: f64 = 1e-6;
/// Weight of a new measurement in the moving average of the bandwidth.
const BELIEVED: f64 = 0.3;

/// State of a rail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The rail is connected again. Some keys of the peer are not known yet, or the proof (a test
    /// put of this side) is not done yet.
    Joining(EndpointId),
    Up(EndpointId),
    /// The rail has failed, and the peer is asked which of the puts in this report have arrived.
    Asking(RailFailure),
    /// The rail is down. It is tried again at the time `again`, if there is one.
    Down {
        again: Option<Instant>,
    },
}

/// A put as it was requested, with the memory that the request's keys named when the put was taken.
#[derive(Clone, Debug)]
pub(crate) struct Put {
    pub(crate) request: WorkRequest,
    /// Keys of the put's bytes, by device.
    pub(crate) local: LocalKeys,
    pub(crate) tail: Option<LocalKeys>,
    /// Number of the peer's memory.
    pub(crate) to: u32,
    pub(crate) bytes: usize,
}

impl Put {
    /// Returns a device's keys of the put's bytes and of its tail, if the device has them.
    pub(crate) fn known_to(&self, device: usize) -> Option<(MrKey, Option<MrKey>)> {
        let key = |keys: &LocalKeys| keys.get(device).copied().flatten();
        let tail = if let Some(keys) = &self.tail { Some(key(keys)?) } else { None };
        Some((key(&self.local)?, tail))
    }

    fn immediate(&self) -> Option<u32> {
        let WorkRequest::Put { immediate, .. } = self.request;
        immediate
    }

    fn is_control(&self) -> bool {
        let WorkRequest::Put { is_control, .. } = self.request;
        is_control
    }
}

/// A put that was handed to the rail.
#[derive(Clone, Debug)]
struct Posted {
    put: Put,
    is_done: bool,
}

/// Arrivals over the rail, since it was connected last.
#[derive(Clone, Debug)]
struct Arrivals {
    count: u64,
    /// Immediates of the last arrivals.
    immediates: VecDeque<u32>,
}

impl Arrivals {
    fn new() -> Arrivals {
        Arrivals { count: 0, immediates: VecDeque::with_capacity(HEARD) }
    }
}

/// Path of a put.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PutPath {
    pub(crate) rail: usize,
    pub(crate) endpoint: EndpointId,
    /// Handle of the peer's memory on this rail.
    pub(crate) remote: RemoteMr,
    /// The device's key of the put's bytes; `tail` is its key of the tail.
    pub(crate) local: MrKey,
    pub(crate) tail: Option<MrKey>,
}

/// Outcome of a put over a rail that has failed.
#[derive(Clone, Debug)]
pub(crate) enum Outcome {
    /// The put has arrived.
    Done(WorkRequest),
    /// The put goes over another rail.
    Again(Put),
}

/// Number of bytes that all links of a `RailsDevice` have under way on one of its devices.
#[derive(Debug, Default)]
pub(crate) struct Load(CachePadded<AtomicUsize>);

/// One rail.
#[derive(Debug)]
pub(crate) struct Rail {
    /// Index of this side's device that the rail uses.
    pub(crate) lane: usize,
    /// Largest number of puts of data that the rail may have open: the limit of this side's device.
    depth: usize,
    pub(crate) stage: Stage,
    /// Number of times that the rail has come back.
    pub(crate) epoch: u32,
    /// Number of times that the rail has failed; `failure` is the last reason.
    pub(crate) failures: u64,
    pub(crate) failure: Option<String>,
    /// Number of puts that were done over the rail, and number of their bytes.
    carried: (u64, u64),
    /// Number of the first put in the window.
    first: u64,
    window: VecDeque<Posted>,
    /// Immediates of the last puts.
    immediates: VecDeque<u32>,
    /// Number of puts with an immediate that are done, since the rail was connected last.
    done: u64,
    /// Number of puts that are not done.
    open: usize,
    /// Number of open control puts. Control puts do not count against `depth`.
    open_control: usize,
    /// Bytes of the open puts.
    bytes: usize,
    /// Load of the rail's device. All links add their puts to this load, so each link also takes
    /// the other links' puts into account when it chooses a rail.
    load: Arc<Load>,
    arrivals: Arrivals,
    /// Arrivals before the rail came back, kept until the peer no longer needs them.
    before: Option<Arrivals>,
    rate: Rate,
    /// True if the proof that the joining rail works is done, or if no proof can be made.
    proved: bool,
    /// True if the keys of all memory that the peer shares have arrived.
    informed: bool,
    /// True while the proof must be posted again, because the rail's device did not take it.
    pub(crate) owes_proof: bool,
    /// Time of the rail's first put since it was last connected.
    carries_since: Option<Instant>,
    pause: Duration,
}

/// Measured bandwidth.
#[derive(Debug)]
struct Rate {
    bytes_per_s: f64,
    measured: Instant,
    /// Start of the current measurement; none while nothing is under way.
    since: Option<Instant>,
    /// Number of bytes done since the start of the measurement.
    bytes: usize,
}

impl Rate {
    fn begin(&mut self, now: Instant) {
        if self.since.is_none() {
            (self.since, self.bytes) = (Some(now), 0);
        }
    }

    fn done(&mut self, bytes: usize, now: Instant) {
        let Some(since) = self.since else { return };
        self.bytes += bytes;
        let took = now.since(since);
        if self.bytes < MEASURED_BYTES || took < MEASURED_FOR {
            return;
        }
        let seen = self.bytes as f64 / took.as_secs_f64();
        self.bytes_per_s += (seen - self.bytes_per_s) * BELIEVED;
        (self.since, self.bytes, self.measured) = (Some(now), 0, now);
    }
}

impl Rail {
    pub(crate) fn new(lane: usize, caps: &Caps, load: &Arc<Load>) -> Rail {
        let bytes_per_s = caps.bandwidth_bytes_per_s;
        Rail {
            lane,
            depth: caps.depth_max,
            stage: Stage::Down { again: None },
            epoch: 0,
            failures: 0,
            failure: None,
            carried: (0, 0),
            // The first number is near the largest, so that numbers wrap soon and not only after
            // days.
            first: NUMBER - 100,
            window: VecDeque::with_capacity(AT_ONCE),
            immediates: VecDeque::with_capacity(IMMEDIATES),
            done: 0,
            open: 0,
            open_control: 0,
            bytes: 0,
            load: Arc::clone(load),
            arrivals: Arrivals::new(),
            before: None,
            rate: Rate { bytes_per_s, measured: Instant::ZERO, since: None, bytes: 0 },
            proved: false,
            informed: false,
            owes_proof: false,
            carries_since: None,
            pause: PAUSE,
        }
    }

    /// Returns the connection, if there is one.
    pub(crate) fn endpoint(&self) -> Option<EndpointId> {
        match self.stage {
            Stage::Joining(endpoint) | Stage::Up(endpoint) => Some(endpoint),
            Stage::Asking(_) | Stage::Down { .. } => None,
        }
    }

    /// Returns the state of the rail, for reports.
    pub(crate) fn state(&self, device: &str) -> RailState {
        RailState {
            device: device.to_owned(),
            is_up: matches!(self.stage, Stage::Up(_)),
            failures: self.failures,
            failure: self.failure.clone(),
            puts: self.carried.0,
            bytes: self.carried.1,
            bytes_per_s: self.rate.bytes_per_s as u64,
        }
    }

    /// Returns the path of a put over this rail, if the rail takes one more put and both sides'
    /// memory is known on it. `at` is the rail's number in its link. Control puts do not wait
    /// behind data.
    pub(crate) fn path(
        &self,
        at: usize,
        put: &Put,
        remotes: &[Option<RemoteMr>],
    ) -> Option<PutPath> {
        let Stage::Up(endpoint) = self.stage else { return None };
        let has_room = put.is_control() || self.open - self.open_control < self.depth;
        if !has_room || self.window.len() >= WINDOW {
            return None;
        }
        let remote = remotes.get(at).copied().flatten()?;
        let (local, tail) = put.known_to(self.lane)?;
        Some(PutPath { rail: at, endpoint, remote, local, tail })
    }

    /// Returns the measured bandwidth; none if the rail is not up.
    pub(crate) fn bytes_per_s(&self) -> Option<f64> {
        matches!(self.stage, Stage::Up(_)).then_some(self.rate.bytes_per_s.max(1.0))
    }

    /// Returns the time until a put of `bytes` bytes would be done, in seconds. `best` is the
    /// bandwidth of the fastest rail. If this rail's last measurement is old, the rail counts as
    /// being as fast as `best`: a rail that was slow a while ago gets another chance.
    pub(crate) fn expects(&self, bytes: usize, best: f64, now: Instant) -> f64 {
        let own = self.rate.bytes_per_s.max(1.0);
        let lately = now.since(self.rate.measured) < MEASURED_LATELY;
        let bytes_per_s = if lately { own } else { own.max(best) };
        let under_way = self.load.0.load(Ordering::Relaxed);
        (under_way + bytes) as f64 / bytes_per_s
    }

    /// Returns whether the rail's device would finish a put of `bytes` bytes, and all bytes that it
    /// has under way, within [`AT_ONCE_S`].
    pub(crate) fn does_at_once(&self, bytes: usize) -> bool {
        let under_way = self.load.0.load(Ordering::Relaxed);
        (under_way + bytes) as f64 <= self.rate.bytes_per_s * AT_ONCE_S
    }

    fn begin(&mut self, put: &Put) {
        self.open += 1;
        self.open_control += usize::from(put.is_control());
        self.bytes += put.bytes;
        self.load.0.fetch_add(put.bytes, Ordering::Relaxed);
    }

    fn end(&mut self, is_control: bool, bytes: usize) {
        self.open -= 1;
        self.open_control -= usize::from(is_control);
        self.bytes -= bytes;
        self.load.0.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Forgets the puts under way. Reports no outcome for them.
    fn clear(&mut self) {
        self.first = self.first.wrapping_add(self.window.len() as u64);
        self.window.clear();
        self.load.0.fetch_sub(self.bytes, Ordering::Relaxed);
        (self.open, self.open_control, self.bytes) = (0, 0, 0);
    }

    /// Gives the rail up for good: its puts under way are never done.
    pub(crate) fn give_up(&mut self) {
        self.clear();
        self.stage = Stage::Down { again: None };
    }

    /// Takes a put that goes over this rail. Returns its number.
    pub(crate) fn take(&mut self, put: Put, now: Instant) -> u64 {
        if let Some(immediate) = put.immediate() {
            if self.immediates.len() == IMMEDIATES {
                self.immediates.pop_front();
            }
            self.immediates.push_back(immediate);
        }
        self.rate.begin(now);
        self.carries_since.get_or_insert(now);
        self.begin(&put);
        self.window.push_back(Posted { put, is_done: false });
        self.first.wrapping_add(self.window.len() as u64 - 1) & NUMBER
    }

    /// Takes back the last put, which the device did not take.
    pub(crate) fn untake(&mut self) -> Option<Put> {
        let Posted { put, .. } = self.window.pop_back()?;
        if put.immediate().is_some() {
            self.immediates.pop_back();
        }
        self.end(put.is_control(), put.bytes);
        if self.open == 0 {
            self.rate.since = None;
        }
        Some(put)
    }

    /// Returns whether any put is not done; on a failed rail, the peer is asked about these puts.
    pub(crate) fn has_open(&self) -> bool {
        self.open > 0
    }

    /// Returns whether a put that is not done goes to this memory.
    pub(crate) fn writes_to(&self, memory: u32) -> bool {
        self.window.iter().any(|posted| !posted.is_done && posted.put.to == memory)
    }

    /// Counts a put as done, and returns it.
    pub(crate) fn done(&mut self, number: u64, now: Instant) -> Option<WorkRequest> {
        // The number of a late completion lies far outside the window.
        let at = usize::try_from(number.wrapping_sub(self.first) & NUMBER).ok()?;
        let posted = self.window.get_mut(at).filter(|posted| !posted.is_done)?;
        posted.is_done = true;
        let Put { request, bytes, .. } = posted.put;
        let WorkRequest::Put { immediate, is_control, .. } = request;
        self.done += u64::from(immediate.is_some());
        self.end(is_control, bytes);
        self.carried = (self.carried.0 + 1, self.carried.1 + bytes as u64);
        self.rate.done(bytes, now);
        if self.open == 0 {
            self.rate.since = None;
        }
        // The window keeps its puts while the peer is asked about them.
        let is_asking = matches!(self.stage, Stage::Asking(_));
        while !is_asking && self.window.front().is_some_and(|posted| posted.is_done) {
            self.window.pop_front();
            self.first = self.first.wrapping_add(1);
        }
        Some(request)
    }

    /// Counts an arrived put of the peer.
    pub(crate) fn count_arrival(&mut self, immediate: u32) {
        let Arrivals { count, immediates } = &mut self.arrivals;
        *count += 1;
        if immediates.len() == HEARD {
            immediates.pop_front();
        }
        immediates.push_back(immediate);
    }

    /// Takes the rail out after a failure. Returns whether the peer can tell the rail's unfinished
    /// puts apart.
    pub(crate) fn fail(&mut self, number: usize, reason: String) -> bool {
        let undone = self.window.iter().filter(|posted| !posted.is_done);
        let open: Vec<u32> = undone.filter_map(|posted| posted.put.immediate()).collect();
        let once = |immediate: &u32| {
            self.immediates.iter().filter(|known| *known == immediate).count() == 1
        };
        let is_clear = open.iter().all(once);
        let (rail, epoch, done) = (number as u8, self.epoch, self.done);
        self.stage = Stage::Asking(RailFailure { rail, epoch, done, open });
        (self.failures, self.failure) = (self.failures + 1, Some(reason));
        self.rate.since = None;
        is_clear
    }

    /// Returns the answer to the peer's report of a failed rail: which of the peer's puts over that
    /// rail have arrived.
    pub(crate) fn answer(&self, down: &RailFailure) -> ArrivalReport {
        let nothing = Arrivals { count: 0, immediates: VecDeque::new() };
        let arrivals = match &self.before {
            _ if down.epoch == self.epoch => &self.arrivals,
            Some(before) if down.epoch.wrapping_add(1) == self.epoch => before,
            _ => &nothing,
        };
        let arrived: Vec<bool> =
            down.open.iter().map(|immediate| arrivals.immediates.contains(immediate)).collect();
        let came = arrived.iter().filter(|arrived| **arrived).count() as u64;
        let missing = down.done.abs_diff(arrivals.count.saturating_sub(came));
        ArrivalReport { rail: down.rail, epoch: down.epoch, missing, arrived }
    }

    /// Takes in the peer's answer, and appends the outcome of each put. Returns false if the answer
    /// fits no open question.
    pub(crate) fn settle(
        &mut self,
        fate: &ArrivalReport,
        now: Instant,
        outcomes: &mut Vec<Outcome>,
    ) -> bool {
        let Stage::Asking(down) = &self.stage else { return false };
        if fate.epoch != down.epoch || fate.arrived.len() != down.open.len() {
            return false;
        }
        // The answer also covers puts that were done after the question.
        let mut fates = fate.arrived.iter().zip(&down.open);
        let mut next = fates.next();
        for Posted { put, is_done, .. } in &self.window {
            let asked = next.filter(|(_, immediate)| Some(**immediate) == put.immediate());
            let arrived = asked.map(|(arrived, _)| *arrived);
            next = if asked.is_some() { fates.next() } else { next };
            match arrived {
                _ if *is_done => {}
                Some(true) => outcomes.push(Outcome::Done(put.request)),
                _ => outcomes.push(Outcome::Again(put.clone())),
            }
        }
        self.clear();
        self.rest(now);
        true
    }

    /// Lets the rail rest; it is tried again after a pause.
    pub(crate) fn rest(&mut self, now: Instant) {
        if self.carries_since.take().is_some_and(|since| now.since(since) >= STEADY) {
            self.pause = PAUSE;
        }
        self.stage = Stage::Down { again: Some(now + self.pause) };
        self.pause = (self.pause * 2).min(PAUSE_MAX);
    }

    /// Takes in a new connection of the rail.
    pub(crate) fn reconnect(&mut self, epoch: u32, endpoint: EndpointId) {
        self.before = Some(std::mem::replace(&mut self.arrivals, Arrivals::new()));
        self.immediates.clear();
        (self.epoch, self.done) = (epoch, 0);
        (self.proved, self.informed, self.owes_proof) = (false, false, false);
        self.stage = Stage::Joining(endpoint);
    }

    /// Returns whether the rail is connected, and `epoch` is the epoch of this connection.
    pub(crate) fn is_epoch(&self, epoch: u64) -> bool {
        u64::from(self.epoch) == epoch && self.endpoint().is_some()
    }

    /// Records that the proof that the rail works is done, or that none can be made.
    pub(crate) fn proved(&mut self) {
        self.proved = true;
        self.ready();
    }

    /// Records that the keys of all memory that the peer shares have arrived.
    pub(crate) fn informed(&mut self) {
        self.informed = true;
        self.ready();
    }

    fn ready(&mut self) {
        if let (Stage::Joining(endpoint), true, true) = (&self.stage, self.proved, self.informed) {
            let endpoint = *endpoint;
            self.stage = Stage::Up(endpoint);
            // The peer has connected the rail again, too. It does so only after it has received the
            // answer about the earlier connection, so the earlier arrivals are not needed any more.
            self.before = None;
        }
    }
}

impl Drop for Rail {
    fn drop(&mut self) {
        self.clear();
    }
}
