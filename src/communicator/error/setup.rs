//! Errors in making a communicator.

use ccl_core::config::ConfigError;
use ccl_core::select::tuning::TuningError;
use ccl_core::types::Rank;
use ccl_memory::RegionError;

/// Configuration or host that does not allow the communicator. No communicator was made. If it was
/// to be made from an existing communicator, the existing one is unharmed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SetupError {
    /// A tuning table that cannot be used.
    #[error(transparent)]
    Table(#[from] TableError),
    /// A transport that joins only ranks of one host, although the ranks are on several hosts.
    #[error(
        "FERROCCL_TRANSPORT={transport} connects only ranks of one host, but the {ranks} ranks \
         are on {hosts} hosts; unset it, or set it to auto, which takes {networks} between hosts"
    )]
    OneHostOnly {
        /// The configured transport.
        transport: String,
        /// Number of ranks.
        ranks: u32,
        /// Number of hosts of the ranks.
        hosts: usize,
        /// Names of the transports between hosts.
        networks: String,
    },
    /// A transport that cannot encrypt, where encryption is demanded.
    #[error("FERROCCL_TLS=1: {transport} cannot encrypt; choose another FERROCCL_TRANSPORT")]
    CannotEncrypt {
        /// The transport.
        transport: &'static str,
    },
    /// A number of rails that is out of range.
    #[error("FERROCCL_IB_RAILS={rails}: the number of rails must be 1 to {most}")]
    Rails {
        /// The configured number.
        rails: usize,
        /// Largest possible number.
        most: usize,
    },
    /// A host without a device for a transport.
    #[error("this host has no device for {transport}: {reason}")]
    NoDevice {
        /// The transport.
        transport: &'static str,
        /// The reason, and what to do, as the transport words them.
        reason: String,
    },
    /// A text that is no PCI address.
    #[error(
        "FERROCCL_NEAR_PCI={near} is no PCI address such as 0000:17:00.0; `lspci -D` lists those \
         of this host"
    )]
    PciAddress {
        /// The configured text.
        near: String,
    },
    /// A PCI address of no device.
    #[error(
        "FERROCCL_NEAR_PCI={near}: this host has no such PCI device, or sysfs does not show it \
         here ({error}); `lspci -D` lists the devices"
    )]
    NoPciDevice {
        /// The configured address.
        near: String,
        /// The system's error.
        error: std::io::Error,
    },
    /// A connection whose peer does not say which rank it is.
    #[error(
        "a peer that connected to rank {rank} did not say which rank it is; see that all ranks run \
         the same release"
    )]
    Hello {
        /// This rank.
        rank: Rank,
    },
    /// A shared segment that is too small for its layout.
    #[error("the shared segment is too small: {0}")]
    Segment(RegionError),
}

/// Error of a tuning table (`FERROCCL_TUNING`).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TableError {
    /// A file that cannot be read.
    #[error("FERROCCL_TUNING: {name}: {error}; {FILE_ADVICE}")]
    Unreadable {
        /// The file.
        name: String,
        /// The system's error.
        error: std::io::Error,
    },
    /// A name of something other than a file.
    #[error("FERROCCL_TUNING: {name}: it is not a file; {FILE_ADVICE}")]
    NoFile {
        /// The name.
        name: String,
    },
    /// A file that is too long for a table.
    #[error(
        "FERROCCL_TUNING: {name}: it has {bytes} bytes, but a table has at most {most}; \
         {FILE_ADVICE}"
    )]
    TooLong {
        /// The file.
        name: String,
        /// Bytes of the file.
        bytes: u64,
        /// Largest number of bytes of a table.
        most: u64,
    },
    /// A file that is no table.
    #[error("FERROCCL_TUNING: {name}: {error}; {FILE_ADVICE}")]
    Malformed {
        /// The file.
        name: String,
        /// The first problem in the file.
        error: TuningError,
    },
    /// A table that was measured on another machine.
    #[error(
        "FERROCCL_TUNING: the table was measured on \"{there}\", and this is \"{here}\"; run \
         `ferroccl tune` here, or remove the line that begins with `machine` from the table to \
         use it nevertheless"
    )]
    OtherMachine {
        /// The machine that the table names.
        there: String,
        /// This machine.
        here: String,
    },
    /// A setting of the table that cannot be read.
    #[error("FERROCCL_TUNING: a `set` line of the table: {0}")]
    Setting(Box<ConfigError>),
}

const FILE_ADVICE: &str = "name a file that `ferroccl tune --out` has written";
