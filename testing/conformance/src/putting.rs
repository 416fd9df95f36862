//! Puts: the bytes that they write, the time when the peer sees the bytes, and refused puts.

use std::time::Duration;

use ccl_core::transport::{EndpointId, IMMEDIATE_MAX, LocalSlice, MrKey, RemoteMr, WorkRequest};

use ccl_memory::Region;

use crate::pair::{End, Pair, bytes_of, join, pattern};
use crate::{Fixture, Outcome, PASSED, Point, Verdict, ensure, failed};

pub(crate) const POINTS: &[Point] = &[
    Point { name: "puts of every size write exactly their bytes", check: sizes },
    Point { name: "a put without immediate gives the peer bytes but no event", check: silent },
    Point { name: "every immediate arrives unchanged", check: immediates },
    Point { name: "a put's bytes are there before the immediate", check: bytes_first },
    Point { name: "after Done the source may be changed", check: done_means_done },
    Point { name: "long and empty puts complete in any mixture", check: mixed },
    Point { name: "simultaneous puts in both directions arrive", check: duplex },
    Point { name: "a put completes even if its receiver is sending a long put", check: amid },
    Point { name: "a put out of range is refused before any byte moves", check: out_of_range },
    Point { name: "a put that names unknown memory is refused", check: not_there },
    Point { name: "a bad put is not taken and undoes no put before it", check: good_and_bad },
    Point { name: "back-pressure neither loses nor repeats a put", check: back_pressure },
    Point { name: "many endpoints on one lane are kept apart", check: many_endpoints },
    Point { name: "a peek sees arrivals and does not consume them", check: peeks },
    Point { name: "an arriving put ends a sleep", check: sleeping },
    Point {
        name: "a put in a receive buffer stays unchanged while the buffer is held",
        check: buffers,
    },
];

/// Largest number of bytes of a tested put.
const LARGE: usize = 4 << 20;

/// Time after which the suite assumes that a lane is asleep.
const FALLS_ASLEEP: Duration = Duration::from_millis(20);

/// Fill byte of memory where nothing has been put.
const BLANK: u8 = 0x77;

fn peeks(fixture: &dyn Fixture) -> Outcome {
    let pair = &mut Pair::new(fixture, 64)?;
    pair.settle(fixture)?;
    let rounds = 100;
    for round in 0..rounds {
        let put = pair.ends[0].put(8, Some(round), round.into());
        pair.post(fixture, 0, &[put])?;
        let end = fixture.now() + fixture.patience();
        let arrived = |pair: &Pair| pair.ends[1].arrived(pair.ends[1].endpoint).len();
        while arrived(pair) <= round as usize {
            ensure!(fixture.now() < end, "no peek sees put {round} of {rounds}");
            let [sender, receiver] = &mut pair.ends;
            sender.lane.poll(fixture.now(), &mut sender.events).map_err(failed("polling"))?;
            if receiver.lane.peek() != Some(false) {
                let polled = receiver.lane.poll(fixture.now(), &mut receiver.events);
                polled.map_err(failed("polling"))?;
            }
            fixture.idle();
        }
    }
    let arrived = pair.ends[1].arrived(pair.ends[1].endpoint);
    let expected: Vec<_> = (0..rounds).map(|round| (round, 8)).collect();
    ensure!(arrived == expected, "the arrivals differ from the puts: {arrived:?}");
    PASSED
}

fn sleeping(fixture: &dyn Fixture) -> Outcome {
    let pair = &mut Pair::new(fixture, 64)?;
    pair.settle(fixture)?;
    let put = pair.ends[0].put(8, Some(1), 1);
    let longest = fixture.patience();
    let [sender, receiver] = &mut pair.ends;
    // If nothing can wake a lane, the lane's `sleep` returns at once, or soon.
    let slept = std::thread::scope(|scope| {
        let sleeper = scope.spawn(|| {
            let begun = std::time::Instant::now();
            receiver.lane.sleep(longest);
            begun.elapsed()
        });
        std::thread::sleep(FALLS_ASLEEP);
        sender.lane.post(fixture.now(), &[put]).map_err(failed("posting"))?;
        while !sleeper.is_finished() {
            sender.lane.poll(fixture.now(), &mut sender.events).map_err(failed("polling"))?;
            fixture.idle();
        }
        sleeper.join().map_err(|_| "sleeping panicked".to_owned())
    })?;
    ensure!(slept < longest, "a put came, and the lane slept for all of {longest:?}");
    PASSED
}

