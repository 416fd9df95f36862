//! Files of this machine, or copies of another machine's files in a directory, laid out as by the
//! kernel. `ferroccl topo` and `ferroccl doctor` read them.

pub mod devices;
mod files;

pub use files::Files;
