//! ferroccl: collective communication for clusters.
