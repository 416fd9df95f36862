//! Files of this machine, or a copy of another machine's files, as the kernel lays them out.
//! `ferroccl topo` and `ferroccl doctor` read them.

pub mod devices;
mod files;

pub use files::Files;
