//! Tuning tables: their sources, and the check that a table was measured on this machine.

use std::path::Path;

use ccl_core::config::Config;

use super::error::{Error, SetupError, TableError};

/// Greatest length of a table.
const TABLE_BYTES_MAX: u64 = 16 << 20;

/// Returns the name of this machine in tables: the model and number of its processors. The number
/// includes the processors to which this process is not bound: some launchers bind each rank to a
/// few processors.
#[must_use]
pub fn machine() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let count = info.lines().filter(|line| line.starts_with("processor")).count();
    format!("{}, {count} processors", processor())
}

/// Returns the model of this machine's processors.
pub fn processor() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    model.map_or_else(|| std::env::consts::ARCH.to_owned(), |(_, name)| name.trim().to_owned())
}

/// Returns the text of a table: the contents of file `NAME` if `value` is `@NAME`, else `value`.
///
/// # Errors
///
/// When the file cannot be read.
pub(super) fn table(value: &str) -> Result<String, Error> {
    let Some(name) = value.trim().strip_prefix('@') else { return Ok(value.to_owned()) };
    Ok(file(name).map_err(SetupError::Table)?)
}

/// Returns the text of a file that holds a table.
fn file(name: &str) -> Result<String, TableError> {
    let own = || name.to_owned();
    let unreadable = |error| TableError::Unreadable { name: own(), error };
    let about = std::fs::metadata(Path::new(name)).map_err(unreadable)?;
    let bytes = about.len();
    if !about.is_file() {
        return Err(TableError::NoFile { name: own() });
    }
    if bytes > TABLE_BYTES_MAX {
        return Err(TableError::TooLong { name: own(), bytes, most: TABLE_BYTES_MAX });
    }
    let text = std::fs::read_to_string(name).map_err(unreadable)?;
    // The text is parsed here so that an error names the file: later steps have only the text.
    match text.parse::<ccl_core::select::tuning::Tuning>() {
        Ok(_) => Ok(text),
        Err(error) => Err(TableError::Malformed { name: own(), error }),
    }
}

/// Checks that a table was measured on this machine, if the table names a machine.
///
/// # Errors
///
/// When the table was measured elsewhere.
pub(super) fn check(config: &Config) -> Result<(), Error> {
    let here = machine();
    match &config.tuning.machine {
        Some(there) if *there != here => {
            let there = there.clone();
            Err(SetupError::Table(TableError::OtherMachine { there, here }).into())
        }
        _ => Ok(()),
    }
}
