//! NCCL's model of its own latencies, with the model's constants: an oracle to compare with.
//! (`tuning.cc` of NCCL 2.30; times in microseconds there and here.)

/// Protocol by which NCCL sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Packets of 8 bytes, of which 4 are a flag.
    Ll,
    /// Packets of 128 bytes, of which 8 are a flag.
    Ll128,
    /// Slices of data with a separate counter.
    Simple,
}

/// Interconnect between the ranks of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Within {
    /// NVLink.
    NvLink,
    /// PCIe.
    Pci,
}

type ByProtocol = [f64; 3];

const TREE_BASE: ByProtocol = [6.8, 14.0, 8.4];
const RING_BASE: ByProtocol = [6.6, 14.0, 8.4];
const PAT_BASE: ByProtocol = [8.0, 8.0, 8.0];
const TREE_NVLINK: ByProtocol = [0.6, 1.25, 4.0];
const RING_NVLINK: ByProtocol = [0.6, 1.9, 3.4];
const TREE_PCI: ByProtocol = [1.0, 1.9, 4.0];
const RING_PCI: ByProtocol = [1.0, 2.5, 5.7];
const TREE_NET: ByProtocol = [5.0, 8.5, 14.0];
const RING_NET: ByProtocol = [2.7, 4.0, 14.0];

/// Ranks on nodes of equal size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ranks {
    /// Number of ranks in all; n in the formulas.
    pub ranks: f64,
    /// Number of nodes; M in the formulas.
    pub nodes: f64,
    /// Interconnect between the ranks of a node.
    pub within: Within,
}

impl Ranks {
    fn pick(&self, nvlink: &ByProtocol, pci: &ByProtocol, protocol: Protocol) -> f64 {
        match self.within {
            Within::NvLink => nvlink[protocol as usize],
            Within::Pci => pci[protocol as usize],
        }
    }

    /// Returns the latency of a ring: `base + R ((n − M) · within + (M − 1) · net)`. R is `rounds`:
    /// 2 for an all_reduce, 1 for an all_gather or a reduce_scatter. A round among n ranks on M
    /// nodes has n − 1 steps, of which M − 1 go between nodes. A step takes `within` in a node, and
    /// `net` between nodes.
    #[must_use]
    pub fn ring_us(&self, rounds: f64, protocol: Protocol) -> f64 {
        let (steps, between) = (rounds * (self.ranks - 1.0), rounds * (self.nodes - 1.0));
        let within = self.pick(&RING_NVLINK, &RING_PCI, protocol);
        let (base, net) = (RING_BASE[protocol as usize], RING_NET[protocol as usize]);
        base + (steps - between) * within + between * net
    }

    /// Returns the latency of an all_reduce by trees:
    /// `base + 2 ((n / M − 1) · within + log2(M) · net)`.
    #[must_use]
    pub fn tree_us(&self, protocol: Protocol) -> f64 {
        let within = self.pick(&TREE_NVLINK, &TREE_PCI, protocol);
        let (base, net) = (TREE_BASE[protocol as usize], TREE_NET[protocol as usize]);
        base + 2.0 * ((self.ranks / self.nodes - 1.0) * within + self.nodes.log2() * net)
    }

    /// Returns the latency of an all_gather or a reduce_scatter by parallel trees (PAT), one rank
    /// per node: `base + log2(M) · net / 3.5 + 2.8 · n`.
    #[must_use]
    pub fn pat_us(&self) -> f64 {
        let simple = Protocol::Simple as usize;
        PAT_BASE[simple] + self.nodes.log2() * RING_NET[simple] / 3.5 + 2.8 * self.ranks
    }
}

#[cfg(test)]
mod tests {
    use super::super::about;
    use super::*;

    fn h100(nodes: f64) -> Ranks {
        Ranks { ranks: 8.0 * nodes, nodes, within: Within::NvLink }
    }

    #[test]
    fn latencies_equal_those_of_nccl() {
        about(h100(1.0).ring_us(2.0, Protocol::Ll), 6.6 + 14.0 * 0.6, 1e-12);
        about(h100(2.0).ring_us(2.0, Protocol::Simple), 8.4 + 28.0 * 3.4 + 2.0 * 14.0, 1e-12);
        about(h100(4.0).tree_us(Protocol::Ll), 6.8 + 2.0 * (7.0 * 0.6 + 2.0 * 5.0), 1e-12);
        let pci = Ranks { ranks: 4.0, nodes: 1.0, within: Within::Pci };
        about(pci.ring_us(1.0, Protocol::Ll128), 14.0 + 3.0 * 2.5, 1e-12);
        let alone = Ranks { ranks: 4.0, nodes: 4.0, within: Within::NvLink };
        about(alone.pat_us(), 8.0 + 2.0 * 14.0 / 3.5 + 11.2, 1e-12);
    }

    /// Compares with measurements on p5: 12.9 µs on one node, 235 µs on 16. (Source: Training
    /// playbook.)
    #[test]
    fn a_ring_of_small_packets_has_the_measured_latency() {
        about(h100(1.0).ring_us(2.0, Protocol::Ll), 12.9, 0.35);
        about(h100(16.0).ring_us(2.0, Protocol::Ll), 235.0, 0.35);
        let each = h100(16.0).ring_us(2.0, Protocol::Ll) - h100(15.0).ring_us(2.0, Protocol::Ll);
        about(each, 12.8, 0.35);
    }
}
