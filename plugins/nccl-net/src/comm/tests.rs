//! Tests of messages over simulated rails that fail and recover: no message is lost or duplicated,
//! and each arrives in its buffer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use ccl_core::transport::{Device, Faults, FaultyDevice, Secret};
use ccl_memory::Region;
use ccl_transport_multirail::{RailsDevice, shorten};
use ccl_transport_sim::{Conditions, Random, World};

use super::buffer::Buffer;
use super::connection::ConnectionSettings;
use super::receiver::Receiver;
use super::sender::Sender;
use super::{Communicator, Settings};
use crate::context::Context;
use crate::error::NetError;
use crate::memory::Mr;
use crate::progress::Progress;
use crate::table::{Helped, Id, Kind, RequestId, Table};

const SECRET: Secret = Secret([5; 32]);
/// Deadline that no correct test reaches, in simulated time.
const PATIENCE: Duration = Duration::from_secs(600);
const SETTINGS: Settings = Settings {
    slots: 8,
    slot_bytes: 1024,
    short_bytes: 1024,
    has_helpers: false,
    timeout: PATIENCE,
    warn_after: PATIENCE,
};
const TAGS: u64 = 4;

/// A simulated world with a receiver (side 0) and a sender (side 1), which have a device on each
/// rail: the device of side `s` on rail `r` is rank `2 r + s` of the world.
struct TwoSides {
    world: World,
    rails: u32,
    sender: Sender,
    receiver: Receiver,
    /// Table that gives numbers for registrations.
    numbers: Table<()>,
    /// Random choice of the steps in which helpers poll; none if there are no helpers.
    helpers: Option<Random>,
}

/// A message to be sent. A list of messages is in the order in which their buffers are posted.
#[derive(Clone, Copy, Debug)]
struct Message {
    tag: i32,
    offset: usize,
    bytes: usize,
}

fn device(world: &World, rails: u32, side: u32) -> Arc<dyn Device> {
    let devices = (0..rails).map(|rail| (format!("sim{rail}"), world.device(2 * rail + side)));
    Arc::new(RailsDevice::new(devices.collect()).unwrap())
}

fn ok<T>(result: Result<T, NetError>) -> T {
    result.unwrap_or_else(|error| panic!("{error}"))
}

impl TwoSides {
    /// Creates two sides whose connection starts with a single rail.
    fn new(rails: u32, seed: u64, settings: Settings) -> TwoSides {
        let conditions =
            Conditions { retransmissions_max: 2, redirects: false, ..Conditions::hostile() };
        let world = World::new(2 * rails, Conditions { loss: 0.001, ..conditions }, seed);
        let devices = [0, 1].map(|side| device(&world, rails, side));
        TwoSides::over(world, rails, &devices, settings)
    }

    fn over(
        world: World,
        rails: u32,
        devices: &[Arc<dyn Device>; 2],
        settings: Settings,
    ) -> TwoSides {
        let connection_settings = |side: usize| {
            let device = Arc::clone(&devices[side]);
            ConnectionSettings { mr_device: Arc::clone(&device), device, traffic_class: None }
        };
        let mut listener = devices[0].listen(&SECRET).unwrap();
        let mut address = listener.address();
        while let Some(shorter) = shorten(&address, 1, |_| None) {
            address = shorter;
        }
        let until = world.now() + PATIENCE;
        let mut connecting = devices[1].connect(&address, &SECRET, b"", until).unwrap();
        let (mut sender, mut receiver): (Option<Sender>, Option<Receiver>) = (None, None);
        loop {
            let now = world.now();
            if let Some(connected) = listener.poll(now).unwrap() {
                receiver =
                    Some(ok(Receiver::new(&connection_settings(0), connected, settings, now)));
            }
            if sender.is_none()
                && let Some(connected) = connecting.poll(now).unwrap()
            {
                let does = (Arc::new(Context::default()), None);
                sender =
                    Some(ok(Sender::new(&connection_settings(1), connected, settings, does, now)));
            }
            sender.iter_mut().for_each(|sender| ok(sender.pump(now)));
            receiver.iter_mut().for_each(|receiver| ok(receiver.pump(now)));
            match (sender, receiver) {
                (Some(sender), Some(receiver)) if sender.is_ready() && receiver.is_ready() => {
                    let numbers = Table::new(Kind::Memory);
                    let helpers = None;
                    return TwoSides { world, rails, sender, receiver, numbers, helpers };
                }
                parts => (sender, receiver) = parts,
            }
            world.step();
            assert!(world.now() < until, "the two sides did not connect");
        }
    }

