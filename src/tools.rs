//! Parts of the library that this project's own tools share with it. This module is not an
//! interface: it changes whenever the tools need that.

pub use crate::bootstrap::listen::own_hosts;
pub use crate::bootstrap::resolve::resolve;
pub use crate::bootstrap::socket::Deadline;
pub use crate::communicator::devices::affinity::{node_of, processors};
pub use crate::communicator::expected::{Asked, predicted};
pub use crate::communicator::network::Measurement;
pub use crate::communicator::setting;
pub use crate::communicator::tuning::processor;

/// The commit that the library was made from.
pub const COMMIT: &str = env!("FERROCCL_COMMIT");
