//! Interconnects of ranks: machines ([`ccl_core::topology::machine`]), the switches between them
//! ([`fabric`]), and both for a whole cluster ([`Topology`]). A topology is read from a file,
//! discovered on this machine, or known by name; it is printed as a matrix, a tree or a drawing.
//!
//! A description lists kinds, not instances: one machine for thousands of equal hosts, one
//! [`Tier`](fabric::Tier) for all switches of a level. So a description of 24,576 accelerators is
//! as long as one of 16, and counts and paths are computed from it. Only one list has an entry for
//! each host: that of the hosts' positions in a provider's network ([`Placed`]).

mod aws;
mod check;
mod discover;
mod draw;
pub mod fabric;
mod gpu_links;
#[cfg(test)]
mod machines;
mod matrix;
mod nccl;
mod placed;
pub mod placement;
pub mod presets;
mod text;
mod tree;
mod whole;

use std::fs;
use std::io::Read as _;
use std::path::Path;

pub use check::{At, Error};
pub use discover::discover;
pub use draw::{dot, mermaid, svg};
pub(crate) use matrix::columns;
pub use matrix::matrix;
pub use nccl::write as nccl_xml;
pub use placed::Placed;
pub use text::{parse, write};
pub use tree::tree;
pub use whole::{HostRun, Seat, Topology};

/// Largest number of bytes of a description.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// Opens a preset by name, or a topology file: ferroccl's text form, NCCL's topology XML, or
/// Amazon's instance topology.
///
/// # Errors
///
/// When there is no such preset or file, or when the file is invalid. An error within a line of the
/// file names the line.
pub fn open(name: &str) -> Result<Topology, String> {
    if let Some(preset) = presets::find(name) {
        return Ok(preset.topology());
    }
    let path = Path::new(name);
    if !path.exists() {
        let names: Vec<&str> = presets::ALL.iter().map(|preset| preset.name).collect();
        return Err(format!(
            "there is no file {name}, and no known topology has this name; known topologies: {}",
            names.join(" ")
        ));
    }
    let mut text = String::new();
    let file = fs::File::open(path).map_err(|error| format!("{name}: {error}"))?;
    let read = file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text);
    let read = read.map_err(|error| format!("{name}: {error}; is it a text file?"))?;
    if read as u64 > FILE_BYTES_MAX {
        return Err(format!("{name} is longer than 64 MiB; is it the right file?"));
    }
    let mut topology = match text.trim_start().chars().next() {
        Some('<') => nccl::parse(name, &text)?,
        Some('{') => aws::parse(name, &text)?,
        _ => text::parse(name, &text)?,
    };
    if topology.name.is_empty() {
        topology.name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    }
    Ok(topology)
}

/// Lists the topologies that are known by name, with a description of each.
#[must_use]
pub fn list() -> String {
    let width = presets::ALL.iter().map(|preset| preset.name.len()).max().unwrap_or(0);
    let line = |preset: &presets::Preset| format!("{:width$}  {}\n", preset.name, preset.about);
    presets::ALL.iter().map(line).collect()
}

/// Returns the text form as JSON.
///
/// # Errors
///
/// No known case: the text form is TOML, which converts to JSON.
pub fn json(topology: &Topology) -> Result<String, String> {
    let value: toml::Value = toml::from_str(&write(topology)).map_err(|error| error.to_string())?;
    serde_json::to_string_pretty(&value).map(|text| text + "\n").map_err(|error| error.to_string())
}

/// Returns the number of the line that contains a byte; the first line is 1.
fn line(text: &str, byte: usize) -> usize {
    1 + text.bytes().take(byte).filter(|byte| *byte == b'\n').count()
}
