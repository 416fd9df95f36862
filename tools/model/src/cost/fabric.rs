//! Collectives over the levels of a network (nodes of ranks, units of nodes, the switches that join
//! units), and the capacity of such a network.

/// One level of a tree of switches.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Level {
    /// Number of children of each switch, or of each set of parallel switches.
    pub children: f64,
    /// Bytes per second that one child sends into the level, and receives from it at the same time.
    pub child_bytes_per_s: f64,
}

impl Level {
    /// Returns the rate at which an all_gather or reduce_scatter passes this level:
    /// `D W / (D − 1)` for `D` children of `W` bytes per second each.
    #[must_use]
    pub fn gather_bytes_per_s(&self) -> f64 {
        self.children * self.child_bytes_per_s / (self.children - 1.0)
    }
}

/// Returns the level that bounds an all_gather or reduce_scatter over all these levels, and the
/// rate of the collective: `min_i D_i W_i / (D_i − 1)`. Returns None if there is no level. (Scaling
/// book, "Cross-node collectives".)
#[must_use]
pub fn tree_gather_bytes_per_s(levels: &[Level]) -> Option<(usize, f64)> {
    let rates = levels.iter().map(Level::gather_bytes_per_s).enumerate();
    rates.min_by(|(_, one), (_, other)| one.total_cmp(other))
}

/// Returns the time of an all_to_all over `M` nodes: `B (M − 1) / (M² W)`. `bytes` is the total of
/// all ranks, `W` the bandwidth of one node. The formula has no levels: each part of the data has
/// one receiver, and leaves its node once. (Scaling book, "Cross-node collectives".)
#[must_use]
pub fn cross_node_all_to_all_s(bytes: f64, nodes: f64, node_bytes_per_s: f64) -> f64 {
    bytes * (nodes - 1.0) / (nodes * nodes * node_bytes_per_s)
}

/// Returns the time of `cross_node_all_to_all_s` without the factor `(M − 1) / M`: `B / (M W)`.
#[must_use]
pub fn cross_node_all_to_all_approximate_s(bytes: f64, nodes: f64, node_bytes_per_s: f64) -> f64 {
    bytes / (nodes * node_bytes_per_s)
}

/// One level of a tree, for gathering an array that is also sharded over an inner axis.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ShardedLevel {
    /// Number of children of each switch.
    pub children: f64,
    /// Number of ranks below each child.
    pub ranks_below: f64,
    /// Bytes per second of one *rank's share* of a child's link: bandwidth of the child, divided by
    /// `ranks_below`.
    pub rank_bytes_per_s: f64,
}

/// Returns the time of an all_gather or reduce_scatter along the outer axis of an array that is
/// sharded `Y`-fold along an inner axis: `bytes · max_i (D_i − 1) / (D_i max(Y, S_{i−1}) w_i)`. A
/// switch of level `i` has `D_i` children. A child has `S_{i−1}` ranks, each with a share `w_i` of
/// the child's link. (Scaling book, "reductions when the array is sharded over a separate axis".
/// The book's `W_link` must be read as the share `w_i`.)
#[must_use]
pub fn sharded_gather_s(bytes: f64, inner: f64, levels: &[ShardedLevel]) -> f64 {
    let of = |level: &ShardedLevel| {
        let all_but_one = (level.children - 1.0) / level.children;
        bytes * all_but_one / (inner.max(level.ranks_below) * level.rank_bytes_per_s)
    };
    levels.iter().map(of).fold(0.0, f64::max)
}

/// Returns the time of `sharded_gather_s` without the factor `(D − 1) / D`: `bytes / (Y w)`. The
/// formula holds if `Y` exceeds `ranks_below` of the level that bounds the collective.
#[must_use]
pub fn sharded_gather_approximate_s(bytes: f64, inner: f64, rank_bytes_per_s: f64) -> f64 {
    bytes / (inner * rank_bytes_per_s)
}

