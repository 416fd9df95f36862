//! Puts from two ranges of memory, and puts that the receiver redirects to memory of its choice.
//! Some points (tests of the suite) change the source or the redirect of a put while the put is
//! under way.
//!
//! If the device does not claim `redirects`, only the first point is tested in full.

use ccl_core::transport::{LocalSlice, WorkRequest};

use crate::pair::{End, Pair, bytes_of, pattern};
use crate::{Fixture, Outcome, PASSED, Point, Verdict, ensure, failed};

pub(crate) const POINTS: &[Point] = &[
    Point { name: "a put takes its bytes from two ranges of memory", check: two_places },
    Point { name: "a put's source may move while the put is under way", check: relocated },
    Point { name: "claim: a redirect applies to one put", check: redirected },
    Point { name: "claim: a redirect can be undone", check: taken_back },
    Point { name: "claim: a put that exceeds its redirect is not redirected", check: too_long },
];

pub(crate) const NOT_CLAIMED: Outcome = Ok(Verdict::Skipped("the device does not promise this"));
/// Number of bytes of a put's head. A put here has two ranges: the head, then the tail.
const HEAD: usize = 16;
const UNTOUCHED: u8 = 0x77;

fn claimed(fixture: &dyn Fixture) -> bool {
    fixture.device(0).caps().redirects
}

/// Returns a put to the start of the inbox: `HEAD` bytes from the start of the source, then `bytes`
/// bytes from offset `at` of the source.
fn put(end: &End, at: usize, bytes: usize, id: u32) -> WorkRequest {
    let WorkRequest::Put { endpoint, local, remote, .. } = end.put(HEAD, None, 0);
    WorkRequest::Put {
        endpoint,
        local,
        tail: Some(LocalSlice { key: local.key, offset: at, bytes }),
        is_control: false,
        remote,
        remote_offset: 0,
        immediate: Some(id),
        id: u64::from(id),
    }
}

fn source(end: &End, offset: usize, bytes: usize) -> LocalSlice {
    LocalSlice { key: end.source_key, offset, bytes }
}

/// Returns the slice of an end's inbox that follows the head.
fn slot(end: &End, bytes: usize) -> LocalSlice {
    LocalSlice { key: end.inbox_key, offset: HEAD, bytes }
}

/// Returns a pair with `room` bytes of memory on both sides, and the pattern that fills the
/// sender's source. The receiver's memory is filled with `UNTOUCHED`.
fn fresh(fixture: &dyn Fixture, room: usize) -> Result<(Pair, Vec<u8>), String> {
    let pair = Pair::new(fixture, room)?;
    let text = pattern(7, room);
    pair.ends[0].source.write(0, &text).map_err(failed("writing"))?;
    for memory in [&pair.ends[1].source, &pair.ends[1].inbox] {
        memory.write(0, &vec![UNTOUCHED; room]).map_err(failed("writing"))?;
    }
    Ok((pair, text))
}

fn arrives(fixture: &dyn Fixture, pair: &mut Pair, id: u32, bytes: usize) -> Result<(), String> {
    pair.until(fixture, "a put arrives and is done", |pair| {
        let [from, to] = &pair.ends;
        from.done().last() == Some(&u64::from(id)) && !to.arrived(to.endpoint).is_empty()
    })?;
    let arrived = pair.ends[1].arrived(pair.ends[1].endpoint);
    ensure!(arrived == [(id, bytes)], "put {id} of {bytes} bytes arrived as {arrived:?}");
    pair.ends.iter_mut().for_each(|end| end.events.clear());
    Ok(())
}

fn two_places(fixture: &dyn Fixture) -> Outcome {
    let most = fixture.device(0).caps().message_bytes_max.min(300_000);
    let (mut pair, text) = fresh(fixture, 2 * most)?;
    for (id, bytes) in [0, 1, 100, 4096, 65_537, most - HEAD].into_iter().enumerate() {
        if bytes + HEAD > most {
            continue;
        }
        let at = 2 * most - bytes;
        pair.ends[1].inbox.write(0, &vec![UNTOUCHED; 2 * most]).map_err(failed("writing"))?;
        let work = put(&pair.ends[0], at, bytes, id as u32);
        pair.post(fixture, 0, &[work])?;
        arrives(fixture, &mut pair, id as u32, HEAD + bytes)?;
        let seen = bytes_of(&pair.ends[1].inbox)?;
        ensure!(seen[..HEAD] == text[..HEAD], "a tail of {bytes} bytes: the head is wrong");
        ensure!(
            seen[HEAD..HEAD + bytes] == text[at..],
            "a tail of {bytes} bytes: the tail is wrong"
        );
        ensure!(
            seen[HEAD + bytes] == UNTOUCHED,
            "a tail of {bytes} bytes: the byte that follows the tail was written"
        );
    }
    let beyond = put(&pair.ends[0], 2 * most - 3, 4, 9);
    let posted = pair.ends[0].lane.post(fixture.now(), &[beyond]);
    ensure!(posted.is_err(), "posting a tail beyond its memory returned {posted:?}");
    PASSED
}

