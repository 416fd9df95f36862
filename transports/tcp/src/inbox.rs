//! Memory that a peer may write to, and redirects of the peer's puts.

use std::collections::BTreeMap;

use ccl_core::transport::{LocalSlice, MrKey};
use ccl_memory::{Region, RegionError};

use crate::error::ProtocolError;
use crate::frame::Header;

/// Largest number of already arrived bytes that a redirect copies to its target. A redirect that
/// would copy more is refused.
const DIVERTED_BYTES_MAX: usize = 8 << 10;

/// A redirect of the bytes of one put.
#[derive(Debug)]
struct Redirect {
    /// Number with which the peer names the shared memory that its put is addressed to.
    memory: u32,
    /// Offset of the first redirected byte in that memory.
    offset: usize,
    into: RedirectTarget,
}

/// Registered memory of this side.
#[derive(Clone, Debug)]
pub(crate) struct RedirectTarget {
    pub(crate) key: MrKey,
    pub(crate) region: Region,
}

/// Memory that is shared with one peer.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    /// Shared regions, indexed by the number with which the peer names the region.
    regions: BTreeMap<u32, Region>,
    numbers: BTreeMap<MrKey, u32>,
    /// Next free number. A lower number without a region stands for withdrawn memory.
    next: u32,
    /// Redirects whose put has not arrived in full yet.
    redirects: Vec<Redirect>,
}

/// Destination of the bytes of one put.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    /// Region that the peer named.
    region: Region,
    /// Index of the put's first redirected byte, and the memory that receives this and later bytes.
    elsewhere: Option<(usize, RedirectTarget)>,
}

impl Target {
    pub(crate) fn new(region: Region) -> Target {
        Target { region, elsewhere: None }
    }

    /// Returns the region of byte `at` of the put, the byte's offset in the region, and how many of
    /// the next `bytes` bytes lie in that region.
    pub(crate) fn locate(&self, at: usize, bytes: usize) -> (&Region, usize, usize) {
        match &self.elsewhere {
            Some((start, into)) if at >= *start => (&into.region, at - start, bytes),
            Some((start, _)) => (&self.region, at, bytes.min(start - at)),
            None => (&self.region, at, bytes),
        }
    }

    /// Writes `bytes` as the put's bytes from index `at` on.
    pub(crate) fn write(&self, at: usize, bytes: &[u8]) -> Result<(), RegionError> {
        let (first, offset, here) = self.locate(at, bytes.len());
        first.write(offset, &bytes[..here])?;
        if here < bytes.len() {
            let (second, offset, _) = self.locate(at + here, bytes.len() - here);
            second.write(offset, &bytes[here..])?;
        }
        Ok(())
    }

    /// Returns the region that the peer named, also for a redirected put.
    pub(crate) fn region(&self) -> &Region {
        &self.region
    }
}

/// A put that has arrived in part.
#[derive(Debug)]
pub(crate) struct Unfinished<'a> {
    pub(crate) header: &'a Header,
    /// Destination of the put; none if its memory was withdrawn.
    pub(crate) target: &'a mut Option<Target>,
    pub(crate) done: usize,
}

impl Unfinished<'_> {
    fn covers(&self, memory: u32, offset: usize) -> bool {
        let (start, bytes) = (self.header.offset, u64::from(self.header.bytes));
        let inside = (start..start.saturating_add(bytes)).contains(&(offset as u64));
        self.header.memory == memory && inside
    }

    /// Redirects the put's bytes from `redirect.offset` on, and copies those that have arrived.
    /// Returns false if the put's memory was withdrawn, the redirect's target is too small, or too
    /// many bytes have arrived.
    fn divert(&mut self, redirect: &Redirect) -> Result<bool, RegionError> {
        let start = redirect.offset - self.header.offset as usize;
        let bytes = self.header.bytes as usize - start;
        let Some(target) = self.target else { return Ok(false) };
        let into = &redirect.into.region;
        if bytes > into.bytes() || self.done.saturating_sub(start) > DIVERTED_BYTES_MAX {
            return Ok(false);
        }
        if self.done > start {
            into.copy_from(0, &target.region, start, self.done - start)?;
        }
        target.elsewhere = Some((start, redirect.into.clone()));
        Ok(true)
    }

    /// Undoes `divert`.
    fn bring_back(&mut self) -> Result<(), RegionError> {
        let Some(target) = self.target else { return Ok(()) };
        let Some((start, into)) = target.elsewhere.take() else { return Ok(()) };
        if self.done > start {
            target.region.copy_from(start, &into.region, 0, self.done - start)?;
        }
        Ok(())
    }
}

