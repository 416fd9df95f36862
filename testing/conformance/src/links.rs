//! Message links of [`ccl_core::admission`] over a transport's lanes.

use std::time::Duration;

use ccl_core::admission::{
    AdmissionError, Config, Directory, HEADER_BYTES, MessageLinks, Placement,
};
use ccl_core::execution::Link;
use ccl_memory::Region;

use crate::pair::{SECRET, join, pattern};
use crate::{Fixture, Outcome, PASSED, Point, Verdict, ensure, failed};

pub(crate) const POINTS: &[Point] = &[
    Point { name: "message links deliver each message once, in order", check: carry },
    Point {
        name: "a link keeps a message that comes before the link knows the sender's slots",
        check: early,
    },
    Point { name: "message links connect on first use", check: on_demand },
    Point { name: "message links count the time that they wait for credits", check: waits },
    Point { name: "a message is placed where its CTS says", check: transfers },
    Point { name: "message links share the credits of the pool", check: pool },
    Point { name: "message links name the lost rank", check: lost },
];

const CONFIG: Config = Config {
    channels: 3,
    slots: 3,
    slots_min: 1,
    slot_bytes: 200,
    budget_bytes: 100_000,
    zero_copy_bytes_min: 0,
    registered_bytes_max: 0,
};

/// Returns links of ranks 0 and 1 that are not connected.
fn apart(fixture: &dyn Fixture, config: Config) -> Result<[MessageLinks; 2], String> {
    let mut all = Vec::new();
    for side in [0, 1] {
        let device = fixture.device(side);
        let lane = fixture.wrap(side, device.lane().map_err(failed("making a lane"))?);
        let links = MessageLinks::new(device, lane, config, 1);
        all.push(links.map_err(failed("making links"))?);
    }
    all.try_into().map_err(|_| "there are not two sides".to_owned())
}

/// Returns connected links between ranks 0 and 1.
fn pair(fixture: &dyn Fixture, config: Config) -> Result<[MessageLinks; 2], String> {
    let mut all = apart(fixture, config)?;
    let [accepted, connected] = join(fixture, b"links")?;
    let first = all[0].attach(1, accepted).map_err(failed("attaching"))?;
    let second = all[1].attach(0, connected).map_err(failed("attaching"))?;
    all[0].import(1, &second).map_err(failed("importing"))?;
    all[1].import(0, &first).map_err(failed("importing"))?;
    Ok(all)
}

/// Drops both sides at the same time, as ranks do, and returns `PASSED`. A side that is
/// dropped alone would wait for an answer from the other side.
fn leave(all: [MessageLinks; 2]) -> Outcome {
    std::thread::scope(|scope| {
        for side in all {
            scope.spawn(move || drop(side));
        }
    });
    PASSED
}

/// Returns length and tag of message `number` of a channel.
fn message(number: u64, channel: u32) -> (usize, u64) {
    let length = number as usize * 37 % (CONFIG.slot_bytes + 1);
    (length, number << 8 | u64::from(channel))
}

fn carry(fixture: &dyn Fixture) -> Outcome {
    carry_over(fixture, pair(fixture, CONFIG)?)
}

/// Checks that side 0 keeps a message that comes before side 0 imports the offer of side 1. The
/// offer describes the slots of side 1.
fn early(fixture: &dyn Fixture) -> Outcome {
    let mut all = apart(fixture, CONFIG)?;
    let [accepted, connected] = join(fixture, b"early")?;
    let first = all[0].attach(1, accepted).map_err(failed("attaching"))?;
    let second = all[1].attach(0, connected).map_err(failed("attaching"))?;
    all[1].import(0, &first).map_err(failed("importing"))?;
    let links = [Link { peer: 1, channel: 0 }, Link { peer: 0, channel: 0 }];
    ensure!(all[1].writable(links[1]), "there is no credit");
    all[1].publish(links[1], 5, 77);
    let end = fixture.now() + fixture.patience();
    while !all[0].readable(links[0]) {
        ensure!(fixture.now() < end, "the message did not come: {:?}", all[0].counters());
        all[1].flush(fixture.now()).map_err(failed("flushing"))?;
        all.iter_mut()
            .try_for_each(|side| side.poll(fixture.now()).map(|_| ()))
            .map_err(failed("polling"))?;
        fixture.idle();
    }
    ensure!(all[0].head(links[0]) == (5, 77), "the message is {:?}", all[0].head(links[0]));
    all[0].release(links[0]);
    all[0].import(1, &second).map_err(failed("importing"))?;
    // From here on the links behave as usual: side 0 has one credit per slot of side 1.
    let granted = CONFIG.slots as usize;
    let room = (0..granted).all(|_| {
        let writable = all[0].writable(links[0]);
        all[0].publish(links[0], 0, 0);
        writable
    });
    ensure!(room && !all[0].writable(links[0]), "expected exactly {granted} credits");
    leave(all)
}