fn sizes(fixture: &dyn Fixture) -> Outcome {
    let most = fixture.device(0).caps().message_bytes_max.min(LARGE);
    let room = most + 128;
    let pair = &mut Pair::new(fixture, room)?;
    pair.ends[1].inbox.write(0, &vec![BLANK; room]).map_err(failed("writing"))?;
    let sizes = [0, 1, 2, 3, 7, 8, 9, 63, 64, 65, 1000, 4095, 4096, 4097, 65_537, most - 1, most];
    for (number, bytes) in sizes.into_iter().filter(|&bytes| bytes <= most).enumerate() {
        for (offset, remote_offset) in [(0, 0), (3, 61), (room - bytes, room - bytes)] {
            let text = pattern(number as u64, bytes);
            pair.ends[0].source.write(offset, &text).map_err(failed("writing"))?;
            pair.ends.iter_mut().for_each(|end| end.events.clear());
            let put = pair.ends[0].put_at(offset, remote_offset, bytes, Some(9), 5);
            pair.post(fixture, 0, &[put])?;
            pair.until(fixture, "a put arrives and is done", |pair| {
                let [from, to] = &pair.ends;
                !from.done().is_empty() && !to.arrived(to.endpoint).is_empty()
            })?;
            let [from, to] = &pair.ends;
            ensure!(from.done() == [5], "expected one completion, of put 5: {:?}", from.done());
            let arrived = to.arrived(to.endpoint);
            ensure!(arrived == [(9, bytes)], "{bytes} bytes arrived as {arrived:?}");
            // Only bytes near the put are checked now, for speed; all are checked at the end.
            let near = remote_offset.saturating_sub(128)..(remote_offset + bytes + 128).min(room);
            let mut seen = vec![0; near.len()];
            to.inbox.read(near.start, &mut seen).map_err(failed("reading"))?;
            let mut expected = vec![BLANK; near.len()];
            expected[remote_offset - near.start..][..bytes].copy_from_slice(&text);
            let wrong = seen.iter().zip(&expected).position(|(seen, expected)| seen != expected);
            let wrong = wrong.map(|at| near.start + at);
            ensure!(
                wrong.is_none(),
                "a put of {bytes} bytes to {remote_offset} left a wrong byte at {wrong:?}"
            );
            to.inbox.write(remote_offset, &vec![BLANK; bytes]).map_err(failed("writing"))?;
        }
    }
    let wrong = bytes_of(&pair.ends[1].inbox)?.iter().position(|byte| *byte != BLANK);
    ensure!(wrong.is_none(), "a put wrote far from its target, at {wrong:?}");
    PASSED
}

fn silent(fixture: &dyn Fixture) -> Outcome {
    let pair = &mut Pair::new(fixture, 4096)?;
    let text = pattern(1, 500);
    pair.ends[0].source.write(0, &text).map_err(failed("writing"))?;
    let put = pair.ends[0].put(500, None, 1);
    pair.post(fixture, 0, &[put])?;
    pair.until(fixture, "the bytes come", |pair| {
        bytes_of(&pair.ends[1].inbox).is_ok_and(|seen| seen[..500] == text)
    })?;
    pair.until(fixture, "the put is done", |pair| pair.ends[0].done() == [1])?;
    pair.settle(fixture)?;
    ensure!(pair.ends[1].events.is_empty(), "the peer saw {:?}", pair.ends[1].events);
    PASSED
}

fn immediates(fixture: &dyn Fixture) -> Outcome {
    let pair = &mut Pair::new(fixture, 64)?;
    for immediate in [0, 1, IMMEDIATE_MAX / 2, IMMEDIATE_MAX / 2 + 1, IMMEDIATE_MAX] {
        pair.ends[1].events.clear();
        let put = pair.ends[0].put(8, Some(immediate), 1);
        pair.post(fixture, 0, &[put])?;
        pair.until(fixture, "the put arrives", |pair| !pair.ends[1].events.is_empty())?;
        let arrived = pair.ends[1].arrived(pair.ends[1].endpoint);
        ensure!(arrived == [(immediate, 8)], "immediate {immediate:#x} arrived as {arrived:?}");
    }
    PASSED
}

