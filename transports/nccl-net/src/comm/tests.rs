//! Messages over rails that fail and come back, over simulated devices: none is lost, none comes
//! twice, and each is in its buffer.

use std::sync::Arc;
use std::time::Duration;

use ccl_core::transport::{Device, Secret};
use ccl_memory::Region;
use ccl_transport_rails::{RailsDevice, shorten};
use ccl_transport_sim::{Conditions, Random, World};

use super::Settings;
use super::line::Way;
use super::receiver::{Buffer, Receiver};
use super::sender::Sender;
use crate::context::Context;
use crate::error::NetError;
use crate::memory::Mr;
use crate::table::{Id, Kind, RequestId, Table};

const SECRET: Secret = Secret([5; 32]);
/// Longer than anything takes, of simulated time.
const PATIENCE: Duration = Duration::from_secs(600);
const SETTINGS: Settings = Settings {
    slots: 8,
    slot_bytes: 1024,
    short_bytes: 1024,
    timeout: PATIENCE,
    warn_after: PATIENCE,
};
const TAGS: u64 = 4;

/// Two sides with a device on each of some rails: the `r`th device of side `s` is rank `2 r + s`.
struct House {
    world: World,
    rails: u32,
    sender: Sender,
    receiver: Receiver,
    /// Numbers for registrations.
    numbers: Table<()>,
}

/// What is sent, in the order of the buffers.
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

impl House {
    /// With a connection, that begins with one rail of all.
    fn new(rails: u32, seed: u64) -> House {
        let conditions =
            Conditions { retransmissions_max: 2, redirects: false, ..Conditions::hostile() };
        let world = World::new(2 * rails, Conditions { loss: 0.001, ..conditions }, seed);
        let devices = [0, 1].map(|side| device(&world, rails, side));
        let way = |side: usize| {
            let device = Arc::clone(&devices[side]);
            Way { home: Arc::clone(&device), device, traffic_class: None }
        };
        let mut listener = devices[0].listen(&SECRET).unwrap();
        let mut address = listener.address();
        while let Some(shorter) = shorten(&address, |_| None) {
            address = shorter;
        }
        let until = world.now() + PATIENCE;
        let mut connecting = devices[1].connect(&address, &SECRET, b"", until).unwrap();
        let (mut sender, mut receiver): (Option<Sender>, Option<Receiver>) = (None, None);
        loop {
            let now = world.now();
            if let Some(connected) = listener.poll(now).unwrap() {
                receiver = Some(ok(Receiver::new(&way(0), connected, SETTINGS, now)));
            }
            if sender.is_none()
                && let Some(connected) = connecting.poll(now).unwrap()
            {
                let does = (Arc::new(Context::default()), None);
                sender = Some(ok(Sender::new(&way(1), connected, SETTINGS, does, now)));
            }
            sender.iter_mut().for_each(|sender| ok(sender.pump(now)));
            receiver.iter_mut().for_each(|receiver| ok(receiver.pump(now)));
            match (sender, receiver) {
                (Some(sender), Some(receiver)) if sender.is_ready() && receiver.is_ready() => {
                    let numbers = Table::new(Kind::Memory);
                    return House { world, rails, sender, receiver, numbers };
                }
                parts => (sender, receiver) = parts,
            }
            world.step();
            assert!(world.now() < until, "they do not meet");
        }
    }

    fn go_on(&mut self) {
        let now = self.world.now();
        ok(self.sender.pump(now));
        ok(self.receiver.pump(now));
        self.world.step();
    }

    /// Whether both sides have all rails.
    fn is_whole(&mut self) -> bool {
        let is_whole = |line: &mut super::line::Line| line.rails().iter().all(|rail| rail.is_up);
        is_whole(self.sender.line()) && is_whole(self.receiver.line())
    }

    fn failures(&mut self) -> u64 {
        self.sender.line().rails().iter().map(|rail| rail.failures).sum()
    }
}

/// Messages of all lengths: some short, some in slots' pieces, few that go in parts.
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

/// What is under way of either side.
struct Flight {
    request: RequestId,
    messages: Vec<Message>,
}

