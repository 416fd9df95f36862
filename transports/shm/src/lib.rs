//! Shared memory between the processes of one host.
