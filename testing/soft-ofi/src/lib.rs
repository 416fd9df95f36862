//! Software providers behind the functions of libfabric, within one process, with faults on demand.
//! They do things that real providers do seldom or never: packets overtake each other, requests
//! complete late, queues stay full for seconds, and messages are lost silently.
//!
//! [`functions`] returns a function table like that of libfabric. The table's `fi_getinfo` lists a
//! [`SoftProvider`] until the provider is dropped. Requests travel when a completion queue of the
//! provider is read, or, if [`Limits::is_automatic`], by themselves. Random draws from a seed
//! choose the request that makes progress, and its packet. The key of a write is checked again for
//! each packet, as on a device. No order is kept, not even between the packets of one write.

mod calls;
mod network;
mod objects;
mod offers;
mod travel;

use std::time::Duration;

use libc::c_int;
use libfabric_sys::{FI_MR_ALLOCATED, FI_MR_LOCAL, FI_MR_PROV_KEY, FI_MR_VIRT_ADDR, fi_pci_attr};

pub use calls::functions;
/// Crate with the names of the errors and modes that a test can give a provider.
pub use libfabric_sys as sys;

/// Pause between the rounds of progress of a provider that makes progress by itself.
const PROGRESS_EVERY: Duration = Duration::from_micros(100);

/// Properties of a provider.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Name of the provider.
    pub name: &'static str,
    /// PCI function of the device: its domain, bus, device and function; none for a device that is
    /// not on the bus.
    pub pci: Option<fi_pci_attr>,
    /// Demands on registered memory (`FI_MR_...`). `FI_MR_HMEM` among them means that the provider
    /// can have `FI_HMEM`; it makes this demand only of programs that ask for `FI_HMEM`.
    pub mr_mode: c_int,
    /// Bytes of remote CQ data of a write; 0 if the provider has no writes.
    pub data_bytes: usize,
    /// True if EFA's endpoint option (`FI_OPT_EFA_EMULATED_WRITE`) says that the provider emulates
    /// writes by messages.
    pub emulates_writes: bool,
    /// Version of the provider and of its libfabric: 205 stands for 2.5.
    pub version: u32,
    /// True if the provider offers the low-latency traffic class.
    pub low_latency: bool,
    /// Largest number of requests of an endpoint in each direction.
    pub requests: usize,
    /// Longest message, in bytes, that the provider takes, although it reports a larger limit
    /// (`max_msg_size`): `ofi_rxm` takes longer messages, but is to get none. A longer message is
    /// refused (`-FI_EMSGSIZE`). Writes may be longer.
    pub message_bytes: usize,
    /// Largest number of bytes of a packet.
    pub packet_bytes: usize,
    /// True if a request can complete while its bytes are still on the sender's side, as if a
    /// socket buffered them. Requests with `FI_DELIVERY_COMPLETE` never complete early.
    pub is_done_early: bool,
    /// True if completion queues have a descriptor to wait for.
    pub wakes: bool,
    /// True if requests make progress by themselves; false if only reads of a queue move them.
    pub is_automatic: bool,
    /// Seed of the provider's random draws, such as the next request to travel.
    pub seed: u64,
}

impl Limits {
    /// Returns the properties of a provider like AWS's, with writes in hardware.
    #[must_use]
    pub fn efa(seed: u64) -> Limits {
        Limits {
            name: "efa",
            pci: None,
            mr_mode: FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY,
            data_bytes: 4,
            emulates_writes: false,
            version: 207,
            low_latency: true,
            requests: 512,
            message_bytes: usize::MAX,
            packet_bytes: 8 << 10,
            is_done_early: false,
            wakes: true,
            is_automatic: false,
            seed,
        }
    }

    /// Returns the properties of a provider over sockets, whose requests can complete early.
    #[must_use]
    pub fn sockets(seed: u64) -> Limits {
        Limits {
            name: "soft",
            mr_mode: 0,
            data_bytes: 8,
            low_latency: false,
            is_done_early: true,
            ..Limits::efa(seed)
        }
    }
}

/// Fault of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The request fails with this error (a positive number), and none of its bytes arrive.
    Fails(c_int),
    /// The request fails with this error although it has arrived, as if the acknowledgement were
    /// lost.
    FailsLate(c_int),
    /// The request completes without an error, but nothing arrives.
    Vanishes,
    /// The request never completes, and nothing arrives.
    Hangs,
    /// The request arrives, but never completes.
    HangsLate,
}

/// State of a whole provider.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Condition {
    /// Everything works.
    #[default]
    Good,
    /// Requests are taken, but nothing travels.
    Still,
    /// Endpoints take no requests (`-FI_EAGAIN`), and nothing travels.
    Busy,
    /// Only endpoints of the low-latency traffic class take requests.
    Congested,
    /// Reading a completion queue fails with this error (a positive number). A queue that is read
    /// in this condition stays broken.
    Broken(c_int),
}

/// Software provider with one device. Once the provider is dropped, `fi_getinfo` does not list it
/// any more; its open objects stay until they are closed.
#[derive(Debug)]
pub struct SoftProvider {
    id: u32,
}

impl SoftProvider {
    /// Creates a provider.
    #[must_use]
    pub fn new(limits: Limits) -> SoftProvider {
        let is_automatic = limits.is_automatic;
        let id = network::lock().add_provider(limits);
        if is_automatic {
            // The thread ends with the provider.
            std::thread::spawn(move || {
                while network::lock().progress(id) {
                    std::thread::sleep(PROGRESS_EVERY);
                }
            });
        }
        SoftProvider { id }
    }

    /// Returns the name of the provider's device.
    #[must_use]
    pub fn device(&self) -> String {
        network::device_name(self.id)
    }

    /// Gives a fault to the next request that this provider takes.
    pub fn fail_next(&self, fault: Fault) {
        network::lock().with_provider(self.id, |provider| provider.faults.push_back(fault));
    }

    /// Makes one packet fail at each endpoint. The packet is internal to the provider and belongs
    /// to no request. The failed completion has no context, as in older providers. Returns the
    /// number of endpoints that have an event queue, so that tests can check that all have one:
    /// libfabric's EFA provider ends the process if an internal packet fails at an endpoint without
    /// one.
    pub fn fail_packets(&self, error: c_int) -> usize {
        network::lock().fail_packets(self.id, error)
    }

    /// Returns the number of unread errors in event queues.
    #[must_use]
    pub fn unread_errors(&self) -> usize {
        network::lock().events_held(self.id)
    }

    /// Puts the provider into a condition, until this function is called again.
    pub fn set(&self, condition: Condition) {
        network::lock().with_provider(self.id, |provider| provider.condition = condition);
    }

    /// Returns the number of requests that are under way from this provider's endpoints.
    #[must_use]
    pub fn under_way(&self) -> usize {
        network::lock().under_way(self.id)
    }

    /// Returns the current numbers of endpoints and registrations.
    #[must_use]
    pub fn in_use(&self) -> (usize, usize) {
        network::lock().in_use(self.id)
    }
}

impl Drop for SoftProvider {
    fn drop(&mut self) {
        network::lock().remove_provider(self.id);
    }
}