/// Polls both sides until the condition is true.
fn until(
    fixture: &dyn Fixture,
    all: &mut [MessageLinks; 2],
    mut is_so: impl FnMut(&mut [MessageLinks; 2]) -> bool,
) -> Result<(), String> {
    let end = fixture.now() + fixture.patience();
    while !is_so(all) {
        ensure!(fixture.now() < end, "timed out: {:?}", all.each_ref().map(MessageLinks::counters));
        for side in all.iter_mut() {
            side.flush(fixture.now()).map_err(failed("flushing"))?;
            side.poll(fixture.now()).map_err(failed("polling"))?;
        }
        fixture.idle();
    }
    Ok(())
}

/// Checks that the sender's statistics say how long it waited for the credits of a slow receiver.
fn waits(fixture: &dyn Fixture) -> Outcome {
    let mut all = pair(fixture, CONFIG)?;
    let (sending, receiving) = (Link { peer: 1, channel: 2 }, Link { peer: 0, channel: 2 });
    // Links know only the time of their last poll. So the wait for a credit counts from `told`, the
    // time of the last poll before the wait.
    let told = fixture.now();
    all[0].poll(told).map_err(failed("polling"))?;
    let bytes = u64::from(CONFIG.slots) * (90 + HEADER_BYTES as u64);
    for number in 0..u64::from(CONFIG.slots) {
        ensure!(all[0].writable(sending), "there is no credit for message {number}");
        all[0].publish(sending, 90, number);
    }
    let begun = fixture.now();
    ensure!(!all[0].writable(sending), "there are more credits than slots");
    until(fixture, &mut all, |all| all[1].readable(receiving))?;
    until(fixture, &mut all, |_| fixture.now().since(begun) >= Duration::from_micros(300))?;
    let asked = fixture.now().since(begun);
    while all[1].readable(receiving) {
        all[1].release(receiving);
    }
    until(fixture, &mut all, |all| {
        // Messages that arrive after the loop above are released, too.
        while all[1].readable(receiving) {
            all[1].release(receiving);
        }
        // The sender can be done before the receiver has polled all arrivals.
        let has_all = all[1].peer_statistics().all(|(_, statistics)| statistics.received == 3);
        has_all && all[0].writable(sending) && all[0].is_idle()
    })?;
    let most = fixture.now().since(told);
    let all_statistics: Vec<_> = all[0].peer_statistics().collect();
    let [(1, statistics)] = all_statistics.as_slice() else {
        return Err(format!("expected statistics of peer 1 only: {all_statistics:?}"));
    };
    let waited = statistics.credit_waits.percentile(99).unwrap_or_default();
    ensure!(statistics.credit_waits.count() == 1, "expected 1 wait: {statistics:?}");
    ensure!(
        waited >= asked && waited <= most * 5 / 4,
        "expected a wait of {asked:?} to {most:?}: {statistics:?}"
    );
    ensure!(
        (statistics.in_flight_bytes, statistics.in_flight_bytes_max) == (0, bytes),
        "the bytes in flight are wrong: {statistics:?}"
    );
    ensure!(
        (statistics.sent, statistics.stalls) == (3, 1),
        "expected 3 messages sent and 1 stall: {statistics:?}"
    );
    leave(all)
}

/// Checks that a link connects on first use and not earlier. One side uses the link long before the
/// other; each side is late once.
fn on_demand(fixture: &dyn Fixture) -> Outcome {
    if fixture.device(0).caps().mapped {
        return Ok(Verdict::Skipped("links over mapped memory do not connect on demand"));
    }
    for late in [0, 1] {
        let mut all = apart(fixture, CONFIG)?;
        let listen = |side| fixture.device(side).listen(&SECRET).map_err(failed("listening"));
        let listeners = [listen(0)?, listen(1)?];
        let addresses = [0, 1].map(|side: usize| Some(listeners[side].address()));
        for (own, (links, listener)) in all.iter_mut().zip(listeners).enumerate() {
            let mut addresses = addresses.to_vec();
            addresses[own] = None;
            let (own, within) = (own as u32, fixture.patience());
            links.connect_on_demand(listener, Directory { own, addresses, secret: SECRET, within });
        }
        let early = 1 - late;
        let link = Link { peer: late as u32, channel: 0 };
        for _ in 0..50 {
            all[late].poll(fixture.now()).map_err(failed("polling"))?;
            fixture.idle();
        }
        ensure!(!all[early].is_connected(link.peer), "a link connected before its first use");
        for _ in 0..50 {
            ensure!(!all[early].writable(link), "a link has a credit before it is connected");
            all[early].poll(fixture.now()).map_err(failed("polling"))?;
            fixture.idle();
        }
        carry_over(fixture, all)?;
    }
    PASSED
}

