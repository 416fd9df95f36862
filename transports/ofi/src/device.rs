//! The device: a domain of a provider and its registered memory. It makes listeners and lanes.

use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};
use std::time::Duration;

use ccl_core::time::Instant;
use ccl_core::transport::handshake::Protocol;
use ccl_core::transport::{
    Address, Caps, Connecting, Device, Lane, Listener, MrKey, Registry, Secret, TransportError,
};
use ccl_memory::Region;
use ccl_socket::{BreakLimits, LinkConnecting, LinkListener, Location, Setup, protocol};
use libfabric_sys::FI_RMA;

use crate::lane::OfiLane;
use crate::memory::Registered;
use crate::messages::DEPTH_MAX;
use crate::native::{Domain, Endpoint, Info, transport_error};
use crate::peer::{Mode, PeerTimeouts};
use crate::posted::{Posted, lock};
use crate::provider::{
    DATA_BYTES, LOCKED_EFFECT, is_limited, needs_same_version, polls_sockets, shares_locks,
};
use crate::tag::Layout;

/// Protocol between the two sides; the version changes with every change of their messages.
const PROTOCOL: Protocol = protocol("ferroccl-ofi", 9);

/// Largest number of bytes of one put, even where a provider takes more.
const MESSAGE_BYTES_MAX: usize = 1 << 30;

/// Smallest number of bytes that is worth a registration, as over verbs.
const REGISTER_BYTES_MIN: usize = 256 << 10;
/// Smallest number of bytes that is worth a registration over a provider that uses the system's
/// sockets. Such a provider sends from any memory, so a registration is only a few entries in
/// tables of this process.
const LIST_BYTES_MIN: usize = 64 << 10;

/// Assumed bandwidth of a device that reports no link speed, in bytes per second.
const USUAL_BYTES_PER_S: f64 = 1e9;

/// Options of the transport.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Interfaces for the socket connection that accompanies libfabric's endpoints, in the syntax
    /// of the TCP transport's option. Peers are offered the addresses of these interfaces.
    pub interfaces: String,
    /// True if puts are writes over every provider that offers writes. Otherwise, puts are writes
    /// only over EFA adapters that can write, and messages elsewhere.
    pub always_writes: bool,
    /// True to ask for endpoints that can move the memory of accelerators (`FI_HMEM`), where the
    /// provider has them. The provider may then demand that memory is registered (`FI_MR_HMEM`),
    /// and `shm` injects no messages. Only tests set this option: all regions are host memory.
    pub device_memory: bool,
    /// Longest time for which a peer may be unreachable after a break of the socket connection. A
    /// peer that is unreachable for longer is lost. Values below 3 s count as 3 s.
    pub link_within: Duration,
    /// Longest time for which a peer that can be reached may stay silent after a break of the
    /// socket connection. A peer that is silent for longer is lost. Values below 3 s count as 3 s.
    pub silent_within: Duration,
    /// Longest wait for the addresses of a peer's endpoints.
    pub join_within: Duration,
    /// True if writes carry only four bytes of remote CQ data, as over EFA, even where the provider
    /// has eight. Only tests set this option.
    pub short_data: bool,
    /// True if a put is done only when the peer has it
    /// ([`Caps::acknowledged`](ccl_core::transport::Caps::acknowledged)). Messages of providers
    /// other than EFA's are never acknowledged: such a message can be done before it has reached
    /// the peer's provider.
    pub acknowledged: bool,
    /// True if the provider is to wake a sleeping lane, where the provider can do so; each
    /// completion then takes more time. A lane that is not woken polls while it sleeps: every 50 µs
    /// at first, and every millisecond in a long wait.
    pub woken: bool,
    /// Value of libfabric's variable `FI_OFI_RXM_EAGER_LIMIT`, which must be equal on all peers.
    /// libfabric reads the process's environment: if it finds a smaller value or none there, long
    /// messages can crash a rank.
    pub eager_limit: String,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            interfaces: String::new(),
            always_writes: false,
            device_memory: false,
            link_within: Duration::from_secs(3),
            silent_within: Duration::from_secs(3),
            join_within: Duration::from_secs(20),
            short_data: false,
            acknowledged: false,
            woken: true,
            eager_limit: String::new(),
        }
    }
}

/// Returns whether the options and the provider's offer (`info`) allow puts to be writes. Even
/// then, the adapter may be unable to write; only an open endpoint shows whether it can.
pub(crate) fn writes(info: &Info, options: &Options) -> bool {
    let can_write = info.has(FI_RMA) && info.domain().cq_data_size >= DATA_BYTES;
    can_write && (options.always_writes || info.is_efa())
}

