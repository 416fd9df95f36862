//! TCP: the transport that every cluster has.
//!
//! A put is a frame on a socket: a header of 32 bytes that names the peer's memory, then the
//! bytes. The receiver checks the name and the range and lets the kernel write the bytes where
//! they belong; nothing is received that the receiver has not offered. Each pair of lanes is
//! joined by one or several connections, *stripes*, on which puts take turns.
//!
//! # Meeting
//!
//! A listener's [address](ccl_core::transport::Address) lists the host's addresses (see
//! [`Options::interfaces`]). Whoever connects tries them all at once and takes the first that
//! answers and is the listener meant: both sides prove the communicator's secret, and the
//! connecting side names the listener's random token, before anything else is read. A stranger
//! costs a connection slot for a bounded time and nothing else.
//!
//! # Encryption
//!
//! With [`Options::tls`], TLS 1.3 begins on each connection when both sides have proved the secret,
//! so that a stranger costs no asymmetric cryptography. Nobody vouches for the keys of its servers:
//! they are made when a device is opened, and instead of looking at them each side proves the
//! secret once more, over keys exported from the session. Somebody in between, who passes the
//! first proofs on, has another session with each of the two and cannot do that. Every stripe, and
//! every one that takes the place of a broken one, has a session of its own. A record that was
//! changed on the way breaks the connection, and what it carried is sent again.
//!
//! It costs the time of a core for each byte, which is encrypted, decrypted, and copied once or
//! twice more than the kernel does anyway; per socket 64 KiB of memory, and up to 256 KiB that wait
//! for it; and a few allocations per message. `all_reduce_perf` with `FERROCCL_TLS=1` and with `0`
//! shows how much that is. Without it, nothing is different but one comparison per system call.
//!
//! # Broken connections
//!
//! A put is done when the peer has acknowledged its frame; until then its bytes stay where they
//! are. So when a connection breaks and the peer lives, the side that had connected connects
//! again, both tell how many frames they have, and what was lost is sent again: nothing is lost,
//! nothing is written twice after it was seen. A peer that nobody answers for is gone at once; one
//! that does not come back within [`Options::resume_within`] is too.

mod acceptor;
mod address;
mod connecting;
mod device;
mod endpoint;
mod frame;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
mod inbox;
mod incoming;
mod interface;
mod lane;
mod link;
mod memory;
mod outgoing;
mod shake;
mod socket;
mod stripe;
#[cfg(test)]
#[cfg(feature = "tls")]
mod tests;
#[cfg(feature = "tls")]
mod tls;
#[cfg(not(feature = "tls"))]
#[path = "no_tls.rs"]
mod tls;
mod wire;

use std::sync::Arc;
use std::time::Duration;

use ccl_core::time::Instant;
use ccl_core::transport::{Device, DeviceId, DeviceInfo, Transport, TransportError};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};

pub use device::TcpDevice;

/// The name of the only device.
pub const DEVICE: &str = "tcp0";

/// What can be chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Which interfaces peers are told of: names or prefixes of names, or networks such as
    /// `10.0.0.0/8`, separated by commas; `=` before the first takes names as they are, `^` takes
    /// all others (both as NCCL spells it: `^=`). Empty takes all, loopback only if there is no
    /// other.
    pub interfaces: String,
    /// Connections per pair of ranks, at least 1.
    pub sockets: u32,
    /// How long a broken connection may take to come back before the peer counts as gone.
    pub resume_within: Duration,
    /// Whether everything but the first proof is encrypted, by TLS 1.3; alike on all ranks. Needs
    /// the feature `tls`.
    pub tls: bool,
    /// The kernel's name of a congestion control; empty for its own choice, but `reno` where that
    /// is `bbr`, whose pacing delays the bursts of collectives.
    pub congestion: String,
}

impl Default for Options {
    fn default() -> Options {
        let resume_within = Duration::from_secs(3);
        let (interfaces, congestion) = (String::new(), String::new());
        Options { interfaces, sockets: 1, resume_within, tls: false, congestion }
    }
}

/// TCP.
#[derive(Clone, Debug, Default)]
pub struct TcpTransport {
    options: Options,
}

impl TcpTransport {
    /// The transport; costs nothing until a device is opened.
    #[must_use]
    pub fn new(options: Options) -> TcpTransport {
        TcpTransport { options }
    }
}

impl Transport for TcpTransport {
    fn name(&self) -> &'static str {
        "tcp"
    }

    fn devices(&self) -> Vec<DeviceInfo> {
        vec![DeviceInfo {
            id: DeviceId(DEVICE.to_owned()),
            description: "TCP over the interfaces of this host".to_owned(),
            caps: device::caps(&self.options),
        }]
    }

    fn open(&self, id: &DeviceId) -> Result<Arc<dyn Device>, TransportError> {
        if id.0 != DEVICE {
            let name = &id.0;
            return Err(TransportError::Usage(format!(
                "there is no TCP device {name:?}; the only one is {DEVICE:?}"
            )));
        }
        Ok(Arc::new(TcpDevice::open(self.options.clone())?))
    }
}

/// The machine's monotonic clock, the same for all processes of the host.
#[must_use]
pub fn now() -> Instant {
    let time = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    Instant::from_nanos(seconds.saturating_mul(1_000_000_000).saturating_add(nanos))
}

/// An error of the operating system, with advice.
fn os(call: &'static str, error: Errno, advice: &'static str) -> TransportError {
    TransportError::Os { call, code: error.raw_os_error(), reason: text(error), advice }
}

/// An error's text without its number.
fn text(error: Errno) -> String {
    let full = std::io::Error::from_raw_os_error(error.raw_os_error()).to_string();
    full.split(" (os error").next().unwrap_or_default().to_owned()
}

/// Advice for the choice of a congestion control.
const CONGESTION: &str = "choose one of /proc/sys/net/ipv4/tcp_allowed_congestion_control with \
                          FERROCCL_CONGESTION, or leave it empty";
/// Advice for calls that make descriptors.
const DESCRIPTORS: &str = "if it is the number of open files, raise it with `ulimit -n`";
