//! Collectives as traffic: bytes by sender and receiver, from the schedules of all ranks.

use std::collections::BTreeMap;

use ccl_core::algorithm::{Algorithm, Params};
use ccl_core::random::Random;
use ccl_core::schedule::RankSchedule;
use ccl_core::schedule::shape::Seat;
use ccl_core::topology::Hosts;
use ccl_core::types::{Collective, Rank};
use ccl_traffic::Sent;

use crate::SimError;
use crate::network::Network;
use crate::streams::Stream;

/// Bytes of an element, a float32.
pub(crate) const ELEMENT_BYTES: usize = 4;

/// Least memory that one stream takes, in bytes. It counts all structures, from the schedules to
/// the stream's first flow.
const STREAM_BYTES: f64 = 600.0;

/// A collective with an algorithm and a size.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// Algorithm of the collective.
    pub algorithm: &'static Algorithm,
    /// Bytes of the larger of a rank's two buffers.
    pub bytes: u64,
}

impl Call {
    /// Makes a call of a collective by the algorithm with the name `algorithm`.
    ///
    /// # Errors
    ///
    /// If the collective has no algorithm of that name.
    pub fn new(collective: Collective, algorithm: &str, bytes: u64) -> Result<Call, SimError> {
        let found = ccl_core::algorithm::find(collective, algorithm);
        let algorithm = found.map_err(|_| SimError::Unknown {
            what: "algorithm",
            name: algorithm.to_owned(),
            known: ccl_core::algorithm::of(collective)
                .map(|algorithm| algorithm.name)
                .collect::<Vec<_>>()
                .join(" "),
        })?;
        Ok(Call { algorithm, bytes })
    }

    /// Returns the number of elements of each block of the buffers (see [`ccl_core::algorithm`]).
    #[must_use]
    pub fn count(&self, ranks: u32) -> usize {
        let seat = Seat { collective: self.algorithm.collective, rank: 0, ranks, root: 0 };
        let (input, output) = seat.blocks();
        self.bytes as usize / ELEMENT_BYTES / input.max(output).max(1) as usize
    }

    /// Returns the schedule of one rank.
    #[must_use]
    pub fn schedule(&self, rank: Rank, hosts: &Hosts) -> RankSchedule {
        let ranks = hosts.ranks();
        (self.algorithm.schedule)(&Params { rank, ranks, root: 0, hosts })
    }

    /// Returns the bytes that one rank sends, by peer.
    #[must_use]
    pub fn sends(&self, rank: Rank, hosts: &Hosts) -> BTreeMap<Rank, u64> {
        let (algorithm, count) = (self.algorithm, self.count(hosts.ranks()));
        let sent = Sent { algorithm, root: 0, count, element_bytes: ELEMENT_BYTES, hosts };
        // All simulated collectives have blocks of equal length; for others, the result is empty.
        sent.by(rank).unwrap_or_default()
    }
}

/// Hosts that work on one job, in the order of the job's ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// Numbers of the job's hosts in the network.
    pub hosts: Vec<u32>,
}

impl Job {
    /// Returns the job on hosts 0, 1, …
    #[must_use]
    pub fn first(hosts: u32) -> Job {
        Job { hosts: (0..hosts).collect() }
    }

    /// Fills a network with jobs; job `n` has `sizes[n % sizes.len()]` hosts. Jobs get the hosts in
    /// order, or in random order if `scattered` is given.
    #[must_use]
    pub fn fill(network: &Network, sizes: &[u32], scattered: Option<&mut Random>) -> Vec<Job> {
        let mut hosts: Vec<u32> = (0..network.plan().hosts).collect();
        if let Some(random) = scattered {
            random.shuffle(&mut hosts);
        }
        let (mut jobs, mut left) = (Vec::new(), hosts.as_slice());
        for size in sizes.iter().cycle() {
            if sizes.is_empty() || *size == 0 || left.len() < *size as usize {
                break;
            }
            let (own, others) = left.split_at(*size as usize);
            jobs.push(Job { hosts: own.to_vec() });
            left = others;
        }
        jobs
    }

    /// Returns the placement of the job's ranks on its hosts. Ranks and hosts are numbered from 0
    /// within the job.
    #[must_use]
    pub fn layout(&self, ranks_per_host: u32) -> Hosts {
        let names: Vec<u32> = (0..self.hosts.len() as u32 * ranks_per_host)
            .map(|rank| rank / ranks_per_host)
            .collect();
        Hosts::of(&names)
    }

