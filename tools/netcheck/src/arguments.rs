//! Command-line arguments.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::library::Api;
use crate::messages::Role;

/// Seconds that a point (one check of a plugin) may take on a machine of usual speed.
const USUAL_SECONDS: &str = "20";

/// Checks whether a network plugin keeps NCCL's contract: drives the plugin from two processes, and
/// reports the points of the contract that it breaks.
#[derive(Clone, Debug, clap::Parser)]
#[command(after_help = "\
Uses host memory only; needs no NCCL and no GPU. The exit status is 0 if nothing failed, 1 if a
point failed, 2 if nothing could be checked. Points that depend on a failed or skipped one are not
tried. If the plugin finds no device, every point is skipped or not tried.
Set the plugin's environment variables as for NCCL.
Examples:
  ferroccl netcheck ./libnccl-net-x.so
  ferroccl netcheck ./libnccl-net-x.so --only in_order,close_in_flight --api v10
  ferroccl netcheck ./libnccl-net-x.so --device 0+1
  ferroccl netcheck ./libnccl-net-x.so --performance-only --sizes 8,64k,16M
  ferroccl netcheck ./libnccl-net-x.so --skip-performance --contract-only --json -
  ferroccl netcheck --list")]
pub struct Arguments {
    /// File of the plugin
    #[arg(required_unless_present = "list")]
    library: Option<PathBuf>,
    /// Version of the interface, instead of the newest that the plugin has
    #[arg(long)]
    pub(crate) api: Option<Api>,
    /// Run only these points (see --list)
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) only: Vec<String>,
    /// Print the points and what each demands
    #[arg(long)]
    pub(crate) list: bool,
    /// Time limit of a point, in seconds; some points may take a multiple of it. A number above the
    /// default scales all other time limits too, for slow machines
    #[arg(long, value_name = "SECONDS", default_value = USUAL_SECONDS,
          value_parser = parse_seconds)]
    timeout: Duration,
    /// Device of the plugin that both sides use; 0+1 merges devices 0 and 1
    #[arg(long, value_name = "NUMBER", default_value = "0", value_delimiter = '+',
          value_parser = clap::value_parser!(i32).range(0..))]
    pub(crate) device: Vec<i32>,
    /// Leave out points beyond the contract: NCCL does not rely on them
    #[arg(long)]
    pub(crate) contract_only: bool,
    /// Check more: 1 GiB in one message, 10,000 listeners
    #[arg(long)]
    pub(crate) full: bool,
    /// Do not measure performance
    #[arg(long, conflicts_with = "performance_only")]
    pub(crate) skip_performance: bool,
    /// Only measure performance, check no points
    #[arg(long, conflicts_with = "only")]
    pub(crate) performance_only: bool,
    /// Sizes in bytes of the messages that are measured, such as 8,64k,16M
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_size,
          default_value = "8,1k,8k,64k,512k,4M,32M")]
    pub(crate) sizes: Vec<usize>,
    /// Write the results as JSON to a file, or to standard output (-) instead of the table
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Role of this process in a point; netcheck passes it to the processes that it starts
    #[arg(long, hide = true)]
    pub(crate) side: Option<Role>,
}

impl Arguments {
    /// Returns the path of the plugin; empty only with `--list`.
    pub(crate) fn library(&self) -> &Path {
        self.library.as_deref().unwrap_or(Path::new(""))
    }

    /// Returns the time that a point may take: `patience` times `--timeout`.
    pub(crate) fn timeout(&self, patience: u32) -> Duration {
        self.timeout * patience
    }

    /// Returns a time limit for this machine, given the limit for most machines.
    pub(crate) fn on_this_machine(&self, time: Duration) -> Duration {
        time.mul_f64(self.slowness())
    }

    /// Returns the factor by which this machine is slower than most, judged by the user's time
    /// limit; at least 1.
    pub(crate) fn slowness(&self) -> f64 {
        let usual = USUAL_SECONDS.parse().unwrap_or(f64::INFINITY);
        (self.timeout.as_secs_f64() / usual).max(1.0)
    }

    /// Returns the arguments of a process that runs one side of a point.
    pub(crate) fn of_side(&self, point: &str, role: Role) -> Vec<std::ffi::OsString> {
        let sizes: Vec<String> = self.sizes.iter().map(usize::to_string).collect();
        let mut arguments = vec![
            self.library().into(),
            "--side".into(),
            role.name().into(),
            "--only".into(),
            point.into(),
            "--device".into(),
            self.device.iter().map(i32::to_string).collect::<Vec<_>>().join("+").into(),
            "--timeout".into(),
            self.timeout.as_secs_f64().to_string().into(),
            "--sizes".into(),
            sizes.join(",").into(),
        ];
        if let Some(api) = self.api {
            arguments.extend(["--api".into(), api.name().into()]);
        }
        if self.full {
            arguments.push("--full".into());
        }
        arguments
    }
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds
        .filter(|time| (0.1..86_400.0).contains(&time.as_secs_f64()))
        .ok_or_else(|| "write seconds from 0.1 to 86400, such as 20".to_owned())
}

/// Parses a number of bytes, with `k`, `M` or `G` for powers of 1024.
fn parse_size(text: &str) -> Result<usize, String> {
    let (number, shift) = match text.trim_end_matches(|c: char| c.is_ascii_alphabetic()) {
        number if number.len() == text.len() => (number, 0),
        number => match text[number.len()..].to_ascii_lowercase().as_str() {
            "k" => (number, 10),
            "m" => (number, 20),
            "g" => (number, 30),
            unit => return Err(format!("\"{unit}\" is no unit: write k, M or G, such as 64k")),
        },
    };
    let bytes = number.parse::<usize>().ok().and_then(|number| number.checked_mul(1 << shift));
    bytes
        .filter(|bytes| (1..=1 << 30).contains(bytes))
        .ok_or_else(|| "write a size from 1 to 1G, such as 8, 64k or 16M".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units_and_limits() {
        assert_eq!(parse_size("8"), Ok(8));
        assert_eq!(parse_size("64k"), Ok(64 << 10));
        assert_eq!(parse_size("1G"), Ok(1 << 30));
        for wrong in ["", "k", "0", "2G", "8x", "-1", "99999999999999999999G"] {
            assert!(parse_size(wrong).is_err(), "{wrong}");
        }
    }
}
