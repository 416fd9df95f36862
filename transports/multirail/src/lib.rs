//! Several devices as one: a put to a peer goes over one of several *rails*. Each rail connects a
//! device of this side with a device of the peer.
//!
//! The transport uses only features that every device has, so that RDMA and other devices are
//! striped alike.
//!
//! # Striping
//!
//! Each put goes whole over one rail. Each link has a preferred rail. The put goes over this rail
//! if the rail is expected to complete the put within a microsecond. Otherwise, the rail with the
//! earliest expected completion carries the put. The expected time is computed from the bytes that
//! all links of the [`RailsDevice`] have under way on the rail's device, and from the rail's
//! recently measured bandwidth.
//!
//! # A rail that fails
//!
//! A rail that fails is taken out, and nothing is lost or doubled:
//!
//! 1. The first side that notices the failure closes its end of the rail, so that nothing more is
//!    written through this end. Over the other rails, this side tells the peer the immediates of
//!    the puts that are not done, and how many puts are done.
//! 2. The peer takes in all arrivals, closes its own end, and answers which of the unfinished puts
//!    have arrived. The peer's own unfinished puts are handled alike.
//! 3. Puts that have arrived are done; the others are repeated over other rails. A put without an
//!    immediate is always repeated: it writes the same bytes to the same address.
//!
//! Devices must count a put as done only when the peer has it
//! ([`Caps::acknowledged`](ccl_core::transport::Caps::acknowledged)). If a device breaks this
//! promise, more puts are reported done than have arrived at the peer; the link is then lost, with
//! an error that says so. A link is also lost when its last rail fails.
//!
//! # A rail that recovers, or comes late
//!
//! The side that dialled tries again after two seconds, then at growing intervals. Over the new
//! connection, each side sends the keys of its shared memory again; then the rail is used like the
//! others. A peer's address may name only some of its devices ([`shorten`]). At first, rails lead
//! only to these named devices. Over these rails, the peer sends the addresses of its other
//! devices, which are then dialled like rails that recover.

mod device;
mod failed;
mod lane;
mod link;
mod memory;
mod note;
mod rail;
mod rendezvous;
mod shared;

pub use device::RailsDevice;
pub use rail::TURNS;
pub use rendezvous::shorten;

/// Largest number of rails between two peers.
pub const RAILS_MAX: usize = 16;
