//! Network plugin for NCCL in the manner of NCCL's socket transport: plain sockets, one for each
//! communicator. It is not a ferroccl transport: benchmarks use it as a baseline, and the tests of
//! `ferroccl netcheck` check it.
//!
//! # Wire format
//!
//! The connecting side first sends a hello: a constant and the listener's random token. Then come
//! messages, one after the other. Each message is a frame of fixed length with size, tag and first
//! bytes, followed by the remaining bytes if there are any (`frame.rs`). The receiver sends nothing
//! back.
//!
//! # Progress
//!
//! A call to `isend`, `irecv` or `test` moves the data that it can move without waiting. One thread
//! per process, the helper thread, makes progress for communicators without recent calls
//! (`plugin.rs`). The thread also finishes what was in flight when a communicator was closed.
//!
//! # Tags
//!
//! The sender sends in posting order, whatever the tags. The k-th message of a tag belongs to the
//! k-th receive posted for the tag. A message without a posted receive stays in the socket. If a
//! receive for another tag is posted, the message is put aside instead (`receiver.rs`).
//!
//! # Faults
//!
//! `REFERENCE_NET_FAULT` names a violation of NCCL's contract (`fault.rs`) that the plugin commits.

mod config;
mod exports;
mod fault;
mod frame;
mod handle;
mod limits;
mod listener;
mod memory;
mod older;
mod outcome;
mod plugin;
mod properties;
mod receiver;
mod registry;
mod sender;
mod slots;
#[cfg(test)]
mod tests;
mod versions;

pub use versions::{
    Exported, ncclNetPlugin_v8, ncclNetPlugin_v9, ncclNetPlugin_v10, ncclNetPlugin_v11,
    ncclNetPlugin_v12,
};
