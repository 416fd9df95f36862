//! Striping of a call's messages over the queue pairs of their links.

use super::MessageLinks;
use crate::queue_pairs::{Flow, Group, Policy, Situation, Striping, Tier};
use crate::transport::{EndpointId, RailState};
use crate::types::{Collective, Rank};

/// Queue-pair policy, and the striping that it chooses for the current call.
#[derive(Debug, Default)]
pub(super) struct StripingState {
    policy: Option<Policy>,
    /// The queue pairs that each link was made with, one [`Group`] per traffic class.
    made: Vec<Group>,
    /// Peers on this rank's host, in ascending order.
    near: Vec<Rank>,
    /// Striping towards peers on the same host, and towards others.
    current: [Striping; 2],
    /// Number of times that `current` has changed; 0 without a policy.
    version: u64,
    /// Call for which `current` was chosen: collective, bytes and fan-out.
    asked: Option<(Collective, usize, u32)>,
}

impl StripingState {
    /// Returns the version of the striping: a new one after each change; 0 without a policy.
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    /// Returns the striping of messages to a peer, if there is a policy.
    pub(super) fn to(&self, peer: Rank) -> Option<Striping> {
        self.policy.as_ref()?;
        Some(self.current[usize::from(self.near.binary_search(&peer).is_err())])
    }
}

impl MessageLinks {
    /// Starts using the policy for which the links' queue pairs were made. `near` has the peers
    /// on this rank's host, in ascending order.
    pub fn start_policy(&mut self, policy: Policy, near: Vec<Rank>) {
        let (current, made) = ([policy.otherwise(); 2], policy.groups());
        let (version, policy, asked) = (self.striping.version + 1, Some(policy), None);
        self.striping = StripingState { policy, made, near, current, version, asked };
    }

    /// Replaces the policy from the next call on, if there is a policy and the existing queue pairs
    /// suffice for the new one. Otherwise the policy stays. Returns the first [`Group`] of queue
    /// pairs that the new policy needs and the links lack, if any.
    pub fn change_policy(&mut self, policy: &Policy) -> Option<Group> {
        let StripingState { policy: current, made, asked, .. } = &mut self.striping;
        *asked = None;
        let current = current.as_mut()?;
        let beyond = policy.beyond(made);
        if beyond.is_none() {
            current.clone_from(policy);
        }
        beyond
    }

    /// Returns the lane's current flows to each connected peer, with the rank of that peer.
    pub fn flows(&self) -> impl Iterator<Item = (Rank, Flow)> {
        self.connected().flat_map(|(rank, endpoint)| {
            self.lane.flows(endpoint).into_iter().map(move |flow| (rank, flow))
        })
    }

    /// Returns the rails that lead to each connected peer, with the rank of that peer.
    pub fn rails(&self) -> impl Iterator<Item = (Rank, RailState)> {
        self.connected().flat_map(|(rank, endpoint)| {
            self.lane.rails(endpoint).into_iter().map(move |rail| (rank, rail))
        })
    }

    fn connected(&self) -> impl Iterator<Item = (Rank, EndpointId)> {
        let peers = self.peers.iter().enumerate();
        peers.filter_map(|(rank, peer)| Some((rank as Rank, peer.as_ref()?.endpoint)))
    }

    /// Chooses the striping of a call that sends to `fan_out` peers and whose larger buffer has
    /// `bytes` bytes.
    pub fn begin(&mut self, collective: Collective, bytes: usize, fan_out: u32) {
        let StripingState { policy, current, version, asked, .. } = &mut self.striping;
        let call = Some((collective, bytes, fan_out));
        let Some(policy) = policy.as_ref().filter(|_| fan_out > 0 && *asked != call) else {
            return;
        };
        *asked = call;
        let chosen = [Tier::Host, Tier::Network]
            .map(|tier| policy.choose(&Situation { collective, bytes, fan_out, tier }));
        *version += u64::from(chosen != *current);
        *current = chosen;
    }
}
