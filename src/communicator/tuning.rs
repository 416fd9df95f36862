//! Tables of measurements: their sources, and whether they are of this machine.

use std::path::Path;

use ccl_core::config::Config;

use super::call::usage;
use super::error::Error;

/// Greatest length of a table.
const TABLE_BYTES_MAX: u64 = 16 << 20;

/// Returns the name of this machine in tables: processors of the same model and number are alike.
/// All of the machine's processors count, not only those that this process may use, as a launcher
/// that binds ranks changes these.
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

/// Returns the text of a table: that of the file that a value names behind an `@`, or the value
/// itself.
///
/// # Errors
///
/// When the file cannot be read.
pub(super) fn table(value: &str) -> Result<String, Error> {
    let Some(name) = value.trim().strip_prefix('@') else { return Ok(value.to_owned()) };
    let wrong = |problem: &str| {
        let remedy = "name a file that `ferroccl tune --out` has written";
        usage(format!("FERROCCL_TUNING: {name}: {problem}; {remedy}"))
    };
    let length = std::fs::metadata(Path::new(name)).map(|about| (about.is_file(), about.len()));
    match length {
        Err(error) => return Err(wrong(&error.to_string())),
        Ok((false, _)) => return Err(wrong("it is no file")),
        Ok((true, bytes)) if bytes > TABLE_BYTES_MAX => return Err(wrong("it is too long")),
        Ok(_) => {}
    }
    let text = std::fs::read_to_string(name).map_err(|error| wrong(&error.to_string()))?;
    // Parsed here for an error with the file's name: later steps know the text alone.
    match text.parse::<ccl_core::select::tuning::Tuning>() {
        Ok(_) => Ok(text),
        Err(error) => Err(wrong(&error.to_string())),
    }
}

/// Checks that a table was measured on this machine, if the table names one.
///
/// # Errors
///
/// When the table was measured elsewhere.
pub(super) fn check(config: &Config) -> Result<(), Error> {
    let here = machine();
    match &config.tuning.machine {
        Some(there) if *there != here => Err(usage(format!(
            "FERROCCL_TUNING: the table was measured on \"{there}\", and this is \"{here}\"; run \
             `ferroccl tune` here, or take the line that begins with `machine` out of it to use it \
             nevertheless"
        ))),
        _ => Ok(()),
    }
}