    fn go_on(&mut self) {
        let now = self.world.now();
        if let Some(random) = &mut self.helpers {
            if random.chance(0.3) && now < self.sender.helped_until() {
                self.sender.help(&|| now);
            }
            if random.chance(0.3) && now < self.receiver.helped_until() {
                self.receiver.help(&|| now);
            }
        } else {
            ok(self.sender.pump(now));
            ok(self.receiver.pump(now));
        }
        self.world.step();
    }

    /// Returns whether all rails are up on both sides.
    fn is_whole(&mut self) -> bool {
        let is_whole = |connection: &mut super::connection::Connection| {
            connection.rails().iter().all(|rail| rail.is_up)
        };
        is_whole(self.sender.connection()) && is_whole(self.receiver.connection())
    }

    fn failures(&mut self) -> u64 {
        self.sender.connection().rails().iter().map(|rail| rail.failures).sum()
    }
}

/// Creates messages of all lengths: short ones, and some that go directly into their buffers.
fn messages(count: usize, random: &mut Random) -> Vec<Message> {
    let mut offset = 0;
    let lengths = [0, 1, 100, 1024, 1025, 5000, 70_000];
    let message = |at: usize| {
        let bytes = match at % 97 {
            96 => 5_000_000,
            _ => lengths[random.below(lengths.len() as u64) as usize],
        };
        let message = Message { tag: random.below(TAGS) as i32, offset, bytes };
        offset += bytes;
        message
    };
    (0..count).map(message).collect()
}

/// A transfer that is under way on either side.
struct Flight {
    request: RequestId,
    messages: Vec<Message>,
}

/// Messages on their way.
struct Traffic<'t> {
    messages: &'t [Message],
    source: Arc<Mr>,
    sink: (Id, Arc<Mr>),
    /// Index before which all messages have been sent. Of the other messages, those with an index
    /// in `early` have been sent, too.
    sent: usize,
    early: Vec<usize>,
    /// Number of buffers that have been posted.
    received: usize,
    sending: Vec<Flight>,
    receiving: Vec<Flight>,
    done: usize,
}

impl Traffic<'_> {
    fn is_over(&self) -> bool {
        let all = self.messages.len();
        (self.done, self.sent) == (all, all) && self.sending.is_empty()
    }

    /// Returns the index of the next message to send or, at random, of a later message that
    /// overtakes no message of its tag.
    fn next(&mut self, random: &mut Random) -> Option<usize> {
        while let Some(at) = self.early.iter().position(|at| *at == self.sent) {
            self.early.swap_remove(at);
            self.sent += 1;
        }
        let Traffic { messages, sent, early, .. } = self;
        let end = (*sent + 6).min(messages.len());
        let may_go = |at: &usize| {
            let is_between =
                |other: usize| !early.contains(&other) && messages[other].tag == messages[*at].tag;
            !early.contains(at) && !(*sent..*at).any(is_between)
        };
        let ahead = (*sent + 1..end).find(may_go).filter(|_| random.chance(0.3));
        ahead.or_else(|| (*sent < messages.len()).then_some(*sent))
    }

    fn send(&mut self, sides: &mut TwoSides, random: &mut Random) {
        if self.sent >= self.received + 12 {
            return;
        }
        let Some(at) = self.next(random) else { return };
        let message = self.messages[at];
        let mr = Some(Arc::clone(&self.source)).filter(|_| message.bytes > 0);
        let Message { tag, offset, bytes } = message;
        let request = ok(sides.sender.isend(sides.world.now(), mr, offset, bytes, tag));
        let Some(request) = request else { return };
        self.sending.push(Flight { request, messages: vec![message] });
        self.early.push(at);
    }

    fn receive(&mut self, sides: &mut TwoSides, random: &mut Random) {
        let (first, count) = (self.received, 1 + random.below(4) as usize);
        let group = &self.messages[first..(first + count).min(self.messages.len())];
        if group.is_empty() || first >= self.sent + 40 {
            return;
        }
        let buffer = |message: &Message| Buffer {
            mr: (message.bytes > 0).then(|| self.sink.clone()),
            offset: message.offset,
            bytes: message.bytes,
            tag: message.tag,
        };
        let buffers: Vec<Buffer> = group.iter().map(buffer).collect();
        if let Some(request) = ok(sides.receiver.irecv(sides.world.now(), &buffers)) {
            self.receiving.push(Flight { request, messages: group.to_vec() });
            self.received += group.len();
        }
    }

    fn test(&mut self, sides: &mut TwoSides) {
        let now = sides.world.now();
        self.sending.retain(|flight| match ok(sides.sender.test(now, flight.request)) {
            Some(bytes) => {
                assert_eq!(bytes, flight.messages[0].bytes);
                false
            }
            None => true,
        });
        let done = &mut self.done;
        self.receiving.retain(|flight| match ok(sides.receiver.test(now, flight.request)) {
            Some((count, got)) => {
                let sizes: Vec<usize> = flight.messages.iter().map(|one| one.bytes).collect();
                assert_eq!(got[..count], sizes);
                *done += count;
                false
            }
            None => true,
        });
    }
}

