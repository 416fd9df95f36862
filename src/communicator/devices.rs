//! Which transports join the ranks, and their devices.

use std::sync::Arc;

use ccl_core::bootstrap::Roster;
use ccl_core::config::Config;
use ccl_core::topology::Hosts;
use ccl_core::transport::{Device, Transport};
use ccl_core::types::Rank;
use ccl_transport_shm::ShmTransport;
use ccl_transport_tcp::TcpTransport;
use ccl_transport_verbs::{Family, Rule, VerbsTransport};

use super::call::usage;
use super::error::Error;

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
    /// For a rank of the roster.
    pub(super) fn open(config: &Config, roster: &Roster, rank: Rank) -> Result<Devices, Error> {
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
        let shared = if sharing { Some(open(&ShmTransport::new(), 0)?) } else { None };
        let network = match (networked, name) {
            (false, _) => None,
            (true, "verbs") => {
                // The ranks of a host take turns on its devices.
                let before = (0..rank).filter(|peer| own(*peer) == own(rank)).count();
                Some(("verbs", open(&verbs(config)?, before)?))
            }
            (true, _) => Some(("tcp", open(&tcp(config), 0)?)),
        };
        let near = (0..ranks).filter(|peer| own(*peer) == own(rank)).collect();
        Ok(Devices { hosts, shared, network, near })
    }
}

fn verbs(config: &Config) -> Result<VerbsTransport, Error> {
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
        relaxed_ordering: config.ib_relaxed_ordering > 0,
        // A peer may be busy with other things.
        join_within: config.timeout,
        link_within: config.dead_after,
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

/// Opens one of a transport's devices; beyond the last one they begin again.
fn open(transport: &dyn Transport, number: usize) -> Result<Arc<dyn Device>, Error> {
    let devices = transport.devices();
    let Some(device) = devices.get(number % devices.len().max(1)) else {
        let why = transport.why_none();
        return Err(usage(format!("this host has no device for {}: {why}", transport.name())));
    };
    Ok(transport.open(&device.id)?)
}
