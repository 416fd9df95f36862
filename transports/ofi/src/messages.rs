//! Puts as messages, for providers that cannot write, or whose writes do not suit puts (see
//! `Info::is_efa`). A put is sent in parts, one message each, with a head that names the
//! destination of the part's bytes. The receiver's lane checks the key of each part, and copies the
//! bytes to that destination. A put of one part may stay in the receive buffer instead, where its
//! reader finds it ([`Inbox::hold`]).

use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::Arc;

use ccl_core::admission::HEADER_BYTES;
use ccl_core::transport::{EndpointId, MrKey, TransportError};
use ccl_memory::Region;
use libfabric_sys::fi_context2;

use crate::native::{Domain, Endpoint, LOCAL, Memory, OfiError, transport_error};

/// Largest number of puts of each kind (data, control) under way on one link.
pub(crate) const DEPTH_MAX: usize = 64;
/// Bytes of a head.
pub(crate) const HEAD_BYTES: usize = TOKEN_BYTES + 40;
/// Bytes of the token that identifies a peer's messages.
pub(crate) const TOKEN_BYTES: usize = 16;
/// Largest number of bytes of a put in one message. Over loopback, a message with its head and the
/// provider's own header then fits into four TCP segments of 65,483 bytes; a few bytes more would
/// need a fifth segment. Messages of two segments take more calls per byte, and messages of eight
/// do not stay in the processor's cache until they are copied.
pub(crate) const PART_BYTES: usize = (256 << 10) - 512;
/// Number of receives that a lane has posted, each for one message. The provider fills them in
/// turn. With more receives posted, each buffer would have left the processor's cache before its
/// next use.
const POSTED: usize = 2;
/// Largest number of receive buffers that readers hold at a time ([`Inbox::hold`]).
const HELD_MAX: usize = 2;
/// Largest number of receives that the provider has reported as failed and that are not used again.
const DOUBTFUL_MAX: usize = 16;
/// Offset of a receive's buffer in its memory. With this offset, the payload of a rank's message,
/// behind its head and the header of the links, begins at a cache line.
const PADDING: usize = 64 - (HEAD_BYTES + HEADER_BYTES) % 64;
/// Largest number of incomplete puts of a peer. The number is several times [`DEPTH_MAX`], since
/// the peer's provider may report a put as done before all of it has arrived.
const BEGUN_MAX: usize = 4 * DEPTH_MAX;
/// Encoded immediate of a put that has none.
const NO_IMMEDIATE: u32 = u32::MAX;

/// Head of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    /// Token that the receiver has given the sender.
    pub(crate) token: [u8; TOKEN_BYTES],
    /// Number of the sender among the receiver's peers, from the receiver's offer.
    pub(crate) number: u32,
    pub(crate) immediate: Option<u32>,
    /// Number of the put among those of the link.
    pub(crate) put: u64,
    /// Key of the receiver's memory.
    pub(crate) key: u64,
    /// Offset of the part in the receiver's memory.
    pub(crate) offset: u64,
    /// Bytes of the whole put.
    pub(crate) total: u64,
}

impl Head {
    pub(crate) fn encode(&self) -> [u8; HEAD_BYTES] {
        let first =
            u64::from(self.immediate.unwrap_or(NO_IMMEDIATE)) << 32 | u64::from(self.number);
        let words = [first, self.put, self.key, self.offset, self.total];
        let mut bytes = [0; HEAD_BYTES];
        bytes[..TOKEN_BYTES].copy_from_slice(&self.token);
        for (slot, word) in bytes[TOKEN_BYTES..].as_chunks_mut().0.iter_mut().zip(words) {
            *slot = word.to_le_bytes();
        }
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; HEAD_BYTES]) -> Head {
        let mut token = [0; TOKEN_BYTES];
        token.copy_from_slice(&bytes[..TOKEN_BYTES]);
        let mut words = [0; (HEAD_BYTES - TOKEN_BYTES) / 8];
        for (word, bytes) in words.iter_mut().zip(bytes[TOKEN_BYTES..].as_chunks().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        let [first, put, key, offset, total] = words;
        let immediate = (first >> 32) as u32;
        Head {
            token,
            number: first as u32,
            immediate: (immediate != NO_IMMEDIATE).then_some(immediate),
            put,
            key,
            offset,
            total,
        }
    }

    /// Returns the key as this side's registry knows it.
    pub(crate) fn mr(&self) -> MrKey {
        MrKey(self.key)
    }
}