    /// Returns the streams that a call of the job sends between hosts, each from a NIC to a NIC.
    ///
    /// Each of the `rings` rings has an equal part of the buffer. Ring `r` rotates the ranks within
    /// every host by `r`. A ring leaves a host by one NIC only, and the rotation makes different
    /// rings use different NICs; so all NICs are in use if there are as many rings as NICs, as in
    /// NCCL. The streams of one sender are ordered by the receiver's host. The order is that of the
    /// job's hosts, but it begins after the sender's host and wraps around.
    ///
    /// # Errors
    ///
    /// If the streams need more memory than the plan allows.
    pub fn streams(
        &self,
        network: &Network,
        call: &Call,
        rings: u32,
        group: u32,
    ) -> Result<Vec<Stream>, SimError> {
        let each = network.plan().ranks_per_host;
        let hosts = self.layout(each);
        let rings = rings.max(1);
        let part = Call { bytes: call.bytes / u64::from(rings), ..*call };
        self.check_memory(network, &part, &hosts, rings)?;
        let mut bytes: BTreeMap<(u32, u32), f64> = BTreeMap::new();
        for rank in 0..hosts.ranks() {
            for (peer, sent) in part.sends(rank, &hosts) {
                for turn in 0..rings {
                    let seat = |rank: Rank| {
                        let host = self.hosts[(rank / each) as usize];
                        host * each + (rank % each + turn) % each
                    };
                    let (from, to) = (seat(rank), seat(peer));
                    if from / each != to / each {
                        *bytes.entry((from, to)).or_insert(0.0) += sent as f64;
                    }
                }
            }
        }
        let place: BTreeMap<u32, u32> = self.hosts.iter().copied().zip(0..).collect();
        let distance = |(from, to): (u32, u32)| {
            let place = |rank: u32| place.get(&(rank / each)).copied().unwrap_or(0);
            (place(to) + self.hosts.len() as u32 - place(from)) % self.hosts.len() as u32
        };
        let mut bytes: Vec<_> = bytes.into_iter().collect();
        bytes.sort_by_key(|(pair, _)| (pair.0, distance(*pair), pair.1));
        let of_pair = |(pair, bytes)| of_pair(network, pair, bytes, group);
        Ok(bytes.into_iter().flat_map(of_pair).collect())
    }

    /// Refuses streams that need too much memory, by an estimate from the ranks of the first host.
    fn check_memory(
        &self,
        network: &Network,
        part: &Call,
        hosts: &Hosts,
        rings: u32,
    ) -> Result<(), SimError> {
        let each = network.plan().ranks_per_host;
        let others = |rank| part.sends(rank, hosts).into_keys().filter(|peer| peer / each > 0);
        let peers: usize = (0..each.min(hosts.ranks())).map(|rank| others(rank).count()).sum();
        let streams =
            peers as f64 * self.hosts.len() as f64 * f64::from(rings) * f64::from(network.rails());
        let what = format!("{streams:.0} streams between {} hosts", self.hosts.len());
        SimError::if_over(what, streams * STREAM_BYTES, network.plan().memory_mib)
    }
}

/// Returns the streams from one rank to a rank on another host: one for each rail, of equal size.
pub(crate) fn of_pair(
    network: &Network,
    (from, to): (Rank, Rank),
    bytes: f64,
    group: u32,
) -> impl Iterator<Item = Stream> + use<'_> {
    let rails = network.rails();
    (0..rails).map(move |rail| {
        let (from, to) = network.ports(from, to, rail);
        Stream { from, to, bytes: bytes / f64::from(rails), channel: 0, group }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::presets::Zone;

    fn network() -> Network {
        Network::new(Zone { racks: 4, ..Zone::default() }.plan().unwrap()).unwrap()
    }

    #[test]
    fn rings_load_every_nic_alike() {
        let network = network();
        let call = Call::new(Collective::AllReduce, "ring", 64 << 20).unwrap();
        let streams = Job::first(8).streams(&network, &call, 8, 0).unwrap();
        assert_eq!(streams.len(), 64, "each NIC of the eight hosts sends to one other NIC");
        let expected = 2.0 * 63.0 / 64.0 * f64::from(64 << 20) / 8.0;
        for stream in &streams {
            assert!((stream.bytes - expected).abs() < 1.0, "{stream:?}");
            assert_eq!((stream.from.host + 1) % 8, stream.to.host);
        }
    }

    #[test]
    fn hierarchical_sends_the_least_data_between_hosts() {
        let network = network();
        let call = Call::new(Collective::AllReduce, "hierarchical", 64 << 20).unwrap();
        let streams = Job::first(8).streams(&network, &call, 1, 0).unwrap();
        let across: f64 = streams.iter().map(|stream| stream.bytes).sum();
        let expected = 8.0 * 2.0 * 7.0 / 8.0 * f64::from(64 << 20);
        assert!((across / expected - 1.0).abs() < 1e-3, "{across} {expected}");
        assert!(streams.iter().all(|stream| stream.from.nic == stream.to.nic));
    }

    #[test]
    fn jobs_fill_a_network() {
        let network = network();
        let jobs = Job::fill(&network, &[3, 1], Some(&mut Random::new(1)));
        let sizes: Vec<usize> = jobs.iter().map(|job| job.hosts.len()).collect();
        assert_eq!(sizes, [3, 1, 3, 1]);
        let mut all: Vec<u32> = jobs.into_iter().flat_map(|job| job.hosts).collect();
        all.sort_unstable();
        assert_eq!(all, (0..8).collect::<Vec<_>>());
    }
}
