//! `libnccl-net-ferroccl.so`: ferroccl's transports as a network plugin of NCCL.
//!
//! ```text
//! exports/   what NCCL calls, version by version: pointers become numbers, slices and regions
//! plugin.rs  the same without C
//! meeting.rs listening, connecting, accepting
//! comm/      one direction of one connection: CTS, slots, requests
//! progress.rs the thread that goes on when NCCL does not call
//! ```
//!
//! The devices, lanes and policies are those of the transports; here is only how NCCL's requests
//! become puts. What NCCL holds are numbers (`table.rs`): no pointer of its can lead astray.

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
