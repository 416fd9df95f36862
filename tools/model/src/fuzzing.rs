//! Fuzz targets of this crate, for its readers of execution traces and of recorded calls. See
//! `ccl_core::fuzzing`.

use crate::exchange::chakra::Trace;
use crate::exchange::job;
pub use crate::exchange::recorded::fuzzed as recorded_calls;

/// Fuzz target: an encoded trace decodes to the same trace, and the conversion of any trace gives a
/// list of calls and messages, or an error.
pub fn chakra_trace(data: &[u8]) {
    let Ok(trace) = Trace::decode("input", data) else { return };
    let bytes = trace.encode();
    let again = Trace::decode("again", &bytes).unwrap_or_default();
    // Compares bytes instead of traces, because a NaN does not equal itself.
    assert_eq!(again.encode(), bytes);
    let _ = job::fuzzed_list(&trace);
}

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
