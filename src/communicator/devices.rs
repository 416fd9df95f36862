//! Which transports join the ranks, and their devices.

use std::sync::Arc;

use ccl_core::bootstrap::Roster;
use ccl_core::config::Config;
use ccl_core::topology::Hosts;
use ccl_core::transport::{Device, Transport};
use ccl_core::types::Rank;
use ccl_transport_shm::ShmTransport;
use ccl_transport_tcp::{Options, TcpTransport};

use super::call::usage;
use super::error::Error;

/// The names that `FERROCCL_TRANSPORT` may have.
const NAMES: [&str; 3] = ["auto", "shm", "tcp"];

/// The devices of one rank. Both ends of a pair choose alike: from the configuration and the
/// roster, which all ranks have in common.
#[derive(Debug)]
pub(super) struct Devices {
    /// Which ranks share memory; to algorithms those are the hosts.
    pub(super) hosts: Hosts,
    /// None if no two ranks share memory anywhere.
    pub(super) shared: Option<Arc<dyn Device>>,
    /// None if all ranks share memory.
    pub(super) network: Option<Arc<dyn Device>>,
}

impl Devices {
    pub(super) fn open(config: &Config, roster: &Roster) -> Result<Devices, Error> {
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
            "tcp" => Hosts::of(&Vec::from_iter(0..ranks)),
            _ => Hosts::of(&Vec::from_iter((0..ranks).map(own))),
        };
        // By all ranks alike, whoever is alone on its host: they take part in each other's
        // exchanges.
        let sharing = hosts.count() < ranks;
        let networked = hosts.count() > 1;
        let shared = if sharing { Some(open(&ShmTransport::new())?) } else { None };
        let network = if networked { Some(open(&tcp(config))?) } else { None };
        Ok(Devices { hosts, shared, network })
    }
}

fn tcp(config: &Config) -> TcpTransport {
    TcpTransport::new(Options {
        interfaces: config.socket_interfaces.clone(),
        sockets: config.sockets,
        resume_within: config.dead_after,
        tls: config.tls,
        congestion: config.congestion.clone(),
    })
}

fn open(transport: &dyn Transport) -> Result<Arc<dyn Device>, Error> {
    let Some(device) = transport.devices().into_iter().next() else {
        return Err(usage(format!("this system has no device for {}", transport.name())));
    };
    Ok(transport.open(&device.id)?)
}
