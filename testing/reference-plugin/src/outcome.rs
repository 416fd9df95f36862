//! Results of calls.

use nccl_net_abi::NcclResult;

/// Result of a call.
pub(crate) type Outcome<T> = Result<T, NcclResult>;
