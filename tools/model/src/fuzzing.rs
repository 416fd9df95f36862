//! Fuzz targets of this crate: files of other tools. See `ccl_core::fuzzing`.

pub use crate::exchange::{chakra::fuzzed as chakra_trace, recorded::fuzzed as recorded_calls};

#[cfg(test)]
#[path = "../../../fuzz/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    use super::replay::replay;

    #[test]
    fn chakra_traces() {
        replay("chakra_trace", super::chakra_trace);
    }

    #[test]
    fn recorded_calls() {
        replay("recorded_calls", super::recorded_calls);
    }
}
