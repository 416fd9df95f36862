//! Flows of queue pairs, which an Ethernet fabric hashes onto its links.

use core::net::IpAddr;

use serde::Serialize;

/// Flow of one queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Flow {
    /// Address of this side.
    pub from: IpAddr,
    /// Address of the peer.
    pub to: IpAddr,
    /// Source port in UDP.
    pub source_port: u16,
    /// Destination port in UDP.
    pub destination_port: u16,
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// Queue pair of the peer, which some fabrics hash as well.
    pub queue_pair: u32,
}

/// Number of hashes that are tried, because a fabric's own hash is not known.
const HASHES: u64 = 64;

/// Returns how unevenly a fabric hashes flows of equal size onto equal links: the largest load of a
/// link divided by the mean load, averaged over several hashes of addresses and ports. The result
/// is 1 for an even load, `links` if all flows share a link, and 0 without flows or links.
///
/// [Meta, SIGCOMM 2024], section 5.2, defines this measure.
///
/// [Meta, SIGCOMM 2024]: https://doi.org/10.1145/3651890.3672233
#[must_use]
pub fn max_to_mean(flows: &[Flow], links: usize) -> f64 {
    if flows.is_empty() || links == 0 {
        return 0.0;
    }
    let mut sum = 0;
    for hash in 0..HASHES {
        let mut loads = vec![0u64; links];
        for flow in flows {
            loads[(flow.hashed(hash, false) % links as u64) as usize] += 1;
        }
        sum += loads.iter().max().copied().unwrap_or(0);
    }
    sum as f64 / HASHES as f64 * links as f64 / flows.len() as f64
}

impl Flow {
    /// Returns a hash of the fields that fabrics hash by default, and of the peer's queue pair if
    /// `with_queue_pair`. Each `salt` selects another hash function, as each switch has its own.
    #[must_use]
    pub fn hashed(&self, salt: u64, with_queue_pair: bool) -> u64 {
        let address = |address: IpAddr| match address {
            IpAddr::V4(four) => u128::from(four.to_bits()),
            IpAddr::V6(six) => six.to_bits(),
        };
        let (from, to) = (address(self.from), address(self.to));
        let ports = u64::from(self.source_port) << 16 | u64::from(self.destination_port);
        let words = [(from >> 64) as u64, from as u64, (to >> 64) as u64, to as u64, ports];
        let hash = words.iter().fold(mixed(salt), |hash, word| mixed(hash ^ word));
        if with_queue_pair { mixed(hash ^ u64::from(self.queue_pair)) } else { hash }
    }
}

/// Returns the output of SplitMix64 for the state `word`: <https://prng.di.unimi.it/splitmix64.c>
fn mixed(word: u64) -> u64 {
    let word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

#[cfg(test)]
mod tests {
    use core::net::Ipv4Addr;

    use super::*;

    /// Returns flows to one host from `hosts` other hosts, `each` flows per host.
    fn flows(hosts: u8, each: u16) -> Vec<Flow> {
        let flow = |host, number: u16| Flow {
            from: Ipv4Addr::new(10, 0, 0, host).into(),
            to: Ipv4Addr::new(10, 0, 1, 1).into(),
            source_port: 0xc000 + number,
            destination_port: 4791,
            traffic_class: 0,
            queue_pair: u32::from(number),
        };
        let numbers = |host| (0..each).map(move |number| flow(host, number));
        (0..hosts).flat_map(numbers).collect()
    }

    fn is_about(flows: &[Flow], links: usize, expected: f64) {
        let found = max_to_mean(flows, links);
        let flows = flows.len();
        assert!((found / expected - 1.0).abs() < 0.08, "{flows} flows, {links} links: {found}");
    }

    /// Compares the measure with its value for balls thrown into bins at random, for the paper's
    /// cases.
    #[test]
    fn more_flows_are_spread_more_evenly() {
        is_about(&flows(100, 10), 16, 1.229);
        for (each, expected) in [(1, 3.05), (4, 1.97), (16, 1.47), (32, 1.32)] {
            is_about(&flows(16, each), 16, expected);
        }
    }

    #[test]
    fn max_to_mean_is_the_number_of_links_for_one_flow_and_1_for_one_link() {
        assert_eq!(max_to_mean(&flows(1, 1), 8), 8.0);
        assert_eq!(max_to_mean(&flows(3, 5), 1), 1.0);
        assert_eq!((max_to_mean(&[], 8), max_to_mean(&flows(1, 1), 0)), (0.0, 0.0));
    }

    #[test]
    fn flows_with_the_same_hashed_fields_share_a_link() {
        let same = flows(1, 4).into_iter().map(|flow| Flow { source_port: 49152, ..flow });
        assert_eq!(max_to_mean(&same.collect::<Vec<_>>(), 4), 4.0);
    }
}