/// Returns the capabilities of a device, from what its provider offers (`info`).
pub(crate) fn caps(info: &Info, options: &Options, writes: bool) -> Caps {
    let layout = layout(info, options);
    let most = if writes { layout.bytes_max() } else { MESSAGE_BYTES_MAX };
    let over_sockets = polls_sockets(&info.provider());
    Caps {
        mapped: false,
        ordered: false,
        redirects: false,
        acknowledged: options.acknowledged && (writes || info.is_efa()),
        written_early: writes,
        polls_by_system_call: over_sockets,
        register_bytes_min: if over_sockets { LIST_BYTES_MIN } else { REGISTER_BYTES_MIN },
        message_bytes_max: info.endpoint().max_msg_size.min(most).clamp(1, MESSAGE_BYTES_MAX),
        depth_max: DEPTH_MAX,
        bandwidth_bytes_per_s: info.bytes_per_s().unwrap_or(USUAL_BYTES_PER_S),
        latency_ns: 5_000,
    }
}

/// Returns the layout of the remote CQ data that writes carry.
fn layout(info: &Info, options: &Options) -> Layout {
    Layout::new(if options.short_data { 4 } else { info.domain().cq_data_size })
}

/// A domain of a provider.
#[derive(Debug)]
pub struct OfiDevice {
    caps: Caps,
    options: Options,
    domain: Arc<Domain>,
    registry: Arc<Registry<Arc<Registered>>>,
    /// Lock that lanes hold for reading while they copy received bytes. Deregistration takes it for
    /// writing.
    fence: Arc<RwLock<()>>,
    /// True if puts are writes.
    writes: bool,
    lanes: Mutex<Vec<Weak<Mutex<Posted>>>>,
}

impl OfiDevice {
    pub(crate) fn open(info: Info, options: Options) -> Result<OfiDevice, TransportError> {
        let domain = Domain::open(info, options.woken).map_err(transport_error)?;
        let (provider, (major, _)) = (domain.info().provider(), domain.info().version());
        if shares_locks(&provider, major) {
            tracing::warn!("libfabric's provider {provider}: {LOCKED_EFFECT}");
        }
        let mut writes = writes(domain.info(), &options);
        if writes && !options.always_writes {
            writes = Endpoint::open(&domain).map_err(transport_error)?.writes();
        }
        let caps = caps(domain.info(), &options, writes);
        let registry = Arc::new(Registry::new());
        Ok(OfiDevice {
            caps,
            options,
            domain,
            registry,
            fence: Arc::default(),
            writes,
            lanes: Mutex::default(),
        })
    }

    fn setup(secret: &Secret) -> Setup {
        Setup { protocol: PROTOCOL, secret: secret.clone(), tls: None, congestion: None }
    }
}

impl Device for OfiDevice {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn allocate(&self, bytes: usize) -> Result<(Region, MrKey), TransportError> {
        let region = Region::allocate(bytes)?;
        let key = self.register(&region)?;
        Ok((region, key))
    }

    fn register(&self, region: &Region) -> Result<MrKey, TransportError> {
        Ok(self.registry.add(region.clone(), Registered::new(&self.domain, region)?))
    }

    fn deregister(&self, key: MrKey) -> Result<(), TransportError> {
        let memory = self.registry.find(key)?.with;
        self.registry.remove(key)?;
        memory.end();
        for posted in self.lanes.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            posted.upgrade().iter().for_each(|posted| lock(posted).withdraw(&memory));
        }
        memory.end_local();
        // Lanes may still know the memory; the provider does not. The lock waits for lanes that
        // copy.
        drop(self.fence.write());
        Ok(())
    }

    fn listen(&self, secret: &Secret) -> Result<Box<dyn Listener>, TransportError> {
        let (device, setup) = (self.registry.device(), OfiDevice::setup(secret));
        Ok(Box::new(LinkListener::new(device, &self.options.interfaces, &setup, None)?))
    }

    fn connect(
        &self,
        address: &Address,
        secret: &Secret,
        hello: &[u8],
        deadline: Instant,
    ) -> Result<Box<dyn Connecting>, TransportError> {
        let (device, location) = (self.registry.device(), Location::decode(address)?);
        let setup = OfiDevice::setup(secret);
        Ok(Box::new(LinkConnecting::new(device, location, &setup, hello, 1, deadline)?))
    }

    fn lane(&self) -> Result<Box<dyn Lane>, TransportError> {
        let (registry, fence) = (Arc::clone(&self.registry), Arc::clone(&self.fence));
        let Options { link_within, silent_within, join_within, .. } = self.options;
        let broken = BreakLimits { unreachable: link_within, silent: silent_within };
        let patience = PeerTimeouts { broken, joined: join_within };
        let (info, options) = (self.domain.info(), &self.options);
        let (caps, layout) = (self.caps.clone(), layout(info, options));
        let (provider, version) = (info.provider(), info.version());
        let eager_limit = is_limited(&provider, version.0).then(|| options.eager_limit.clone());
        let version = needs_same_version(&provider).then_some(version);
        let mode = Mode { provider, version, writes: self.writes, eager_limit };
        let posted = Posted::open(&self.domain, self.writes).map_err(transport_error)?;
        let posted = Arc::new(Mutex::new(posted));
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        lanes.retain(|lane| lane.strong_count() > 0);
        lanes.push(Arc::downgrade(&posted));
        drop(lanes);
        let how = (mode, layout);
        Ok(Box::new(OfiLane::new((&self.domain, posted), registry, fence, caps, how, patience)?))
    }
}
