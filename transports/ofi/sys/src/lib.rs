//! Bindings of libfabric: the types of its interface, and its functions, found at run time. Nothing
//! is linked, so a program that uses the bindings starts on a machine without the library.
//!
//! Types, fields and constants bear the names that the library's own headers give them, so that
//! its manual pages explain them. The bindings contain only what ferroccl uses. Most calls are not
//! symbols of the library but function pointers in its objects; functions such as [`fi_close`] call
//! these pointers.
//!
//! The types are those of version 1.17. Later versions append fields to some of them. Some of the
//! types that grow are allocated only by the library ([`Functions::dupinfo`] with a null pointer);
//! the others have spare bytes at their end.
//!
//! All objects come from a [`Functions`], so a test may pass functions of its own: a simulated
//! provider.

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
