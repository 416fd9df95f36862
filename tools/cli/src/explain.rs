//! The `explain` subcommand: the plan of a collective.

use std::error::Error;
use std::io::Write;

use ccl_perf::sizes::parse_size;
use ferroccl::communicator::{Call, Hosts, config_from_environment, expected, explain};
use ferroccl::{Collective, DataType, Rank, ReduceOp};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The command starts no rank and sends nothing: the plan depends only on the arguments and the
configuration (FERROCCL_*). For up to 16 ranks, it also shows the time of each algorithm: measured,
if the table in FERROCCL_TUNING has it, else predicted. docs/explain.md explains the output.
Examples:
  ferroccl explain all_reduce --bytes 64M --ranks 8
  ferroccl explain all_to_all --bytes 1M --ranks 16 --hosts 4 --rank 5
  ferroccl explain reduce --bytes 8 --ranks 5 --root 4 -d double -o max --algo tree
  ferroccl explain all_gather --bytes 256k --ranks 6 --hosts 3 --algo ring/4 --json
  ferroccl explain --rules")]
pub(crate) struct Explain {
    /// Collective: all_reduce all_gather reduce_scatter broadcast reduce gather scatter all_to_all
    /// barrier
    #[arg(required_unless_present = "rules")]
    collective: Option<Collective>,
    /// Print the rules by which algorithms are chosen where nothing was measured
    #[arg(long, exclusive = true)]
    rules: bool,
    /// Bytes of the larger buffer
    #[arg(short, long, value_name = "SIZE", value_parser = parse_size, default_value = "1M")]
    bytes: usize,
    /// Number of ranks
    #[arg(short = 'n', long, default_value_t = 2,
          value_parser = clap::value_parser!(u32).range(1..=65536))]
    ranks: u32,
    /// Number of hosts; each has the same number of ranks
    #[arg(long, default_value_t = 1)]
    hosts: u32,
    /// Rank whose schedule is shown
    #[arg(long, default_value_t = 0)]
    rank: Rank,
    /// Root, if the collective has one
    #[arg(long, default_value_t = 0)]
    root: Rank,
    /// Element type
    #[arg(short = 'd', long = "datatype", default_value = "float")]
    data_type: DataType,
    /// Reduction
    #[arg(short, long, default_value = "sum")]
    op: ReduceOp,
    /// Algorithm, instead of the library's choice
    #[arg(long = "algo")]
    algorithm: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn show(arguments: &Explain) -> Result<(), Box<dyn Error>> {
    use Collective as C;
    let Some(collective) = arguments.collective else {
        let _ = write!(std::io::stdout(), "{}", ccl_core::select::rules::TEXT);
        return Ok(());
    };
    let blocks = match collective {
        C::AllReduce | C::Reduce | C::Broadcast | C::Barrier => 1,
        C::AllGather | C::ReduceScatter | C::Gather | C::Scatter | C::AllToAll => arguments.ranks,
        _ => {
            return Err(format!(
                "counts of {collective} can differ by rank; explain supports only collectives with \
                 equal counts, such as all_gather"
            )
            .into());
        }
    };
    let count = arguments.bytes / arguments.data_type.bytes() / blocks as usize;
    let call = Call {
        op: arguments.op,
        root: arguments.root,
        algorithm: arguments.algorithm.as_deref(),
        ..Call::even(collective, arguments.data_type, count)
    };
    let config = config_from_environment()?;
    let hosts = hosts(arguments)?;
    let mut plan = explain(&config, arguments.rank, &hosts, &call)?;
    plan.expected = expected(&config, &hosts, &call)?;
    let text = if arguments.json { serde_json::to_string_pretty(&plan)? } else { plan.to_string() };
    // A reader that closes the pipe early, such as `head`, is no error.
    let _ = writeln!(std::io::stdout(), "{text}");
    Ok(())
}

/// Returns the hosts of the ranks, in rank order, with equally many ranks on each.
fn hosts(arguments: &Explain) -> Result<Hosts, Box<dyn Error>> {
    let Explain { ranks, hosts, .. } = *arguments;
    if hosts == 0 || !ranks.is_multiple_of(hosts) {
        return Err(format!("{ranks} ranks cannot be spread evenly over {hosts} hosts").into());
    }
    Ok(Hosts::of(&Vec::from_iter((0..ranks).map(|rank| rank / (ranks / hosts)))))
}
