//! The atomics that everything here uses, so that a model checker can be put in their place.

pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
