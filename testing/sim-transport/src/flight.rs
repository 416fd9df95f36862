//! A put under way.

use ccl_core::time::Instant;
use ccl_core::transport::LocalSlice;

/// Put under way.
#[derive(Clone, Debug)]
pub(crate) struct Flight {
    pub(crate) link: usize,
    /// Side of the sender.
    pub(crate) side: usize,
    pub(crate) number: u64,
    /// Slices that are sent, in order.
    pub(crate) local: [Option<LocalSlice>; 2],
    pub(crate) share: u64,
    pub(crate) remote_offset: usize,
    pub(crate) is_control: bool,
    pub(crate) immediate: Option<u32>,
    pub(crate) id: u64,
    /// Time at which the put has left the sender. If the put is sent several times, this is the
    /// time of the transmission that arrives.
    pub(crate) departs: Instant,
}

impl Flight {
    /// Returns the bytes that the receiver has to admit.
    pub(crate) fn admitted_bytes(&self) -> usize {
        if self.is_control { 0 } else { self.bytes() }
    }

    /// Returns the length of the put.
    pub(crate) fn bytes(&self) -> usize {
        self.local.iter().flatten().map(|slice| slice.bytes).sum()
    }
}
