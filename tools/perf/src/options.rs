//! Flags of nccl-tests, and a few more.

use std::path::PathBuf;
use std::time::Duration;

use ccl_core::types::{DataType, Rank, ReduceOp};
use clap::builder::TypedValueParser as _;

use super::sizes::{Step, parse_size};
use ferroccl::launch::LOCAL_RANKS_MAX;

/// Largest number of iterations, and of calls in an iteration. The limit on iterations also limits
/// memory: each iteration can add a sample of its time.
const COUNT_MAX: i64 = 10_000_000;

/// Choice of one value, or of all values (`all`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice<T> {
    /// One value.
    One(T),
    /// All values, one after the other.
    All,
}

impl<T: Copy> Choice<T> {
    /// Returns the chosen values among `all`.
    pub fn among(self, all: impl IntoIterator<Item = T>) -> Vec<T> {
        match self {
            Choice::One(value) => vec![value],
            Choice::All => all.into_iter().collect(),
        }
    }
}

fn choice<T>(text: &str) -> Result<Choice<T>, String>
where
    T: std::str::FromStr,
    T::Err: std::fmt::Display,
{
    match text {
        "all" => Ok(Choice::All),
        one => one.parse().map(Choice::One).map_err(|error| format!("{error}, or all")),
    }
}

fn root(text: &str) -> Result<Choice<Rank>, String> {
    choice(text).map_err(|_: String| format!("\"{text}\" is no rank; give a number, or all"))
}

fn seconds(text: &str) -> Result<Duration, String> {
    let advice = || format!("\"{text}\" is invalid; give seconds above 0, such as 30 or 2.5");
    let value: f64 = text.parse().map_err(|_| advice())?;
    let time = Duration::try_from_secs_f64(value).map_err(|_| advice())?;
    if time.is_zero() { Err(advice()) } else { Ok(time) }
}

/// Method that combines the times of the ranks into one time (`-a`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Average {
    /// Time of rank 0.
    RankZero,
    /// Mean over ranks.
    Mean,
    /// Time of the fastest rank.
    Min,
    /// Time of the slowest rank.
    Max,
}

fn average(text: &str) -> Result<Average, String> {
    match text {
        "0" => Ok(Average::RankZero),
        "1" => Ok(Average::Mean),
        "2" => Ok(Average::Min),
        "3" => Ok(Average::Max),
        _ => Err("give 0 (rank 0), 1 (mean), 2 (fastest rank) or 3 (slowest rank)".to_owned()),
    }
}

