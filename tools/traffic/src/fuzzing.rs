//! Fuzz target of this crate, for its reader of traffic matrices. See `ccl_core::fuzzing`.

pub use crate::matrix::fuzzed as traffic_matrix;

#[cfg(test)]
#[path = "../../../fuzz/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    use super::replay::replay;

    #[test]
    fn traffic_matrices() {
        replay("traffic_matrix", super::traffic_matrix);
    }
}
