//! Data exchange with other tools. [`predicted`] has the predicted traffic of a collective, by pair
//! of ranks; [`chakra`] reads and writes execution traces, of a recorded job ([`job`],
//! [`recorded`]) or of a planned collective; [`replay`] predicts a recorded job on another cluster.

pub mod chakra;
pub mod job;
mod planned;
pub mod predicted;
pub mod recorded;
pub mod replay;

use ccl_traffic::write_file as write;
