//! Placement of ranks on hosts ([`Hosts`]), the model of a machine's parts and their connections
//! ([`machine`]), and the distance between two of its devices ([`plugs`]).

mod hosts;
pub mod machine;
pub mod plugs;

pub use hosts::Hosts;
