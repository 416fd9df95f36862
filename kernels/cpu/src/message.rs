//! Links over lanes that put: the slots and grants of [`ccl_core::admission`].

use ccl_core::admission::{MessageLinks, Wanted};
use ccl_core::execution::Link;
use ccl_memory::Region;

use crate::ports::Links;

impl Links for MessageLinks {
    #[inline]
    fn readable(&mut self, link: Link) -> bool {
        MessageLinks::readable(self, link)
    }

    #[inline]
    fn writable(&mut self, link: Link) -> bool {
        MessageLinks::writable(self, link)
    }

    #[inline]
    fn head(&mut self, link: Link) -> (usize, u64) {
        MessageLinks::head(self, link)
    }

    #[inline]
    fn received(&mut self, link: Link, _: usize) -> *const u8 {
        MessageLinks::received(self, link)
    }

    #[inline]
    fn to_send(&mut self, link: Link, _: usize) -> *mut u8 {
        MessageLinks::to_send(self, link)
    }

    #[inline]
    fn lend(&mut self, link: Link, payload: *const u8, bytes: usize) -> bool {
        MessageLinks::lend(self, link, payload.addr(), bytes)
    }

    #[inline]
    fn lends(&self) -> bool {
        MessageLinks::lends(self)
    }

    fn recall(&mut self, memory: *const u8, bytes: usize) -> bool {
        MessageLinks::recall(self, memory.addr(), bytes)
    }

    #[inline]
    fn land(&mut self, link: Link, payload: *mut u8, bytes: usize) {
        MessageLinks::land(self, link, payload.expose_provenance(), bytes);
    }

    fn preposts(&self) -> bool {
        MessageLinks::preposts(self)
    }

    fn may_prepost(&mut self, link: Link) -> bool {
        MessageLinks::may_prepost(self, link)
    }

    fn prepost(&mut self, link: Link, wanted: Option<Wanted>) {
        MessageLinks::prepost(self, link, wanted);
    }

    #[inline]
    fn lend_bytes_min(&self) -> usize {
        MessageLinks::lend_bytes_min(self)
    }

    fn open(&mut self, memory: impl Iterator<Item = Region>) {
        MessageLinks::open(self, memory);
    }

    #[inline]
    fn close(&mut self) {
        MessageLinks::close(self);
    }

    fn abandon(&mut self) {
        MessageLinks::abandon(self);
    }

    #[inline]
    fn publish(&mut self, link: Link, bytes: usize, tag: u64) {
        MessageLinks::publish(self, link, bytes, tag);
    }

    #[inline]
    fn release(&mut self, link: Link) {
        MessageLinks::release(self, link);
    }
}
