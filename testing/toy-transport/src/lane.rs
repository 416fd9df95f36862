//! Lane: a put is copied into the peer's queue, and from there into the peer's memory when the peer
//! polls.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ccl_core::time::Instant;
use ccl_core::transport::{
    Caps, Connected, EndpointId, Event, Imported, Lane, MemoryTable, MrKey, Registry, RemoteKey,
    RemoteMr, TransportError, WorkRequest, check_note,
};
use ccl_memory::Region;

use crate::queue::{Frame, ToyInner, lock};

/// First bytes of a remote key of this transport.
const MAGIC: u64 = u64::from_le_bytes(*b"toy key1");

/// Memory of the peer.
#[derive(Debug)]
struct Shared {
    key: MrKey,
    bytes: u64,
}

impl Imported for Shared {
    fn bytes(&self) -> u64 {
        self.bytes
    }
}

#[derive(Debug)]
struct Endpoint {
    connection: Box<ToyInner>,
    /// Memory of this side that the peer may write.
    shared: BTreeSet<MrKey>,
    is_lost: bool,
}

/// Lane that moves bytes between threads.
#[derive(Debug)]
pub(crate) struct ToyLane {
    memory: MemoryTable<(), Shared>,
    device: Arc<Registry<()>>,
    depth: usize,
    endpoints: Vec<Option<Endpoint>>,
    done: Vec<u64>,
}

impl ToyLane {
    pub(crate) fn new(device: &Arc<Registry<()>>, caps: &Caps) -> ToyLane {
        ToyLane {
            memory: MemoryTable::new(Arc::clone(device), caps.clone()),
            device: Arc::clone(device),
            depth: caps.depth_max,
            endpoints: Vec::new(),
            done: Vec::new(),
        }
    }

    fn endpoint(&mut self, id: EndpointId) -> Result<&mut Endpoint, TransportError> {
        let endpoint = self.endpoints.get_mut(id.0 as usize).and_then(Option::as_mut);
        endpoint.ok_or(TransportError::UnknownEndpoint(id))
    }

    /// Writes a put's bytes to memory. Returns false if the peer must not write there.
    fn write(&self, endpoint: &Endpoint, key: MrKey, offset: usize, bytes: &[u8]) -> bool {
        let registration = self.device.find(key).ok();
        let allowed = registration.filter(|_| endpoint.shared.contains(&key));
        allowed.is_some_and(|found| found.region.write(offset, bytes).is_ok())
    }
}

impl Lane for ToyLane {
    fn attach(&mut self, connected: Connected) -> Result<EndpointId, TransportError> {
        let connection = connected.into_own(|_: &ToyInner| true)?;
        self.endpoints.push(Some(Endpoint { connection, shared: BTreeSet::new(), is_lost: false }));
        Ok(EndpointId(self.endpoints.len() as u32 - 1))
    }

    fn detach(&mut self, endpoint: EndpointId) {
        if let Some(entry) = self.endpoints.get_mut(endpoint.0 as usize) {
            // Dropping the connection closes both queues.
            *entry = None;
        }
        self.memory.forget(endpoint);
    }

    fn share(&mut self, endpoint: EndpointId, key: MrKey) -> Result<RemoteKey, TransportError> {
        let bytes = self.device.find(key)?.region.bytes() as u64;
        self.endpoint(endpoint)?.shared.insert(key);
        let words = [MAGIC, self.device.device(), key.0, bytes];
        Ok(RemoteKey(words.map(u64::to_le_bytes).concat()))
    }

    fn import(&mut self, at: EndpointId, key: &RemoteKey) -> Result<RemoteMr, TransportError> {
        self.endpoint(at)?;
        let (words, rest) = key.0.as_chunks();
        let words = Vec::from_iter(words.iter().map(|word| u64::from_le_bytes(*word)));
        let (key, bytes) = match (&words[..], rest) {
            ([MAGIC, device, key, bytes], []) if *device != self.device.device() => {
                (MrKey(*key), *bytes)
            }
            _ => return Err(TransportError::NoKey { bytes: key.0.len() }),
        };
        let known = self.memory.known(at, |shared| shared.key == key);
        Ok(known.unwrap_or_else(|| self.memory.import(at, Shared { key, bytes })))
    }

