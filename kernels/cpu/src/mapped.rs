//! Links over mapped regions: the slots of shared memory.

use ccl_core::execution::Link;
use ccl_memory::doorbell::Doorbell;
use ccl_memory::slots::{Receiver, Sender};

use crate::ports::Links;

/// Both directions of the connection to one peer on one channel.
#[derive(Debug)]
pub struct Duplex {
    /// Towards the peer.
    pub sender: Sender,
    /// From the peer.
    pub receiver: Receiver,
}

/// The slots that a rank shares with its peers.
#[derive(Debug)]
pub struct MappedLinks {
    channels: usize,
    links: Vec<Option<Duplex>>,
    doorbells: Vec<Option<Doorbell>>,
}

impl MappedLinks {
    /// `links` has an entry per peer and channel, the channels of a peer together, none where
    /// there is no connection (this rank itself). `doorbells` has one per peer.
    #[must_use]
    pub fn new(
        channels: u32,
        links: Vec<Option<Duplex>>,
        doorbells: Vec<Option<Doorbell>>,
    ) -> MappedLinks {
        MappedLinks { channels: channels as usize, links, doorbells }
    }

    /// Whether memory is shared over this link.
    #[inline]
    pub(crate) fn has(&self, link: Link) -> bool {
        let index = link.peer as usize * self.channels + link.channel as usize;
        matches!(self.links.get(index), Some(Some(_)))
    }

    #[inline]
    fn duplex(&mut self, link: Link) -> Option<&mut Duplex> {
        let index = link.peer as usize * self.channels + link.channel as usize;
        self.links.get_mut(index)?.as_mut()
    }

    /// Wakes the peer if it sleeps.
    #[inline]
    fn ring(&self, link: Link) {
        if let Some(Some(doorbell)) = self.doorbells.get(link.peer as usize) {
            doorbell.ring();
        }
    }
}

impl Links for MappedLinks {
    #[inline]
    fn readable(&mut self, link: Link) -> bool {
        self.duplex(link).is_some_and(|duplex| duplex.receiver.ready())
    }

    #[inline]
    fn writable(&mut self, link: Link) -> bool {
        self.duplex(link).is_some_and(|duplex| duplex.sender.ready())
    }

    #[inline]
    fn head(&mut self, link: Link) -> (usize, u64) {
        self.duplex(link).map_or((0, 0), |duplex| duplex.receiver.head())
    }

    #[inline]
    fn received(&mut self, link: Link, bytes: usize) -> *const u8 {
        self.duplex(link).map_or(std::ptr::null(), |duplex| duplex.receiver.payload(bytes))
    }

    #[inline]
    fn to_send(&mut self, link: Link, bytes: usize) -> *mut u8 {
        self.duplex(link).map_or(std::ptr::null_mut(), |duplex| duplex.sender.payload(bytes))
    }

    #[inline]
    fn publish(&mut self, link: Link, bytes: usize, tag: u64) {
        if let Some(duplex) = self.duplex(link) {
            duplex.sender.publish(bytes, tag);
        }
        self.ring(link);
    }

    #[inline]
    fn release(&mut self, link: Link) {
        if let Some(duplex) = self.duplex(link) {
            duplex.receiver.release();
        }
        self.ring(link);
    }
}
