//! Tests that paths lead to their destination, whatever the scheme.

use ccl_core::random::Random;
use ccl_model::topology::fabric::Wiring;

use super::*;
use crate::flows::Flows;
use crate::network::Plan;
use crate::presets::Zone;

fn plans() -> Vec<Plan> {
    let zones = Zone { racks: 6, zones: 3, oversubscription: 2.0, ..Zone::default() };
    let mut rails = Zone { racks: 4, rack_hosts: 3, uplinks: 4, ..Zone::default() }.plan().unwrap();
    rails.fabric.tiers[0].wiring = Wiring::Rails;
    rails.fabric.tiers[0].switches = 8;
    let mut cables = Zone { racks: 5, uplinks: 3, ..Zone::default() }.plan().unwrap();
    cables.fabric.tiers[1].cables = 4;
    vec![zones.plan().unwrap(), rails, cables, Zone { racks: 5, ..Zone::default() }.plan().unwrap()]
}

/// Checks that the parts of a path continue from link to link, and add up to the whole flow at the
/// destination.
fn check(network: &Network, key: &Key, path: &Path) {
    let turn = network.meeting(key.from, key.to).unwrap();
    let way = FlowPath { network, key, turn };
    // Part of the flow at each NIC or switch of the current level, by number.
    let mut here = std::collections::BTreeMap::from([(key.from.nic, 1.0)]);
    let mut links = path.links.iter().peekable();
    for level in way.levels() {
        let mut next = std::collections::BTreeMap::new();
        while let Some((link, part)) = links.peek() {
            let (tier, child, _) = network.place(*link).unwrap();
            if (tier, network.is_up(*link)) != level {
                break;
            }
            assert!(network.works(*link), "{key:?} takes a link that has failed");
            let host = if level.1 { key.from.host } else { key.to.host };
            assert_eq!(child, network.child(tier, host));
            let (below, above) = network.ends(*link).unwrap();
            let (near, far) = if level.1 { (below, above) } else { (above, below) };
            *here.get_mut(&near).expect("the flow does not reach the link") -= part;
            *next.entry(far).or_insert(0.0) += part;
            links.next();
        }
        assert!(here.values().all(|left: &f64| left.abs() < 1e-9), "{key:?} {path:?}");
        here = next;
    }
    assert!(links.next().is_none());
    assert!((here[&key.to.nic] - 1.0).abs() < 1e-9 && here.len() == 1, "{here:?}");
}

#[test]
fn every_path_joins_its_ports_over_working_links() {
    for (number, plan) in plans().into_iter().enumerate() {
        let mut network = Network::new(plan).unwrap();
        let mut random = Random::new(number as u64);
        for cut in [false, true] {
            if cut {
                let up: Vec<u32> = network.tier_links(1, true).collect();
                (0..up.len() / 10)
                    .for_each(|_| network.fail(up[random.below(up.len() as u64) as usize]));
            }
            let load = Flows::new(&network, 0.0);
            for (name, scheme) in SCHEMES {
                let mut router = Router::new(scheme, 5);
                for pair in 0..150 {
                    let ranks = u64::from(network.ranks());
                    let [from, to] = [0, 0].map(|_| network.port(random.below(ranks) as u32));
                    if from.host == to.host {
                        continue;
                    }
                    let key = Key { from, to, channel: 0, pair };
                    let mut path = Path::default();
                    let moment = Moment::default();
                    router.route(&network, &key, moment, &load.load(), &mut path).unwrap();
                    assert!(!path.links.is_empty() && path.latency_s > 0.0, "{name}");
                    check(&network, &key, &path);
                }
            }
        }
    }
}

#[test]
fn queue_pairs_take_different_paths_only_if_they_are_hashed() {
    let network = Network::new(Zone::default().plan().unwrap()).unwrap();
    let load = Flows::new(&network, 0.0);
    let ways = |scheme| {
        let mut router = Router::new(scheme, 3);
        let way = |pair| {
            let (from, to) = (network.port(0), network.port(31));
            let mut path = Path::default();
            let key = Key { from, to, channel: 0, pair };
            router.route(&network, &key, Moment::default(), &load.load(), &mut path).unwrap();
            path.links[1].0
        };
        (0..16).map(way).collect::<std::collections::BTreeSet<u32>>().len()
    };
    assert_eq!(ways(Scheme::Ecmp), 1);
    assert!(ways(Scheme::HashedPairs) > 6);
}

#[test]
fn every_port_has_its_own_address() {
    let mut seen = std::collections::BTreeSet::new();
    for host in [0, 1, 2, 255, 1 << 18, u32::MAX] {
        for nic in [0, 1, 63, 64, 65, 128, 4095] {
            let from = Port { host, nic };
            let key = Key { from, to: Port { host: 0, nic: 0 }, channel: 0, pair: 0 };
            assert!(seen.insert(flow_of(&key).from), "{from:?}");
        }
    }
}

#[test]
fn invalid_networks_are_reported_with_a_remedy() {
    let wrong = |change: fn(&mut Plan)| {
        let mut plan = Zone::default().plan().unwrap();
        change(&mut plan);
        Network::new(plan).unwrap_err().to_string()
    };
    let zero = wrong(|plan| plan.fabric.tiers[1].bytes_per_s = 0.0);
    assert!(zero.contains("bandwidth of tier 1 (CTSW) is 0; give"), "{zero}");
    let nan = wrong(|plan| plan.inner_bytes_per_s = f64::NAN);
    assert!(nan.contains("bandwidth within a host is NaN"), "{nan}");
    let none = wrong(|plan| plan.hosts = 0);
    assert!(none.contains("number of hosts is 0; give at least 1"), "{none}");
    let huge = wrong(|plan| {
        plan.hosts = 4_000_000;
        plan.fabric.tiers[1].switches = 1 << 20;
    });
    assert!(huge.contains("MiB are allowed; simulate fewer"), "{huge}");
    let network = Network::new(Zone { racks: 1, ..Zone::default() }.plan().unwrap()).unwrap();
    let beyond = network.meeting(network.port(0), Port { host: 9, nic: 0 });
    assert!(beyond.unwrap_err().to_string().contains("add a tier"));
    let mut cut = Network::new(Zone { uplinks: 2, ..Zone::default() }.plan().unwrap()).unwrap();
    cut.uplinks(1, 0, 0).collect::<Vec<_>>().into_iter().for_each(|link| cut.fail(link));
    let error = cut.meeting(cut.port(0), cut.port(31)).unwrap_err().to_string();
    assert!(error.contains("NIC 0 of host 0 to NIC 7 of host 3: the cables"), "{error}");
    assert!(Scheme::named("ospf").unwrap_err().to_string().contains("e_ecmp te flowlet"));
}
