//! Cost of the flight recorder: instructions per operation, counted by callgrind.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::{Verdict, show};
use crate::{Outcome, process, workspace};

/// Largest number of additional instructions that the recorder may cost per operation.
const INSTRUCTIONS_MAX: f64 = 20.0;
/// Numbers of turns of a short run and of a long run; a turn has two operations. The difference
/// between the two runs is the cost of the additional operations alone.
const TURNS: [u64; 2] = [1_000, 3_000];
/// Number of turns per iteration of the program. The cost of sorting the samples varies, so there
/// are few iterations, and thus few samples.
const TOGETHER: u64 = 50;
const EXAMPLE: &str = "all_reduce_perf";
const DEADLINE: Duration = Duration::from_secs(300);

/// Compares operations of one rank, which has no peers, with and without the recorder.
pub(super) fn run() -> Outcome<Verdict> {
    println!("   needs valgrind; `cargo xtask setup` installs it");
    if !process::is_installed("valgrind") {
        let why = "valgrind is not installed; `apt-get install valgrind`, or `cargo xtask setup`";
        return Ok(Verdict::Skipped(why.to_owned()));
    }
    // In the suite `release`, the README's first command has already built this program.
    show(&mut workspace::cargo(&["build", "--release", "--locked", "--example", EXAMPLE]))?;
    let binary = workspace::target_dir()?.join("release/examples").join(EXAMPLE);
    let (on, off) = (per_operation(&binary, true)?, per_operation(&binary, false)?);
    let cost = on - off;
    println!(
        "{on:.1} instructions per operation with the recorder, {off:.1} without it: {cost:.1} more"
    );
    if cost.round() <= INSTRUCTIONS_MAX && cost > 0.0 {
        return Ok(Verdict::Passed);
    }
    Err(format!(
        "the recorder costs {cost:.1} instructions per operation; more than 0 and at most \
         {INSTRUCTIONS_MAX} are expected"
    ))
}

/// Returns instructions per operation, the median of three measurements: an interrupt changes the
/// measured times, and thus the cost of sorting them.
fn per_operation(binary: &Path, recorder: bool) -> Outcome<f64> {
    let [short, long] = TURNS;
    let mut differences = [0.0; 3];
    for difference in &mut differences {
        *difference = count(binary, long, recorder)? - count(binary, short, recorder)?;
    }
    differences.sort_by(f64::total_cmp);
    // Each turn has an operation in place and one out of place.
    Ok(differences[1] / (2 * (long - short)) as f64)
}

/// Returns the number of instructions of the whole program.
fn count(binary: &Path, turns: u64, recorder: bool) -> Outcome<f64> {
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--log-fd=1", "--callgrind-out-file=/dev/null"]).arg(binary);
    command.args(["-b", "8", "-e", "8", "-w", "1", "-c", "0", "-m", &TOGETHER.to_string()]);
    command.args(["-n", &(turns / TOGETHER).to_string()]);
    command.env("FERROCCL_RECORDER", if recorder { "1" } else { "0" });
    println!("$ {}", process::typed(&command));
    let mut counted = None;
    let end = process::run(&mut command, DEADLINE, |line| counted = counted.or(collected(line)))?;
    match counted {
        Some(counted) if end.success() => Ok(counted),
        _ => Err(format!("`{}`: {}", process::typed(&command), end.describe())),
    }
}

/// Parses the instruction count in a line of callgrind.
fn collected(line: &str) -> Option<f64> {
    line.split_once("Collected : ")?.1.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_instruction_count_is_parsed() {
        assert_eq!(collected("==7== Collected : 123456"), Some(123_456.0));
        assert_eq!(collected("==7== Events    : Ir"), None);
    }
}