/// Flags of every perf program. Long names and defaults are those of nccl-tests.
#[derive(clap::Args, Clone, Debug)]
pub struct Options {
    /// Smallest size: bytes of the larger buffer; k, M, G are powers of 1024
    #[arg(short = 'b', long = "minbytes", value_name = "SIZE", value_parser = parse_size,
          default_value = "32M")]
    pub min_bytes: usize,
    /// Largest size
    #[arg(short = 'e', long = "maxbytes", value_name = "SIZE", value_parser = parse_size,
          default_value = "32M")]
    pub max_bytes: usize,
    /// Add this much from one size to the next [default: 1M]
    #[arg(short = 'i', long = "stepbytes", value_name = "SIZE", value_parser = parse_size,
          conflicts_with = "step_factor")]
    pub step_bytes: Option<usize>,
    /// Multiply by this from one size to the next (2 or more)
    #[arg(short = 'f', long = "stepfactor", value_name = "FACTOR")]
    pub step_factor: Option<usize>,
    /// Timed iterations per size
    #[arg(short = 'n', long = "iters", value_name = "COUNT", default_value_t = 20,
          value_parser = clap::value_parser!(u32).range(1..=COUNT_MAX))]
    pub iterations: u32,
    /// Untimed iterations per size before the timed ones
    #[arg(short = 'w', long = "warmup_iters", value_name = "COUNT", default_value_t = 1)]
    pub warmup_iterations: u32,
    /// Calls in each timed iteration
    #[arg(short = 'm', long = "agg_iters", value_name = "COUNT", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=COUNT_MAX))]
    pub aggregated: u32,
    /// Checked calls per row; 0 checks nothing
    #[arg(short = 'c', long = "check", value_name = "COUNT", default_value_t = 1)]
    pub checks: u32,
    /// Reduction: sum prod min max avg mulsum all
    #[arg(short = 'o', long = "op", value_name = "OP", default_value = "sum",
          value_parser = choice::<ReduceOp>)]
    pub op: Choice<ReduceOp>,
    /// Element type: int8 uint8 int32 uint32 int64 uint64 half float double bfloat16 f8e4m3 f8e5m2
    /// all
    #[arg(short = 'd', long = "datatype", value_name = "TYPE", default_value = "float",
          value_parser = choice::<DataType>)]
    pub data_type: Choice<DataType>,
    /// Root rank, or all
    #[arg(short = 'r', long = "root", value_name = "RANK", default_value = "0",
          value_parser = root)]
    pub root: Choice<Rank>,
    /// 1: barrier after each call; 3: untimed barrier after each iteration; 0 and 2: no barrier
    /// (calls always block)
    #[arg(short = 'z', long = "blocking", value_name = "MODE", default_value_t = 0,
          value_parser = clap::value_parser!(u8).range(0..=3))]
    pub blocking: u8,
    /// Time that a row shows; 0: rank 0's; 1: mean over ranks; 2: fastest rank's; 3: slowest rank's
    #[arg(short = 'a', long = "average", value_name = "MODE", default_value = "1",
          value_parser = average)]
    pub average: Average,
    /// 1: register the buffers once for the run; over RDMA, messages of FERROCCL_ZERO_COPY_BYTES or
    /// more then need no copy, even from buffers under 256 KiB
    #[arg(short = 'R', long = "local_register", value_name = "MODE", default_value_t = 0,
          value_parser = clap::value_parser!(u8).range(0..=1))]
    pub register: u8,
    /// Ranks that this program starts on this machine (1 to 512); without -g the program is
    /// one rank of the launcher that started it, or the only rank
    #[arg(short = 'g', long = "ngpus", value_name = "RANKS",
          value_parser = clap::value_parser!(u32).range(1..=i64::from(LOCAL_RANKS_MAX)))]
    pub local_ranks: Option<u32>,
    /// Repeat everything this many times; 0 means until interrupted
    #[arg(short = 'N', long = "run_cycles", value_name = "COUNT", default_value_t = 1)]
    pub cycles: u64,
    /// Transport, such as shm; without it the library chooses
    #[arg(long, value_name = "NAME")]
    pub transport: Option<String>,
    /// Algorithm, such as ring; without it the library chooses
    #[arg(long = "algo", value_name = "NAME")]
    pub algorithm: Option<String>,
    /// Do not cut sizes to whole blocks of 16 bytes per rank (nccl-tests and the default cut them)
    #[arg(long)]
    pub exact: bool,
    /// Write every row with its percentiles and plan to this file
    #[arg(long, value_name = "FILE", value_parser = file_name())]
    pub json: Option<PathBuf>,
    /// Write the JSON file of nccl-tests, key for key; an existing file is replaced
    #[arg(short = 'J', long, value_name = "FILE.json", value_parser = json_name)]
    pub output_file: Option<PathBuf>,
    /// Write the bytes that ranks sent to each other over devices, headers included, as a matrix
    /// for simulators (docs/exchange.md); bytes that pass through shared memory are not in it
    #[arg(long, value_name = "FILE", value_parser = real_file_name)]
    pub traffic: Option<PathBuf>,
    /// Draw time and bus bandwidth against size into this file
    #[arg(long, value_name = "FILE.svg", value_parser = file_name())]
    pub plot: Option<PathBuf>,
    /// Seconds without progress after which a call fails
    #[arg(short = 'T', long, value_name = "SECONDS", value_parser = seconds)]
    pub timeout: Option<Duration>,
}

