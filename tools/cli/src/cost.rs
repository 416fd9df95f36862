//! The `cost` subcommand: cost formulas of communication.

use std::error::Error;
use std::io::Write;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Without a question, the command lists all questions. Units: GB is 10^9 bytes, GiB 2^30; GB/s counts
bytes, Gb/s bits. Numbers without a unit may have a suffix: flops=990T, parameters=70B.
Examples:
  ferroccl cost
  ferroccl cost all_reduce bytes=1GB ranks=8 bandwidth=450GB/s
  ferroccl cost pod_all_gather bytes=1GB units=1
  ferroccl cost data_parallel flops=990T bandwidth=400GB/s experts=128 k=4
  ferroccl cost training parameters=70B tokens=15T accelerators=4096 flops=990T --json")]
pub(crate) struct Cost {
    /// Question to answer
    question: Option<String>,
    /// Inputs of the formula, as NAME=VALUE
    inputs: Vec<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn show(arguments: &Cost) -> Result<(), Box<dyn Error>> {
    let text = match &arguments.question {
        None => ccl_model::cost::ask::list(),
        Some(question) => {
            let answer = ccl_model::cost::ask::answer(question, &arguments.inputs)?;
            match arguments.json {
                true => serde_json::to_string_pretty(&answer)? + "\n",
                false => answer.to_string(),
            }
        }
    };
    let _ = write!(std::io::stdout(), "{text}");
    Ok(())
}
