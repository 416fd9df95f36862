//! Routing: the path of a flow. Each scheme is a file.

mod adaptive;
mod ecmp;
mod flowlet;
mod pinned;
mod spray;
pub mod te;
#[cfg(test)]
mod tests;

use core::net::{IpAddr, Ipv6Addr};

use ccl_core::queue_pairs::Flow;
use serde::Serialize;

use crate::SimError;
use crate::flows::Load;
use crate::network::{Link, Network, Path, Port, Step};
pub use te::{Demand, Interval, Placed, Te};

/// Identity of a flow, as the fabric sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// Port of the sender.
    pub from: Port,
    /// Port of the receiver.
    pub to: Port,
    /// Number of the connection between the two ports; each connection has its own UDP source port.
    pub channel: u32,
    /// Queue pair of the connection.
    pub pair: u32,
}

/// Time of a message, and the start of its queue pair's idle time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Moment {
    /// Current time, in seconds.
    pub now_s: f64,
    /// Time when the queue pair last sent a byte, in seconds; None if it has sent none.
    pub idle_since_s: Option<f64>,
}

impl Default for Moment {
    fn default() -> Moment {
        Moment { now_s: 0.0, idle_since_s: None }
    }
}

/// Routing scheme: how switches choose among equal paths.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "scheme")]
pub enum Scheme {
    /// A hash of addresses and UDP ports, the same for all queue pairs of a connection.
    Ecmp,
    /// A hash that includes the destination's queue pair (E-ECMP).
    HashedPairs,
    /// Position of the destination in its rack: uplink k carries what goes to NICs at position k.
    Pinned,
    /// Placement by a controller. Flows without a placement go by `HashedPairs`, or by `Ecmp`
    /// ([`Te::over_plain_ecmp`]).
    Te,
    /// The least busy uplink of the first switch, chosen when a flow begins and after each pause of
    /// at least `gap_s`; a hash for all other links.
    Flowlet {
        /// Shortest pause after which a flow can take another path, in seconds.
        gap_s: f64,
    },
    /// A new choice for every message: the path whose busiest link is least busy.
    Adaptive,
    /// Spraying of packets over all paths in turn.
    Spray,
}

/// All schemes with their names, in the order of Meta's paper on RoCE.
pub const SCHEMES: [(&str, Scheme); 7] = [
    ("ecmp", Scheme::Ecmp),
    ("pinned", Scheme::Pinned),
    ("e_ecmp", Scheme::HashedPairs),
    ("te", Scheme::Te),
    ("flowlet", Scheme::Flowlet { gap_s: 5e-6 }),
    ("adaptive", Scheme::Adaptive),
    ("spray", Scheme::Spray),
];

impl Scheme {
    /// Returns the scheme of a name.
    ///
    /// # Errors
    ///
    /// If no scheme has that name.
    pub fn named(name: &str) -> Result<Scheme, SimError> {
        let found = SCHEMES.iter().find(|(known, _)| *known == name);
        found.map(|(_, scheme)| *scheme).ok_or_else(|| SimError::Unknown {
            what: "routing",
            name: name.to_owned(),
            known: SCHEMES.map(|(name, _)| name).join(" "),
        })
    }

    /// Returns the scheme's name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        let same = |other: &Scheme| std::mem::discriminant(other) == std::mem::discriminant(self);
        SCHEMES.iter().find(|(_, scheme)| same(scheme)).map_or("", |(name, _)| name)
    }
}

/// Routes flows through a network.
#[derive(Debug)]
pub struct Router {
    scheme: Scheme,
    /// Seed of the switches' hashes.
    seed: u64,
    /// Placement by a controller.
    te: Te,
    flowlets: flowlet::Table,
    found: Vec<Link>,
}

impl Router {
    /// Makes a router whose switches choose by this scheme; `seed` is the seed of their hashes.
    #[must_use]
    pub fn new(scheme: Scheme, seed: u64) -> Router {
        let (te, flowlets) = (Te::default(), flowlet::Table::default());
        Router { scheme, seed, te, flowlets, found: Vec::new() }
    }

    /// Makes a router with the placement of a controller.
    #[must_use]
    pub fn with_te(seed: u64, te: Te) -> Router {
        Router { te, ..Router::new(Scheme::Te, seed) }
    }

