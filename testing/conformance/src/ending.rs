//! Ending a connection: nothing is written afterwards, and the peer learns of the end.

use ccl_core::transport::{Event, LocalSlice};

use crate::late::NOT_CLAIMED;
use crate::pair::{End, Pair, bytes_of, join, pattern};
use crate::{Fixture, Outcome, PASSED, Point, Verdict, ensure, failed};

/// Fill byte of memory that must not be written.
const UNTOUCHED: u8 = 0xA5;

pub(crate) const POINTS: &[Point] = &[
    Point { name: "after detach, nothing is written and nothing is reported", check: fence },
    Point { name: "the end of a detached endpoint is reported to its peer once", check: farewell },
    Point {
        name: "puts posted before a farewell all arrive, whatever the peer sends meanwhile",
        check: last_puts,
    },
    Point {
        name: "a peer's death is reported once, and work posted to it is ignored",
        check: death,
    },
    Point { name: "the loss of a connection is reported", check: dropped },
    Point { name: "the loss of an endpoint leaves other endpoints unharmed", check: others },
    Point {
        name: "unused memory can be deregistered; a put from it is then refused",
        check: given_back,
    },
    Point { name: "a put under way writes nothing to deregistered memory", check: withdrawn },
];

/// Fills the source of side 0 with `byte`, and posts 16 puts of the whole source in one call. The
/// lane can take fewer.
fn flood(fixture: &dyn Fixture, pair: &mut Pair, byte: u8) -> Result<(), String> {
    let size = pair.ends[0].source.bytes();
    pair.ends[0].source.write(0, &vec![byte; size]).map_err(failed("writing"))?;
    let work: Vec<_> = (0..16).map(|id| pair.ends[0].put(size, Some(3), id)).collect();
    // The endpoint may be lost or gone by now, which is no failure here.
    let _ = pair.ends[0].lane.post(fixture.now(), &work);
    Ok(())
}

/// Shuts down and detaches a side's endpoint, while both sides are polled.
fn leave(fixture: &dyn Fixture, pair: &mut Pair, side: usize) -> Result<(), String> {
    let (endpoint, end) = (pair.ends[side].endpoint, fixture.now() + fixture.patience());
    while !pair.ends[side].lane.poll_shutdown(Some(endpoint)) {
        ensure!(fixture.now() < end, "the farewell does not end");
        pair.poll(fixture.now())?;
        fixture.idle();
    }
    pair.ends[side].lane.detach(endpoint);
    Ok(())
}

fn fence(fixture: &dyn Fixture) -> Outcome {
    for idles in [0, 1, 2, 5] {
        let bytes = fixture.device(0).caps().message_bytes_max.min(10_000);
        let pair = &mut Pair::new(fixture, bytes)?;
        flood(fixture, pair, 1)?;
        for _ in 0..idles {
            fixture.idle();
            pair.poll(fixture.now())?;
        }
        let endpoint = pair.ends[1].endpoint;
        pair.ends[1].lane.detach(endpoint);
        let before = bytes_of(&pair.ends[1].inbox)?;
        pair.ends[1].events.clear();
        // Twice, lets the sender write on and learn of the end, then posts more puts.
        for byte in [2, 3] {
            pair.settle(fixture)?;
            flood(fixture, pair, byte)?;
        }
        pair.settle(fixture)?;
        ensure!(bytes_of(&pair.ends[1].inbox)? == before, "bytes were written after detach");
        let events = &pair.ends[1].events;
        let told = pair.ends[1].arrived(endpoint).len() + pair.ends[1].lost();
        ensure!(told == 0, "the lane still reports events of the endpoint: {events:?}");
    }
    PASSED
}

fn farewell(fixture: &dyn Fixture) -> Outcome {
    let pair = &mut Pair::new(fixture, 64)?;
    let put = pair.ends[1].put(8, Some(1), 1);
    pair.post(fixture, 1, &[put])?;
    let complete = |pair: &Pair| pair.ends[1].done() == [1] && !pair.ends[0].events.is_empty();
    pair.until(fixture, "a put arrives", complete)?;
    let endpoint = pair.ends[1].endpoint;
    leave(fixture, pair, 1)?;
    pair.until(fixture, "the other side gets the event of the loss", |pair| {
        pair.ends[0].lost() > 0
    })?;
    pair.settle(fixture)?;
    ensure!(pair.ends[0].lost() == 1, "the loss is reported {} times", pair.ends[0].lost());
    // A second detach does nothing, and a lost endpoint can be detached.
    pair.ends[1].lane.detach(endpoint);
    let endpoint = pair.ends[0].endpoint;
    pair.ends[0].lane.detach(endpoint);
    PASSED
}

