//! A FIFO of slots between two processes: allocated by the receiver, filled by the sender.
//!
//! ```text
//! line 0            credits: number of messages allowed so far (only the receiver writes it)
//! slot 0            header line: sequence, bytes, tag; then up to 48 bytes of payload
//!                   body: `slot_bytes`, for longer payloads
//! slot 1 …
//! ```
//!
//! Message number m (from 0) goes through slot m mod slots. The sender fills the payload and then
//! stores m + 1 as the slot's sequence (release); the receiver loads it (acquire) and then sees the
//! payload. A short payload and its sequence cross between the cores in one cache line. A sender
//! writes only messages with numbers below the credits. The receiver renews the credits when half
//! of the slots are free again, so that line 0 is not passed back and forth for every message.
//!
//! Neither end trusts what its peer wrote: the user of [`Receiver::head`] must check the length,
//! and the sender cuts down credits that admit more messages than there are slots.

use crate::region::{Region, RegionError};
use crate::sync::{AtomicU32, AtomicU64, Ordering, order};

const LINE: usize = 64;
const SEQUENCE: usize = 0;
const BYTES: usize = 4;
const TAG: usize = 8;
const INLINE: usize = 16;

/// The longest payload that travels in the header's own cache line.
pub const INLINE_BYTES: usize = LINE - INLINE;

/// The size of a link's FIFO.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Slots, at least 1.
    pub slots: u32,
    /// The longest payload, in bytes; its memory is rounded up to whole cache lines.
    pub slot_bytes: usize,
}

impl Shape {
    /// Returns the number of bytes of one slot with its header.
    #[must_use]
    pub const fn stride(&self) -> usize {
        LINE + self.slot_bytes.next_multiple_of(LINE)
    }

    /// Returns the number of bytes of shared memory that a link needs.
    #[must_use]
    pub const fn link_bytes(&self) -> usize {
        LINE + self.stride() * self.slots as usize
    }
}

/// Fields that each of the two ends has: its view of the slots, and its own position in them.
#[derive(Debug)]
struct Fifo {
    region: Region,
    shape: Shape,
    /// The number of the next message.
    next: u64,
    /// `next` mod slots, kept so that no division is needed.
    slot: u32,
}

impl Fifo {
    fn new(region: &Region, shape: Shape) -> Result<Fifo, RegionError> {
        let shape = Shape { slots: shape.slots.max(1), ..shape };
        let region = region.part(0, shape.link_bytes())?;
        region.word64(0)?;
        Ok(Fifo { region, shape, next: 0, slot: 0 })
    }

    #[inline]
    fn header(&self) -> usize {
        LINE + self.shape.stride() * self.slot as usize
    }

    #[inline]
    fn payload(&self, bytes: usize) -> *mut u8 {
        let offset = if bytes <= INLINE_BYTES { INLINE } else { LINE };
        // SAFETY: `new` checked that all slots lie inside the region, and `slot` < slots.
        unsafe { self.region.start().add(self.header() + offset) }
    }

    #[inline]
    fn word32(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: inside the region as above. Headers begin at multiples of 64 bytes in the
        // region, and `new` checked that the region is aligned to 8 bytes.
        unsafe { self.region.word32_unchecked(self.header() + offset) }
    }

    #[inline]
    fn word64(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: as `word32`; TAG is a multiple of 8.
        unsafe { self.region.word64_unchecked(self.header() + offset) }
    }

    #[inline]
    fn credits(&self) -> &AtomicU64 {
        // SAFETY: `new` checked the word at offset 0.
        unsafe { self.region.word64_unchecked(0) }
    }

    #[inline]
    fn step(&mut self) {
        self.next += 1;
        self.slot += 1;
        if self.slot == self.shape.slots {
            self.slot = 0;
        }
    }

    /// Returns the sequence of message `next`. It is not 0 in the first lap, so a slot of fresh
    /// (zeroed) memory never looks like a message.
    #[inline]
    fn sequence(&self) -> u32 {
        // A slot's sequence grows by `slots` per lap, so it differs between successive laps even
        // after truncation to 32 bits.
        (self.next as u32).wrapping_add(1)
    }
}

