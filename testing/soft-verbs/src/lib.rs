//! RDMA devices that are none: behind the functions of libibverbs, within one process, with faults
//! on demand. What a kernel's soft device cannot show is shown here: queue pairs that overtake each
//! other, devices without room, ports that go away without a word.
//!
//! [`functions`] is a table like the library's. A [`SoftDevice`] is found in it, by its name, for
//! as long as it lives. Writes travel when somebody polls a completion queue, of any device: some
//! of them, from queue pairs drawn by the seed, in order only within a queue pair. A queue has room
//! for as many requests as it was made with, and requests without a completion of their own take
//! that room until one after them has completed, as with real devices.

mod calls;
mod network;
mod objects;
mod wire;

use rdma_sys::{IBV_GID_TYPE_ROCE_V2, IBV_LINK_LAYER_ETHERNET, ibv_event_type, ibv_wc_status};

pub use calls::functions;
use network::Fault;
pub use network::Traffic;
/// Names of the statuses and events that a device can be told to have.
pub use rdma_sys as sys;

/// What a device is like.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Queue pairs.
    pub pairs: usize,
    /// Bytes that may be registered.
    pub memory_bytes: usize,
    /// Requests that a queue pair may have, each way.
    pub requests: u32,
    /// The longest request that is taken when it is posted.
    pub inline_bytes: u32,
    /// Completions that a queue may hold.
    pub completions: u32,
    /// The table of addresses, each with its kind (`IBV_GID_TYPE_...`); none where it has a gap.
    pub gids: Vec<Option<([u8; 16], u32)>>,
    /// `IBV_LINK_LAYER_...`.
    pub link_layer: u8,
    /// Draws who goes first.
    pub seed: u64,
}

impl Default for Limits {
    /// A RoCE device with room for everything, and an address that no other has.
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

/// A device; gone from the table when dropped. What was opened meanwhile stays until it is closed.
#[derive(Debug)]
pub struct SoftDevice {
    id: u32,
}

impl SoftDevice {
    /// A device of this kind. Without addresses it is given one: `10.78.x.y`, over RoCE v2.
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

    /// Its name in the list of devices.
    #[must_use]
    pub fn name(&self) -> String {
        network::device_name(self.id)
    }

    /// Takes its link away, or gives it back: what is under way waits. Who has the device open
    /// hears of it.
    pub fn set_link(&self, up: bool) {
        network::lock().set_link(self.id, up);
    }

    /// Gives it another table of addresses, without a word.
    pub fn set_gids(&self, gids: Vec<Option<([u8; 16], u32)>>) {
        network::lock().set_gids(self.id, gids);
    }

    /// The next write of this device fails so: nothing of it arrives.
    pub fn fail_next(&self, status: ibv_wc_status) {
        network::lock().fail_next(self.id, Fault { status, arrives: false });
    }

    /// The same of a write that has arrived: what is lost is that the peer says so.
    pub fn fail_next_late(&self, status: ibv_wc_status) {
        network::lock().fail_next(self.id, Fault { status, arrives: true });
    }

    /// Tells those who have it open of an event: of each of its queue pairs, which fail with that,
    /// or else of the whole port or device.
    pub fn raise(&self, event: ibv_event_type) {
        network::lock().raise(self.id, event);
    }

    /// What each of its queue pairs, also those that are gone, has sent, in the order of their
    /// making.
    #[must_use]
    pub fn traffic(&self) -> Vec<Traffic> {
        network::lock().traffic(self.id)
    }

    /// Bytes that it was given to send and that have not arrived.
    #[must_use]
    pub fn under_way(&self) -> usize {
        network::lock().under_way(self.id)
    }

    /// Queue pairs and registrations that there are just now.
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
