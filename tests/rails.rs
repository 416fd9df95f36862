//! Rails over software RDMA devices and libfabric providers that fail on demand: no message is lost
//! or doubled, and a rail that works again is used again.

use std::collections::BTreeMap;
use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

use ccl_conformance::{Fixture, join, run};
use ccl_core::time::Instant;
use ccl_core::transport::{
    Device, DeviceId, EndpointId, Event, Lane, LocalSlice, MrKey, RailState, RemoteMr, Transport,
    WorkRequest,
};
use ccl_memory::Region;
use ccl_soft_ofi::{Condition, Fault, SoftProvider};
use ccl_soft_verbs::sys::{
    IBV_EVENT_DEVICE_FATAL, IBV_EVENT_QP_FATAL, IBV_WC_LOC_QP_OP_ERR, IBV_WC_RETRY_EXC_ERR,
};
use ccl_soft_verbs::{Limits, SoftDevice, functions};
use ccl_transport_multirail::RailsDevice;
use ccl_transport_ofi::OfiTransport;
use ccl_transport_verbs::{Options, VerbsTransport};

use crate::ofi::software_providers;

/// Bytes of each put: more than a device accepts inline, and so many that puts in flight at the
/// same time use both rails.
const BYTES: usize = 8 << 10;
/// Number of puts that the memory of each end holds.
const PUTS: u32 = 2000;
/// Largest number of puts that are posted at a time.
const AT_ONCE: u32 = 8;
const PATIENCE: Duration = Duration::from_secs(30);
/// Time for which one side polls alone: shorter than a lane's wait for an answer to a failure, and
/// long enough that a lane without such a wait would lose its peer.
const ALONE: Duration = Duration::from_millis(150);
/// Time after which a rail fails if the link of its port is down.
const LINK_WITHIN: Duration = Duration::from_millis(100);
/// Pause that is longer than the first retry interval of a failed rail; each further failure
/// doubles the interval.
const PAUSE: Duration = Duration::from_millis(2100);

/// Two sides, each with a device for each of two rails; `S` is a handle of such a device.
struct TwoSides<S> {
    softs: [[S; 2]; 2],
    devices: [Arc<dyn Device>; 2],
}

impl<S> TwoSides<S> {
    /// Makes two sides with these handles; `open` returns the name and the device of a handle.
    fn of(softs: [[S; 2]; 2], open: impl Fn(&S) -> (String, Arc<dyn Device>)) -> TwoSides<S> {
        let devices = softs.each_ref().map(|softs| -> Arc<dyn Device> {
            Arc::new(RailsDevice::new(softs.iter().map(&open).collect()).unwrap())
        });
        TwoSides { softs, devices }
    }
}

impl TwoSides<SoftProvider> {
    /// Returns two sides with libfabric providers like AWS's, whose adapters write.
    fn ofi() -> TwoSides<SoftProvider> {
        TwoSides::over(false)
    }

    /// Returns two sides with such providers. If they emulate writes, puts are messages.
    fn over(emulates_writes: bool) -> TwoSides<SoftProvider> {
        let options = ccl_transport_ofi::Options {
            interfaces: "127.0.0.1".to_owned(),
            acknowledged: true,
            ..ccl_transport_ofi::Options::default()
        };
        let transport = OfiTransport::over(ccl_soft_ofi::functions(), "efa", options);
        let soft = |seed| {
            let limits = ccl_soft_ofi::Limits::efa(seed);
            SoftProvider::new(ccl_soft_ofi::Limits { emulates_writes, ..limits })
        };
        TwoSides::of([[1, 2], [3, 4]].map(|seeds| seeds.map(soft)), |soft| {
            (soft.device(), transport.open(&DeviceId(soft.device())).unwrap())
        })
    }
}

