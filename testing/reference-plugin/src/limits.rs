//! Limits of the plugin.

/// Largest number of buffers of one receive.
pub(crate) const GROUP_MAX: usize = 8;
/// Approximate limit of the bytes that one call moves, so that other communicators have their turn.
pub(crate) const CALL_BYTES_MAX: usize = 4 << 20;

/// Number of requests that [`FewRequests`](crate::fault::Fault::FewRequests) leaves room for.
pub(crate) const FEW: usize = 8;
