//! This machine, or another whose files are at hand, as the kernel's files have it: what `ferroccl
//! topo` and `ferroccl doctor` look at.

pub mod devices;
mod files;

pub use files::Files;
