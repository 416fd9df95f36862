//! What the environment says; read once, when the plugin is first used.

use std::env;

use crate::fault::Fault;

/// What can be set.
#[derive(Clone, Debug, Default)]
pub(crate) struct Config {
    /// `NCCL_SOCKET_IFNAME`: names of interfaces to use, or their beginnings.
    pub(crate) interfaces: String,
    /// `REFERENCE_NET_FAULT`: what is done wrong.
    pub(crate) fault: Option<Fault>,
}

impl Config {
    /// Of this process.
    pub(crate) fn read() -> Config {
        let value = |name| env::var(name).unwrap_or_default();
        Config {
            interfaces: value("NCCL_SOCKET_IFNAME"),
            fault: Fault::parse(&value("REFERENCE_NET_FAULT")),
        }
    }
}
