//! libibverbs as it is: the types that its callers share with it, and its functions, found at run
//! time. Nothing here is linked, so what uses it starts on a machine without the library.
//!
//! Types, fields and constants bear the names that the library's own header gives them, so that
//! its manual pages explain them. Only what ferroccl uses is here. The calls of the fast path are
//! no symbols of the library but pointers in its context; [`ibv_post_send`] and its siblings go
//! through them.
//!
//! Everything goes through a [`Functions`], so a program may bring its own: a software device for
//! tests, or one that fails on demand.

// The library's names, for those who know them or look them up.
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