/// Reads a percentage that is not below 0.
///
/// # Errors
/// Advice on a valid value.
pub fn percent(text: &str) -> Result<f64, String> {
    let value = text.parse().ok().filter(|value: &f64| value.is_finite() && *value >= 0.0);
    value.ok_or_else(|| "give a number that is not less than 0".to_owned())
}

fn json_name(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    let ends = path.extension().is_some_and(|end| end.eq_ignore_ascii_case("json"));
    if ends {
        Ok(path)
    } else {
        Err("only JSON is written; give a name that ends in .json".to_owned())
    }
}

/// Reads the name of a file; `-` is refused, because the table goes to standard output.
fn real_file_name(text: &str) -> Result<PathBuf, String> {
    match text {
        "" | "-" => Err("give a file's name; the table goes to standard output".to_owned()),
        _ => Ok(PathBuf::from(text)),
    }
}

/// Returns the parser of a file's name.
pub fn file_name() -> impl clap::builder::TypedValueParser<Value = PathBuf> {
    clap::builder::NonEmptyStringValueParser::new().map(PathBuf::from)
}

/// Error for flags that are invalid, or contradict each other or the number of ranks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionsError {
    /// Sweep that is empty.
    #[error("-b {min} is over -e {max}; give a smallest size that is not above the largest")]
    MinOverMax {
        /// Number of bytes of `-b`.
        min: usize,
        /// Number of bytes of `-e`.
        max: usize,
    },
    /// Factor by which the sweep would not advance.
    #[error("-f {0} never leads to a larger size; give 2 or more, or -i for a fixed step")]
    Factor(usize),
    /// Step by which the sweep would not advance.
    #[error("-i 0 never leads to a larger size; give 1 byte or more, or -f for a factor")]
    Step,
    /// Report that would never be written.
    #[error("-N 0 never ends, so the file of {0} would never be written; give a number of cycles")]
    Endless(&'static str),
    /// Root that is no rank.
    #[error("-r {root} is out of range: there are {ranks} ranks, so give 0 to {last}, or all",
            last = ranks.saturating_sub(1))]
    Root {
        /// Root that was given.
        root: Rank,
        /// Number of ranks.
        ranks: u32,
    },
}

impl Options {
    /// Checks the flags, as far as that is possible without a communicator.
    ///
    /// # Errors
    /// [`OptionsError`] for flags that contradict each other.
    pub fn validate(&self) -> Result<(), OptionsError> {
        if self.min_bytes > self.max_bytes {
            return Err(OptionsError::MinOverMax { min: self.min_bytes, max: self.max_bytes });
        }
        match (self.step_factor, self.step_bytes) {
            (Some(factor), _) if factor < 2 => return Err(OptionsError::Factor(factor)),
            (_, Some(0)) => return Err(OptionsError::Step),
            _ => {}
        }
        if self.cycles == 0 {
            let files = [
                (&self.json, "--json"),
                (&self.output_file, "-J"),
                (&self.traffic, "--traffic"),
                (&self.plot, "--plot"),
            ];
            for (file, flag) in files {
                if file.is_some() {
                    return Err(OptionsError::Endless(flag));
                }
            }
        }
        match self.local_ranks {
            Some(ranks) => self.validate_root(ranks),
            None => Ok(()),
        }
    }

    /// Checks the root against the number of ranks.
    ///
    /// # Errors
    /// [`OptionsError::Root`] when there is no such rank.
    pub fn validate_root(&self, ranks: u32) -> Result<(), OptionsError> {
        match self.root {
            Choice::One(root) if root >= ranks => Err(OptionsError::Root { root, ranks }),
            _ => Ok(()),
        }
    }

