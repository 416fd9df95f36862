//! Tests that the simulated transport, ordered and unordered, conforms under quiet and hostile
//! conditions, and that the suite detects transports that break a promise.

use std::sync::Arc;
use std::time::Duration;

use ccl_conformance::{Fixture, Report, Verdict, run};
use ccl_core::time::Instant;
use ccl_core::transport::{
    Address, Device, DeviceId, Event, FaultInjector, Faults, FaultyDevice, Lane, LocalSlice,
    Secret, Transport, WorkRequest,
};
use ccl_transport_sim::{Conditions, World};

/// World of two ranks.
struct Simulated {
    world: World,
    wrap: fn(Box<dyn Lane>) -> Box<dyn Lane>,
    dress: fn(Arc<dyn Device>) -> Arc<dyn Device>,
}

impl Simulated {
    fn new(conditions: Conditions, seed: u64) -> Simulated {
        let conditions = Conditions { message_bytes_max: 70_000, ..conditions };
        let world = World::new(2, conditions, seed);
        Simulated { world, wrap: |lane| lane, dress: |device| device }
    }
}

impl Fixture for Simulated {
    fn device(&self, side: usize) -> Arc<dyn Device> {
        (self.dress)(self.world.device(side as u32))
    }

    fn now(&self) -> Instant {
        self.world.now()
    }

    fn idle(&self) {
        self.world.step();
    }

    fn patience(&self) -> Duration {
        Duration::from_secs(2)
    }

    fn wrap(&self, _: usize, lane: Box<dyn Lane>) -> Box<dyn Lane> {
        (self.wrap)(lane)
    }

    fn stranger(&self, address: &Address, bytes: &[u8]) -> bool {
        self.world.stranger(address, bytes);
        true
    }

    fn awaits_farewells(&self) -> bool {
        false
    }

    fn kill(&self, side: usize) -> bool {
        self.world.crash_at(side as u32, self.world.now());
        true
    }
}

#[test]
fn the_simulator_conforms() {
    for seed in 0..10 {
        for ordered in [false, true] {
            for calm in [Conditions::default(), Conditions::hostile()] {
                let conditions = Conditions { ordered, redirects: ordered, ..calm };
                let report = run(|| Box::new(Simulated::new(conditions.clone(), seed)));
                assert!(report.passed(), "seed {seed}, {conditions:?}\n{report}");
                let skipped =
                    report.points.iter().filter(|(_, v)| matches!(v, Verdict::Skipped(_)));
                // The points on farewells and on receive buffers are always skipped. The ordered
                // worlds redirect puts and use no CTS, so they skip the point on CTS, too. The
                // unordered worlds skip the point on order, and, since they do not redirect puts,
                // four points on relocations and redirects.
                assert_eq!(skipped.count(), if ordered { 3 } else { 7 }, "{report}");
            }
        }
    }
}

/// Returns the report of the suite on a world whose lanes go through `wrap`.
fn report_of(wrap: fn(Box<dyn Lane>) -> Box<dyn Lane>) -> Report {
    run(|| Box::new(Simulated { wrap, ..Simulated::new(Conditions::default(), 1) }))
}

/// Checks that the suite fails at a point whose name contains `point`.
fn is_noticed(report: &Report, point: &str) {
    let found = report.failures().iter().any(|name| name.contains(point));
    assert!(found, "no failed point has {point:?} in its name:\n{report}");
}

/// Report of the suite on lanes with these faults.
macro_rules! with {
    ($faults:expr) => {
        report_of(|lane| Box::new(FaultInjector::new(lane, $faults)))
    };
}

/// Fault that loses every n-th event of a kind. The fields are n, the test of the kind, and the
/// number of events of the kind since the last loss.
#[derive(Debug)]
struct Losing(u32, fn(&Event) -> bool, u32);

impl Faults for Losing {
    fn event(&mut self, event: Event, seen: &mut Vec<Event>) {
        self.2 += u32::from((self.1)(&event));
        if self.2 == self.0 {
            self.2 = 0;
        } else {
            seen.push(event);
        }
    }
}

#[test]
fn lost_and_doubled_events_are_noticed() {
    let report = with!(Losing(40, |event| matches!(event, Event::Arrived { .. }), 0));
    is_noticed(&report, "back-pressure");
    let report = with!(Losing(40, |event| matches!(event, Event::Done { .. }), 0));
    is_noticed(&report, "back-pressure");
    let report = with!(Losing(1, |event| matches!(event, Event::Lost { .. }), 0));
    is_noticed(&report, "a peer's death is reported once");
    is_noticed(&report, "the end of a detached endpoint is reported to its peer once");

    #[derive(Debug)]
    struct Doubling;
    impl Faults for Doubling {
        fn event(&mut self, event: Event, seen: &mut Vec<Event>) {
            seen.extend([event.clone(), event]);
        }
    }
    let report = with!(Doubling);
    is_noticed(&report, "back-pressure");
    is_noticed(&report, "a peer's death is reported once");
}

/// Fault that changes every request in one way.
#[derive(Debug)]
struct Changing(fn(WorkRequest, &mut Vec<WorkRequest>));

impl Faults for Changing {
    fn work(&mut self, work: WorkRequest, posted: &mut Vec<WorkRequest>, _: &mut Vec<Event>) {
        (self.0)(work, posted);
    }
}