fn carry_over(fixture: &dyn Fixture, mut all: [MessageLinks; 2]) -> Outcome {
    const MESSAGES: u64 = 200;
    let mut sent = [[0u64; CONFIG.channels as usize]; 2];
    let mut taken = sent;
    let end = fixture.now() + fixture.patience();
    while taken.iter().flatten().any(|&taken| taken < MESSAGES) {
        ensure!(fixture.now() < end, "messages are late: sent {sent:?}, taken {taken:?}");
        for (side, links) in all.iter_mut().enumerate() {
            links.poll(fixture.now()).map_err(failed("polling"))?;
            for channel in 0..CONFIG.channels {
                let link = Link { peer: 1 - side as u32, channel };
                let (sent, taken) =
                    (&mut sent[side][channel as usize], &mut taken[side][channel as usize]);
                while *sent < MESSAGES && links.writable(link) {
                    let (bytes, tag) = message(*sent, channel);
                    links.publish(link, bytes, tag);
                    *sent += 1;
                }
                while links.readable(link) {
                    let head = links.head(link);
                    ensure!(head == message(*taken, channel), "message {taken} is {head:?}");
                    links.release(link);
                    *taken += 1;
                }
            }
            links.flush(fixture.now()).map_err(failed("flushing"))?;
        }
        fixture.idle();
    }
    let refused: u64 = all.iter().map(|links| links.counters().refused).sum();
    ensure!(refused == 0, "{refused} immediates or CTS were refused");
    leave(all)
}

/// Checks that messages go directly from the sender's memory to the receiver's. Every fifth prepost
/// names no memory, and every seventh names the tag of another message.
fn transfers(fixture: &dyn Fixture) -> Outcome {
    const MESSAGES: u64 = 300;
    const ROOM: usize = 300_000;
    let caps = fixture.device(0).caps().clone();
    if caps.mapped || caps.redirects {
        return Ok(Verdict::Skipped("no CTS is used if a device maps memory, or redirects puts"));
    }
    let mut all = pair(fixture, CONFIG)?;
    let memory = [Region::private(ROOM), Region::private(ROOM)];
    let text = pattern(3, ROOM);
    memory[0].write(0, &text).map_err(failed("writing"))?;
    all.iter_mut().zip(&memory).for_each(|(links, own)| links.open(std::iter::once(own.clone())));
    let (sending, receiving) = (Link { peer: 1, channel: 1 }, Link { peer: 0, channel: 1 });
    let [from, into] = memory.each_ref().map(|memory| memory.start().addr());
    let location =
        |number: u64| (1 + number as usize * 7 % 100 * 500, 1 + message(number, 0).0 / 2);
    let (mut preposted, mut sent, mut taken, mut placed) = (0, 0, 0, 0);
    let end = fixture.now() + fixture.patience();
    while taken < MESSAGES {
        ensure!(fixture.now() < end, "messages are late: sent {sent}, taken {taken}");
        let [sender, receiver] = &mut all;
        while preposted < MESSAGES && receiver.may_prepost(receiving) {
            let (at, bytes) = location(preposted);
            let tag = preposted + u64::from(preposted % 7 == 3);
            let placement = Placement { address: into + at, bytes, tag };
            receiver.prepost(receiving, (preposted % 5 > 0).then_some(placement));
            preposted += 1;
        }
        // Some messages are sent before their CTS can have come.
        while sent < (taken / 40 + 1) * 40 && sent < MESSAGES && sender.writable(sending) {
            let (at, bytes) = location(sent);
            ensure!(sender.send_from(sending, from + at, bytes), "send_from refused {bytes} bytes");
            sender.publish(sending, bytes, sent);
            sent += 1;
        }
        while receiver.readable(receiving) {
            let (at, bytes) = location(taken);
            let head = receiver.head(receiving);
            ensure!(head == (bytes, taken), "message {taken} is {head:?}");
            let is_there = receiver.received(receiving).addr() == into + at;
            let is_wanted = taken % 5 > 0 && taken % 7 != 3;
            ensure!(!is_there || is_wanted, "message {taken} was placed without a matching CTS");
            let mut seen = vec![0; bytes];
            memory[1].read(at, &mut seen).map_err(failed("reading"))?;
            ensure!(!is_there || seen == text[at..at + bytes], "message {taken} has wrong bytes");
            memory[1].write(at, &vec![0; bytes]).map_err(failed("writing"))?;
            placed += u64::from(is_there);
            receiver.release(receiving);
            taken += 1;
        }
        for side in &mut all {
            side.flush(fixture.now()).map_err(failed("flushing"))?;
            side.poll(fixture.now()).map_err(failed("polling"))?;
        }
        fixture.idle();
    }
    until(fixture, &mut all, |all| all[0].is_idle())?;
    let counters = all.each_ref().map(MessageLinks::counters);
    ensure!(
        counters[1].zero_copy_received == placed && placed >= MESSAGES / 10,
        "{placed} messages were placed directly: too few, or miscounted: {counters:?}"
    );
    ensure!(
        counters[0].zero_copy_sent == MESSAGES && counters[0].refused == 0,
        "not every send was zero-copy, or an immediate or a CTS was refused: {counters:?}"
    );
    all.iter_mut().for_each(MessageLinks::close);
    ensure!(all.iter().all(|links| links.check_all().is_ok()), "a link is broken after `close`");
    leave(all)
}

