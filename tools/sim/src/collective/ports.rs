//! One rank's ports: its links into the world.

use ccl_core::execution::{Link, Message, Ports, Task};
use ccl_core::types::Rank;

use super::ends::Ends;
use super::world::World;

#[derive(Debug)]
pub(super) struct RankPorts<'a, 'b, E> {
    pub(super) world: &'a mut World<'b, E>,
    pub(super) rank: Rank,
}

impl<E: Ends> Ports for RankPorts<'_, '_, E> {
    fn readable(&mut self, link: Link) -> bool {
        self.world.is_there(link.peer, self.rank, link.channel)
    }

    fn writable(&mut self, link: Link) -> bool {
        self.world.is_granted(self.rank, link.peer, link.channel)
    }

    fn accept(&mut self, _: Link, _: Message) -> bool {
        // That lengths agree is proved by the verifier.
        true
    }

    fn fold(&mut self, task: &Task<'_>) {
        self.world.fold(self.rank, task.message_bytes);
    }

    fn publish(&mut self, link: Link, message: Message) {
        self.world.publish(self.rank, link.peer, link.channel, message.bytes);
    }

    fn release(&mut self, link: Link) {
        self.world.release(link.peer, self.rank, link.channel);
    }
}