    fn forget(&mut self, at: EndpointId, mr: RemoteMr) {
        self.memory.release_import(at, mr);
    }

    fn map(&mut self, _: EndpointId, _: &RemoteKey) -> Result<Region, TransportError> {
        Err(TransportError::NotMapped { peer: "a toy device".to_owned() })
    }

    fn post(&mut self, _: Instant, work: &[WorkRequest]) -> Result<usize, TransportError> {
        self.memory.refresh();
        for (taken, request) in work.iter().enumerate() {
            let WorkRequest::Put { endpoint, remote_offset, is_control, immediate, id, .. } =
                *request;
            let checked = self.endpoint(endpoint).map(|found| found.is_lost);
            let put = checked.and_then(|is_lost| {
                let resolved = self.memory.resolve(request)?;
                let mut bytes = vec![0; resolved.bytes];
                let (head, tail) = bytes.split_at_mut(resolved.source.bytes);
                resolved.source.region()?.read(0, head)?;
                if let Some(slice) = &resolved.tail {
                    slice.region()?.read(0, tail)?;
                }
                let (key, offset) = (resolved.to.key, remote_offset);
                Ok((is_lost, Frame::Put { key, offset, bytes, immediate, is_control }))
            });
            let (is_lost, frame) = match put {
                Ok(put) => put,
                Err(_) if taken > 0 => return Ok(taken),
                Err(error) => return Err(error),
            };
            // A put to a lost peer is accepted and never completes.
            if is_lost {
                continue;
            }
            let depth = self.depth;
            let [to_peer, _] = &self.endpoint(endpoint)?.connection.0;
            let mut frames = lock(&to_peer.frames);
            let is_data = |frame: &&Frame| matches!(frame, Frame::Put { is_control: false, .. });
            if !is_control && frames.iter().filter(is_data).count() >= depth {
                return Ok(taken);
            }
            frames.push_back(frame);
            drop(frames);
            self.done.push(id);
        }
        Ok(work.len())
    }

    fn note(&mut self, endpoint: EndpointId, bytes: &[u8]) -> Result<(), TransportError> {
        check_note(bytes)?;
        let [to_peer, _] = &self.endpoint(endpoint)?.connection.0;
        lock(&to_peer.frames).push_back(Frame::Note(bytes.to_vec()));
        Ok(())
    }

    fn poll(&mut self, _: Instant, events: &mut Vec<Event>) -> Result<(), TransportError> {
        events.extend(self.done.drain(..).map(|id| Event::Done { id }));
        for number in 0..self.endpoints.len() {
            let Some(mut endpoint) = self.endpoints[number].take() else { continue };
            let id = EndpointId(number as u32);
            // `closed` is read before the frames: if it is set, no frame can follow the taken ones.
            let closed = endpoint.connection.0[1].closed.load(Ordering::Acquire);
            let frames = std::mem::take(&mut *lock(&endpoint.connection.0[1].frames));
            let mut broken = None;
            for frame in frames.into_iter().filter(|_| !endpoint.is_lost) {
                match frame {
                    Frame::Note(bytes) => events.push(Event::Note { endpoint: id, bytes }),
                    Frame::Put { key, offset, bytes, immediate, .. } => {
                        if !self.write(&endpoint, key, offset, &bytes) {
                            broken.get_or_insert("it wrote to memory that is not shared with it");
                            break;
                        }
                        let bytes = bytes.len();
                        events.extend(immediate.map(|immediate| Event::Arrived {
                            endpoint: id,
                            immediate,
                            bytes,
                        }));
                    }
                }
            }
            let reason = broken.or(closed.then_some("it closed the connection"));
            if let Some(reason) = reason.filter(|_| !endpoint.is_lost) {
                endpoint.is_lost = true;
                let reason = reason.to_owned();
                events.push(Event::Lost { endpoint: id, reason });
            }
            self.endpoints[number] = Some(endpoint);
        }
        Ok(())
    }

    fn poll_timeout(&self) -> Option<Instant> {
        (!self.done.is_empty()).then_some(Instant::ZERO)
    }

    fn sleep(&mut self, longest: Duration) {
        // Nothing wakes a sleeping lane early, so the sleep is short.
        std::thread::sleep(longest.min(Duration::from_micros(50)));
    }
}
