//! Queue-pair policy: a table of rules, read from text, that spread messages over the queue pairs
//! of a link.
//!
//! An Ethernet fabric hashes flows onto its links, and a collective has few flows: several queue
//! pairs per peer give the hash more flows to spread. [Meta, SIGCOMM 2024], section 5, uses 16
//! queue pairs for rings and trees, and 4 where a rank has many peers already. By default, whole
//! messages take the queue pairs in turn, because a split message is complete only when its slowest
//! part has arrived. A fabric that itself spreads the packets of a queue pair over its links needs
//! only one queue pair.
//!
//! Only the sender follows a rule. The receiver counts the parts of a message that arrive, whatever
//! their number. All ranks nevertheless have the same rules, which are compared when ranks join,
//! because the rules also set the number of queue pairs.
//!
//! [Meta, SIGCOMM 2024]: https://doi.org/10.1145/3651890.3672233

mod flow;
mod text;

use std::ops::RangeInclusive;

use serde::Serialize;

use crate::types::Collective;

pub use flow::{Flow, max_to_mean};
pub use text::PolicyError;

/// Largest number of queue pairs of one traffic class on a link.
pub const PAIRS_MAX: u32 = 64;
/// Largest number of parts of one message.
pub const PARTS_MAX: u32 = 16;

/// Order in which messages take queue pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Messages in equal parts, each part over another queue pair.
    Split,
    /// Whole messages over the queue pairs in turn.
    RoundRobin,
    /// Whole messages, each over the queue pair with the fewest bytes outstanding.
    LoadAware,
}

/// Spreading of messages over queue pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Striping {
    /// Number of queue pairs.
    pub pairs: u32,
    /// Order in which messages take queue pairs.
    pub order: Order,
    /// Fewest bytes of a part, if messages are split. Only the last part of a message can be
    /// shorter.
    pub chunk_bytes: usize,
    /// Largest number of messages that a link has under way over each device.
    pub in_flight: u32,
    /// Largest number of bytes under way from a port, over all its links. A message that would
    /// exceed this budget waits, unless its lane has nothing under way or stays within the lane's
    /// share: the budget divided by the number of the port's lanes. While a message waits, the
    /// later messages of its lane wait too, even if their rules have larger budgets.
    pub budget_bytes: usize,
    /// Traffic class of the queue pairs; `None` for the transport's own.
    pub traffic_class: Option<u8>,
}

impl Default for Striping {
    fn default() -> Striping {
        Striping {
            pairs: 1,
            order: Order::RoundRobin,
            chunk_bytes: 16 << 10,
            in_flight: 1024,
            budget_bytes: 32 << 20,
            traffic_class: None,
        }
    }
}

/// Distance of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Tier {
    /// Peer on the same host.
    Host,
    /// Peer on another host.
    Network,
}

/// Properties of a call and a peer on which the choice of a rule depends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Situation {
    /// The collective.
    pub collective: Collective,
    /// Bytes of the call's larger buffer.
    pub bytes: usize,
    /// Number of ranks that this rank sends to in the call.
    pub fan_out: u32,
    /// Distance of the peer.
    pub tier: Tier,
}

/// Striping that applies in some situations.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule {
    /// Collectives that the rule applies to; empty for all.
    collectives: Vec<Collective>,
    bytes: RangeInclusive<usize>,
    fan_out: RangeInclusive<u32>,
    tier: Option<Tier>,
    striping: Striping,
}

impl Rule {
    fn holds(&self, situation: &Situation) -> bool {
        let Situation { collective, bytes, fan_out, tier } = situation;
        (self.collectives.is_empty() || self.collectives.contains(collective))
            && self.bytes.contains(bytes)
            && self.fan_out.contains(fan_out)
            && self.tier.is_none_or(|own| own == *tier)
    }
}

/// Queue-pair policy: the first rule that matches applies. The last rule always matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    rules: Vec<Rule>,
}

/// Queue pairs of one traffic class on each link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Group {
    /// Traffic class; `None` for the transport's own.
    pub traffic_class: Option<u8>,
    /// Number of queue pairs.
    pub pairs: u32,
}

impl Default for Policy {
    /// Returns a policy of four queue pairs for all-to-all collectives and 16 for all others, with
    /// whole messages in turn.
    fn default() -> Policy {
        let striping = Striping { pairs: 16, ..Striping::default() };
        let collectives = vec![Collective::AllToAll, Collective::AllToAllV];
        let all = Rule { collectives, ..Rule::always(Striping { pairs: 4, ..striping }) };
        Policy { rules: vec![all, Rule::always(striping)] }
    }
}

impl Rule {
    fn always(striping: Striping) -> Rule {
        let (collectives, tier) = (Vec::new(), None);
        Rule { collectives, bytes: 0..=usize::MAX, fan_out: 0..=u32::MAX, tier, striping }
    }
}

impl Policy {
    /// Returns a policy with one rule for everything.
    #[must_use]
    pub fn always(striping: Striping) -> Policy {
        Policy { rules: vec![Rule::always(striping)] }
    }

