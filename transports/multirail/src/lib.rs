//! Several devices as one: a put to a peer goes over one of several *rails*, each a connection
//! between a device of this side and one of the peer's.
//!
//! The transport needs nothing but what every device has, so that RDMA and others are striped
//! alike.
//!
//! # Striping
//!
//! A put goes whole over the rail on which it is expected to be done first, or over an idle one
//! that does it within a microsecond. The expectation follows from the bytes that are under way on
//! the rail's device, from all links of the process, and from the bandwidth that was measured there
//! lately.
//!
//! # A rail that fails
//!
//! A rail that fails is taken out, and nothing is lost or doubled:
//!
//! 1. The side that notices first closes its end, so that nothing more is written through it, and
//!    tells the peer over another rail which puts are not done, by their immediates, and how many
//!    are.
//! 2. The peer takes in what has come, closes its own end, and answers which of these puts have
//!    arrived. Both sides ask, each for its own puts.
//! 3. Puts that have arrived are done; the rest is put again, over other rails. A put without an
//!    immediate is put again in any case: the same bytes to the same place.
//!
//! Devices must count a put as done only when the peer has it
//! ([`Caps::acknowledged`](ccl_core::transport::Caps::acknowledged)). If a device breaks that
//! promise, the peer counts fewer puts, and the link is lost with a message that says so. A link
//! also ends with the last of its rails.
//!
//! # A rail that recovers, or comes late
//!
//! The side that dialled tries again, after two seconds and ever more rarely. Over the new
//! connection each side tells again the keys of what it shares; then the rail is used like the
//! others. An address need not name all devices ([`shorten`]): the peer tells of the others over
//! the first rails, and their rails come in the same way.

mod device;
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
