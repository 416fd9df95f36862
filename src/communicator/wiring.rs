//! Joins the ranks of a host: segments are made, shared, mapped, and become links.

use std::sync::Arc;
use std::time::Duration;

use ccl_core::bootstrap::Secret;
use ccl_core::config::Config;
use ccl_core::transport::{
    self, Address, Connected, Connecting, Device, EndpointId, Lane, MrKey, RemoteKey,
};
use ccl_core::types::Rank;
use ccl_kernels_cpu::mapped::{Duplex, MappedLinks};
use ccl_memory::Region;
use ccl_memory::doorbell::{Doorbell, Parking};
use ccl_memory::slots::{Receiver, Sender};

use super::call::usage;
use super::engine::Engine;
use super::error::Error;
use super::exchange::{Topic, exchange};
use super::segment::Segment;
use super::wait::Manners;
use crate::bootstrap::{ControlPlane, random_bytes};

/// How long to pause between looks at connections in the making.
const POLL_PAUSE: Duration = Duration::from_micros(100);

/// The connections of a rank to all others, and what it takes to share more memory later.
#[derive(Debug)]
pub(super) struct Wiring {
    pub(super) device: Arc<dyn Device>,
    pub(super) lane: Box<dyn Lane>,
    /// By rank; none for this rank.
    pub(super) endpoints: Vec<Option<EndpointId>>,
    pub(super) control: Arc<ControlPlane>,
    pub(super) timeout: Duration,
}

impl Wiring {
    /// Connects every pair of ranks. All ranks call it.
    pub(super) fn connect(
        control: Arc<ControlPlane>,
        device: Arc<dyn Device>,
        secret: &Secret,
        config: &Config,
    ) -> Result<Wiring, Error> {
        let timeout = config.join_timeout;
        let nonces = exchange(&control, Topic::Nonces, &random_bytes()?, timeout)?.concat();
        let key = transport::Secret(secret.derive(&nonces));
        let mut listener = device.listen(&key)?;
        let addresses = exchange(&control, Topic::Addresses, &listener.address().0, timeout)?;
        let (rank, ranks) = (control.rank(), control.ranks());
        let now = ccl_transport_shm::now;
        let deadline = now() + timeout;
        let mut outgoing: Vec<(Rank, Box<dyn Connecting>)> = Vec::new();
        for (peer, address) in addresses.into_iter().enumerate().take(rank as usize) {
            let hello = rank.to_le_bytes();
            let connecting = device.connect(&Address(address), &key, &hello, deadline)?;
            outgoing.push((peer as Rank, connecting));
        }
        let mut lane = device.lane()?;
        let mut endpoints = vec![None; ranks as usize];
        let mut missing = ranks - 1;
        while missing > 0 {
            let mut arrived: Vec<(Rank, Connected)> = Vec::new();
            if let Some(connected) = listener.poll(now())? {
                arrived.push((caller(&connected, rank, ranks)?, connected));
            }
            let mut error = None;
            outgoing.retain_mut(|(peer, connecting)| match connecting.poll(now()) {
                Ok(None) => true,
                Ok(Some(connected)) => {
                    arrived.push((*peer, connected));
                    false
                }
                Err(failed) => {
                    error = Some((*peer, failed.to_string()));
                    false
                }
            });
            if let Some((peer, reason)) = error {
                return Err(Error::RankFailed { rank: peer, reason, during: connecting_of(rank) });
            }
            let idle = arrived.is_empty();
            for (peer, connected) in arrived {
                let slot = endpoints.get_mut(peer as usize);
                if let Some(slot @ None) = slot {
                    *slot = Some(lane.attach(connected)?);
                    missing -= 1;
                }
            }
            if idle {
                await_more(&control, rank, &endpoints, now() > deadline, timeout)?;
            }
        }
        Ok(Wiring { device, lane, endpoints, control, timeout })
    }

