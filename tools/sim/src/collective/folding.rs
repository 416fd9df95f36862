//! Folding: simulation of one rank for each class of equivalent ranks.
//!
//! Shift all ranks by a *stride*, with the last ones wrapping to the front. If the network, the
//! paths of messages and the schedule stay the same, ranks a stride apart do the same at the same
//! time. Then it is enough to simulate the first ranks, as many as the stride. Each simulated rank
//! represents all ranks at multiples of the stride from it: they all send over the same distances.
//!
//! If a simulated rank s sends to a rank p that is not simulated, then one of the ranks that s
//! represents sends an equal message to the simulated rank that represents p. Both messages go over
//! the same distance, so they share one connection: connections are numbered by simulated sender
//! and distance.
//!
//! Only messages of simulated ranks load the network. A message to a rank p that is not simulated
//! goes down to p over links that lead to no simulated rank. `Folding::path` replaces each of these
//! links by its counterpart on the path of the equal message, which goes down to the simulated rank
//! that represents p.

use ccl_core::schedule::Op;
use ccl_core::types::Rank;

use crate::SimError;
use crate::network::{Link, Network, Path};
use crate::routing::Scheme;
use crate::workload::{Call, ELEMENT_BYTES};

/// Number of ranks, and how many of them are simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Folding {
    /// Ranks in all.
    pub ranks: u32,
    /// Number of simulated ranks, which are ranks 0 to `stride` - 1. Each simulated rank stands for
    /// all ranks at multiples of the stride from it.
    pub stride: u32,
}

impl Folding {
    /// Returns a folding that simulates every rank.
    #[must_use]
    pub fn none(ranks: u32) -> Folding {
        Folding { ranks, stride: ranks }
    }

    /// Returns the folding with the fewest simulated ranks.
    ///
    /// # Errors
    ///
    /// If the ranks are not alike; the error has the reason.
    pub fn closest(network: &Network, scheme: Scheme, call: &Call) -> Result<Folding, SimError> {
        let not_alike = |reason: &str| Err(SimError::NotAlike { reason: reason.to_owned() });
        if !matches!(scheme, Scheme::Spray | Scheme::Pinned) {
            return not_alike(
                "their messages are hashed or placed onto different paths; route by spray or \
                 pinned, or simulate at most 1,024 ranks",
            );
        }
        if scheme == Scheme::Pinned && network.plan().fabric.tiers.len() > 2 {
            return not_alike(
                "with more than two tiers, pinned messages are hashed on their way down; route by \
                 spray, or simulate at most 1,024 ranks",
            );
        }
        if network.failed() > 0 || !network.is_even() {
            return not_alike("some links have failed or are slower; simulate at most 1,024 ranks");
        }
        let plan = network.plan();
        let (fabric, hosts) = (&plan.fabric, plan.hosts);
        // The stride is the number of ranks of a group of the tier before the last. A group is all
        // hosts that one set of switches joins; with at most one tier, a group is one host. All
        // groups must be full.
        let group = fabric.tiers.len().checked_sub(2).map_or(1, |tier| fabric.hosts_in_group(tier));
        let group = u32::try_from(group).unwrap_or(u32::MAX);
        if group == 0 || !hosts.is_multiple_of(group) {
            return not_alike(
                "the last group of hosts (such as a rack or a zone) is not full; use a number of \
                 hosts that fills all groups",
            );
        }
        let stride = group * plan.ranks_per_host;
        let folding = Folding { ranks: network.ranks(), stride };
        let hosts = crate::workload::Job::first(hosts).layout(plan.ranks_per_host);
        let split = call.schedule(0, &hosts).split.max(1) as usize;
        if !call.count(folding.ranks).is_multiple_of(split) {
            return Err(SimError::NotAlike {
                reason: format!(
                    "some of the {split} parts of a buffer are shorter than others; use a multiple \
                     of {} bytes",
                    split * ELEMENT_BYTES
                ),
            });
        }
        if folding.ranks > stride && !folding.schedules_agree(network, call) {
            return not_alike(
                "the algorithm treats them differently; choose another algorithm, or simulate at \
                 most 1,024 ranks",
            );
        }
        Ok(folding)
    }

    /// Returns whether ranks a stride apart have the same steps, with peers at the same distances.
    /// Only a sample of ranks is checked.
    fn schedules_agree(&self, network: &Network, call: &Call) -> bool {
        let each = network.plan().ranks_per_host;
        let hosts = crate::workload::Job::first(network.plan().hosts).layout(each);
        let steps = |rank: Rank| {
            let mut steps = Vec::new();
            call.schedule(rank, &hosts).for_each(&mut |op, counters| {
                let (peer, kind) = match op {
                    Op::Send { peer, .. } => (peer.eval(counters), 0),
                    Op::Recv { peer, .. } => (peer.eval(counters), 1),
                    Op::Reduce { .. } => (rank, 2),
                    Op::Copy { .. } => (rank, 3),
                };
                steps.push((kind, self.distance(rank, peer)));
            });
            steps
        };
        let samples = [0, 1, self.stride / 2, self.stride - 1];
        samples.into_iter().all(|rank| {
            let last = self.ranks - self.stride + rank;
            let first = steps(rank);
            first == steps(rank + self.stride) && first == steps(last)
        })
    }

    /// Returns whether every rank is simulated.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.stride == self.ranks
    }

    /// Returns the rank that stands for `rank`.
    #[must_use]
    pub fn of(&self, rank: Rank) -> Rank {
        rank % self.stride
    }

    /// Returns the distance from one rank forward to another, wrapping at the last rank.
    #[must_use]
    pub fn distance(&self, from: Rank, to: Rank) -> u32 {
        (to + self.ranks - from) % self.ranks
    }

    /// Replaces each link of a path by its counterpart among the links of the simulated ranks.
    pub(super) fn path(&self, network: &Network, path: &mut Path) {
        if !self.is_none() {
            for (link, _) in &mut path.links {
                *link = self.link(network, *link);
            }
        }
    }

    fn link(&self, network: &Network, link: Link) -> Link {
        let stride = self.stride / network.plan().ranks_per_host;
        network.moved_back(link, stride)
    }
}
