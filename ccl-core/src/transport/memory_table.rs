//! Memory that a lane's puts refer to: registered memory of this side and imported memory of peers.

use std::sync::Arc;

use ccl_memory::Region;

use super::{
    CTS_BYTES_MAX, Caps, EndpointId, IMMEDIATE_MAX, LocalSlice, MrKey, Registration, Registry,
    RemoteMr, TransportError, WorkRequest,
};

/// A transport's record of a peer's memory.
pub trait Imported {
    /// Returns the length of the memory, in bytes.
    fn bytes(&self) -> u64;
}

/// Registrations that one lane knows, each with the transport's own data `T`, and the memory `R`
/// that peers have shared with the lane.
#[derive(Debug)]
pub struct MemoryTable<T, R> {
    registry: Arc<Registry<T>>,
    caps: Caps,
    /// Registrations in order of keys, valid while `withdrawals` equals [`Registry::withdrawals`].
    /// A list, because clearing a list does not free its memory.
    local: Vec<(MrKey, Registration<T>)>,
    /// Index in `local` of the most recently used entry; usually it is used again.
    recent: usize,
    withdrawals: u64,
    remote: Vec<Option<(EndpointId, R)>>,
    /// Free indices of `remote`, to be used again.
    vacant: Vec<usize>,
}

/// Bytes of registered memory; they lie inside the registration.
#[derive(Debug)]
pub struct Slice<'n, T> {
    /// Registration of the memory.
    pub registration: &'n Registration<T>,
    /// Offset of the first byte.
    pub offset: usize,
    /// Number of bytes.
    pub bytes: usize,
}

impl<T> Slice<'_, T> {
    /// Returns the bytes as a region.
    ///
    /// # Errors
    ///
    /// Never: the bytes lie inside the registration.
    pub fn region(&self) -> Result<Region, TransportError> {
        self.registration.region.part(self.offset, self.bytes).map_err(TransportError::from)
    }
}

/// A put whose keys are resolved, and whose bytes lie inside the memory that the keys stand for.
#[derive(Debug)]
pub struct ResolvedPut<'n, T, R> {
    /// Bytes that are put.
    pub source: Slice<'n, T>,
    /// Bytes that follow `source`.
    pub tail: Option<Slice<'n, T>>,
    /// The peer's memory.
    pub to: &'n R,
    /// Number of bytes of `source` and `tail` together.
    pub bytes: usize,
}

impl<T: Clone, R: Imported> MemoryTable<T, R> {
    /// Returns an empty table for a lane of the device that has these registrations.
    #[must_use]
    pub fn new(registry: Arc<Registry<T>>, caps: Caps) -> MemoryTable<T, R> {
        MemoryTable {
            withdrawals: registry.withdrawals(),
            registry,
            caps,
            local: Vec::new(),
            recent: 0,
            remote: Vec::new(),
            vacant: Vec::new(),
        }
    }

    /// Returns the device's registrations.
    #[must_use]
    pub fn registry(&self) -> &Registry<T> {
        &self.registry
    }

    /// Forgets all registrations if any memory of the device has been deregistered since the last
    /// call, and returns whether that is so. Call this before taking the puts of one
    /// [`Lane::post`](super::Lane::post), and before writing received bytes to memory: the memory
    /// may have been deregistered meanwhile.
    pub fn refresh(&mut self) -> bool {
        let withdrawals = self.registry.withdrawals();
        let changed = withdrawals != self.withdrawals;
        if changed {
            self.withdrawals = withdrawals;
            self.local.clear();
        }
        changed
    }