    /// Makes memory on every rank that all others map. `prepare` sees this rank's own before any
    /// other rank can. Returns all ranks' memory in order of rank.
    pub(super) fn share(
        &mut self,
        bytes: usize,
        prepare: impl FnOnce(&Region) -> Result<(), Error>,
    ) -> Result<Vec<Region>, Error> {
        // Everybody takes part in both exchanges, so that what one rank cannot do fails all alike.
        let made = self.make(bytes, prepare);
        let blob = made.as_ref().map_or(Vec::new(), |(_, keys)| encode(keys));
        let keys = exchange(&self.control, Topic::SharedMemory, &blob, self.timeout)?;
        let mapped = made.and_then(|(own, _)| self.map(bytes, own, &keys));
        let done = [u8::from(mapped.is_ok())];
        let done = exchange(&self.control, Topic::SharedMemoryDone, &done, self.timeout)?;
        let regions = mapped?;
        match done.iter().position(|done| done != &[1]) {
            None => Ok(regions),
            Some(peer) => Err(usage(format!(
                "rank {peer} could not make {bytes} bytes of shared memory or map those of its \
                 peers; its own error says why"
            ))),
        }
    }

    /// Makes this rank's memory, and a key to it for each peer.
    fn make(
        &mut self,
        bytes: usize,
        prepare: impl FnOnce(&Region) -> Result<(), Error>,
    ) -> Result<(Region, Vec<Vec<u8>>), Error> {
        let (own, key) = self.device.allocate(bytes)?;
        let keys = prepare(&own).and_then(|()| self.offer(bytes, key));
        // It is mapped, never put to: once offered, it needs no registration and ends with its
        // last region.
        self.device.deregister(key)?;
        Ok((own, keys?))
    }

    /// The size of this rank's memory, and a key to it for each peer.
    fn offer(&mut self, bytes: usize, key: MrKey) -> Result<Vec<Vec<u8>>, Error> {
        let mut keys = vec![(bytes as u64).to_le_bytes().to_vec()];
        for endpoint in &self.endpoints {
            let shared = endpoint.map(|endpoint| self.lane.share(endpoint, key));
            keys.push(shared.transpose()?.map_or(Vec::new(), |key| key.0));
        }
        Ok(keys)
    }

    /// Maps the memory of all peers, which must be as large as this rank's.
    fn map(&mut self, bytes: usize, own: Region, keys: &[Vec<u8>]) -> Result<Vec<Region>, Error> {
        let rank = self.control.rank();
        let mut regions = Vec::new();
        for (peer, blob) in keys.iter().enumerate() {
            let Some(endpoint) = self.endpoints[peer] else {
                regions.push(own.clone());
                continue;
            };
            let failed =
                || usage(format!("rank {peer} could not make {bytes} bytes of shared memory"));
            let theirs = decode(blob, 0).ok_or_else(failed)?;
            if theirs != (bytes as u64).to_le_bytes() {
                let theirs = theirs.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
                return Err(usage(format!(
                    "rank {rank} asks for {bytes} bytes on each rank, but rank {peer} for {theirs}"
                )));
            }
            let key = decode(blob, rank as usize + 1).ok_or_else(failed)?;
            regions.push(self.lane.map(endpoint, &RemoteKey(key))?);
        }
        Ok(regions)
    }

