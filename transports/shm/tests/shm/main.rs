//! The shared memory transport between processes.

#[cfg(test)]
mod processes;
