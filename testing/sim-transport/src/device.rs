//! Transport and device of one rank.

use std::sync::Arc;

use ccl_core::time::Instant;
use ccl_core::transport::{
    Address, Caps, Connecting, Device, DeviceId, DeviceInfo, Fabric, Lane, Listener, MrKey, Secret,
    Transport, TransportError,
};
use ccl_memory::Region;

use crate::conditions::Conditions;
use crate::connect;
use crate::lane::SimLane;
use crate::state::Memory;
use crate::world::World;

impl World {
    /// Returns a rank's transport, which has one device.
    #[must_use]
    pub fn transport(&self, rank: u32) -> SimTransport {
        SimTransport::new(self.clone(), rank)
    }

    /// Returns a rank's device.
    #[must_use]
    pub fn device(&self, rank: u32) -> Arc<dyn Device> {
        Arc::new(SimDevice::new(self.clone(), rank))
    }
}

/// Transport `sim` of one rank.
#[derive(Clone, Debug)]
pub struct SimTransport {
    world: World,
    rank: u32,
}

impl SimTransport {
    pub(crate) fn new(world: World, rank: u32) -> SimTransport {
        SimTransport { world, rank }
    }

    fn id(&self) -> DeviceId {
        DeviceId(format!("sim{}", self.rank))
    }
}

fn caps(conditions: &Conditions) -> Caps {
    Caps {
        mapped: false,
        redirects: conditions.redirects,
        acknowledged: true,
        written_early: !conditions.redirects,
        polls_by_system_call: false,
        register_bytes_min: 0,
        ordered: conditions.ordered,
        message_bytes_max: conditions.message_bytes_max,
        depth_max: conditions.depth_max,
        bandwidth_bytes_per_s: conditions.bandwidth_bytes_per_s,
        latency_ns: conditions.latency.as_nanos() as u64,
    }
}

impl Transport for SimTransport {
    fn name(&self) -> &'static str {
        "sim"
    }

    fn devices(&self) -> Vec<DeviceInfo> {
        let caps = caps(&self.world.conditions());
        let description = format!("device of rank {} on a simulated network", self.rank);
        vec![DeviceInfo {
            id: self.id(),
            description,
            caps,
            numa_node: None,
            pci_path: None,
            fabric: Fabric::default(),
        }]
    }

    fn open(&self, id: &DeviceId) -> Result<Arc<dyn Device>, TransportError> {
        if *id == self.id() {
            return Ok(self.world.device(self.rank));
        }
        let advice = format!("the only device of rank {} is {:?}", self.rank, self.id().0);
        Err(TransportError::NoDevice { device: id.0.clone(), advice })
    }
}

/// Device of one rank.
#[derive(Debug)]
pub(crate) struct SimDevice {
    world: World,
    rank: u32,
    caps: Caps,
}

impl SimDevice {
    pub(crate) fn new(world: World, rank: u32) -> SimDevice {
        let caps = caps(&world.conditions());
        SimDevice { world, rank, caps }
    }
}

impl Device for SimDevice {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn allocate(&self, bytes: usize) -> Result<(Region, MrKey), TransportError> {
        let region = Region::private(bytes);
        let key = self.register(&region)?;
        Ok((region, key))
    }

    fn register(&self, region: &Region) -> Result<MrKey, TransportError> {
        let mut state = self.world.state();
        let key = state.fresh();
        state.memory.insert(key, Memory { rank: self.rank, region: region.clone() });
        Ok(MrKey(key))
    }

    fn deregister(&self, key: MrKey) -> Result<(), TransportError> {
        let mut state = self.world.state();
        if state.memory.get(&key.0).is_some_and(|memory| memory.rank == self.rank) {
            state.memory.remove(&key.0);
            return Ok(());
        }
        Err(TransportError::UnknownMemory(key))
    }

    fn listen(&self, secret: &Secret) -> Result<Box<dyn Listener>, TransportError> {
        connect::listen(&self.world, self.rank, secret)
    }

    fn connect(
        &self,
        address: &Address,
        secret: &Secret,
        hello: &[u8],
        deadline: Instant,
    ) -> Result<Box<dyn Connecting>, TransportError> {
        connect::connect(&self.world, self.rank, address, secret, hello, deadline)
    }

    fn lane(&self) -> Result<Box<dyn Lane>, TransportError> {
        Ok(Box::new(SimLane::new(&self.world, self.rank)))
    }
}
