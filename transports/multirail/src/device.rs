//! The device: several devices that act as one.

use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};

use ccl_core::time::Instant;
use ccl_core::transport::{
    Address, Caps, Connecting, Device, Lane, Listener, MrKey, Registry, Secret, TransportError,
};
use ccl_memory::Region;

use crate::RAILS_MAX;
use crate::lane::RailsLane;
use crate::note::WINDOW;
use crate::rendezvous::{DeviceListeners, RailsConnecting, RailsListener};
use crate::shared::Shared;

/// A device made of several devices of this side, each of which reaches every peer; see the
/// documentation of the [crate].
#[derive(Debug)]
pub struct RailsDevice {
    with: Arc<Shared>,
}

impl RailsDevice {
    /// Makes one device of several, each with its name. The first rail uses the first device.
    ///
    /// # Errors
    ///
    /// When there is no device, or more than [`RAILS_MAX`]. Also when a device cannot be a rail,
    /// because it maps memory, or because its puts are done before the peer has them.
    pub fn new(devices: Vec<(String, Arc<dyn Device>)>) -> Result<RailsDevice, TransportError> {
        let (names, devices): (Vec<_>, Vec<Arc<dyn Device>>) = devices.into_iter().unzip();
        let count = devices.len();
        if !(1..=RAILS_MAX).contains(&count) {
            let (what, most) = ("devices for one multi-rail device", RAILS_MAX);
            return Err(TransportError::Count { what, count, most });
        }
        let caps: Vec<&Caps> = devices.iter().map(|device| device.caps()).collect();
        if caps.iter().any(|caps| caps.mapped || !caps.acknowledged) {
            return Err(TransportError::Unsupported {
                what: "be a rail",
                reason: "it maps memory, or its puts are done before the peer has them; \
                         FERROCCL_IB_RAILS=1 takes one device per rank",
            });
        }
        let least = |of: fn(&Caps) -> usize| caps.iter().map(|caps| of(caps)).min().unwrap_or(0);
        let depth: usize = caps.iter().map(|caps| caps.depth_max).sum();
        let caps = Caps {
            mapped: false,
            ordered: false,
            redirects: false,
            acknowledged: true,
            written_early: caps.iter().all(|caps| caps.written_early),
            polls_by_system_call: caps.iter().any(|caps| caps.polls_by_system_call),
            register_bytes_min: caps.iter().map(|caps| caps.register_bytes_min).max().unwrap_or(0),
            message_bytes_max: least(|caps| caps.message_bytes_max),
            // Unfinished puts of data fill at most three quarters of a rail's window. The rest of
            // the window is for credits and CTS.
            depth_max: depth.min(WINDOW - WINDOW / 4),
            bandwidth_bytes_per_s: caps.iter().map(|caps| caps.bandwidth_bytes_per_s).sum(),
            latency_ns: caps.iter().map(|caps| caps.latency_ns).max().unwrap_or(0),
        };
        let registry = Arc::new(Registry::new());
        let (loads, links) =
            (devices.iter().map(|_| Arc::default()).collect(), AtomicUsize::new(0));
        let with = Shared { devices, names, registry, loads, links, caps };
        Ok(RailsDevice { with: Arc::new(with) })
    }

    /// Registers memory with all devices that `keys` has no entry for. If a device returns an error
    /// that `may_lack` accepts, the result lacks the key of this device.
    fn register_with(
        &self,
        region: &Region,
        keys: Vec<Option<MrKey>>,
        may_lack: impl Fn(&TransportError) -> bool,
    ) -> Result<MrKey, TransportError> {
        let Shared { devices, registry, names, .. } = &*self.with;
        let mut keys = keys;
        for (device, name) in devices.iter().zip(names).skip(keys.len()) {
            let registered = device.register(region);
            keys.push(registered.as_ref().ok().copied());
            match registered {
                Ok(_) => {}
                Err(error) if may_lack(&error) => {
                    tracing::debug!(device = name, %error, "a device cannot register this memory");
                }
                Err(error) => {
                    give_back(devices, &keys);
                    return Err(error);
                }
            }
        }
        Ok(registry.add(region.clone(), keys.into()))
    }
}

fn give_back(devices: &[Arc<dyn Device>], keys: &[Option<MrKey>]) {
    for (device, key) in devices.iter().zip(keys) {
        // A key that is no longer known needs no deregistration.
        let _ = key.map(|key| device.deregister(key));
    }
}

impl Device for RailsDevice {
    fn caps(&self) -> &Caps {
        &self.with.caps
    }

    /// Allocates memory with the first device that can, and registers it with the others. Devices
    /// that fail are left out, because links can be made without them. A shortage of memory or of
    /// another resource is an error.
    fn allocate(&self, bytes: usize) -> Result<(Region, MrKey), TransportError> {
        let (mut keys, mut failed) = (Vec::new(), None);
        for device in &self.with.devices {
            match device.allocate(bytes) {
                Ok((region, key)) => {
                    keys.push(Some(key));
                    let may_lack = |error: &TransportError| !error.is_shortage();
                    let key = self.register_with(&region, keys, may_lack)?;
                    return Ok((region, key));
                }
                Err(error) if error.is_shortage() => return Err(error),
                Err(error) => {
                    keys.push(None);
                    failed = Some(error);
                }
            }
        }
        Err(failed.unwrap_or(TransportError::Internal { what: "rails without a device" }))
    }

    /// Registers memory with all devices, or with none. Memory that only some devices can reach
    /// would be unreachable after these devices have failed. If the registration fails,
    /// `MessageLinks` copies the bytes instead, and any device can carry the copy.
    fn register(&self, region: &Region) -> Result<MrKey, TransportError> {
        self.register_with(region, Vec::new(), |_| false)
    }

    fn deregister(&self, key: MrKey) -> Result<(), TransportError> {
        let keys = self.with.registry.find(key)?.with;
        self.with.registry.remove(key)?;
        give_back(&self.with.devices, &keys);
        Ok(())
    }

    fn listen(&self, secret: &Secret) -> Result<Box<dyn Listener>, TransportError> {
        let listening = self.with.devices.iter().map(|device| device.listen(secret));
        let device_listeners =
            Arc::new(Mutex::new(DeviceListeners::new(listening.collect::<Result<_, _>>()?)));
        Ok(Box::new(RailsListener::new(device_listeners, &self.with)))
    }

    fn connect(
        &self,
        address: &Address,
        secret: &Secret,
        hello: &[u8],
        deadline: Instant,
    ) -> Result<Box<dyn Connecting>, TransportError> {
        Ok(Box::new(RailsConnecting::new(&self.with, address, secret, hello, deadline)?))
    }

    fn lane(&self) -> Result<Box<dyn Lane>, TransportError> {
        Ok(Box::new(RailsLane::new(&self.with)?))
    }
}
