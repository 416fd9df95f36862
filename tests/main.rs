//! Integration tests: one binary, one module per area.

#[cfg(test)]
mod bad_input;
#[cfg(test)]
mod bad_network;
#[cfg(test)]
mod bootstrap;
#[cfg(test)]
mod cluster;
#[cfg(test)]
mod collectives;
#[cfg(test)]
mod communicators;
#[cfg(test)]
mod deterministic;
#[cfg(test)]
mod examples;
#[cfg(test)]
mod exchange;
#[cfg(test)]
mod faults;
#[cfg(test)]
mod hosts;
#[cfg(test)]
mod launch;
#[cfg(test)]
mod matrix;
#[cfg(test)]
mod messages;
#[cfg(test)]
mod nccl_net;
#[cfg(test)]
mod network;
#[cfg(test)]
mod ofi;
#[cfg(test)]
mod peeks;
#[cfg(test)]
mod perf;
#[cfg(test)]
mod rails;
#[cfg(test)]
mod rdma;
#[cfg(test)]
mod recovery;
#[cfg(test)]
mod requests;
#[cfg(test)]
mod stuck;
#[cfg(test)]
mod survivors;
#[cfg(test)]
mod toy;
#[cfg(test)]
mod tune;

/// Runs one rank in a process that another test has started; does nothing in any other process.
#[cfg(test)]
#[test]
fn rank() {
    ccl_harness::processes::rank(&[
        bad_input::CASES,
        faults::CASES,
        network::CASES,
        cluster::CASES,
        ofi::CASES,
        survivors::CASES,
        stuck::CASES,
        matrix::CASES,
    ]);
}