impl TwoSides<SoftDevice> {
    fn new() -> TwoSides<SoftDevice> {
        let options = Options {
            interfaces: "127.0.0.1".to_owned(),
            acknowledged: true,
            link_within: LINK_WITHIN,
            ..Options::default()
        };
        let transport = VerbsTransport::over(functions(), options);
        let soft = |seed| SoftDevice::new(Limits { seed, ..Limits::default() });
        TwoSides::of([[1, 2], [3, 4]].map(|seeds| seeds.map(soft)), |soft| {
            let name = format!("{}:1", soft.name());
            (name.clone(), transport.open(&DeviceId(name)).unwrap())
        })
    }
}

/// One end of a link; it puts to the other end.
struct End {
    lane: Box<dyn Lane>,
    endpoint: EndpointId,
    key: MrKey,
    inbox: Region,
    remote: RemoteMr,
    posted: u32,
    /// Number of completions of each put.
    done: BTreeMap<u64, u32>,
    /// Number of arrivals of each put of the other end.
    arrived: BTreeMap<u32, u32>,
    lost: Option<String>,
}

fn byte(side: usize, number: u32) -> u8 {
    (number * 7 + side as u32 * 101 + 1) as u8
}

impl End {
    /// Posts the next puts: at most [`AT_ONCE`], and not more than `allowed` puts in total.
    fn post(&mut self, now: Instant, allowed: u32) {
        let put = |number: u32| WorkRequest::Put {
            endpoint: self.endpoint,
            local: LocalSlice { key: self.key, offset: number as usize * BYTES, bytes: BYTES },
            tail: None,
            is_control: false,
            remote: self.remote,
            remote_offset: number as usize * BYTES,
            immediate: Some(number),
            id: number.into(),
        };
        let work: Vec<_> = (self.posted..allowed.min(self.posted + AT_ONCE)).map(put).collect();
        self.posted += self.lane.post(now, &work).unwrap() as u32;
    }

    /// Posts puts up to `allowed`, and handles events.
    fn go_on(&mut self, now: Instant, allowed: u32) {
        self.post(now, allowed);
        let mut events = Vec::new();
        self.lane.poll(now, &mut events).unwrap();
        for event in events {
            match event {
                Event::Done { id } => *self.done.entry(id).or_default() += 1,
                Event::Arrived { immediate, bytes, .. } => {
                    assert_eq!(bytes, BYTES);
                    *self.arrived.entry(immediate).or_default() += 1;
                }
                Event::Note { .. } => {}
                Event::Lost { reason, .. } => self.lost = Some(reason),
            }
        }
    }

    fn rail(&self, rail: usize) -> RailState {
        self.lane.rails(self.endpoint).swap_remove(rail)
    }
}

/// Both ends of a link, and a clock that can be advanced.
struct Pair<S> {
    sides: TwoSides<S>,
    ends: [End; 2],
    ahead: Duration,
    allowed: u32,
}

impl Pair<SoftDevice> {
    fn new() -> Pair<SoftDevice> {
        Pair::over(TwoSides::new())
    }
}

impl<S> Pair<S> {
    fn over(sides: TwoSides<S>) -> Pair<S> {
        let mut connected = join(&sides, b"who").unwrap().into_iter();
        let mut parts = sides.devices.each_ref().map(|device| {
            let mut lane = device.lane().unwrap();
            let endpoint = lane.attach(connected.next().unwrap()).unwrap();
            let [source, inbox] = [(); 2].map(|()| device.allocate(PUTS as usize * BYTES).unwrap());
            let shared = lane.share(endpoint, inbox.1).unwrap();
            (lane, endpoint, source, inbox.0, shared)
        });
        let keys = parts.each_ref().map(|part| part.4.clone());
        let remotes = [0, 1].map(|side| {
            let (lane, endpoint, ..) = &mut parts[side];
            lane.import(*endpoint, &keys[1 - side]).unwrap()
        });
        let mut parts = parts.into_iter().zip(remotes);
        let ends = [0, 1].map(|side| {
            let ((lane, endpoint, (source, key), inbox, _), remote) = parts.next().unwrap();
            for number in 0..PUTS {
                source.write(number as usize * BYTES, &[byte(side, number); BYTES]).unwrap();
            }
            let (done, arrived) = (BTreeMap::new(), BTreeMap::new());
            End { lane, endpoint, key, inbox, remote, posted: 0, done, arrived, lost: None }
        });
        Pair { sides, ends, ahead: Duration::ZERO, allowed: 0 }
    }

