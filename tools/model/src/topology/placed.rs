//! Positions of hosts in a provider's network. The provider names only the network nodes above each
//! host. The nodes form a tree of any shape.

use std::collections::BTreeMap;

use super::fabric::Fabric;

/// Largest number of nodes above a host. No known network has this many layers of nodes.
const NODES_MAX: usize = 16;

/// A host, and the nodes of the network above it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Provider's name of the host, such as `i-0123456789abcdef0`.
    pub id: String,
    /// Network nodes above the host, the highest first. The host is connected to the last of these
    /// nodes.
    pub nodes: Vec<String>,
}

impl Placed {
    /// Returns the number of nodes that both hosts have above them, counted from the highest node.
    #[must_use]
    pub fn shared(&self, other: &Placed) -> usize {
        self.nodes.iter().zip(&other.nodes).take_while(|(one, two)| one == two).count()
    }

    /// Returns the number of nodes on the path to another host, through the lowest common node.
    /// Returns None if there is no such node.
    #[must_use]
    pub fn hops(&self, other: &Placed) -> Option<usize> {
        let shared = self.shared(other);
        (shared > 0).then(|| self.nodes.len() + other.nodes.len() - 2 * shared + 1)
    }
}

/// Checks the positions of hosts; an error has the number of the host and the problem.
pub(super) fn check(placed: &[Placed], fabric: &Fabric) -> Result<(), (usize, String)> {
    let mut ids = BTreeMap::new();
    // By node: the nodes above it, and the first host below it.
    let mut above: BTreeMap<&str, (&[String], &str)> = BTreeMap::new();
    for (host, Placed { id, nodes }) in placed.iter().enumerate() {
        let mut names = nodes.iter().chain([id]);
        if names.any(|name| name.is_empty() || name.chars().any(char::is_control)) {
            let problem =
                format!("the name of host {id:?} or of a node above it is empty or unprintable");
            return Err((host, problem));
        }
        if nodes.is_empty() || nodes.len() > NODES_MAX {
            let count = nodes.len();
            return Err((
                host,
                format!(
                    "\"{id}\" is below {count} nodes of the network; expected 1 to {NODES_MAX}"
                ),
            ));
        }
        if ids.insert(id, host).is_some() {
            return Err((host, format!("a second host is called \"{id}\"; keep one of them")));
        }
        for (depth, node) in nodes.iter().enumerate() {
            let higher = &nodes[..depth];
            if higher.contains(node) {
                let problem = format!("\"{id}\" lists the node \"{node}\" twice; keep one of them");
                return Err((host, problem));
            }
            let (known, first) = *above.entry(node).or_insert((higher, id));
            if known != higher {
                let list = |nodes: &[String]| match nodes {
                    [] => "nothing".to_owned(),
                    nodes => nodes.join(", "),
                };
                return Err((
                    host,
                    format!(
                        "the entry of \"{id}\" lists {} above node \"{node}\", but the entry of \
                         \"{first}\" lists {}; list the same nodes above it in all entries, the \
                         highest first",
                        list(higher),
                        list(known)
                    ),
                ));
            }
        }
    }
    agrees(placed, fabric)
}

/// Checks the tiers against the nodes: two hosts are below the same node if, and only if, they are
/// in the same group of the tier at the height of this node.
fn agrees(placed: &[Placed], fabric: &Fabric) -> Result<(), (usize, String)> {
    for tier in 0..fabric.tiers.len() {
        let (mut groups, mut nodes) = (BTreeMap::new(), BTreeMap::new());
        for (number, host) in (0_u32..).zip(placed) {
            let at = number as usize;
            let Some(height) = host.nodes.len().checked_sub(tier + 1) else { continue };
            let (node, group) = (&host.nodes[height], fabric.group(tier, number));
            let other = match (groups.entry(group).or_insert(at), nodes.entry(node).or_insert(at)) {
                (first, second) if first != second => *first.min(second),
                _ => continue,
            };
            let (name, other) = (&fabric.tiers[tier].name, &placed[other].id);
            return Err((
                at,
                format!(
                    "tiers and nodes disagree whether \"{}\" and \"{other}\" are below the same \
                     \"{name}\"; either list the hosts below each node one after another, with as \
                     many hosts per node as per group of the tier, or leave out the tiers",
                    host.id
                ),
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::presets;
    use super::*;

    fn placed(hosts: &[(&str, &str)]) -> Vec<Placed> {
        let one = |(id, nodes): &(&str, &str)| Placed {
            id: (*id).to_owned(),
            nodes: nodes.split_whitespace().map(str::to_owned).collect(),
        };
        hosts.iter().map(one).collect()
    }

    #[test]
    fn hosts_meet_at_the_lowest_node_that_both_are_below() {
        let hosts = placed(&[("a", "t m l1"), ("b", "t m l1"), ("c", "t m l2"), ("d", "t n l3 x")]);
        let hops = |one: usize, other: usize| hosts[one].hops(&hosts[other]);
        assert_eq!((hops(0, 1), hops(0, 2), hops(0, 3)), (Some(1), Some(3), Some(6)));
        assert_eq!(hops(3, 0), Some(6));
        let apart = placed(&[("a", "t m"), ("b", "u n")]);
        assert_eq!(apart[0].hops(&apart[1]), None);
        assert_eq!(check(&hosts, &Fabric::default()), Ok(()));
    }

    #[test]
    fn invalid_positions_of_hosts_are_reported() {
        for (hosts, host, words) in [
            (&[("a", "t"), ("a", "t")][..], 1, "a second host is called \"a\""),
            (&[("a", "")], 0, "\"a\" is below 0 nodes"),
            (&[("", "t")], 0, "is empty or unprintable"),
            (&[("a\u{1b}", "t")], 0, "is empty or unprintable"),
            (
                &[("a", "t m l"), ("b", "t n l")],
                1,
                "the entry of \"b\" lists t, n above node \"l\", but",
            ),
            (
                &[("a", "t m"), ("b", "m t")],
                1,
                "the entry of \"b\" lists nothing above node \"m\", but",
            ),
            (&[("a", "t t")], 0, "\"a\" lists the node \"t\" twice"),
        ] {
            let (at, problem) = check(&placed(hosts), &Fabric::default()).unwrap_err();
            assert!(at == host && problem.contains(words), "{at}: {problem}");
        }
        let deep = (0..17).map(|node| format!("n{node} ")).collect::<String>();
        assert!(check(&placed(&[("a", &deep)]), &Fabric::default()).is_err());
    }

    #[test]
    fn tiers_and_nodes_must_agree() {
        // Racks of two hosts, with two tiers above.
        let fabric = presets::find("meta-24576").unwrap().topology().fabric;
        let good = [("a", "t z l1"), ("b", "t z l1"), ("c", "t z l2")];
        assert_eq!(check(&placed(&good), &fabric), Ok(()));
        let apart = [("a", "t z l1"), ("b", "t z l2")];
        let (at, problem) = check(&placed(&apart), &fabric).unwrap_err();
        assert!(at == 1 && problem.contains("\"b\" and \"a\" are below the same"), "{problem}");
        let together = [("a", "t z l1"), ("b", "t z l1"), ("c", "t z l1")];
        assert_eq!(check(&placed(&together), &fabric).unwrap_err().0, 2);
    }
}
