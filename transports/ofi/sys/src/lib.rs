//! Bindings of libfabric: the types of its interface, and its functions, found at run time. Nothing
//! is linked, so a program that uses the bindings starts on a machine without the library.
//!
//! Types, fields and constants bear the names that the library's own headers give them, so that
//! its manual pages explain them. Only what ferroccl uses is here. Most calls are no symbols of the
//! library but pointers in its objects; [`fi_close`] and its siblings go through them.
//!
//! The types are those of version 1.17. Later versions append fields to some of them. The library
//! itself allocates some of these types ([`Functions::dupinfo`] with a null pointer); the others
//! have spare bytes at their end.
//!
//! Everything goes through a [`Functions`], so a program may bring its own: a simulated provider
//! for tests.

// The library's own names, as in its manual pages.
#![allow(non_camel_case_types)]

mod constants;
mod functions;
mod inline;
#[allow(missing_docs, reason = "fields and pointers are those of the manual pages")]
mod types;

pub use constants::*;
pub use functions::{Functions, LIBRARY, LoadError, system};
pub use inline::*;
pub use types::*;
