//! The device: a port and its registered memory. It makes listeners, connections and lanes.

use std::sync::Arc;

use ccl_core::time::Instant;
use ccl_core::transport::handshake::Protocol;
use ccl_core::transport::{
    Address, Caps, Connecting, Device, Lane, Listener, MrKey, Registry, Secret, TransportError,
};
use ccl_memory::Region;
use ccl_socket::{LinkConnecting, LinkListener, Location, Setup, protocol};

use crate::Options;
use crate::endpoint::DEPTH_MAX;
use crate::gid;
use crate::lane::VerbsLane;
use crate::listing::bytes_per_s;
use crate::native::Memory;
use crate::port::Port;

/// Protocol of the side connection; the version changes whenever the format of its messages
/// changes.
const PROTOCOL: Protocol = protocol("ferroccl-verbs", 5);

/// Largest number of bytes of one put, even where a port takes more.
const MESSAGE_BYTES_MAX: u32 = 1 << 30;

/// Smallest memory worth a registration, in bytes. Registering that much (a system call, and the
/// pinning of pages) costs as much as copying it; for longer memory, registering costs less.
const REGISTER_BYTES_MIN: usize = 256 << 10;

/// Bandwidth assumed for a port that reports none, in bytes per second: one physical lane of SDR.
const SLOWEST_BYTES_PER_S: f64 = 250e6;

/// Returns the capabilities of a port.
pub(crate) fn caps(port: &Port, options: &Options) -> Caps {
    Caps {
        mapped: false,
        redirects: false,
        acknowledged: options.acknowledged,
        written_early: true,
        polls_by_system_call: false,
        register_bytes_min: REGISTER_BYTES_MIN,
        // Each queue pair keeps its own order, and a link has at least two.
        ordered: false,
        message_bytes_max: port.attr.max_msg_sz.clamp(1, MESSAGE_BYTES_MAX) as usize,
        depth_max: DEPTH_MAX,
        bandwidth_bytes_per_s: bytes_per_s(&port.attr).unwrap_or(SLOWEST_BYTES_PER_S),
        latency_ns: 2_000,
    }
}

/// A port of an RDMA device.
#[derive(Debug)]
pub struct VerbsDevice {
    caps: Caps,
    options: Options,
    port: Arc<Port>,
    registry: Arc<Registry<Arc<Memory>>>,
}

impl VerbsDevice {
    pub(crate) fn open(port: Port, mut options: Options) -> VerbsDevice {
        options.control_traffic_class = Some(port.control.traffic_class);
        let (caps, registry) = (caps(&port, &options), Arc::new(Registry::new()));
        VerbsDevice { caps, options, port: Arc::new(port), registry }
    }

    fn setup(&self, secret: &Secret) -> Setup {
        Setup { protocol: PROTOCOL, secret: secret.clone(), tls: None, congestion: None }
    }
}

impl Device for VerbsDevice {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn allocate(&self, bytes: usize) -> Result<(Region, MrKey), TransportError> {
        let region = Region::allocate(bytes)?;
        let key = self.register(&region)?;
        Ok((region, key))
    }

    fn register(&self, region: &Region) -> Result<MrKey, TransportError> {
        let memory = Memory::register(&self.port.domain, region, self.options.relaxed_ordering)?;
        Ok(self.registry.add(region.clone(), Arc::new(memory)))
    }

    fn deregister(&self, key: MrKey) -> Result<(), TransportError> {
        let memory = self.registry.find(key)?.with;
        self.registry.remove(key)?;
        // Lanes may still hold the memory, but its registration ends now.
        memory.end();
        Ok(())
    }

    fn listen(&self, secret: &Secret) -> Result<Box<dyn Listener>, TransportError> {
        let (device, interfaces) = (self.registry.device(), &self.options.interfaces);
        // The address is only a hint for peers. If the port has no usable address now, its last
        // known address is used: the port may have that address again when peers connect.
        let located = self.port.locate(&self.options.gid).unwrap_or_else(|_| self.port.located());
        let own = gid::ip(located.choice.row.gid);
        // Peers try the port's own address first, so that the side connection takes the path of the
        // data.
        let setup = self.setup(secret);
        Ok(Box::new(LinkListener::new(device, interfaces, &setup, Some(own))?))
    }

    fn connect(
        &self,
        address: &Address,
        secret: &Secret,
        hello: &[u8],
        deadline: Instant,
    ) -> Result<Box<dyn Connecting>, TransportError> {
        let (device, location) = (self.registry.device(), Location::decode(address)?);
        let setup = self.setup(secret);
        Ok(Box::new(LinkConnecting::new(device, location, &setup, hello, 1, deadline)?))
    }

    fn lane(&self) -> Result<Box<dyn Lane>, TransportError> {
        let (port, registry) = (Arc::clone(&self.port), Arc::clone(&self.registry));
        Ok(Box::new(VerbsLane::new(port, registry, self.options.clone(), self.caps.clone())?))
    }
}