/// Checks that all puts of a leaving side arrive, although the leaving side does not read its
/// peer's puts, and although the peer posts one more put after the leaving side has left.
fn last_puts(fixture: &dyn Fixture) -> Outcome {
    const PUTS: u32 = 8;
    if !fixture.awaits_farewells() {
        return Ok(Verdict::Skipped("lanes do not wait until their farewells are delivered"));
    }
    let bytes = fixture.device(0).caps().message_bytes_max.min(1_000_000);
    let pair = &mut Pair::new(fixture, bytes)?;
    let (leaving, endpoint) = (pair.ends[0].endpoint, pair.ends[1].endpoint);
    let mut work: Vec<_> =
        (0..PUTS).map(|id| pair.ends[0].put(bytes, Some(id), u64::from(id))).collect();
    // Successive puts of the peer have different immediates: when a rail fails, the multi-rail
    // transport identifies the unfinished puts by their immediates.
    let mut immediates = 0..;
    let mut answer = |end: &mut End, now| {
        let immediate = immediates.next().map(|number: u32| number % 4096);
        let _ = end.lane.post(now, &[end.put(8, immediate, 0)]);
    };
    let arrived = |pair: &Pair| pair.ends[1].arrived(endpoint).len();
    let mut rounds = (0..50).rev().cycle();
    pair.post(fixture, 0, &work.split_off(PUTS as usize - 1))?;
    pair.until(fixture, "a put arrives", |pair| arrived(pair) == 1)?;
    let end = fixture.now() + fixture.patience();
    while !work.is_empty() || !pair.ends[0].lane.poll_shutdown(Some(leaving)) {
        ensure!(fixture.now() < end, "the farewell does not end");
        let taken = pair.ends[0].lane.post(fixture.now(), &work).map_err(failed("posting"))?;
        work.drain(..taken);
        answer(&mut pair.ends[1], fixture.now());
        // Side 1 is busy: it polls in one of 50 rounds.
        if rounds.next() == Some(0) {
            let End { lane, events, .. } = &mut pair.ends[1];
            lane.poll(fixture.now(), events).map_err(failed("polling"))?;
        }
        fixture.idle();
    }
    pair.ends[0].lane.detach(leaving);
    let fresh = fixture.device(0).lane().map_err(failed("making a lane"))?;
    drop(std::mem::replace(&mut pair.ends[0].lane, fresh));
    answer(&mut pair.ends[1], fixture.now());
    pair.until(fixture, "the other side gets the event of the loss", |pair| {
        pair.ends[1].lost() > 0
    })?;
    ensure!(arrived(pair) == PUTS as usize, "{} of {PUTS} puts arrived", arrived(pair));
    PASSED
}

fn death(fixture: &dyn Fixture) -> Outcome {
    let pair = &mut Pair::new(fixture, 64)?;
    if !fixture.kill(1) {
        let fresh = fixture.device(1).lane().map_err(failed("making a lane"))?;
        drop(std::mem::replace(&mut pair.ends[1].lane, fresh));
    }
    pair.until(fixture, "the survivor gets the event of the death", |pair| {
        pair.ends[0].lost() > 0
    })?;
    let put = pair.ends[0].put(8, Some(1), 1);
    let posted = pair.ends[0].lane.post(fixture.now(), &[put]);
    posted.map_err(failed("posting to a dead peer must not fail, but did"))?;
    pair.settle(fixture)?;
    ensure!(pair.ends[0].lost() == 1, "the loss is reported {} times", pair.ends[0].lost());
    PASSED
}

fn dropped(fixture: &dyn Fixture) -> Outcome {
    let [accepted, connected] = join(fixture, b"")?;
    let mut lane = fixture.device(0).lane().map_err(failed("making a lane"))?;
    let endpoint = lane.attach(accepted).map_err(failed("attaching"))?;
    drop(connected);
    let end = fixture.now() + fixture.patience();
    let mut events = Vec::new();
    while events.is_empty() {
        ensure!(fixture.now() < end, "the loss is not reported");
        lane.poll(fixture.now(), &mut events).map_err(failed("polling"))?;
        fixture.idle();
    }
    let lost = |event: &Event| matches!(event, Event::Lost { endpoint: at, .. } if *at == endpoint);
    ensure!(events.iter().all(lost), "events other than the loss: {events:?}");
    PASSED
}

