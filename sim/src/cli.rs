//! `ferroccl sim`: the flags, and what they make of the experiments.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::report::{Report, markdown, text};
use crate::scenario::{SCENARIOS, Scenario, find};
use crate::{SimError, plot};

/// How long do collectives take on a fabric of switches? Runs experiments, each beside what its
/// source says.
#[derive(Clone, Debug, clap::Parser)]
#[command(after_help = "\
Without --scenario it lists the experiments, and with --list what can be changed in each. The same
seed gives the same output, byte for byte. The exit status is 0 if all could run, whatever they
found, and 2 if one could not.
Examples:
  ferroccl sim
  ferroccl sim --scenario f2
  ferroccl sim --scenario f2 --set uplinks=32,trials=50 --seed 7
  ferroccl sim --scenario f10 --list
  ferroccl sim --scenario f7 --json
  ferroccl sim --scenario job --set racks=2,algorithm=1,routing=6,mib=4
  ferroccl sim --scenario scale --set racks=64,algorithm=2")]
pub struct Arguments {
    /// The experiment, or all of them
    #[arg(long, value_name = "NAME|all")]
    scenario: Option<String>,
    /// Other values of its parameters, such as uplinks=32,trials=50
    #[arg(long, value_name = "NAME=VALUE", value_delimiter = ',', value_parser = parse_pair)]
    set: Vec<(String, f64)>,
    /// Of all that is random
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The most memory that may be taken, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 4096)]
    memory: u64,
    /// Print what can be changed, instead of running
    #[arg(long)]
    list: bool,
    /// Print JSON
    #[arg(long, conflicts_with = "markdown")]
    json: bool,
    /// Print a page
    #[arg(long)]
    markdown: bool,
    /// Write what is drawn into this directory, as SVG
    #[arg(long, value_name = "DIR")]
    plot: Option<PathBuf>,
}

fn parse_pair(text: &str) -> Result<(String, f64), String> {
    let (name, value) =
        text.split_once('=').ok_or_else(|| format!("{text:?} is not NAME=VALUE"))?;
    let number = value.parse().map_err(|_| format!("{value:?} is not a number"))?;
    Ok((name.to_owned(), number))
}

