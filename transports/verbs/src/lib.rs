//! RDMA over InfiniBand and RoCE: writes with an immediate on reliable connected queue pairs,
//! through libibverbs, which is opened at its first use.
//!
//! # Connecting
//!
//! Two lanes connect over a TCP connection whose two sides prove the communicator's secret
//! ([`ccl_socket`]). Over this side connection they exchange their queue pairs, and notes, which
//! are short messages of their users. The side connection stays open: it carries the farewell of
//! each side, and it breaks when the peer's process ends. The side connection may also break while
//! both sides live, for example because a middlebox drops it. Once the queue pairs are connected,
//! the two sides replace a broken side connection by a new one, and nothing is lost.
//!
//! # Data
//!
//! A put becomes one write on one queue pair of its link, or several writes (its parts), each on a
//! different queue pair, as the sender's queue-pair policy says ([`ccl_core::queue_pairs`]). The
//! receiver counts parts, and relies on no order between them. Credits and CTS have a queue pair
//! and a traffic class of their own. A short put is handed to the device with its bytes (inline).
//! One post rings a queue pair's doorbell once for all its writes. Up to 16 writes in a row on a
//! queue pair share one completion: only the last of them is signaled, and its completion covers
//! the earlier ones. A peer can write to memory only with the memory's key. It gets the keys of all
//! memory that is shared with it, and is trusted not to guess other keys.
//!
//! # Failures
//!
//! A failed completion ends its link, with a message that names the peer, both addresses, the queue
//! pair, the status and its usual meaning. Some failures cause no completion: a port that goes
//! down may report nothing but an asynchronous event, so asynchronous events are read too.

mod control;
mod device;
mod endpoint;
mod error;
mod gid;
mod group;
mod hca;
mod lane;
mod listing;
mod load;
mod memory;
mod native;
mod offer;
mod open;
mod port;
mod queue_pair;
mod status;
#[cfg(test)]
mod tests;
mod tunables;

use std::sync::Arc;
use std::time::Duration;

use ccl_core::config::{Config, table_of};
use ccl_core::queue_pairs::{Policy, Striping};
use ccl_core::registry::{Reach, TransportKind};
use ccl_core::transport::{
    Device, DeviceId, DeviceInfo, Fabric, LinkLayer, Transport, TransportError,
};
use ccl_socket::Location;
use rdma_sys::{Functions, IBV_MTU_256, IBV_MTU_4096, LoadError, ibv_mtu};

pub use device::VerbsDevice;
pub use gid::{Family, Picked, Rule};
pub use listing::PortInfo;

use hca::Filter;
use native::Context;
use port::Port;
use tunables::RdmaTunables;

