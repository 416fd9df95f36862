//! Checks of the claims that a device makes in its capabilities.

use std::sync::atomic::Ordering;

use ccl_core::transport::WorkRequest;

use crate::pair::{Pair, bytes_of, pattern};
use crate::{Fixture, Outcome, PASSED, Point, Verdict, ensure, failed};

pub(crate) const POINTS: &[Point] = &[
    Point { name: "capabilities are plausible", check: plausible },
    Point { name: "claim: a lane takes depth_max puts at once", check: depth },
    Point { name: "claim: credits and CTS do not count towards depth_max", check: control_depth },
    Point { name: "claim: ordered puts arrive in order", check: ordered },
    Point { name: "claim: mapped memory is the peer's own memory", check: mapped },
];

fn plausible(fixture: &dyn Fixture) -> Outcome {
    for side in [0, 1] {
        let device = fixture.device(side);
        let caps = device.caps();
        ensure!(caps.message_bytes_max > 0 && caps.depth_max > 0, "a limit is 0: {caps:?}");
        let bandwidth = caps.bandwidth_bytes_per_s;
        ensure!(bandwidth.is_finite() && bandwidth > 0.0, "the bandwidth is wrong: {caps:?}");
    }
    PASSED
}

fn depth(fixture: &dyn Fixture) -> Outcome {
    let depth = fixture.device(0).caps().depth_max.min(10_000);
    let pair = &mut Pair::new(fixture, 64)?;
    let work: Vec<_> = (0..depth).map(|id| pair.ends[0].put(4, None, id as u64)).collect();
    let taken = pair.ends[0].lane.post(fixture.now(), &work).map_err(failed("posting"))?;
    ensure!(taken == depth, "{taken} of {depth} puts were taken");
    pair.until(fixture, "all puts are done", |pair| pair.ends[0].done().len() == depth)?;
    PASSED
}

/// Checks that control puts do not count towards the depth: the lane takes three control puts, then
/// data puts that fill the depth, then another control put.
fn control_depth(fixture: &dyn Fixture) -> Outcome {
    let depth = fixture.device(0).caps().depth_max.min(10_000);
    let pair = &mut Pair::new(fixture, 64)?;
    let put = |id: usize| pair.ends[0].put(4, Some(7), id as u64);
    let control = |id| {
        let WorkRequest::Put {
            endpoint, local, tail, remote, remote_offset, immediate, id, ..
        } = put(id);
        let is_control = true;
        WorkRequest::Put { endpoint, local, tail, is_control, remote, remote_offset, immediate, id }
    };
    let before: Vec<_> = (0..3).map(control).collect();
    let data: Vec<_> = (3..3 + depth).map(put).collect();
    let after = [control(3 + depth)];
    for (work, what) in [(&before[..], "control"), (&data, "data"), (&after, "control")] {
        let taken = pair.ends[0].lane.post(fixture.now(), work).map_err(failed("posting"))?;
        ensure!(taken == work.len(), "{taken} of {} {what} puts were taken", work.len());
    }
    pair.until(fixture, "all puts are done", |pair| pair.ends[0].done().len() == depth + 4)?;
    PASSED
}

fn ordered(fixture: &dyn Fixture) -> Outcome {
    if !fixture.device(0).caps().ordered {
        return Ok(Verdict::Skipped("the device does not claim order"));
    }
    let room = fixture.device(0).caps().message_bytes_max.min(20_000);
    let pair = &mut Pair::new(fixture, room)?;
    let size = |number: u32| [8, room, 0, 100][number as usize % 4];
    let put = |number| pair.ends[0].put(size(number), Some(number), u64::from(number));
    let work: Vec<_> = (0..300).map(put).collect();
    pair.post(fixture, 0, &work)?;
    pair.until(fixture, "all puts arrive", |pair| pair.ends[1].events.len() >= 300)?;
    let arrived = pair.ends[1].arrived(pair.ends[1].endpoint);
    let expected: Vec<_> = (0..300).map(|number| (number, size(number))).collect();
    let wrong = arrived.iter().zip(&expected).position(|(seen, expected)| seen != expected);
    ensure!(wrong.is_none(), "arrival {wrong:?} is out of order");
    PASSED
}

fn mapped(fixture: &dyn Fixture) -> Outcome {
    let pair = &mut Pair::new(fixture, 4096)?;
    let claimed = fixture.device(0).caps().mapped;
    for side in [0, 1] {
        let owner = &mut pair.ends[side];
        let key = owner.lane.share(owner.endpoint, owner.inbox_key).map_err(failed("sharing"))?;
        let memory = owner.inbox.clone();
        let other = &mut pair.ends[1 - side];
        let view = other.lane.map(other.endpoint, &key);
        if !claimed {
            ensure!(view.is_err(), "memory was mapped, but the device does not claim `mapped`");
            continue;
        }
        let view = view.map_err(failed("mapping"))?;
        ensure!(view.bytes() >= 4096, "only {} bytes are mapped", view.bytes());
        for (number, (writer, reader)) in [(&view, &memory), (&memory, &view)].iter().enumerate() {
            let text = pattern(number as u64, 4096);
            writer.write(0, &text).map_err(failed("writing"))?;
            ensure!(
                bytes_of(reader)?[..4096] == text,
                "one side does not read the bytes that the other side has stored"
            );
            let word = writer.word64(64).map_err(failed("finding a word"))?;
            word.store(77, Ordering::Release);
            word.fetch_add(1, Ordering::AcqRel);
            let word = reader.word64(64).map_err(failed("finding a word"))?;
            ensure!(
                word.load(Ordering::Acquire) == 78,
                "one side does not see an atomic operation of the other side"
            );
        }
        ensure!(other.lane.map(other.endpoint, &nonsense()).is_err(), "an invalid key was mapped");
    }
    PASSED
}

fn nonsense() -> ccl_core::transport::RemoteKey {
    ccl_core::transport::RemoteKey(vec![0xff; 40])
}
