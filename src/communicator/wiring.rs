//! Wiring of the ranks: ranks of one host map each other's segments, which become links; ranks of
//! other hosts are reached by messages.

use std::sync::Arc;
use std::time::Duration;

use ccl_bootstrap::Secret;
use ccl_core::admission::{Directory, MessageLinks};
use ccl_core::config::Config;
use ccl_core::encoding::encode;
use ccl_core::topology::Hosts;
use ccl_core::transport::{
    self, Connected, Connecting, Device, EndpointId, Event, Lane, MrKey, RemoteKey, TransportError,
};
use ccl_core::types::Rank;
use ccl_memory::Region;
use serde::{Deserialize, Serialize};

use super::assumptions;
use super::devices::{Devices, silent_within};
use super::error::{Error, SetupError, SharedMemoryError};
use super::exchange::{Topic, exchange};
use super::segment::Segment;
use crate::bootstrap::{ControlPlane, random_bytes};
use crate::clock;
use crate::transports::Choice;

/// Pause between polls of connections in the making.
const POLL_PAUSE: Duration = Duration::from_micros(100);

/// The connections of a rank to the peers whose memory it maps.
#[derive(Debug)]
struct Local {
    device: Arc<dyn Device>,
    lane: Box<dyn Lane>,
    /// Endpoints by rank; none for this rank and for ranks on other hosts.
    endpoints: Vec<Option<EndpointId>>,
}

/// The connections of a rank to all others, and the means to share more memory later.
#[derive(Debug)]
pub(super) struct Wiring {
    local: Option<Local>,
    /// Links to the peers on other hosts, until the engine takes them over.
    pub(super) messages: Option<MessageLinks>,
    /// The transports that join the ranks, by name.
    pub(super) transports: &'static str,
    pub(super) hosts: Hosts,
    /// The ranks that share memory with this one, this rank among them, ascending.
    pub(super) locals: Vec<Rank>,
    pub(super) control: Arc<ControlPlane>,
    pub(super) timeout: Duration,
    /// Configuration, with defaults adjusted to the network.
    pub(super) config: Config,
    /// Note on the adjustments.
    pub(super) note: Option<String>,
    /// The reason for the transport between hosts, if `auto` chose it.
    pub(super) why: Option<String>,
    /// The RDMA devices that this rank takes, each described for people.
    pub(super) rdma: Vec<String>,
    /// The least budget that any rank has, as a multiple of one network device's budget; see
    /// [`Devices::budget_share`].
    pub(super) budget_share: f64,
}

/// Control plane, key and time limit with which this rank connects to its peers over a device.
struct Rendezvous<'a> {
    control: &'a ControlPlane,
    key: transport::Secret,
    timeout: Duration,
}

/// Report of a rank on memory that it has made, or failed to make.
#[derive(Debug, Serialize, Deserialize)]
struct Offered {
    /// Bytes that were asked for.
    bytes: usize,
    /// True if the memory was made, with a key for each peer on the host.
    is_made: bool,
    /// Keys to the memory by rank, as many as were made; none for this rank and for ranks on other
    /// hosts.
    keys: Vec<Option<RemoteKey>>,
}