/// Why nothing was shown.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// The simulation.
    #[error(transparent)]
    Sim(#[from] SimError),
    /// Parameters of all experiments at once.
    #[error("--set changes one experiment; name it with --scenario")]
    SetOfAll,
    /// A plot that cannot be written.
    #[error("cannot write {path}: {error}; give a directory that can be written to")]
    Plot {
        /// The file.
        path: PathBuf,
        /// Why not.
        error: std::io::Error,
    },
    /// A report that cannot be told as JSON.
    #[error("the report is no JSON: {0}")]
    Json(#[from] serde_json::Error),
}

/// Does what the arguments say; returns what is to be printed.
///
/// # Errors
///
/// If an experiment cannot run, or what it drew cannot be written.
pub fn said(arguments: &Arguments) -> Result<String, CliError> {
    let chosen: Vec<&Scenario> = match arguments.scenario.as_deref() {
        None if !arguments.set.is_empty() => return Err(CliError::SetOfAll),
        None | Some("all") if arguments.list => SCENARIOS.iter().collect(),
        None => return Ok(list(&SCENARIOS.iter().collect::<Vec<_>>(), false)),
        Some("all") if !arguments.set.is_empty() => return Err(CliError::SetOfAll),
        // What is large is asked for by name.
        Some("all") => SCENARIOS.iter().filter(|scenario| scenario.name != "scale").collect(),
        Some(name) => vec![find(name)?],
    };
    if arguments.list {
        return Ok(list(&chosen, true));
    }
    let run = |scenario: &&Scenario| scenario.run(arguments.seed, arguments.memory, &arguments.set);
    let reports = chosen.iter().map(run).collect::<Result<Vec<Report>, SimError>>()?;
    if let Some(directory) = &arguments.plot {
        reports.iter().try_for_each(|report| draw(report, directory))?;
    }
    if arguments.json {
        return Ok(serde_json::to_string_pretty(&reports)? + "\n");
    }
    let shown = if arguments.markdown { markdown } else { text };
    Ok(reports.iter().map(shown).collect::<Vec<_>>().join("\n"))
}

/// Does what the arguments say, and prints.
#[must_use]
pub fn run(arguments: &Arguments) -> ExitCode {
    match said(arguments) {
        Ok(shown) => {
            use std::io::Write as _;
            // Who has closed the pipe wants no more.
            let _ = std::io::stdout().write_all(shown.as_bytes());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("sim: {error}");
            ExitCode::from(2)
        }
    }
}

// Writing to a String cannot fail.
fn list(scenarios: &[&Scenario], with_parameters: bool) -> String {
    let mut text = String::new();
    for scenario in scenarios {
        let _ = writeln!(text, "{:<10} {}", scenario.name, scenario.title);
        for parameter in scenario.parameters.iter().filter(|_| with_parameters) {
            let value = format!("{}={}", parameter.name, parameter.value);
            let _ = writeln!(text, "    {value:<20} {}", parameter.what);
        }
    }
    text
}

fn draw(report: &Report, directory: &Path) -> Result<(), CliError> {
    let write = |path: PathBuf, text: &str| {
        let done = std::fs::create_dir_all(directory).and_then(|()| std::fs::write(&path, text));
        done.map_err(|error| CliError::Plot { path, error })
    };
    report.findings.figures.iter().try_for_each(|figure| {
        write(directory.join(format!("{}.svg", figure.name)), &plot::render(figure))
    })
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory as _, Parser as _};

    use super::*;

    fn say(line: &str) -> Result<String, CliError> {
        said(&Arguments::try_parse_from(line.split_whitespace().skip(1)).unwrap())
    }

    #[test]
    fn the_examples_of_its_help_work() {
        let help = Arguments::command().render_long_help().to_string();
        let lines = help.lines().filter_map(|line| line.strip_prefix("  ferroccl "));
        let mut examples = 0;
        for example in lines {
            // The first word is the command's, as the program's name is for clap.
            let shown = say(&format!("ferroccl {example}")).unwrap();
            assert!(!shown.is_empty(), "{example}");
            examples += 1;
        }
        assert_eq!(examples, 7, "{help}");
    }

    #[test]
    fn json_is_the_same_for_the_same_seed_and_plots_are_written() {
        let directory = std::env::temp_dir().join(format!("ferroccl-sim-{}", std::process::id()));
        let line = format!(
            "ferroccl sim --scenario f3 --set trials=5 --json --plot {}",
            directory.display()
        );
        let first = say(&line).unwrap();
        assert_eq!(first, say(&line).unwrap());
        let json: serde_json::Value = serde_json::from_str(&first).unwrap();
        assert_eq!(json[0]["name"], "f3");
        assert!(json[0]["findings"][0]["measured"].as_f64().unwrap() > 1.0);
        let drawn = std::fs::read_to_string(directory.join("f3-completion.svg")).unwrap();
        std::fs::remove_dir_all(&directory).unwrap();
        assert!(drawn.starts_with("<svg"));
    }

    #[test]
    fn what_is_wrong_is_said_with_a_remedy() {
        for (line, wanted) in [
            ("ferroccl sim --scenario f99", "choose one of: f1 f2"),
            (
                "ferroccl sim --scenario f2 --set racks=3",
                "choose one of: nics pairs uplinks trials",
            ),
            ("ferroccl sim --scenario all --set trials=3", "name it with --scenario"),
            ("ferroccl sim --scenario f4 --set racks=60000 --memory 16", "simulate fewer"),
            ("ferroccl sim --scenario f10 --set racks=-1", "give a number of 0 or more"),
            ("ferroccl sim --scenario job --set algorithm=99", "a number from 0 to 6"),
            ("ferroccl sim --scenario job --set failed=16", "repair some"),
        ] {
            let error = say(line).unwrap_err().to_string();
            assert!(error.contains(wanted), "{line}: {error}");
        }
        assert!(Arguments::try_parse_from(["sim", "--set", "x"]).is_err());
    }
}