/// Checks that a put's bytes are there before its immediate. Puts fill the same slots round after
/// round; each slot is read as soon as its immediate arrives.
fn bytes_first(fixture: &dyn Fixture) -> Outcome {
    const SLOTS: usize = 4;
    let bytes = fixture.device(0).caps().message_bytes_max.min(3000);
    let pair = &mut Pair::new(fixture, SLOTS * bytes)?;
    for round in 0..50u64 {
        let text = pattern(round, SLOTS * bytes);
        pair.ends[0].source.write(0, &text).map_err(failed("writing"))?;
        pair.ends.iter_mut().for_each(|end| end.events.clear());
        let put =
            |slot| pair.ends[0].put_at(slot * bytes, slot * bytes, bytes, Some(slot as u32), 0);
        let work: Vec<_> = (0..SLOTS).map(put).collect();
        pair.post(fixture, 0, &work)?;
        let mut seen = 0;
        while seen < SLOTS {
            let more = |pair: &Pair| pair.ends[1].events.len() > seen;
            pair.until(fixture, "the next put arrives", more)?;
            let here = bytes_of(&pair.ends[1].inbox)?;
            for &(slot, _) in &pair.ends[1].arrived(pair.ends[1].endpoint)[seen..] {
                let range = slot as usize * bytes..(slot as usize + 1) * bytes;
                let right = range.end <= text.len() && here[range.clone()] == text[range];
                ensure!(right, "immediate {slot} came before its bytes");
                seen += 1;
            }
        }
        pair.until(fixture, "all puts are done", |pair| pair.ends[0].done().len() == SLOTS)?;
    }
    PASSED
}

fn done_means_done(fixture: &dyn Fixture) -> Outcome {
    let bytes = fixture.device(0).caps().message_bytes_max.min(50_000);
    let pair = &mut Pair::new(fixture, bytes)?;
    for number in 0..30u64 {
        let text = pattern(number, bytes);
        pair.ends[0].source.write(0, &text).map_err(failed("writing"))?;
        pair.ends.iter_mut().for_each(|end| end.events.clear());
        let put = pair.ends[0].put(bytes, Some(1), number);
        pair.post(fixture, 0, &[put])?;
        pair.until(fixture, "the put is done", |pair| pair.ends[0].done() == [number])?;
        pair.ends[0].source.write(0, &vec![0xdd; bytes]).map_err(failed("writing"))?;
        pair.until(fixture, "the put arrives", |pair| !pair.ends[1].events.is_empty())?;
        ensure!(bytes_of(&pair.ends[1].inbox)?[..bytes] == text, "the source was read after Done");
    }
    PASSED
}

/// Checks that every put is done exactly once if long and empty puts are posted together, in any
/// mixture.
fn mixed(fixture: &dyn Fixture) -> Outcome {
    let long = fixture.device(0).caps().message_bytes_max.min(8192);
    let pair = &mut Pair::new(fixture, long)?;
    let mut expected = Vec::new();
    for longs in 0..6 {
        for empties in 0..3 {
            let sizes = [vec![long; longs], vec![0; empties]].concat();
            let first = expected.len() as u64;
            let ids = first..first + sizes.len() as u64;
            let put = |(id, bytes): (u64, &usize)| pair.ends[0].put(*bytes, Some(1), id);
            let work: Vec<_> = ids.clone().zip(&sizes).map(put).collect();
            expected.extend(ids);
            pair.post(fixture, 0, &work)?;
        }
        // Waits once after several posts: a request that shares the completion of a later request
        // must be done, too.
        let all = |pair: &Pair| pair.ends[0].done().len() == expected.len();
        pair.until(fixture, "all puts are done", all)?;
    }
    let mut done = pair.ends[0].done();
    done.sort_unstable();
    ensure!(done == expected, "not every put is done exactly once: {done:?}");
    PASSED
}

fn duplex(fixture: &dyn Fixture) -> Outcome {
    let pair = &mut Pair::new(fixture, 64 * 16)?;
    for side in [0, 1] {
        let text = pattern(side as u64, 64 * 16);
        pair.ends[side].source.write(0, &text).map_err(failed("writing"))?;
    }
    for number in 0..16 {
        for side in [0, 1] {
            let at = number * 64;
            let put = pair.ends[side].put_at(at, at, 64, Some(number as u32), number as u64);
            pair.post(fixture, side, &[put])?;
        }
    }
    pair.until(fixture, "all puts arrive on both sides", |pair| {
        pair.ends.iter().all(|end| end.arrived(end.endpoint).len() == 16 && end.done().len() == 16)
    })?;
    for side in [0, 1] {
        let seen = bytes_of(&pair.ends[side].inbox)?;
        ensure!(seen[..64 * 16] == pattern(1 - side as u64, 64 * 16), "wrong bytes on side {side}");
    }
    PASSED
}

