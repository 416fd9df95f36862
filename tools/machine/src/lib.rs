//! The files of this machine, or of a copy of another one, as the kernel lays them out. `ferroccl
//! topo` and `ferroccl doctor` read them.

pub mod devices;
mod files;

pub use files::Files;
