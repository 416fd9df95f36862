//! The layer between executions and transports: a rank's links to its peers.
//!
//! A *link* leads to one peer on one channel, and is a queue of slots in each direction. Two kinds
//! of link have the same operations:
//!
//! * **mapped**: the slots lie in memory that both sides map ([`mapped`]). The receiver reduces
//!   straight out of them.
//! * **message** ([`MessageLinks`]): the receiver's slots lie behind a lane (of TCP, RDMA or the
//!   simulator, for example), which puts messages into them. Here messages can also be sent from
//!   the caller's memory and received into it (zero copy).
//!
//! [`Links`] holds both kinds and picks one per link. [`ports::CpuPorts`] runs executions over them
//! with CPU kernels.

pub mod mapped;
pub mod ports;

use ccl_core::admission::{MessageLinks, Peek, PeerStatistics};
use ccl_core::execution::Link;
use ccl_core::queue_pairs::Flow;
use ccl_core::transport::RailState;
use ccl_core::types::Rank;

use mapped::MappedLinks;

/// All links of a rank.
#[derive(Debug, Default)]
pub struct Links {
    mapped: MappedLinks,
    /// True if any link is mapped.
    has_mapped: bool,
    /// Message links, boxed because most communicators of one host have none.
    messages: Option<Box<MessageLinks>>,
}

impl Links {
    /// Makes mapped links to the peers in `mapped`, and message links to all others.
    #[must_use]
    pub fn new(mapped: MappedLinks, messages: Option<MessageLinks>) -> Links {
        Links { has_mapped: !mapped.is_empty(), mapped, messages: messages.map(Box::new) }
    }

    /// Returns whether the link exists and its peer is connected.
    #[inline]
    pub fn is_connected(&mut self, link: Link) -> bool {
        let by_messages = self.messages.as_ref().is_some_and(|all| all.is_connected(link.peer));
        by_messages || self.mapped.duplex(link).is_some()
    }

    /// Returns whether the link's next message has arrived.
    #[inline]
    pub fn readable(&mut self, link: Link) -> bool {
        match self.mapped.duplex(link) {
            Some(duplex) => duplex.receiver.ready(),
            None => self.messages().is_some_and(|messages| messages.readable(link)),
        }
    }

    /// Returns whether the link has a credit, so that its next message can be written.
    #[inline]
    pub fn writable(&mut self, link: Link) -> bool {
        match self.mapped.duplex(link) {
            Some(duplex) => duplex.sender.ready(),
            None => self.messages().is_some_and(|messages| messages.writable(link)),
        }
    }

    /// Returns the length and the tag of the next message, which must have arrived. The length is
    /// not checked yet.
    #[inline]
    pub fn head(&mut self, link: Link) -> (usize, u64) {
        match self.mapped.duplex(link) {
            Some(duplex) => duplex.receiver.head(),
            None => self.messages().map_or((0, 0), |messages| messages.head(link)),
        }
    }

    /// Returns the address of the payload of the next message, which is `bytes` long; null for a
    /// link that does not exist.
    #[inline]
    pub fn received(&mut self, link: Link, bytes: usize) -> *const u8 {
        match self.mapped.duplex(link) {
            Some(duplex) => duplex.receiver.payload(bytes),
            None => self.messages().map_or(std::ptr::null(), |messages| messages.received(link)),
        }
    }

    /// Returns the address for the payload of the next message to send, which is `bytes` long; null
    /// for a link that does not exist.
    #[inline]
    pub fn to_send(&mut self, link: Link, bytes: usize) -> *mut u8 {
        match self.mapped.duplex(link) {
            Some(duplex) => duplex.sender.payload(bytes),
            None => self.messages().map_or(std::ptr::null_mut(), |messages| messages.to_send(link)),
        }
    }

    /// Sends the link's next message: at once over a mapped link, and at the next
    /// [`MessageLinks::flush`] over a message link.
    #[inline]
    pub fn publish(&mut self, link: Link, bytes: usize, tag: u64) {
        if self.mapped.publish(link, bytes, tag) {
            return;
        }
        if let Some(messages) = self.messages() {
            messages.publish(link, bytes, tag);
        }
    }

    /// Gives the link's received slot back.
    #[inline]
    pub fn release(&mut self, link: Link) {
        if self.mapped.release(link) {
            return;
        }
        if let Some(messages) = self.messages() {
            messages.release(link);
        }
    }

    /// Returns what has happened on the links. `None` means that this cannot be told quickly: each
    /// link must be checked, and [`MessageLinks::poll`] called.
    #[inline]
    pub fn peek(&mut self) -> Option<Peek> {
        if self.has_mapped { None } else { self.messages()?.peek() }
    }

    /// Returns the message links, if there are any.
    #[inline]
    pub fn messages(&mut self) -> Option<&mut MessageLinks> {
        self.messages.as_deref_mut()
    }

    /// Returns the message links if this link is one of them.
    #[inline]
    pub(crate) fn messages_of(&mut self, link: Link) -> Option<&mut MessageLinks> {
        match self.mapped.duplex(link) {
            Some(_) => None,
            None => self.messages(),
        }
    }

    /// Returns a shared reference to the message links, if there are any.
    #[inline]
    #[must_use]
    pub fn view(&self) -> Option<&MessageLinks> {
        self.messages.as_deref()
    }

    /// Takes these links apart, and returns the message links, from which the caller can make
    /// another `Links`.
    #[must_use]
    pub fn into_messages(self) -> Option<MessageLinks> {
        self.messages.map(|messages| *messages)
    }

    /// Returns the statistics of each peer connected by message links, with its rank.
    pub fn peer_statistics(&self) -> impl Iterator<Item = (Rank, &PeerStatistics)> {
        self.messages.iter().flat_map(|messages| messages.peer_statistics())
    }

    /// Returns the flows that carry messages now, each with the rank of its peer.
    pub fn flows(&self) -> impl Iterator<Item = (Rank, Flow)> {
        self.messages.iter().flat_map(|messages| messages.flows())
    }

    /// Returns the rails to each connected peer; none unless the transport has several rails.
    pub fn rails(&self) -> impl Iterator<Item = (Rank, RailState)> {
        self.messages.iter().flat_map(|messages| messages.rails())
    }
}
