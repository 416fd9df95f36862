//! What is fuzzed of this crate: the launchers' protocols and their environment, the recordings of
//! other processes, and what is exchanged with other tools. As in `ccl_core::fuzzing`.

#[cfg(feature = "cli")]
pub use crate::exchange::{
    chakra::fuzzed as chakra_trace, matrix::fuzzed as traffic_matrix,
    recorded::fuzzed as recorded_calls,
};
pub use crate::launch::fuzzing::{environment, pmi, store};
pub use crate::recorder::fuzzed as recording;

#[cfg(test)]
#[path = "../fuzz/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    use super::replay::replay;

    #[test]
    fn process_managers() {
        replay("pmi", super::pmi);
    }

    #[test]
    fn stores() {
        replay("store", super::store);
    }

    #[test]
    fn recordings() {
        replay("recording", super::recording);
    }

    #[test]
    #[cfg(feature = "cli")]
    fn traffic_matrices() {
        replay("traffic_matrix", super::traffic_matrix);
    }

    #[test]
    #[cfg(feature = "cli")]
    fn chakra_traces() {
        replay("chakra_trace", super::chakra_trace);
    }

    #[test]
    #[cfg(feature = "cli")]
    fn recorded_calls() {
        replay("recorded_calls", super::recorded_calls);
    }

    #[test]
    fn environments() {
        replay("environment", super::environment);
    }
}
