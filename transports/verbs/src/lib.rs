//! RDMA over InfiniBand and RoCE: writes that carry an immediate, on reliable connected queue
//! pairs, through libibverbs, which is opened when it is first asked for.
//!
//! # Meeting
//!
//! Two lanes meet over a TCP connection that proves the communicator's secret ([`ccl_socket`]).
//! Over it they tell each other their queue pairs, and whatever notes their owners have. It stays:
//! a peer says farewell over it, and where a process has ended nobody answers any more. A
//! connection that breaks while both sides live, as middleboxes have it, is made anew, and nothing
//! is lost.
//!
//! # Data
//!
//! A put becomes one write on one queue pair of its link, or several on as many, as the sender's
//! policy says ([`ccl_core::queue_pairs`]); the receiver counts parts, and relies on no order
//! between them. Credits and CTS have a queue pair and a traffic class of their own. A short put
//! is handed to the device with its bytes. Writes of one post share one ring of the doorbell, and
//! only the last of several completes; what lies before it on its queue pair is done with it.
//! Memory is written only by who has its key: peers of the same device are told the keys of what
//! is theirs,
//! and are trusted not to guess others.
//!
//! # Failures
//!
//! A failed completion ends its link, with a sentence that names the peer, both addresses, the
//! queue pair, the status and what it usually means. Completions do not tell of everything: a port
//! that has lost its link may say nothing but an asynchronous event, so those are read too.

mod control;
mod device;
mod endpoint;
mod gid;
mod group;
mod hca;
mod lane;
mod line;
mod listing;
mod load;
mod memory;
mod native;
mod offer;
mod open;
mod port;
mod side;
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
use rdma_sys::{Functions, IBV_MTU_256, IBV_MTU_4096, ibv_mtu};

pub use device::VerbsDevice;
pub use gid::{Family, Picked, Rule};
pub use listing::PortInfo;

use hca::Filter;
use native::Context;
use port::Port;
use tunables::RdmaTunables;

/// What can be chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Which devices: names or prefixes of names, with or without a port (`mlx5_0:1`), separated
    /// by commas; `=` before the first takes names as they are, `^` takes all others.
    pub devices: String,
    /// Which interfaces peers are told of for the connections beside the hardware, as with TCP.
    pub interfaces: String,
    /// Which of a port's addresses is used.
    pub gid: Rule,
    /// The row of the table of partitions.
    pub partition: u16,
    /// How puts are spread over the queue pairs of a link, and so how many there are.
    pub policy: Policy,
    /// Writes that a link may have under way, shared by its queue pairs; each has at least a
    /// quarter of them, since a rule may use fewer queue pairs than there are.
    pub writes: u32,
    /// Immediates that may come over a link before the lane is polled, likewise.
    pub immediates: u32,
    /// Completions that a lane's queue holds.
    pub completions: u32,
    /// The longest put that is handed to the device with its bytes.
    pub inline_bytes: u32,
    /// Whether such a put, too, is done only when the peer has it
    /// ([`Caps::acknowledged`](ccl_core::transport::Caps::acknowledged)).
    pub acknowledged: bool,
    /// DSCP and ECN of what is sent.
    pub traffic_class: u8,
    /// The same of credits and CTS, which have a queue pair of their own. By default the class of
    /// the fabric's congestion notifications, where the driver tells it, else that of data.
    pub control_traffic_class: Option<u8>,
    /// The service level of what is sent.
    pub service_level: u8,
    /// An acknowledgement is waited for 4.096 µs times two to this.
    pub timeout: u8,
    /// How often a packet is sent again. Seven is for ever with some devices.
    pub retries: u8,
    /// How often a receiver that is not ready is asked again; 7 is for ever.
    pub not_ready_retries: u8,
    /// The longest payload of a packet, as far as the port is set to so much.
    pub mtu_bytes: u32,
    /// Whether writes may overtake each other on the bus.
    pub relaxed_ordering: bool,
    /// How long two lanes may take to connect their queue pairs.
    pub join_within: Duration,
    /// How long a port's link may be away before its links count as lost.
    pub link_within: Duration,
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
            not_ready_retries: 7,
            mtu_bytes: 4096,
            relaxed_ordering: true,
            join_within: Duration::from_secs(20),
            link_within: Duration::from_secs(3),
        }
    }
}

/// Reads what is set of RDMA alone.
fn own(config: &Config) -> Result<RdmaTunables, TransportError> {
    let read = config.transport_settings.read();
    read.map_err(|error| TransportError::Usage(error.to_string()))
}

