//! A network plugin for NCCL in the manner of its built-in one: plain sockets, one for each
//! communicator. It is no transport of ferroccl: benchmarks compare with it, and the tester of
//! plugins is tested on it.
//!
//! # On the wire
//!
//! Who connects first sends a hello: the listener's random token. Then come
//! messages, one after the other, each a frame of fixed length with size, tag and the first bytes,
//! and the rest of it if it is longer (`frame.rs`). Nothing goes back.
//!
//! # Who moves data
//!
//! Whoever calls `isend`, `irecv` or `test` moves what it can without waiting. Communicators that
//! nobody calls for are driven by one thread per process (`plugin.rs`), which also finishes what
//! was in flight when a communicator was closed.
//!
//! # Tags
//!
//! The sender sends in order, whatever the tags. The k-th message of a tag belongs to the k-th
//! receive posted for it. A message that nobody waits for stays in the socket, unless a receive for
//! another tag waits behind it: then it is put aside (`receiver.rs`).
//!
//! # Faults
//!
//! `REFERENCE_NET_FAULT` names a violation of NCCL's contract (`fault.rs`) that is then committed.

mod config;
mod exports;
mod fault;
mod frame;
mod handle;
mod listener;
mod memory;
mod older;
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
