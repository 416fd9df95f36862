//! Links to ranks on this host and on others: slots of shared memory for some peers, messages for
//! the rest.

use ccl_core::admission::{Account, MessageLinks, Wanted};
use ccl_core::execution::Link;
use ccl_core::spread::Flow;
use ccl_core::transport::RailState;
use ccl_core::types::Rank;
use ccl_memory::Region;

use crate::mapped::MappedLinks;
use crate::ports::Links;

/// All links of a rank.
#[derive(Debug)]
pub struct MixedLinks {
    mapped: MappedLinks,
    /// Boxed: most communicators of one host have none.
    messages: Option<Box<MessageLinks>>,
}

impl MixedLinks {
    /// Peers that `mapped` does not have are reached by messages.
    #[must_use]
    pub fn new(mapped: MappedLinks, messages: Option<MessageLinks>) -> MixedLinks {
        MixedLinks { mapped, messages: messages.map(Box::new) }
    }

    /// Whether there is such a link, and its peer is connected.
    #[inline]
    pub fn joins(&self, link: Link) -> bool {
        self.mapped.has(link) || self.messages.as_ref().is_some_and(|all| all.joins(link.peer))
    }

    /// What has passed between this rank and each peer that it has messages for, by rank.
    pub fn accounts(&self) -> impl Iterator<Item = (Rank, &Account)> {
        self.messages.iter().flat_map(|messages| messages.accounts())
    }

    /// The flows that messages are spread over now, with the rank that each goes to.
    pub fn flows(&self) -> impl Iterator<Item = (Rank, Flow)> {
        self.messages.iter().flat_map(|messages| messages.flows())
    }

    /// The rails that lead to each peer, where several do.
    pub fn rails(&self) -> impl Iterator<Item = (Rank, RailState)> {
        self.messages.iter().flat_map(|messages| messages.rails())
    }

    /// The links to other hosts, if there are any.
    #[inline]
    pub fn messages(&mut self) -> Option<&mut MessageLinks> {
        self.messages.as_deref_mut()
    }
}

macro_rules! either {
    ($self:ident, $link:ident, $do:ident ($($argument:expr),*), $none:expr) => {
        if $self.mapped.has($link) {
            Links::$do(&mut $self.mapped, $link $(, $argument)*)
        } else {
            match $self.messages.as_deref_mut() {
                Some(messages) => Links::$do(messages, $link $(, $argument)*),
                None => $none,
            }
        }
    };
}

impl Links for MixedLinks {
    #[inline]
    fn readable(&mut self, link: Link) -> bool {
        either!(self, link, readable(), false)
    }

    #[inline]
    fn writable(&mut self, link: Link) -> bool {
        either!(self, link, writable(), false)
    }

    #[inline]
    fn head(&mut self, link: Link) -> (usize, u64) {
        either!(self, link, head(), (0, 0))
    }

    #[inline]
    fn received(&mut self, link: Link, bytes: usize) -> *const u8 {
        either!(self, link, received(bytes), std::ptr::null())
    }

    #[inline]
    fn to_send(&mut self, link: Link, bytes: usize) -> *mut u8 {
        either!(self, link, to_send(bytes), std::ptr::null_mut())
    }

    #[inline]
    fn lend(&mut self, link: Link, payload: *const u8, bytes: usize) -> bool {
        either!(self, link, lend(payload, bytes), false)
    }

    #[inline]
    fn lends(&self) -> bool {
        self.messages.as_ref().is_some_and(|messages| messages.lends())
    }

    fn recall(&mut self, memory: *const u8, bytes: usize) -> bool {
        self.messages().is_none_or(|messages| Links::recall(messages, memory, bytes))
    }

    #[inline]
    fn land(&mut self, link: Link, payload: *mut u8, bytes: usize) {
        either!(self, link, land(payload, bytes), ());
    }

    #[inline]
    fn preposts(&self) -> bool {
        self.messages.as_ref().is_some_and(|messages| messages.preposts())
    }

    fn may_prepost(&mut self, link: Link) -> bool {
        either!(self, link, may_prepost(), true)
    }

    fn prepost(&mut self, link: Link, wanted: Option<Wanted>) {
        either!(self, link, prepost(wanted), ());
    }

    #[inline]
    fn lend_bytes_min(&self) -> usize {
        self.messages.as_ref().map_or(usize::MAX, |messages| messages.lend_bytes_min())
    }

    fn open(&mut self, memory: impl Iterator<Item = Region>) {
        if let Some(messages) = self.messages() {
            Links::open(messages, memory);
        }
    }

    #[inline]
    fn close(&mut self) {
        if let Some(messages) = self.messages() {
            Links::close(messages);
        }
    }

    fn abandon(&mut self) {
        if let Some(messages) = self.messages() {
            Links::abandon(messages);
        }
    }

    #[inline]
    fn publish(&mut self, link: Link, bytes: usize, tag: u64) {
        either!(self, link, publish(bytes, tag), ());
    }

    #[inline]
    fn release(&mut self, link: Link) {
        either!(self, link, release(), ());
    }
}