/// Options of the transport.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Devices to use: names or prefixes of names, each with or without a port,
    /// [rail](Fabric::rail) and [plane](Fabric::plane) (`mlx5_0:1:0:2`), separated by commas. After
    /// a leading `=`, only whole names match. After a leading `^`, all devices are used except
    /// those that match.
    pub devices: String,
    /// Interfaces whose addresses are offered to peers for side connections, as with TCP.
    pub interfaces: String,
    /// Rule that picks one of a port's addresses.
    pub gid: Rule,
    /// Index into a port's partition key (P_Key) table.
    pub partition: u16,
    /// Queue-pair policy: rules by which puts are striped over the queue pairs of a link. The
    /// policy also determines the number of queue pairs.
    pub policy: Policy,
    /// Number of writes that may be under way on the queue pairs of one traffic class of a link.
    /// Each queue pair has room for at least a quarter of this number, since a policy can have
    /// rules that use only some of the queue pairs. So five or more queue pairs together have room
    /// for more writes than this number.
    pub writes: u32,
    /// Number of immediates that may come over the queue pairs of one traffic class of a link
    /// before the lane is polled. Each queue pair has room for at least a quarter of this number,
    /// as with `writes`.
    pub immediates: u32,
    /// Number of completions that a lane's queue holds.
    pub completions: u32,
    /// Length of the longest write that is handed to the device with its bytes (inline). The device
    /// may grant another length.
    pub inline_bytes: u32,
    /// True if every put, also an inline one, is done only when the peer has it
    /// ([`Caps::acknowledged`](ccl_core::transport::Caps::acknowledged)).
    pub acknowledged: bool,
    /// Traffic class (DSCP and ECN) of data.
    pub traffic_class: u8,
    /// Traffic class of credits and CTS, which have a queue pair of their own. The default is the
    /// class of the fabric's congestion notifications, where the driver reports it, else that of
    /// data.
    pub control_traffic_class: Option<u8>,
    /// Service level of all packets.
    pub service_level: u8,
    /// Exponent of the acknowledgement timeout: 4.096 µs times two to this power.
    pub timeout: u8,
    /// Number of times that a packet is sent again. With 7 some devices never give up.
    pub retries: u8,
    /// Number of retries when the receiver is not ready; the value 7 means no limit.
    pub rnr_retries: u8,
    /// Longest payload of a packet in bytes; the port may be set to less.
    pub mtu_bytes: u32,
    /// True if writes may overtake each other on the PCIe bus.
    pub relaxed_ordering: bool,
    /// Longest time that two lanes may take to connect their queue pairs.
    pub join_within: Duration,
    /// Time after which links count as lost if their port is down, or if their peer cannot be
    /// reached after a break of the side connection. For an unreachable peer, a time below 3 s
    /// counts as 3 s.
    pub link_within: Duration,
    /// Longest time for which a peer that can be reached may stay silent after a break of the side
    /// connection; a time below 3 s counts as 3 s.
    pub silent_within: Duration,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            devices: String::new(),
            interfaces: String::new(),
            gid: Rule::default(),
            partition: 0,
            policy: Policy::always(Striping::default()),
            writes: 64,
            immediates: 192,
            completions: 1 << 17,
            inline_bytes: 220,
            acknowledged: false,
            traffic_class: 0,
            control_traffic_class: None,
            service_level: 0,
            timeout: 18,
            retries: 6,
            rnr_retries: 7,
            mtu_bytes: 4096,
            relaxed_ordering: true,
            join_within: Duration::from_secs(20),
            link_within: Duration::from_secs(3),
            silent_within: Duration::from_secs(3),
        }
    }
}

/// Reads RDMA's own tunables.
fn own(config: &Config) -> Result<RdmaTunables, TransportError> {
    Ok(config.transport_settings.read()?)
}

impl Options {
    /// Reads the options of RDMA from a configuration; `link_within` becomes
    /// [`Options::link_within`].
    ///
    /// # Errors
    ///
    /// When a setting cannot be used, such as encryption, an unknown address family, or a malformed
    /// network.
    pub fn from_config(config: &Config, link_within: Duration) -> Result<Options, TransportError> {
        if config.tls {
            return Err(TransportError::Setting {
                variable: "FERROCCL_TLS",
                problem: "verbs cannot encrypt".to_owned(),
                advice: "use FERROCCL_TRANSPORT=tcp, or leave FERROCCL_TLS unset",
            });
        }
        let own = own(config)?;
        let family = match own.address_family.as_str() {
            "" => None,
            "AF_INET" => Some(Family::V4),
            "AF_INET6" => Some(Family::V6),
            other => {
                return Err(TransportError::Setting {
                    variable: "FERROCCL_IB_ADDR_FAMILY",
                    problem: format!("{other} is neither AF_INET nor AF_INET6"),
                    advice: "use one of the two, or leave it unset for any family",
                });
            }
        };
        let entries = own.address_range.split(',').map(str::trim);
        let network = |text: &str| {
            text.parse().map_err(|_| TransportError::Setting {
                variable: "FERROCCL_IB_ADDR_RANGE",
                problem: format!("{text} is not a network"),
                advice: "use networks such as 10.0.0.0/8, with commas between them",
            })
        };
        let networks = entries.filter(|text| !text.is_empty()).map(network);
        let networks = networks.collect::<Result<_, _>>()?;
        Ok(Options {
            devices: own.devices,
            interfaces: config.socket_interfaces.clone(),
            gid: Rule { index: own.gid_index, family, networks },
            partition: own.partition.into(),
            policy: config.policy(),
            traffic_class: config.ib_traffic_class,
            control_traffic_class: own.control_traffic_class,
            service_level: own.service_level,
            timeout: own.timeout,
            retries: own.retries,
            rnr_retries: own.rnr_retries,
            mtu_bytes: own.mtu,
            relaxed_ordering: own.relaxed_ordering > 0,
            // Joining may take as long as any operation: a peer may be busy with other things.
            join_within: config.timeout,
            link_within,
            ..Options::default()
        })
    }

