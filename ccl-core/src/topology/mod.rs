//! Which rank is on which host ([`Hosts`]); the parts of a machine and their links ([`machine`]),
//! and how far two of them are apart ([`plugs`]).

mod hosts;
pub mod machine;
pub mod plugs;

pub use hosts::Hosts;
