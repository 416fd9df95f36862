//! Shared memory between the processes of one host.
//!
//! Memory is a sealed memfd, never a name in a file system, so a killed process leaves nothing
//! behind. Peers connect at an abstract Unix socket with a random name. Descriptors pass over the
//! socket only after the kernel has identified the peer and both sides have proved the secret. The
//! socket then carries descriptors of shared memory and notes ([`note`]), and hangs up when the
//! peer dies.
//!
//! A put copies straight into the peer's memory; its immediate goes through a ring of slots in
//! memory that the receiver allocated.
//!
//! # Fork
//!
//! Descriptors are close-on-exec and mappings are not inherited (`MADV_DONTFORK`): a forked child
//! cannot read or disturb what its parent shares. In the child, a drop of the parent's regions does
//! nothing, and an access to them ends the child with SIGSEGV. The layers above therefore return an
//! error in a forked child. A child that keeps the parent's sockets open does not hide the parent's
//! death: peers also watch the process itself.
//!
//! # Fences
//!
//! A mapping cannot be taken away from a peer. After a failure or [`detach`], drop memory that was
//! shared, and allocate new memory instead of reusing it.
//!
//! [`detach`]: ccl_core::transport::Lane::detach
//! [`note`]: ccl_core::transport::Lane::note

mod address;
mod available;
mod credentials;
mod device;
mod endpoint;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
mod handshake;
mod lane;
mod memory;
mod parking;
#[cfg(test)]
mod tests;
mod wire;

use std::sync::Arc;

use ccl_core::registry::{NO_TUNABLES, Reach, TransportKind};
use ccl_core::transport::{Device, DeviceId, DeviceInfo, Fabric, Transport, TransportError};
use rustix::io::Errno;

pub use device::ShmDevice;
pub use memory::named_memory;
pub use parking::parking;

/// Name of the only device.
pub const DEVICE: &str = "shm0";

/// Entry of shared memory in the registry of transports.
pub const KIND: TransportKind = TransportKind {
    name: "shm",
    id: 3,
    reach: Reach::Host,
    preference: 1,
    adapters: false,
    stripes: false,
    encrypts: false,
    more_flows: None,
    rank_environment: &[],
    tunables: NO_TUNABLES,
    names_devices: |_| false,
    make: |_, _| Ok(Box::new(ShmTransport::new())),
    fewer_locations: |_| None,
};

/// The transport of shared memory between the processes of one host.
#[derive(Clone, Copy, Debug, Default)]
pub struct ShmTransport;

impl ShmTransport {
    /// Creates the transport; costs nothing until a device is opened.
    #[must_use]
    pub const fn new() -> ShmTransport {
        ShmTransport
    }
}

impl Transport for ShmTransport {
    fn name(&self) -> &'static str {
        KIND.name
    }

    fn devices(&self) -> Vec<DeviceInfo> {
        vec![DeviceInfo {
            id: DeviceId(DEVICE.to_owned()),
            description: "memory shared between processes of this host (memfd)".to_owned(),
            caps: device::caps(),
            numa_node: None,
            pci_path: None,
            fabric: Fabric::default(),
        }]
    }

    fn open(&self, id: &DeviceId) -> Result<Arc<dyn Device>, TransportError> {
        if id.0 != DEVICE {
            let advice = format!("shared memory has only the device {DEVICE:?}");
            return Err(TransportError::NoDevice { device: id.0.clone(), advice });
        }
        Ok(Arc::new(ShmDevice::open()?))
    }
}

/// Returns an error of the operating system, with advice.
fn os(call: &'static str, error: Errno, advice: &'static str) -> TransportError {
    let code = error.raw_os_error();
    let full = std::io::Error::from_raw_os_error(code).to_string();
    // The standard library appends the error number, which the message prints elsewhere.
    let reason = full.split(" (os error").next().unwrap_or_default().to_owned();
    TransportError::Os { call, code, reason, advice }
}

/// Advice for calls that make descriptors.
const DESCRIPTORS: &str = "if the limit of open files is reached, raise it with `ulimit -n`";