/// Returns the largest number of bytes of a put in one message, if the provider limits messages to
/// `eager_bytes` bytes ([`eager_bytes`](crate::provider::eager_bytes)).
pub(crate) fn part_bytes(eager_bytes: usize) -> usize {
    eager_bytes.saturating_sub(HEAD_BYTES).clamp(1, PART_BYTES)
}

/// A receive, which is posted, idle, held or doubtful.
#[derive(Debug)]
struct Receive {
    context: NonNull<fi_context2>,
    memory: Memory,
}

/// Receives of a lane, and its incomplete puts.
#[derive(Debug)]
pub(crate) struct Inbox {
    receives: Vec<Receive>,
    /// Number of receives that the lane needs; there is one more for each doubtful one.
    needed: usize,
    /// Index of each receive by the address of its context.
    indices: BTreeMap<usize, usize>,
    /// Indices of receives that are neither posted nor held nor doubtful; the last ones are posted
    /// first.
    idle: Vec<usize>,
    /// Indices of receives whose buffers readers may still hold.
    held: Vec<usize>,
    /// Indices of receives that the provider has reported as failed, the oldest first. When a
    /// connection breaks, `ofi_rxm` reports a receive once for each range of the message that was
    /// being read. A receive that was posted again in between would seem to fail, too.
    doubtful: Vec<usize>,
    /// Missing bytes and total bytes of each incomplete put.
    missing: BTreeMap<(EndpointId, u64), (u64, u64)>,
}

// SAFETY: only the provider uses the contents of contexts, and it may do so from any thread.
unsafe impl Send for Inbox {}

impl Inbox {
    pub(crate) fn new(domain: &Arc<Domain>) -> Result<Inbox, TransportError> {
        let mut inbox = Inbox {
            receives: Vec::new(),
            needed: POSTED,
            indices: BTreeMap::new(),
            idle: Vec::new(),
            held: Vec::new(),
            doubtful: Vec::new(),
            missing: BTreeMap::new(),
        };
        inbox.grow(domain)?;
        Ok(inbox)
    }

    /// Adds receives, to be posted while buffers are held ([`Inbox::hold`]).
    pub(crate) fn permit_hold(&mut self, domain: &Arc<Domain>) -> Result<(), TransportError> {
        self.needed = POSTED + HELD_MAX;
        self.grow(domain)
    }

    /// Adds receives until there are enough.
    fn grow(&mut self, domain: &Arc<Domain>) -> Result<(), TransportError> {
        for index in self.receives.len()..self.needed + self.doubtful.len() {
            let bytes = HEAD_BYTES + PART_BYTES;
            let region = Region::allocate(PADDING + bytes)?.part(PADDING, bytes)?;
            let memory = Memory::register(domain, region, LOCAL).map_err(transport_error)?;
            let context = fi_context2 { internal: [std::ptr::null_mut(); 8] };
            let context = NonNull::from(Box::leak(Box::new(context)));
            self.indices.insert(context.addr().get(), index);
            self.receives.push(Receive { context, memory });
            self.idle.push(index);
        }
        Ok(())
    }

    /// Posts idle receives, as many as the provider takes, up to [`POSTED`].
    ///
    /// # Errors
    ///
    /// When the provider returns an error, or has lost all receives.
    pub(crate) fn post(&mut self, endpoint: &Endpoint) -> Result<(), OfiError> {
        self.reclaim();
        while self.posted() < POSTED
            && let Some(index) = self.idle.last()
        {
            let Receive { context, memory } = &self.receives[*index];
            // SAFETY: memory and context live until the inbox is freed, after the endpoint is
            // closed. No reader holds the memory.
            if !unsafe { endpoint.recv(memory, context.as_ptr()) }? {
                if self.posted() == 0 && endpoint.loses_receives() {
                    return Err(OfiError::Deaf);
                }
                break;
            }
            self.idle.pop();
        }
        Ok(())
    }

    /// Takes in a completed receive; returns false if no posted receive has this context. A later
    /// [`Inbox::post`] posts the receive again, unless a reader holds its memory.
    pub(crate) fn take(&mut self, context: *mut fi_context2) -> bool {
        self.reclaim();
        let Some(index) = self.find(context) else { return false };
        self.doubtful.retain(|doubtful| *doubtful != index);
        self.idle.push(index);
        true
    }

