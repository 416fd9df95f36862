//! Receiving end of one link: which messages are granted, have arrived, and are next.

use ccl_memory::Region;

use super::cts::{Placement, Preposts};
use super::immediate::ahead;

/// The destination of the next message's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Destination {
    /// Slot of the message for now: another destination may still be decided.
    Undecided,
    /// Slot of the message.
    Slot,
    /// Address in the caller's memory.
    At(usize),
}

#[derive(Debug)]
pub(super) struct Inbound {
    slots: u32,
    /// Number of credits that the link always has; at most its number of slots.
    reserved: u32,
    /// The number of the next message to be taken.
    next: u64,
    /// Slot of the next message, stored to avoid a division.
    slot: usize,
    /// Messages below this may be sent.
    granted: u64,
    /// The last credit that was announced.
    announced: u64,
    /// True while the link waits in the pool's queue.
    asks: bool,
    /// Per slot: true once its current message has arrived.
    arrived: Vec<bool>,
    /// Per slot: true if the slot's message was recognised by a seal (`seal.rs`), and its immediate
    /// is still to come.
    late: Vec<bool>,
    /// Number of slots that are `late`.
    late_count: u32,
    /// Two values. First, the number below which all messages are taken and their immediates have
    /// come. Second, the slot of the message with this number.
    settled: (u64, usize),
    /// Per slot: the memory of a message that was placed directly, if any.
    placed: Vec<Option<Placement>>,
    /// Per slot: the receive buffer of the lane that the message is in, if it is in one.
    buffers: Vec<Option<Region>>,
    pub(super) preposts: Preposts,
    destination: Destination,
}

impl Inbound {
    /// Returns the end of a link that grants its reserved slots from the start.
    pub(super) fn new(slots: u32, reserved: u32) -> Inbound {
        let arrived = vec![false; slots as usize];
        let granted = u64::from(reserved);
        Inbound {
            slots,
            reserved,
            next: 0,
            slot: 0,
            granted,
            announced: granted,
            asks: false,
            arrived,
            late: vec![false; slots as usize],
            late_count: 0,
            settled: (0, 0),
            placed: vec![None; slots as usize],
            buffers: vec![None; slots as usize],
            preposts: Preposts::default(),
            destination: Destination::Undecided,
        }
    }

    /// Returns the slot of message `next + after`; none if `after` is at least the number of slots.
    fn index(&self, after: u64) -> Option<usize> {
        let slots = self.slots as usize;
        let after = usize::try_from(after).ok().filter(|after| *after < slots)?;
        let slot = self.slot + after;
        Some(if slot < slots { slot } else { slot - slots })
    }

    /// Returns the slot of the next message.
    #[inline]
    pub(super) fn slot(&self) -> usize {
        self.slot
    }

    pub(super) fn slots(&self) -> u32 {
        self.slots
    }

    /// Returns the number of the next message to be taken.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// Returns whether a message has arrived; false if the message is so far ahead that it has no
    /// slot yet.
    pub(super) fn has_arrived(&self, number: u64) -> bool {
        number
            .checked_sub(self.next)
            .is_none_or(|after| self.index(after).is_some_and(|slot| self.arrived[slot]))
    }

    /// Returns the destination of the next message's payload.
    pub(super) fn destination(&self) -> Destination {
        self.placed().map_or(self.destination, |placed| Destination::At(placed.address))
    }

    /// Returns the placement of the next message, if it was placed where its CTS says.
    pub(super) fn placed(&self) -> Option<Placement> {
        self.placed[self.slot()]
    }

    /// Returns the next message, if it is in a receive buffer of the lane.
    pub(super) fn buffer(&self) -> Option<&Region> {
        self.buffers[self.slot()].as_ref()
    }

    /// Sets the receive buffer of a slot's message, which is kept until the message is released.
    pub(super) fn keep_buffer(&mut self, slot: usize, buffer: Option<Region>) {
        self.buffers[slot] = buffer;
    }

    /// Sets the destination of the next message's payload.
    pub(super) fn decide(&mut self, destination: Destination) {
        self.destination = destination;
    }

    pub(super) fn ready(&self) -> bool {
        self.arrived[self.slot()]
    }

    /// Returns the slot of a message by its number, if the message is granted and has not arrived
    /// before.
    pub(super) fn expect(&self, number: u32) -> Option<usize> {
        let after = ahead(self.next, number);
        let slot = self.index(after)?;
        (self.next + after < self.granted && !self.arrived[slot]).then_some(slot)
    }

    /// Returns the memory that this rank's CTS named for a message, if a CTS was sent for it.
    pub(super) fn placement(&self, number: u32) -> Option<Placement> {
        self.preposts.placement(self.next + ahead(self.next, number))
    }

    /// Marks a message as arrived: in its slot or a receive buffer, or where its CTS says.
    pub(super) fn arrive(&mut self, slot: usize, placed: Option<Placement>) {
        self.arrived[slot] = true;
        self.placed[slot] = placed;
    }

