//! Placement of ranks on hosts that minimizes the traffic between zones, racks and hosts.

use std::fmt;

use crate::topology::Topology;
use crate::topology::placement::{Crossing, crossing, place};
use ccl_core::algorithm::{self, Algorithm};
use ccl_core::topology::Hosts;
use ccl_core::types::{Collective, DataType, Rank};
use ccl_traffic::{Bytes, Sent};
use serde::Serialize;

use crate::quantity::{self, Unit};

/// Largest number of ranks that [`find`] accepts.
const RANKS_MAX: usize = 1 << 14;
/// Largest number of pairs of ranks with traffic that [`find`] accepts for a collective.
const PAIRS_MAX: usize = 1 << 22;

/// Traffic between the ranks.
#[derive(Clone, Copy, Debug)]
pub enum Sends<'a> {
    /// Traffic of a collective, computed from the size of its larger buffer and an algorithm.
    Collective {
        /// Kind of collective.
        collective: Collective,
        /// Bytes of the larger buffer.
        bytes: usize,
        /// Name of the algorithm; if none is given, `ring`, or `direct` if there is no ring.
        algorithm: Option<&'a str>,
    },
    /// Traffic that was counted.
    Counted {
        /// Bytes for each pair of a sending and a receiving rank.
        bytes: &'a Bytes,
        /// Name of the file with the counts.
        name: &'a str,
    },
}

/// Order of ranks, and the traffic that it saves.
#[derive(Clone, Debug, Serialize)]
pub struct Placement {
    what: String,
    topology: String,
    ranks: usize,
    hosts: usize,
    /// Traffic between the groups of the tiers of the network (see [`crate::topology::fabric`]),
    /// the highest tier first, and last the traffic between hosts. The highest tiers are left out
    /// if no traffic crosses their groups.
    crossings: Vec<Crossed>,
    /// Rank of each seat, host after host in the given order. A seat is a part of a host on which a
    /// rank runs.
    order: Vec<Rank>,
}

/// Traffic between the groups of one tier of the network, or between hosts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Crossed {
    /// Name of the groups in the plural, such as `zones` or `racks`; or `hosts`.
    pub between: String,
    /// Bytes with the ranks in ascending order.
    pub before_bytes: u64,
    /// Bytes with the ranks in the order that was found.
    pub after_bytes: u64,
}

/// Searches for an order of the ranks with less traffic between hosts, and between groups of hosts,
/// than the ascending order. In the ascending order, each host has consecutive ranks, host after
/// host in the given order. Keeps the ascending order if no better order is found.
///
/// # Errors
///
/// When a host does not exist or is given twice; when the collective does not have the algorithm,
/// or has no blocks of equal length; when there are too few bytes, too many ranks or too many pairs
/// of ranks; when the counted traffic has more ranks than the hosts have seats.
pub fn find(sends: &Sends<'_>, topology: &Topology, given: &[u32]) -> Result<Placement, String> {
    let hosts = places(topology, given)?;
    let (bytes, what) = match sends {
        Sends::Counted { bytes, name } => {
            let ranks = bytes.keys().map(|(from, to)| from.max(to) + 1).max().unwrap_or(0);
            if ranks as usize > hosts.len() {
                return Err(format!(
                    "{name} has traffic of {ranks} ranks, but the hosts have seats for {}; name \
                     more hosts with --hosts",
                    hosts.len()
                ));
            }
            ((*bytes).clone(), format!("traffic of {name}"))
        }
        Sends::Collective { collective, bytes, algorithm } => {
            let size = quantity::show(*bytes as f64, Unit::Bytes);
            let algorithm = taken(*collective, *algorithm)?.name;
            (sent(sends, &hosts)?, format!("{collective} of {size} by {algorithm}"))
        }
    };
    let fabric = &topology.fabric;
    let mut order = place(&bytes, &hosts, fabric);
    let before = crossing(&bytes, &hosts, fabric);
    let moved = moved(&order, &hosts);
    // The traffic of a collective may depend on the placement.
    let bytes = if matches!(sends, Sends::Counted { .. }) { bytes } else { sent(sends, &moved)? };
    let mut after = crossing(&bytes, &moved, fabric);
    if !after.is_less_than(&before) {
        (order, after) = ((0..hosts.len() as Rank).collect(), before.clone());
    }
    Ok(Placement {
        what,
        topology: topology.name.clone(),
        ranks: hosts.len(),
        hosts: given.len(),
        crossings: crossings(topology, &before, &after),
        order,
    })
}