/// Sends all messages, each a little before or after its buffer is posted. Rails fail meanwhile if
/// `fails` is true.
fn run(sides: &mut TwoSides, messages: &[Message], random: &mut Random, fails: bool) {
    let bytes = messages.iter().map(|message| message.bytes).sum::<usize>();
    let (from, into) = (Region::private(bytes.max(1)), Region::private(bytes.max(1)));
    let pattern: Vec<u8> = (0..bytes).map(|at| (at * 31 + at / 251) as u8).collect();
    from.write(0, &pattern).unwrap();
    let source = Arc::new(ok(Mr::new(&sides.sender.connection().mr_device, from)));
    let sink = Arc::new(ok(Mr::new(&sides.receiver.connection().mr_device, into.clone())));
    let number = sides.numbers.add(Box::new(())).unwrap();
    let mut traffic = Traffic {
        messages,
        source,
        sink: (number, sink),
        sent: 0,
        early: Vec::new(),
        received: 0,
        sending: Vec::new(),
        receiving: Vec::new(),
        done: 0,
    };
    let until = sides.world.now() + PATIENCE;
    while !traffic.is_over() {
        if random.chance(0.5) {
            traffic.send(sides, random);
        }
        if random.chance(0.3) {
            traffic.receive(sides, random);
        }
        traffic.test(sides);
        if fails && random.chance(0.01) && sides.is_whole() {
            let rail = random.below(sides.rails.into()) as u32;
            let [first, other] = if random.chance(0.5) { [0, 1] } else { [1, 0] };
            sides.world.disconnect(2 * rail + first, 2 * rail + other);
        }
        sides.go_on();
        assert!(
            sides.world.now() < until,
            "{} of {} messages arrived in time",
            traffic.done,
            messages.len()
        );
    }
    let mut seen = vec![0; bytes];
    into.read(0, &mut seen).unwrap();
    let wrong = seen.iter().zip(&pattern).position(|(seen, right)| seen != right);
    assert_eq!(wrong, None, "index of the first wrong byte");
    ok(traffic.source.deregister());
    ok(traffic.sink.1.deregister());
    sides.receiver.withdraw(number);
    sides.numbers.remove(number);
}

#[test]
fn messages_survive_rails_that_fail() {
    let mut failures = 0;
    let seeds = if std::env::var_os("FERROCCL_TEST_FULL").is_some() { 12 } else { 3 };
    for seed in 0..seeds {
        let mut sides = TwoSides::new(2 + seed as u32 % 3, seed, SETTINGS);
        let mut random = Random::new(seed);
        for _ in 0..4 {
            let all = messages(200, &mut random);
            run(&mut sides, &all, &mut random, true);
            // Failed rails recover.
            let until = sides.world.now() + PATIENCE;
            while !sides.is_whole() {
                sides.go_on();
                assert!(
                    sides.world.now() < until,
                    "seed {seed}: a rail did not recover: {:?}",
                    sides.sender.connection().rails()
                );
            }
        }
        failures += sides.failures();
    }
    assert!(failures > 2 * seeds, "only {failures} rails have failed");
}

/// Tests that messages arrive if callers and, at random, helpers poll.
#[test]
fn messages_arrive_if_callers_and_helpers_poll() {
    for seed in 0..4 {
        let mut random = Random::new(seed);
        let conditions = Conditions { ordered: true, redirects: true, ..Conditions::default() };
        let world = World::new(2, conditions, seed);
        let devices = [0, 1].map(|side| -> Arc<dyn Device> { world.device(side) });
        let settings = Settings { has_helpers: true, ..SETTINGS };
        let mut sides = TwoSides::over(world, 1, &devices, settings);
        sides.helpers = Some(Random::new(seed));
        let all = messages(400, &mut random);
        run(&mut sides, &all, &mut random, false);
        left_to_a_helper(&mut sides);
    }
}