    /// Returns whether the next message may be taken before its immediate. The message must be
    /// granted and not yet marked as arrived. With this message, at most a quarter of the reserved
    /// slots may wait for immediates: such a slot is granted again only after the immediate. If
    /// more slots waited, the sender might lack credits while this rank makes no call and therefore
    /// does not poll.
    #[inline]
    pub(super) fn may_take_early(&self) -> bool {
        self.next < self.granted
            && !self.arrived[self.slot]
            && (self.late_count + 1) * 4 <= self.reserved
    }

    /// Marks the next message as arrived before its immediate.
    pub(super) fn arrive_early(&mut self) {
        self.arrive(self.slot, None);
        self.late[self.slot] = true;
        self.late_count += 1;
    }

    /// Takes an immediate that comes after its message was marked as arrived. Returns false if no
    /// message with this number waits for its immediate.
    pub(super) fn take_late(&mut self, number: u32) -> bool {
        let after = ahead(self.settled.0, number);
        if self.late_count == 0 || after >= u64::from(self.slots) {
            return false;
        }
        let (slot, slots) = (self.settled.1 + after as usize, self.slots as usize);
        let late = &mut self.late[if slot < slots { slot } else { slot - slots }];
        let was_late = std::mem::replace(late, false);
        self.late_count -= u32::from(was_late);
        was_late
    }

    /// Marks the credit as announced. Returns the credit if it exceeds the initial one, which this
    /// rank's offer (`offer.rs`) announces.
    pub(super) fn renewed(&mut self) -> Option<u64> {
        self.announced = self.granted;
        (self.granted > u64::from(self.reserved)).then_some(self.granted)
    }

    /// Marks the credit as announced; returns the credit if it had not been announced.
    pub(super) fn unannounced(&mut self) -> Option<u64> {
        (std::mem::replace(&mut self.announced, self.granted) < self.granted)
            .then_some(self.granted)
    }

    /// Returns the number below which messages need no credit of the pool.
    fn own(&self) -> u64 {
        self.settled.0 + u64::from(self.reserved)
    }

    /// Returns the number of pool credits that the link has.
    pub(super) fn pooled(&self) -> usize {
        self.granted.saturating_sub(self.own()) as usize
    }

    /// Grants the link's free reserved slots, and marks the credit as announced. Returns the
    /// credit, which the caller sends to the peer.
    pub(super) fn renew(&mut self) -> u64 {
        self.granted = self.granted.max(self.own());
        self.announced = self.granted;
        self.granted
    }

    /// Takes the next message, and frees its slot unless its immediate is still to come. Returns
    /// the new credit if one is due ([`Inbound::settle`]).
    pub(super) fn release(&mut self) -> Option<u64> {
        let slot = self.slot();
        if !std::mem::replace(&mut self.arrived[slot], false) {
            return None;
        }
        self.placed[slot] = None;
        self.buffers[slot] = None;
        self.preposts.taken(self.next);
        self.next += 1;
        self.slot = if slot + 1 < self.arrived.len() { slot + 1 } else { 0 };
        self.destination = Destination::Undecided;
        self.settle()
    }

    /// Frees the slots of taken messages whose immediates have come. Returns the new credit if one
    /// is due: when half of the reserved slots are free and not announced.
    pub(super) fn settle(&mut self) -> Option<u64> {
        let (mut settled, mut slot) = self.settled;
        while settled < self.next && !self.late[slot] {
            settled += 1;
            slot = if slot + 1 < self.late.len() { slot + 1 } else { 0 };
        }
        self.settled = (settled, slot);
        let due = self.own();
        // Counted from the announced credit: the sender cannot use a credit before it is announced.
        let is_due = due > self.announced && (due - self.announced) * 2 >= u64::from(self.reserved);
        is_due.then(|| self.renew())
    }

    /// Returns whether the link must ask for a credit for the preposted message `number`: the
    /// message has no credit, and the link does not wait for one already. If so, the link counts as
    /// waiting from now on.
    pub(super) fn asks_for(&mut self, number: u64) -> bool {
        number >= self.granted.max(self.own()) && !std::mem::replace(&mut self.asks, true)
    }

    /// Takes a pool credit for the first preposted message that has no credit. Returns false if
    /// there is no such message, or no slot for it.
    pub(super) fn extend(&mut self) -> bool {
        self.granted = self.granted.max(self.own());
        let extends = self.granted < self.preposted_end();
        self.granted += u64::from(extends);
        extends
    }

    /// Returns whether the link, which the pool has just served, needs further credits. If so, the
    /// link counts as waiting again, and the caller puts it back into the pool's queue.
    pub(super) fn asks_again(&mut self) -> bool {
        self.asks = self.granted < self.preposted_end();
        self.asks
    }

    /// Returns the number below which preposted messages have slots.
    fn preposted_end(&self) -> u64 {
        self.preposts.preposted().min(self.next + u64::from(self.slots))
    }

    /// Gives up the link's credits of the pool, because its peer is gone. Returns their number.
    pub(super) fn forget(&mut self) -> usize {
        let pooled = self.pooled();
        self.granted -= pooled as u64;
        self.preposts.forget_preposted();
        pooled
    }
}