fn relocated(fixture: &dyn Fixture) -> Outcome {
    const BYTES: usize = 50_000;
    const PUTS: usize = 12;
    let room = HEAD + (PUTS + 1) * BYTES;
    let (mut pair, text) = fresh(fixture, room)?;
    let own = pair.ends[0].endpoint;
    if !claimed(fixture) {
        let moved = pair.ends[0].lane.relocate(own, 1, source(&pair.ends[0], 0, 8));
        ensure!(moved.is_err(), "relocate returned {moved:?}, but the device claims no redirects");
        return NOT_CLAIMED;
    }
    let location = |number: usize| HEAD + number * BYTES;
    let sent = text[location(0)..location(1)].to_vec();
    let work: Vec<_> =
        (0..PUTS).map(|id| put(&pair.ends[0], location(0), BYTES, id as u32)).collect();
    let taken = pair.ends[0].lane.post(fixture.now(), &work).map_err(failed("posting"))?;
    for id in 0..taken {
        let from = &mut pair.ends[0];
        from.source.write(location(id + 1), &sent).map_err(failed("writing"))?;
        let to = source(from, location(id + 1), BYTES);
        from.lane.relocate(own, id as u64, to).map_err(failed("relocating"))?;
    }
    pair.ends[0].source.write(location(0), &[0; BYTES]).map_err(failed("writing"))?;
    let mut seen = 0;
    pair.until(fixture, "all puts arrive and are done", |pair| {
        let [from, to] = &pair.ends;
        seen = to.arrived(to.endpoint).len();
        from.done().len() == taken && seen == taken
    })?;
    let inbox = bytes_of(&pair.ends[1].inbox)?;
    ensure!(
        inbox[HEAD..HEAD + BYTES] == sent,
        "the peer got other bytes than those at the new location"
    );
    let late = pair.ends[0].lane.relocate(own, 0, source(&pair.ends[0], 0, BYTES));
    ensure!(late.is_ok(), "the call to relocate a put that is done returned {late:?}");
    let unknown = pair.ends[0].lane.relocate(own, 0, source(&pair.ends[0], room, 1));
    ensure!(unknown.is_err(), "a put was relocated to bytes outside the memory");
    PASSED
}

fn redirected(fixture: &dyn Fixture) -> Outcome {
    const ROOM: usize = 400_000;
    let (mut pair, text) = fresh(fixture, ROOM)?;
    let peer = pair.ends[1].endpoint;
    if !claimed(fixture) {
        let (from, into) = (slot(&pair.ends[1], 8), source(&pair.ends[1], 0, 8));
        let found = pair.ends[1].lane.redirect(peer, from, Some(into));
        ensure!(found.is_err(), "redirect returned {found:?}, but the device claims no redirects");
        return NOT_CLAIMED;
    }
    let most = fixture.device(0).caps().message_bytes_max - HEAD;
    for (round, bytes) in [1, 8, 1000, 16_384, 65_537, 300_000].into_iter().enumerate() {
        let bytes = bytes.min(most);
        let (clean, at) = (vec![UNTOUCHED; ROOM], ROOM - bytes);
        pair.ends[1].inbox.write(0, &clean).map_err(failed("writing"))?;
        pair.ends[1].source.write(0, &clean).map_err(failed("writing"))?;
        // In the last round the redirected range is longer than the put.
        let room = if round == 5 { bytes + 7 } else { bytes };
        let (from, into) = (slot(&pair.ends[1], room), source(&pair.ends[1], 33, room));
        let found = pair.ends[1].lane.redirect(peer, from, Some(into));
        ensure!(found == Ok(true), "redirect returned {found:?} before the put was posted");
        let id = 2 * round as u32;
        let work = [put(&pair.ends[0], at, bytes, id)];
        pair.post(fixture, 0, &work)?;
        arrives(fixture, &mut pair, id, HEAD + bytes)?;
        let (there, here) = (bytes_of(&pair.ends[1].source)?, bytes_of(&pair.ends[1].inbox)?);
        ensure!(
            there[33..33 + bytes] == text[at..],
            "a tail of {bytes} bytes: the redirected bytes are wrong"
        );
        let around = there[..33].iter().chain(&there[33 + bytes..]).chain(&here[HEAD..]);
        ensure!(
            around.into_iter().all(|byte| *byte == UNTOUCHED),
            "a tail of {bytes} bytes: the put wrote outside its target"
        );
        ensure!(here[..HEAD] == text[..HEAD], "a tail of {bytes} bytes: the head is wrong");
        // The redirection applies to one put only.
        let work = [put(&pair.ends[0], at, bytes, id + 1)];
        pair.post(fixture, 0, &work)?;
        arrives(fixture, &mut pair, id + 1, HEAD + bytes)?;
        let here = bytes_of(&pair.ends[1].inbox)?;
        ensure!(
            here[HEAD..HEAD + bytes] == text[at..],
            "a tail of {bytes} bytes: the put after the redirected one is wrong"
        );
    }
    let (from, into) = (slot(&pair.ends[1], ROOM), source(&pair.ends[1], 0, ROOM));
    let outside = pair.ends[1].lane.redirect(peer, from, Some(into));
    ensure!(outside.is_err(), "a redirect from outside the memory returned {outside:?}");
    let (from, into) = (slot(&pair.ends[1], 8), source(&pair.ends[1], ROOM, 8));
    let outside = pair.ends[1].lane.redirect(peer, from, Some(into));
    ensure!(outside.is_err(), "a redirect to outside the memory returned {outside:?}");
    PASSED
}

