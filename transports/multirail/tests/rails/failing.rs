//! Rails that fail and come back while puts are under way: nothing is lost, nothing is doubled, and
//! no late write replaces newer data.

use std::collections::BTreeMap;
use std::time::Duration;

use ccl_core::transport::{
    Connected, EndpointId, Event, Lane, LocalSlice, MrKey, RemoteMr, Secret, WorkRequest,
};
use ccl_memory::Region;
use ccl_transport_multirail::TURNS;
use ccl_transport_sim::{Conditions, Cut, Random, World};

use crate::sides::TwoSides;

const SECRET: Secret = Secret([9; 32]);
/// Room that each put has in the memory of its sender and of its receiver, in bytes.
const STRIDE: usize = 512;
/// Size of a word behind the memory of all puts, in bytes. The word is written repeatedly, by puts
/// that carry no immediate.
const WORD: usize = 8;
/// Time limit, longer than anything takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// One side of the link.
struct End {
    lane: Box<dyn Lane>,
    endpoint: EndpointId,
    source: Region,
    source_key: MrKey,
    inbox: Region,
    remote: RemoteMr,
    puts: usize,
    /// Largest value that `posted` may reach at present. Some tests raise this limit step by step.
    allowed: usize,
    posted: usize,
    /// Number of times that each immediate has come.
    times: BTreeMap<u32, usize>,
    /// Number of times that each put of the other side has arrived.
    arrived: BTreeMap<usize, u32>,
    /// Number of times that each put of this side was done.
    done: BTreeMap<u64, u32>,
    /// Last value of the word that this side has written to the peer.
    word: u64,
    /// True if no put of the word is under way.
    word_done: bool,
    notes: Vec<Vec<u8>>,
    lost: Option<String>,
}

const WORD_ID: u64 = u64::MAX;
/// Number of different immediates, which are used again in turn. [`TURNS`] would be enough for any
/// number of rails: puts with equal immediates could always be told apart. The only test with more
/// puts than immediates has two rails, for which this smaller number is enough.
const IMMEDIATES: usize = TURNS / 4;

fn length(number: usize) -> usize {
    number * 37 % STRIDE
}

/// Returns the immediate of a put; immediates are used again.
fn immediate(number: usize) -> u32 {
    (number % IMMEDIATES) as u32
}

fn byte(side: usize, number: usize) -> u8 {
    (number * 7 + side * 101 + 1) as u8
}

/// Connects the two sides, and drops the listener. Returns the connection of each side. The dialled
/// address leaves out the last `left_out` devices of the accepting side.
pub(crate) fn meet(sides: &TwoSides, left_out: u32) -> [Connected; 2] {
    let [accepting, dialling] = &sides.devices;
    let mut listener = accepting.listen(&SECRET).unwrap();
    let deadline = sides.world.now() + PATIENCE;
    let mut address = listener.address();
    for _ in 0..left_out {
        address = ccl_transport_multirail::shorten(&address, 1, |_| None).unwrap();
    }
    let mut connecting = dialling.connect(&address, &SECRET, b"who", deadline).unwrap();
    let (mut one, mut other) = (None, None);
    while one.is_none() || other.is_none() {
        let now = sides.world.now();
        one = one.or_else(|| listener.poll(now).unwrap());
        other = other.or_else(|| connecting.poll(now).unwrap());
        sides.world.step();
    }
    [one.unwrap(), other.unwrap()]
}

