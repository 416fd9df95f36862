//! Ends of a link: the sender's end counts credits, and the receiver's end counts arrived messages
//! and freed slots.

use ccl_core::admission::{Receiver, Sender};

/// Both ends of one direction of a link.
pub(super) trait Ends {
    /// Makes ends with `slots` slots, and one credit for each slot.
    fn new(slots: u32) -> Self;
    /// Returns whether the sender has a credit for its next message.
    fn has_credit(&mut self) -> bool;
    /// Sends the next message and returns its number.
    fn send(&mut self, bytes: usize) -> u64;
    /// Records that a message has arrived. The sender may then reuse the memory from which the
    /// message was sent.
    fn arrive(&mut self, number: u64);
    /// Returns whether the next message in order has arrived.
    fn is_there(&self) -> bool;
    /// Frees the slot of the next message in order. If credits are due, returns the number to pass
    /// to [`credit`](Self::credit).
    fn release(&mut self) -> Option<u64>;
    /// Gives the sender credits for all messages whose numbers are less than `below`.
    fn credit(&mut self, below: u64);
}

/// Both ends of one direction of a link, as the real state machines of admission.
#[derive(Debug)]
pub(super) struct Admitted {
    sender: Sender,
    receiver: Receiver,
}

impl Ends for Admitted {
    fn new(slots: u32) -> Admitted {
        Admitted { sender: Sender::new(slots, slots), receiver: Receiver::new(slots) }
    }

    fn has_credit(&mut self) -> bool {
        self.sender.is_ready()
    }

    fn send(&mut self, bytes: usize) -> u64 {
        self.sender.send(bytes)
    }

    fn arrive(&mut self, number: u64) {
        self.receiver.arrive(number);
        self.sender.done(number);
    }

    fn is_there(&self) -> bool {
        self.receiver.is_ready()
    }

    fn release(&mut self) -> Option<u64> {
        self.receiver.release()
    }

    fn credit(&mut self, below: u64) {
        self.sender.credit(below);
    }
}

/// Both ends of one direction of a link, as counters that wrap around. The counters take only 20
/// bytes, because a run can have millions of links. A link has at most 32 slots.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counted {
    sent: u32,
    credits: u32,
    next: u32,
    /// Bit mask of the messages that have arrived; the lowest bit is that of message `next`.
    there: u32,
    slots: u8,
}

impl Ends for Counted {
    fn new(slots: u32) -> Counted {
        let slots = slots.clamp(1, 32);
        Counted { sent: 0, credits: slots, next: 0, there: 0, slots: slots as u8 }
    }

    fn has_credit(&mut self) -> bool {
        self.sent != self.credits
    }

    fn send(&mut self, _: usize) -> u64 {
        let number = self.sent;
        self.sent = self.sent.wrapping_add(1);
        u64::from(number)
    }

    fn arrive(&mut self, number: u64) {
        self.there |= 1 << (number as u32).wrapping_sub(self.next);
    }

    fn is_there(&self) -> bool {
        self.there & 1 != 0
    }

    fn release(&mut self) -> Option<u64> {
        self.there >>= 1;
        self.next = self.next.wrapping_add(1);
        // Credits are returned as in admission: for half of the slots at a time.
        let half = u32::from(self.slots).div_ceil(2);
        self.next
            .is_multiple_of(half)
            .then(|| u64::from(self.next.wrapping_add(u32::from(self.slots))))
    }

    fn credit(&mut self, below: u64) {
        self.credits = below as u32;
    }
}

#[cfg(test)]
mod tests {
    use ccl_core::random::Random;

    use super::*;

    /// Checks that both kinds of ends do the same in any order of events.
    #[test]
    fn counted_ends_behave_like_admission() {
        for seed in 0..40 {
            let mut random = Random::new(seed);
            let slots = 1 + random.below(9) as u32;
            let (mut real, mut counted) = (Admitted::new(slots), Counted::new(slots));
            let (mut under_way, mut returned) = (Vec::new(), std::collections::VecDeque::new());
            for _ in 0..500 {
                assert_eq!(real.has_credit(), counted.has_credit());
                assert_eq!(real.is_there(), counted.is_there());
                match random.below(4) {
                    0 if real.has_credit() => {
                        let number = real.send(1);
                        assert_eq!(number, counted.send(1));
                        under_way.push(number);
                    }
                    1 if !under_way.is_empty() => {
                        let at = random.below(under_way.len() as u64) as usize;
                        let number = under_way.swap_remove(at);
                        real.arrive(number);
                        counted.arrive(number);
                    }
                    2 if real.is_there() => {
                        let credit = real.release();
                        assert_eq!(credit, counted.release(), "{slots} slots");
                        returned.extend(credit);
                    }
                    3 => {
                        if let Some(below) = returned.pop_front() {
                            real.credit(below);
                            counted.credit(below);
                        }
                    }
                    _ => {}
                }
            }
        }
    }
}