/// Returns the host of each seat.
fn places(topology: &Topology, given: &[u32]) -> Result<Vec<u32>, String> {
    let (mut hosts, mut known) = (Vec::new(), std::collections::BTreeSet::new());
    for host in given {
        if !known.insert(*host) {
            return Err(format!("host {host} is given twice; give each host once"));
        }
        let machine = topology.machine(*host).ok_or_else(|| {
            let (name, all) = (&topology.name, topology.hosts());
            format!("{name} has hosts 0 to {}, no host {host}", all.saturating_sub(1))
        })?;
        hosts.resize(hosts.len() + machine.seats().len(), *host);
        if hosts.len() > RANKS_MAX {
            return Err(format!("more than {RANKS_MAX} ranks cannot be ordered; name fewer hosts"));
        }
    }
    Ok(hosts)
}

/// Returns the host of each rank.
fn moved(order: &[Rank], hosts: &[u32]) -> Vec<u32> {
    let mut of: Vec<(Rank, u32)> = order.iter().copied().zip(hosts.iter().copied()).collect();
    of.sort_unstable();
    of.into_iter().map(|(_, host)| host).collect()
}

/// Returns the algorithm that `asked` names. If no name is given, returns `ring`, or `direct` if
/// there is no ring.
fn taken(collective: Collective, asked: Option<&str>) -> Result<&'static Algorithm, String> {
    let found = match asked {
        Some(name) => algorithm::find(collective, name).map_err(|error| error.to_string()),
        None => algorithm::find(collective, "ring")
            .or_else(|_| algorithm::find(collective, "direct"))
            .map_err(|error| error.to_string()),
    };
    found.map_err(|error| format!("{error}; pass the algorithm with --algo"))
}

/// Returns the traffic of the collective with its ranks on these hosts.
fn sent(sends: &Sends<'_>, hosts: &[u32]) -> Result<Bytes, String> {
    let Sends::Collective { collective, bytes, algorithm } = *sends else {
        return Ok(Bytes::new());
    };
    let hosts = Hosts::of(hosts);
    let algorithm = taken(collective, algorithm)?;
    let element_bytes = DataType::Float32.bytes();
    let blocks = collective
        .even_blocks(hosts.ranks())
        .ok_or_else(|| format!("{collective} has no blocks of equal length; choose another"))?;
    let count = bytes / element_bytes / (blocks as usize).max(1);
    if count == 0 && hosts.ranks() > 0 {
        let least = element_bytes * blocks as usize;
        return Err(format!(
            "{bytes} bytes are less than an element for each block; give at least {least}"
        ));
    }
    let sent = Sent { algorithm, root: 0, count, element_bytes, hosts: &hosts };
    let ranks = hosts.ranks() as usize;
    let peers = sent.by(0).map_err(|error| error.to_string())?.len();
    if peers.saturating_mul(ranks) > PAIRS_MAX {
        return Err(format!(
            "{ranks} ranks that each send to {peers} peers are too many pairs; if all ranks send \
             to all, the order makes no difference"
        ));
    }
    sent.by_all().map_err(|error| error.to_string())
}

fn crossings(topology: &Topology, before: &Crossing, after: &Crossing) -> Vec<Crossed> {
    let groups = topology.fabric.tiers.iter().rev().map(|tier| tier.group.clone());
    let bytes = before.groups.iter().zip(&after.groups);
    let mut all: Vec<Crossed> = groups
        .zip(bytes)
        .map(|(group, (before, after))| Crossed {
            between: format!("{group}s"),
            before_bytes: *before,
            after_bytes: *after,
        })
        .collect();
    // Leave out the highest tiers that no traffic crosses.
    let is_crossed = |of: &Crossed| of.before_bytes > 0 || of.after_bytes > 0;
    let first = all.iter().position(is_crossed).unwrap_or(all.len());
    all.drain(..first);
    let (before_bytes, after_bytes) = (before.hosts, after.hosts);
    all.push(Crossed { between: "hosts".to_owned(), before_bytes, after_bytes });
    all
}

impl Placement {
    /// Returns the traffic between the groups of the tiers, the highest tier first, and last the
    /// traffic between hosts. The highest tiers are left out if no traffic crosses their groups.
    #[must_use]
    pub fn crossings(&self) -> &[Crossed] {
        &self.crossings
    }

    /// Returns the rank of each seat, host after host in the given order.
    #[must_use]
    pub fn order(&self) -> &[Rank] {
        &self.order
    }
}

