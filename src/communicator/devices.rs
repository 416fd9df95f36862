//! Which transports join the ranks, and their devices.

use std::sync::Arc;
use std::time::Duration;

use ccl_core::bootstrap::Roster;
use ccl_core::config::Config;
use ccl_core::topology::Hosts;
use ccl_core::transport::{Device, Transport};
use ccl_core::types::Rank;
use ccl_transport_rails::{RAILS_MAX, RailsDevice};
use ccl_transport_shm::ShmTransport;
use ccl_transport_tcp::TcpTransport;
use ccl_transport_verbs::{Family, Rule, VerbsTransport};

use super::call::usage;
use super::error::Error;

/// How long the link of one of several devices may be away before others take over.
const LINK_WITHIN: Duration = Duration::from_millis(500);

/// The names that `FERROCCL_TRANSPORT` may have.
const NAMES: [&str; 4] = ["auto", "shm", "tcp", "verbs"];

/// The devices of one rank. Both ends of a pair choose alike: from the configuration and the
/// roster, which all ranks have in common.
#[derive(Debug)]
pub(super) struct Devices {
    /// Which ranks share memory; to algorithms those are the hosts.
    pub(super) hosts: Hosts,
    /// None if no two ranks share memory anywhere.
    pub(super) shared: Option<Arc<dyn Device>>,
    /// None if all ranks share memory; and the transport's name.
    pub(super) network: Option<(&'static str, Arc<dyn Device>)>,
    /// Ranks on the host of this one, whether they share memory or not.
    pub(super) near: Vec<Rank>,
}

impl Devices {
    /// For a rank of the roster; `nodes` are the ranks' NUMA nodes, where they matter.
    pub(super) fn open(
        config: &Config,
        roster: &Roster,
        rank: Rank,
        nodes: &[Option<u32>],
    ) -> Result<Devices, Error> {
        let ranks = roster.members.len() as Rank;
        let name = config.transport.as_str();
        if !NAMES.contains(&name) {
            return Err(usage(format!(
                "FERROCCL_TRANSPORT={name}: there is no such transport; use {}",
                NAMES.join(", ")
            )));
        }
        if name == "shm" && roster.hosts() > 1 {
            let count = roster.hosts();
            return Err(usage(format!(
                "FERROCCL_TRANSPORT=shm joins ranks of one host, but the {ranks} ranks are on \
                 {count}; leave it at auto, which takes tcp between hosts"
            )));
        }
        let own = |rank: Rank| roster.members.get(rank as usize).map(|member| member.host);
        let hosts = match name {
            "tcp" | "verbs" => Hosts::of(&Vec::from_iter(0..ranks)),
            _ => Hosts::of(&Vec::from_iter((0..ranks).map(own))),
        };
        // By all ranks alike, whoever is alone on its host: they take part in each other's
        // exchanges.
        let sharing = hosts.count() < ranks;
        let networked = hosts.count() > 1;
        let near: Vec<Rank> = (0..ranks).filter(|peer| own(*peer) == own(rank)).collect();
        let shared = if sharing { Some(open(&ShmTransport::new(), 0)?) } else { None };
        let network = match (networked, name) {
            (false, _) => None,
            (true, "verbs") => {
                let node = |peer: &Rank| nodes.get(*peer as usize).copied().flatten();
                let nodes: Vec<_> = near.iter().map(node).collect();
                let place = near.iter().position(|peer| *peer == rank).unwrap_or(0);
                Some(("verbs", rails(config, &nodes, place)?))
            }
            (true, _) => Some(("tcp", open(&tcp(config), 0)?)),
        };
        Ok(Devices { hosts, shared, network, near })
    }
}

/// `link_within` is how long the link of a port may be away.
fn verbs(config: &Config, link_within: Duration) -> Result<VerbsTransport, Error> {
    if config.tls {
        let text = "FERROCCL_TLS=1 encrypts what goes over tcp; verbs cannot. Use \
                    FERROCCL_TRANSPORT=tcp, or leave FERROCCL_TLS unset";
        return Err(usage(text.to_owned()));
    }
    let family = match config.ib_address_family.as_str() {
        "" => None,
        "AF_INET" => Some(Family::V4),
        "AF_INET6" => Some(Family::V6),
        other => {
            return Err(usage(format!(
                "FERROCCL_IB_ADDR_FAMILY={other} is neither AF_INET nor AF_INET6"
            )));
        }
    };
    let entries = config.ib_address_range.split(',').map(str::trim).filter(|text| !text.is_empty());
    let network = |text: &str| {
        text.parse().map_err(|_| {
            usage(format!("FERROCCL_IB_ADDR_RANGE: {text} is no network such as 10.0.0.0/8"))
        })
    };
    let networks = entries.map(network).collect::<Result<_, _>>()?;
    Ok(VerbsTransport::new(ccl_transport_verbs::Options {
        devices: config.ib_devices.clone(),
        interfaces: config.socket_interfaces.clone(),
        gid: Rule { index: config.ib_gid_index, family, networks },
        partition: config.ib_partition.into(),
        policy: config.ib_policy.clone(),
        traffic_class: config.ib_traffic_class,
        grant_traffic_class: config.ib_grant_traffic_class,
        service_level: config.ib_service_level,
        timeout: config.ib_timeout,
        retries: config.ib_retries,
        not_ready_retries: config.ib_not_ready_retries,
        mtu_bytes: config.ib_mtu,
        relaxed_ordering: config.ib_relaxed_ordering > 0,
        acknowledged: config.ib_rails > 1,
        // A peer may be busy with other things.
        join_within: config.timeout,
        link_within,
        ..ccl_transport_verbs::Options::default()
    }))
}

fn tcp(config: &Config) -> TcpTransport {
    TcpTransport::new(ccl_transport_tcp::Options {
        interfaces: config.socket_interfaces.clone(),
        sockets: config.sockets,
        resume_within: config.dead_after,
        tls: config.tls,
        congestion: config.congestion.clone(),
    })
}

/// A rank's share of the RDMA devices of its host: `ranks` are the NUMA nodes of all ranks there,
/// and `place` is which of them this one is.
fn rails(config: &Config, ranks: &[Option<u32>], place: usize) -> Result<Arc<dyn Device>, Error> {
    let most = usize::from(config.ib_rails);
    if !(1..=RAILS_MAX).contains(&most) {
        return Err(usage(format!("FERROCCL_IB_RAILS={most} is not 1 to {RAILS_MAX}")));
    }
    let mut transport = verbs(config, config.dead_after)?;
    let found = transport.devices();
    if found.is_empty() {
        return Err(none(&transport));
    }
    let nodes: Vec<Option<u32>> = found.iter().map(|device| device.numa_node).collect();
    let own = share(&nodes, ranks, place, most);
    if own.len() > 1 {
        // Where there are other ways, there is less to wait for.
        transport = verbs(config, LINK_WITHIN)?;
    }
    let open = |at: usize| Ok((found[at].id.0.clone(), transport.open(&found[at].id)?));
    let mut devices: Vec<(String, Arc<dyn Device>)> =
        own.into_iter().map(open).collect::<Result<_, Error>>()?;
    tracing::debug!(devices = ?devices.iter().map(|(name, _)| name).collect::<Vec<_>>());
    match devices.pop() {
        // All ranks do so, or none.
        Some((_, device)) if most == 1 => Ok(device),
        last => {
            devices.extend(last);
            Ok(Arc::new(RailsDevice::new(devices)?))
        }
    }
}

/// Which of a host's devices a rank takes, by the NUMA nodes of the devices and of the host's
/// ranks, of which it is one: those of its own node, if there are any, else any. Who chooses from
/// the same devices gets as many as the others, at most `most`, and at least one.
fn share(devices: &[Option<u32>], ranks: &[Option<u32>], place: usize, most: usize) -> Vec<usize> {
    let choice = |node: Option<u32>| -> Vec<usize> {
        let near = |at: &usize| node.is_some() && devices[*at] == node;
        let near: Vec<usize> = (0..devices.len()).filter(near).collect();
        if near.is_empty() { (0..devices.len()).collect() } else { near }
    };
    let candidates = choice(ranks.get(place).copied().flatten());
    let likewise = |rank: &usize| choice(ranks[*rank]) == candidates;
    let sharing: Vec<usize> = (0..ranks.len()).filter(likewise).collect();
    let place = sharing.iter().position(|rank| *rank == place).unwrap_or(0);
    let count = (candidates.len() / sharing.len().max(1)).clamp(1, most);
    let taken = place * count..(place + 1) * count;
    taken.filter_map(|at| candidates.get(at % candidates.len().max(1)).copied()).collect()
}

/// Opens one of a transport's devices; beyond the last one they begin again.
fn open(transport: &dyn Transport, number: usize) -> Result<Arc<dyn Device>, Error> {
    let devices = transport.devices();
    let Some(device) = devices.get(number % devices.len().max(1)) else {
        return Err(none(transport));
    };
    Ok(transport.open(&device.id)?)
}

fn none(transport: &dyn Transport) -> Error {
    let why = transport.why_none();
    usage(format!("this host has no device for {}: {why}", transport.name()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_shared_out_evenly_and_near_ones_first() {
        let taken = |devices: &[Option<u32>], ranks: &[Option<u32>], most| -> Vec<Vec<usize>> {
            (0..ranks.len()).map(|place| share(devices, ranks, place, most)).collect()
        };
        let anywhere = [None; 4];
        assert_eq!(taken(&anywhere, &[Some(1)], 4), [[0, 1, 2, 3]]);
        assert_eq!(taken(&anywhere, &[None], 2), [[0, 1]]);
        assert_eq!(taken(&anywhere, &[None; 2], 4), [[0, 1], [2, 3]]);
        assert_eq!(taken(&anywhere, &[None; 3], 4), [[0], [1], [2]]);
        assert_eq!(taken(&anywhere[..1], &[None; 3], 4), [[0], [0], [0]]);
        assert_eq!(taken(&anywhere, &[None; 8], 4)[2..6], [[2], [3], [0], [1]]);
        let devices = [0, 0, 1, 1].map(Some);
        assert_eq!(taken(&devices, &[Some(1)], 4), [[2, 3]]);
        assert_eq!(taken(&devices, &[Some(1); 2], 4), [[2], [3]]);
        for ranks in [[0, 0, 1, 1], [0, 1, 0, 1], [1, 0, 0, 1]] {
            let mut all = taken(&devices, &ranks.map(Some), 4).concat();
            all.sort_unstable();
            assert_eq!(all, [0, 1, 2, 3], "each is somebody's: {ranks:?}");
        }
        // Who is near to none, and who may run anywhere.
        assert_eq!(
            taken(&devices, &[Some(7), None, Some(0)], 4),
            [vec![0, 1], vec![2, 3], vec![0, 1]]
        );
    }
}
