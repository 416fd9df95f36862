//! Sending end of one link: the granted messages, and the free staging slots.

use super::immediate::{ahead, behind};
use crate::time::Instant;

/// The outcome of taking a credit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CreditOutcome {
    Taken,
    Late,
    Forged,
}

#[derive(Debug)]
pub(super) struct Outbound {
    /// Number of the receiver's slots; 0 until its offer has come.
    slots: u32,
    /// The number of the next message to be sent.
    next: u64,
    /// The receiver's slot of the next message, stored to avoid a division.
    slot: u32,
    /// The staging slot of the next message, stored to avoid a division.
    staging: usize,
    /// Messages with numbers below this may be sent.
    granted: u64,
    /// The highest credit that arrived before the offer; 0 if there was none.
    early: u64,
    /// Per staging slot: bytes in flight, 0 if it is free.
    busy: Vec<usize>,
    stalled: bool,
    /// Start of the wait for a credit, if any.
    waits_since: Option<Instant>,
}

impl Outbound {
    pub(super) fn new(staging_slots: u32) -> Outbound {
        let busy = vec![0; staging_slots as usize];
        Outbound {
            slots: 0,
            next: 0,
            slot: 0,
            staging: 0,
            granted: 0,
            early: 0,
            busy,
            stalled: false,
            waits_since: None,
        }
    }

    /// Opens the link to a receiver that has `slots` slots for it. The receiver's offer grants the
    /// first `reserved` messages. For the link's other slots, the receiver gives credits of a pool
    /// that all links of the receiver share. A credit that has overtaken the offer counts at once.
    pub(super) fn open(&mut self, slots: u32, reserved: u32) {
        self.slots = slots;
        self.slot = (self.next % u64::from(slots.max(1))) as u32;
        let early = self.early.min(u64::from(slots));
        self.granted = self.next + early.max(u64::from(reserved));
    }

    /// Returns the number of the receiver's slots; 0 until its offer has come.
    pub(super) fn slots(&self) -> u32 {
        self.slots
    }

    pub(super) fn next(&self) -> u64 {
        self.next
    }

    pub(super) fn staging_slots(&self) -> usize {
        self.busy.len()
    }

    /// Returns the staging slot of the next message.
    pub(super) fn staging(&self) -> usize {
        self.staging
    }

    /// Returns the receiver's slot of the next message.
    pub(super) fn slot(&self) -> usize {
        self.slot as usize
    }

    /// Returns whether the next message may be written. Counts a stall when the result changes from
    /// true to false.
    pub(super) fn ready(&mut self, now: Option<Instant>, stalls: &mut u64) -> bool {
        let granted = self.next < self.granted;
        let ready = granted && self.busy[self.staging] == 0;
        *stalls += u64::from(!ready && !self.stalled);
        self.stalled = !ready;
        // Before the offer, the message waits for the connection and not for a credit.
        if !granted && self.slots > 0 {
            self.waits_since = self.waits_since.or(now);
        }
        ready
    }

    /// Returns the start of the wait for the credit that has come, if there was a wait.
    pub(super) fn waited_since(&mut self) -> Option<Instant> {
        if self.next < self.granted { self.waits_since.take() } else { None }
    }

    /// Marks the next message, of this many bytes, as under way.
    pub(super) fn sent(&mut self, bytes: usize) {
        self.busy[self.staging] = bytes;
        self.next += 1;
        self.slot = if self.slot + 1 < self.slots { self.slot + 1 } else { 0 };
        self.staging = if self.staging + 1 < self.busy.len() { self.staging + 1 } else { 0 };
    }

    /// Frees a staging slot; returns the bytes that were under way.
    pub(super) fn done(&mut self, staging: usize) -> usize {
        self.busy.get_mut(staging).map_or(0, std::mem::take)
    }

    /// Voids all credits and messages in flight; returns the bytes that were in flight.
    pub(super) fn forget(&mut self) -> usize {
        self.granted = 0;
        self.busy.iter_mut().map(std::mem::take).sum()
    }

    /// Takes the credit that a message from the receiver carries as a number modulo 2^32. Returns
    /// false if the credit is forged. A credit that overtakes the offer is stored until the offer
    /// arrives.
    pub(super) fn piggybacked_credit(&mut self, below: u32) -> bool {
        let ahead = below.wrapping_sub(self.granted as u32);
        if self.slots == 0 {
            self.early = self.early.max(below.into());
            return true;
        }
        // This credit was sent before others that have come already.
        if ahead > u32::MAX / 2 {
            return true;
        }
        let granted = self.granted + u64::from(ahead);
        let is_possible = granted <= self.next + u64::from(self.slots);
        self.granted = if is_possible { granted } else { self.granted };
        is_possible
    }

    /// Takes the credit that an immediate carries as a number modulo 2^20. A credit beyond the
    /// receiver's slots is forged.
    pub(super) fn credit(&mut self, below: u32) -> CreditOutcome {
        if self.slots == 0 {
            self.early = self.early.max(below.into());
            return CreditOutcome::Taken;
        }
        let distance = ahead(self.granted, below);
        if behind(distance) {
            return CreditOutcome::Late;
        }
        let below = self.granted + distance;
        if below > self.next + u64::from(self.slots) {
            return CreditOutcome::Forged;
        }
        self.granted = below;
        CreditOutcome::Taken
    }
}