impl Wiring {
    /// Connects the ranks of each host through shared memory and prepares the connections between
    /// hosts, over `devices`. `flows` is the note on an earlier adjustment of the configuration.
    /// All ranks call this function.
    pub(super) fn connect(
        control: Arc<ControlPlane>,
        devices: Devices,
        secret: &Secret,
        (config, flows): (&Config, Option<String>),
    ) -> Result<Wiring, Error> {
        let timeout = config.join_timeout;
        // This rank's random part of the key, and its round trip to its control-plane neighbours.
        let own = (random_bytes()?, control.round_trip());
        let all = exchange(&control, Topic::Nonces, &own, timeout)?;
        let key = transport::Secret(secret.derive(&encode(&all)));
        let round_trip = all.iter().map(|(_, round_trip)| *round_trip).max().unwrap_or_default();
        let rendezvous = Rendezvous { control: &control, key, timeout };
        let (rank, ranks) = (control.rank(), control.ranks());
        let Devices { hosts, shared, network, near, rdma, budget_share } = devices;
        let (config, slots) = assumptions::adjusted(config, &hosts, round_trip);
        let fewer = Segment::new(&hosts, rank, &config).on_network(budget_share).budget_note();
        let notes = Vec::from_iter(flows.into_iter().chain(slots).chain(fewer));
        let note = (!notes.is_empty()).then(|| notes.join("; "));
        let locals = Vec::from_iter(hosts.members(hosts.seat(rank).0));
        let local = match shared {
            None => None,
            Some(device) => {
                let peers: Vec<Rank> = locals.iter().copied().filter(|r| *r != rank).collect();
                let mut lane = device.lane()?;
                let mut endpoints = vec![None; ranks as usize];
                for (peer, connected) in rendezvous.connect(&*device, &peers)? {
                    endpoints[peer as usize] = Some(lane.attach(connected)?);
                }
                Some(Local { device, lane, endpoints })
            }
        };
        let choice = Choice {
            host: Choice::of(&config).host.filter(|_| local.is_some()),
            network: network.as_ref().map(|(kind, _)| *kind),
        };
        let messages = match network {
            None => None,
            Some((kind, device)) => {
                let peers: Vec<Rank> = (0..ranks).filter(|r| !locals.contains(r)).collect();
                let segment = Segment::new(&hosts, rank, &config).on_network(budget_share);
                let mut links =
                    rendezvous.message_links(device, &peers, &segment, silent_within(&config))?;
                // Transports that do not stripe have no queue pairs to spread messages over.
                if kind.stripes {
                    links.start_policy(config.policy(), near);
                }
                Some(links)
            }
        };
        Ok(Wiring {
            local,
            messages,
            transports: choice.name(),
            hosts,
            locals,
            control,
            timeout,
            config,
            note,
            rdma,
            budget_share,
            why: None,
        })
    }

    /// Returns the peers on this host whose connection has ended since the last call, and the
    /// reasons.
    pub(super) fn poll(&mut self) -> Result<Vec<(Rank, String)>, Error> {
        let Some(Local { lane, endpoints, .. }) = &mut self.local else { return Ok(Vec::new()) };
        let mut events = Vec::new();
        lane.poll(clock::now(), &mut events)?;
        let lost = events.into_iter().filter_map(|event| {
            let Event::Lost { endpoint, reason } = event else { return None };
            let peer = endpoints.iter().position(|known| *known == Some(endpoint))?;
            Some((peer as Rank, reason))
        });
        Ok(lost.collect())
    }

    /// Makes memory on every rank, which all other ranks of the same host map. `prepare` sees this
    /// rank's memory before any other rank can. Returns the memory by rank; none for ranks on other
    /// hosts.
    pub(super) fn share(
        &mut self,
        bytes: usize,
        prepare: impl FnOnce(&Region) -> Result<(), Error>,
    ) -> Result<Vec<Option<Region>>, Error> {
        // All ranks take part in both exchanges, so that all fail when one does.
        let (made, keys) = self.make(bytes, prepare);
        let offer = Offered { bytes, is_made: made.is_ok(), keys };
        let offers = exchange(&self.control, Topic::SharedMemory, &offer, self.timeout)?;
        let mapped = self.map(bytes, made, &offers);
        let done = mapped.is_ok();
        let done = exchange(&self.control, Topic::SharedMemoryDone, &done, self.timeout)?;
        let regions = mapped?;
        match (0..).zip(done).find(|(_, done)| !done) {
            None => Ok(regions),
            Some((peer, _)) => Err(SharedMemoryError::NotMapped { peer, bytes }.into()),
        }
    }

