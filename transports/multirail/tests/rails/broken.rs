//! Tests with devices that refuse memory or work.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ccl_core::transport::{
    Device, Event, Faults, FaultyDevice, Lane, LocalSlice, TransportError, WorkRequest,
};
use ccl_memory::Region;
use ccl_transport_multirail::RailsDevice;
use ccl_transport_sim::{Conditions, World};

use crate::failing::meet;
use crate::sides::TwoSides;

const EIO: i32 = 5;
const EMFILE: i32 = 24;

/// Controls of one of side 0's devices.
#[derive(Clone, Debug, Default)]
struct Knobs {
    /// Error number with which memory is refused; 0 if memory is not refused.
    code: Arc<AtomicI32>,
    /// Error number with which new lanes are refused; 0 if lanes are not refused.
    lane_code: Arc<AtomicI32>,
    /// True if lanes take no work.
    is_full: Arc<AtomicBool>,
    /// Number of further checks that are to find the farewell unfinished.
    leaving: Arc<AtomicUsize>,
    /// Farewell checks and detached endpoints, in order, each with the number of its device.
    log: Arc<Mutex<Vec<(usize, Step)>>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Farewell,
    Detach,
}

/// Faults of a lane. The first field is the number of the lane's device.
#[derive(Debug)]
struct Faulty(usize, Knobs);

impl Faulty {
    fn log(&self, step: Step) {
        self.1.log.lock().unwrap().push((self.0, step));
    }
}

impl Faults for Faulty {
    fn takes(&self, _: &WorkRequest) -> bool {
        !self.1.is_full.load(Ordering::Relaxed)
    }

    fn leaves(&mut self) -> bool {
        self.log(Step::Farewell);
        let left = self.1.leaving.load(Ordering::Relaxed);
        self.1.leaving.store(left.saturating_sub(1), Ordering::Relaxed);
        left == 0
    }

    fn detaches(&self) -> bool {
        self.log(Step::Detach);
        true
    }
}

fn refused(code: i32) -> Result<(), TransportError> {
    let (call, reason, advice) = ("a call", "refused by the test".to_owned(), "do not refuse it");
    if code == 0 { Ok(()) } else { Err(TransportError::Os { call, code, reason, advice }) }
}

/// Returns two sides and the controls of side 0's devices, which are faulty.
fn sides() -> (TwoSides, [Knobs; 2]) {
    let conditions = Conditions { redirects: false, ..Conditions::default() };
    let mut sides = TwoSides::new([2, 2], conditions, 5);
    let log = Arc::default();
    let knobs = [(); 2].map(|()| Knobs { log: Arc::clone(&log), ..Knobs::default() });
    let faulty = |at: u32| -> (String, Arc<dyn Device>) {
        let knobs = knobs[at as usize].clone();
        let (code, lane_code) = (Arc::clone(&knobs.code), Arc::clone(&knobs.lane_code));
        let device = FaultyDevice::new(sides.world.device(2 * at))
            .with_lanes(move || Faulty(at as usize, knobs.clone()))
            .with_refused_lanes(move || refused(lane_code.load(Ordering::Relaxed)))
            .with_memory(move || refused(code.load(Ordering::Relaxed)));
        (format!("sim{at}"), Arc::new(device))
    };
    sides.devices[0] = Arc::new(RailsDevice::new([0, 1].map(faulty).to_vec()).unwrap());
    (sides, knobs)
}

/// Polls both lanes until the lane of `side` has an event other than `Done`.
fn await_event(world: &World, lanes: &mut [Box<dyn Lane>; 2], side: usize) -> Event {
    let until = world.now() + Duration::from_secs(10);
    loop {
        for (at, lane) in lanes.iter_mut().enumerate() {
            let mut events = Vec::new();
            lane.poll(world.now(), &mut events).unwrap();
            let counts = |event: &Event| !matches!(event, Event::Done { .. });
            if let Some(event) = events.into_iter().find(counts)
                && at == side
            {
                return event;
            }
        }
        world.step();
        assert!(world.now() < until);
    }
}

#[test]
fn puts_avoid_a_device_that_refuses_memory_or_lanes() {
    const BYTES: usize = 4096;
    for (broken, has_lanes) in [(0, true), (1, true), (0, false), (1, false)] {
        let (sides, knobs) = sides();
        knobs[broken].lane_code.store(if has_lanes { 0 } else { EIO }, Ordering::Relaxed);
        let world = &sides.world;
        let mut lanes = [0, 1].map(|side: usize| sides.devices[side].lane().unwrap());
        let mut connected = meet(&sides, 0).into_iter();
        let endpoints =
            lanes.each_mut().map(|lane| lane.attach(connected.next().unwrap()).unwrap());
        knobs[broken].code.store(EIO, Ordering::Relaxed);
        let memory = [0, 1].map(|side: usize| sides.devices[side].allocate(BYTES).unwrap());
        let keys = [0, 1].map(|side| lanes[side].share(endpoints[side], memory[side].1).unwrap());
        let remotes =
            [0, 1].map(|side| lanes[side].import(endpoints[side], &keys[1 - side]).unwrap());
        for side in [0, 1] {
            memory[side].0.write(0, &[side as u8 + 1; BYTES / 2]).unwrap();
            let put = |at: usize| WorkRequest::Put {
                endpoint: endpoints[side],
                local: LocalSlice { key: memory[side].1, offset: at * 64, bytes: 64 },
                tail: None,
                is_control: false,
                remote: remotes[side],
                remote_offset: BYTES / 2 + at * 64,
                immediate: Some(at as u32),
                id: at as u64,
            };
            let work: Vec<_> = (0..8).map(put).collect();
            assert_eq!(lanes[side].post(world.now(), &work).unwrap(), 8);
            for _ in 0..8 {
                let event = await_event(world, &mut lanes, 1 - side);
                assert!(matches!(event, Event::Arrived { bytes: 64, .. }), "{event:?}");
            }
            let mut seen = [0; 512];
            memory[1 - side].0.read(BYTES / 2, &mut seen).unwrap();
            assert_eq!(seen, [side as u8 + 1; 512]);
        }
        let carried = lanes[0].rails(endpoints[0]);
        assert_eq!(carried[broken].puts, 0, "{carried:?}");
        sides.devices[0].deregister(memory[0].1).unwrap();
    }
}

