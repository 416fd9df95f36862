//! The device: registers memory, and makes listeners, connections and lanes.

use std::sync::Arc;

use ccl_core::time::Instant;
use ccl_core::transport::{
    Address, Caps, Connecting, Device, Lane, Listener, MrKey, Registry, Secret, TransportError,
};
use ccl_memory::Region;

use crate::address::{self, Namespace};
use crate::endpoint::{ShmConnecting, ShmListener};
use crate::handshake::DEPTH;
use crate::lane::ShmLane;
use crate::memory::{self, File, Segment};

/// Returns the capabilities of the device.
pub(crate) fn caps() -> Caps {
    Caps {
        mapped: true,
        redirects: false,
        acknowledged: false,
        written_early: false,
        polls_by_system_call: false,
        register_bytes_min: 0,
        ordered: true,
        // The ring has 32 bits for the length of a message.
        message_bytes_max: 1 << 31,
        depth_max: DEPTH as usize,
        bandwidth_bytes_per_s: 1.0e10,
        latency_ns: 200,
    }
}

/// Device for the shared memory of this host.
#[derive(Debug)]
pub struct ShmDevice {
    caps: Caps,
    namespace: Namespace,
    registry: Arc<Registry<File>>,
}

impl ShmDevice {
    pub(crate) fn open() -> Result<ShmDevice, TransportError> {
        let namespace = Namespace::here()?;
        Ok(ShmDevice { caps: caps(), namespace, registry: Arc::new(Registry::new()) })
    }
}

impl Device for ShmDevice {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn allocate(&self, bytes: usize) -> Result<(Region, MrKey), TransportError> {
        let Segment { file, region } = memory::allocate(bytes)?;
        let file = Some(Arc::new(file));
        let key = self.registry.add(region.clone(), file);
        Ok((region, key))
    }

    fn register(&self, region: &Region) -> Result<MrKey, TransportError> {
        Ok(self.registry.add(region.clone(), None))
    }

    fn deregister(&self, key: MrKey) -> Result<(), TransportError> {
        self.registry.remove(key)
    }

    fn listen(&self, secret: &Secret) -> Result<Box<dyn Listener>, TransportError> {
        Ok(Box::new(ShmListener::new(self.registry.device(), self.namespace, secret)?))
    }

    fn connect(
        &self,
        address: &Address,
        secret: &Secret,
        hello: &[u8],
        deadline: Instant,
    ) -> Result<Box<dyn Connecting>, TransportError> {
        let name = address::decode(address, self.namespace)?;
        let device = self.registry.device();
        Ok(Box::new(ShmConnecting::new(device, name, secret, hello, deadline)?))
    }

    fn lane(&self) -> Result<Box<dyn Lane>, TransportError> {
        Ok(Box::new(ShmLane::new(Arc::clone(&self.registry), self.caps.clone())))
    }
}
