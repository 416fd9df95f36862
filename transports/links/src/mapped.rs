//! Links over mapped regions: the slots of shared memory.

use ccl_core::execution::Link;
use ccl_memory::doorbell::Doorbell;
use ccl_memory::slots::{Receiver, Sender};

/// Both directions of the connection to one peer on one channel.
#[derive(Debug)]
pub struct Duplex {
    /// Sender towards the peer.
    pub sender: Sender,
    /// Receiver from the peer.
    pub receiver: Receiver,
}

/// The slots that a rank shares with its peers.
#[derive(Debug, Default)]
pub struct MappedLinks {
    channels: usize,
    links: Vec<Option<Duplex>>,
    doorbells: Vec<Option<Doorbell>>,
}

impl MappedLinks {
    /// Makes the links of a rank. `links` has an entry per peer and channel, grouped by peer; an
    /// entry without a connection is `None`, for example that of this rank itself. `doorbells` has
    /// an entry per peer.
    #[must_use]
    pub fn new(
        channels: u32,
        links: Vec<Option<Duplex>>,
        doorbells: Vec<Option<Doorbell>>,
    ) -> MappedLinks {
        MappedLinks { channels: channels as usize, links, doorbells }
    }

    /// Returns whether no link is in shared memory.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.links.iter().all(Option::is_none)
    }

    /// Returns both directions of a link, if it is in shared memory.
    #[inline]
    pub(crate) fn duplex(&mut self, link: Link) -> Option<&mut Duplex> {
        let index = link.peer as usize * self.channels + link.channel as usize;
        self.links.get_mut(index)?.as_mut()
    }

    /// Sends the message in the link's next slot. Returns whether the link is in shared memory.
    #[inline]
    pub(crate) fn publish(&mut self, link: Link, bytes: usize, tag: u64) -> bool {
        let Some(duplex) = self.duplex(link) else { return false };
        duplex.sender.publish(bytes, tag);
        self.ring(link);
        true
    }

    /// Gives the link's received slot back. Returns whether the link is in shared memory.
    #[inline]
    pub(crate) fn release(&mut self, link: Link) -> bool {
        let Some(duplex) = self.duplex(link) else { return false };
        duplex.receiver.release();
        self.ring(link);
        true
    }

    /// Wakes the peer if it sleeps.
    #[inline]
    fn ring(&self, link: Link) {
        if let Some(Some(doorbell)) = self.doorbells.get(link.peer as usize) {
            doorbell.ring();
        }
    }
}