    /// Makes this rank's memory, and a key to it for each peer. Returns the keys that were made,
    /// even after a failure.
    fn make(
        &mut self,
        bytes: usize,
        prepare: impl FnOnce(&Region) -> Result<(), Error>,
    ) -> (Result<Region, Error>, Vec<Option<RemoteKey>>) {
        let Some(local) = &mut self.local else {
            let own = Region::allocate(bytes).map_err(|error| TransportError::from(error).into());
            return (own.and_then(|own| prepare(&own).map(|()| own)), Vec::new());
        };
        let (own, key) = match local.device.allocate(bytes) {
            Ok(made) => made,
            Err(error) => return (Err(error.into()), Vec::new()),
        };
        let mut keys = Vec::new();
        let shared = prepare(&own).and_then(|()| local.share(key, &mut keys));
        // Peers map this memory and send no puts to it. Once the keys are made, the memory needs no
        // registration, and it is freed when the last `Region` of it is dropped.
        let deregistered = local.device.deregister(key);
        (shared.and_then(|()| Ok(deregistered?)).map(|()| own), keys)
    }

    /// Maps the memory of all peers on this host, which must be as large as this rank's.
    fn map(
        &mut self,
        bytes: usize,
        made: Result<Region, Error>,
        offers: &[Offered],
    ) -> Result<Vec<Option<Region>>, Error> {
        let rank = self.control.rank();
        // This rank maps the memory of all peers before it returns an error: a peer's memory that
        // this rank never maps would stay allocated.
        let mut regions: Vec<Option<Result<Region, TransportError>>> = Vec::new();
        for (at, offer) in offers.iter().enumerate() {
            let key = offer.keys.get(rank as usize).and_then(Option::as_ref);
            let mapped = self.local.as_mut().zip(key).and_then(|(local, key)| {
                local.endpoints[at].map(|endpoint| local.lane.map(endpoint, key))
            });
            regions.push(mapped);
        }
        let own = made?;
        let is_local = |at: usize| self.local.as_ref().is_some_and(|l| l.endpoints[at].is_some());
        let mut all = Vec::new();
        for (at, (offer, mapped)) in offers.iter().zip(regions).enumerate() {
            let peer = at as Rank;
            all.push(match mapped {
                _ if peer == rank => Some(own.clone()),
                _ if !is_local(at) => None,
                Some(mapped) if offer.is_made && offer.bytes == bytes => Some(mapped?),
                _ if offer.is_made && offer.bytes != bytes => {
                    let theirs = offer.bytes;
                    return Err(SharedMemoryError::Sizes { rank, bytes, peer, theirs }.into());
                }
                _ => return Err(SharedMemoryError::NotMade { peer, bytes }.into()),
            });
        }
        Ok(all)
    }
}

impl Local {
    /// Makes a key to this rank's memory for each peer on its host, and appends the keys to `keys`
    /// by rank.
    fn share(&mut self, key: MrKey, keys: &mut Vec<Option<RemoteKey>>) -> Result<(), Error> {
        for to in &self.endpoints {
            keys.push(to.map(|to| self.lane.share(to, key)).transpose()?);
        }
        Ok(())
    }
}

