//! Tests of the shared memory transport between processes.

#[cfg(test)]
mod conformance;
#[cfg(test)]
mod processes;
