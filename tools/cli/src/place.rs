//! The `place` subcommand: the best host for each rank.

use std::error::Error;
use std::io::Write;

use ccl_model::place::{Sends, find};
use ccl_perf::sizes::parse_size;
use ferroccl::Collective;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
A seat is a GPU of a host, or a NUMA node if the host has no GPUs: one rank runs on it. Seats are
numbered host by host, in the order of --hosts. A scheduler numbers ranks in the same order. The
output lists, for each seat, the rank that should run there. A program adopts this order by
Communicator::split: each process gives the color 0, and as its key the rank that the output lists
for the seat of this process. A launcher adopts the order by its list of hosts or its rank file.
Examples:
  ferroccl place all_reduce --on meta-24576 --hosts 0,384,1,385
  ferroccl place all_reduce --on meta-24576 --hosts 0,384,1,385 --algo hierarchical -b 64M
  ferroccl place all_gather --on superpod-256 --hosts 31,0-3,17 --json")]
pub(crate) struct Place {
    /// The collective that the job calls most: all_reduce, all_gather, reduce_scatter, broadcast, …
    #[arg(required_unless_present = "traffic")]
    collective: Option<Collective>,
    /// Traffic of the ranks instead of a collective: a file of `ferroccl trace traffic`, `ferroccl
    /// plan --traffic`, or a perf program's --traffic
    #[arg(long, value_name = "FILE", conflicts_with_all = ["collective", "algorithm", "bytes"])]
    traffic: Option<String>,
    /// A topology: a name of `ferroccl topo --list`, or a file
    #[arg(long)]
    on: String,
    /// Hosts of the job in the order of the ranks, each by its number in the topology: 0,384,8-11
    #[arg(long, value_name = "LIST", value_parser = hosts)]
    hosts: HostList,
    /// Algorithm; the default is `ring`, or `direct` if the collective has no ring
    #[arg(long = "algo")]
    algorithm: Option<String>,
    /// Bytes of the larger buffer
    #[arg(short, long, value_name = "SIZE", value_parser = parse_size, default_value = "64M")]
    bytes: usize,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Hosts of a job, each by its number in the topology.
#[derive(Clone, Debug)]
struct HostList(Vec<u32>);

/// Largest number of hosts that a list can name.
const HOSTS_MAX: usize = 1 << 16;

fn hosts(text: &str) -> Result<HostList, String> {
    let mut hosts = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let number = |text: &str| text.trim().parse::<u32>().ok();
        let (Some(first), Some(last)) = (number(first), number(last)) else {
            return Err(format!("{part:?} is neither a host (3) nor a range of hosts (8-11)"));
        };
        if last < first || (last - first) as usize >= HOSTS_MAX - hosts.len().min(HOSTS_MAX) {
            return Err(format!(
                "{part:?} descends, or makes the list longer than {HOSTS_MAX} hosts"
            ));
        }
        hosts.extend(first..=last);
    }
    Ok(HostList(hosts))
}

pub(crate) fn show(arguments: &Place) -> Result<(), Box<dyn Error>> {
    let Place { collective, traffic, on, hosts, algorithm, bytes, json } = arguments;
    let topology = ccl_model::topology::open(on)?;
    let placement = match (collective, traffic) {
        (Some(collective), _) => {
            let (collective, bytes) = (*collective, *bytes);
            let algorithm = algorithm.as_deref();
            let sends = Sends::Collective { collective, bytes, algorithm };
            find(&sends, &topology, &hosts.0)?
        }
        (None, Some(name)) => {
            let counted = ccl_traffic::matrix::read(name)?.whole();
            find(&Sends::Counted { bytes: &counted, name }, &topology, &hosts.0)?
        }
        (None, None) => return Err("name a collective, or a file with --traffic".into()),
    };
    let text = match json {
        true => serde_json::to_string_pretty(&placement)? + "\n",
        false => placement.to_string(),
    };
    let _ = write!(std::io::stdout(), "{text}");
    Ok(())
}
