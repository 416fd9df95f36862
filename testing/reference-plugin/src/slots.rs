//! The requests of a communicator: so many at most, each known by a ticket that is good once.

/// Generations of a slot before its tickets come again.
const GENERATIONS: u32 = 1 << 24;

/// A request: its slot, and how often the slot had been used before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket {
    slot: u8,
    generation: u32,
}

impl Ticket {
    /// As 32 bits.
    pub(crate) fn number(self) -> u32 {
        self.generation << 8 | u32::from(self.slot)
    }

    /// Of [`number`](Ticket::number).
    pub(crate) fn of(number: u32) -> Ticket {
        Ticket { slot: number as u8, generation: number >> 8 }
    }
}

/// A table of requests.
#[derive(Debug)]
pub(crate) struct Slots<T> {
    slots: Vec<(u32, Option<T>)>,
    free: Vec<u8>,
}

impl<T> Slots<T> {
    /// For `count` requests, at most 256.
    pub(crate) fn new(count: usize) -> Slots<T> {
        let free: Vec<u8> = (0..=u8::MAX).take(count).rev().collect();
        Slots { slots: free.iter().map(|_| (0, None)).collect(), free }
    }

    /// A ticket for it; `None` if there is no room.
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

    /// The ticket that is good for the same slot now.
    pub(crate) fn successor(&self, ticket: Ticket) -> Option<Ticket> {
        let (generation, _) = self.slots.get(usize::from(ticket.slot))?;
        Some(Ticket { generation: *generation, ..ticket })
    }

    /// The ticket is good for nothing from here on.
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
    fn a_ticket_is_good_once() {
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