/// Formats ranks; consecutive ranks are written as `0-7`.
fn rows(order: &[Rank]) -> String {
    let mut rows: Vec<(Rank, Rank)> = Vec::new();
    for rank in order {
        match rows.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(*rank) => *last = *rank,
            _ => rows.push((*rank, *rank)),
        }
    }
    let row = |(first, last): &(Rank, Rank)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    rows.iter().map(row).collect::<Vec<_>>().join(" ")
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Placement { what, topology, ranks, hosts, crossings, order } = self;
        writeln!(f, "{what}, {ranks} ranks on {hosts} hosts of {topology}\n")?;
        let show = |bytes: u64| quantity::show(bytes as f64, Unit::Bytes);
        let head = ["crosses between", "as given", "reordered", "remaining"].map(str::to_owned);
        let row = |crossed: &Crossed| {
            let Crossed { between, before_bytes, after_bytes } = crossed;
            let share = *after_bytes as f64 / (*before_bytes).max(1) as f64;
            let share = format!("{:.1} %", share * 100.0);
            [between.clone(), show(*before_bytes), show(*after_bytes), share]
        };
        let rows_of: Vec<Vec<String>> = std::iter::once(head)
            .chain(crossings.iter().map(row))
            .map(|row| row.to_vec())
            .collect();
        f.write_str(&crate::topology::columns(&rows_of))?;
        if order.iter().enumerate().all(|(place, rank)| place == *rank as usize) {
            return writeln!(f, "\nthe ranks are best left in order");
        }
        writeln!(f, "\norder of the ranks: {}", rows(order))
    }
}

#[cfg(test)]
mod tests {
    use crate::topology::presets;

    use super::*;

    fn meta() -> Topology {
        presets::find("meta-24576").unwrap().topology()
    }

    const RING: Sends<'_> =
        Sends::Collective { collective: Collective::AllReduce, bytes: 1 << 20, algorithm: None };

    #[test]
    fn ranks_are_grouped_by_zone_on_hosts_that_alternate_between_zones() {
        let placement = find(&RING, &meta(), &[0, 384, 1, 385]).unwrap();
        let [zones, racks, hosts] = placement.crossings() else { panic!("{placement}") };
        assert_eq!((zones.between.as_str(), hosts.between.as_str()), ("zones", "hosts"));
        assert_eq!(zones.after_bytes * 2, zones.before_bytes);
        assert_eq!((racks.after_bytes, hosts.after_bytes), (zones.after_bytes, hosts.before_bytes));
        let shown = placement.to_string();
        assert!(shown.contains("ranks: 0-7 16-23 8-15 24-31\n"), "{shown}");
    }

    #[test]
    fn ranks_on_hosts_that_are_given_in_order_stay_in_order() {
        let shown = find(&RING, &meta(), &[0, 1, 2, 3]).unwrap().to_string();
        assert!(shown.contains("best left in order") && !shown.contains("zones"), "{shown}");
        let one = find(&RING, &meta(), &[7]).unwrap();
        assert_eq!(one.crossings().len(), 1);
    }

    #[test]
    fn an_impossible_placement_is_refused_with_the_reason() {
        let wrong = |sends: &Sends<'_>, hosts: &[u32]| find(sends, &meta(), hosts).unwrap_err();
        assert!(wrong(&RING, &[0, 0]).contains("host 0 is given twice"));
        assert!(wrong(&RING, &[99_999]).contains("has hosts 0 to 3071, no host 99999"));
        let bytes = Bytes::from([((0, 9), 1)]);
        let counted = Sends::Counted { bytes: &bytes, name: "a.csv" };
        assert!(wrong(&counted, &[3]).contains("a.csv has traffic of 10 ranks"));
        let (collective, bytes) = (Collective::AllReduce, 1 << 20);
        let none = Sends::Collective { collective, bytes, algorithm: Some("rign") };
        assert!(wrong(&none, &[3]).contains("no algorithm \"rign\""));
        let few = Sends::Collective {
            collective: Collective::AllGather,
            bytes: 4,
            algorithm: Some("ring"),
        };
        assert!(wrong(&few, &[3]).contains("less than an element"));
        let barrier = Sends::Collective {
            collective: Collective::Barrier,
            bytes,
            algorithm: Some("dissemination"),
        };
        assert!(wrong(&barrier, &[3]).contains("no blocks of equal length"));
    }
}
