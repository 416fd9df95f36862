//! Replacement of the memory that a put reads or writes, while the put is under way.

use std::collections::BTreeMap;

use ccl_core::transport::LocalSlice;

use crate::flight::Flight;

/// Redirection of one put's bytes.
#[derive(Debug)]
struct Redirect {
    link: usize,
    /// Side of the receiver.
    side: usize,
    from: LocalSlice,
    into: LocalSlice,
}

/// Put whose bytes are written and whose immediate has not arrived yet.
#[derive(Debug)]
struct Written {
    link: usize,
    /// Side of the receiver.
    side: usize,
    key: u64,
    offset: usize,
    bytes: usize,
    /// Offset of the first redirected byte within the put, and the memory that the redirected bytes
    /// went to.
    diverted: Option<(usize, LocalSlice)>,
}

impl Written {
    fn covers(&self, link: usize, side: usize, from: LocalSlice) -> bool {
        let inside = (self.offset..self.offset + self.bytes).contains(&from.offset);
        (self.link, self.side, self.key) == (link, side, from.key.0) && inside
    }
}

/// Redirections that no put has used yet, written puts whose immediates have not arrived, and
/// relocated tails. The tail of a put is the second of its local slices.
#[derive(Debug, Default)]
pub(crate) struct Late {
    redirects: Vec<Redirect>,
    /// Written puts, keyed by the number of the flight.
    written: BTreeMap<u64, Written>,
    /// New memory of each relocated tail, keyed by the put's connection, sender's side and id.
    tails: BTreeMap<(usize, usize, u64), LocalSlice>,
}

impl Late {
    /// Returns the slices that a put sends, in order.
    pub(crate) fn sources(&self, flight: &Flight) -> [Option<LocalSlice>; 2] {
        let [head, tail] = flight.local;
        let moved = self.tails.get(&(flight.link, flight.side, flight.id)).copied();
        [head, tail.map(|tail| moved.unwrap_or(tail))]
    }

    /// Begins a put; forgets the relocation of an older put with the same id.
    pub(crate) fn begin(&mut self, flight: &Flight) {
        self.tails.remove(&(flight.link, flight.side, flight.id));
    }

    /// Prepares for the write of a put's bytes. If some bytes are redirected, returns the offset of
    /// the first redirected byte within the put, and the new memory of the redirected bytes.
    pub(crate) fn write(&mut self, flight: &Flight, key: u64) -> Option<(usize, LocalSlice)> {
        let (link, side, bytes) = (flight.link, 1 - flight.side, flight.bytes());
        let offset = flight.remote_offset;
        let mut written = Written { link, side, key, offset, bytes, diverted: None };
        let found = self.redirects.iter().position(|redirect| {
            let end = redirect.from.offset + redirect.from.bytes;
            written.covers(redirect.link, redirect.side, redirect.from) && offset + bytes <= end
        });
        if let Some(found) = found {
            let Redirect { from, into, .. } = self.redirects.swap_remove(found);
            written.diverted = Some((from.offset - offset, into));
        }
        let diverted = written.diverted;
        if flight.immediate.is_some() {
            self.written.insert(flight.number, written);
        }
        diverted
    }

    /// Ends a put whose immediate has arrived.
    pub(crate) fn arrive(&mut self, flight: &Flight) {
        self.written.remove(&flight.number);
    }

    /// Moves the tail of a put to other memory.
    pub(crate) fn relocate(&mut self, (link, side): (usize, usize), id: u64, tail: LocalSlice) {
        self.tails.insert((link, side, id), tail);
    }

    /// Redirects to `into` the bytes that a put will write to `from`; returns false if it is too
    /// late.
    pub(crate) fn redirect(
        &mut self,
        (link, side): (usize, usize),
        from: LocalSlice,
        into: LocalSlice,
    ) -> bool {
        let is_late = self.written.values().any(|written| written.covers(link, side, from));
        if !is_late {
            self.redirects.push(Redirect { link, side, from, into });
        }
        !is_late
    }

    /// Ends the redirection of `from`. If a put has already written redirected bytes, returns the
    /// memory that holds these bytes, and their number.
    pub(crate) fn end_redirect(
        &mut self,
        (link, side): (usize, usize),
        from: LocalSlice,
    ) -> Option<(LocalSlice, usize)> {
        self.redirects.retain(|known| {
            (known.link, known.side, known.from.key, known.from.offset)
                != (link, side, from.key, from.offset)
        });
        let written = self.written.values_mut().find(|written| written.covers(link, side, from))?;
        let (start, into) = written.diverted.take()?;
        Some((into, written.bytes - start))
    }
}
