//! What is exchanged with other tools: who sent how much to whom ([`matrix`]), as it is
//! predicted ([`predicted`]).

use std::io::Write as _;

pub mod matrix;
pub mod predicted;

/// Writes a file whole; `-` is standard output.
fn write(path: &str, bytes: &[u8]) -> Result<(), String> {
    let written = match path {
        "-" => std::io::stdout().write_all(bytes),
        _ => std::fs::write(path, bytes),
    };
    written.map_err(|error| format!("cannot write {path}: {error}"))
}