    /// Returns the scheme.
    #[must_use]
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// Returns the placement of the controller.
    #[must_use]
    pub fn te(&self) -> &Te {
        &self.te
    }

    /// Sets `path` to the path of a flow.
    ///
    /// # Errors
    ///
    /// If no path joins the ports of the flow.
    pub fn route(
        &mut self,
        network: &Network,
        key: &Key,
        moment: Moment,
        load: &Load<'_>,
        path: &mut Path,
    ) -> Result<(), SimError> {
        let turn = network.meeting(key.from, key.to)?;
        let way = FlowPath { network, key, turn };
        let Router { scheme, seed, te, flowlets, found } = self;
        match *scheme {
            Scheme::Ecmp => way.walk(found, path, ecmp::chooser(key, *seed, false)),
            Scheme::HashedPairs => way.walk(found, path, ecmp::chooser(key, *seed, true)),
            Scheme::Pinned => way.walk(found, path, pinned::chooser(network, key, *seed)),
            Scheme::Te => {
                if !te.route(network, key, path) {
                    way.walk(found, path, ecmp::chooser(key, *seed, te.hashes_pairs()));
                }
            }
            Scheme::Flowlet { gap_s } => {
                flowlets.route(&way, (*seed, gap_s), moment, load, found, path);
            }
            Scheme::Adaptive => adaptive::route(&way, *seed, load, found, path),
            Scheme::Spray => spray::route(&way, found, path),
        }
        path.latency_s = network.plan().fabric.latency_ns(turn) * 1e-9;
        Ok(())
    }
}

/// A flow and the tier where its path turns.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FlowPath<'a> {
    pub(crate) network: &'a Network,
    pub(crate) key: &'a Key,
    /// Tier where the path turns down.
    pub(crate) turn: usize,
}

impl FlowPath<'_> {
    /// Returns the levels of the path: each tier with its direction, first up, then down again.
    pub(crate) fn levels(&self) -> impl Iterator<Item = (usize, bool)> + use<> {
        let turn = self.turn;
        (0..=turn).map(|tier| (tier, true)).chain((0..=turn).rev().map(|tier| (tier, false)))
    }

    /// Returns the step at a level. `number` is the number of the NIC or switch that chooses the
    /// step's link: the sender's NIC, or the switch where the previous link ends.
    pub(crate) fn step(&self, (tier, up): (usize, bool), number: u32) -> Step {
        let host = if up { self.key.from.host } else { self.key.to.host };
        // A step up begins below the cables of `tier`: in the sender's host if `tier` is 0, else in
        // the sender's group of the tier below `tier`. A step down begins above the cables of
        // `tier`: in the receiver's group of `tier`.
        let group = self.network.child(if up { tier } else { tier + 1 }, host);
        Step { tier, up, at: (group, number) }
    }

    /// Sets `path` link by link; `choose` picks one of several possible links.
    pub(crate) fn walk(
        &self,
        found: &mut Vec<Link>,
        path: &mut Path,
        mut choose: impl FnMut(&Step, &[Link]) -> usize,
    ) {
        path.clear();
        let mut number = self.key.from.nic;
        for level in self.levels() {
            let step = self.step(level, number);
            self.network.choices(&step, self.key.to, self.turn, found);
            let index = if found.len() == 1 { 0 } else { choose(&step, found) };
            let Some(link) = found.get(index) else { return };
            path.links.push((*link, 1.0));
            number = self.network.far_end(*link);
        }
    }
}

/// Returns the fields that a fabric hashes: an address for each NIC, RoCE's UDP ports, and the
/// queue pair.
pub(crate) fn flow_of(key: &Key) -> Flow {
    // Host and NIC are separate words of the address, so no two ports share an address.
    let address = |port: Port| {
        let number = 0xfd00_u128 << 112 | u128::from(port.host) << 32 | u128::from(port.nic);
        IpAddr::V6(Ipv6Addr::from_bits(number))
    };
    Flow {
        from: address(key.from),
        to: address(key.to),
        source_port: 0xc000 + (key.channel & 0xfff) as u16,
        destination_port: 4791,
        traffic_class: 0,
        queue_pair: key.pair,
    }
}
