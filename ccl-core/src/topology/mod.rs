//! What joins ranks: which of them share a host ([`Hosts`]), and the switches between hosts
//! ([`fabric`]).

pub mod fabric;
mod hosts;

pub use hosts::Hosts;