    /// Polls both ends until the condition is true. After [`PATIENCE`], panics with a message that
    /// begins with `what`.
    fn until(&mut self, what: &str, is_so: impl Fn(&Pair<S>) -> bool) {
        let end = ccl_clock::now() + PATIENCE;
        while !is_so(self) {
            for end in &mut self.ends {
                end.go_on(ccl_clock::now() + self.ahead, self.allowed);
            }
            let states = || self.ends.each_ref().map(|end| end.lane.rails(end.endpoint));
            assert!(ccl_clock::now() < end, "{what}: timed out; rails: {:#?}", states());
        }
    }

    /// Allows each end `puts` more puts, and checks that all of them arrive.
    fn carry(&mut self, puts: u32, context: &str) {
        self.allowed += puts;
        let all = self.allowed as usize;
        self.until(context, |pair| {
            let lost = |end: &End| end.lost.clone();
            assert_eq!(pair.ends.each_ref().map(lost), [None, None], "{context}");
            pair.ends.iter().all(|end| end.arrived.len() == all && end.done.len() == all)
        });
        for (side, end) in self.ends.iter().enumerate() {
            assert!(end.arrived.values().all(|times| *times == 1), "{context}: a put came twice");
            assert!(end.done.values().all(|times| *times == 1), "{context}: a put completed twice");
            let mut inbox = vec![0; all * BYTES];
            end.inbox.read(0, &mut inbox).unwrap();
            for (number, put) in (0..).zip(inbox.chunks(BYTES)) {
                let right = put.iter().all(|seen| *seen == byte(1 - side, number));
                assert!(right, "{context}: put {number} has wrong data");
            }
        }
    }

    fn has_failed(&self, rail: usize) -> bool {
        self.failures(rail) > 0
    }

    /// Returns the number of failures of a rail that both ends have seen.
    fn failures(&self, rail: usize) -> u64 {
        self.ends.each_ref().map(|end| end.rail(rail).failures).into_iter().min().unwrap()
    }

    fn is_up(&self, rail: usize) -> bool {
        self.ends.iter().all(|end| end.rail(rail).is_up)
    }

    /// Calls `fail`, which makes a device fail a put. Checks that the put goes over the other rail,
    /// that the failed rail comes back, and that no put is lost or doubled. Returns the reported
    /// failure.
    fn fails_over(
        &mut self,
        (side, rail): (usize, usize),
        context: &str,
        fail: impl Fn(&S),
    ) -> String {
        self.carry(100, context);
        fail(&self.sides.softs[side][rail]);
        self.carry(200, context);
        self.until(context, |pair| pair.has_failed(rail));
        let failure = self.ends[side].rail(rail).failure.unwrap();
        self.comes_back(rail, PAUSE, context);
        let other = self.ends.each_ref().map(|end| end.rail(1 - rail).failures);
        assert_eq!(other, [0, 0], "{context}");
        failure
    }

    /// Checks that a failed rail comes back after this pause and carries puts.
    fn comes_back(&mut self, rail: usize, pause: Duration, context: &str) {
        self.ahead += pause;
        self.until(context, |pair| pair.is_up(rail));
        let carried = |pair: &Pair<S>| pair.ends.each_ref().map(|end| end.rail(rail).puts);
        let before = carried(self);
        self.carry(200, context);
        let after = carried(self);
        assert!((0..2).all(|side| after[side] > before[side]), "{context}: {before:?} {after:?}");
    }
}

#[test]
fn a_failed_write_goes_over_the_other_rail_and_its_own_rail_recovers() {
    for (side, rail) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        for late in [false, true] {
            let context = format!("device {rail} of side {side}, late: {late}");
            let failure = Pair::new().fails_over((side, rail), &context, |soft| match late {
                false => soft.fail_next(IBV_WC_RETRY_EXC_ERR),
                // The peer has the data, and must not get it again.
                true => soft.fail_next_late(IBV_WC_LOC_QP_OP_ERR),
            });
            assert!(failure.contains("a write to"), "{context}: {failure}");
        }
    }
}