fn ends(sides: &TwoSides, puts: usize, left_out: u32) -> [End; 2] {
    let mut ends = Vec::new();
    let mut keys = Vec::new();
    for (side, connected) in meet(sides, left_out).into_iter().enumerate() {
        let device = &sides.devices[side];
        let mut lane = device.lane().unwrap();
        let endpoint = lane.attach(connected).unwrap();
        let bytes = puts * STRIDE + WORD;
        let (source, source_key) = device.allocate(bytes).unwrap();
        let (inbox, inbox_key) = device.allocate(bytes).unwrap();
        for number in 0..puts {
            let text = vec![byte(side, number); length(number)];
            source.write(number * STRIDE, &text).unwrap();
        }
        keys.push(lane.share(endpoint, inbox_key).unwrap());
        ends.push(End {
            lane,
            endpoint,
            source,
            source_key,
            inbox,
            remote: RemoteMr(u64::MAX),
            puts,
            allowed: puts,
            posted: 0,
            times: BTreeMap::new(),
            arrived: BTreeMap::new(),
            done: BTreeMap::new(),
            word: 0,
            word_done: true,
            notes: Vec::new(),
            lost: None,
        });
    }
    for (end, key) in ends.iter_mut().zip(keys.iter().rev()) {
        end.remote = end.lane.import(end.endpoint, key).unwrap();
    }
    let [one, other] = <[End; 2]>::try_from(ends).ok().unwrap();
    [one, other]
}

impl End {
    fn request(&self, offset: usize, bytes: usize, immediate: Option<u32>, id: u64) -> WorkRequest {
        WorkRequest::Put {
            endpoint: self.endpoint,
            local: LocalSlice { key: self.source_key, offset, bytes },
            tail: None,
            is_control: immediate.is_none(),
            remote: self.remote,
            remote_offset: offset,
            immediate,
            id,
        }
    }

    /// Posts a few more puts, and handles the events.
    fn go_on(&mut self, world: &World, random: &mut Random) {
        let now = world.now();
        let until = (self.posted + random.below(8) as usize).min(self.allowed);
        let one = |at| self.request(at * STRIDE, length(at), Some(immediate(at)), at as u64);
        let work: Vec<_> = (self.posted..until).map(one).collect();
        self.posted += self.lane.post(now, &work).unwrap();
        if self.word_done && self.word < 500 {
            self.word += 1;
            let offset = self.puts * STRIDE;
            self.source.write(offset, &self.word.to_le_bytes()).unwrap();
            let put = self.request(offset, WORD, None, WORD_ID);
            self.word_done = self.lane.post(now, &[put]).unwrap() == 0;
            self.word -= u64::from(self.word_done);
        }
        let mut events = Vec::new();
        self.lane.poll(now, &mut events).unwrap();
        for event in events {
            match event {
                Event::Done { id: WORD_ID } => self.word_done = true,
                Event::Done { id } => *self.done.entry(id).or_default() += 1,
                Event::Arrived { immediate, bytes, .. } => {
                    let times = self.times.entry(immediate).or_default();
                    let number = immediate as usize + *times * IMMEDIATES;
                    *times += 1;
                    assert_eq!(bytes, length(number));
                    *self.arrived.entry(number).or_default() += 1;
                }
                Event::Note { bytes, .. } => self.notes.push(bytes),
                Event::Lost { reason, .. } => self.lost = Some(reason),
            }
        }
    }

    fn is_complete(&self) -> bool {
        let all = self.arrived.len() == self.puts && self.done.len() == self.puts;
        all && self.word == 500 && self.word_done
    }

    /// Checks that every put of the other side has arrived once and unchanged.
    fn check(&self, side: usize, context: &str) {
        assert_eq!(self.lost, None, "{context}");
        assert!(self.arrived.values().all(|count| *count == 1), "{context}: a put arrived twice");
        assert!(self.done.values().all(|count| *count == 1), "{context}: a put was done twice");
        for number in 0..self.puts {
            let mut seen = vec![0; length(number)];
            self.inbox.read(number * STRIDE, &mut seen).unwrap();
            let right = seen.iter().all(|seen| *seen == byte(1 - side, number));
            assert!(right, "{context}: put {number} arrived with wrong bytes");
        }
        let mut word = [0; WORD];
        self.inbox.read(self.puts * STRIDE, &mut word).unwrap();
        assert_eq!(
            u64::from_le_bytes(word),
            500,
            "{context}: an old word has replaced the last one"
        );
    }

