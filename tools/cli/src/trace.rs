//! Execution traces: recorded jobs and planned collectives, exchanged with other tools and replayed
//! on other clusters.

use std::error::Error;
use std::io::Write;

use ccl_model::exchange::job::Job;
use ccl_model::exchange::replay::Replay;
use ccl_model::exchange::{predicted, recorded};
use ccl_traffic::matrix;

use crate::plan::Asked;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Traces are in the form of Chakra (MLCommons), a file for each rank: PREFIX.0.et, PREFIX.1.et and so
on. Recordings by FERROCCL_TRACE=calls.%r.json can be exported, shown, and replayed on any topology;
docs/exchange.md shows the steps.
Examples:
  ferroccl trace export --recorder docs/exchange/calls.json --out target/job
  ferroccl trace show docs/exchange/job
  ferroccl trace replay docs/exchange/job --on p5
  ferroccl trace traffic docs/exchange/job --on p5 --interval 1e-3 --out -
  ferroccl trace plan all_gather --bytes 1M --on h100 --algo ring --out target/plan")]
pub(crate) struct Trace {
    #[command(subcommand)]
    step: Step,
}

#[derive(Debug, clap::Subcommand)]
enum Step {
    /// Write traces of recorded ranks, from files of FERROCCL_TRACE or JSON files of FERROCCL_DUMP
    Export {
        /// Recordings of all ranks
        #[arg(long, required = true, num_args = 1.., value_name = "FILE")]
        recorder: Vec<String>,
        /// Prefix of the names of the traces
        #[arg(long, value_name = "PREFIX")]
        out: String,
    },
    /// Write traces of a planned collective: its sends, receives and reductions, rank by rank
    Plan {
        #[command(flatten)]
        asked: Asked,
        /// Algorithm; the fastest if not given
        #[arg(long = "algo", value_name = "NAME")]
        algorithm: Option<String>,
        /// Prefix of the names of the traces
        #[arg(long, value_name = "PREFIX")]
        out: String,
    },
    /// Show the calls of the ranks of a job
    Show {
        #[command(flatten)]
        given: Given,
        #[command(flatten)]
        printed: Printed,
    },
    /// Predict how long a job's calls take on a topology, side by side with the recorded times
    Replay {
        #[command(flatten)]
        given: Given,
        #[command(flatten)]
        there: There,
        #[command(flatten)]
        printed: Printed,
    },
    /// Write the traffic matrix of the job on a topology, for a simulator to replay
    Traffic {
        #[command(flatten)]
        given: Given,
        #[command(flatten)]
        there: There,
        /// Length of the intervals in seconds; one interval if not given
        #[arg(long, value_name = "SECONDS")]
        interval: Option<f64>,
        /// Output file: JSON if its name ends in .json, else text with a line for each interval and
        /// pair of ranks that has traffic; - is standard output
        #[arg(long, value_name = "FILE")]
        out: String,
    },
}

/// Topology and algorithm with which the calls of a job are predicted.
#[derive(Debug, clap::Args)]
struct There {
    /// A topology: a name of `ferroccl topo --list`, or a file
    #[arg(long)]
    on: String,
    /// Algorithm or family for the collectives that have it; the library chooses for the rest
    #[arg(long = "algo", value_name = "NAME")]
    algorithm: Option<String>,
}

#[derive(Debug, clap::Args)]
struct Given {
    /// Prefix of the names of the traces, or the directory that holds them
    prefix: String,
    /// File with the ranks of each group (a communicator, `pg_name` in the traces), as JSON:
    /// {"1": [0, 1]}; PREFIX.groups.json if not given
    #[arg(long, value_name = "FILE")]
    groups: Option<String>,
}

#[derive(Debug, clap::Args)]
struct Printed {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Given {
    fn read(&self) -> Result<Job, String> {
        Job::read(&self.prefix, self.groups.as_deref())
    }
}

impl Printed {
    /// Prints `shown` in the chosen form: JSON or text.
    fn print<T: std::fmt::Display + serde::Serialize>(
        &self,
        shown: &T,
    ) -> Result<(), Box<dyn Error>> {
        match self.json {
            true => print(&(serde_json::to_string_pretty(shown)? + "\n")),
            false => print(&shown.to_string()),
        }
        Ok(())
    }
}

fn print(text: &str) {
    // A reader that closes the pipe early is no error.
    let _ = std::io::stdout().write_all(text.as_bytes());
}

pub(crate) fn trace(arguments: &Trace) -> Result<(), Box<dyn Error>> {
    match &arguments.step {
        Step::Export { recorder, out } => export(recorder, out),
        Step::Plan { asked, algorithm, out } => {
            let topology = ccl_model::topology::open(&asked.on)?;
            let request = asked.request(&topology);
            let written = predicted::write_traces(&request, algorithm.as_deref(), out)?;
            print(&format!("{written}\n"));
            Ok(())
        }
        Step::Show { given, printed } => printed.print(&given.read()?.shown()?),
        Step::Replay { given, there, printed } => {
            there.replay(given, |replay| printed.print(&replay.compare()?))
        }
        Step::Traffic { given, there, interval, out } => {
            there.replay(given, |replay| Ok(matrix::write(out, &replay.traffic(*interval)?)?))
        }
    }
}

impl There {
    fn replay<T>(
        &self,
        given: &Given,
        then: impl FnOnce(&Replay<'_>) -> Result<T, Box<dyn Error>>,
    ) -> Result<T, Box<dyn Error>> {
        let (job, topology) = (given.read()?, ccl_model::topology::open(&self.on)?);
        let agreed = job.agreed()?;
        then(&Replay::new(&job, &agreed, &topology, self.algorithm.as_deref())?)
    }
}

fn export(recorder: &[String], out: &str) -> Result<(), Box<dyn Error>> {
    let recorded = recorded::read(recorder, out)?;
    recorded.job.write(out)?;
    print(&format!("{recorded}\n"));
    Ok(())
}