fn taken_back(fixture: &dyn Fixture) -> Outcome {
    const BYTES: usize = 3_000_000;
    if !claimed(fixture) {
        return NOT_CLAIMED;
    }
    let bytes = BYTES.min(fixture.device(0).caps().message_bytes_max - HEAD);
    let (mut pair, text) = fresh(fixture, HEAD + bytes)?;
    let peer = pair.ends[1].endpoint;
    // Takes the redirection back at every stage of the put: after 0 to 11 polls.
    for polls in 0..12u32 {
        let clean = vec![UNTOUCHED; HEAD + bytes];
        pair.ends[1].inbox.write(0, &clean).map_err(failed("writing"))?;
        let (from, into) = (slot(&pair.ends[1], bytes), source(&pair.ends[1], 0, bytes));
        let found = pair.ends[1].lane.redirect(peer, from, Some(into));
        ensure!(found == Ok(true), "redirect returned {found:?} before the put was posted");
        let work = [put(&pair.ends[0], HEAD, bytes, polls)];
        pair.post(fixture, 0, &work)?;
        for _ in 0..polls {
            pair.poll(fixture.now())?;
        }
        let to = &mut pair.ends[1];
        if !to.arrived(to.endpoint).is_empty() {
            to.lane.redirect(peer, from, None).map_err(failed("cancelling after the put"))?;
            arrives(fixture, &mut pair, polls, HEAD + bytes)?;
            continue;
        }
        to.lane.redirect(peer, from, None).map_err(failed("cancelling"))?;
        to.source.write(0, &clean).map_err(failed("writing"))?;
        arrives(fixture, &mut pair, polls, HEAD + bytes)?;
        let (there, here) = (bytes_of(&pair.ends[1].source)?, bytes_of(&pair.ends[1].inbox)?);
        ensure!(
            there == clean,
            "after {polls} polls: the put wrote to the target of a cancelled redirect"
        );
        ensure!(
            here == text,
            "after {polls} polls: the bytes are not in the memory that the put names"
        );
    }
    PASSED
}

fn too_long(fixture: &dyn Fixture) -> Outcome {
    if !claimed(fixture) {
        return NOT_CLAIMED;
    }
    let bytes = (fixture.device(0).caps().message_bytes_max - HEAD).min(100_000);
    let (mut pair, text) = fresh(fixture, HEAD + bytes)?;
    let (from, into) = (slot(&pair.ends[1], bytes - 1), source(&pair.ends[1], 0, bytes - 1));
    let peer = pair.ends[1].endpoint;
    let found = pair.ends[1].lane.redirect(peer, from, Some(into));
    ensure!(found == Ok(true), "redirect returned {found:?} before the put was posted");
    let work = [put(&pair.ends[0], HEAD, bytes, 1)];
    pair.post(fixture, 0, &work)?;
    arrives(fixture, &mut pair, 1, HEAD + bytes)?;
    let (there, here) = (bytes_of(&pair.ends[1].source)?, bytes_of(&pair.ends[1].inbox)?);
    ensure!(
        there.iter().all(|byte| *byte == UNTOUCHED),
        "a put that exceeds its redirect wrote to the redirect's target"
    );
    ensure!(here == text, "the bytes are not in the memory that the sender named");
    PASSED
}
