//! Collectives among ranks that all reach each other alike, over links of the same bandwidth.
//!
//! `bytes` is the size of the whole array: the bytes that each rank has after an all_gather, before
//! a reduce_scatter, before and after an all_reduce; for an all_to_all the arrays of all ranks
//! together. `bytes_per_s` is the rate at which one rank sends and, at the same time, receives.

/// Returns the time of an all_gather or a reduce_scatter: `B (N − 1) / (N W)`. Each rank receives
/// (or sends) all but its own part. (Scaling book, "Intra-node collectives".)
#[must_use]
pub fn all_gather_s(bytes: f64, ranks: f64, bytes_per_s: f64) -> f64 {
    bytes * (ranks - 1.0) / (ranks * bytes_per_s)
}

/// Returns the time of `all_gather_s` without the factor `(N − 1) / N`, which is near 1 for many
/// ranks: `B / W`.
#[must_use]
pub fn all_gather_approximate_s(bytes: f64, bytes_per_s: f64) -> f64 {
    bytes / bytes_per_s
}

/// Returns the time of an all_reduce as a reduce_scatter and an all_gather: `2 B (N − 1) / (N W)`.
#[must_use]
pub fn all_reduce_s(bytes: f64, ranks: f64, bytes_per_s: f64) -> f64 {
    2.0 * all_gather_s(bytes, ranks, bytes_per_s)
}

/// Returns the time of an all_reduce by the switches (SHARP, NVLS): each rank sends its array once
/// and receives the sum once, both at the same time: `B / W`. (Scaling book, "In-network
/// reductions".)
#[must_use]
pub fn all_reduce_in_network_s(bytes: f64, bytes_per_s: f64) -> f64 {
    bytes / bytes_per_s
}

/// Returns the largest factor by which switches that reduce can speed up an all_reduce:
/// `2 (N − 1) / N`. The measured factor is less: about 1.3 on nodes of eight H100.
#[must_use]
pub fn in_network_gain(ranks: f64) -> f64 {
    2.0 * (ranks - 1.0) / ranks
}

/// Returns the time of an all_to_all: `B (N − 1) / (W N²)`. Each rank has `B / N` and sends all but
/// an `N`th of that. (Scaling book, "Intra-node collectives".)
#[must_use]
pub fn all_to_all_s(bytes: f64, ranks: f64, bytes_per_s: f64) -> f64 {
    bytes * (ranks - 1.0) / (bytes_per_s * ranks * ranks)
}

/// Returns the time of `all_to_all_s` without the factor `(N − 1) / N`: `B / (W N)`.
#[must_use]
pub fn all_to_all_approximate_s(bytes: f64, ranks: f64, bytes_per_s: f64) -> f64 {
    bytes / (bytes_per_s * ranks)
}

/// Returns the time of an all_to_all in which each token goes to only `k` of `N` ranks, as in a
/// mixture of experts: `min(k / N, 1) B / (W N)`. (Scaling book, "Intra-node collectives".)
#[must_use]
pub fn ragged_all_to_all_s(bytes: f64, ranks: f64, bytes_per_s: f64, k: f64) -> f64 {
    (k / ranks).min(1.0) * all_to_all_approximate_s(bytes, ranks, bytes_per_s)
}

/// Returns the cost of a ragged all_to_all divided by the cost of a dense one:
/// `(1 − ((Z − 1) / Z)^k) (Z − 1) / Z`. Each token goes to `k` experts, whose ranks are drawn
/// independently from `Z` ranks. The share is less than [`ragged_share_approximate`], because a
/// token is sent only once to a rank that has several of its experts. (Scaling book, appendix on
/// ragged AllToAll.)
#[must_use]
pub fn ragged_share(ranks: f64, k: f64) -> f64 {
    let other = (ranks - 1.0) / ranks;
    (1.0 - other.powf(k)) * other
}

/// Returns [`ragged_share`] as if the experts of a token were all on different ranks:
/// `min(k / Z, 1) (Z − 1) / Z`.
#[must_use]
pub fn ragged_share_approximate(ranks: f64, k: f64) -> f64 {
    (k / ranks).min(1.0) * (ranks - 1.0) / ranks
}