    /// Returns the most completions that one link can cause: the room that a lane's queue needs if
    /// no other link ever shares it.
    #[must_use]
    pub fn completions_of_link(&self) -> u32 {
        group::needs(self).map(|need| need.writes.max(2) + need.immediates.max(1)).sum()
    }

    /// Returns whether [`Options::devices`] selects a port of a device; ports are numbered from 1.
    #[must_use]
    pub fn takes(&self, device: &str, port: u8) -> bool {
        Filter::parse(&self.devices).takes(device, port)
    }

    /// Returns the verbs code of `mtu_bytes`; none if no code stands for that length.
    fn mtu(&self) -> Option<ibv_mtu> {
        let codes = IBV_MTU_256..=IBV_MTU_4096;
        codes.into_iter().find(|code| 128 << code == self.mtu_bytes)
    }

    /// Rejects values that no device takes, so that the error does not blame one device.
    fn check(&self) -> Result<(), TransportError> {
        let pairs = group::needs(self).count();
        if !(2..=offer::PAIRS_MAX).contains(&pairs) {
            // One of the queue pairs carries only credits and CTS.
            let (count, most) = (pairs.saturating_sub(1), offer::PAIRS_MAX - 1);
            let what = "queue pairs for data per link (FERROCCL_IB_POLICY)";
            return Err(TransportError::Count { what, count, most });
        }
        let (variable, value, advice) = if self.timeout > 31 {
            ("FERROCCL_IB_TIMEOUT", format!("a timeout of {}", self.timeout), "use 0 to 31")
        } else if self.retries > 7 {
            ("FERROCCL_IB_RETRY_CNT", format!("{} retries", self.retries), "use 0 to 7")
        } else if self.rnr_retries > 7 {
            let retries = self.rnr_retries;
            ("FERROCCL_IB_RNR_RETRY_CNT", format!("{retries} retries"), "use 0 to 7")
        } else if self.mtu().is_none() {
            let value = format!("packets of {} bytes", self.mtu_bytes);
            ("FERROCCL_IB_MTU", value, "use 256, 512, 1024, 2048 or 4096")
        } else if self.service_level > 15 {
            ("FERROCCL_IB_SL", format!("service level {}", self.service_level), "use 0 to 15")
        } else {
            return Ok(());
        };
        let problem = format!("RDMA cannot be used with {value}");
        Err(TransportError::Setting { variable, problem, advice })
    }
}

/// Entry of the transport for the registry.
pub const KIND: TransportKind = TransportKind {
    name: "verbs",
    id: 2,
    reach: Reach::Network,
    preference: 3,
    adapters: true,
    stripes: true,
    encrypts: false,
    more_flows: Some(("FERROCCL_IB_POLICY", &["qps=4", "qps=16"])),
    rank_environment: &[],
    tunables: table_of::<RdmaTunables>,
    names_devices: |config| own(config).is_ok_and(|own| !own.devices.is_empty()),
    make: |config, setup| {
        let mut options = Options::from_config(config, setup.link_within)?;
        options.silent_within = setup.silent_within;
        options.join_within = options.join_within.max(setup.silent_within);
        options.acknowledged = setup.acknowledged;
        if setup.one_connection {
            options.completions = options.completions_of_link();
        }
        Ok(Box::new(VerbsTransport::new(options)))
    },
    fewer_locations: Location::fewer,
};

/// RDMA through libibverbs.
#[derive(Clone, Debug)]
pub struct VerbsTransport {
    /// The library's functions, or the reason why there are none.
    functions: Result<&'static Functions, &'static LoadError>,
    options: Options,
}

impl VerbsTransport {
    /// Makes the transport; opens the library, and no device yet.
    #[must_use]
    pub fn new(options: Options) -> VerbsTransport {
        VerbsTransport { functions: rdma_sys::system(), options }
    }

    /// Makes the transport over other functions than the library's.
    #[must_use]
    pub fn over(functions: &'static Functions, options: Options) -> VerbsTransport {
        VerbsTransport { functions: Ok(functions), options }
    }

