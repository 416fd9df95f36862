//! Traffic engineering by a controller that knows the traffic matrix. At fixed intervals the
//! controller places each pair of NICs on its own path, by constrained shortest paths (CSPF).
//!
//! The candidates are the shortest paths with room for the whole demand; the candidate with the
//! most room left is taken. If a demand has no candidate, other demands can move to make room. For
//! paths that turn at the second tier, the placement is an edge colouring of a bipartite graph: a
//! demand is an edge from the sender's rack to the receiver's rack, and the spine of its path is
//! the edge's colour. To make room, the demands on a chain of edges with two alternating colours
//! swap these colours, as in the proof of König's edge-colouring theorem. So demands of equal rate
//! are placed whenever possible. Demands that are not placed, or whose path has a failed link, take
//! the switches' default path.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{FlowPath, Key};
use crate::network::{Link, Network, Path, Port};

/// Traffic from one NIC to another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Demand {
    /// Port of the sender.
    pub from: Port,
    /// Port of the receiver.
    pub to: Port,
    /// Rate, in bytes per second.
    pub bytes_per_s: f64,
}

/// Interval between placements of the controller.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Interval {
    /// Seconds from one placement to the next.
    pub every_s: f64,
}

impl Default for Interval {
    /// Returns the interval that Meta's paper on RoCE gives as an example.
    fn default() -> Interval {
        Interval { every_s: 30.0 }
    }
}

impl Interval {
    /// Returns the time when the switches first know of an event: the next placement.
    #[must_use]
    pub fn known_at_s(&self, happens_s: f64) -> f64 {
        ((happens_s / self.every_s).floor() + 1.0) * self.every_s
    }
}

/// Numbers and rates of demands: of all demands, and of those that were placed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Placed {
    /// Demands in all.
    pub demands: usize,
    /// Demands that were placed.
    pub placed: usize,
    /// Rate of all demands, in bytes per second.
    pub bytes_per_s: f64,
    /// Rate of the demands that were placed, in bytes per second.
    pub placed_bytes_per_s: f64,
}

impl Placed {
    /// Returns the part of the demanded bytes that was placed; 1 if there are no demands.
    #[must_use]
    pub fn share(&self) -> f64 {
        if self.bytes_per_s > 0.0 { self.placed_bytes_per_s / self.bytes_per_s } else { 1.0 }
    }
}

/// Placement by a controller.
#[derive(Clone, Debug, Default)]
pub struct Te {
    ways: BTreeMap<(Port, Port), Vec<Link>>,
    placed: Placed,
    /// True if demands that are not placed are hashed without their queue pair.
    plain: bool,
}

/// Largest number of demands that are moved to make room for another.
const MOVES: usize = 4_096;
/// Largest relative excess over a link's capacity that counts as rounding.
const HAIR: f64 = 1e-9;

impl Te {
    /// Returns the placement with another default: demands that are not placed are hashed by
    /// addresses and ports alone (`Ecmp`), not also by the queue pair (`HashedPairs`).
    #[must_use]
    pub fn over_plain_ecmp(self) -> Te {
        Te { plain: true, ..self }
    }

    pub(super) fn hashes_pairs(&self) -> bool {
        !self.plain
    }

    /// Places demands on the links that work now.
    ///
    /// # Errors
    ///
    /// If a demand has no path at all.
    pub fn place(network: &Network, demands: &[Demand]) -> Result<Te, crate::SimError> {
        Te::place_some(network, demands, false)
    }

    /// Places demands as `Te::place` does. Then places every remaining demand on the path with the
    /// most room, even if that room is too small.
    ///
    /// # Errors
    ///
    /// If a demand has no path at all.
    pub fn place_all(network: &Network, demands: &[Demand]) -> Result<Te, crate::SimError> {
        Te::place_some(network, demands, true)
    }

