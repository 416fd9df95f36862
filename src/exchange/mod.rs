//! What is exchanged with other tools: who sent how much to whom ([`matrix`]).

use std::io::Write as _;

pub mod matrix;

/// Writes a file whole; `-` is standard output.
fn write(path: &str, bytes: &[u8]) -> Result<(), String> {
    let written = match path {
        "-" => std::io::stdout().write_all(bytes),
        _ => std::fs::write(path, bytes),
    };
    written.map_err(|error| format!("cannot write {path}: {error}"))
}
