//! The `status` subcommand: what running ranks do.

use std::error::Error;
use std::io::Write;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The command only reads the state of processes, which may compute, hang, or be stopped.
Examples:
  ferroccl status
  ferroccl status --json
  ferroccl status --pid 4711")]
pub(crate) struct Status {
    /// Show only the ranks of this process
    #[arg(long)]
    pid: Option<u32>,
    /// Print JSON, with the last operations of each rank
    #[arg(long)]
    json: bool,
}

pub(crate) fn show(arguments: &Status) -> Result<(), Box<dyn Error>> {
    let status = ferroccl::recorder::status(arguments.pid)?;
    let text = match arguments.json {
        true => serde_json::to_string_pretty(&status)? + "\n",
        false => status.to_string(),
    };
    let _ = write!(std::io::stdout(), "{text}");
    Ok(())
}