    /// Returns bytes of registered memory.
    ///
    /// # Errors
    ///
    /// When the memory is not registered, or is too short.
    pub fn local(&mut self, slice: LocalSlice) -> Result<Slice<'_, T>, TransportError> {
        let at = self.remember(slice.key)?;
        self.remembered(at, slice)
    }

    /// Puts a registration into the list if it is missing there; returns its index.
    fn remember(&mut self, key: MrKey) -> Result<usize, TransportError> {
        if self.local.get(self.recent).is_none_or(|(recent, _)| *recent != key) {
            let found = self.local.binary_search_by_key(&key, |(key, _)| *key);
            if let Err(missing) = found {
                self.local.insert(missing, (key, self.registry.find(key)?));
            }
            self.recent = found.unwrap_or_else(|missing| missing);
        }
        Ok(self.recent)
    }

    fn remembered(&self, at: usize, slice: LocalSlice) -> Result<Slice<'_, T>, TransportError> {
        let LocalSlice { key, offset, bytes } = slice;
        let found = self.local.get(at).filter(|(known, _)| *known == key);
        let Some((_, registration)) = found else {
            return Err(TransportError::UnknownMemory(key));
        };
        let there = registration.region.bytes();
        if offset.checked_add(bytes).is_none_or(|end| end > there) {
            let (memory, room) = ("the registered memory", there as u64);
            return Err(TransportError::OutOfRange { memory, offset, bytes, room });
        }
        Ok(Slice { registration, offset, bytes })
    }

    /// Returns the memory that a peer has shared.
    ///
    /// # Errors
    ///
    /// When the memory was not imported from that peer.
    pub fn remote(&self, at: EndpointId, mr: RemoteMr) -> Result<&R, TransportError> {
        let RemoteMr(number) = mr;
        let index = usize::try_from(number).unwrap_or(usize::MAX);
        match self.remote.get(index) {
            Some(Some((owner, memory))) if *owner == at => Ok(memory),
            _ => Err(TransportError::NotImported { memory: mr, endpoint: at }),
        }
    }

    /// Returns the number of the memory that was imported from the peer and satisfies `is_meant`:
    /// the lowest number if there are several, none if there is no such memory.
    pub fn known(&self, at: EndpointId, is_meant: impl Fn(&R) -> bool) -> Option<RemoteMr> {
        let known = |entry: &Option<(EndpointId, R)>| {
            entry.as_ref().is_some_and(|(owner, memory)| *owner == at && is_meant(memory))
        };
        Some(RemoteMr(self.remote.iter().position(known)? as u64))
    }

    /// Imports a peer's memory.
    pub fn import(&mut self, at: EndpointId, memory: R) -> RemoteMr {
        let entry = Some((at, memory));
        if let Some(number) = self.vacant.pop() {
            self.remote[number] = entry;
            return RemoteMr(number as u64);
        }
        self.remote.push(entry);
        RemoteMr(self.remote.len() as u64 - 1)
    }

    /// Forgets one import of a peer's memory.
    pub fn release_import(&mut self, at: EndpointId, RemoteMr(number): RemoteMr) {
        let index = usize::try_from(number).unwrap_or(usize::MAX);
        let entry = self.remote.get_mut(index);
        let taken = entry.and_then(|entry| entry.take_if(|(owner, _)| *owner == at));
        self.vacant.extend(taken.map(|_| index));
    }

    /// Forgets all memory that a peer has shared.
    pub fn forget(&mut self, at: EndpointId) {
        for (number, entry) in self.remote.iter_mut().enumerate() {
            let taken = entry.take_if(|(owner, _)| *owner == at);
            self.vacant.extend(taken.map(|_| number));
        }
    }

    /// Resolves the keys of a put.
    ///
    /// # Errors
    ///
    /// When the put names memory or a range that does not exist, is too long, or has an immediate
    /// that is too large.
    pub fn resolve(
        &mut self,
        request: &WorkRequest,
    ) -> Result<ResolvedPut<'_, T, R>, TransportError> {
        let WorkRequest::Put {
            endpoint,
            local,
            tail,
            is_control,
            remote,
            remote_offset,
            immediate,
            ..
        } = *request;
        if let Some(immediate) = immediate.filter(|immediate| *immediate > IMMEDIATE_MAX) {
            return Err(TransportError::ImmediateTooLarge(immediate));
        }
        let tail_bytes = tail.map_or(0, |tail| tail.bytes);
        let bytes = local.bytes.saturating_add(tail_bytes);
        if bytes > self.caps.message_bytes_max {
            let most = self.caps.message_bytes_max;
            return Err(TransportError::TooLong { what: "put", bytes, most });
        }
        if is_control && bytes > CTS_BYTES_MAX {
            let most = CTS_BYTES_MAX;
            return Err(TransportError::TooLong { what: "control message", bytes, most });
        }
        let tail_at = tail.map(|tail| self.remember(tail.key)).transpose()?;
        let known = self.local.len();
        let at = self.remember(local.key)?;
        // A new entry moves the entries after it.
        let moved = usize::from(self.local.len() > known);
        let tail_at = tail_at.map(|tail_at| if tail_at < at { tail_at } else { tail_at + moved });
        let to = self.range_of(endpoint, remote, remote_offset, bytes)?;
        let source = self.remembered(at, local)?;
        let tail = tail.zip(tail_at).map(|(tail, at)| self.remembered(at, tail)).transpose()?;
        Ok(ResolvedPut { source, tail, to, bytes })
    }

    /// Returns the peer's memory, after checking that the memory has this range.
    fn range_of(
        &self,
        at: EndpointId,
        mr: RemoteMr,
        offset: usize,
        bytes: usize,
    ) -> Result<&R, TransportError> {
        let memory = self.remote(at, mr)?;
        let end = (offset as u64).checked_add(bytes as u64);
        if end.is_none_or(|end| end > memory.bytes()) {
            let (memory, room) = ("the peer's memory", memory.bytes());
            return Err(TransportError::OutOfRange { memory, offset, bytes, room });
        }
        Ok(memory)
    }
}

/// Makes a lane take work in order, as [`Lane::post`](super::Lane::post) says: `put` takes one
/// request, or returns false if the request's endpoint takes no more.
///
/// # Errors
///
/// Returns the error of `put` for the first request. An error for a later request is not returned
/// now, but by the call whose `work` begins with that request.
pub fn take(
    work: &[WorkRequest],
    mut put: impl FnMut(&WorkRequest) -> Result<bool, TransportError>,
) -> Result<usize, TransportError> {
    for (taken, request) in work.iter().enumerate() {
        match put(request) {
            Ok(true) => {}
            Ok(false) => return Ok(taken),
            Err(error) if taken == 0 => return Err(error),
            Err(_) => return Ok(taken),
        }
    }
    Ok(work.len())
}