#[test]
fn a_rail_whose_queue_pairs_fail_comes_back() {
    for side in [0, 1] {
        let context = format!("side {side}");
        let mut pair = Pair::new();
        pair.carry(100, &context);
        pair.sides.softs[side][1].raise(IBV_EVENT_QP_FATAL);
        pair.carry(200, &context);
        pair.until(&context, |pair| pair.has_failed(1));
        pair.comes_back(1, PAUSE, &context);
    }
}

#[test]
fn a_port_without_link_is_unused_until_its_link_returns() {
    for side in [0, 1] {
        let context = format!("side {side}");
        let mut pair = Pair::new();
        pair.carry(100, &context);
        pair.sides.softs[side][0].set_link(false);
        pair.allowed += 100;
        pair.until(&context, |pair| pair.ends.iter().all(|end| end.posted == pair.allowed));
        pair.until(&context, |pair| pair.has_failed(0));
        let failure = pair.ends[side].rail(0).failure.unwrap();
        assert!(failure.contains("the port lost its link"), "{context}: {failure}");
        pair.carry(200, &context);
        pair.ahead += PAUSE;
        pair.until("rail 0 does not fail a second time", |pair| pair.failures(0) == 2);
        pair.carry(200, &context);
        pair.sides.softs[side][0].set_link(true);
        pair.comes_back(0, 2 * PAUSE, &context);
    }
}

#[test]
fn a_failed_device_is_not_used_again_and_the_other_rail_goes_on() {
    for side in [0, 1] {
        let context = format!("side {side}");
        let mut pair = Pair::new();
        pair.carry(100, &context);
        pair.sides.softs[side][0].raise(IBV_EVENT_DEVICE_FATAL);
        pair.carry(200, &context);
        pair.until(&context, |pair| pair.has_failed(0));
        let failure = pair.ends[side].rail(0).failure.unwrap();
        assert!(failure.contains("the device failed"), "{context}: {failure}");
        pair.ahead += PAUSE;
        pair.until("rail 0 does not fail a second time", |pair| pair.failures(0) == 2);
        pair.carry(200, &context);
        assert!(!pair.is_up(0) && pair.is_up(1), "{context}");
    }
}

#[test]
fn a_link_whose_devices_all_fail_is_lost_with_the_reason_of_each() {
    for (first, second) in [(0, 0), (0, 1), (1, 0)] {
        let mut pair = Pair::new();
        pair.carry(100, "before");
        pair.allowed = PUTS;
        pair.sides.softs[first][0].raise(IBV_EVENT_DEVICE_FATAL);
        pair.sides.softs[second][1].raise(IBV_EVENT_DEVICE_FATAL);
        pair.until("the link survives", |pair| pair.ends.iter().all(|end| end.lost.is_some()));
        let reasons = pair.ends.each_ref().map(|end| end.lost.as_deref().unwrap());
        for reason in reasons {
            assert!(reason.contains("rail 0: ") && reason.contains("rail 1: "), "{reason}");
        }
        for (rail, side) in [(0, first), (1, second)] {
            let name = pair.sides.softs[side][rail].name();
            let own = format!("rail {rail}: {name}:1: the device failed");
            assert!(reasons[side].contains(&own), "{own}: {}", reasons[side]);
        }
        for (from, to) in [(0, 1), (1, 0)] {
            let [from, to] = [&pair.ends[from], &pair.ends[to]];
            let known = from.done.keys().all(|id| to.arrived.contains_key(&(*id as u32)));
            assert!(known, "a put completed but never arrived");
        }
    }
}

