//! Streams of many messages over one connection. Each message has its own content.

use crate::link::{Flight, Link, Registered, TAG, received};
use crate::memory::GUARD;
use crate::stop::{Outcome, demand};

/// A stream of messages, known to both sides.
#[derive(Clone, Debug)]
pub(crate) struct Stream {
    /// Bytes of each message.
    pub(crate) sizes: Vec<usize>,
    /// Number of messages in flight.
    pub(crate) in_flight: usize,
    /// Seed of the first message's content; the seed grows by 1 with each further message.
    pub(crate) seed: u64,
}

impl Stream {
    /// Returns a stream of messages of equal size, 8 at once as in NCCL.
    pub(crate) fn of(messages: usize, bytes: usize) -> Stream {
        Stream { sizes: vec![bytes; messages], in_flight: 8, seed: 1 }
    }

    /// Returns a stream of messages of irregular sizes from 0 to `bytes_max`.
    pub(crate) fn of_odd_sizes(messages: usize, bytes_max: usize, seed: u64) -> Stream {
        let size = |index: usize| (index.wrapping_mul(7919) + 13 * index * index) % (bytes_max + 1);
        Stream { sizes: (0..messages).map(size).collect(), in_flight: 8, seed }
    }

    /// Sends all messages, from new memory.
    pub(crate) fn send(&self, link: &Link) -> Outcome {
        let ring = link.memory(self.stride() * self.in_flight)?;
        link.side.step("sending");
        self.send_from(link, &ring)?;
        Ok(link.comm.deregister(ring.registration)?)
    }

    /// Receives all messages into new memory, and verifies them.
    pub(crate) fn receive(&self, link: &Link) -> Outcome {
        let ring = link.memory(self.stride() * self.in_flight)?;
        link.side.step("receiving");
        self.receive_into(link, &ring)?;
        Ok(link.comm.deregister(ring.registration)?)
    }

    /// Returns the bytes from one slot of the memory to the next; message `i` has slot
    /// `i % in_flight`.
    pub(crate) fn stride(&self) -> usize {
        (self.room() + GUARD).next_multiple_of(64)
    }

    /// Sends all messages from the memory `ring`.
    pub(crate) fn send_from(&self, link: &Link, ring: &Registered) -> Outcome {
        let mut flight = Flight::new(*link);
        let mut ended = 0;
        for (index, &bytes) in self.sizes.iter().enumerate() {
            if flight.len() == self.in_flight {
                flight.finish_oldest(self.name(ended))?;
                ended += 1;
            }
            let part = ring.part(self.slot(index), bytes, TAG);
            part.memory.fill(self.seed + index as u64);
            flight.post(self.name(index), |comm| comm.isend(&part))?;
        }
        for index in ended..self.sizes.len() {
            flight.finish_oldest(self.name(index))?;
        }
        Ok(())
    }

    /// Receives all messages into the memory `ring`, and verifies them.
    pub(crate) fn receive_into(&self, link: &Link, ring: &Registered) -> Outcome {
        let mut flight = Flight::new(*link);
        let mut ended = 0;
        for index in 0..self.sizes.len() {
            if flight.len() == self.in_flight {
                self.end_receive(&mut flight, ring, ended)?;
                ended += 1;
            }
            ring.memory.part(self.slot(index)..self.slot(index) + self.stride()).clear();
            let part = ring.part(self.slot(index), self.room(), TAG);
            flight.post(self.name(index), |comm| comm.irecv(&[part]))?;
        }
        for index in ended..self.sizes.len() {
            self.end_receive(&mut flight, ring, index)?;
        }
        Ok(())
    }

    fn end_receive(&self, flight: &mut Flight, ring: &Registered, index: usize) -> Outcome {
        let (expected, name) = (self.sizes[index], self.name(index));
        let sizes = flight.finish_oldest(&name)?;
        let bytes = received(&sizes, 0, &name)?;
        demand(bytes == expected, || {
            format!("test reported {bytes} bytes received for {name}, expected {expected}")
        })?;
        let slot = ring.memory.part(self.slot(index)..self.slot(index) + self.stride());
        slot.verify(self.seed + index as u64, bytes, self.room()).map_err(|stop| {
            let other = self.sizes.iter().enumerate().find(|(other, size)| {
                **size == expected
                    && expected >= 8
                    && slot.part(0..expected).holds(self.seed + *other as u64)
            });
            stop.of(&name, other.map(|(other, _)| self.name(other)))
        })
    }

    fn slot(&self, index: usize) -> usize {
        index % self.in_flight * self.stride()
    }

    fn room(&self) -> usize {
        self.sizes.iter().copied().max().unwrap_or(0)
    }

    fn name(&self, index: usize) -> String {
        format!("message {index} of {} ({} bytes)", self.sizes.len(), self.sizes[index])
    }
}
