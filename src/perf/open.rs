//! Where a perf program gets its communicator from.

use std::process::ExitCode;

use super::options::Options;
use super::subject::{Subject, SubjectError};

/// Starts the ranks of `-g` on this machine. `Some` in the process that started them, once all have
/// ended: the exit status of the run. `None` in a process that is a rank itself and goes on.
///
/// # Errors
/// When a rank cannot be started.
pub fn launch_local(ranks: u32) -> Result<Option<ExitCode>, SubjectError> {
    let _ = ranks;
    Ok(None)
}

/// Joins the communicator that the options and the environment describe.
///
/// # Errors
/// When it cannot be joined.
pub fn open(options: &Options) -> Result<Box<dyn Subject>, SubjectError> {
    let _ = options;
    Err("not wired yet: this build has no communicator behind the perf programs".into())
}
