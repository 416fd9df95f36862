//! The `tune` subcommand: the fastest algorithms on this machine.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use ccl_perf::open::launch_local;
use ccl_perf::options::percent;
use ccl_perf::sizes::parse_size;
use ccl_perf::tune::{Predicted, Tried, TuneRequest, Tuning, add_predictions, compare, measure};
use ferroccl::Collective;
use ferroccl::communicator::{config_with, config_without_table};

type Failure = Box<dyn std::error::Error + Send + Sync>;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Measures every algorithm of the collectives, in turns, with -g N ranks on this machine or with the
ranks of a launcher (torchrun, mpirun, srun). Then measures the fastest algorithms with shorter
messages (ring/4 is ring with messages of a quarter of a slot), and writes the medians. Later runs
load the table: FERROCCL_TUNING=@FILE. Measure on a quiet machine. With --try, the command first
finds the fastest values of tunables like FERROCCL_SLOTS.
With --predict and with --compare nothing is measured. A point is a collective with its numbers of
ranks, hosts and bytes. The exit status of --compare is 1 if, at any point, the fastest time in the
newer table exceeds the fastest time in the older one by more than --allowed percent plus the
deviations of both times.
Examples:
  ferroccl tune -g 2 -b 1k -e 4k --collectives all_reduce --rounds 3
  ferroccl tune -g 2 -b 8 -e 512 -f 8 --collectives all_gather,broadcast --rounds 3 --out /dev/null
  ferroccl tune -g 2 -b 64k -e 64k --collectives all_gather --rounds 3 --try FERROCCL_SLOTS=4
  ferroccl tune --compare /dev/null /dev/null")]
pub(crate) struct Tune {
    /// Start this many ranks on this machine
    #[arg(short = 'g', long = "local-ranks", value_name = "N")]
    local_ranks: Option<u32>,
    /// Collectives to measure, separated by commas
    #[arg(long, value_delimiter = ',', value_parser = even,
        default_value = "all_reduce,all_gather,reduce_scatter,\
        broadcast,reduce,all_to_all"
    )]
    collectives: Vec<Collective>,
    /// Smallest size
    #[arg(short = 'b', long, value_name = "SIZE", value_parser = parse_size, default_value = "8")]
    min_bytes: usize,
    /// Largest size
    #[arg(short = 'e', long, value_name = "SIZE", value_parser = parse_size, default_value = "16M")]
    max_bytes: usize,
    /// Ratio of each size to the one before
    #[arg(short = 'f', long, default_value_t = 4,
          value_parser = clap::value_parser!(u32).range(2..))]
    factor: u32,
    /// Number of turns of each algorithm
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Try a value of a tunable first (FERROCCL_SLOTS=4); `usual` tries the usual values of
    /// several tunables (may be repeated)
    #[arg(long = "try", value_name = "VARIABLE=VALUE|usual", value_parser = attempt)]
    tried: Vec<Attempt>,
    /// Predict times for this many ranks, by the model in the table
    #[arg(long, value_name = "RANKS", requires = "table", conflicts_with = "local_ranks")]
    predict: Option<u32>,
    /// Number of hosts, with --predict
    #[arg(long, default_value_t = 1, requires = "predict")]
    hosts: u32,
    /// Table with the model; --out gets this table with the predictions added
    #[arg(long, value_name = "FILE", requires = "predict")]
    table: Option<PathBuf>,
    /// File of the table; standard output if not given
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Compare an older table with a newer one
    #[arg(long, num_args = 2, value_names = ["OLD", "NEW"], conflicts_with = "out")]
    compare: Option<Vec<PathBuf>>,
    /// Percent by which the newer table may be slower
    #[arg(long, default_value_t = 10.0, value_name = "PERCENT", value_parser = percent)]
    allowed: f64,
}

/// Values of tunables to try: the usual ones, or one that is given.
#[derive(Clone, Debug)]
enum Attempt {
    Usual,
    One(Tried),
}

fn attempt(text: &str) -> Result<Attempt, String> {
    if text == "usual" { Ok(Attempt::Usual) } else { Tried::read(text).map(Attempt::One) }
}

fn even(text: &str) -> Result<Collective, String> {
    let collective: Collective = text.parse().map_err(|error| format!("{error}"))?;
    match collective.even_blocks(1) {
        Some(_) => Ok(collective),
        None => {
            Err("it has no blocks of equal length, so its times cannot be listed by size"
                .to_owned())
        }
    }
}