/// Checks that no put is lost or arrives twice if `fail` makes a rail fail while its side leaves.
fn leaves_nothing_behind<S>(new: impl Fn() -> Pair<S>, fail: impl Fn(&S)) {
    for rail in [0, 1] {
        let mut pair = new();
        pair.carry(100, "before");
        fail(&pair.sides.softs[0][rail]);
        let [leaving, other] = &mut pair.ends;
        leaving.post(ccl_clock::now(), PUTS);
        let all = leaving.posted as usize;
        let end = ccl_clock::now() + PATIENCE;
        while !leaving.lane.poll_shutdown(Some(leaving.endpoint)) {
            other.go_on(ccl_clock::now(), 0);
            assert!(ccl_clock::now() < end, "rail {rail}: the farewell does not end");
        }
        assert_eq!(
            leaving.rail(rail).failures,
            1,
            "rail {rail}: {:?}",
            leaving.lane.rails(leaving.endpoint)
        );
        leaving.lane.detach(leaving.endpoint);
        while other.lost.is_none() {
            other.go_on(ccl_clock::now(), 0);
            assert!(ccl_clock::now() < end, "rail {rail}: the other side never loses the link");
        }
        assert_eq!(other.arrived.len(), all, "rail {rail}: {:?}", other.lost);
        assert!(other.arrived.values().all(|times| *times == 1), "rail {rail}: a put came twice");
    }
}

#[test]
fn a_rail_that_fails_while_its_side_leaves_loses_no_put() {
    let _turn = software_providers();
    leaves_nothing_behind(Pair::new, |soft| soft.fail_next(IBV_WC_RETRY_EXC_ERR));
    leaves_nothing_behind(Pair::new, |soft| soft.fail_next_late(IBV_WC_LOC_QP_OP_ERR));
    for fault in [Fault::Fails(libc::EIO), Fault::FailsLate(libc::EIO)] {
        leaves_nothing_behind(|| Pair::over(TwoSides::ofi()), |soft| soft.fail_next(fault));
    }
}

/// Returns the warnings and errors that are logged while `run` runs.
fn warnings(run: impl FnOnce()) -> String {
    let (mut reader, writer) = std::io::pipe().unwrap();
    let format = tracing_subscriber::fmt().with_max_level(tracing::Level::WARN);
    let subscriber = format.with_writer(Arc::new(writer)).with_ansi(false).finish();
    tracing::subscriber::with_default(subscriber, run);
    let mut logged = String::new();
    reader.read_to_string(&mut logged).unwrap();
    logged
}

/// The end of a job is no network problem, so no rail is logged as failed.
#[test]
fn no_rail_is_logged_as_failed_when_its_peer_leaves() {
    let _turn = software_providers();
    fn leave<S>(mut pair: Pair<S>) {
        pair.carry(100, "before");
        let [leaving, mut other] = pair.ends;
        let mut leaving = Some(leaving);
        let end = ccl_clock::now() + PATIENCE;
        while other.lost.is_none() {
            if leaving.as_mut().is_some_and(|end| end.lane.poll_shutdown(None)) {
                leaving = None;
            }
            other.go_on(ccl_clock::now(), 0);
            assert!(ccl_clock::now() < end, "the other side never loses the link");
        }
    }
    assert_eq!(warnings(|| leave(Pair::new())), "");
    assert_eq!(warnings(|| leave(Pair::over(TwoSides::ofi()))), "");
    let failing = || {
        let fail = |soft: &SoftDevice| soft.fail_next(IBV_WC_RETRY_EXC_ERR);
        Pair::new().fails_over((0, 1), "a failure", fail);
    };
    let logged = warnings(failing);
    assert!(logged.contains("a rail has failed rail=1"), "{logged}");
}

impl<S> Fixture for TwoSides<S> {
    fn device(&self, side: usize) -> Arc<dyn Device> {
        Arc::clone(&self.devices[side])
    }

    fn now(&self) -> Instant {
        ccl_clock::now()
    }

    fn idle(&self) {
        std::thread::sleep(Duration::from_micros(20));
    }
}

#[test]
fn rails_over_rdma_pass_the_suite_of_transports() {
    let report = run(|| Box::new(TwoSides::new()));
    println!("{report}");
    assert!(report.passed(), "{report}");
}