/// Sends a message right after a helper has polled, so that `isend` leaves the message to the
/// helper. Then closes the sender before a helper polls again, and checks that the message arrives.
fn left_to_a_helper(sides: &mut TwoSides) {
    let region = || Region::private(200_000);
    let source = Arc::new(ok(Mr::new(&sides.sender.connection().mr_device, region())));
    let sink = Arc::new(ok(Mr::new(&sides.receiver.connection().mr_device, region())));
    let number = sides.numbers.add(Box::new(())).unwrap();
    let now = sides.world.now();
    let buffers = [(0, 100_000), (100_000, 10)].map(|(offset, bytes)| Buffer {
        mr: Some((number, Arc::clone(&sink))),
        offset,
        bytes,
        tag: 9,
    });
    let received = ok(sides.receiver.irecv(now, &buffers)).unwrap();
    let until = now + PATIENCE;
    assert!(ok(sides.sender.isend(now, Some(Arc::clone(&source)), 0, 100_000, 9)).is_some());
    let mut was_reading = false;
    while sides.sender.is_reading() || !was_reading {
        was_reading |= sides.sender.is_reading();
        ok(sides.sender.pump(sides.world.now()));
        ok(sides.receiver.pump(sides.world.now()));
        sides.world.step();
        assert!(sides.world.now() < until);
    }
    let now = sides.world.now();
    assert!(now < sides.sender.helped_until());
    sides.sender.help(&|| now);
    assert!(ok(sides.sender.isend(now, Some(source), 100_000, 10, 9)).is_some());
    sides.sender.close(ccl_clock::now());
    let got = loop {
        let now = sides.world.now();
        ok(sides.sender.pump(now));
        if let Some(got) = ok(sides.receiver.test(now, received)) {
            break got;
        }
        sides.world.step();
        assert!(sides.world.now() < until);
    };
    assert_eq!((got.0, &got.1[..2]), (2, &[100_000, 10][..]));
}

/// Tests that a request without progress fails with a report, even while others progress.
#[test]
fn a_request_without_progress_fails_with_a_report() {
    let (warn_after, timeout) = (Duration::from_secs(2), Duration::from_secs(5));
    let settings = Settings { warn_after, timeout, ..SETTINGS };
    for others_move in [true, false] {
        let mut sides = TwoSides::new(1, 3, settings);
        let start = sides.world.now();
        let bytes = Region::private(1 << 20);
        let source = Arc::new(ok(Mr::new(&sides.sender.connection().mr_device, bytes)));
        let sent = ok(sides.sender.isend(start, Some(source), 0, 70_000, 9)).unwrap();
        let nothing = Buffer { tag: 8, ..Buffer::default() };
        let posted = ok(sides.receiver.irecv(start, &[nothing])).unwrap();
        let mut errors: [Option<String>; 2] = [None, None];
        let (empty, mut next) = (Message { tag: 1, offset: 0, bytes: 0 }, start);
        while errors.iter().any(Option::is_none) {
            if others_move && sides.world.now() >= next {
                next = sides.world.now() + timeout / 10;
                run(&mut sides, &[empty; 4], &mut Random::new(4), false);
            }
            let now = sides.world.now();
            let text = |error: NetError| error.text;
            let [send, receive] = &mut errors;
            *send = send.take().or_else(|| sides.sender.test(now, sent).err().map(text));
            *receive = receive.take().or_else(|| sides.receiver.test(now, posted).err().map(text));
            sides.go_on();
            sides.world.advance(now + Duration::from_millis(20));
            assert!(now.since(start) < 2 * timeout, "a request did not fail in time");
        }
        assert!(sides.world.now().since(start) >= timeout);
        let [send, receive] = errors.map(Option::unwrap_or_default);
        let what = "a send of 70000 bytes with tag 9 (the peer has posted no receive) to";
        assert!(send.starts_with(what) && send.contains("FERROCCL_NET_TIMEOUT"), "{send}");
        let what = "a receive of up to 0 bytes with tags [8] from";
        assert!(receive.starts_with(what), "{receive}");
        for text in [send, receive] {
            assert_eq!(text.contains("though the connection was active"), others_move, "{text}");
            assert_eq!(text.contains("the connection has been idle"), !others_move, "{text}");
        }
    }
}