    fn failures(&self) -> u64 {
        self.lane.rails(self.endpoint).iter().map(|rail| rail.failures).sum()
    }

    fn is_whole(&self) -> bool {
        self.lane.rails(self.endpoint).iter().all(|rail| rail.is_up)
    }
}

pub(crate) fn conditions() -> Conditions {
    Conditions {
        retransmissions_max: 2,
        redirects: false,
        // So low that no rail fails by chance alone.
        loss: 0.001,
        ..Conditions { depth_max: 16, ..Conditions::hostile() }
    }
}

/// Cuts each of these rails for the duration `lasts`: its two devices do not reach each other.
fn cut(world: &World, rails: &[u32], lasts: Duration) {
    let (ranks, from) = (rails.iter().map(|rail| 2 * rail).collect(), world.now());
    let cut = Some(Cut { ranks, from, until: from + lasts });
    world.set_conditions(Conditions { cut, ..world.conditions() });
}

#[test]
fn nothing_is_lost_or_doubled_when_rails_fail_and_come_back() {
    const PHASES: usize = 5;
    const PUTS: usize = 300;
    let mut failures = 0;
    for seed in 0..40 {
        let rails = 2 + seed as u32 % 4;
        let sides = TwoSides::new([rails; 2], conditions(), seed);
        let (world, mut random) = (&sides.world, Random::new(seed));
        let mut ends = ends(&sides, PHASES * PUTS, seed as u32 % rails);
        for phase in 1..=PHASES {
            ends.iter_mut().for_each(|end| end.allowed = phase * PUTS);
            let context = format!("seed {seed}, {rails} rails, phase {phase}");
            // One working rail is spared.
            let up = |end: &End, rail: u32| end.lane.rails(end.endpoint)[rail as usize].is_up;
            let works = |rail: &u32| ends.iter().all(|end| up(end, *rail));
            let working: Vec<u32> = (0..rails).filter(works).collect();
            let spared = working[random.below(working.len() as u64) as usize];
            let cuts: Vec<u32> =
                (0..rails).filter(|rail| *rail != spared && random.chance(0.7)).collect();
            let from = world.now() + Duration::from_micros(random.below(1500));
            let lasts = Duration::from_micros(random.below(9_000));
            let ranks = cuts.iter().map(|rail| 2 * rail).collect();
            let cut = Some(Cut { ranks, from, until: from + lasts });
            world.set_conditions(Conditions { cut, ..world.conditions() });
            let until = world.now() + PATIENCE;
            let is_done = |end: &End| {
                end.arrived.len() == end.allowed && end.done.len() == end.allowed && end.word_done
            };
            while !ends.iter().all(is_done) {
                // Some rails break with puts under way, and one side notices before the other.
                if random.chance(0.001) {
                    let rail = (spared + 1) % rails;
                    let [first, other] = if random.chance(0.5) { [0, 1] } else { [1, 0] };
                    world.disconnect(2 * rail + first, 2 * rail + other);
                }
                for end in &mut ends {
                    // Each side pauses at times.
                    if random.chance(0.3) {
                        end.go_on(world, &mut random);
                    }
                }
                world.step();
                ends.iter().for_each(|end| assert_eq!(end.lost, None, "{context}"));
                assert!(world.now() < until, "{context}: the puts take too long");
            }
            // Failed rails have time to come back; some may take longer.
            for _ in 0..random.below(400) {
                ends.iter_mut().for_each(|end| end.go_on(world, &mut random));
                world.advance(world.now() + Duration::from_millis(50));
            }
        }
        let context = format!("seed {seed}, {rails} rails");
        while !ends.iter().all(End::is_complete) {
            ends.iter_mut().for_each(|end| end.go_on(world, &mut random));
            world.step();
        }
        ends.iter().enumerate().for_each(|(side, end)| end.check(side, &context));
        failures += ends.iter().map(End::failures).sum::<u64>();
    }
    assert!(failures > 100, "rails have failed only {failures} times");
}