impl Inbox {
    /// Lets the peer write to registered memory. Returns the number with which the peer names it.
    pub(crate) fn share(&mut self, key: MrKey, region: Region) -> u32 {
        let next = self.next;
        let number = *self.numbers.entry(key).or_insert(next);
        if number == next {
            self.regions.insert(number, region);
            self.next += 1;
        }
        number
    }

    /// Forgets memory that is no longer registered. Bytes in flight to that memory are discarded.
    pub(crate) fn withdraw<'a>(
        &mut self,
        is_registered: impl Fn(MrKey) -> bool,
        unfinished: impl Iterator<Item = Unfinished<'a>>,
    ) {
        let regions = &mut self.regions;
        self.numbers.retain(|key, number| {
            let stays = is_registered(*key);
            if !stays {
                regions.remove(number);
            }
            stays
        });
        self.redirects.retain(|redirect| is_registered(redirect.into.key));
        for put in unfinished {
            if !self.regions.contains_key(&put.header.memory) {
                *put.target = None;
            } else if let Some(target) = put.target {
                // The rest of the put goes to the region that the peer named. That region lacks the
                // bytes already redirected.
                target.elsewhere.take_if(|(_, into)| !is_registered(into.key));
            }
        }
    }

    /// Forgets all memory and all redirects.
    pub(crate) fn clear(&mut self) {
        self.regions.clear();
        self.numbers.clear();
        self.next = 0;
        self.redirects.clear();
    }

    /// Returns the destination of a put's bytes; none if the memory was withdrawn.
    pub(crate) fn target(&self, header: &Header) -> Result<Option<Target>, ProtocolError> {
        if header.memory >= self.next {
            return Err(ProtocolError::NotShared);
        }
        let region = self.regions.get(&header.memory);
        let (Some(region), Ok(offset)) = (region, usize::try_from(header.offset)) else {
            return Ok(None);
        };
        let bytes = header.bytes as usize;
        let part = region.part(offset, bytes).map_err(|_| ProtocolError::NotShared)?;
        let mut target = Target::new(part);
        for redirect in self.redirects.iter().filter(|redirect| redirect.memory == header.memory) {
            let Some(start) = redirect.offset.checked_sub(offset) else { continue };
            if start < bytes && bytes - start <= redirect.into.region.bytes() {
                target.elsewhere = Some((start, redirect.into.clone()));
            }
        }
        Ok(Some(target))
    }

    /// Removes the redirects of a put that has arrived in full.
    pub(crate) fn arrived(&mut self, header: &Header) {
        if !self.redirects.is_empty() {
            let bytes = u64::from(header.bytes);
            let range = header.offset..header.offset.saturating_add(bytes);
            self.redirects.retain(|redirect| {
                redirect.memory != header.memory || !range.contains(&(redirect.offset as u64))
            });
        }
    }

    /// Redirects bytes that the peer addresses to `from`. Returns false if their put has begun to
    /// arrive and cannot be redirected any more, and none if the memory of `from` is not shared.
    pub(crate) fn redirect<'a>(
        &mut self,
        from: LocalSlice,
        into: RedirectTarget,
        unfinished: impl Iterator<Item = Unfinished<'a>>,
    ) -> Option<Result<bool, RegionError>> {
        let memory = self.memory(from)?;
        let redirect = Redirect { memory, offset: from.offset, into };
        let mut unfinished = unfinished.filter(|put| put.covers(memory, from.offset));
        let diverted = match (unfinished.next(), unfinished.next()) {
            (None, _) => Ok(true),
            (Some(mut put), None) => put.divert(&redirect),
            // A peer that respects its credits never has two unfinished puts to the same bytes.
            _ => Ok(false),
        };
        if let Ok(true) = diverted {
            self.redirects.push(redirect);
        }
        Some(diverted)
    }

    /// Undoes a redirect. Returns none if the memory of `from` is not shared.
    pub(crate) fn restore<'a>(
        &mut self,
        from: LocalSlice,
        unfinished: impl Iterator<Item = Unfinished<'a>>,
    ) -> Option<Result<(), RegionError>> {
        let memory = self.memory(from)?;
        self.redirects
            .retain(|redirect| (redirect.memory, redirect.offset) != (memory, from.offset));
        let mut unfinished = unfinished.filter(|put| put.covers(memory, from.offset));
        Some(unfinished.try_for_each(|mut put| put.bring_back()))
    }

    /// Returns the number with which the peer names the shared memory that these bytes lie in.
    fn memory(&self, slice: LocalSlice) -> Option<u32> {
        let memory = *self.numbers.get(&slice.key)?;
        self.regions.get(&memory)?.part(slice.offset, slice.bytes).ok()?;
        Some(memory)
    }
}