/// Tests that a send to a lost peer does not report success, even with free slots.
#[test]
fn nothing_is_sent_to_a_peer_that_is_gone() {
    let mut sides = TwoSides::new(1, 3, SETTINGS);
    sides.sender.connection().lose("its process has ended".to_owned());
    let now = sides.world.now();
    let request = ok(sides.sender.isend(now, None, 0, 0, 0)).unwrap();
    let error = sides.sender.test(now, request).unwrap_err();
    assert!(error.text.contains("its process has ended"), "{}", error.text);
}

/// Fault of a lane: its farewell does not end before `is_over` is set. The fault also asserts that
/// closing another communicator does not block meanwhile.
#[derive(Clone, Debug, Default)]
struct Slow {
    asked: Arc<AtomicUsize>,
    is_over: Arc<AtomicBool>,
    progress: Arc<Progress>,
}

impl Faults for Slow {
    fn leaves(&mut self) -> bool {
        assert!(!self.progress.holds_up(), "closing a communicator would block now");
        self.asked.fetch_add(1, Ordering::Relaxed);
        self.is_over.load(Ordering::Relaxed)
    }
}

/// Tests that farewells of closed communicators advance together: the delays by several dead hosts
/// must not add up.
#[test]
fn farewells_of_closed_communicators_advance_together() {
    const COUNT: usize = 5;
    let slow = Slow::default();
    let progress = Arc::clone(&slow.progress);
    let mut receivers = Vec::new();
    for seed in 0..COUNT as u64 {
        let world = World::new(2, Conditions { redirects: false, ..Conditions::default() }, seed);
        let slow = slow.clone();
        let [accepting, dialling] = [0, 1].map(|side| device(&world, 1, side));
        let dialling = FaultyDevice::new(dialling).with_lanes(move || slow.clone());
        let dialling = Arc::new(dialling);
        let sides = TwoSides::over(world, 1, &[accepting, dialling], SETTINGS);
        receivers.push(sides.receiver);
        progress.close_sender(Box::new(sides.sender));
    }
    assert!(progress.drain(ccl_clock::now()));
    assert_eq!(slow.asked.load(Ordering::Relaxed), COUNT, "one round must poll each farewell once");
    slow.is_over.store(true, Ordering::Relaxed);
    assert!(progress.drain(ccl_clock::now()));
    assert!(!progress.drain(ccl_clock::now()), "a closed communicator was not dropped");
}

/// Tests that a receiver may close before its sender: ranks do not close at the same time.
#[test]
fn a_closed_receiver_discards_messages_that_still_arrive() {
    const STEP: Duration = Duration::from_micros(100);
    let world = World::new(2, Conditions { redirects: false, ..Conditions::default() }, 1);
    let devices = [0, 1].map(|side| device(&world, 1, side));
    let TwoSides { mut sender, receiver, .. } = TwoSides::over(world, 1, &devices, SETTINGS);
    let source = Arc::new(ok(Mr::new(&sender.connection().mr_device, Region::private(70_000))));
    let progress = Progress::default();
    let closed = ccl_clock::now();
    progress.close_receiver(Box::new(receiver));
    let (mut now, mut sends) = (closed, Vec::new());
    // Several times as many messages as there are slots.
    for _ in 0..5 * SETTINGS.slots {
        sends.push(ok(sender.isend(now, Some(Arc::clone(&source)), 0, 1000, 1)).unwrap());
        while sends.len() >= 4 {
            now = now + STEP;
            assert!(progress.drain(now), "the receiver is gone after {:?}", now.since(closed));
            sends.retain(|send| ok(sender.test(now, *send)).is_none());
        }
    }
    // A long message needs a CTS, which a closed receiver never sends.
    let long = ok(sender.isend(now, Some(source), 0, 70_000, 1)).unwrap();
    let error = loop {
        now = now + STEP;
        progress.drain(now);
        match sender.test(now, long) {
            Ok(done) => assert_eq!(done, None, "the send is done without a receive"),
            Err(error) => break error.text,
        }
        assert!(now.since(closed) < PATIENCE, "the send did not fail in time");
    };
    assert!(now.since(closed) >= Duration::from_millis(900), "{:?}", now.since(closed));
    assert!(error.contains("closed the connection"), "{error}");
}