/// Checks that a short put completes, although its receiver is sending a long put when the short
/// put arrives, and although the sender of the short put does not poll at that time. The receiver
/// sends no later put that could carry the short put's acknowledgement.
fn amid(fixture: &dyn Fixture) -> Outcome {
    let long = fixture.device(0).caps().message_bytes_max.min(LARGE);
    let pair = &mut Pair::new(fixture, long)?;
    pair.settle(fixture)?;
    let put = pair.ends[1].put(long, Some(1), 1);
    pair.post(fixture, 1, &[put])?;
    let poll_one = |pair: &mut Pair, side: usize, polls: usize| {
        for _ in 0..polls {
            let End { lane, events, .. } = &mut pair.ends[side];
            lane.poll(fixture.now(), events).map_err(failed("polling"))?;
            fixture.idle();
        }
        Ok::<(), String>(())
    };
    poll_one(pair, 1, 20)?;
    let put = pair.ends[0].put(1, Some(0), 0);
    pair.post(fixture, 0, &[put])?;
    poll_one(pair, 1, 20)?;
    pair.until(fixture, "both puts are done", |pair| {
        pair.ends[0].done() == [0] && pair.ends[1].done() == [1]
    })?;
    PASSED
}

/// Checks that no refused put had any effect: a good put arrives, and nothing else.
fn nothing_moved(fixture: &dyn Fixture, pair: &mut Pair) -> Result<(), String> {
    let put = pair.ends[0].put(1, Some(42), 42);
    pair.post(fixture, 0, &[put])?;
    let last = |pair: &Pair| pair.ends[1].arrived(pair.ends[1].endpoint).contains(&(42, 1));
    pair.until(fixture, "a good put arrives after bad ones", last)?;
    pair.settle(fixture)?;
    let [from, to] = &pair.ends;
    ensure!(to.events.len() == 1, "the peer saw {:?}", to.events);
    ensure!(from.done() == [42], "expected one completion, of put 42: {:?}", from.done());
    ensure!(bytes_of(&to.inbox)?[1..].iter().all(|&byte| byte == 0), "a bad put wrote bytes");
    Ok(())
}

fn out_of_range(fixture: &dyn Fixture) -> Outcome {
    let most = fixture.device(0).caps().message_bytes_max;
    let room = if most < LARGE { most + 64 } else { 4096 };
    let pair = &mut Pair::new(fixture, room)?;
    pair.ends[0].source.write(0, &vec![0xbb; room]).map_err(failed("writing"))?;
    // Devices may round allocations up; offsets beyond the region's end are always outside.
    let size = pair.ends[1].inbox.bytes();
    let tops = usize::MAX;
    let mut bad = vec![
        (0, size, 1),
        (0, size - 1, 2),
        (0, size + 1, 0),
        (0, tops, 1),
        (0, tops - 7, 64),
        (room, 0, 1),
        (room - 1, 0, 2),
        (tops, 0, 2),
        (0, 0, tops),
    ];
    if most < LARGE {
        bad.push((0, 0, most + 1));
    }
    for (offset, remote_offset, bytes) in bad {
        let put = pair.ends[0].put_at(offset, remote_offset, bytes, Some(7), 7);
        let posted = pair.ends[0].lane.post(fixture.now(), &[put]);
        ensure!(
            posted.is_err(),
            "a put of {bytes} bytes from {offset} to {remote_offset} of {size} returned {posted:?}"
        );
    }
    nothing_moved(fixture, pair)?;
    PASSED
}

