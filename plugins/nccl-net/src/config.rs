//! The configuration, from the environment of the process that NCCL runs in.

use ccl_core::config::Config;
use ferroccl::transports;
use nccl_net_abi::NcclResult;

use crate::error::NetError;

/// Reads the configuration.
pub(crate) fn read() -> Result<Config, NetError> {
    let lookup = |name: &str| {
        // NCCL chooses the algorithms, so the tuning table (perhaps a file) is not read.
        if name == "FERROCCL_TUNING" {
            return None;
        }
        let value = std::env::var_os(name)?;
        Some(value.to_string_lossy().into_owned())
    };
    let config = Config::read(&lookup, &transports::tables());
    config.map_err(|error| NetError::new(NcclResult::INVALID_USAGE, error.to_string()))
}
