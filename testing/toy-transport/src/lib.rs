//! Toy transport: two queues between two threads of one process. It is the smallest complete
//! transport, and a starting point for new ones.

mod device;
mod lane;
mod queue;

use std::sync::Arc;

use ccl_core::registry::{NO_TUNABLES, Reach, TransportKind};
use ccl_core::transport::{Device, DeviceId, DeviceInfo, Fabric, Transport, TransportError};

pub use device::ToyDevice;

/// Kind of the transport, for a registry.
pub const KIND: TransportKind = TransportKind {
    name: "toy",
    id: 255,
    reach: Reach::Network,
    preference: 0,
    adapters: false,
    stripes: false,
    encrypts: false,
    more_flows: None,
    rank_environment: &[],
    tunables: NO_TUNABLES,
    names_devices: |_| false,
    make: |_, _| Ok(Box::new(ToyTransport)),
    fewer_locations: |_| None,
};

const DEVICE: &str = "toy0";

/// Transport by queues between threads.
#[derive(Clone, Copy, Debug, Default)]
pub struct ToyTransport;

impl Transport for ToyTransport {
    fn name(&self) -> &'static str {
        KIND.name
    }

    fn devices(&self) -> Vec<DeviceInfo> {
        vec![DeviceInfo {
            id: DeviceId(DEVICE.to_owned()),
            description: "queues between the threads of this process".to_owned(),
            caps: device::CAPS,
            numa_node: None,
            pci_path: None,
            fabric: Fabric::default(),
        }]
    }

    fn open(&self, id: &DeviceId) -> Result<Arc<dyn Device>, TransportError> {
        if id.0 != DEVICE {
            let advice = format!("the only device is {DEVICE:?}");
            return Err(TransportError::NoDevice { device: id.0.clone(), advice });
        }
        Ok(Arc::new(ToyDevice::new()))
    }
}