fn not_there(fixture: &dyn Fixture) -> Outcome {
    let pair = &mut Pair::new(fixture, 4096)?;
    let from = &mut pair.ends[0];
    let (_, gone) = from.device.allocate(64).map_err(failed("allocating"))?;
    from.device.deregister(gone).map_err(failed("deregistering"))?;
    let WorkRequest::Put { endpoint, local, remote, .. } = from.put(8, None, 1);
    let nowhere = EndpointId(endpoint.0 + 1000);
    for (endpoint, key, remote) in [
        (nowhere, local.key, remote),
        (endpoint, gone, remote),
        (endpoint, MrKey(u64::MAX), remote),
        (endpoint, local.key, RemoteMr(u64::MAX)),
    ] {
        let local = LocalSlice { key, ..local };
        let (remote_offset, immediate) = (0, Some(7));
        let put = WorkRequest::Put {
            endpoint,
            local,
            tail: None,
            is_control: false,
            remote,
            remote_offset,
            immediate,
            id: 7,
        };
        let posted = from.lane.post(fixture.now(), &[put]);
        ensure!(posted.is_err(), "posting {put:?} returned {posted:?}");
    }
    nothing_moved(fixture, pair)?;
    PASSED
}

fn good_and_bad(fixture: &dyn Fixture) -> Outcome {
    let pair = &mut Pair::new(fixture, 4096)?;
    let size = pair.ends[1].inbox.bytes();
    let good = pair.ends[0].put(8, Some(1), 1);
    let bad = pair.ends[0].put_at(0, size, 8, Some(2), 2);
    // An error means that nothing was taken.
    let posted = pair.ends[0].lane.post(fixture.now(), &[good, bad, good]);
    let taken = posted.unwrap_or(0);
    ensure!(taken <= 1, "{taken} of 3 puts were taken, although the second is bad");
    pair.until(fixture, "all taken puts arrive", |pair| {
        pair.ends[1].arrived(pair.ends[1].endpoint).len() >= taken
    })?;
    // A put that was sent although it was not taken would arrive now.
    pair.settle(fixture)?;
    let arrived = pair.ends[1].arrived(pair.ends[1].endpoint);
    ensure!(arrived.len() == taken, "{taken} puts were taken, {arrived:?} arrived");
    PASSED
}

fn back_pressure(fixture: &dyn Fixture) -> Outcome {
    let depth = fixture.device(0).caps().depth_max.min(1000);
    let count = 3 * depth + 5;
    let pair = &mut Pair::new(fixture, count * 8)?;
    let mut work = Vec::new();
    for number in 0..count {
        let text = (number as u64 + 1).to_le_bytes();
        pair.ends[0].source.write(number * 8, &text).map_err(failed("writing"))?;
        let at = number * 8;
        work.push(pair.ends[0].put_at(at, at, 8, Some(number as u32), number as u64));
    }
    pair.post(fixture, 0, &work)?;
    pair.until(fixture, "all puts are done and have arrived", |pair| {
        pair.ends[0].events.len() >= count && pair.ends[1].events.len() >= count
    })?;
    pair.settle(fixture)?;
    let [from, to] = &pair.ends;
    let (mut done, mut arrived) = (from.done(), to.arrived(to.endpoint));
    done.sort_unstable();
    arrived.sort_unstable();
    ensure!(
        done == (0..count as u64).collect::<Vec<u64>>(),
        "not every put completed exactly once: {} completions",
        done.len()
    );
    let expected: Vec<(u32, usize)> = (0..count as u32).map(|number| (number, 8)).collect();
    ensure!(arrived == expected, "not every put arrived exactly once: {} arrivals", arrived.len());
    let seen = bytes_of(&to.inbox)?;
    let right = |number: usize| seen[number * 8..][..8] == (number as u64 + 1).to_le_bytes();
    ensure!((0..count).all(right), "the bytes of a put are wrong");
    PASSED
}

