//! Faults planted below the protocol. The protocol must survive some of these faults. The other
//! faults break the protocol, and the tests must detect the break.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use ccl_core::admission::Immediate;
use ccl_core::execution::Link;
use ccl_core::transport::{Event, FaultInjector, Faults, Lane, WorkRequest};
use ccl_memory::Region;
use ccl_transport_sim::{Conditions, World};

use crate::harness::{Job, Simulated, connect, mapped, operate};
use crate::schedules::find;

/// Runs a ring with these faults on every rank's lane.
fn with_faults<F: Faults + 'static>(faults: impl FnMut() -> F) -> (Simulated, Vec<Vec<u8>>) {
    under(Conditions::default(), faults)
}

fn under<F: Faults + 'static>(
    conditions: Conditions,
    mut faults: impl FnMut() -> F,
) -> (Simulated, Vec<Vec<u8>>) {
    let mut job = Job::new(3, find("ring"), 6000);
    job.config.slots = 4;
    let inputs = job.inputs(1);
    let world = World::new(3, Conditions { depth_max: 16, ..conditions }, 1);
    let mut wrap = |_, lane| Box::new(FaultInjector::new(lane, faults())) as Box<dyn Lane>;
    let links = connect(&job, &world, &mut wrap);
    let expected = mapped(&job, &inputs);
    (operate(&job, &inputs, &world, links), expected)
}

fn name_of(event: &Event) -> Option<Immediate> {
    match event {
        Event::Arrived { immediate, .. } => Immediate::decode(*immediate),
        _ => None,
    }
}

#[derive(Debug)]
struct Nothing;

impl Faults for Nothing {}

#[test]
fn a_fault_injector_without_faults_changes_nothing() {
    let (simulated, expected) = with_faults(|| Nothing);
    simulated.check(&expected).unwrap();
    assert_eq!(simulated.refused(), 0);
}

/// Fault that reports every arrival twice.
#[derive(Debug)]
struct Twice;

impl Faults for Twice {
    fn event(&mut self, event: Event, seen: &mut Vec<Event>) {
        if name_of(&event).is_some() {
            seen.push(event.clone());
        }
        seen.push(event);
    }
}

#[test]
fn an_immediate_seen_twice_is_refused_once() {
    let (simulated, expected) = with_faults(|| Twice);
    simulated.check(&expected).unwrap();
    let received: u64 = simulated.counters.iter().map(|counters| counters.received).sum();
    assert_eq!(simulated.refused(), received, "expected one refusal per message, none for credits");
}

/// Fault that repeats the immediate of each message after two more messages.
#[derive(Debug, Default)]
struct Haunted {
    old: Vec<Event>,
    /// True if a repeated immediate gets another number: that of the next message in the same slot.
    /// The receiver's check of the number then passes.
    renewed: bool,
}

impl Faults for Haunted {
    fn event(&mut self, event: Event, seen: &mut Vec<Event>) {
        if let (
            Some(Immediate::Message { channel, number }),
            Event::Arrived { endpoint, bytes, .. },
        ) = (name_of(&event), &event)
        {
            let slots = 4;
            // A renewed immediate has the number of the next message in the same slot. That message
            // has not come when the immediate is shown.
            let later = u64::from(number) + if self.renewed { slots } else { 0 };
            let immediate = Immediate::message(channel, later).encode();
            let (endpoint, bytes) = (*endpoint, *bytes);
            self.old.push(Event::Arrived { endpoint, immediate, bytes });
        }
        seen.push(event);
        if self.old.len() > 2 {
            seen.push(self.old.remove(0));
        }
    }
}

#[test]
fn stale_immediates_are_refused_and_counted() {
    let (simulated, expected) = with_faults(Haunted::default);
    simulated.check(&expected).unwrap();
    assert!(simulated.refused() > 20, "only {} immediates were refused", simulated.refused());
}

/// Checks that the harness notices stale immediates that the receiver does not refuse. `renewed`
/// changes the numbers of the stale immediates so that they pass the receiver's check.
#[test]
fn stale_immediates_that_are_not_refused_are_noticed() {
    let (simulated, expected) = with_faults(|| Haunted { renewed: true, ..Haunted::default() });
    assert!(simulated.check(&expected).is_err());
}

/// Fault that shows the receiver a forged immediate before each true one.
#[derive(Debug)]
struct Forger(u32);

impl Faults for Forger {
    fn event(&mut self, event: Event, seen: &mut Vec<Event>) {
        if let Event::Arrived { endpoint, bytes, .. } = event {
            self.0 = self.0.wrapping_mul(0x9e37_79b1).wrapping_add(0x7f4a_7c15);
            // The message number is far from all numbers in use.
            let immediate = self.0 & (1 << 27 | 0xf_ffff) | 1 << 18;
            seen.push(Event::Arrived { endpoint, immediate, bytes });
        }
        seen.push(event);
    }
}

#[test]
fn forged_immediates_are_refused_and_counted() {
    let (simulated, expected) = with_faults(|| Forger(5));
    simulated.check(&expected).unwrap();
    assert!(simulated.refused() > 20, "only {} immediates were refused", simulated.refused());
}