    /// Returns a policy with one queue pair for everything, for fabrics that spread the packets of
    /// a queue pair over many paths: more queue pairs would only take device memory.
    #[must_use]
    pub fn adaptive() -> Policy {
        Policy::always(Striping::default())
    }

    /// Returns the striping for a situation.
    #[must_use]
    pub fn choose(&self, situation: &Situation) -> Striping {
        self.rule(situation).map_or_else(Striping::default, |rule| rule.striping)
    }

    /// Returns the text of the rule that applies in a situation.
    #[must_use]
    pub fn reason(&self, situation: &Situation) -> String {
        self.rule(situation).map_or_else(String::new, ToString::to_string)
    }

    /// Returns the striping of the last rule, which applies if no other rule matches.
    #[must_use]
    pub fn otherwise(&self) -> Striping {
        self.rules.last().map_or_else(Striping::default, |rule| rule.striping)
    }

    /// Returns the striping of every rule.
    pub fn stripes(&self) -> impl Iterator<Item = Striping> + '_ {
        self.rules.iter().map(|rule| rule.striping)
    }

    fn rule(&self, situation: &Situation) -> Option<&Rule> {
        self.rules.iter().find(|rule| rule.holds(situation))
    }

    /// Returns the groups of queue pairs that each link needs for all rules together, in the order
    /// of the rules that use them first.
    #[must_use]
    pub fn groups(&self) -> Vec<Group> {
        let mut groups: Vec<Group> = Vec::new();
        for Striping { pairs, traffic_class, .. } in self.stripes() {
            match groups.iter_mut().find(|group| group.traffic_class == traffic_class) {
                Some(group) => group.pairs = group.pairs.max(pairs),
                None => groups.push(Group { traffic_class, pairs }),
            }
        }
        groups
    }

    /// Returns the first group of queue pairs that the policy needs and a link lacks; none if the
    /// link lacks no group. `made` are the link's groups. The link lacks a group if it has no queue
    /// pairs of the group's traffic class, or fewer than the policy needs.
    #[must_use]
    pub fn beyond(&self, made: &[Group]) -> Option<Group> {
        let has = |own: &Group| {
            let kin = made.iter().find(|group| group.traffic_class == own.traffic_class);
            kin.is_some_and(|group| group.pairs >= own.pairs)
        };
        self.groups().into_iter().find(|group| !has(group))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RING: Situation = Situation {
        collective: Collective::AllReduce,
        bytes: 1 << 20,
        fan_out: 1,
        tier: Tier::Network,
    };

    #[test]
    fn the_first_rule_that_holds_is_followed() {
        let policy: Policy = "all_to_all fan_out>=8: qps=4; bytes>=1M tier=network: qps=8 \
                              order=split chunk=64K tc=104; qps=2 order=load_aware in_flight=3"
            .parse()
            .unwrap();
        let split = policy.choose(&RING);
        assert_eq!((split.pairs, split.order, split.chunk_bytes), (8, Order::Split, 64 << 10));
        assert_eq!(split.traffic_class, Some(104));
        let near = policy.choose(&Situation { tier: Tier::Host, ..RING });
        assert_eq!((near.pairs, near.order, near.in_flight), (2, Order::LoadAware, 3));
        let small = Situation { bytes: (1 << 20) - 1, ..RING };
        assert_eq!(policy.choose(&small), near);
        let all = Situation { collective: Collective::AllToAll, fan_out: 8, ..RING };
        assert_eq!(policy.choose(&all).pairs, 4);
        assert_eq!(policy.reason(&all), "all_to_all fan_out>=8: qps=4");
        assert_eq!(policy.choose(&Situation { fan_out: 7, ..all }).pairs, 8);
        let groups = [(None, 4), (Some(104), 8)];
        let groups = groups.map(|(traffic_class, pairs)| Group { traffic_class, pairs });
        assert_eq!(policy.groups(), groups);
    }

    #[test]
    fn a_policy_that_needs_more_queue_pairs_is_detected() {
        let policy = |text: &str| text.parse::<Policy>().unwrap();
        let made = policy("all_to_all: qps=4; bytes>=1M: qps=8 tc=104; qps=2").groups();
        for fits in ["qps=4", "qps=1 order=split", "tier=host: qps=8 tc=104; qps=3"] {
            assert_eq!(policy(fits).beyond(&made), None, "{fits}");
        }
        for (beyond, traffic_class, pairs) in
            [("qps=5", None, 5), ("all_reduce: qps=9 tc=104; qps=4", Some(104), 9)]
        {
            let group = Group { traffic_class, pairs };
            assert_eq!(policy(beyond).beyond(&made), Some(group), "{beyond}");
        }
        assert!(policy("bytes<1K: qps=1 tc=8; qps=4").beyond(&made).is_some());
    }

    #[test]
    fn by_default_rings_have_more_queue_pairs_than_all_to_alls() {
        let policy = Policy::default();
        assert_eq!(policy.choose(&RING).pairs, 16);
        let all = Situation { collective: Collective::AllToAllV, fan_out: 63, ..RING };
        assert_eq!(policy.choose(&all).pairs, 4);
        assert_eq!(policy.groups(), [Group { traffic_class: None, pairs: 16 }]);
    }
}
