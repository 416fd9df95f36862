//! Software RDMA devices behind the functions of libibverbs, within one process, with faults on
//! demand. They show what Soft-RoCE cannot: queue pairs that overtake each other, devices that have
//! no room for another object, and ports that go away silently.
//!
//! [`functions`] returns a table of functions like that of libibverbs. The table's
//! `get_device_list` lists a [`SoftDevice`], under its name, until the device is dropped. Writes
//! travel when a completion queue of any device is polled. Random draws from a seed choose which
//! queue pair sends next. Only writes of the same queue pair stay in order. The caller that creates
//! a queue pair chooses how many send requests and how many receive requests the pair has room
//! for. A send request without a completion of its own keeps its room until the completion of a
//! later request is polled, as with real devices.

mod calls;
mod network;
mod objects;
mod wire;

use rdma_sys::{IBV_GID_TYPE_ROCE_V2, IBV_LINK_LAYER_ETHERNET, ibv_event_type, ibv_wc_status};

pub use calls::functions;
use network::Fault;
pub use network::Traffic;
/// Bindings with names for statuses and events; a test can make a device report any of these.
pub use rdma_sys as sys;

/// Limits of a device.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Largest number of queue pairs.
    pub pairs: usize,
    /// Largest number of bytes that may be registered.
    pub memory_bytes: usize,
    /// Largest number of requests of a queue pair in each direction.
    pub requests: u32,
    /// Largest number of bytes of an inline request.
    pub inline_bytes: u32,
    /// Largest number of completions that a queue may hold.
    pub completions: u32,
    /// GID table, each entry with its type (`IBV_GID_TYPE_...`); `None` is a gap.
    pub gids: Vec<Option<([u8; 16], u32)>>,
    /// Link layer, as `IBV_LINK_LAYER_...`.
    pub link_layer: u8,
    /// Seed of the random draws that choose which queue pair sends next.
    pub seed: u64,
}

impl Default for Limits {
    /// Returns the limits of a RoCE device with room for everything. The device gets a unique
    /// address when it is made.
    fn default() -> Limits {
        Limits {
            pairs: 1 << 16,
            memory_bytes: 1 << 40,
            requests: 1 << 14,
            inline_bytes: 256,
            completions: 1 << 16,
            gids: Vec::new(),
            link_layer: IBV_LINK_LAYER_ETHERNET,
            seed: 1,
        }
    }
}

/// Software device; dropping it removes it from the list of devices. Opened contexts stay until
/// they are closed.
#[derive(Debug)]
pub struct SoftDevice {
    id: u32,
}

impl SoftDevice {
    /// Creates a device. A device without GIDs gets one: `10.78.x.y`, over RoCE v2.
    #[must_use]
    pub fn new(mut limits: Limits) -> SoftDevice {
        let mut network = network::lock();
        let id = network.next_id();
        if limits.gids.is_empty() {
            let [_, _, high, low] = id.to_be_bytes();
            let gid = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 78, high, low];
            limits.gids = vec![Some((gid, IBV_GID_TYPE_ROCE_V2))];
        }
        network.add_device(id, limits);
        SoftDevice { id }
    }

    /// Returns the device's name in the list of devices.
    #[must_use]
    pub fn name(&self) -> String {
        network::device_name(self.id)
    }

    /// Takes the device's link down or up. Requests wait while the link is down. Open contexts get
    /// an event.
    pub fn set_link(&self, up: bool) {
        network::lock().set_link(self.id, up);
    }

    /// Replaces the device's GID table without an event.
    pub fn set_gids(&self, gids: Vec<Option<([u8; 16], u32)>>) {
        network::lock().set_gids(self.id, gids);
    }

    /// Makes the next write of this device fail: none of its bytes arrive.
    pub fn fail_next(&self, status: ibv_wc_status) {
        network::lock().fail_next(self.id, Fault { status, arrives: false });
    }

    /// Makes the next write of this device fail after its arrival, as if the acknowledgement were
    /// lost.
    pub fn fail_next_late(&self, status: ibv_wc_status) {
        network::lock().fail_next(self.id, Fault { status, arrives: true });
    }

    /// Raises an event. An event that concerns queue pairs makes every queue pair of the device
    /// fail, and goes to the contexts of these queue pairs. Other events go to all open contexts.
    pub fn raise(&self, event: ibv_event_type) {
        network::lock().raise(self.id, event);
    }

    /// Returns the traffic of each queue pair of the device, also of destroyed ones, in order of
    /// creation.
    #[must_use]
    pub fn traffic(&self) -> Vec<Traffic> {
        network::lock().traffic(self.id)
    }

    /// Returns the number of bytes of the posted writes that have not arrived.
    #[must_use]
    pub fn under_way(&self) -> usize {
        network::lock().under_way(self.id)
    }

    /// Returns the current numbers of queue pairs and registrations.
    #[must_use]
    pub fn in_use(&self) -> (usize, usize) {
        network::lock().in_use(self.id)
    }
}

impl Drop for SoftDevice {
    fn drop(&mut self) {
        network::lock().remove_device(self.id);
    }
}