/// Fault that writes each CTS record twice, and moves every third record by `by` records, modulo 8.
#[derive(Debug)]
struct Misplaced {
    by: u64,
    count: u32,
}

impl Misplaced {
    /// Returns the index, below 8, of the CTS record that a put writes, computed from the put's
    /// request id.
    fn record(work: &WorkRequest) -> Option<u64> {
        match *work {
            WorkRequest::Put { is_control: true, immediate: None, id, .. } => {
                Some(u64::from(u32::MAX - 1 - id as u32))
            }
            WorkRequest::Put { .. } => None,
        }
    }
}

impl Faults for Misplaced {
    fn work(&mut self, mut work: WorkRequest, posted: &mut Vec<WorkRequest>, _: &mut Vec<Event>) {
        if let Some(at) = Misplaced::record(&work) {
            self.count += 1;
            let WorkRequest::Put { remote_offset, .. } = &mut work;
            if self.count.is_multiple_of(3) {
                *remote_offset -= 64 * at as usize;
                *remote_offset += 64 * ((at + self.by) % 8) as usize;
            }
            posted.push(work);
        }
        posted.push(work);
    }
}

#[test]
fn misplaced_and_doubled_cts_records_do_no_harm() {
    let hardware = Conditions { redirects: false, ..Conditions::default() };
    for by in [0, 1, 3, 7] {
        let (simulated, expected) = under(hardware.clone(), || Misplaced { by, count: 0 });
        simulated.check(&expected).unwrap();
        let landed =
            simulated.counters.iter().map(|counters| counters.zero_copy_received).sum::<u64>();
        assert!(landed > 0, "offset {by}: no message was placed directly");
        assert_eq!(simulated.refused(), 0, "offset {by}: immediates or CTS were refused");
    }
}

/// Fault that raises the limit in each credit by two messages, as if two freed slots had been
/// counted twice.
#[derive(Debug)]
struct DoubleCredit;

impl Faults for DoubleCredit {
    fn work(&mut self, work: WorkRequest, posted: &mut Vec<WorkRequest>, _: &mut Vec<Event>) {
        let WorkRequest::Put { immediate: Some(immediate), .. } = work else { return };
        let mut changed = work;
        if let (Some(Immediate::Credit { channel, below }), WorkRequest::Put { immediate, .. }) =
            (Immediate::decode(immediate), &mut changed)
        {
            *immediate = Some(Immediate::credit(channel, u64::from(below) + 2).encode());
        }
        posted.push(changed);
    }
}

#[test]
fn a_credit_counted_twice_is_noticed() {
    let (simulated, expected) = with_faults(|| DoubleCredit);
    let wrong = simulated.check(&expected).is_err();
    assert!(wrong || simulated.refused() > 0, "slots were overrun and nobody saw it");
}

/// Fault that sends the immediate first and the bytes after it.
#[derive(Debug)]
struct Early;

impl Faults for Early {
    fn event(&mut self, event: Event, seen: &mut Vec<Event>) {
        // The put without bytes is reported as if it had brought a whole message.
        seen.push(match event {
            Event::Arrived { endpoint, immediate, bytes: 0 }
                if matches!(Immediate::decode(immediate), Some(Immediate::Message { .. })) =>
            {
                Event::Arrived { endpoint, immediate, bytes: 16 + 256 }
            }
            other => other,
        });
    }

    fn work(&mut self, work: WorkRequest, posted: &mut Vec<WorkRequest>, _: &mut Vec<Event>) {
        let (mut first, mut second) = (work, work);
        let WorkRequest::Put { local, id, .. } = &mut first;
        if local.bytes == 0 {
            posted.push(work);
            return;
        }
        local.bytes = 0;
        // The first put completes with an id that no request has.
        *id = u64::from(u32::MAX);
        let WorkRequest::Put { immediate, .. } = &mut second;
        *immediate = None;
        posted.extend([first, second]);
    }
}

#[test]
fn an_immediate_before_its_bytes_is_noticed() {
    let (simulated, expected) = with_faults(|| Early);
    let wrong = simulated.check(&expected).is_err();
    assert!(wrong, "the bytes came late and nobody saw it");
}

/// Fault that silently loses one message.
#[derive(Debug, Default)]
struct Hole {
    messages: u32,
}

impl Faults for Hole {
    fn work(&mut self, work: WorkRequest, posted: &mut Vec<WorkRequest>, events: &mut Vec<Event>) {
        let WorkRequest::Put { id, local, .. } = work;
        // Only messages count. Puts of credits have no bytes; losing one would do no harm, because
        // the next credit makes up for it.
        self.messages += u32::from(local.bytes > 0);
        if self.messages == 10 && local.bytes > 0 {
            events.push(Event::Done { id });
        } else {
            posted.push(work);
        }
    }
}

#[test]
fn an_operation_whose_message_never_comes_ends_at_the_deadline() {
    let (simulated, expected) = with_faults(Hole::default);
    let error = simulated.check(&expected).unwrap_err();
    assert!(error.contains("has not ended in time") && error.contains("rank"), "{error}");
}

