//! `libnccl-net-ferroccl.so`: ferroccl's transports as a network plugin of NCCL.
//!
//! ```text
//! exports/       functions that NCCL calls, by version: pointers become numbers, slices, regions
//! plugin.rs      the same functions without C
//! rendezvous.rs  listening, connecting, accepting
//! comm/          one direction of one connection: CTS, slots, requests
//! progress.rs    the thread that makes progress when NCCL does not call
//! ```
//!
//! The devices, lanes and policies are those of the transports; this crate only turns NCCL's
//! requests into puts. NCCL holds the plugin's objects as numbers (`table.rs`) that look like
//! pointers and are never dereferenced.

mod comm;
mod config;
mod context;
mod device;
mod error;
mod exports;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
mod handle;
mod helpers;
mod log;
mod memory;
mod plugin;
mod progress;
mod rendezvous;
mod table;

pub use exports::{
    Exported, NAME, NCCL_NET_PLUGIN_V8, NCCL_NET_PLUGIN_V9, NCCL_NET_PLUGIN_V10,
    NCCL_NET_PLUGIN_V11, NCCL_NET_PLUGIN_V12,
};
