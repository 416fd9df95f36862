//! Fuzz targets of this crate, as in `ccl_core::fuzzing`: the protocols and environments of
//! launchers, and the recordings of other processes.

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
    fn environments() {
        replay("environment", super::environment);
    }
}
