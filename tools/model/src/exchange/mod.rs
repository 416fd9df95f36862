//! What is exchanged with other tools: who sends how much to whom, as it is predicted
//! ([`predicted`]); execution traces in Chakra's form ([`chakra`]) of a job ([`job`]) as its ranks
//! recorded it ([`recorded`]), or of a planned collective; and such a job on another cluster
//! ([`replay`]).

pub mod chakra;
pub mod job;
mod planned;
pub mod predicted;
pub mod recorded;
pub mod replay;

use ccl_traffic::write_file as write;
