//! What is exchanged with other tools: who sent how much to whom ([`matrix`]), as it is predicted
//! ([`predicted`]); execution traces in Chakra's form ([`chakra`]) of a job ([`job`]) as its ranks
//! recorded it ([`recorded`]), or of a planned collective; and such a job on another cluster
//! ([`replay`]).

use std::io::Write as _;

pub mod chakra;
pub mod job;
pub mod matrix;
mod planned;
pub mod predicted;
pub mod recorded;
pub mod replay;

/// Writes a file whole; `-` is standard output.
fn write(path: &str, bytes: &[u8]) -> Result<(), String> {
    let written = match path {
        "-" => std::io::stdout().write_all(bytes),
        _ => std::fs::write(path, bytes),
    };
    written.map_err(|error| format!("cannot write {path}: {error}"))
}
