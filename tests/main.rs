//! Integration tests: one binary, one module per area.

#[cfg(test)]
#[cfg(feature = "cli")]
mod acceptance;
#[cfg(test)]
mod bad_input;
#[cfg(test)]
#[cfg(feature = "cli")]
mod bad_network;
#[cfg(test)]
mod bootstrap;
#[cfg(test)]
#[cfg(feature = "cli")]
mod cluster;
#[cfg(test)]
mod collectives;
#[cfg(test)]
mod communicators;
#[cfg(test)]
#[cfg(feature = "cli")]
mod cost;
#[cfg(test)]
mod deterministic;
#[cfg(test)]
#[cfg(feature = "cli")]
mod doctor;
#[cfg(test)]
#[cfg(feature = "cli")]
mod exchange;
#[cfg(test)]
#[cfg(feature = "cli")]
mod explain;
#[cfg(test)]
mod faults;
#[cfg(test)]
mod harness;
#[cfg(test)]
mod hosts;
#[cfg(test)]
mod launch;
#[cfg(test)]
#[cfg(feature = "cli")]
mod matrix;
#[cfg(test)]
mod messages;
#[cfg(test)]
#[cfg(feature = "cli")]
mod nccl_net;
#[cfg(test)]
mod network;
#[cfg(test)]
#[cfg(feature = "cli")]
mod perf;
#[cfg(test)]
#[cfg(feature = "cli")]
mod place;
#[cfg(test)]
#[cfg(feature = "cli")]
mod plan;
#[cfg(test)]
mod rails;
#[cfg(test)]
mod rdma;
#[cfg(test)]
mod recovery;
#[cfg(test)]
mod requests;
#[cfg(test)]
#[cfg(feature = "cli")]
mod sim;
#[cfg(test)]
mod stuck;
#[cfg(test)]
mod survivors;
#[cfg(test)]
#[cfg(feature = "cli")]
mod topo;
#[cfg(test)]
#[cfg(feature = "cli")]
mod tune;