    /// Takes in a report that a receive has failed. Another receive is posted instead. This one is
    /// used again if it completes after all, if it is the oldest of more than [`DOUBTFUL_MAX`], or
    /// if there is no other receive and no memory for one.
    pub(crate) fn fail(&mut self, domain: &Arc<Domain>, context: *mut fi_context2) {
        self.reclaim();
        let Some(index) = self.find(context) else { return };
        if self.doubtful.contains(&index) {
            return;
        }
        self.doubtful.push(index);
        let is_full = self.doubtful.len() > DOUBTFUL_MAX;
        let is_last = !is_full && self.grow(domain).is_err() && self.others() == 0;
        if is_full || is_last {
            self.idle.push(self.doubtful.remove(0));
        }
    }

    /// Returns the number of receives that are posted, as far as is known.
    fn posted(&self) -> usize {
        self.others() - self.held.len() - self.idle.len()
    }

    /// Returns the number of receives that are not doubtful.
    fn others(&self) -> usize {
        self.receives.len() - self.doubtful.len()
    }

    /// Returns the index of the receive with this context, if the provider may have the receive.
    fn find(&self, context: *mut fi_context2) -> Option<usize> {
        let index = *self.indices.get(&context.addr())?;
        (!self.idle.contains(&index) && !self.held.contains(&index)).then_some(index)
    }

    /// Returns the memory of the receive that was taken last, for use right after [`Inbox::take`].
    pub(crate) fn taken(&self) -> Option<&Region> {
        Some(&self.receives[*self.idle.last()?].memory.region)
    }

    /// Returns the memory of the `bytes` bytes after the head of the message that was taken last.
    /// The message's receive is posted again after the returned region and its clones are gone.
    /// None if [`HELD_MAX`] buffers are held, or there is no receive to post instead.
    pub(crate) fn hold(&mut self, bytes: usize) -> Option<Region> {
        let [_, .., last] = self.idle[..] else { return None };
        if self.held.len() >= HELD_MAX {
            return None;
        }
        let held = self.receives[last].memory.region.part(HEAD_BYTES, bytes).ok()?;
        self.idle.pop();
        self.held.push(last);
        Some(held)
    }

    /// Makes receives idle whose memory is no longer held.
    fn reclaim(&mut self) {
        let Inbox { receives, idle, held, .. } = self;
        held.retain(|&index| {
            let is_held = receives[index].memory.region.is_shared();
            idle.extend((!is_held).then_some(index));
            is_held
        });
    }

