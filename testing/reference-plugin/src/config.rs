//! Configuration from the environment, read once when the plugin is first used.

use std::env;

use crate::fault::Fault;

/// Configuration of the plugin.
#[derive(Clone, Debug, Default)]
pub(crate) struct Config {
    /// `NCCL_SOCKET_IFNAME`: names or name prefixes of the interfaces to use.
    pub(crate) interfaces: String,
    /// `REFERENCE_NET_FAULT`: planted fault, if any.
    pub(crate) fault: Option<Fault>,
}

impl Config {
    /// Reads the configuration from the environment of this process.
    pub(crate) fn read() -> Config {
        let value = |name| env::var(name).unwrap_or_default();
        Config {
            interfaces: value("NCCL_SOCKET_IFNAME"),
            fault: Fault::parse(&value("REFERENCE_NET_FAULT")),
        }
    }
}