#[test]
fn an_early_immediate_is_noticed() {
    #[derive(Debug)]
    struct Early;
    impl Faults for Early {
        fn work(&mut self, work: WorkRequest, posted: &mut Vec<WorkRequest>, _: &mut Vec<Event>) {
            let WorkRequest::Put { local, immediate, id, .. } = work;
            let put = |local, immediate, id| {
                let mut put = work;
                let WorkRequest::Put { local: from, immediate: name, id: own, .. } = &mut put;
                (*from, *name, *own) = (local, immediate, id);
                put
            };
            if immediate.is_some() && local.bytes > 0 {
                posted.push(put(LocalSlice { bytes: 0, ..local }, immediate, u64::MAX));
            }
            posted.push(put(local, immediate.filter(|_| local.bytes == 0), id));
        }
        fn event(&mut self, event: Event, seen: &mut Vec<Event>) {
            if event != (Event::Done { id: u64::MAX }) {
                seen.push(event);
            }
        }
    }
    is_noticed(&with!(Early), "before the immediate");
}

#[test]
fn puts_with_wrong_offsets_lengths_or_immediates_are_noticed() {
    let report = with!(Changing(|mut work, posted| {
        let WorkRequest::Put { local, remote_offset, .. } = &mut work;
        local.offset = local.offset.min(8);
        *remote_offset = (*remote_offset).min(8);
        local.bytes = local.bytes.min(1);
        posted.push(work);
    }));
    is_noticed(&report, "out of range");
    is_noticed(&report, "exactly their bytes");
    let report = with!(Changing(|mut work, posted| {
        let WorkRequest::Put { immediate, .. } = &mut work;
        *immediate = immediate.map(|immediate| immediate & 0x7ff_ffff);
        posted.push(work);
    }));
    is_noticed(&report, "every immediate");
    let report = with!(Changing(|mut work, posted| {
        let WorkRequest::Put { immediate, .. } = &mut work;
        immediate.get_or_insert(0);
        posted.push(work);
    }));
    is_noticed(&report, "without immediate");
}

#[test]
fn lanes_that_ignore_tails_relocations_or_redirects_are_noticed() {
    let tailless = with!(Changing(|mut work, posted| {
        let WorkRequest::Put { tail, .. } = &mut work;
        *tail = None;
        posted.push(work);
    }));
    is_noticed(&tailless, "from two ranges of memory");

    #[derive(Debug)]
    struct Staying;
    impl Faults for Staying {
        fn relocates(&self) -> bool {
            false
        }
    }
    is_noticed(&with!(Staying), "may move while the put is under way");

    #[derive(Debug)]
    struct Deaf;
    impl Faults for Deaf {
        fn redirects(&mut self, _: Option<LocalSlice>) -> Option<Option<LocalSlice>> {
            None
        }
    }
    is_noticed(&with!(Deaf), "a redirect applies to one put");

    #[derive(Debug)]
    struct Stubborn;
    impl Faults for Stubborn {
        fn redirects(&mut self, into: Option<LocalSlice>) -> Option<Option<LocalSlice>> {
            into.map(Some)
        }
    }
    is_noticed(&with!(Stubborn), "a redirect can be undone");
}

#[test]
fn a_completion_before_the_source_is_read_is_noticed() {
    #[derive(Debug)]
    struct Hasty;
    impl Faults for Hasty {
        fn work(
            &mut self,
            work: WorkRequest,
            posted: &mut Vec<WorkRequest>,
            events: &mut Vec<Event>,
        ) {
            let WorkRequest::Put { id, .. } = work;
            events.push(Event::Done { id });
            posted.push(work);
        }
        fn event(&mut self, event: Event, seen: &mut Vec<Event>) {
            if !matches!(event, Event::Done { .. }) {
                seen.push(event);
            }
        }
    }
    is_noticed(&with!(Hasty), "after Done the source may be changed");
}

#[test]
fn a_detach_after_which_puts_still_arrive_is_noticed() {
    #[derive(Debug)]
    struct Clinging;
    impl Faults for Clinging {
        fn detaches(&self) -> bool {
            false
        }
    }
    is_noticed(&with!(Clinging), "after detach");
}

fn lying(device: Arc<dyn Device>, change: fn(&mut FaultyDevice)) -> Arc<dyn Device> {
    let mut lying = FaultyDevice::new(device);
    change(&mut lying);
    Arc::new(lying)
}

/// Returns the report of the suite on a world whose devices are wrapped by `dress`.
fn report_of_devices(dress: fn(Arc<dyn Device>) -> Arc<dyn Device>) -> Report {
    run(|| Box::new(Simulated { dress, ..Simulated::new(Conditions::default(), 1) }))
}

#[test]
fn false_claims_are_noticed() {
    let report = report_of_devices(|device| lying(device, |lying| lying.caps.ordered = true));
    is_noticed(&report, "claim: ordered");
    let report = report_of_devices(|device| lying(device, |lying| lying.caps.mapped = true));
    is_noticed(&report, "claim: mapped");
    let report = report_of_devices(|device| lying(device, |lying| lying.caps.depth_max *= 2));
    is_noticed(&report, "depth_max");
    let report =
        report_of_devices(|device| lying(device, |lying| lying.caps.message_bytes_max *= 2));
    is_noticed(&report, "every size");
}

#[test]
fn a_device_that_ignores_secrets_and_deadlines_is_noticed() {
    let report = report_of_devices(|device| lying(device, |lying| lying.gullible = true));
    is_noticed(&report, "a wrong secret");
    is_noticed(&report, "connecting ends at its deadline");
}

#[test]
fn ranks_and_devices_that_do_not_exist_are_refused() {
    let world = World::new(2, Conditions::default(), 1);
    let error = world.device(2).listen(&Secret([0; 32])).unwrap_err();
    let expected = "3 ranks of the simulated world are not possible; use 1 to 2";
    assert!(error.to_string().contains(expected), "{error}");
    let transport = world.transport(1);
    let info = &transport.devices()[0];
    assert!(transport.open(&info.id).is_ok());
    assert!(transport.open(&DeviceId("sim0".to_owned())).is_err());
}
