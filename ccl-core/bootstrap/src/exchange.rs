//! Exchanges: each rank hands in a part and gets the parts of all ranks. Ranks pass parts along the
//! overlay, even the parts of an exchange that they have not started themselves.

use super::breach::Breach;
use super::message::Message;
use super::overlay;
use ccl_core::types::Rank;
use std::collections::BTreeMap;

/// The exchanges in progress.
#[derive(Debug)]
pub(super) struct Exchange {
    rank: Rank,
    ranks: u32,
    /// Number of the next exchange that this rank starts.
    pub(super) next: u64,
    /// Per exchange: the parts that came in. Other ranks may be one exchange ahead.
    parts: BTreeMap<u64, BTreeMap<Rank, Vec<u8>>>,
    /// Number of the exchange that finished most recently, and its parts, until they are collected.
    finished: Option<(u64, Vec<Vec<u8>>)>,
}

/// A part to be passed on, and the ranks that it goes to.
pub(super) type Passed = (Message, Vec<Rank>);

impl Exchange {
    pub(super) fn new(rank: Rank, ranks: u32) -> Exchange {
        Exchange { rank, ranks, next: 0, parts: BTreeMap::new(), finished: None }
    }

    /// Starts the next exchange with this rank's part.
    pub(super) fn contribute(&mut self, blob: Vec<u8>) -> (u64, Passed) {
        let sequence = self.next;
        self.next += 1;
        // No caller waits for an older exchange any more.
        self.parts.retain(|known, _| *known >= sequence);
        let passed = self.pass_on(sequence, self.rank, &blob);
        self.store(sequence, self.rank, blob);
        (sequence, passed)
    }

    /// Takes in a part that a neighbour sent.
    pub(super) fn take(
        &mut self,
        sequence: u64,
        origin: Rank,
        blob: Vec<u8>,
    ) -> Result<Passed, Breach> {
        // No rank can finish exchange `next` without this rank's part, but a rank can give up that
        // exchange and start exchange `next + 1`. A part of a later exchange breaks the protocol.
        if sequence > self.next + 1 {
            return Err(Breach::NotInProgress { sequence });
        }
        let known = |parts: &BTreeMap<_, _>| parts.contains_key(&origin);
        if origin >= self.ranks || self.parts.get(&sequence).is_some_and(known) {
            return Err(Breach::SecondPart { rank: origin, sequence });
        }
        let passed = self.pass_on(sequence, origin, &blob);
        // A part of an exchange that this rank has given up is passed on, but not stored.
        if sequence + 1 >= self.next {
            self.store(sequence, origin, blob);
        }
        Ok(passed)
    }

    fn pass_on(&self, sequence: u64, origin: Rank, blob: &[u8]) -> Passed {
        let next_hops: Vec<_> = overlay::next_hops(self.rank, self.ranks, origin).collect();
        let blob = if next_hops.is_empty() { Vec::new() } else { blob.to_vec() };
        (Message::Part { sequence, rank: origin, blob }, next_hops)
    }

    fn store(&mut self, sequence: u64, origin: Rank, blob: Vec<u8>) {
        let parts = self.parts.entry(sequence).or_default();
        parts.insert(origin, blob);
        if parts.len() == self.ranks as usize {
            let parts = self.parts.remove(&sequence).unwrap_or_default();
            self.finished = Some((sequence, parts.into_values().collect()));
        }
    }

    /// Takes the parts of all ranks, in order of rank, if this exchange finished most recently.
    pub(super) fn collect(&mut self, sequence: u64) -> Option<Vec<Vec<u8>>> {
        let (_, parts) = self.finished.take_if(|(finished, _)| *finished == sequence)?;
        Some(parts)
    }

    /// Returns the first rank whose part is missing.
    pub(super) fn awaited(&self, sequence: u64) -> Option<Rank> {
        let parts = self.parts.get(&sequence)?;
        (0..self.ranks).find(|rank| !parts.contains_key(rank))
    }
}
