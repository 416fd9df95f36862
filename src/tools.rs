//! Internals of the library, for this project's own tools. This module is no public interface: it
//! changes whenever the tools need a change.

pub use crate::bootstrap::listen::own_hosts;
pub use crate::bootstrap::resolve::resolve;
pub use crate::bootstrap::socket::Deadline;
pub use crate::communicator::devices::affinity::{node_of, processors};
pub use crate::communicator::expected::{Asked, predicted};
pub use crate::communicator::network::Measurement;
pub use crate::communicator::setting;
pub use crate::communicator::tuning::processor;

/// The commit from which the library was built.
pub const COMMIT: &str = env!("FERROCCL_COMMIT");
