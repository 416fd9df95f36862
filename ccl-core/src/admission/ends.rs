//! Link ends without a lane, for callers that carry messages by other means, such as the fabric
//! simulator, where a message is a flow. Admission works as in [`super::MessageLinks`]: the same
//! state decides which messages may be sent and when credits are renewed.

use super::inbound::Inbound;
use super::outbound::{CreditOutcome, Outbound};

/// Sending end of a link.
#[derive(Debug)]
pub struct Sender(Outbound);

/// Receiving end of a link.
#[derive(Debug)]
pub struct Receiver(Inbound);

impl Sender {
    /// Returns the sending end of a link whose receiver grants `slots` messages from the start. The
    /// sender has `staging` staging slots. A message keeps a staging slot until [`Sender::done`].
    #[must_use]
    pub fn new(staging: u32, slots: u32) -> Sender {
        let mut outbound = Outbound::new(staging.max(1));
        outbound.open(slots, slots);
        Sender(outbound)
    }

    /// Returns whether the next message has a credit and a free staging slot.
    pub fn is_ready(&mut self) -> bool {
        self.0.ready(None, &mut 0)
    }

    /// Sends the next message, which must be ready. Returns the message's number.
    pub fn send(&mut self, bytes: usize) -> u64 {
        let number = self.0.next();
        self.0.sent(bytes.max(1));
        number
    }

    /// Frees the staging slot of a message that is done.
    pub fn done(&mut self, number: u64) {
        let slots = self.0.staging_slots();
        self.0.done((number % slots as u64) as usize);
    }

    /// Takes a credit for messages below this number. Returns false if the credit would allow more
    /// messages than there are slots.
    pub fn credit(&mut self, below: u64) -> bool {
        self.0.credit(below as u32) != CreditOutcome::Forged
    }
}

impl Receiver {
    /// Returns the receiving end of a link with `slots` slots, all granted.
    #[must_use]
    pub fn new(slots: u32) -> Receiver {
        Receiver(Inbound::new(slots.max(1), slots.max(1)))
    }

    /// Takes in a message. Returns false if the message was not granted, or had arrived before.
    pub fn arrive(&mut self, number: u64) -> bool {
        let slot = self.0.expect(number as u32);
        if let Some(slot) = slot {
            self.0.arrive(slot, None);
        }
        slot.is_some()
    }

    /// Returns whether the next message in order has arrived.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.0.ready()
    }

    /// Frees the slot of the next message; returns the new credit, if one is due.
    pub fn release(&mut self) -> Option<u64> {
        self.0.release()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_without_a_credit_is_neither_sent_nor_taken() {
        let (mut sender, mut receiver) = (Sender::new(4, 2), Receiver::new(2));
        assert_eq!([sender.send(8), sender.send(8)], [0, 1]);
        assert!(!sender.is_ready(), "both credits are used");
        assert!(receiver.arrive(1) && !receiver.is_ready(), "message 0 is still missing");
        assert!(receiver.arrive(0) && !receiver.arrive(0) && !receiver.arrive(2));
        assert_eq!(receiver.release(), Some(3), "a credit is due once half of the slots are free");
        assert!(sender.credit(3) && sender.is_ready());
        assert!(!sender.credit(9), "a credit beyond the slots must be refused");
        sender.send(8);
        sender.done(0);
        assert!(!sender.is_ready());
    }
}