#[test]
fn a_rail_is_used_again_once_a_test_put_passes_over_it() {
    let sides = TwoSides::new([2, 2], conditions(), 3);
    let (world, mut random) = (&sides.world, Random::new(3));
    let mut ends = ends(&sides, 3000, 0);
    // The rail connects again after two seconds, while it is still cut: a cut stops puts but does
    // not prevent connecting in the simulator. The rail is up only after a test put has passed.
    let cut_until = world.now() + Duration::from_millis(4500);
    cut(world, &[1], Duration::from_millis(4500));
    let until = world.now() + PATIENCE;
    ends.iter_mut().for_each(|end| end.allowed = 1500);
    // Only half of the puts may be posted before the rail is back.
    while ends[0].failures() == 0 || ends[1].failures() == 0 || !ends.iter().all(End::is_whole) {
        ends.iter_mut().for_each(|end| end.go_on(world, &mut random));
        world.step();
        let has_failed = |end: &&End| end.failures() > 0;
        let is_away = |end: &End| !end.lane.rails(end.endpoint)[1].is_up;
        let dead = world.now() < cut_until;
        assert!(!dead || ends.iter().filter(has_failed).all(is_away), "a cut rail is shown as up");
        assert!(world.now() < until, "the rail never comes back");
    }
    ends.iter_mut().for_each(|end| end.allowed = end.puts);
    let carried = |end: &End| end.lane.rails(end.endpoint)[1].puts;
    let before = ends.each_ref().map(carried);
    while !ends.iter().all(End::is_complete) {
        ends.iter_mut().for_each(|end| end.go_on(world, &mut random));
        world.step();
        assert!(world.now() < until);
    }
    ends.iter().enumerate().for_each(|(side, end)| end.check(side, "after the rail came back"));
    for (end, before) in ends.iter().zip(before) {
        let rails = end.lane.rails(end.endpoint);
        assert!(
            carried(end) > before + 100,
            "rail 1 took too few puts after it came back: {before} puts before, and now {rails:?}"
        );
    }
}

/// Checks that a link whose address names one device works with this device at once, and soon with
/// all devices, although its listener is dropped.
#[test]
fn rails_to_devices_that_the_address_leaves_out_join_later() {
    for counts in [[4, 4], [4, 2], [2, 4], [1, 3], [3, 1]] {
        let sides = TwoSides::new(counts, conditions(), 8);
        let (world, mut random) = (&sides.world, Random::new(8));
        let mut ends = ends(&sides, 4000, counts[0] - 1);
        let until = world.now() + PATIENCE;
        let up = |end: &End| {
            let rails = end.lane.rails(end.endpoint);
            (rails.iter().filter(|rail| rail.is_up).count(), rails.len())
        };
        let [rails, least] = [counts[0].max(counts[1]), counts[1].div_ceil(counts[0])];
        let [rails, least] = [rails, least].map(|count| count as usize);
        ends.iter().for_each(|end| assert_eq!(up(end), (least, rails), "{counts:?}"));
        ends.iter_mut().for_each(|end| end.allowed = 100);
        let mut whole = false;
        while !whole || !ends.iter().all(End::is_complete) {
            ends.iter_mut().for_each(|end| end.go_on(world, &mut random));
            world.step();
            if !whole && ends.iter().all(End::is_whole) {
                whole = true;
                ends.iter_mut().for_each(|end| end.allowed = end.puts);
            }
            assert!(
                world.now() < until,
                "{counts:?}: rails or puts take too long; (rails up, all rails): {:?}",
                ends.each_ref().map(up)
            );
        }
        for (side, end) in ends.iter().enumerate() {
            end.check(side, "late rails");
            let rails = end.lane.rails(end.endpoint);
            assert!(rails.iter().all(|rail| rail.puts > 0 || end.failures() > 0), "{rails:?}");
        }
    }
}

