//! Notes: messages with information that a peer needs before it can put anything.

use ccl_core::transport::{Event, NOTE_BYTES_MAX};

use crate::pair::{Pair, pattern};
use crate::{Fixture, Outcome, PASSED, Point, ensure, failed};

pub(crate) const POINTS: &[Point] = &[
    Point { name: "notes arrive once, in order, between puts", check: arrive },
    Point { name: "notes that are too long are refused", check: refused },
];

fn arrive(fixture: &dyn Fixture) -> Outcome {
    let pair = &mut Pair::new(fixture, 64)?;
    let text = |number: u64| pattern(number, number as usize * 131 % (NOTE_BYTES_MAX + 1));
    let expected: Vec<_> = (0..100).map(text).chain([pattern(9, NOTE_BYTES_MAX)]).collect();
    for side in [0, 1] {
        for (number, note) in expected.iter().enumerate() {
            let end = &mut pair.ends[side];
            end.lane.note(end.endpoint, note).map_err(failed("writing a note"))?;
            let put = end.put(8, Some(number as u32), number as u64);
            pair.post(fixture, side, &[put])?;
        }
    }
    let notes = |pair: &Pair, side: usize| -> Vec<Vec<u8>> {
        let note = |event: &Event| match event {
            Event::Note { endpoint, bytes } if *endpoint == pair.ends[side].endpoint => {
                Some(bytes.clone())
            }
            _ => None,
        };
        pair.ends[side].events.iter().filter_map(note).collect()
    };
    pair.until(fixture, "all notes and puts arrive", |pair| {
        [0, 1].into_iter().all(|side| {
            let puts = pair.ends[side].arrived(pair.ends[side].endpoint).len();
            notes(pair, side).len() >= expected.len() && puts >= expected.len()
        })
    })?;
    pair.settle(fixture)?;
    for side in [0, 1] {
        ensure!(notes(pair, side) == expected, "side {side} reads other notes than were written");
        let done = pair.ends[side].done().len();
        ensure!(done == expected.len(), "{done} of {} requests are done", expected.len());
    }
    PASSED
}

fn refused(fixture: &dyn Fixture) -> Outcome {
    let pair = &mut Pair::new(fixture, 64)?;
    let end = &mut pair.ends[0];
    let long = end.lane.note(end.endpoint, &vec![0; NOTE_BYTES_MAX + 1]);
    ensure!(long.is_err(), "a note of {} bytes was accepted", NOTE_BYTES_MAX + 1);
    pair.settle(fixture)?;
    ensure!(pair.ends[1].events.is_empty(), "a refused note caused {:?}", pair.ends[1].events);
    PASSED
}
