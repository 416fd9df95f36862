//! Errors as NCCL sees them: a result, and a text for its log.

use std::fmt;

use ccl_core::transport::TransportError;
use nccl_net_abi::NcclResult;

/// A failed call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NetError {
    pub(crate) result: NcclResult,
    pub(crate) text: String,
}

impl NetError {
    pub(crate) fn new(result: NcclResult, text: impl Into<String>) -> NetError {
        NetError { result, text: text.into() }
    }

    /// Creates an error for an invalid argument.
    pub(crate) fn argument(text: impl Into<String>) -> NetError {
        NetError::new(NcclResult::INVALID_ARGUMENT, text)
    }

    /// Creates an error that the peer has caused.
    pub(crate) fn remote(text: impl Into<String>) -> NetError {
        NetError::new(NcclResult::REMOTE_ERROR, text)
    }
}

impl fmt::Display for NetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl From<TransportError> for NetError {
    fn from(error: TransportError) -> NetError {
        let result = match &error {
            TransportError::Deadline { .. }
            | TransportError::Refused { .. }
            | TransportError::Lost { .. } => NcclResult::REMOTE_ERROR,
            error if error.is_usage() => NcclResult::INVALID_USAGE,
            error if error.is_defect() => NcclResult::INTERNAL_ERROR,
            _ => NcclResult::SYSTEM_ERROR,
        };
        NetError::new(result, error.to_string())
    }
}
