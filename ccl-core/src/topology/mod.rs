//! What joins ranks: the parts of a machine and their links ([`machine`]), the switches between
//! machines ([`fabric`]), and both for a whole cluster ([`Topology`]); and which rank is on which
//! host ([`Hosts`]).
//!
//! A cluster is described by its kinds: one [`Machine`](machine::Machine) for thousands of equal
//! hosts, one [`Tier`](fabric::Tier) for all switches of a level. So a description is as long for
//! 24,576 accelerators as for 16, and what is asked of it is computed. Only where a provider has
//! put hosts into its network ([`Placed`]) is a list of them.

mod check;
pub mod fabric;
mod hosts;
pub mod machine;
mod placed;
pub mod placement;
pub mod plugs;
pub mod presets;
mod whole;

pub use check::{At, Error};
pub use hosts::Hosts;
pub use placed::Placed;
pub use whole::{HostRun, Seat, Topology};