    /// Makes the engine: links over shared segments.
    pub(super) fn engine(
        mut self,
        config: Config,
        parking: Parking,
        local_ranks: usize,
    ) -> Result<Engine, Error> {
        let (rank, ranks) = (self.control.rank(), self.control.ranks());
        let segment = Segment::new(ranks, &config);
        let mut receivers: Vec<Option<Receiver>> = Vec::new();
        let regions = self.share(segment.bytes(), |own| {
            for (peer, channel) in links(ranks, segment.channels) {
                receivers.push(match peer == rank {
                    true => None,
                    false => {
                        let slots = segment.link(own, rank, peer, channel).map_err(memory)?;
                        Some(Receiver::new(&slots, segment.shape).map_err(memory)?)
                    }
                });
            }
            Ok(())
        })?;
        let mut duplexes = Vec::new();
        for ((peer, channel), receiver) in links(ranks, segment.channels).zip(receivers) {
            duplexes.push(match receiver {
                None => None,
                Some(receiver) => {
                    let theirs = &regions[peer as usize];
                    let slots = segment.link(theirs, peer, rank, channel).map_err(memory)?;
                    let sender = Sender::new(&slots, segment.shape).map_err(memory)?;
                    Some(Duplex { sender, receiver })
                }
            });
        }
        let mut doorbells = Vec::new();
        let mut records = Vec::new();
        for region in &regions {
            doorbells.push(Some(Doorbell::new(region, parking).map_err(memory)?));
            records.push(Some(segment.record(region).map_err(memory)?));
        }
        let own_doorbell = doorbells[rank as usize].take();
        let own_record = records[rank as usize].take();
        let manners = Manners::new(&config, local_ranks, own_doorbell);
        let links = MappedLinks::new(segment.channels, duplexes, doorbells);
        let control = Arc::clone(&self.control);
        exchange(&control, Topic::Ready, &[], self.timeout)?;
        let mut engine = Engine::new(control, config, segment, links, manners);
        engine.own_record = own_record;
        engine.peer_records = records;
        engine.wiring = Some(self);
        Ok(engine)
    }
}

fn links(ranks: u32, channels: u32) -> impl Iterator<Item = (Rank, u32)> {
    (0..ranks).flat_map(move |peer| (0..channels).map(move |channel| (peer, channel)))
}

fn memory(error: ccl_memory::RegionError) -> Error {
    usage(format!("the shared segment is too small: {error}"))
}

/// The rank that a connection says it comes from: one that connects to us.
fn caller(connected: &Connected, rank: Rank, ranks: u32) -> Result<Rank, Error> {
    let bytes: Option<[u8; 4]> = connected.hello.as_slice().try_into().ok();
    match bytes.map(Rank::from_le_bytes) {
        Some(peer) if peer > rank && peer < ranks => Ok(peer),
        _ => Err(usage(format!("a peer connected to rank {rank} with a hello of no rank"))),
    }
}

fn connecting_of(rank: Rank) -> String {
    format!("rank {rank} in connecting to its peers")
}

/// Pauses, unless somebody is known to be dead or the time is up.
fn await_more(
    control: &ControlPlane,
    rank: Rank,
    endpoints: &[Option<EndpointId>],
    late: bool,
    timeout: Duration,
) -> Result<(), Error> {
    let during = connecting_of(rank);
    if let Some(failure) = control.failure() {
        let reason = failure.reason.to_string();
        return Err(Error::RankFailed { rank: failure.rank, reason, during });
    }
    if late {
        let missing: Vec<String> = endpoints
            .iter()
            .enumerate()
            .filter(|(peer, endpoint)| endpoint.is_none() && *peer != rank as usize)
            .map(|(peer, _)| format!("rank {peer}"))
            .collect();
        let waiting = format!("a connection with {}", missing.join(", "));
        return Err(Error::Deadline { during, stalled: timeout, waiting });
    }
    std::thread::sleep(POLL_PAUSE);
    Ok(())
}

/// Keys for every rank, each with its length before it.
fn encode(keys: &[Vec<u8>]) -> Vec<u8> {
    let mut blob = Vec::new();
    for key in keys {
        blob.extend((key.len() as u32).to_le_bytes());
        blob.extend(key);
    }
    blob
}

/// The `index`th key.
fn decode(mut blob: &[u8], index: usize) -> Option<Vec<u8>> {
    for at in 0..=index {
        let (length, rest) = blob.split_first_chunk::<4>()?;
        let (key, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        if at == index {
            return Some(key.to_vec()).filter(|key| !key.is_empty());
        }
        blob = rest;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_survive_the_exchange() {
        let blob = encode(&[vec![1, 2, 3], Vec::new(), vec![9]]);
        assert_eq!(decode(&blob, 0), Some(vec![1, 2, 3]));
        assert_eq!(decode(&blob, 1), None, "a rank's own");
        assert_eq!(decode(&blob, 2), Some(vec![9]));
        assert_eq!(decode(&blob, 3), None);
        assert_eq!(decode(&blob[..6], 0), None, "cut short");
    }
}