    fn place_some(network: &Network, demands: &[Demand], all: bool) -> Result<Te, crate::SimError> {
        let mut engine = Engine::new(network, demands)?;
        let mut order: Vec<usize> = (0..demands.len()).collect();
        // The largest demand goes first; among equals, the first one.
        order.sort_by(|one, other| {
            demands[*other].bytes_per_s.total_cmp(&demands[*one].bytes_per_s).then(one.cmp(other))
        });
        for index in order {
            if !engine.place(index) {
                engine.make_room(index);
            }
        }
        let mut te = Te::default();
        for (demand, way) in demands.iter().zip(&engine.ways) {
            te.placed.demands += 1;
            te.placed.bytes_per_s += demand.bytes_per_s;
            if way.is_some() {
                te.placed.placed += 1;
                te.placed.placed_bytes_per_s += demand.bytes_per_s;
            }
        }
        for index in 0..demands.len() {
            let missing = all && engine.ways[index].is_none();
            if let Some((_, way)) = missing.then(|| engine.widest(index, None)).flatten() {
                engine.put(index, way);
            }
        }
        let ways = demands.iter().zip(engine.ways);
        let way = |(demand, way): (&Demand, Option<Vec<Link>>)| {
            way.map(|way| ((demand.from, demand.to), way))
        };
        te.ways = ways.filter_map(way).collect();
        Ok(te)
    }

    /// Returns how many demands were placed where there was room, and their rates. Demands that
    /// only [`Te::place_all`] places do not count.
    #[must_use]
    pub fn placed(&self) -> Placed {
        self.placed
    }

    /// Sets `path` to the placed path of a flow, if all its links work. Returns false if the flow
    /// has no such path.
    pub(super) fn route(&self, network: &Network, key: &Key, path: &mut Path) -> bool {
        let Some(way) = self.ways.get(&(key.from, key.to)) else { return false };
        if !way.iter().all(|link| network.works(*link)) {
            return false;
        }
        path.clear();
        path.links.extend(way.iter().map(|link| (*link, 1.0)));
        true
    }
}

struct Engine<'a> {
    network: &'a Network,
    demands: &'a [Demand],
    turns: Vec<usize>,
    /// Capacity left on each link, in bytes per second.
    room: Vec<f64>,
    /// Per link: the demands that are placed on it.
    on: Vec<Vec<u32>>,
    ways: Vec<Option<Vec<Link>>>,
    found: Vec<Link>,
}

