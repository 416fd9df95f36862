//! Which algorithm is the fastest here.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use ferroccl::Collective;
use ferroccl::communicator::config_without_table;
use ferroccl::perf::open::launch_local;
use ferroccl::perf::options::percent;
use ferroccl::perf::sizes::parse_size;
use ferroccl::tune::{Tuning, Wanted, compare, measure};

type Failure = Box<dyn std::error::Error + Send + Sync>;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Measures every algorithm of the collectives, in turns, with -g N ranks on this machine or with the
ranks of a launcher (torchrun, mpirun, srun), and writes the medians. Later runs load the table:
FERROCCL_TUNING=@FILE. Measure on a quiet machine.
With --compare nothing is measured. Exit status: 0, or 1 if the newer table is slower anywhere by
more than --allowed percent and by more than half of the measurements were off.
Examples:
  ferroccl tune -g 2 -b 1k -e 4k --collectives all_reduce --rounds 3
  ferroccl tune -g 2 -b 8 -e 512 -f 8 --collectives all_gather,broadcast --rounds 3 --out /dev/null
  ferroccl tune --compare /dev/null /dev/null")]
pub(crate) struct Tune {
    /// Start so many ranks on this machine
    #[arg(short = 'g', long = "local-ranks", value_name = "N")]
    local_ranks: Option<u32>,
    /// Which collectives, separated by commas
    #[arg(long, value_delimiter = ',', value_parser = even,
        default_value = "all_reduce,all_gather,reduce_scatter,\
        broadcast,reduce,all_to_all"
    )]
    collectives: Vec<Collective>,
    /// The least size
    #[arg(short = 'b', long, value_name = "SIZE", value_parser = parse_size, default_value = "8")]
    min_bytes: usize,
    /// The greatest size
    #[arg(short = 'e', long, value_name = "SIZE", value_parser = parse_size, default_value = "16M")]
    max_bytes: usize,
    /// Each size is so many times the one before
    #[arg(short = 'f', long, default_value_t = 4,
          value_parser = clap::value_parser!(u32).range(2..))]
    factor: u32,
    /// How often each algorithm has its turn
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Where the table goes; to standard output, if none is given
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Compare an older table with a newer one
    #[arg(long, num_args = 2, value_names = ["OLD", "NEW"], conflicts_with = "out")]
    compare: Option<Vec<PathBuf>>,
    /// By how many percent the newer may be slower
    #[arg(long, default_value_t = 10.0, value_name = "PERCENT", value_parser = percent)]
    allowed: f64,
}

fn even(text: &str) -> Result<Collective, String> {
    let collective: Collective = text.parse().map_err(|error| format!("{error}"))?;
    match collective.even_blocks(1) {
        Some(_) => Ok(collective),
        None => {
            Err("it has no blocks of equal length, by which sizes could be compared".to_owned())
        }
    }
}

pub(crate) fn tune(arguments: &Tune) -> ExitCode {
    let done = match arguments.compare.as_deref() {
        Some([old, new]) => judge(old, new, arguments.allowed),
        _ => run(arguments),
    };
    done.unwrap_or_else(|error| {
        eprintln!("ferroccl: {error}");
        ExitCode::from(2)
    })
}

fn judge(old: &Path, new: &Path, allowed: f64) -> Result<ExitCode, Failure> {
    let read = |path: &Path| -> Result<Tuning, Failure> {
        let name = path.display();
        let text = fs::read_to_string(path).map_err(|error| format!("{name}: {error}"))?;
        Ok(text.parse().map_err(|error| format!("{name}: {error}"))?)
    };
    let comparison = compare(&read(old)?, &read(new)?, allowed / 100.0)?;
    let _ = write!(std::io::stdout(), "{}", comparison.text);
    Ok(ExitCode::from(u8::from(comparison.is_slower)))
}

fn run(arguments: &Tune) -> Result<ExitCode, Failure> {
    if arguments.min_bytes == 0 || arguments.max_bytes < arguments.min_bytes {
        return Err("-b must be 1 at least, and not above -e".into());
    }
    if let Some(ranks) = arguments.local_ranks
        && let Some(status) = launch_local(ranks)?
    {
        return Ok(status);
    }
    let Tune { collectives, min_bytes, max_bytes, factor, rounds, out, .. } = arguments;
    let mut wanted = Wanted {
        collectives: Vec::new(),
        min_bytes: *min_bytes,
        max_bytes: *max_bytes,
        factor: *factor as usize,
        rounds: *rounds,
    };
    for collective in collectives {
        if !wanted.collectives.contains(collective) {
            wanted.collectives.push(*collective);
        }
    }
    let mut lines = std::io::stdout();
    let mut nowhere = std::io::sink();
    // Without a file the table itself is what is printed.
    let to: &mut dyn Write = if out.is_some() { &mut lines } else { &mut nowhere };
    let Some(outcome) = measure(&wanted, config_without_table()?, to)? else {
        return Ok(ExitCode::SUCCESS);
    };
    let Some(path) = out else {
        let _ = write!(std::io::stdout(), "{}", outcome.table);
        return Ok(ExitCode::SUCCESS);
    };
    fs::write(path, &outcome.table).map_err(|error| format!("{}: {error}", path.display()))?;
    let _ = write!(std::io::stdout(), "{}", outcome.modelled()?);
    Ok(ExitCode::SUCCESS)
}