fn many_endpoints(fixture: &dyn Fixture) -> Outcome {
    // More endpoints than four bits can tell apart. If a transport's writes carry 32 bits of data,
    // four bits are left beside the immediate.
    const ENDPOINTS: usize = 20;
    let pair = &mut Pair::new(fixture, ENDPOINTS * 8)?;
    let mut routes = vec![(pair.ends[0].endpoint, pair.ends[1].endpoint, pair.ends[0].remote)];
    for _ in 1..ENDPOINTS {
        let [accepted, connected] = join(fixture, b"more")?;
        let [from, to] = &mut pair.ends;
        let there = from.lane.attach(accepted).map_err(failed("attaching"))?;
        let here = to.lane.attach(connected).map_err(failed("attaching"))?;
        let key = to.lane.share(here, to.inbox_key).map_err(failed("sharing"))?;
        let remote = from.lane.import(there, &key).map_err(failed("importing"))?;
        routes.push((there, here, remote));
    }
    let mut work = Vec::new();
    for (number, &(endpoint, _, remote)) in routes.iter().enumerate() {
        let text = pattern(number as u64, 8);
        pair.ends[0].source.write(number * 8, &text).map_err(failed("writing"))?;
        let local = LocalSlice { key: pair.ends[0].source_key, offset: number * 8, bytes: 8 };
        let (remote_offset, immediate, id) = (number * 8, Some(number as u32), number as u64);
        work.push(WorkRequest::Put {
            endpoint,
            local,
            tail: None,
            is_control: false,
            remote,
            remote_offset,
            immediate,
            id,
        });
    }
    pair.post(fixture, 0, &work)?;
    pair.until(fixture, "each endpoint gets a put", |pair| pair.ends[1].events.len() >= ENDPOINTS)?;
    for (number, &(_, endpoint, _)) in routes.iter().enumerate() {
        let arrived = pair.ends[1].arrived(endpoint);
        ensure!(arrived == [(number as u32, 8)], "endpoint {number} got {arrived:?}");
        let mut seen = [0; 8];
        pair.ends[1].inbox.read(number * 8, &mut seen).map_err(failed("reading"))?;
        ensure!(seen[..] == pattern(number as u64, 8), "the bytes of put {number} are wrong");
    }
    PASSED
}

/// Checks the bytes of several puts at once. Some of these puts stay in receive buffers. In every
/// other round, the buffers of the round before are still held.
fn buffers(fixture: &dyn Fixture) -> Outcome {
    const PUTS: usize = 8;
    let most = fixture.device(0).caps().message_bytes_max.min(70_000);
    let pair = &mut Pair::new(fixture, PUTS * most)?;
    let mut held: Vec<(Region, Vec<u8>)> = Vec::new();
    for (round, bytes) in [most, 1000.min(most), most, 64.min(most)].into_iter().enumerate() {
        // Puts to `memory` may stay in buffers. The first and the last put are partly outside it.
        let (key, offset) = (pair.ends[1].inbox_key, bytes / 2);
        let memory = LocalSlice { key, offset, bytes: (PUTS - 1) * bytes };
        if !pair.ends[1].lane.use_receive_buffers(memory) {
            return Ok(Verdict::Skipped("the lane leaves no puts in its receive buffers"));
        }
        let text = pattern(round as u64, PUTS * bytes);
        pair.ends[0].source.write(0, &text).map_err(failed("writing"))?;
        pair.ends.iter_mut().for_each(|end| end.events.clear());
        let number = |put: usize| Some(put as u32);
        let put = |at| pair.ends[0].put_at(at * bytes, at * bytes, bytes, number(at), 1);
        let work: Vec<_> = (0..PUTS).map(put).collect();
        pair.post(fixture, 0, &work)?;
        pair.until(fixture, "all puts arrive and are done", |pair| {
            let [from, to] = &pair.ends;
            from.done().len() == PUTS && to.arrived(to.endpoint).len() == PUTS
        })?;
        let to = &mut pair.ends[1];
        let mut new = Vec::new();
        for (at, text) in text.chunks(bytes).enumerate() {
            let buffer = to.lane.receive_buffer(to.endpoint, at as u32);
            let is_inside = (1..PUTS - 1).contains(&at);
            ensure!(is_inside || buffer.is_none(), "put {at} of round {round} is in a buffer");
            let memory = to.inbox.part(at * bytes, bytes).map_err(failed("cutting"))?;
            let seen = bytes_of(buffer.as_ref().unwrap_or(&memory))?;
            ensure!(seen == text, "put {at} of round {round} has wrong bytes");
            new.extend(buffer.map(|buffer| (buffer, text.to_vec())));
            let again = to.lane.receive_buffer(to.endpoint, at as u32);
            ensure!(again.is_none(), "put {at} of round {round} is in two buffers");
        }
        let may_be_none = !held.is_empty() || bytes > fixture.buffered_bytes_max();
        ensure!(may_be_none || !new.is_empty(), "no put of round {round} is in a buffer");
        for (buffer, text) in &held {
            ensure!(bytes_of(buffer)? == *text, "round {round} has changed a held buffer");
        }
        held = if held.is_empty() { new } else { Vec::new() };
    }
    PASSED
}