    /// Returns the step of the sweep.
    #[must_use]
    pub fn step(&self) -> Step {
        match (self.step_factor, self.step_bytes) {
            (Some(factor), _) => Step::Factor(factor),
            (None, bytes) => Step::Bytes(bytes.unwrap_or(1 << 20)),
        }
    }
}

/// Whole command line: common flags and those of one program.
#[derive(clap::Parser, Clone, Debug)]
pub struct CommandLine<Extra: clap::Args> {
    /// Common flags.
    #[command(flatten)]
    pub options: Options,
    /// Flags of the program.
    #[command(flatten)]
    pub extra: Extra,
}

/// Flags of a program that has none of its own.
#[derive(clap::Args, Clone, Copy, Debug)]
pub struct NoExtra {}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    fn parse(line: &str) -> Result<Options, String> {
        let words = std::iter::once("all_reduce_perf").chain(line.split_whitespace());
        let parsed = CommandLine::<NoExtra>::try_parse_from(words);
        let options = parsed.map_err(|error| error.to_string())?.options;
        options.validate().map_err(|error| error.to_string())?;
        Ok(options)
    }

    #[test]
    fn defaults_are_those_of_nccl_tests() {
        let options = parse("").unwrap();
        assert_eq!((options.min_bytes, options.max_bytes), (32 << 20, 32 << 20));
        assert_eq!(options.step(), Step::Bytes(1 << 20));
        assert_eq!((options.iterations, options.warmup_iterations), (20, 1));
        assert_eq!((options.aggregated, options.checks, options.cycles), (1, 1, 1));
        assert_eq!(options.average, Average::Mean);
        assert_eq!(options.data_type, Choice::One(DataType::Float32));
        assert_eq!(options.op, Choice::One(ReduceOp::Sum));
    }

    #[test]
    fn short_and_long_flags_are_parsed() {
        let options = parse(
            "-b 8 -e 1G -f 4 -n 5 -w 2 -m 3 -c 0 -o all -d bfloat16 -r all -z 1 -a 3 -g 8 -N 2 \
             --transport shm --algo ring --json a.json --plot a.svg --timeout 2.5",
        )
        .unwrap();
        assert_eq!((options.max_bytes, options.step()), (1 << 30, Step::Factor(4)));
        assert_eq!((options.op, options.root), (Choice::All, Choice::All));
        assert_eq!(options.timeout, Some(Duration::from_millis(2500)));
        let long = parse("--minbytes 4k --maxbytes 4k --stepbytes 8 --warmup_iters 9").unwrap();
        assert_eq!((long.min_bytes, long.step_bytes, long.warmup_iterations), (4096, Some(8), 9));
    }

    #[test]
    fn bad_input_is_refused_with_advice() {
        for (line, said) in [
            ("-b 2M -e 1M", "over -e"),
            ("-g 0", "1..=512"),
            ("-g 10000", "1..=512"),
            ("-b 99999999999G", "more than this machine"),
            ("-b twelve", "is not a size"),
            ("-f 1", "-f 1"),
            ("-i 0", "-i 0"),
            ("-i 4 -f 2", "cannot be used with"),
            ("-n 0", "1..="),
            ("-m 99999999999", "1..="),
            ("-r x", "is no rank"),
            ("-d floot", "bfloat16"),
            ("-o plus", "mulsum"),
            ("-g 2 -r 2", "0 to 1"),
            ("-a 4", "slowest"),
            ("-N 0 --json x", "never ends"),
            ("--timeout 0", "seconds above 0"),
            ("--timeout nan", "seconds above 0"),
            ("--json=", "--json"),
            ("-J out.csv", "ends in .json"),
            ("-N 0 -J x.json", "never ends"),
            ("-N 0 --traffic x", "never ends"),
            ("--traffic -", "standard output"),
            ("--frobnicate", "unexpected argument"),
            ("stray", "unexpected argument"),
        ] {
            let error = parse(line).expect_err(line);
            assert!(error.contains(said), "{line}: {error}");
        }
    }
}
