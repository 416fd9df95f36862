//! Transports as values: what the registry of the library lists.

use std::fmt;
use std::time::Duration;

use crate::config::{Config, Table};
use crate::transport::{Address, Transport, TransportError};

/// Which ranks a transport joins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reach {
    /// Processes of one host.
    Host,
    /// Processes of any hosts that a network joins.
    Network,
}

/// The demands on a transport's devices when they are opened.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// A put is done only when the peer has it: several devices as one need that, to put again what
    /// one of them has lost ([`Caps::acknowledged`](crate::transport::Caps::acknowledged)).
    pub acknowledged: bool,
    /// A put is done as soon as it is written to the operating system, where there is a choice: a
    /// connection that breaks is lost then.
    pub done_when_written: bool,
    /// Each lane has one connection.
    pub one_connection: bool,
    /// The longest time that the link of a port may be down before its connections count as lost.
    pub link_within: Duration,
}

impl Setup {
    /// Returns the demands of a rank with one device: breaks are mended, and many connections share
    /// a lane.
    #[must_use]
    pub const fn new(link_within: Duration) -> Setup {
        Setup { acknowledged: false, done_when_written: false, one_connection: false, link_within }
    }
}

/// A setting by which links get more flows, and the values that are worth trying.
pub type MoreFlows = (&'static str, &'static [&'static str]);

/// The table of a transport that has no tunables of its own.
pub const NO_TUNABLES: Table = |_| Ok(Vec::new());

/// Makes a transport.
pub type Make = fn(&Config, &Setup) -> Result<Box<dyn Transport>, TransportError>;

/// A kind of transport.
///
/// Whoever adds one writes a constant like this in the transport's crate and a line in the
/// registry, `src/transports.rs`.
pub struct TransportKind {
    /// Its name in `FERROCCL_TRANSPORT` and in messages.
    pub name: &'static str,
    /// Its number in messages between processes; no other kind ever has it.
    pub id: u8,
    /// Which ranks it joins.
    pub reach: Reach,
    /// `auto` takes the kind that has the highest among those of its reach that all ranks have.
    pub preference: u8,
    /// True if its devices are adapters, of which a host has some or none: its ranks share them
    /// out, each takes those that are nearest to it, and several of them can be one device.
    pub adapters: bool,
    /// True if messages are striped over queue pairs by a policy ([`crate::queue_pairs`]).
    pub stripes: bool,
    /// True if it can encrypt.
    pub encrypts: bool,
    /// Its own tunables: [`table_of`](crate::config::table_of) their struct, or [`NO_TUNABLES`].
    pub tunables: Table,
    /// The setting that gives links more flows, if there is one.
    pub more_flows: Option<MoreFlows>,
    /// Returns whether the configuration names devices: `auto` takes those even in software.
    pub names_devices: fn(&Config) -> bool,
    /// Makes the transport.
    pub make: Make,
    /// Returns a listener's address with one place fewer; none if it has no other.
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