#[test]
fn rails_over_libfabric_pass_the_suite_of_transports() {
    let _turn = software_providers();
    for emulates_writes in [false, true] {
        let report = run(|| Box::new(TwoSides::over(emulates_writes)));
        println!("{report}");
        assert!(report.passed(), "emulates writes: {emulates_writes}: {report}");
    }
}

#[test]
fn a_failed_request_goes_over_the_other_rail_and_its_own_rail_recovers() {
    let _turn = software_providers();
    let rails = [(0, 0), (0, 1), (1, 0), (1, 1)];
    for (at, emulates_writes) in rails.into_iter().flat_map(|at| [(at, false), (at, true)]) {
        let (side, rail) = at;
        for fault in [Fault::Fails(libc::EIO), Fault::FailsLate(libc::EIO)] {
            let context = format!(
                "provider {rail} of side {side}, emulates writes: {emulates_writes}, {fault:?}"
            );
            let mut pair = Pair::over(TwoSides::over(emulates_writes));
            let failure = pair.fails_over(at, &context, |soft| soft.fail_next(fault));
            assert!(failure.contains("the provider says: "), "{context}: {failure}");
        }
    }
}

/// Checks that no put is missing if a side learns late that a put of its peer has failed. Until
/// then, the peer's provider still acknowledges the side's puts, so the peer must take them in.
#[test]
fn puts_that_arrive_after_a_failure_of_the_receiver_are_taken_in() {
    let _turn = software_providers();
    for emulates_writes in [false, true] {
        let context = format!("emulates writes: {emulates_writes}");
        let mut pair = Pair::over(TwoSides::over(emulates_writes));
        pair.carry(100, &context);
        pair.sides.softs[0][0].fail_next(Fault::Fails(libc::EIO));
        pair.allowed += 100;
        let Pair { ends: [alone, other], allowed, .. } = &mut pair;
        other.post(ccl_clock::now(), *allowed);
        let end = ccl_clock::now() + ALONE;
        while ccl_clock::now() < end {
            alone.go_on(ccl_clock::now(), *allowed);
        }
        pair.carry(100, &context);
        pair.until(&context, |pair| pair.has_failed(0));
        let [alone, other] = pair.ends.each_ref().map(|end| end.rail(0).failure.unwrap());
        assert!(alone.contains("the provider says: "), "{context}: {alone}");
        assert!(other.contains("it says: "), "{context}: {other}");
        assert_eq!(pair.ends.each_ref().map(|end| end.rail(1).failures), [0, 0], "{context}");
    }
}

/// Checks that a side sends its puts over the other rail after the side's completion queue on one
/// rail has failed. The test ensures that the peer has no puts in flight when the queue fails. The
/// failing side's device would acknowledge such puts to the peer, but only the failed queue would
/// report their arrival. The loss of these reports would end the link.
#[test]
fn a_provider_with_an_unreadable_queue_fails_and_the_other_goes_on() {
    let _turn = software_providers();
    for (side, emulates_writes) in [(0, false), (1, false), (0, true), (1, true)] {
        let context = format!("side {side}, emulates writes: {emulates_writes}");
        let mut pair = Pair::over(TwoSides::over(emulates_writes));
        pair.carry(100, &context);
        pair.sides.softs[side][0].set(Condition::Broken(libc::EIO));
        pair.ends[side].go_on(ccl_clock::now(), pair.allowed + AT_ONCE);
        pair.until(&context, |pair| pair.has_failed(0));
        pair.carry(200, &context);
        assert!(!pair.is_up(0) && pair.is_up(1), "{context}");
        pair.sides.softs[side][0].set(Condition::Good);
        if !emulates_writes {
            pair.comes_back(0, PAUSE, &context);
            continue;
        }
        // All peers of a lane share the endpoint of its messages, so the lane keeps that endpoint.
        pair.ahead += PAUSE;
        pair.until("rail 0 does not fail a second time", |pair| pair.failures(0) == 2);
        pair.carry(200, &context);
        assert!(!pair.is_up(0) && pair.is_up(1), "{context}");
    }
}
