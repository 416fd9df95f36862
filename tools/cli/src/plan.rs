//! The `plan` subcommand: the expected time of a collective on a cluster.

use std::error::Error;
use std::io::Write;

use ccl_model::exchange::predicted;
use ccl_model::plan::{PlanRequest, plan};
use ccl_model::topology::Topology;
use ccl_perf::sizes::parse_size;
use ccl_traffic::matrix;
use ferroccl::{Collective, DataType};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The command runs each algorithm in virtual time, rank by rank. Above 32 ranks, it adds up work and
latency instead, and multiplies the sum by a factor. The factor comes from a similar call among
fewer ranks: the time of that call in virtual time, divided by the sum of its work and latency. The
speeds of links and protocols are published values and NCCL's constants (docs/plan.md). No property
of this machine is used.
Examples:
  ferroccl plan all_reduce --bytes 64M --on h100
  ferroccl plan all_reduce --bytes 1G --on superpod-1024
  ferroccl plan all_to_all --bytes 128M --on p5 --hosts 4
  ferroccl plan all_gather --bytes 1M --on b200 --json
  ferroccl plan all_reduce --bytes 64M --on p5 --hosts 2 --traffic - --interval 1e-3")]
pub(crate) struct Plan {
    #[command(flatten)]
    asked: Asked,
    /// Write the traffic matrix (bytes from each rank to each rank) of the fastest algorithm to a
    /// file for `ferroccl sim` and other tools (docs/exchange.md); - writes it to standard output
    /// instead of the plan
    #[arg(long, value_name = "FILE")]
    traffic: Option<String>,
    /// Algorithm whose traffic is written; the fastest if not given
    #[arg(long = "algo", value_name = "NAME", requires = "traffic")]
    algorithm: Option<String>,
    /// Length of the intervals of the traffic in seconds; one interval if not given
    #[arg(long, value_name = "SECONDS", requires = "traffic")]
    interval: Option<f64>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A collective on a cluster.
#[derive(Debug, clap::Args)]
pub(crate) struct Asked {
    /// Collective: all_reduce all_gather reduce_scatter broadcast reduce gather scatter all_to_all
    collective: Collective,
    /// A topology: a name of `ferroccl topo --list`, or a file
    #[arg(long)]
    pub(crate) on: String,
    /// Bytes of the larger buffer
    #[arg(short, long, value_name = "SIZE", value_parser = parse_size, default_value = "1M")]
    bytes: usize,
    /// Number of hosts to use, starting with the first
    #[arg(long)]
    hosts: Option<u32>,
    /// Element type
    #[arg(short = 'd', long = "datatype", default_value = "float")]
    data_type: DataType,
}

impl Asked {
    pub(crate) fn request<'a>(&self, topology: &'a Topology) -> PlanRequest<'a> {
        let Asked { collective, bytes, data_type, hosts, .. } = *self;
        PlanRequest { collective, bytes, data_type, topology, hosts }
    }
}

pub(crate) fn show(arguments: &Plan) -> Result<(), Box<dyn Error>> {
    let Plan { asked, json, .. } = arguments;
    let topology = ccl_model::topology::open(&asked.on)?;
    let request = asked.request(&topology);
    if let Some(file) = &arguments.traffic {
        let seen =
            predicted::traffic(&request, arguments.algorithm.as_deref(), arguments.interval)?;
        matrix::write(file, &seen.traffic)?;
        if file == "-" {
            return Ok(());
        }
        eprintln!("{seen}: {file}");
    }
    let plan = plan(&request)?;
    let text = if *json { serde_json::to_string_pretty(&plan)? + "\n" } else { plan.to_string() };
    let _ = write!(std::io::stdout(), "{text}");
    Ok(())
}
