//! Table of a communicator's requests. It has a fixed number of slots, each of which holds at most
//! one request. A ticket is valid for one request only.

/// Number of uses of a slot after which its tickets repeat.
const GENERATIONS: u32 = 1 << 24;

/// Ticket of a request: its slot, and the number of earlier uses of the slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket {
    slot: u8,
    generation: u32,
}

impl Ticket {
    /// Returns the ticket as 32 bits.
    pub(crate) fn number(self) -> u32 {
        self.generation << 8 | u32::from(self.slot)
    }

    /// Returns the ticket that has this [`number`](Ticket::number).
    pub(crate) fn of(number: u32) -> Ticket {
        Ticket { slot: number as u8, generation: number >> 8 }
    }
}

/// Table of requests.
#[derive(Debug)]
pub(crate) struct Slots<T> {
    slots: Vec<(u32, Option<T>)>,
    free: Vec<u8>,
}

impl<T> Slots<T> {
    /// Creates a table for `count` requests, at most 256.
    pub(crate) fn new(count: usize) -> Slots<T> {
        let free: Vec<u8> = (0..=u8::MAX).take(count).rev().collect();
        Slots { slots: free.iter().map(|_| (0, None)).collect(), free }
    }

    /// Inserts a request and returns its ticket; `None` if the table is full.
    pub(crate) fn insert(&mut self, request: T) -> Option<Ticket> {
        let slot = self.free.pop()?;
        let (generation, place) = self.slots.get_mut(usize::from(slot))?;
        *place = Some(request);
        Some(Ticket { slot, generation: *generation })
    }

    pub(crate) fn find(&mut self, ticket: Ticket) -> Option<&mut T> {
        let (generation, place) = self.slots.get_mut(usize::from(ticket.slot))?;
        place.as_mut().filter(|_| *generation == ticket.generation)
    }

    /// Returns the ticket that is valid now for the same slot.
    pub(crate) fn successor(&self, ticket: Ticket) -> Option<Ticket> {
        let (generation, _) = self.slots.get(usize::from(ticket.slot))?;
        Some(Ticket { generation: *generation, ..ticket })
    }

    /// Removes a request; its ticket becomes invalid.
    pub(crate) fn remove(&mut self, ticket: Ticket) -> Option<T> {
        self.find(ticket)?;
        let (generation, place) = self.slots.get_mut(usize::from(ticket.slot))?;
        *generation = (*generation + 1) % GENERATIONS;
        self.free.push(ticket.slot);
        place.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_is_valid_for_one_request_only() {
        let mut slots = Slots::new(2);
        let (one, two) = (slots.insert(1).unwrap(), slots.insert(2).unwrap());
        assert!(slots.insert(3).is_none());
        assert_eq!(slots.remove(one), Some(1));
        assert_eq!(slots.remove(one), None);
        let again = slots.insert(4).unwrap();
        assert_eq!((slots.find(one).copied(), slots.find(again).copied()), (None, Some(4)));
        assert_eq!(Ticket::of(again.number()), again);
        assert_ne!(again, two);
        assert_eq!(slots.remove(Ticket::of(u32::MAX)), None);
    }

    #[test]
    fn there_is_room_for_256_requests() {
        let mut slots = Slots::new(256);
        assert!((0..256).all(|request| slots.insert(request).is_some()));
        assert_eq!(slots.insert(256), None);
    }
}
