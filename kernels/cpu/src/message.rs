//! Links over lanes that put: the slots and grants of [`ccl_core::admission`].

use ccl_core::admission::MessageLinks;
use ccl_core::execution::Link;

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
    fn publish(&mut self, link: Link, bytes: usize, tag: u64) {
        MessageLinks::publish(self, link, bytes, tag);
    }

    #[inline]
    fn release(&mut self, link: Link) {
        MessageLinks::release(self, link);
    }
}