/// Checks that puts with equal immediates are told apart if enough other immediates come between
/// them. A rail fails near the end of each phase.
#[test]
fn immediates_may_be_reused_after_enough_others() {
    const PHASES: usize = 3;
    const PUTS: usize = 20_000;
    for seed in 0..2 {
        let sides = TwoSides::new([2, 2], conditions(), seed);
        let (world, mut random) = (&sides.world, Random::new(seed));
        let mut ends = ends(&sides, PHASES * PUTS, 0);
        let until = world.now() + 2 * PATIENCE;
        for phase in 1..=PHASES {
            ends.iter_mut().for_each(|end| end.allowed = phase * PUTS);
            let mut is_cut = false;
            let is_done = |end: &End| end.arrived.len() == end.allowed && end.is_whole();
            while !is_cut || !ends.iter().all(is_done) {
                if !is_cut && ends.iter().all(|end| end.posted + 500 > end.allowed) {
                    is_cut = true;
                    world.disconnect(0, 1);
                }
                ends.iter_mut().for_each(|end| end.go_on(world, &mut random));
                world.step();
                ends.iter().for_each(|end| assert_eq!(end.lost, None, "seed {seed}"));
                assert!(world.now() < until, "seed {seed}: the puts take too long");
            }
        }
        while !ends.iter().all(End::is_complete) {
            ends.iter_mut().for_each(|end| end.go_on(world, &mut random));
            world.step();
        }
        ends.iter().enumerate().for_each(|(side, end)| end.check(side, "immediates in turns"));
        let failed = |end: &End| end.failures() >= PHASES as u64;
        assert!(
            ends.iter().all(failed),
            "each side must see a failure in each phase, but saw: {:?}",
            ends.each_ref().map(End::failures)
        );
    }
}

/// Checks that a link either goes on without a dead device, or ends with an error. A device that
/// dies may have acknowledged puts whose arrivals its lane has not polled. Such puts are lost, and
/// this loss ends the link.
#[test]
fn a_device_that_dies_silently_is_dropped_or_ends_the_link() {
    let (mut went_on, mut named) = (0, 0);
    for seed in 0..30 {
        let side = seed as u32 % 2;
        let sides = TwoSides::new([3, 3], conditions(), seed);
        let (world, mut random) = (&sides.world, Random::new(seed));
        let mut ends = ends(&sides, 600, 0);
        world.crash_at(2 + side, world.now() + Duration::from_micros(20 * seed));
        let until = world.now() + PATIENCE;
        let is_lost = |ends: &[End; 2]| ends.iter().all(|end| end.lost.is_some());
        while !ends.iter().all(End::is_complete) && !is_lost(&ends) {
            ends.iter_mut().for_each(|end| end.go_on(world, &mut random));
            world.step();
            assert!(world.now() < until, "seed {seed}: the link is neither complete nor lost");
        }
        if is_lost(&ends) {
            named += 1;
            let says = |end: &End| end.lost.as_ref().is_some_and(|it| it.contains("not arrived"));
            assert!(ends.iter().any(says), "{:?}", ends.each_ref().map(|end| end.lost.clone()));
        } else {
            went_on += 1;
            ends.iter().enumerate().for_each(|(side, end)| end.check(side, "a dead device"));
        }
    }
    assert!(
        went_on > 0 && named > 0,
        "some links must go on, and some must be lost: {went_on} went on, {named} were lost"
    );
}

#[test]
fn losing_the_last_rail_loses_the_link_with_a_reason_per_rail() {
    let sides = TwoSides::new([2, 2], conditions(), 5);
    let (world, mut random) = (&sides.world, Random::new(5));
    let mut ends = ends(&sides, 5000, 0);
    cut(world, &[0, 1], PATIENCE);
    let until = world.now() + PATIENCE;
    while ends.iter().any(|end| end.lost.is_none()) {
        ends.iter_mut().for_each(|end| end.go_on(world, &mut random));
        world.step();
        assert!(world.now() < until);
    }
    for end in &ends {
        let reason = end.lost.as_deref().unwrap();
        assert!(reason.contains("rail 0: ") && reason.contains("rail 1: "), "{reason}");
    }
}

