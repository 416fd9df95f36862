//! Data exchanged with other tools: predicted traffic of a collective, by pair of ranks
//! ([`predicted`]); execution traces in Chakra's format ([`chakra`]) of a job ([`job`]) as its
//! ranks recorded it ([`recorded`]), or of a planned collective; and such a job on another cluster
//! ([`replay`]).

pub mod chakra;
pub mod job;
mod planned;
pub mod predicted;
pub mod recorded;
pub mod replay;

use ccl_traffic::write_file as write;