impl Rendezvous<'_> {
    /// Connects this rank with these peers. All ranks call this method, for the same transport.
    fn connect(
        &self,
        device: &dyn Device,
        peers: &[Rank],
    ) -> Result<Vec<(Rank, Connected)>, Error> {
        let Rendezvous { control, key, timeout } = self;
        let mut listener = device.listen(key)?;
        let addresses = exchange(control, Topic::Addresses, &listener.address(), *timeout)?;
        let (rank, ranks) = (control.rank(), control.ranks());
        let now = clock::now;
        let deadline = now() + *timeout;
        let mut outgoing: Vec<(Rank, Box<dyn Connecting>)> = Vec::new();
        for peer in peers.iter().copied().filter(|peer| *peer < rank) {
            let address = &addresses[peer as usize];
            let connecting = device.connect(address, key, &rank.to_le_bytes(), deadline)?;
            outgoing.push((peer, connecting));
        }
        let mut met: Vec<(Rank, Connected)> = Vec::new();
        while met.len() < peers.len() {
            let before = met.len();
            if let Some(connected) = listener.poll(now())? {
                let peer = caller(&connected, rank, ranks)?;
                let expected = peers.contains(&peer) && met.iter().all(|(known, _)| *known != peer);
                met.extend(expected.then_some((peer, connected)));
            }
            let mut error = None;
            outgoing.retain_mut(|(peer, connecting)| match connecting.poll(now()) {
                Ok(None) => true,
                Ok(Some(connected)) => {
                    met.push((*peer, connected));
                    false
                }
                Err(failed) => {
                    error = Some((*peer, failed));
                    false
                }
            });
            if let Some((peer, failed)) = error {
                if failed.is_own_shortage() {
                    return Err(failed.into());
                }
                let reason = failed.to_string();
                let during = connecting_of(rank);
                let last_completed = None;
                return Err(Error::RankFailed { rank: peer, reason, last_completed, during });
            }
            if met.len() == before {
                let missing =
                    peers.iter().filter(|peer| met.iter().all(|(known, _)| known != *peer));
                await_more(control, rank, missing, now() > deadline, *timeout)?;
            }
        }
        Ok(met)
    }

    /// Makes message links to these peers; each link connects on first use. All ranks make this
    /// call.
    fn message_links(
        &self,
        device: Arc<dyn Device>,
        peers: &[Rank],
        segment: &Segment,
        within: Duration,
    ) -> Result<MessageLinks, Error> {
        let Rendezvous { control, key, timeout } = self;
        let listener = device.listen(key)?;
        let told = exchange(control, Topic::Addresses, &listener.address(), *timeout)?;
        let mut addresses = vec![None; control.ranks() as usize];
        for peer in peers {
            addresses[*peer as usize] = Some(told[*peer as usize].clone());
        }
        let lane = device.lane()?;
        let mut links = MessageLinks::new(device, lane, segment.message_config(), peers.len())?;
        let (own, secret) = (control.rank(), key.clone());
        links.connect_on_demand(listener, Directory { own, addresses, secret, within });
        Ok(links)
    }
}

/// Returns the rank that the hello of an incoming connection names. Fails unless that rank is
/// higher than this rank.
fn caller(connected: &Connected, rank: Rank, ranks: u32) -> Result<Rank, Error> {
    let bytes: Option<[u8; 4]> = connected.hello.as_slice().try_into().ok();
    match bytes.map(Rank::from_le_bytes) {
        Some(peer) if peer > rank && peer < ranks => Ok(peer),
        _ => Err(SetupError::Hello { rank }.into()),
    }
}

fn connecting_of(rank: Rank) -> String {
    format!("rank {rank} in connecting to its peers")
}

/// Pauses between two polls. Returns an error if a rank has failed or the time is up.
fn await_more<'a>(
    control: &ControlPlane,
    rank: Rank,
    missing: impl Iterator<Item = &'a Rank>,
    late: bool,
    timeout: Duration,
) -> Result<(), Error> {
    let during = connecting_of(rank);
    if let Some(failure) = control.failure() {
        let reason = failure.reason.to_string();
        let rank = failure.rank;
        return Err(Error::RankFailed { rank, reason, last_completed: None, during });
    }
    if late {
        let missing: Vec<String> = missing.map(|peer| format!("rank {peer}")).collect();
        let waiting = format!("a connection with {}", missing.join(", "));
        let verdict = "Check whether this rank can reach every rank that it waits for.".to_owned();
        let last_completed = None;
        return Err(Error::Deadline { during, stalled: timeout, waiting, verdict, last_completed });
    }
    std::thread::sleep(POLL_PAUSE);
    Ok(())
}
