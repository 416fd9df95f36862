//! TCP: the transport that every cluster has.
//!
//! A put is a frame on a socket: a header of 32 bytes that names the peer's memory, then the bytes.
//! The receiver checks the memory and the range, and lets the kernel write the bytes to their
//! destination. The receiver accepts bytes only for memory that it has shared. One or several
//! connections, the *stripes*, join each pair of lanes; puts of data take the stripes in turn.
//!
//! [`ccl_socket`] connects the two sides, proves the communicator's secret, and encrypts on
//! request.
//!
//! # Encryption
//!
//! Every connection, also one that replaces a broken connection, has a TLS session of its own. A
//! TLS record that was changed on the way breaks the connection, and its bytes are sent again. TLS
//! costs CPU time per byte: for encryption, for decryption, and for one or two copies besides the
//! kernel's own. Each socket takes 64 KiB of memory, and up to 256 KiB more for encrypted bytes
//! that wait to be sent; each message takes a few allocations. To measure the cost, run
//! `all_reduce_perf` once with `FERROCCL_TLS=1` and once with `FERROCCL_TLS=0`. While TLS is off,
//! the code for it costs one comparison per system call.
//!
//! # Broken connections
//!
//! A put is done when the peer has acknowledged its frame (unless [`Options::done_when_written`] is
//! set); until then the put's bytes stay in the sender's memory. When a connection breaks and the
//! peer lives, the side that dialled the connection dials again. Both sides report how many frames
//! they have received, and lost frames are sent again: nothing is lost, and no put is written again
//! after the receiving lane has reported it as arrived. A peer counts as gone at once if nobody
//! listens at its address. It also counts as gone if it cannot be reached for
//! [`Options::resume_within`], or does not answer for [`Options::silent_within`].

mod device;
#[cfg(test)]
#[cfg(feature = "tls")]
mod encrypted;
mod endpoint;
mod error;
mod frame;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
mod inbox;
mod incoming;
mod lane;
mod memory;
mod outgoing;
mod stripe;
mod tunables;
mod writers;

use std::sync::Arc;
use std::time::Duration;

use ccl_core::config::{Config, table_of};
use ccl_core::registry::{Reach, TransportKind};
use ccl_core::transport::{Device, DeviceId, DeviceInfo, Fabric, Transport, TransportError};

use ccl_socket::Location;

use tunables::TcpTunables;

pub use device::TcpDevice;

/// Name of the only device.
pub const DEVICE: &str = "tcp0";

/// Options of the transport.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Interfaces whose addresses are offered to peers: names or prefixes of names, or networks
    /// such as `10.0.0.0/8`, separated by commas. As in NCCL, after a leading `=` only whole names
    /// match, and after a leading `^` all interfaces are taken except those that match; `^=` means
    /// both. If empty, all are taken, but loopback only if there is no other.
    pub interfaces: String,
    /// Connections per pair of ranks, at least 1.
    pub sockets: u32,
    /// Longest time after a break for which the dialling side tries to reach the peer again, at the
    /// address of the link's first connection. After this time the peer counts as gone.
    pub resume_within: Duration,
    /// Time after a break within which a reachable peer must answer. If the peer is the dialling
    /// side, it must dial again within this time. After this time the peer counts as gone.
    pub silent_within: Duration,
    /// True if TLS 1.3 encrypts all frames. All ranks need the same value. Needs the feature `tls`.
    pub tls: bool,
    /// Congestion control, by its name in the kernel. If empty, the kernel's default applies,
    /// except that `reno` replaces `bbr`: the pacing of `bbr` delays the bursts of collectives.
    pub congestion: String,
    /// True if a put is done when the kernel has its bytes, instead of when the peer has them. The
    /// put's memory is then given back sooner, but a break that loses some of the bytes ends the
    /// link.
    pub done_when_written: bool,
}

impl Default for Options {
    fn default() -> Options {
        let resume_within = Duration::from_secs(3);
        let (interfaces, congestion) = (String::new(), String::new());
        Options {
            interfaces,
            sockets: 1,
            resume_within,
            silent_within: resume_within,
            tls: false,
            congestion,
            done_when_written: false,
        }
    }
}

impl Options {
    /// Reads the options of TCP from a configuration.
    ///
    /// # Errors
    ///
    /// When a value of TCP's own tunables cannot be read.
    pub fn from_config(config: &Config) -> Result<Options, TransportError> {
        let own: TcpTunables = config.transport_settings.read()?;
        Ok(Options {
            interfaces: config.socket_interfaces.clone(),
            sockets: own.sockets,
            resume_within: config.dead_after,
            silent_within: config.dead_after,
            tls: config.tls,
            congestion: own.congestion,
            done_when_written: false,
        })
    }
}

/// Entry of TCP in the registry of transports.
pub const KIND: TransportKind = TransportKind {
    name: "tcp",
    id: 1,
    reach: Reach::Network,
    preference: 1,
    adapters: false,
    stripes: false,
    encrypts: true,
    more_flows: Some(("FERROCCL_SOCKETS", &["2", "4"])),
    rank_environment: &[],
    tunables: table_of::<TcpTunables>,
    names_devices: |_| false,
    make: |config, setup| {
        let done_when_written = setup.done_when_written;
        let own = Options::from_config(config)?;
        let silent_within = own.resume_within.max(setup.silent_within);
        let options = Options { done_when_written, silent_within, ..own };
        Ok(Box::new(TcpTransport::new(options)))
    },
    fewer_locations: Location::fewer,
};

/// The TCP transport.
#[derive(Clone, Debug, Default)]
pub struct TcpTransport {
    options: Options,
}

impl TcpTransport {
    /// Creates the transport; costs nothing until a device is opened.
    #[must_use]
    pub fn new(options: Options) -> TcpTransport {
        TcpTransport { options }
    }
}

impl Transport for TcpTransport {
    fn name(&self) -> &'static str {
        KIND.name
    }

    fn devices(&self) -> Vec<DeviceInfo> {
        vec![DeviceInfo {
            id: DeviceId(DEVICE.to_owned()),
            description: "TCP over the interfaces of this host".to_owned(),
            caps: device::caps(&self.options),
            numa_node: None,
            pci_path: None,
            fabric: Fabric::default(),
        }]
    }

    fn open(&self, id: &DeviceId) -> Result<Arc<dyn Device>, TransportError> {
        if id.0 != DEVICE {
            let advice = format!("the only device of TCP is {DEVICE:?}");
            return Err(TransportError::NoDevice { device: id.0.clone(), advice });
        }
        Ok(Arc::new(TcpDevice::open(self.options.clone())?))
    }
}