fn others(fixture: &dyn Fixture) -> Outcome {
    let pair = &mut Pair::new(fixture, 64)?;
    let [accepted, connected] = join(fixture, b"second")?;
    let extra = pair.ends[0].lane.attach(accepted).map_err(failed("attaching"))?;
    drop(connected);
    pair.until(fixture, "the loss is reported", |pair| pair.ends[0].lost() > 0)?;
    pair.ends[0].lane.detach(extra);
    let put = pair.ends[0].put(8, Some(6), 6);
    pair.post(fixture, 0, &[put])?;
    let there = |pair: &Pair| pair.ends[1].arrived(pair.ends[1].endpoint) == [(6, 8)];
    pair.until(fixture, "the first endpoint still works", there)?;
    PASSED
}

fn given_back(fixture: &dyn Fixture) -> Outcome {
    let pair = &mut Pair::new(fixture, 64)?;
    let put = pair.ends[0].put(8, Some(1), 1);
    pair.post(fixture, 0, &[put])?;
    let complete = |pair: &Pair| pair.ends[0].done() == [1] && !pair.ends[1].events.is_empty();
    pair.until(fixture, "a put arrives", complete)?;
    for end in &pair.ends {
        end.device.deregister(end.source_key).map_err(failed("deregistering the source"))?;
    }
    let put = pair.ends[0].put(8, Some(2), 2);
    let posted = pair.ends[0].lane.post(fixture.now(), &[put]);
    ensure!(posted.is_err(), "a put from deregistered memory was accepted: {posted:?}");
    for side in [0, 1] {
        leave(fixture, pair, side)?;
        let end = &pair.ends[side];
        end.device.deregister(end.inbox_key).map_err(failed("deregistering the inbox"))?;
    }
    PASSED
}

fn withdrawn(fixture: &dyn Fixture) -> Outcome {
    const BYTES: usize = 3_000_000;
    let device = fixture.device(0);
    let caps = device.caps();
    if caps.mapped {
        // The sender writes to mapped memory directly, so a deregistration cannot stop the writes.
        return NOT_CLAIMED;
    }
    let bytes = BYTES.min(caps.message_bytes_max);
    let text = pattern(1, bytes);
    // Deregisters the memory that the put names or, if `elsewhere`, the target of its redirection.
    for (elsewhere, polls) in (0..6).flat_map(|polls| [(false, polls), (true, polls)]) {
        if elsewhere && !caps.redirects {
            continue;
        }
        let pair = &mut Pair::new(fixture, bytes)?;
        pair.ends[0].source.write(0, &text).map_err(failed("writing"))?;
        let put = pair.ends[0].put(bytes, Some(1), 1);
        let End { endpoint, inbox_key, source_key, .. } = pair.ends[1];
        if elsewhere {
            let slice = |key| LocalSlice { key, offset: 0, bytes };
            let lane = &mut pair.ends[1].lane;
            let found = lane.redirect(endpoint, slice(inbox_key), Some(slice(source_key)));
            ensure!(found == Ok(true), "redirect returned {found:?} before the put was posted");
        }
        pair.post(fixture, 0, &[put])?;
        for _ in 0..polls {
            pair.poll(fixture.now())?;
        }
        let (end, other) = (&pair.ends[1], [(inbox_key, 0), (source_key, 1)]);
        let (key, which) = other[usize::from(elsewhere)];
        end.device.deregister(key).map_err(failed("deregistering"))?;
        let memory = [&end.inbox, &end.source][which].clone();
        let had_come = bytes_of(&memory)? == text;
        memory.write(0, &vec![UNTOUCHED; bytes]).map_err(failed("writing"))?;
        pair.settle(fixture)?;
        let clean = bytes_of(&memory)?.iter().all(|byte| *byte == UNTOUCHED);
        ensure!(
            clean,
            "memory deregistered after {polls} polls (redirected: {elsewhere}) was written to"
        );
        // A redirected put whose target is deregistered is reported as received all the same. A put
        // that is a message is acknowledged before the lane copies it to its target.
        if caps.acknowledged && caps.written_early && !elsewhere && !had_come {
            let (done, told) = (pair.ends[0].done(), pair.ends[1].arrived(endpoint));
            ensure!(
                done.is_empty(),
                "after {polls} polls: a put that never arrived is reported done"
            );
            ensure!(
                told.is_empty(),
                "after {polls} polls: the arrival of a put that never arrived is reported"
            );
        }
    }
    PASSED
}
