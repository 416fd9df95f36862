//! Transports as values: the entries of the library's registry.

use std::fmt;
use std::time::Duration;

use crate::config::{Config, Table};
use crate::transport::{Address, Transport, TransportError};

/// Ranks that a transport connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reach {
    /// Processes of one host.
    Host,
    /// Processes of any hosts that share a network.
    Network,
}

/// The demands on a transport's devices when they are opened.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// True if a put is done only when the peer has it. Several devices that act as one require
    /// this: puts that one device has lost are repeated over another device
    /// ([`Caps::acknowledged`](crate::transport::Caps::acknowledged)).
    pub acknowledged: bool,
    /// True if a transport that has the choice counts a put as done as soon as the put is written
    /// to the operating system. A broken connection that lost some of the written bytes is then not
    /// mended.
    pub done_when_written: bool,
    /// True if at most one connection is attached to each lane.
    pub one_connection: bool,
    /// True if the host is known to have a core for each of its ranks. Waiting ranks then poll, and
    /// a transport can switch off wake-ups that cost time with each message.
    pub has_core: bool,
    /// The longest time that a port may be down, or that a peer may be unreachable after a break,
    /// before the connections count as lost.
    pub link_within: Duration,
    /// The longest time, after a break, for which a peer that can be reached may stay silent before
    /// its connections count as lost. A rank that computes does not poll, so it does not answer. If
    /// the control plane detects dead ranks, this limit need not detect them, and can exceed the
    /// longest computation.
    pub silent_within: Duration,
}

impl Setup {
    /// Returns the demands of a rank with one device: broken connections are mended, and many
    /// connections share a lane.
    #[must_use]
    pub const fn new(link_within: Duration, silent_within: Duration) -> Setup {
        Setup {
            acknowledged: false,
            done_when_written: false,
            one_connection: false,
            has_core: false,
            link_within,
            silent_within,
        }
    }
}

/// Setting that gives links more flows, and the values that are worth trying.
pub type MoreFlows = (&'static str, &'static [&'static str]);

/// The table of a transport that has no tunables of its own.
pub const NO_TUNABLES: Table = |_| Ok(Vec::new());

/// Function that makes a transport.
pub type Make = fn(&Config, &Setup) -> Result<Box<dyn Transport>, TransportError>;

/// A kind of transport.
///
/// A new kind needs a constant of this type in the transport's crate and a line in the registry,
/// `src/transports.rs`.
pub struct TransportKind {
    /// Name of the transport in `FERROCCL_TRANSPORT` and in messages.
    pub name: &'static str,
    /// Number of the kind in messages between processes; never reused for another kind.
    pub id: u8,
    /// Ranks that the transport connects.
    pub reach: Reach,
    /// Preference if `FERROCCL_TRANSPORT` is `auto`: of the kinds of equal reach that all ranks
    /// have, the one with the highest preference wins.
    pub preference: u8,
    /// True if the devices are adapters. A host has some adapters or none, each of its ranks takes
    /// the nearest ones, and several adapters can act as one device.
    pub adapters: bool,
    /// True if messages are striped over queue pairs by a policy ([`crate::queue_pairs`]).
    pub stripes: bool,
    /// True if the transport can encrypt.
    pub encrypts: bool,
    /// Table of the transport's own tunables: [`table_of`](crate::config::table_of) with the
    /// tunables' struct as the type argument, or [`NO_TUNABLES`].
    pub tunables: Table,
    /// Setting that gives links more flows, if there is one.
    pub more_flows: Option<MoreFlows>,
    /// Variables and values that a launcher sets for its ranks unless they are set already. They
    /// configure libraries beneath the transport that a process cannot configure otherwise.
    pub rank_environment: &'static [(&'static str, &'static str)],
    /// Function that returns whether the configuration names devices; `auto` takes named devices
    /// even if they are software, such as Soft-RoCE.
    pub names_devices: fn(&Config) -> bool,
    /// Function that makes the transport.
    pub make: Make,
    /// Function that returns a listener's address without the last of its network locations (IP
    /// address and port); none if the address has fewer than two network locations.
    pub fewer_locations: fn(&Address) -> Option<Address>,
}

impl fmt::Debug for TransportKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TransportKind({})", self.name)
    }
}

impl PartialEq for TransportKind {
    fn eq(&self, other: &TransportKind) -> bool {
        self.id == other.id
    }
}
