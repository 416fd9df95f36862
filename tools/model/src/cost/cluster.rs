//! Bus bandwidth (busbw) of collectives with large messages, by algorithm. The GPUs of a node are
//! connected by NVLink, and the nodes by NICs.
//!
//! Two efficiencies describe an implementation: the share of the links' bandwidth that it reaches
//! within nodes, and the share between nodes. Given both shares, predictions for other clusters and
//! collectives follow from the bandwidths of the links.

/// Nodes and the links that join them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cluster {
    /// Number of nodes.
    pub nodes: f64,
    /// Number of ranks on each node.
    pub node_ranks: f64,
    /// Bytes per second that a rank sends to other ranks of its node.
    pub rank_bytes_per_s: f64,
    /// Bytes per second that a node sends to the network.
    pub node_bytes_per_s: f64,
    /// Share of `rank_bytes_per_s` that is reached, from 0 to 1.
    pub within: f64,
    /// Share of `node_bytes_per_s` that is reached, from 0 to 1.
    pub between: f64,
    /// Factor by which switches that reduce accelerate an all_reduce of a node; 1 without them.
    pub in_network: f64,
}

impl Cluster {
    fn ranks(&self) -> f64 {
        self.nodes * self.node_ranks
    }

    fn inside(&self) -> f64 {
        self.rank_bytes_per_s * self.within
    }

    fn outside(&self) -> f64 {
        if self.nodes > 1.0 { self.node_bytes_per_s * self.between } else { f64::INFINITY }
    }

    /// Returns the busbw of an all_reduce by a ring through all ranks: the lower of the rates
    /// within nodes and between them. The ring's hops between nodes share all NICs.
    #[must_use]
    pub fn ring_busbw(&self) -> f64 {
        self.inside().min(self.outside())
    }

    /// Returns the busbw of an all_reduce by two trees over the nodes, with reducing switches
    /// within each node.
    ///
    /// Let the array have B bytes, and let a node reach W bytes per second to the network. With two
    /// nodes, each node is the root of one tree and the leaf of the other. Each node sends half of
    /// the array up and half down: B bytes in all, so algbw = W. With more nodes, most nodes send
    /// the whole array up and down: 2 B bytes, so algbw = W / 2. With n ranks, the busbw is
    /// 2 (n - 1) / n times the algbw.
    #[must_use]
    pub fn tree_busbw(&self) -> f64 {
        let ranks = self.ranks();
        let sent = if self.nodes <= 2.0 { 1.0 } else { 2.0 };
        let over_nodes = self.outside() / sent * 2.0 * (ranks - 1.0) / ranks;
        (self.inside() * self.in_network).min(over_nodes)
    }

    /// Returns the busbw of the faster of ring and trees.
    #[must_use]
    pub fn all_reduce_busbw(&self) -> f64 {
        self.ring_busbw().max(self.tree_busbw())
    }

    /// Returns the busbw of an all_to_all. With N of the n ranks on each node, a share of
    /// (N − 1) / n of a rank's data goes to other ranks of its node. All ranks of a node share its
    /// NICs for the data to other nodes.
    #[must_use]
    pub fn all_to_all_busbw(&self) -> f64 {
        let ranks = self.ranks();
        let inside = (self.node_ranks - 1.0) / ranks / self.inside();
        let outside = (ranks - self.node_ranks) / ranks * self.node_ranks / self.outside();
        (ranks - 1.0) / ranks / inside.max(outside)
    }

    /// Returns the bandwidth between two ranks on different nodes: the rank's share of the NICs, at
    /// most the bandwidth of all channels.
    #[must_use]
    pub fn send_recv_bytes_per_s(&self, channels: f64, channel_bytes_per_s: f64) -> f64 {
        (self.outside() / self.node_ranks).min(channels * channel_bytes_per_s)
    }
}

/// Returns a cluster of AWS p5 nodes: eight H100, 32 NICs of 100 Gb/s. `within` is calibrated with
/// the all_reduce of one node without reducing switches (370 of 450 GB/s), `between` with send/recv
/// of two nodes (43 of 50 GB/s); `in_network` is the measured gain from reducing switches.
#[must_use]
pub const fn p5(nodes: f64) -> Cluster {
    Cluster {
        nodes,
        node_ranks: 8.0,
        rank_bytes_per_s: 450e9,
        node_bytes_per_s: 400e9,
        within: 370.0 / 450.0,
        between: 43.0 / 50.0,
        in_network: 1.3,
    }
}

#[cfg(test)]
mod tests {
    use super::super::about;
    use super::*;

    /// Compares with measurements, within 5 percent for all_reduce and 15 percent for all_to_all.
    /// (Training playbook, "GPU-to-GPU internode".)
    #[test]
    fn p5_clusters_are_as_measured() {
        for (nodes, measured) in [(1.0, 480e9), (2.0, 479e9), (3.0, 335e9), (16.0, 335e9)] {
            about(p5(nodes).all_reduce_busbw(), measured, 0.05);
        }
        for (nodes, measured) in [(1.0, 344e9), (2.0, 81e9), (3.0, 58e9), (16.0, 45e9)] {
            about(p5(nodes).all_to_all_busbw(), measured, 0.15);
        }
        // Each of two channels carries half of the 43 GB/s. Beyond four nodes, NCCL uses only one
        // channel.
        assert_eq!(p5(4.0).send_recv_bytes_per_s(2.0, 21.5e9), 43e9);
        about(p5(5.0).send_recv_bytes_per_s(1.0, 21.5e9), 21e9, 0.05);
    }

    #[test]
    fn reducing_switches_speed_up_all_reduce_by_the_measured_factor() {
        let without = Cluster { in_network: 1.0, ..p5(1.0) };
        about(without.all_reduce_busbw(), 370e9, 1e-9);
        about(p5(1.0).all_reduce_busbw() / without.all_reduce_busbw(), 1.3, 1e-9);
    }
}