/// Returns the duration of each of two parts of an all_reduce over nodes of `D` ranks: `bytes /
/// W_gpu / min(Y, D)` within nodes, and `bytes / W_node · D / max(D, Y)` between nodes. The array
/// is sharded `Y`-fold along an inner axis. The longer time bounds the collective. Sharding speeds
/// up the part between nodes only if `Y > D`. (Scaling book, as above.)
#[must_use]
pub fn sharded_all_reduce_s(
    bytes: f64,
    inner: f64,
    node_ranks: f64,
    rank_bytes_per_s: f64,
    node_bytes_per_s: f64,
) -> (f64, f64) {
    let within = bytes / rank_bytes_per_s / inner.min(node_ranks);
    let between = bytes / node_bytes_per_s * node_ranks / node_ranks.max(inner);
    (within, between)
}

/// Number of bytes into a switch and out of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Through {
    /// Bytes that enter the switch.
    pub in_bytes: f64,
    /// Bytes that leave the switch.
    pub out_bytes: f64,
}

/// Returns the bytes through the switches of each node during an all_gather on `M` nodes of `N`
/// ranks. The node's ranks and the other nodes send all parts into the switches: `B` bytes. The
/// switches send each rank all parts but the rank's own, and send the node's parts to the level
/// above: `B N` bytes. (Scaling book, quiz 4.)
#[must_use]
pub fn gather_through_node(bytes: f64, ranks: f64) -> Through {
    Through { in_bytes: bytes, out_bytes: bytes * ranks }
}

/// Returns the bytes through the switches above `M` nodes during the all_gather of
/// [`gather_through_node`]: `B` in, `B (M − 1)` out.
#[must_use]
pub fn gather_through_spine(bytes: f64, nodes: f64) -> Through {
    Through { in_bytes: bytes, out_bytes: bytes * (nodes - 1.0) }
}

/// Returns the bytes through a reducing switch during an all_reduce of the `N` ranks below it:
/// `B N` in each direction.
#[must_use]
pub fn in_network_through(bytes: f64, ranks: f64) -> Through {
    Through { in_bytes: bytes * ranks, out_bytes: bytes * ranks }
}

/// Returns the total rate at which a node's ranks can send to each other:
/// `min(switches × ports × W_port, ranks × W_rank)`.
#[must_use]
pub fn node_bytes_per_s(
    switches: f64,
    ports: f64,
    port_bytes_per_s: f64,
    ranks: f64,
    rank_bytes_per_s: f64,
) -> f64 {
    (switches * ports * port_bytes_per_s).min(ranks * rank_bytes_per_s)
}

/// Returns the bandwidth between the halves of a group of ranks, both directions together: `N W`.
#[must_use]
pub fn bisection_bytes_per_s(ranks: f64, rank_bytes_per_s: f64) -> f64 {
    ranks / 2.0 * rank_bytes_per_s * 2.0
}

/// Returns the bandwidth of a group of links, in bytes per second.
#[must_use]
pub fn links_bytes_per_s(links: f64, bits_per_s: f64) -> f64 {
    links * bits_per_s / 8.0
}

/// Returns each child's share of a level's bandwidth. The ratio of a child's bandwidth to this
/// share is the oversubscription of the level.
#[must_use]
pub fn share_bytes_per_s(level_bytes_per_s: f64, below: f64) -> f64 {
    level_bytes_per_s / below
}

#[cfg(test)]
mod tests {
    use super::super::about;
    use super::*;

    const NODE: Level = Level { children: 8.0, child_bytes_per_s: 450e9 };
    const UNIT: Level = Level { children: 32.0, child_bytes_per_s: 400e9 };
    const SPINE: Level = Level { children: 4.0, child_bytes_per_s: 12.8e12 };