    /// Counts a part of a put; returns the length of the put if the put is now complete.
    ///
    /// # Errors
    ///
    /// When the parts of the put do not match its length, or too many puts of the peer are
    /// incomplete. The text is the reason for losing the peer.
    pub(crate) fn count(
        &mut self,
        at: EndpointId,
        head: &Head,
        bytes: u64,
    ) -> Result<Option<u64>, &'static str> {
        let put = (at, head.put);
        let (missing, total) = *self.missing.get(&put).unwrap_or(&(head.total, head.total));
        let Some(missing) = missing.checked_sub(bytes).filter(|_| total == head.total) else {
            return Err("the parts of a put do not match its length");
        };
        if missing == 0 {
            self.missing.remove(&put);
            return Ok(Some(total));
        }
        let begun = self.missing.range((at, 0)..=(at, u64::MAX)).count();
        if begun >= BEGUN_MAX && !self.missing.contains_key(&put) {
            return Err("more puts are incomplete than the limit allows");
        }
        self.missing.insert(put, (missing, total));
        Ok(None)
    }

    /// Forgets the puts of a link.
    pub(crate) fn forget(&mut self, endpoint: EndpointId) {
        self.missing.retain(|(at, _), _| *at != endpoint);
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        for receive in &self.receives {
            // SAFETY: the context was made by a box, and the endpoint that used it is closed.
            drop(unsafe { Box::from_raw(receive.context.as_ptr()) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provider::installed;

    /// A peer that begins puts and never ends them cannot use up memory.
    #[test]
    fn the_number_of_incomplete_puts_of_a_peer_is_limited() {
        let Some(info) = installed("tcp;ofi_rxm") else { return };
        let mut inbox = Inbox::new(&Domain::open(info, true).unwrap()).unwrap();
        let token = [0; TOKEN_BYTES];
        let head =
            |put| Head { token, number: 0, immediate: None, put, key: 0, offset: 0, total: 10 };
        let (one, other) = (EndpointId(1), EndpointId(2));
        for put in 0..BEGUN_MAX as u64 {
            assert_eq!(inbox.count(one, &head(put), 4), Ok(None));
        }
        assert!(inbox.count(one, &head(1 << 40), 4).unwrap_err().contains("more puts"));
        assert_eq!(inbox.count(one, &head(1 << 40), 10), Ok(Some(10)));
        assert_eq!(inbox.count(other, &head(0), 4), Ok(None));
        assert_eq!(inbox.count(one, &head(0), 6), Ok(Some(10)));
        assert_eq!(inbox.count(one, &head(1 << 40), 4), Ok(None));
        // A put with different lengths in its heads, or with more bytes than its length.
        let longer = Head { total: 11, ..head(1) };
        for (head, bytes) in [(longer, 4), (head(1), 7)] {
            let error = inbox.count(one, &head, bytes).unwrap_err();
            assert!(error.contains("do not match its length"), "{error}");
        }
    }

    #[test]
    fn the_number_of_held_buffers_is_limited() {
        let Some(info) = installed("tcp;ofi_rxm") else { return };
        let domain = Domain::open(info, true).unwrap();
        let mut inbox = Inbox::new(&domain).unwrap();
        // As if all receives were posted.
        inbox.idle.clear();
        let complete = |inbox: &mut Inbox, index: usize| {
            let context = inbox.receives[index].context.as_ptr();
            inbox.idle.retain(|idle| *idle != index);
            assert!(inbox.take(context));
            inbox.hold(1)
        };
        assert!(complete(&mut inbox, 0).is_none(), "nothing could be posted instead");
        inbox.permit_hold(&domain).unwrap();
        let [one, other] = [0, 1].map(|index| complete(&mut inbox, index).unwrap());
        for index in [2, 3] {
            assert!(complete(&mut inbox, index).is_none(), "more buffers are held than the limit");
        }
        drop(one.clone());
        assert!(complete(&mut inbox, 2).is_none(), "a clone of the buffer is still there");
        drop(one);
        assert!(complete(&mut inbox, 3).is_some(), "a buffer that was given back is not used");
        drop(other);
    }

    /// `ofi_rxm` reports a failed receive several times.
    #[test]
    fn a_receive_that_is_reported_as_failed_is_not_posted_twice() {
        let Some(info) = installed("tcp;ofi_rxm") else { return };
        let domain = Domain::open(info, true).unwrap();
        let mut inbox = Inbox::new(&domain).unwrap();
        // As if all receives were posted.
        inbox.idle.clear();
        let context = |inbox: &Inbox, index: usize| inbox.receives[index].context.as_ptr();
        let (first, second) = (context(&inbox, 0), context(&inbox, 1));
        for _ in 0..3 {
            inbox.fail(&domain, first);
        }
        assert_eq!((&inbox.idle[..], inbox.posted()), (&[POSTED][..], 1));
        assert!(inbox.take(first), "the message of a receive that stayed posted is lost");
        assert!(!inbox.take(first), "a receive was taken twice");
        assert_eq!((&inbox.idle[..], inbox.posted()), (&[POSTED, 0][..], 1));
        assert!(inbox.take(second) && inbox.hold(1).is_some());
        // Its memory is held no longer: it is idle.
        inbox.fail(&domain, second);
        assert!(inbox.doubtful.is_empty(), "a receive that is not posted has failed");
        assert_eq!((inbox.idle.len(), inbox.posted()), (POSTED + 1, 0));
    }

    #[test]
    fn failed_receives_cost_a_limited_number_of_buffers() {
        let Some(info) = installed("tcp;ofi_rxm") else { return };
        let domain = Domain::open(info, true).unwrap();
        let mut inbox = Inbox::new(&domain).unwrap();
        for completes in [true, false] {
            for round in 0..3 * DOUBTFUL_MAX {
                // As if one receive were posted, and the provider reported it as failed.
                let index = inbox.idle.remove(0);
                let context = inbox.receives[index].context.as_ptr();
                inbox.fail(&domain, context);
                assert!(!completes || inbox.take(context));
                let most = if completes { POSTED + 1 } else { POSTED + DOUBTFUL_MAX };
                assert!(inbox.receives.len() <= most, "{completes}, {round}");
                assert!(inbox.others() >= POSTED && inbox.posted() == 0, "{completes}, {round}");
            }
        }
        inbox.permit_hold(&domain).unwrap();
        assert_eq!(inbox.others(), POSTED + HELD_MAX);
    }

    #[test]
    fn an_encoded_head_decodes_to_the_same_head() {
        for immediate in [None, Some(0), Some(ccl_core::transport::IMMEDIATE_MAX)] {
            let number = 4095;
            let (put, key, offset, total) = (u64::MAX, 7, 1 << 40, 3);
            let token = [9; TOKEN_BYTES];
            let head = Head { token, number, immediate, put, key, offset, total };
            assert_eq!(Head::decode(&head.encode()), head);
        }
    }
}