/// Sends all messages, each a little earlier or later than its buffer, while rails fail if they
/// are to.
fn run(house: &mut House, messages: &[Message], random: &mut Random, fails: bool) -> Vec<usize> {
    let bytes = messages.iter().map(|message| message.bytes).sum::<usize>().max(1);
    let (from, into) = (Region::private(bytes), Region::private(bytes));
    let pattern: Vec<u8> = (0..bytes).map(|at| (at * 31 + at / 251) as u8).collect();
    from.write(0, &pattern).unwrap();
    let source = Arc::new(ok(Mr::new(&house.sender.line().home, from)));
    let sink = Arc::new(ok(Mr::new(&house.receiver.line().home, into.clone())));
    let number: Id = house.numbers.add(Box::new(())).unwrap();
    let (mut sent, mut received) = (0, 0);
    // Of those, which are sent before earlier ones with other tags.
    let mut early: Vec<usize> = Vec::new();
    let (mut sending, mut receiving): (Vec<Flight>, Vec<Flight>) = (Vec::new(), Vec::new());
    let (mut sizes, mut done) = (Vec::new(), 0);
    let until = house.world.now() + PATIENCE;
    while done < messages.len() || !sending.is_empty() || sent < messages.len() {
        let now = house.world.now();
        if sent < messages.len() && sent < received + 12 && random.chance(0.5) {
            let message = messages[sent];
            let skipped = early.iter().position(|at| *at == sent);
            if let Some(at) = skipped {
                early.swap_remove(at);
                sent += 1;
                continue;
            }
            // Perhaps one behind it, if no other of its tag is between.
            let ahead = (sent + 1..(sent + 6).min(messages.len())).find(|at| {
                let tag = messages[*at].tag;
                !early.contains(at)
                    && (sent..*at).all(|at| early.contains(&at) || messages[at].tag != tag)
            });
            let ahead = ahead.filter(|_| random.chance(0.3));
            let message = ahead.map_or(message, |at| messages[at]);
            let mr = Some(Arc::clone(&source)).filter(|_| message.bytes > 0);
            let request = house.sender.isend(now, mr, message.offset, message.bytes, message.tag);
            if let Some(request) = ok(request) {
                sending.push(Flight { request, messages: vec![message] });
                match ahead {
                    Some(at) => early.push(at),
                    None => sent += 1,
                }
            }
        }
        if received < messages.len() && received < sent + 40 && random.chance(0.3) {
            let count = 1 + random.below(4) as usize;
            let group = &messages[received..(received + count).min(messages.len())];
            let buffer = |message: &Message| Buffer {
                mr: (message.bytes > 0).then(|| (number, Arc::clone(&sink))),
                offset: message.offset,
                bytes: message.bytes,
                tag: message.tag,
            };
            let buffers: Vec<Buffer> = group.iter().map(buffer).collect();
            if let Some(request) = ok(house.receiver.irecv(now, &buffers)) {
                receiving.push(Flight { request, messages: group.to_vec() });
                received += group.len();
            }
        }
        sending.retain(|flight| match ok(house.sender.test(now, flight.request)) {
            Some(bytes) => {
                assert_eq!(bytes, flight.messages[0].bytes);
                false
            }
            None => true,
        });
        receiving.retain(|flight| match ok(house.receiver.test(now, flight.request)) {
            Some((count, got)) => {
                assert_eq!(count, flight.messages.len());
                for (message, got) in flight.messages.iter().zip(got) {
                    assert_eq!(message.bytes, got, "{message:?}");
                    sizes.push(got);
                }
                done += count;
                false
            }
            None => true,
        });
        if fails && random.chance(0.01) && house.is_whole() {
            let rail = random.below(house.rails.into()) as u32;
            let [first, other] = if random.chance(0.5) { [0, 1] } else { [1, 0] };
            house.world.disconnect(2 * rail + first, 2 * rail + other);
        }
        house.go_on();
        let states = || format!("{done} of {}, {} sending", messages.len(), sending.len());
        assert!(house.world.now() < until, "{}", states());
    }
    let mut seen = vec![0; bytes];
    into.read(0, &mut seen).unwrap();
    let wrong = seen.iter().zip(&pattern).position(|(seen, right)| seen != right);
    let wrong = wrong.filter(|at| *at < messages.iter().map(|message| message.bytes).sum());
    assert_eq!(wrong, None, "a byte is wrong");
    ok(source.deregister());
    ok(sink.deregister());
    house.receiver.withdraw(number);
    house.numbers.remove(number);
    sizes
}

#[test]
fn messages_survive_rails_that_fail() {
    let mut failures = 0;
    for seed in 0..12 {
        let mut house = House::new(2 + seed as u32 % 3, seed);
        let mut random = Random::new(seed);
        for phase in 0..4 {
            let all = messages(200, &mut random);
            let sizes = run(&mut house, &all, &mut random, true);
            assert_eq!(sizes.len(), all.len(), "seed {seed}, phase {phase}");
            // What has failed comes back.
            let until = house.world.now() + PATIENCE;
            while !house.is_whole() {
                house.go_on();
                assert!(
                    house.world.now() < until,
                    "seed {seed}: {:?}",
                    house.sender.line().rails()
                );
            }
        }
        failures += house.failures();
    }
    assert!(failures > 30, "only {failures} rails have failed");
}

/// All rails carry their share, of one message too.
#[test]
fn long_messages_go_over_all_rails() {
    let mut house = House::new(3, 7);
    let until = house.world.now() + PATIENCE;
    while !house.is_whole() {
        house.go_on();
        assert!(house.world.now() < until, "{:?}", house.sender.line().rails());
    }
    let message = Message { tag: 0, offset: 0, bytes: 32 << 20 };
    run(&mut house, &[message], &mut Random::new(1), false);
    let rails = house.sender.line().rails();
    assert!(rails.iter().all(|rail| rail.bytes > 4 << 20), "{rails:?}");
}