/// The sending end. Exactly one exists per link.
#[derive(Debug)]
pub struct Sender {
    fifo: Fifo,
    credited: u64,
}

impl Sender {
    /// Returns the sending end over the receiver's memory.
    ///
    /// # Errors
    ///
    /// When the region does not hold [`Shape::link_bytes`].
    pub fn new(region: &Region, shape: Shape) -> Result<Sender, RegionError> {
        Ok(Sender { fifo: Fifo::new(region, shape)?, credited: 0 })
    }

    /// Returns whether the next message may be written.
    #[inline]
    pub fn ready(&mut self) -> bool {
        self.has_room(1)
    }

    /// Returns whether `messages` messages may be written, one after the other.
    #[inline]
    pub fn has_room(&mut self, messages: u64) -> bool {
        let end = self.fifo.next + messages;
        if end <= self.credited {
            return true;
        }
        let most = self.fifo.next + u64::from(self.fifo.shape.slots);
        // Acquire: the receiver's reads of the slot come before our writes to it.
        self.credited = self.fifo.credits().load(order::credited()).min(most);
        end <= self.credited
    }

    /// Returns the address for a payload of this length. It is valid from the time when
    /// [`Sender::ready`] returns true until [`Sender::publish`], which must get the same length.
    #[must_use]
    #[inline]
    pub fn payload(&self, bytes: usize) -> *mut u8 {
        self.fifo.payload(bytes)
    }

    /// Returns the length of the longest payload.
    #[must_use]
    pub fn slot_bytes(&self) -> usize {
        self.fifo.shape.slot_bytes
    }

    /// Sends the message: `bytes` of payload, and a tag that the receiver compares with its own.
    #[inline]
    pub fn publish(&mut self, bytes: usize, tag: u64) {
        self.fifo.word32(BYTES).store(bytes as u32, Ordering::Relaxed);
        self.fifo.word64(TAG).store(tag, Ordering::Relaxed);
        // Release: payload, length and tag come before the sequence.
        self.fifo.word32(SEQUENCE).store(self.fifo.sequence(), order::publish());
        self.fifo.step();
    }

    /// Returns the number of messages sent.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.fifo.next
    }
}

/// The receiving end, which owns the memory. Exactly one exists per link.
#[derive(Debug)]
pub struct Receiver {
    fifo: Fifo,
    credited: u64,
}

impl Receiver {
    /// Returns the receiving end over zeroed memory, and gives credits for all slots.
    ///
    /// # Errors
    ///
    /// When the region does not hold [`Shape::link_bytes`].
    pub fn new(region: &Region, shape: Shape) -> Result<Receiver, RegionError> {
        let fifo = Fifo::new(region, shape)?;
        let credited = u64::from(fifo.shape.slots);
        fifo.credits().store(credited, order::credit());
        Ok(Receiver { fifo, credited })
    }

    /// Returns whether the next message has arrived.
    #[must_use]
    #[inline]
    pub fn ready(&self) -> bool {
        self.fifo.word32(SEQUENCE).load(order::arrive()) == self.fifo.sequence()
    }

    /// Returns the length and the tag of the next message, which must have arrived. Neither is
    /// checked.
    #[must_use]
    #[inline]
    pub fn head(&self) -> (usize, u64) {
        let bytes = self.fifo.word32(BYTES).load(Ordering::Relaxed);
        (bytes as usize, self.fifo.word64(TAG).load(Ordering::Relaxed))
    }

    /// Returns the address of a payload of this length, which lies inside the slot if `bytes` is at
    /// most `slot_bytes`.
    #[must_use]
    #[inline]
    pub fn payload(&self, bytes: usize) -> *const u8 {
        self.fifo.payload(bytes)
    }

    /// Gives the slot back to the sender.
    #[inline]
    pub fn release(&mut self) {
        self.fifo.step();
        let due = self.fifo.next + u64::from(self.fifo.shape.slots);
        if (due - self.credited) * 2 >= u64::from(self.fifo.shape.slots) {
            self.credited = due;
            // Release: our reads of the slot come before the credit.
            self.fifo.credits().store(due, order::credit());
        }
    }

    /// Returns the number of messages taken.
    #[must_use]
    pub fn received(&self) -> u64 {
        self.fifo.next
    }
}

