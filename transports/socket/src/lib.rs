//! TCP connections between two processes that prove to each other that they know a secret, before
//! anything else is read. The TCP transport sends its data over these connections; transports whose
//! hardware cannot connect by itself exchange connection parameters and notes over them.
//!
//! # Connecting
//!
//! A [`Gate`]'s [address](ccl_core::transport::Address) lists those addresses of the host that
//! [`interface::addresses`] returns. A [`Dialler`] tries them in turn, a short time apart, and
//! takes the first at which that gate answers. Both sides prove the communicator's secret, and the
//! connecting side names the gate's random token, before anything else is read. All that a stranger
//! can do is keep connections half open, for a bounded time.
//!
//! # Links
//!
//! A [`LinkListener`] and a [`LinkConnecting`] make a [`Link`] of one connection or several. A
//! connection that breaks is made anew ([`Break`], [`Reconnector`]); the transport then repeats the
//! messages that were under way on it.
//!
//! # Encryption
//!
//! With [`Setup::tls`], TLS 1.3 begins on each connection when both sides have proved the secret,
//! so that a stranger costs no asymmetric cryptography. The key of the TLS server is made when a
//! device is opened, and has no certificate. Instead of checking that key, each side proves the
//! secret once more, over keys exported from the session. A man in the middle who relays the first
//! proofs has a different session with each side, and fails the second proof. A TLS record that was
//! changed on the way breaks the connection.

mod address;
mod connection;
mod dialler;
mod end;
mod farewell;
pub mod fork;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
mod gate;
mod hello;
pub mod interface;
mod links;
mod shake;
mod side;
mod side_link;
pub mod socket;
#[cfg(test)]
#[cfg(feature = "tls")]
mod tests;
#[cfg(feature = "tls")]
mod tls;
#[cfg(not(feature = "tls"))]
#[path = "no_tls.rs"]
mod tls;

use ccl_core::transport::TransportError;
use rustix::io::Errno;

pub use address::{Location, Token};
pub use connection::Connection;
pub use dialler::Dialler;
pub use end::{ConnectionEnd, LinkEnd, ReconnectError, SideEnd};
pub use farewell::{FAREWELL_WITHIN, ShutdownWait};
pub use gate::{AuthenticatedConnection, BUSY_MAX, Gate};
pub use hello::{Hello, TEXT_BYTES_MAX};
pub use interface::interfaces;
pub use links::{
    Break, BreakLimits, Intent, Link, LinkConnecting, LinkId, LinkListener, Reconnector,
};
pub use shake::{Setup, SocketHandshake, protocol};
pub use side::{SideConnection, SideMessage};
pub use side_link::SideLink;
pub use socket::Got;
pub use tls::{Session, Tls};

/// Returns an error of the operating system, with advice.
#[must_use]
pub fn os(call: &'static str, error: Errno, advice: &'static str) -> TransportError {
    TransportError::Os { call, code: error.raw_os_error(), reason: text(error), advice }
}

/// Returns an error's text without its number.
fn text(error: Errno) -> String {
    let full = std::io::Error::from_raw_os_error(error.raw_os_error()).to_string();
    full.split(" (os error").next().unwrap_or_default().to_owned()
}

/// Advice for the choice of a congestion control.
const CONGESTION: &str = "set FERROCCL_CONGESTION to a name in \
                          /proc/sys/net/ipv4/tcp_allowed_congestion_control, or leave it empty";
/// Advice for calls that make descriptors.
pub const DESCRIPTORS: &str = "if the limit of open files is reached, raise it with `ulimit -n`";
