//! Bindings to libibverbs: the types that the library shares with its callers, and its functions,
//! looked up at run time. The library is not linked, so a program that uses this crate also starts
//! on a machine without libibverbs.
//!
//! Types, fields and constants have the names of the library's header, so the manual pages explain
//! them. Only what ferroccl uses is declared. The calls of the fast path are not symbols of the
//! library but pointers in a context; [`ibv_post_send`] and its siblings call them.
//!
//! All other calls go through a table of functions, [`Functions`]. A program may supply a table of
//! its own: that of a software device for tests, or of a device that fails on demand.

// The types keep the library's names, under which the manual pages explain them.
#![allow(non_camel_case_types)]

mod constants;
mod functions;
mod inline;
#[cfg(test)]
mod layout;
mod types;

pub use constants::*;
pub use functions::{Functions, LIBRARY, LoadError, system};
pub use inline::{ibv_poll_cq, ibv_post_recv, ibv_post_send, ibv_req_notify_cq};
pub use types::*;
