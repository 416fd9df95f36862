//! Error of a transport: the failure, the device or peer, and the remedy.

use std::time::Duration;

use ccl_memory::{OutOfMemory, RegionError};

use super::{EndpointId, IMMEDIATE_MAX, MrKey, RemoteMr};
use crate::value::ConfigError;

/// Error of a transport.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TransportError {
    /// The operating system refused.
    #[error("{call} failed: {reason} (error {code}); {advice}")]
    Os {
        /// The call that failed.
        call: &'static str,
        /// Error number of the call.
        code: i32,
        /// Text of the error.
        reason: String,
        /// Advice on what to do.
        advice: &'static str,
    },
    /// An operation did not finish in time.
    #[error(
        "{what} with {peer} did not finish within {after:?}; is that process alive and not stopped?"
    )]
    Deadline {
        /// Step that was not done.
        what: &'static str,
        /// Peer of that step.
        peer: String,
        /// Time that was allowed.
        after: Duration,
    },
    /// The peer is refused, for example because it does not know the secret.
    #[error("{peer} is refused: {reason}")]
    Refused {
        /// Peer that is refused.
        peer: String,
        /// Reason of the refusal.
        reason: String,
    },
    /// The peer closed the connection, or died.
    #[error("{peer} is gone: {reason}")]
    Lost {
        /// Peer that is gone.
        peer: String,
        /// Observation that revealed the loss.
        reason: String,
    },
    /// The lane has no such endpoint, or has detached it.
    #[error("this lane has no endpoint {}, or has detached it; attach a new connection", .0.0)]
    UnknownEndpoint(EndpointId),
    /// A connection is attached to a lane of a device other than the one that made the connection.
    #[error("this connection was made by another device; attach it to a lane of that device")]
    OtherDevice,
    /// A connection is asked for again although it was handed out or has failed.
    #[error("this connection has already been handed out, or has failed; connect again")]
    HandedOut,
    /// The bytes are not an address of this transport.
    #[error("these {bytes} bytes are not an address of {of}; do all ranks use the same transport?")]
    NoAddress {
        /// Number of the bytes.
        bytes: usize,
        /// Kind of listener whose address is expected.
        of: &'static str,
    },
    /// Memory is not registered with the device, or not any more.
    #[error("memory key {} is not (or no longer) registered with this device; register it", .0.0)]
    UnknownMemory(MrKey),
    /// Memory was deregistered while bytes of it were being sent.
    #[error(
        "memory was deregistered while it was being sent; keep memory registered until its sends \
         are done"
    )]
    Withdrawn,
    /// Bytes from a peer are not a memory key.
    #[error(
        "these {bytes} bytes are not a memory key; do all ranks run the same release of ferroccl?"
    )]
    NoKey {
        /// Number of the bytes.
        bytes: usize,
    },
    /// The key names memory that the peer has not shared over this connection.
    #[error(
        "{peer} has not shared the memory of this key over this connection; use a key only on the \
         connection over which its memory was shared"
    )]
    ForeignKey {
        /// Name of the peer.
        peer: String,
    },
    /// The memory of a put was not imported from the put's peer, or has been forgotten since.
    #[error(
        "memory {} is not (or no longer) imported from endpoint {}; import the key that the \
         endpoint's peer has shared",
        .memory.0, .endpoint.0
    )]
    NotImported {
        /// Memory of the put.
        memory: RemoteMr,
        /// Endpoint of the put.
        endpoint: EndpointId,
    },
    /// Bytes to redirect ([`Lane::redirect`](super::Lane::redirect)) that do not lie in memory that
    /// is shared with the peer.
    #[error(
        "{bytes} bytes at offset {offset} lie in memory that is not shared with {peer}; share the \
         memory first"
    )]
    NotShared {
        /// Name of the peer.
        peer: String,
        /// Offset of the first byte in the registered memory.
        offset: usize,
        /// Number of bytes.
        bytes: usize,
    },
    /// Memory of a peer cannot be mapped, only written by puts.
    #[error("memory of {peer} cannot be mapped; write to it by puts")]
    NotMapped {
        /// Address of the peer, or a description such as `another host`.
        peer: String,
    },
    /// A request reaches beyond the memory that it names.
    #[error("{bytes} bytes at offset {offset} are out of range: {memory} has {room} bytes")]
    OutOfRange {
        /// Memory that the request names: this side's, or the peer's.
        memory: &'static str,
        /// Offset of the first byte.
        offset: usize,
        /// Number of bytes.
        bytes: usize,
        /// Number of bytes of the memory.
        room: u64,
    },
    /// A put, a note or a text for a peer is too long.
    #[error("a {what} of {bytes} bytes is too long; at most {most} bytes are allowed")]
    TooLong {
        /// Kind of the item.
        what: &'static str,
        /// Number of bytes of the item.
        bytes: usize,
        /// Greatest number of bytes that is allowed.
        most: usize,
    },
    /// The new location of a put's bytes has a different length.
    #[error(
        "the {bytes} bytes of a put cannot move to a location of {given} bytes; use a location of \
         equal length"
    )]
    OtherLength {
        /// Number of bytes of the put.
        bytes: usize,
        /// Number of bytes at the new location.
        given: usize,
    },
    /// An immediate is greater than [`IMMEDIATE_MAX`].
    #[error("the immediate {0:#x} is too large; the greatest is {IMMEDIATE_MAX:#x}")]
    ImmediateTooLarge(u32),
    /// A count is zero or too great.
    #[error("{count} {what} are not possible; use 1 to {most}")]
    Count {
        /// Kind of the things.
        what: &'static str,
        /// Number of the things.
        count: usize,
        /// Greatest number that is possible.
        most: usize,
    },
    /// The transport cannot do this at all.
    #[error("this transport cannot {what}: {reason}")]
    Unsupported {
        /// Operation that the transport does not support.
        what: &'static str,
        /// Reason, and what to do instead.
        reason: &'static str,
    },
    /// The transport has no device of that name.
    #[error("there is no device {device:?}; {advice}")]
    NoDevice {
        /// Name that was given.
        device: String,
        /// Names that there are, or advice on how to find them.
        advice: String,
    },
    /// No network interface of this host matches the filter.
    #[error("no network interface matches FERROCCL_SOCKET_IFNAME={filter:?}; there are: {there}")]
    NoInterface {
        /// Value of `FERROCCL_SOCKET_IFNAME`; empty for any interface.
        filter: String,
        /// Interfaces of this host, with their addresses.
        there: String,
    },
    /// A tunable of the transport cannot be read.
    #[error(transparent)]
    Config(Box<ConfigError>),
    /// The value of a tunable cannot be used by this transport.
    #[error("{variable}: {problem}; {advice}")]
    Setting {
        /// Environment variable of the tunable.
        variable: &'static str,
        /// Value that was given, and the problem with it.
        problem: String,
        /// Advice on what to do.
        advice: &'static str,
    },
    /// A device, or a library or service that the transport needs, cannot be used now.
    #[error("{what} cannot be used: {reason}")]
    Unusable {
        /// Device, library or service.
        what: String,
        /// Reason, and what to do.
        reason: String,
    },
    /// A resource of the device is used up.
    #[error("{resource} has room for {room} more, and {needed} are needed: {advice}")]
    Full {
        /// Resource of the device.
        resource: &'static str,
        /// Number of entries that are left.
        room: usize,
        /// Number of entries that are needed.
        needed: usize,
        /// Advice on what to do.
        advice: &'static str,
    },
    /// There is no memory for slots or scratch buffers.
    #[error(
        "{0}; use smaller slots (FERROCCL_SLOT_BYTES, FERROCCL_BUDGET_BYTES), or raise the limit \
         (`ulimit -v`, the memory of the container)"
    )]
    Memory(#[from] OutOfMemory),
    /// The transport's own memory is smaller than the transport assumes.
    #[error("{0}; this is a defect of ferroccl, please report it")]
    Region(#[from] RegionError),
    /// Two parts of the library disagree.
    #[error("{what}; this is a defect of ferroccl, please report it")]
    Internal {
        /// State that should never occur.
        what: &'static str,
    },
    /// A [`FaultInjector`](super::FaultInjector) made the call fail.
    #[error("an injected fault: {what}")]
    Injected {
        /// Operation that did not take place.
        what: &'static str,
    },
}

impl From<ConfigError> for TransportError {
    fn from(error: ConfigError) -> TransportError {
        TransportError::Config(Box::new(error))
    }
}

impl TransportError {
    /// Returns whether the caller is at fault: the call, or the configuration, cannot be carried
    /// out as given.
    #[must_use]
    pub fn is_usage(&self) -> bool {
        match self {
            TransportError::UnknownEndpoint(_)
            | TransportError::OtherDevice
            | TransportError::HandedOut
            | TransportError::NoAddress { .. }
            | TransportError::UnknownMemory(_)
            | TransportError::Withdrawn
            | TransportError::NoKey { .. }
            | TransportError::ForeignKey { .. }
            | TransportError::NotImported { .. }
            | TransportError::NotShared { .. }
            | TransportError::NotMapped { .. }
            | TransportError::OutOfRange { .. }
            | TransportError::TooLong { .. }
            | TransportError::OtherLength { .. }
            | TransportError::ImmediateTooLarge(_)
            | TransportError::Count { .. }
            | TransportError::Unsupported { .. }
            | TransportError::NoDevice { .. }
            | TransportError::Config(_)
            | TransportError::Setting { .. } => true,
            // An empty filter matches every usable interface. If even that filter matches none, the
            // host has no usable interface, which is not the caller's fault.
            TransportError::NoInterface { filter, .. } => !filter.is_empty(),
            TransportError::Os { .. }
            | TransportError::Deadline { .. }
            | TransportError::Refused { .. }
            | TransportError::Lost { .. }
            | TransportError::Unusable { .. }
            | TransportError::Full { .. }
            | TransportError::Memory(_)
            | TransportError::Region(_)
            | TransportError::Internal { .. }
            | TransportError::Injected { .. } => false,
        }
    }

    /// Returns whether the error is a defect of the library.
    #[must_use]
    pub fn is_defect(&self) -> bool {
        matches!(self, TransportError::Region(_) | TransportError::Internal { .. })
    }

    /// Returns whether a smaller allocation might succeed: the error is a lack of memory.
    #[must_use]
    pub fn is_shortage(&self) -> bool {
        matches!(self, TransportError::Os { code: 12, .. } | TransportError::Memory(_))
    }

    /// Returns whether the error is a lack of memory or descriptors in this process or on its host,
    /// for which no peer is to blame.
    #[must_use]
    pub fn is_own_shortage(&self) -> bool {
        // ENFILE (too many open files of the host), EMFILE (of the process) and ENOBUFS.
        self.is_shortage() || matches!(self, TransportError::Os { code: 23 | 24 | 105, .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transport_error_takes_at_most_64_bytes() {
        assert!(size_of::<TransportError>() <= 64, "{}", size_of::<TransportError>());
    }

    #[test]
    fn an_error_blames_the_caller_or_the_library_or_neither() {
        let region = RegionError { offset: 8, bytes: 4, region_bytes: 8 };
        let defect = TransportError::from(region);
        assert!(defect.is_defect() && !defect.is_usage(), "{defect}");
        let there = "lo (127.0.0.1)".to_owned();
        let none = TransportError::NoInterface { filter: String::new(), there: there.clone() };
        assert!(!none.is_usage() && !none.is_defect(), "{none}");
        let failed = |code| TransportError::Os {
            call: "pidfd_open",
            code,
            reason: String::new(),
            advice: "",
        };
        assert!(failed(24).is_own_shortage() && !failed(24).is_shortage());
        assert!(failed(12).is_own_shortage() && !failed(104).is_own_shortage());
        let asked = TransportError::NoInterface { filter: "ib7".to_owned(), there };
        assert!(asked.is_usage() && !asked.is_defect(), "{asked}");
    }

    #[test]
    fn a_full_lane_reports_its_limit() {
        assert_eq!(EndpointId::next(3, 4), Ok(EndpointId(3)));
        let error = EndpointId::next(4, 4).unwrap_err().to_string();
        assert_eq!(error, "5 endpoints of one lane are not possible; use 1 to 4");
    }
}