/// Returns the wire rate of a link at which an all_reduce by the switches reaches `busbw`:
/// `busbw (N + 1) / (2 (N − 1))`. Together, ranks and switches send the array `N + 1` times; busbw
/// counts `2 (N − 1)` sends, which is more for `N > 3`. A busbw can then exceed the bandwidth of
/// the link. (Count of sends: engineering book, "SHARP".)
#[must_use]
pub fn in_network_wire_rate(busbw: f64, ranks: f64) -> f64 {
    busbw * (ranks + 1.0) / (2.0 * (ranks - 1.0))
}

/// Returns the wire rate between hosts, per rank, at which a hierarchical all_reduce (first within
/// each host, then between hosts) reaches `busbw`: `busbw (k − 1) / (n − 1)` for `n` ranks on `k`
/// hosts. Only data between hosts crosses the network.
#[must_use]
pub fn hierarchical_wire_rate(busbw: f64, hosts: f64, ranks: f64) -> f64 {
    busbw * (hosts - 1.0) / (ranks - 1.0)
}

/// Returns the time of an all_reduce among `k` hosts whose ranks first reduce within each host:
/// `2 B (k − 1) / (k W)`. `W` is the bandwidth of all rails of a host.
#[must_use]
pub fn hierarchical_all_reduce_s(bytes: f64, hosts: f64, host_bytes_per_s: f64) -> f64 {
    all_reduce_s(bytes, hosts, host_bytes_per_s)
}

#[cfg(test)]
mod tests {
    use super::super::about;
    use super::*;

    const NODE: f64 = 450e9;

    #[test]
    fn all_gather_and_all_reduce_within_a_node_match_the_source() {
        about(all_gather_s(4096.0 * 65536.0 * 2.0, 8.0, NODE), 1.044e-3, 5e-4);
        let bytes = 2.0 * 1024.0 * 16384.0;
        about(all_gather_approximate_s(bytes, NODE), 74.6e-6, 1e-3);
        about(all_gather_s(bytes, 8.0, NODE), 65.2e-6, 1e-3);
        about(all_reduce_s(1e9, 8.0, NODE), 3.889e-3, 2e-4);
        about(all_reduce_in_network_s(1e9, NODE), 2.222e-3, 2e-4);
        about(in_network_gain(8.0), 1.75, 1e-12);
        let multipliers = [2.0, 8.0, 64.0].map(in_network_gain);
        assert_eq!(multipliers, [1.0, 1.75, 1.96875]);
        assert_eq!(all_gather_s(1e9, 1.0, NODE), 0.0);
    }

    #[test]
    fn dense_and_ragged_all_to_all_within_a_node_match_the_source() {
        about(all_to_all_s(1e9, 8.0, NODE), 243e-6, 1e-3);
        about(all_to_all_approximate_s(1e9, 8.0, NODE), 278e-6, 1e-3);
        let dense = all_to_all_approximate_s(1e9, 8.0, NODE);
        about(ragged_all_to_all_s(1e9, 8.0, NODE, 4.0), dense / 2.0, 1e-12);
        about(ragged_all_to_all_s(1e9, 8.0, NODE, 40.0), dense, 1e-12);
        for (ranks, k, exact, approximate) in [
            (8.0, 4.0, 0.3621, 0.4375),
            (64.0, 8.0, 0.1165, 0.1230),
            (256.0, 8.0, 0.03071, 0.03113),
            (16.0, 4.0, 0.2133, 0.2344),
        ] {
            about(ragged_share(ranks, k), exact, 5e-4);
            about(ragged_share_approximate(ranks, k), approximate, 5e-4);
        }
    }

    #[test]
    fn wire_rates_and_hierarchical_times_match_the_source() {
        about(in_network_wire_rate(480.0, 8.0), 308.6, 2e-4);
        about(hierarchical_wire_rate(377.34, 4.0, 32.0), 36.52, 2e-4);
        let bytes = 4.0 * f64::from(1 << 30);
        about(bytes / 50e9, 85.9e-3, 1e-3);
        about(all_reduce_s(bytes, 32.0, 400e9), 20.8e-3, 1e-3);
        about(hierarchical_all_reduce_s(bytes, 4.0, 400e9), 16.1e-3, 1e-3);
    }
}
