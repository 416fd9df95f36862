//! Placement of ranks on hosts ([`Hosts`]); the parts of a machine and their links ([`machine`]),
//! and the distance between two devices ([`plugs`]).

mod hosts;
pub mod machine;
pub mod plugs;

pub use hosts::Hosts;