impl<'a> Engine<'a> {
    fn new(network: &'a Network, demands: &'a [Demand]) -> Result<Engine<'a>, crate::SimError> {
        let turn = |demand: &Demand| network.meeting(demand.from, demand.to);
        Ok(Engine {
            network,
            demands,
            turns: demands.iter().map(turn).collect::<Result<_, _>>()?,
            room: network.capacity().to_vec(),
            on: vec![Vec::new(); network.links() as usize],
            ways: vec![None; demands.len()],
            found: Vec::new(),
        })
    }

    /// Returns the path with the most room for a demand, over spine `spine` if one is given, else
    /// over any spine. The returned number is the room that the demand would leave on the path's
    /// fullest link, as a part of that link's capacity. The search uses Dijkstra's rule for the
    /// widest path, level by level: all shortest paths have the same levels.
    fn widest(&mut self, index: usize, spine: Option<u32>) -> Option<(f64, Vec<Link>)> {
        let demand = self.demands[index];
        let key = Key { from: demand.from, to: demand.to, channel: 0, pair: 0 };
        let way = FlowPath { network: self.network, key: &key, turn: self.turns[index] };
        let capacity = self.network.capacity();
        let mut found = std::mem::take(&mut self.found);
        // Per level: the reachable NICs or switches, keyed by number. Each has the capacity that
        // the demand would leave on the path to it (the least over the path's links, as a part of
        // each link's capacity), the last link of this path, and the number of the NIC or switch
        // where that link begins.
        let mut levels: Vec<BTreeMap<u32, (f64, Link, u32)>> = Vec::new();
        let mut here = BTreeMap::from([(demand.from.nic, (f64::INFINITY, 0, 0))]);
        for level in way.levels() {
            let mut next: BTreeMap<u32, (f64, Link, u32)> = BTreeMap::new();
            for (number, (left, ..)) in &here {
                self.network.choices(&way.step(level, *number), demand.to, way.turn, &mut found);
                for link in &found {
                    let far = self.network.far_end(*link);
                    if level == (1, true) && spine.is_some_and(|spine| spine != far) {
                        continue;
                    }
                    let after = self.room[*link as usize] - demand.bytes_per_s;
                    let least = left.min(after / capacity[*link as usize]);
                    if next.get(&far).is_none_or(|(known, ..)| least > *known) {
                        next.insert(far, (least, *link, *number));
                    }
                }
            }
            levels.push(std::mem::replace(&mut here, next));
        }
        self.found = found;
        levels.push(here);
        let mut number = demand.to.nic;
        let least = levels.last()?.get(&number)?.0;
        let mut links = Vec::with_capacity(levels.len());
        for level in levels[1..].iter().rev() {
            let (_, link, before) = level.get(&number)?;
            links.push(*link);
            number = *before;
        }
        links.reverse();
        Some((least, links))
    }

    /// Places a demand on a path with room for all of it; returns false if no path has room.
    fn place(&mut self, index: usize) -> bool {
        let fits = |(least, _): &(f64, Vec<Link>)| *least >= -HAIR;
        let Some((_, way)) = self.widest(index, None).filter(fits) else { return false };
        self.put(index, way);
        true
    }

    fn put(&mut self, index: usize, way: Vec<Link>) {
        for link in &way {
            self.room[*link as usize] -= self.demands[index].bytes_per_s;
            self.on[*link as usize].push(index as u32);
        }
        self.ways[index] = Some(way);
    }

    fn take(&mut self, index: usize) -> Option<Vec<Link>> {
        let way = self.ways[index].take()?;
        for link in &way {
            self.room[*link as usize] += self.demands[index].bytes_per_s;
            self.on[*link as usize].retain(|other| *other as usize != index);
        }
        Some(way)
    }

    /// Returns whether the demands on a link exceed its capacity.
    fn is_over(&self, link: Link) -> bool {
        self.room[link as usize] < -HAIR * self.network.capacity()[link as usize]
    }

    /// Places a demand by moving others, if possible. Does nothing unless the path of the demand
    /// turns at the second tier.
    fn make_room(&mut self, index: usize) {
        if self.turns[index] != 1 {
            return;
        }
        let needs = self.demands[index].bytes_per_s * (1.0 - HAIR);
        let spines = self.network.plan().fabric.below(2);
        let ways: Vec<Vec<Link>> =
            (0..spines).filter_map(|spine| self.coloured(index, spine)).collect();
        let has_room = |at: usize| {
            let room = &self.room;
            ways.iter().find(|way| room[way[at] as usize] >= needs)
        };
        // A colour is a spine. One colour has room on the uplink of the sender's rack, the other
        // one on the downlink to the receiver's rack.
        let (Some(first), Some(other)) = (has_room(1), has_room(2)) else { return };
        let colours = [first, other].map(|way| self.network.far_end(way[1]));
        let before: Vec<Link> = Vec::new();
        let mut moved = vec![(index, before)];
        let mut next = Some((index, colours[0]));
        while let Some((mover, colour)) = next {
            let old = self.take(mover).unwrap_or_default();
            if mover != index {
                moved.push((mover, old));
            }
            let Some(way) = self.coloured(mover, colour) else { break };
            let full = [way[1], way[2]];
            self.put(mover, way);
            let Some(over) = full.into_iter().find(|link| self.is_over(*link)) else { return };
            let opposite = if colour == colours[0] { colours[1] } else { colours[0] };
            let others = self.on[over as usize].iter().map(|other| *other as usize);
            next = others.filter(|other| *other != mover).max().map(|other| (other, opposite));
            if moved.len() > MOVES {
                break;
            }
        }
        // The moves did not help, so they are undone.
        for (mover, way) in moved.into_iter().rev() {
            self.take(mover);
            if !way.is_empty() {
                self.put(mover, way);
            }
        }
    }

    /// Returns the path of a demand over the spine `colour`.
    fn coloured(&mut self, index: usize, colour: u32) -> Option<Vec<Link>> {
        self.widest(index, Some(colour)).map(|(_, way)| way)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::Plan;
    use crate::presets::Zone;
    use ccl_core::random::Random;

    /// Returns the demands of a random permutation of all NICs, each at line rate.
    fn permutation(network: &Network, seed: u64) -> Vec<Demand> {
        let mut to: Vec<u32> = (0..network.ranks()).collect();
        Random::new(seed).shuffle(&mut to);
        let demand = |(from, to): (u32, u32)| Demand {
            from: network.port(from),
            to: network.port(to),
            bytes_per_s: 50e9,
        };
        (0..).zip(to).filter(|(from, to)| from != to).map(demand).collect()
    }

    #[test]
    fn all_demands_of_a_permutation_are_placed_even_without_spare_uplinks() {
        for seed in 0..20 {
            let network =
                Network::new(Zone { racks: 6, ..Zone::default() }.plan().unwrap()).unwrap();
            let te = Te::place(&network, &permutation(&network, seed)).unwrap();
            assert_eq!(te.placed().share(), 1.0, "seed {seed}: {:?}", te.placed());
        }
    }

    /// Checks that all paths over three tiers are tried: demands that fill the top tier are placed.
    #[test]
    fn all_paths_over_three_tiers_are_tried() {
        let zone = Zone { racks: 8, zones: 2, oversubscription: 1.0, ..Zone::default() };
        let network = Network::new(Plan { hosts: 32, ..zone.plan().unwrap() }).unwrap();
        let half = network.ranks() / 2;
        let demand = |from: u32, to: u32| Demand {
            from: network.port(from),
            to: network.port(to),
            bytes_per_s: 50e9,
        };
        // Every rank sends to its counterpart in the other zone; each spine has eight cables
        // upwards.
        let demands: Vec<Demand> =
            (0..half).flat_map(|at| [demand(at, half + at), demand(half + at, at)]).collect();
        let te = Te::place(&network, &demands).unwrap();
        assert_eq!(te.placed().share(), 1.0, "{:?}", te.placed());
        let mut used = vec![0.0; network.links() as usize];
        te.ways.values().flatten().for_each(|link| used[*link as usize] += 50e9);
        assert!(network.tier_links(2, true).all(|link| used[link as usize] > 0.0));
        assert!(used.iter().zip(network.capacity()).all(|(used, most)| used <= most));
    }

    #[test]
    fn no_link_gets_more_demand_than_its_capacity() {
        let mut network =
            Network::new(Zone { racks: 6, ..Zone::default() }.plan().unwrap()).unwrap();
        for link in network.uplinks(1, 2, 0).take(3).collect::<Vec<_>>() {
            network.fail(link);
        }
        let demands = permutation(&network, 7);
        let te = Te::place(&network, &demands).unwrap();
        let mut used = vec![0.0; network.links() as usize];
        for way in te.ways.values() {
            way.iter().for_each(|link| used[*link as usize] += 50e9);
        }
        let fits = |(used, capacity): (&f64, &f64)| *used <= capacity * (1.0 + 1e-6);
        assert!(used.iter().zip(network.capacity()).all(fits));
        let left = te.placed().demands - te.placed().placed;
        assert!((1..=6).contains(&left), "three failed cables leave {left} demands unplaced");
    }

    #[test]
    fn events_are_known_at_the_next_placement() {
        let every = Interval::default();
        assert_eq!(
            [0.0, 29.9, 30.0, 44.0].map(|at| every.known_at_s(at)),
            [30.0, 30.0, 60.0, 60.0]
        );
    }
}