/// Fault that cuts the last byte off every tenth message.
#[derive(Debug, Default)]
struct Short {
    messages: u32,
}

impl Faults for Short {
    fn work(&mut self, mut work: WorkRequest, posted: &mut Vec<WorkRequest>, _: &mut Vec<Event>) {
        let WorkRequest::Put { local, .. } = &mut work;
        self.messages += u32::from(local.bytes > 0);
        if self.messages % 10 == 9 && local.bytes > 0 {
            local.bytes -= 1;
        }
        posted.push(work);
    }
}

#[test]
fn messages_with_a_wrong_length_are_refused() {
    let (simulated, expected) = with_faults(Short::default);
    assert!(simulated.check(&expected).is_err());
    assert!(simulated.refused() > 0);
}

/// Fault of a lane that takes no data, as if its send queue were full.
#[derive(Debug)]
struct NoData;

impl Faults for NoData {
    fn takes(&self, WorkRequest::Put { is_control, .. }: &WorkRequest) -> bool {
        *is_control
    }
}

#[test]
fn credits_are_sent_while_the_lane_refuses_data() {
    let mut job = Job::new(2, find("ring"), 1);
    job.config.slots = 2;
    let world = World::new(2, Conditions::default(), 1);
    let mut wrap = |rank, lane: Box<dyn Lane>| match rank {
        0 => Box::new(FaultInjector::new(lane, NoData)) as Box<dyn Lane>,
        _ => lane,
    };
    let mut all = connect(&job, &world, &mut wrap);
    let link = |peer| Link { peer, channel: 0 };
    // The refused data is queued ahead of every credit.
    assert!(all[0].writable(link(1)));
    all[0].publish(link(1), 8, 0);
    for number in 0..10 {
        assert!(all[1].writable(link(0)), "the credit for message {number} has not come");
        all[1].publish(link(0), 8, 0);
        for _ in 0..10 {
            for links in &mut all {
                links.flush(world.now()).unwrap();
                links.poll(world.now()).unwrap();
            }
            world.advance(world.now() + Duration::from_micros(10));
        }
        assert!(all[0].readable(link(1)), "message {number} has not come");
        all[0].release(link(1));
        all[0].flush(world.now()).unwrap();
        world.advance(world.now() + Duration::from_micros(10));
        all[1].poll(world.now()).unwrap();
    }
    assert!(!all[1].readable(link(0)), "the lane took data that it must refuse");
}

/// Fault that changes nothing and keeps a log: "farewell" for each [`Lane::poll_shutdown`] that
/// returns true, and "detach" for each [`Lane::detach`] or [`Lane::abort`]. A `poll_shutdown` of
/// all endpoints is logged once.
#[derive(Debug, Default)]
struct Parting(Arc<Mutex<Vec<&'static str>>>);

impl Faults for Parting {
    fn leaves(&mut self) -> bool {
        self.0.lock().unwrap().push("farewell");
        true
    }

    fn detaches(&self) -> bool {
        self.0.lock().unwrap().push("detach");
        true
    }
}

#[test]
fn dropped_links_say_farewell_to_all_peers_before_they_detach_from_any_peer() {
    let job = Job::new(3, find("ring"), 1);
    let world = World::new(3, Conditions::default(), 1);
    let log = Parting::default();
    let mut wrap = |rank, lane: Box<dyn Lane>| match rank {
        0 => Box::new(FaultInjector::new(lane, Parting(Arc::clone(&log.0)))) as Box<dyn Lane>,
        _ => lane,
    };
    let mut all = connect(&job, &world, &mut wrap);
    drop(all.remove(0));
    assert_eq!(*log.0.lock().unwrap(), ["farewell", "detach", "detach"]);
}

/// A failed call withdraws memory while puts to two peers still read it. The link to each of these
/// peers says farewell before either link detaches.
#[test]
fn links_that_lose_their_memory_all_say_farewell_before_any_of_them_detaches() {
    let job = Job::new(3, find("ring"), 1);
    let conditions = Conditions { redirects: false, ..Conditions::default() };
    let world = World::new(3, conditions, 1);
    let log = Parting::default();
    let mut wrap = |rank, lane: Box<dyn Lane>| match rank {
        0 => Box::new(FaultInjector::new(lane, Parting(Arc::clone(&log.0)))) as Box<dyn Lane>,
        _ => lane,
    };
    let mut all = connect(&job, &world, &mut wrap);
    let memory = Region::allocate(128).unwrap();
    all[0].open(std::iter::once(memory.clone()));
    for peer in [1, 2] {
        let link = Link { peer, channel: 0 };
        assert!(all[0].writable(link) && all[0].send_from(link, memory.start().addr(), 128));
        all[0].publish(link, 128, 0);
    }
    all[0].flush(world.now()).unwrap();
    all[0].close();
    assert_eq!(*log.0.lock().unwrap(), ["farewell", "farewell", "detach", "detach"]);
}