#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests {
    use super::*;

    fn pair(slots: u32, slot_bytes: usize) -> (Sender, Receiver, Region) {
        let shape = Shape { slots, slot_bytes };
        let region = Region::private(shape.link_bytes());
        let receiver = Receiver::new(&region, shape).unwrap();
        (Sender::new(&region, shape).unwrap(), receiver, region)
    }

    fn put(sender: &mut Sender, text: &[u8]) {
        // SAFETY: `ready` said yes and the text fits the slot.
        unsafe { std::ptr::copy(text.as_ptr(), sender.payload(text.len()), text.len()) };
        sender.publish(text.len(), 9);
    }

    fn take(receiver: &mut Receiver) -> Vec<u8> {
        let (bytes, tag) = receiver.head();
        assert_eq!(tag, 9);
        let mut text = vec![0; bytes];
        // SAFETY: the payload was published with this length.
        unsafe { std::ptr::copy(receiver.payload(bytes), text.as_mut_ptr(), bytes) };
        receiver.release();
        text
    }

    #[test]
    fn nothing_is_sent_without_a_credit() {
        for slots in [1, 2, 3, 8] {
            let (mut sender, mut receiver, _) = pair(slots, 100);
            assert!(!receiver.ready());
            for _ in 0..slots {
                assert!(sender.ready());
                put(&mut sender, b"x");
            }
            assert!(!sender.ready(), "the sender is ready without a credit, {slots} slots");
            while receiver.ready() {
                take(&mut receiver);
            }
            assert!(sender.ready());
        }
    }

    /// Checks after every send that at most `slots` messages are sent and not yet taken. In
    /// successive rounds the receiver takes up to 1, 2, …, `slots` messages.
    #[test]
    fn a_sender_is_never_ahead_by_more_than_the_slots() {
        for slots in [1, 2, 3, 8] {
            let (mut sender, mut receiver, _) = pair(slots, 64);
            for round in 0..100 {
                while sender.ready() {
                    let number = sender.sent();
                    put(&mut sender, &number.to_le_bytes());
                    let ahead = sender.sent() - receiver.received();
                    assert!(
                        ahead <= u64::from(slots),
                        "{ahead} messages in {slots} slots in round {round}"
                    );
                }
                assert!(receiver.ready(), "the sender got no credit in round {round}");
                for _ in 0..=round % slots {
                    let number = receiver.received();
                    if receiver.ready() {
                        assert_eq!(take(&mut receiver), number.to_le_bytes());
                    }
                }
            }
        }
    }

    #[test]
    fn short_and_long_messages_arrive_in_order_over_many_laps() {
        let (mut sender, mut receiver, _) = pair(3, 200);
        let mut expected = 0u32;
        for round in 0..1000u32 {
            while sender.ready() && sender.sent() - receiver.received() < 1 + u64::from(round % 3) {
                let long = if sender.sent() % 2 == 0 { 4 } else { 200 };
                let mut text = vec![0xab; long];
                text[..4].copy_from_slice(&(sender.sent() as u32).to_le_bytes());
                put(&mut sender, &text);
            }
            while receiver.ready() {
                let text = take(&mut receiver);
                assert_eq!(text[..4], expected.to_le_bytes());
                expected += 1;
            }
        }
        assert!(expected >= 1000);
    }

    #[test]
    fn an_invalid_credit_is_cut_down_to_the_number_of_slots() {
        let (mut sender, _receiver, region) = pair(2, 64);
        region.word64(0).unwrap().store(u64::MAX, Ordering::Relaxed);
        for _ in 0..2 {
            assert!(sender.ready());
            put(&mut sender, b"y");
        }
        assert!(sender.credited <= sender.sent() + 2);
    }

    #[test]
    fn two_threads_exchange_messages_in_order() {
        let (mut sender, mut receiver, _) = pair(4, 64);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for number in 0..20_000u64 {
                    while !sender.ready() {
                        std::thread::yield_now();
                    }
                    put(&mut sender, &number.to_le_bytes());
                }
            });
            for number in 0..20_000u64 {
                while !receiver.ready() {
                    std::thread::yield_now();
                }
                assert_eq!(take(&mut receiver), number.to_le_bytes());
            }
        });
    }
}
