//! What the environment says; read once, when the plugin is first used.

use std::env;

/// What can be set.
#[derive(Clone, Debug, Default)]
pub(crate) struct Config {
    /// `NCCL_SOCKET_IFNAME`: names of interfaces to use, or their beginnings.
    pub(crate) interfaces: String,
}

impl Config {
    /// Of this process.
    pub(crate) fn read() -> Config {
        Config { interfaces: env::var("NCCL_SOCKET_IFNAME").unwrap_or_default() }
    }
}