    /// Lists every port that the options select: its name, and its description or the error that
    /// keeps it from being used. A device that cannot be opened is listed by its name.
    #[must_use]
    pub fn survey(&self) -> Vec<(String, Result<String, TransportError>)> {
        let Ok(functions) = &self.functions else { return Vec::new() };
        let mut ports = Vec::new();
        for name in Context::names(functions) {
            match Context::open(functions, &name) {
                Ok(context) => ports.extend(
                    self.ports(&context)
                        .map(|(position, port)| (position, port.map(|port| port.description()))),
                ),
                Err(error) => ports.push((name, Err(error))),
            }
        }
        ports
    }

    /// Returns the position of a port in the fabric: the card and the link layer as the hardware
    /// reports them, and the rail and the plane as the configuration names them.
    fn fabric(&self, port: &Port) -> Fabric {
        let card = Some(u64::from_be(port.limits.sys_image_guid)).filter(|guid| *guid != 0);
        let [rail, plane] =
            Filter::parse(&self.options.devices).position(port.context.name(), port.number);
        let layer = match port.is_ethernet() {
            true => LinkLayer::Ethernet,
            false => LinkLayer::InfiniBand,
        };
        Fabric { card, rail, plane, layer: Some(layer) }
    }

    /// Opens the ports of a device that the options select, and returns each port with its name.
    fn ports<'t>(
        &'t self,
        context: &'t Arc<Context>,
    ) -> impl Iterator<Item = (String, Result<Port, TransportError>)> + 't {
        let filter = Filter::parse(&self.options.devices);
        let count = context.limits().map_or(0, |limits| limits.phys_port_cnt);
        let asked = (1..=count).filter(move |port| filter.takes(context.name(), *port));
        asked.map(|number| {
            let position = format!("{}:{number}", context.name());
            (position, Port::open(Arc::clone(context), number, &self.options))
        })
    }
}

impl Transport for VerbsTransport {
    fn name(&self) -> &'static str {
        KIND.name
    }

    fn devices(&self) -> Vec<DeviceInfo> {
        let Ok(functions) = &self.functions else { return Vec::new() };
        let opened = Context::names(functions)
            .into_iter()
            .filter_map(|name| Context::open(functions, &name).ok())
            .collect::<Vec<_>>();
        let usable = opened.iter().flat_map(|context| self.ports(context));
        let usable = usable.filter_map(|(_, port)| port.ok());
        let info = |port: Port| DeviceInfo {
            id: DeviceId(port.name()),
            description: port.description(),
            caps: device::caps(&port, &self.options),
            numa_node: port.context.numa_node(),
            pci_path: port.context.pci_path(),
            fabric: self.fabric(&port),
        };
        usable.map(info).collect()
    }

    fn why_none(&self) -> String {
        if let Err(missing) = &self.functions {
            return missing.to_string();
        }
        let ports = self.survey();
        let unusable = |(name, port): &(String, Result<String, TransportError>)| match port {
            Ok(_) => None,
            // This error names the port itself.
            Err(problem @ TransportError::Unusable { .. }) => Some(problem.to_string()),
            Err(problem) => Some(format!("{name}: {problem}")),
        };
        let problems: Vec<String> = ports.iter().filter_map(unusable).collect();
        match (ports.is_empty(), self.options.devices.as_str()) {
            (false, _) => problems.join("; "),
            (true, "") => "the kernel has no RDMA device (`ibv_devices`); to add a software \
                           device: `rdma link add rxe0 type rxe netdev eth0`"
                .to_owned(),
            (true, devices) => format!("no port matches FERROCCL_IB_HCA={devices}"),
        }
    }

    fn open(&self, id: &DeviceId) -> Result<Arc<dyn Device>, TransportError> {
        let functions = self.functions.map_err(|error: &LoadError| {
            let (what, reason) = ("RDMA".to_owned(), error.to_string());
            TransportError::Unusable { what, reason }
        })?;
        self.options.check()?;
        let (name, port) = id.0.split_once(':').unwrap_or((&id.0, "1"));
        let port = port.parse().map_err(|_| {
            let advice = "name a device and a port, such as mlx5_0:1".to_owned();
            TransportError::NoDevice { device: id.0.clone(), advice }
        })?;
        let context = Context::open(functions, name)?;
        let port = Port::open(context, port, &self.options)?;
        Ok(Arc::new(VerbsDevice::open(port, self.options.clone())))
    }
}