    #[test]
    fn a_pod_gathers_as_fast_as_its_slowest_level() {
        let rates = [NODE, UNIT, SPINE].map(|level| level.gather_bytes_per_s() / 1e9);
        for (rate, expected) in rates.into_iter().zip([514.0, 413.0, 17_067.0]) {
            about(rate, expected, 1e-3);
        }
        let (level, rate) = tree_gather_bytes_per_s(&[NODE, UNIT, SPINE]).unwrap();
        assert_eq!(level, 1);
        about(rate, 413e9, 1e-3);
        // With two nodes, the links within the nodes are the slower part.
        let two = Level { children: 2.0, ..UNIT };
        assert_eq!(two.gather_bytes_per_s(), 800e9);
        assert_eq!(tree_gather_bytes_per_s(&[NODE, two]).unwrap().0, 0);
        assert_eq!(tree_gather_bytes_per_s(&[]), None);
    }

    #[test]
    fn all_to_all_over_two_nodes_takes_4_5_times_as_long_as_within_a_node() {
        let within = super::super::collectives::all_to_all_approximate_s(1e9, 8.0, 450e9);
        let between = cross_node_all_to_all_approximate_s(1e9, 2.0, 400e9);
        about(between / within, 4.5, 1e-12);
        about(cross_node_all_to_all_s(1e9, 2.0, 400e9), 1e9 / (4.0 * 400e9), 1e-12);
    }

    #[test]
    fn an_inner_axis_helps_once_it_has_more_ranks_than_a_node() {
        let bytes = 2.0 * 8192.0 * 32768.0;
        let unit = ShardedLevel { children: 32.0, ranks_below: 8.0, rank_bytes_per_s: 50e9 };
        for inner in [1.0, 2.0, 8.0] {
            about(sharded_gather_s(bytes, inner, &[unit]), 1.300e-3, 5e-4);
        }
        for (inner, expected) in
            [(16.0, 0.671), (32.0, 0.336), (64.0, 0.168), (128.0, 0.0839), (256.0, 0.0419)]
        {
            about(sharded_gather_approximate_s(bytes, inner, 50e9), expected * 1e-3, 2e-3);
        }
        let of = |inner| sharded_all_reduce_s(1e9, inner, 8.0, 450e9, 400e9);
        let whole = |inner| {
            let (within, between) = of(inner);
            f64::max(within, between)
        };
        assert_eq!(whole(2.0), whole(8.0));
        about(whole(16.0), whole(8.0) / 2.0, 1e-12);
    }

    #[test]
    fn bytes_through_switches_follow_from_ranks_and_nodes() {
        assert_eq!(gather_through_node(3.0, 8.0), Through { in_bytes: 3.0, out_bytes: 24.0 });
        assert_eq!(gather_through_spine(3.0, 32.0), Through { in_bytes: 3.0, out_bytes: 93.0 });
        assert_eq!(in_network_through(3.0, 8.0), Through { in_bytes: 24.0, out_bytes: 24.0 });
    }

    #[test]
    fn bandwidths_of_links_and_nodes_add_up() {
        assert_eq!(node_bytes_per_s(4.0, 64.0, 25e9, 8.0, 450e9), 3.6e12);
        assert_eq!(node_bytes_per_s(4.0, 64.0, 25e9, 16.0, 450e9), 6.4e12);
        assert_eq!(bisection_bytes_per_s(8.0, 450e9), 3.6e12);
        // A SuperPod of 128 nodes has 400 GB/s for each node, at each of its levels.
        let node = links_bytes_per_s(8.0, 400e9);
        let unit = links_bytes_per_s(8.0 * 32.0, 400e9);
        let up = links_bytes_per_s(8.0 * 16.0 * 2.0, 400e9);
        let spine = 16.0 * 3.2e12;
        assert_eq!((node, unit, up, spine), (400e9, 12.8e12, 12.8e12, 51.2e12));
        let shares = [(unit, 32.0), (up, 32.0), (spine, 128.0)];
        assert!(shares.iter().all(|(level, nodes)| share_bytes_per_s(*level, *nodes) == 400e9));
        // A GB200 NVL72 has 18 trays with four NICs each.
        assert_eq!(links_bytes_per_s(4.0 * 18.0, 400e9), 3.6e12);
        assert_eq!(links_bytes_per_s(4.0 * 8.0, 100e9), 400e9);
    }
}