pub(crate) fn tune(arguments: &Tune) -> ExitCode {
    let done = match (arguments.compare.as_deref(), arguments.predict, &arguments.table) {
        (Some([old, new]), ..) => judge(old, new, arguments.allowed),
        (_, Some(ranks), Some(table)) => predict(arguments, ranks, table),
        _ => run(arguments),
    };
    done.unwrap_or_else(|error| {
        eprintln!("ferroccl: {error}");
        ExitCode::from(2)
    })
}

fn read(path: &Path) -> Result<Tuning, Failure> {
    let name = path.display();
    let text = fs::read_to_string(path).map_err(|error| format!("{name}: {error}"))?;
    Ok(text.parse().map_err(|error| format!("{name}: {error}"))?)
}

fn judge(old: &Path, new: &Path, allowed: f64) -> Result<ExitCode, Failure> {
    let comparison = compare(&read(old)?, &read(new)?, allowed / 100.0)?;
    let _ = write!(std::io::stdout(), "{}", comparison.text);
    Ok(ExitCode::from(u8::from(comparison.is_slower)))
}

fn predict(arguments: &Tune, ranks: u32, table: &Path) -> Result<ExitCode, Failure> {
    let mut tuning = read(table)?;
    let among = Predicted { ranks, hosts: arguments.hosts };
    let config = config_with(&tuning)?;
    add_predictions(&mut tuning, among, &request(arguments, Tried::modelled)?, &config)
        .map_err(|error| format!("{}: {error}", table.display()))?;
    write(arguments.out.as_deref(), &tuning.file())?;
    Ok(ExitCode::SUCCESS)
}

/// Writes the table to the file, or to standard output.
fn write(out: Option<&Path>, table: &str) -> Result<(), Failure> {
    match out {
        Some(path) => {
            fs::write(path, table).map_err(|error| format!("{}: {error}", path.display()))?;
        }
        None => {
            let _ = write!(std::io::stdout(), "{table}");
        }
    }
    Ok(())
}

fn request(arguments: &Tune, usual: impl Fn() -> Vec<Tried>) -> Result<TuneRequest, Failure> {
    let Tune { collectives, min_bytes, max_bytes, factor, rounds, tried, .. } = arguments;
    if *min_bytes == 0 || max_bytes < min_bytes {
        return Err("-b must be at least 1 and at most -e".into());
    }
    let mut request = TuneRequest {
        collectives: Vec::new(),
        min_bytes: *min_bytes,
        max_bytes: *max_bytes,
        factor: *factor as usize,
        rounds: *rounds,
        tried: Vec::new(),
    };
    for collective in collectives {
        if !request.collectives.contains(collective) {
            request.collectives.push(*collective);
        }
    }
    for attempt in tried {
        let tried = match attempt {
            Attempt::Usual => usual(),
            Attempt::One(tried) => vec![tried.clone()],
        };
        for Tried { variable, values } in tried {
            match request.tried.iter_mut().find(|known| known.variable == variable) {
                Some(known) => known.values.extend(values),
                None => request.tried.push(Tried { variable, values }),
            }
        }
    }
    Ok(request)
}

fn run(arguments: &Tune) -> Result<ExitCode, Failure> {
    let config = config_without_table()?;
    let request = request(arguments, || Tried::usual(&config))?;
    if let Some(ranks) = arguments.local_ranks
        && let Some(status) = launch_local(ranks)?
    {
        return Ok(status);
    }
    let mut lines = std::io::stdout();
    let mut nowhere = std::io::sink();
    // Without a file, standard output gets only the table.
    let out = arguments.out.as_deref();
    let to: &mut dyn Write = if out.is_some() { &mut lines } else { &mut nowhere };
    let Some(outcome) = measure(&request, config, to)? else {
        return Ok(ExitCode::SUCCESS);
    };
    // The table is written even if the fit fails: the measurement may have taken long.
    let modelled = outcome.modelled();
    let model = modelled.as_ref().ok().and_then(Option::as_ref).map(|(model, _)| *model);
    write(out, &outcome.table(model))?;
    if let Some((_, text)) = modelled? {
        // If the table goes to a file, standard output gets the text on the model; if the table
        // goes to standard output, standard error gets that text.
        let _ = match out {
            Some(_) => write!(std::io::stdout(), "{text}"),
            None => write!(std::io::stderr(), "{text}"),
        };
    }
    Ok(ExitCode::SUCCESS)
}