#[test]
fn making_a_lane_fails_if_all_devices_fail_or_one_has_a_shortage() {
    for codes in [[EIO, EIO], [EMFILE, 0], [0, EMFILE]] {
        let (sides, knobs) = sides();
        for (knobs, code) in knobs.iter().zip(codes) {
            knobs.lane_code.store(code, Ordering::Relaxed);
        }
        let error = sides.devices[0].lane().unwrap_err().to_string();
        assert!(error.contains("refused by the test"), "{codes:?}: {error}");
    }
}

#[test]
fn a_shortage_or_refusal_of_one_device_fails_the_registration() {
    const ENOMEM: i32 = 12;
    let (sides, knobs) = sides();
    let (device, region) = (&sides.devices[0], Region::private(4096));
    for at in [0, 1] {
        knobs[at].code.store(ENOMEM, Ordering::Relaxed);
        let errors = [device.allocate(4096).unwrap_err(), device.register(&region).unwrap_err()];
        assert!(errors.iter().all(TransportError::is_shortage), "{errors:?}");
        knobs[at].code.store(EIO, Ordering::Relaxed);
        let error = device.register(&region).unwrap_err();
        let is_named = error.to_string().contains("refused by the test");
        assert!(!error.is_shortage() && is_named, "{error}");
        knobs[at].code.store(0, Ordering::Relaxed);
    }
    knobs.iter().for_each(|knobs| knobs.code.store(EIO, Ordering::Relaxed));
    assert!(device.allocate(4096).is_err());
    knobs.iter().for_each(|knobs| knobs.code.store(0, Ordering::Relaxed));
    let key = device.register(&region).unwrap();
    device.deregister(key).unwrap();
}

/// Checks that a rail counts as recovered only once a test put over it has arrived.
#[test]
fn a_rail_is_not_up_until_its_device_takes_the_test_put() {
    let (sides, knobs) = sides();
    let world = &sides.world;
    let mut lanes = [0, 1].map(|side: usize| sides.devices[side].lane().unwrap());
    let mut connected = meet(&sides, 0).into_iter();
    let endpoints = lanes.each_mut().map(|lane| lane.attach(connected.next().unwrap()).unwrap());
    let memory = [0, 1].map(|side: usize| sides.devices[side].allocate(4096).unwrap());
    let keys = [0, 1].map(|side| lanes[side].share(endpoints[side], memory[side].1).unwrap());
    for side in [0, 1] {
        lanes[side].import(endpoints[side], &keys[1 - side]).unwrap();
    }
    world.disconnect(2, 3);
    knobs[1].is_full.store(true, Ordering::Relaxed);
    let mut up = |lasts: Duration| {
        let until = world.now() + lasts;
        while world.now() < until {
            for lane in &mut lanes {
                lane.poll(world.now(), &mut Vec::new()).unwrap();
            }
            let rails = lanes.each_ref().map(|lane| lane.rails(endpoints[0])[1].clone());
            if rails[0].failures > 0 && rails[0].is_up {
                return rails[1].is_up;
            }
            world.advance(world.now() + Duration::from_millis(1));
        }
        false
    };
    assert!(!up(Duration::from_secs(10)), "the rail is up although no test put has arrived");
    knobs[1].is_full.store(false, Ordering::Relaxed);
    assert!(up(Duration::from_secs(10)), "the rail never comes back");
}

/// Checks that all rails wait for their farewells at the same time. A failed call may have to wait
/// for farewells before it returns its error. If the rails waited one after the other, the
/// delay would be multiplied by the number of rails.
#[test]
fn rails_send_their_farewells_together() {
    for by_drop in [false, true] {
        let (sides, knobs) = sides();
        let mut lanes = [0, 1].map(|side: usize| sides.devices[side].lane().unwrap());
        let mut connected = meet(&sides, 0).into_iter();
        let endpoints =
            lanes.each_mut().map(|lane| lane.attach(connected.next().unwrap()).unwrap());
        knobs.iter().for_each(|knobs| knobs.leaving.store(3, Ordering::Relaxed));
        let [mut lane, _peer] = lanes;
        if !by_drop {
            lane.detach(endpoints[0]);
        }
        drop(lane);
        let log = knobs[0].log.lock().unwrap();
        let first = [(0, Step::Farewell), (1, Step::Farewell), (0, Step::Farewell)];
        assert_eq!(log[..3], first, "the rails wait one after the other: {log:?}");
        let detached = log.iter().position(|(_, step)| *step == Step::Detach);
        assert!(by_drop || detached >= Some(8), "detached before the farewells ended: {log:?}");
    }
}