/// Checks that links share the credits of a pool. The budget is seven slots. Each of three links
/// gets two reserved slots, the fewest with which a rank can forward messages. The seventh slot is
/// in the pool.
fn pool(fixture: &dyn Fixture) -> Outcome {
    const MESSAGES: u64 = 100;
    let budget_bytes = 7 * (HEADER_BYTES + CONFIG.slot_bytes);
    let mut all = pair(fixture, Config { budget_bytes, ..CONFIG })?;
    let link = |peer, channel| Link { peer, channel };
    let (mut preposted, mut sent, mut taken) = ([0; 3], [0; 3], [0; 3]);
    let end = fixture.now() + fixture.patience();
    // In most rounds nothing is taken, so that the sender uses up its credits.
    let mut rounds = (0..8).cycle();
    while taken.iter().any(|&taken| taken < MESSAGES) {
        ensure!(fixture.now() < end, "messages are late: sent {sent:?}, taken {taken:?}");
        let takes = rounds.next() == Some(0);
        let [sender, receiver] = &mut all;
        for (channel, at) in (0..CONFIG.channels).zip(0..) {
            let (to, from) = (link(1, channel), link(0, channel));
            while preposted[at] < MESSAGES && receiver.may_prepost(from) {
                receiver.prepost(from, None);
                preposted[at] += 1;
            }
            while sent[at] < MESSAGES && sender.writable(to) {
                let (bytes, tag) = message(sent[at], channel);
                sender.publish(to, bytes, tag);
                sent[at] += 1;
                let under_way = sent.iter().sum::<u64>() - taken.iter().sum::<u64>();
                ensure!(under_way <= 7, "{under_way} messages are under way, but the budget is 7");
            }
            while takes && receiver.readable(from) {
                let head = receiver.head(from);
                ensure!(head == message(taken[at], channel), "message {taken:?} is {head:?}");
                receiver.release(from);
                taken[at] += 1;
            }
        }
        for side in &mut all {
            side.flush(fixture.now()).map_err(failed("flushing"))?;
            side.poll(fixture.now()).map_err(failed("polling"))?;
        }
        fixture.idle();
    }
    until(fixture, &mut all, |all| all.iter().all(MessageLinks::is_idle))?;
    let counters = all.each_ref().map(MessageLinks::counters);
    ensure!(
        counters[1].pool_credits >= 10 && counters[1].refused == 0,
        "the pool was hardly used, or an immediate was refused: {counters:?}"
    );
    // Without preposted receives, no link holds a credit of the pool.
    for channel in 0..CONFIG.channels {
        let mut granted = 0;
        while all[0].writable(link(1, channel)) {
            all[0].publish(link(1, channel), 0, 0);
            granted += 1;
        }
        ensure!(granted <= 2, "channel {channel} has {granted} credits without a prepost");
    }
    leave(all)
}

fn lost(fixture: &dyn Fixture) -> Outcome {
    let [mut survivor, other] = pair(fixture, CONFIG)?;
    fixture.kill(1);
    drop(other);
    let end = fixture.now() + fixture.patience();
    while fixture.now() < end {
        survivor.poll(fixture.now()).map_err(failed("polling"))?;
        if survivor.lost(1).is_some() {
            let named = matches!(survivor.check_all(), Err(AdmissionError::Lost { rank: 1, .. }));
            ensure!(named, "the lost rank is not named");
            return PASSED;
        }
        fixture.idle();
    }
    Err("the lost rank was not reported".to_owned())
}