impl Options {
    /// What a configuration says of RDMA; `link_within` is how long the link of a port may be away.
    ///
    /// # Errors
    ///
    /// When it says what cannot be: encryption, an unknown family, a network that is none.
    pub fn from_config(config: &Config, link_within: Duration) -> Result<Options, TransportError> {
        let usage = |text: String| Err(TransportError::Usage(text));
        if config.tls {
            let text = "FERROCCL_TLS=1 encrypts what goes over tcp; verbs cannot. Use \
                        FERROCCL_TRANSPORT=tcp, or leave FERROCCL_TLS unset";
            return usage(text.to_owned());
        }
        let own = own(config)?;
        let family = match own.address_family.as_str() {
            "" => None,
            "AF_INET" => Some(Family::V4),
            "AF_INET6" => Some(Family::V6),
            other => {
                return usage(format!(
                    "FERROCCL_IB_ADDR_FAMILY={other} is neither AF_INET nor AF_INET6"
                ));
            }
        };
        let entries = own.address_range.split(',').map(str::trim);
        let network = |text: &str| {
            text.parse().map_err(|_| {
                let text =
                    format!("FERROCCL_IB_ADDR_RANGE: {text} is no network such as 10.0.0.0/8");
                TransportError::Usage(text)
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
            not_ready_retries: own.not_ready_retries,
            mtu_bytes: own.mtu,
            relaxed_ordering: own.relaxed_ordering > 0,
            // A peer may be busy with other things.
            join_within: config.timeout,
            link_within,
            ..Options::default()
        })
    }

    /// Returns the completions that one link may cause: what a lane's queue has to hold if no other
    /// link ever shares it.
    #[must_use]
    pub fn completions_of_link(&self) -> u32 {
        group::needs(self).map(|need| need.writes.max(2) + need.immediates.max(1)).sum()
    }

    /// Whether a port of a device, from 1, is among those that are asked for.
    #[must_use]
    pub fn takes(&self, device: &str, port: u8) -> bool {
        Filter::parse(&self.devices).takes(device, port)
    }

    /// The longest payload as verbs name it, if they have a name for it.
    fn mtu(&self) -> Option<ibv_mtu> {
        let codes = IBV_MTU_256..=IBV_MTU_4096;
        codes.into_iter().find(|code| 128 << code == self.mtu_bytes)
    }

    /// What no device takes is told apart from what this one does not take.
    fn check(&self) -> Result<(), TransportError> {
        let pairs = group::needs(self).count();
        let problem = if !(2..=offer::PAIRS_MAX).contains(&pairs) {
            let most = offer::PAIRS_MAX;
            format!("{pairs} queue pairs per link (FERROCCL_IB_POLICY); use {most} at most")
        } else if self.timeout > 31 {
            format!("a timeout of {} (FERROCCL_IB_TIMEOUT); use 0 to 31", self.timeout)
        } else if self.retries > 7 {
            format!("{} retries (FERROCCL_IB_RETRY_CNT); use 0 to 7", self.retries)
        } else if self.not_ready_retries > 7 {
            let retries = self.not_ready_retries;
            format!("{retries} retries (FERROCCL_IB_RNR_RETRY_CNT); use 0 to 7")
        } else if self.mtu().is_none() {
            let bytes = self.mtu_bytes;
            format!("packets of {bytes} bytes (FERROCCL_IB_MTU); use 256, 512, 1024, 2048 or 4096")
        } else if self.service_level > 15 {
            format!("service level {} (FERROCCL_IB_SL); use 0 to 15", self.service_level)
        } else {
            return Ok(());
        };
        Err(TransportError::Usage(format!("RDMA cannot be used with {problem}")))
    }
}

/// RDMA as a value, for the registry.
pub const KIND: TransportKind = TransportKind {
    name: "verbs",
    id: 2,
    reach: Reach::Network,
    preference: 2,
    adapters: true,
    stripes: true,
    encrypts: false,
    more_flows: Some(("FERROCCL_IB_POLICY", &["qps=4", "qps=16"])),
    tunables: table_of::<RdmaTunables>,
    names_devices: |config| own(config).is_ok_and(|own| !own.devices.is_empty()),
    make: |config, setup| {
        let mut options = Options::from_config(config, setup.link_within)?;
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
    /// Or why there are none.
    functions: Result<&'static Functions, String>,
    options: Options,
}

impl VerbsTransport {
    /// The transport; opens the library, and no device yet.
    #[must_use]
    pub fn new(options: Options) -> VerbsTransport {
        let functions = rdma_sys::system().map_err(ToString::to_string);
        VerbsTransport { functions, options }
    }

    /// The same over other functions than the library's.
    #[must_use]
    pub fn over(functions: &'static Functions, options: Options) -> VerbsTransport {
        VerbsTransport { functions: Ok(functions), options }
    }

    /// Every port that there is, used or not: its name, and what it is, or why it cannot be used.
    #[must_use]
    pub fn survey(&self) -> Vec<(String, Result<String, String>)> {
        let Ok(functions) = &self.functions else { return Vec::new() };
        let mut ports = Vec::new();
        for name in Context::names(functions) {
            match Context::open(functions, &name) {
                Ok(context) => ports.extend(self.ports(&context).map(|(position, port)| {
                    let port = port.map(|port| port.description());
                    (position, port.map_err(|error| error.to_string()))
                })),
                Err(error) => ports.push((name, Err(error.to_string()))),
            }
        }
        ports
    }

    /// Where the hardware and the configuration say that a port is.
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

    /// The ports of a device that are asked for.
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
            return missing.clone();
        }
        let ports = self.survey();
        let unusable = |(name, port): &(String, Result<String, String>)| {
            port.as_ref().err().map(|problem| format!("{name}: {problem}"))
        };
        let problems: Vec<String> = ports.iter().filter_map(unusable).collect();
        match (ports.is_empty(), self.options.devices.as_str()) {
            (false, _) => problems.join("; "),
            (true, "") => "the kernel knows none (`ibv_devices`); for one in software: `rdma link \
                           add rxe0 type rxe netdev eth0`"
                .to_owned(),
            (true, devices) => format!("none is among FERROCCL_IB_HCA={devices}"),
        }
    }

    fn open(&self, id: &DeviceId) -> Result<Arc<dyn Device>, TransportError> {
        let functions = self.functions.clone().map_err(TransportError::Usage)?;
        self.options.check()?;
        let (name, port) = id.0.split_once(':').unwrap_or((&id.0, "1"));
        let port = port.parse().map_err(|_| {
            TransportError::Usage(format!("{:?} is no device and port, such as mlx5_0:1", id.0))
        })?;
        let context = Context::open(functions, name)?;
        let port = Port::open(context, port, &self.options)?;
        Ok(Arc::new(VerbsDevice::open(port, self.options.clone())))
    }
}