#[test]
fn notes_arrive_once_and_in_order_while_rails_fail() {
    for seed in 0..10 {
        let sides = TwoSides::new([2, 2], conditions(), seed);
        let (world, mut random) = (&sides.world, Random::new(seed));
        let mut ends = ends(&sides, 400, 0);
        let (mut said, mut next) = (Vec::new(), world.now());
        let until = world.now() + PATIENCE;
        while ends[1].notes.len() < 300 || !ends.iter().all(End::is_complete) {
            if world.now() >= next && ends.iter().all(End::is_whole) {
                cut(world, &[random.below(2) as u32], Duration::from_millis(6));
                next = world.now() + Duration::from_millis(20);
            }
            if said.len() < 300 {
                let note = vec![said.len() as u8; random.below(4097) as usize];
                let endpoint = ends[0].endpoint;
                ends[0].lane.note(endpoint, &note).unwrap();
                said.push(note);
            }
            ends.iter_mut().for_each(|end| end.go_on(world, &mut random));
            world.step();
            assert_eq!(ends[0].lost, None);
            assert!(world.now() < until, "seed {seed}: only {} notes arrived", ends[1].notes.len());
        }
        assert!(ends[1].notes == said, "seed {seed}: the notes are changed or out of order");
    }
}

/// A put that is sent again over another rail goes to the memory that it named when it was posted,
/// even if imports have changed since.
#[test]
fn a_repeated_put_goes_to_the_memory_that_it_named_at_first() {
    let sides = TwoSides::new([2, 2], conditions(), 11);
    let world = &sides.world;
    let mut ends = ends(&sides, 0, 0);
    let share = |ends: &mut [End; 2]| {
        let (region, key) = sides.devices[1].allocate(4096).unwrap();
        let key = ends[1].lane.share(ends[1].endpoint, key).unwrap();
        (region, ends[0].lane.import(ends[0].endpoint, &key).unwrap())
    };
    let (meant, mr) = share(&mut ends);
    let (source, key) = sides.devices[0].allocate(4096).unwrap();
    source.write(0, &[7; 4096]).unwrap();
    let put = |at: u64| WorkRequest::Put {
        endpoint: ends[0].endpoint,
        local: LocalSlice { key, offset: at as usize * 64, bytes: 64 },
        tail: None,
        is_control: false,
        remote: mr,
        remote_offset: at as usize * 64,
        immediate: Some(at as u32),
        id: at,
    };
    let work: Vec<_> = (0..16).map(put).collect();
    assert_eq!(ends[0].lane.post(world.now(), &work).unwrap(), 16);
    let endpoint = ends[0].endpoint;
    ends[0].lane.forget(endpoint, mr);
    let (other, again) = share(&mut ends);
    assert_eq!(again, mr, "an import must reuse the number that was freed");
    world.disconnect(0, 1);
    let until = world.now() + PATIENCE;
    while ends[0].done.len() < 16 || ends[1].notes.is_empty() {
        for end in &mut ends {
            let mut events = Vec::new();
            end.lane.poll(world.now(), &mut events).unwrap();
            for event in events {
                match event {
                    Event::Done { id } => *end.done.entry(id).or_default() += 1,
                    Event::Arrived { .. } => end.notes.push(Vec::new()),
                    _ => {}
                }
            }
        }
        world.step();
        assert!(world.now() < until);
    }
    let bytes = |region: &Region| {
        let mut bytes = vec![0; 1024];
        region.read(0, &mut bytes).unwrap();
        bytes
    };
    assert!(bytes(&meant).iter().all(|byte| *byte == 7), "some bytes have not arrived");
    assert!(bytes(&other).iter().all(|byte| *byte == 0), "a put went to other memory");
}
