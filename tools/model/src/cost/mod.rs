//! Cost of communication by formulas: collectives within one level of a network ([`collectives`])
//! and over its levels ([`fabric`]); formulas for nodes of GPUs that are fitted to measurements
//! ([`cluster`], [`curve`]); NCCL's own latencies ([`nccl`]); the consequences for training
//! ([`training`]); questions in text form ([`ask`]).
//!
//! All values are plain numbers: bytes, bytes per second in one direction, seconds; a GB is 10⁹
//! bytes. Only [`curve`], [`nccl`] and [`protocols`] model latency; the other formulas treat a
//! transfer as bound by bandwidth alone. Some sources leave out a factor near 1, such as (n - 1)/n:
//! then one function has the exact formula and another that of the source. Each function names its
//! formula.
//!
//! Short names of the sources:
//!
//! * *scaling book*: J. Austin and others, "How to Scale Your Model", the chapter on GPUs;
//! * *engineering book*: S. Bekman, "Machine Learning Engineering", the chapter on networks;
//! * *training playbook*: "The Smol Training Playbook", the section on interconnects;
//! * *RoCE paper*: A. Gangidi and others, "RDMA over Ethernet for Distributed AI Training at Meta
//!   Scale", SIGCOMM 2024.

pub mod ask;
pub mod cluster;
pub mod collectives;
pub mod curve;
pub mod fabric;
pub mod nccl;
pub mod protocols;
pub mod questions;
pub mod training;

/// Checks that two numbers are equal, up to the relative `tolerance`.
#[cfg(test)]
fn about(value: f64, expected: f64, tolerance: f64) {
    assert!((value / expected - 1.0).abs() <= tolerance, "{value} is not {expected}");
}
