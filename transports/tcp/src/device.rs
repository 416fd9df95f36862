//! The device: registers memory, and makes listeners, connections and lanes.

use std::sync::Arc;

use ccl_core::time::Instant;
use ccl_core::transport::handshake::Protocol;
use ccl_core::transport::{
    Address, Caps, Connecting, Device, Lane, Listener, MrKey, Registry, Secret, TransportError,
};
use ccl_memory::Region;
use ccl_socket::{LinkConnecting, LinkListener, Location, Setup, Tls, protocol, socket};

use crate::Options;
use crate::lane::{DEPTH_MAX, MESSAGE_BYTES_MAX, TcpLane};
use crate::memory;
use crate::writers::Writers;

/// Protocol of a stripe (one of the connections that join two lanes). Its version changes whenever
/// the format of the sent bytes changes.
pub(crate) const PROTOCOL: Protocol = protocol("ferroccl-tcp", 5);

/// Largest number of connections per pair of ranks.
const SOCKETS_MAX: u32 = 64;

/// Size, in bytes, from which on the pages of a region are allocated only at first touch.
const RESERVED_BYTES: usize = 1 << 20;

/// Returns the capabilities of the device.
pub(crate) fn caps(options: &Options) -> Caps {
    Caps {
        mapped: false,
        redirects: true,
        acknowledged: false,
        written_early: false,
        polls_by_system_call: true,
        register_bytes_min: 0,
        // Each stripe keeps its own order.
        ordered: options.sockets <= 1,
        // A frame's header has 32 bits for the length.
        message_bytes_max: MESSAGE_BYTES_MAX,
        depth_max: DEPTH_MAX,
        bandwidth_bytes_per_s: 2.0e9,
        latency_ns: 10_000,
    }
}

/// TCP over the interfaces of this host.
#[derive(Debug)]
pub struct TcpDevice {
    caps: Caps,
    options: Options,
    registry: Arc<Registry<()>>,
    writers: Writers,
    /// State that all TLS sessions share; none if nothing is encrypted.
    tls: Option<Tls>,
    congestion: Option<Arc<str>>,
}

impl TcpDevice {
    pub(crate) fn open(options: Options) -> Result<TcpDevice, TransportError> {
        if !(1..=SOCKETS_MAX).contains(&options.sockets) {
            let what = "sockets per pair of ranks (FERROCCL_SOCKETS)";
            let (count, most) = (options.sockets as usize, SOCKETS_MAX as usize);
            return Err(TransportError::Count { what, count, most });
        }
        let (registry, writers) = (Arc::new(Registry::new()), Writers::default());
        let tls = if options.tls { Some(Tls::new()?) } else { None };
        let congestion = socket::congestion(&options.congestion)?;
        Ok(TcpDevice { caps: caps(&options), options, registry, writers, tls, congestion })
    }

    fn setup(&self, secret: &Secret) -> Setup {
        let (tls, congestion) = (self.tls.clone(), self.congestion.clone());
        Setup { protocol: PROTOCOL, secret: secret.clone(), tls, congestion }
    }
}

impl Device for TcpDevice {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn allocate(&self, bytes: usize) -> Result<(Region, MrKey), TransportError> {
        let region = match bytes {
            RESERVED_BYTES.. => memory::reserve(bytes)?,
            _ => Region::allocate(bytes)?,
        };
        let key = self.registry.add(region.clone(), ());
        Ok((region, key))
    }

    fn register(&self, region: &Region) -> Result<MrKey, TransportError> {
        Ok(self.registry.add(region.clone(), ()))
    }

    fn deregister(&self, key: MrKey) -> Result<(), TransportError> {
        self.registry.remove(key)?;
        // Wait for lanes that write now; lanes that write later find the memory withdrawn.
        self.writers.wait()
    }

    fn listen(&self, secret: &Secret) -> Result<Box<dyn Listener>, TransportError> {
        let device = self.registry.device();
        let (interfaces, setup) = (&self.options.interfaces, self.setup(secret));
        Ok(Box::new(LinkListener::new(device, interfaces, &setup, None)?))
    }

    fn connect(
        &self,
        address: &Address,
        secret: &Secret,
        hello: &[u8],
        deadline: Instant,
    ) -> Result<Box<dyn Connecting>, TransportError> {
        let (device, location) = (self.registry.device(), Location::decode(address)?);
        let (setup, stripes) = (self.setup(secret), self.options.sockets as u16);
        Ok(Box::new(LinkConnecting::new(device, location, &setup, hello, stripes, deadline)?))
    }

    fn lane(&self) -> Result<Box<dyn Lane>, TransportError> {
        let (registry, writer) = (Arc::clone(&self.registry), self.writers.join());
        let (encrypts, caps) = (self.tls.is_some(), self.caps.clone());
        Ok(Box::new(TcpLane::new(registry, writer, &self.options, encrypts, caps)?))
    }
}
