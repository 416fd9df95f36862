//! The receiving end of one link: which messages are granted, have arrived, and are next.

use super::name::ahead;
use super::transfer::{Landings, Wanted};

/// Where the payload of the next message comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Landing {
    /// Nobody has asked yet; its slot, if nobody does.
    Undecided,
    /// Its slot.
    Slot,
    /// An address in the caller's memory.
    At(usize),
}

#[derive(Debug)]
pub(super) struct Inbound {
    slots: u32,
    /// The number of the next message to be taken.
    next: u64,
    /// Messages below this may be sent.
    granted: u64,
    /// Of every slot: whether its current message is there.
    arrived: Vec<bool>,
    /// Of every slot: where past it its current message came.
    past: Vec<Option<Wanted>>,
    pub(super) landings: Landings,
    landing: Landing,
}

impl Inbound {
    /// Grants all its slots from the start.
    pub(super) fn new(slots: u32) -> Inbound {
        let arrived = vec![false; slots as usize];
        Inbound {
            slots,
            next: 0,
            granted: u64::from(slots),
            arrived,
            past: vec![None; slots as usize],
            landings: Landings::default(),
            landing: Landing::Undecided,
        }
    }

    fn index(&self, number: u64) -> usize {
        (number % u64::from(self.slots)) as usize
    }

    /// The slot of the next message.
    pub(super) fn slot(&self) -> usize {
        self.index(self.next)
    }

    pub(super) fn slots(&self) -> u32 {
        self.slots
    }

    /// The number of the next message to be taken.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// Whether a message among the next ones, as many as there are slots, is there.
    pub(super) fn has_arrived(&self, number: u64) -> bool {
        number < self.next || self.arrived[self.index(number)]
    }

    /// Where the payload of the next message comes, or has come.
    pub(super) fn landing(&self) -> Landing {
        self.past().map_or(self.landing, |wanted| Landing::At(wanted.address))
    }

    /// The next message, if it came past its slot.
    pub(super) fn past(&self) -> Option<Wanted> {
        self.past[self.slot()]
    }

    /// Says so for the next message.
    pub(super) fn decide(&mut self, landing: Landing) {
        self.landing = landing;
    }

    pub(super) fn ready(&self) -> bool {
        self.arrived[self.slot()]
    }

    /// The slot that a named message is in, if it is granted and was not there before.
    pub(super) fn expect(&self, number: u32) -> Option<usize> {
        let number = self.next + ahead(self.next, number);
        let slot = self.index(number);
        (number < self.granted && !self.arrived[slot]).then_some(slot)
    }

    /// What a named message is that went past its slot.
    pub(super) fn wanted(&self, number: u32) -> Option<Wanted> {
        self.landings.wanted(self.next + ahead(self.next, number))
    }

    /// A message is there: in its slot, or past it.
    pub(super) fn arrive(&mut self, slot: usize, past: Option<Wanted>) {
        self.arrived[slot] = true;
        self.past[slot] = past;
    }

    /// The grant, if it was renewed since the start.
    pub(super) fn renewed(&mut self) -> Option<u64> {
        (self.granted > u64::from(self.slots)).then_some(self.granted)
    }

    /// Grants all that is free: the count that a message to that peer tells it on its way.
    pub(super) fn renew(&mut self) -> u64 {
        self.granted = self.next + u64::from(self.slots);
        self.granted
    }

    /// Frees the slot of the next message. Returns the new grant if one is due: when half of the
    /// slots are free and not granted.
    pub(super) fn release(&mut self) -> Option<u64> {
        let slot = self.slot();
        if !std::mem::replace(&mut self.arrived[slot], false) {
            return None;
        }
        self.past[slot] = None;
        self.landings.taken(self.next);
        self.next += 1;
        self.landing = Landing::Undecided;
        let due = self.next + u64::from(self.slots);
        let is_due = (due - self.granted) * 2 >= u64::from(self.slots);
        if is_due {
            self.granted = due;
        }
        is_due.then_some(due)
    }
}
