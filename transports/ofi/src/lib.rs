//! libfabric, opened at run time: its providers and what they can do ([`providers`]), and whether
//! they do it ([`test_provider`]).
//!
//! A provider of reliable datagram endpoints (`FI_EP_RDM`) is what a transport needs. It is no
//! transport yet: collectives do not run over it.

mod native;
mod provider;
mod selftest;

pub use native::OfiError;
pub use provider::{Provider, providers};
pub use selftest::{Passed, TestError, test_provider};
