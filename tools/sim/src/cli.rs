//! `ferroccl sim`: the flags, and the experiments that they run.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use ccl_model::topology::Topology;
use ccl_traffic::Traffic;

use crate::SimError;
use crate::network::Plan;
use crate::report::{Report, markdown, text};
use crate::routing::Scheme;
use crate::scenario::{
    Ask, On, Parameter, REPLAY_PARAMETERS, SCENARIOS, Scenario, find, over_seeds, replay,
};

/// Simulates how long collectives take on a fabric of switches: runs experiments and shows their
/// results beside the published claims that they test.
#[derive(Clone, Debug, clap::Parser)]
#[command(after_help = "\
Without --scenario, the experiments are listed; --list also shows their parameters. The same seed
gives the same output, byte for byte. The exit status is 0 if all experiments could run, even if
results differ from expectations, and 2 if an experiment could not run.
With --on, an experiment uses another network's switches, hosts and links within hosts. Only the
experiments job, scale, schemes, straggler and incast take --on. --replay FILE with --on sends a
traffic matrix over the network that --on names.
Examples:
  ferroccl sim
  ferroccl sim --scenario f2
  ferroccl sim --scenario f2 --set uplinks=32,trials=50 --seed 7
  ferroccl sim --scenario f10 --list
  ferroccl sim --scenario f7 --json
  ferroccl sim --scenario job --set racks=2,algorithm=1,routing=6,mib=4
  ferroccl sim --scenario scale --set racks=64,algorithm=2
  ferroccl sim --scenario job --on superpod-256 --hosts 4 --set mib=4")]
pub struct Arguments {
    /// Experiment to run, or all of them
    #[arg(long, value_name = "NAME|all")]
    scenario: Option<String>,
    /// Values of the experiment's parameters, such as uplinks=32,trials=50
    #[arg(long, value_name = "NAME=VALUE", value_delimiter = ',', value_parser = parse_pair)]
    set: Vec<(String, f64)>,
    /// Run on this network: a name of `ferroccl topo --list`, or a file
    #[arg(long, value_name = "TOPOLOGY")]
    on: Option<String>,
    /// Use only this many hosts of the network: the first ones
    #[arg(long, requires = "on")]
    hosts: Option<u32>,
    /// Replay the traffic matrix in this file, interval by interval
    #[arg(long, value_name = "FILE", conflicts_with = "scenario")]
    replay: Option<String>,
    /// Routing of the traffic: ecmp pinned e_ecmp te flowlet adaptive spray [default: e_ecmp]
    #[arg(long, value_name = "SCHEME")]
    routing: Option<String>,
    /// Seed of all that is random
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Run with this many seeds, from --seed on, and show means with their standard errors; --plot
    /// draws the figures of the first seed
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seeds: u32,
    /// Limit of memory, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 4096)]
    memory: u64,
    /// Limit of the work of a run, in millions of steps: a message takes one step on each link
    #[arg(long, value_name = "MILLIONS", default_value_t = 1000)]
    work: u64,
    /// Print the parameters of the experiments, instead of running them
    #[arg(long)]
    list: bool,
    /// Print JSON
    #[arg(long, conflicts_with = "markdown")]
    json: bool,
    /// Print Markdown
    #[arg(long)]
    markdown: bool,
    /// Write the figures into this directory, as SVG
    #[arg(long, value_name = "DIR")]
    plot: Option<PathBuf>,
}

fn parse_pair(text: &str) -> Result<(String, f64), String> {
    let (name, value) =
        text.split_once('=').ok_or_else(|| format!("{text:?} is not NAME=VALUE"))?;
    let number = value.parse().map_err(|_| format!("{value:?} is not a number"))?;
    Ok((name.to_owned(), number))
}

/// Functions that read files: this crate itself reads no files.
#[derive(Clone, Copy)]
pub struct Files<'a> {
    /// Reads a topology by its name, or from a file.
    pub topology: &'a dyn Fn(&str) -> Result<Topology, String>,
    /// Reads a traffic matrix from a file.
    pub traffic: &'a dyn Fn(&str) -> Result<Traffic, String>,
}

impl std::fmt::Debug for Files<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Files")
    }
}

/// Error of the command line.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// A file that cannot be read.
    #[error("{0}")]
    File(String),
    /// `--on` without `--scenario` or `--replay`.
    #[error(
        "--on names only the network; give an experiment with --scenario, or traffic with --replay"
    )]
    OnAlone,
    /// `--routing` without `--replay`: experiments choose their own routing.
    #[error("--routing is for --replay only; some experiments take --set routing=NUMBER")]
    RoutingAlone,
    /// `--on` for all experiments.
    #[error("--on changes one experiment; name it with --scenario")]
    OnOfAll,
    /// An error of the simulation.
    #[error(transparent)]
    Sim(#[from] SimError),
    /// `--set` without the name of one experiment.
    #[error("--set changes one experiment; name it with --scenario")]
    SetOfAll,
    /// A plot that cannot be written.
    #[error("cannot write {path}: {error}; give a directory that can be written to")]
    Plot {
        /// File of the plot.
        path: PathBuf,
        /// Error of the system.
        error: std::io::Error,
    },
    /// A report that has no JSON form.
    #[error("cannot write the report as JSON: {0}")]
    Json(#[from] serde_json::Error),
}

/// Lists or runs the experiments that the arguments select, or runs the replay. Returns the text to
/// print.
///
/// # Errors
///
/// If the arguments contradict each other, a file cannot be read, an experiment cannot run, or its
/// figures cannot be written.
pub fn said(arguments: &Arguments, files: &Files<'_>) -> Result<String, CliError> {
    if arguments.routing.is_some() && arguments.replay.is_none() {
        return Err(CliError::RoutingAlone);
    }
    let reports = match &arguments.replay {
        Some(_) if arguments.list => return Ok(list_of(REPLAY_PARAMETERS)),
        Some(file) => vec![replayed(arguments, file, files)?],
        None => match chosen(arguments)? {
            Chosen::List(text) => return Ok(text),
            Chosen::Run(scenarios) => {
                let on = on(arguments, files)?;
                let ask = ask(arguments, on.as_ref());
                let run = |scenario: &&Scenario| {
                    over_seeds(&ask, arguments.seeds, |ask| scenario.run(ask))
                };
                scenarios.iter().map(run).collect::<Result<Vec<Report>, SimError>>()?
            }
        },
    };
    if let Some(directory) = &arguments.plot {
        reports.iter().try_for_each(|report| draw(report, directory))?;
    }
    if arguments.json {
        return Ok(serde_json::to_string_pretty(&reports)? + "\n");
    }
    let shown = if arguments.markdown { markdown } else { text };
    Ok(reports.iter().map(shown).collect::<Vec<_>>().join("\n"))
}

enum Chosen {
    /// Text of a list.
    List(String),
    /// Experiments to run.
    Run(Vec<&'static Scenario>),
}

fn chosen(arguments: &Arguments) -> Result<Chosen, CliError> {
    let chosen: Vec<&Scenario> = match arguments.scenario.as_deref() {
        None if !arguments.set.is_empty() => return Err(CliError::SetOfAll),
        None if arguments.on.is_some() => return Err(CliError::OnAlone),
        None | Some("all") if arguments.list => SCENARIOS.iter().collect(),
        None => return Ok(Chosen::List(list(&SCENARIOS.iter().collect::<Vec<_>>(), false))),
        Some("all") if !arguments.set.is_empty() => return Err(CliError::SetOfAll),
        Some("all") if arguments.on.is_some() => return Err(CliError::OnOfAll),
        // The experiment `scale` is large, and runs only by name.
        Some("all") => SCENARIOS.iter().filter(|scenario| scenario.name != "scale").collect(),
        Some(name) => vec![find(name)?],
    };
    Ok(if arguments.list { Chosen::List(list(&chosen, true)) } else { Chosen::Run(chosen) })
}

fn ask<'a>(arguments: &'a Arguments, on: Option<&'a On>) -> Ask<'a> {
    let Arguments { seed, memory, work, set, .. } = arguments;
    Ask { seed: *seed, memory_mib: *memory, work_millions: *work, changed: set, on }
}

/// Returns the network that was named.
fn on(arguments: &Arguments, files: &Files<'_>) -> Result<Option<On>, CliError> {
    let Some(name) = &arguments.on else { return Ok(None) };
    let topology = (files.topology)(name).map_err(CliError::File)?;
    let plan = Plan::of(&topology, arguments.hosts)?;
    Ok(Some(On { name: topology.name, plan }))
}

fn replayed(arguments: &Arguments, file: &str, files: &Files<'_>) -> Result<Report, CliError> {
    let routing = Scheme::named(arguments.routing.as_deref().unwrap_or("e_ecmp"))?;
    let on = on(arguments, files)?;
    let traffic = (files.traffic)(file).map_err(CliError::File)?;
    let run = |ask: &Ask<'_>| replay(&traffic, routing, ask);
    Ok(over_seeds(&ask(arguments, on.as_ref()), arguments.seeds, run)?)
}

/// Runs the command line, and prints the result.
#[must_use]
pub fn run(arguments: &Arguments, files: &Files<'_>) -> ExitCode {
    match said(arguments, files) {
        Ok(shown) => {
            use std::io::Write as _;
            // An error is ignored: the reader may have closed the pipe.
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
        text += &if with_parameters { list_of(scenario.parameters) } else { String::new() };
    }
    text
}

fn list_of(parameters: &[Parameter]) -> String {
    let line = |parameter: &Parameter| {
        let value = format!("{}={}", parameter.name, parameter.value);
        format!("    {value:<20} {}\n", parameter.what)
    };
    parameters.iter().map(line).collect()
}

fn draw(report: &Report, directory: &Path) -> Result<(), CliError> {
    let write = |path: PathBuf, text: &str| {
        let done = std::fs::create_dir_all(directory).and_then(|()| std::fs::write(&path, text));
        done.map_err(|error| CliError::Plot { path, error })
    };
    report.findings.figures.iter().try_for_each(|figure| {
        write(directory.join(format!("{}.svg", figure.name)), &figure.render())
    })
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory as _, Parser as _};

    use super::*;

    /// Runs a command line. Topologies are the presets. Every traffic file but `none` holds two
    /// equal intervals, in which each of 16 ranks sends to the rank eight further on, modulo 16.
    fn say(line: &str) -> Result<String, CliError> {
        let topology = |name: &str| {
            let found = ccl_model::topology::presets::find(name);
            found.map(|preset| preset.topology()).ok_or_else(|| format!("there is no file {name}"))
        };
        let traffic = |file: &str| {
            let bytes = (0..16).map(|from| ((from, (from + 8) % 16), 1_000_000_000)).collect();
            let ring = Traffic { ranks: 16, interval_s: 0.1, intervals: vec![bytes; 2] };
            if file == "none" { Err("none: there is no such file".to_owned()) } else { Ok(ring) }
        };
        let files = Files { topology: &topology, traffic: &traffic };
        said(&Arguments::try_parse_from(line.split_whitespace().skip(1)).unwrap(), &files)
    }

    #[test]
    fn the_examples_of_the_help_work() {
        let help = Arguments::command().render_long_help().to_string();
        let lines = help.lines().filter_map(|line| line.strip_prefix("  ferroccl "));
        let mut examples = 0;
        for example in lines {
            // `say` drops the word `ferroccl`; clap then takes `sim` for the program's name.
            let shown = say(&format!("ferroccl {example}")).unwrap();
            assert!(!shown.is_empty(), "{example}");
            examples += 1;
        }
        assert_eq!(examples, 8, "{help}");
    }

    #[test]
    fn plots_are_written_and_the_same_seed_gives_the_same_json() {
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
    fn several_seeds_give_means_with_their_standard_errors() {
        let run = |seeds: &str| {
            let line = format!("ferroccl sim --scenario f3 --set trials=2 --json {seeds}");
            let json: serde_json::Value = serde_json::from_str(&say(&line).unwrap()).unwrap();
            json[0]["findings"][0].clone()
        };
        let one = ["--seed 5", "--seed 6", "--seed 7"]
            .map(|seed| run(seed)["measured"].as_f64().unwrap());
        let mean = one.iter().sum::<f64>() / 3.0;
        let squares: f64 = one.iter().map(|value| (value - mean).powi(2)).sum();
        let three = run("--seed 5 --seeds 3");
        assert!((three["measured"].as_f64().unwrap() - mean).abs() < 1e-12, "{three} {one:?}");
        let standard_error = three["standard_error"].as_f64().unwrap();
        assert!((standard_error - (squares / 2.0 / 3.0).sqrt()).abs() < 1e-12, "{three} {one:?}");
        assert!(run("--seed 5")["standard_error"].is_null());
        let shown = say("ferroccl sim --scenario f3 --set trials=2 --seed 5 --seeds 3").unwrap();
        assert!(shown.contains("with seed=5 to 7 ") && shown.contains(" ± "), "{shown}");
    }

    #[test]
    fn errors_are_reported_with_a_remedy() {
        for (line, wanted) in [
            ("ferroccl sim --scenario f99", "choose one of: f1 f2"),
            (
                "ferroccl sim --scenario f2 --set racks=3",
                "choose one of: nics pairs uplinks trials",
            ),
            ("ferroccl sim --scenario all --set trials=3", "name it with --scenario"),
            ("ferroccl sim --scenario f4 --set racks=60000 --memory 16", "simulate fewer"),
            ("ferroccl sim --scenario f10 --set racks=-1", "give a number of 0 or more"),
            ("ferroccl sim --scenario f10 --seeds 0", "give 1 to 1000"),
            ("ferroccl sim --scenario f10 --seeds 1001", "give 1 to 1000"),
            ("ferroccl sim --scenario job --set algorithm=99", "a number from 0 to 6"),
            ("ferroccl sim --scenario job --set failed=16", "repair cables"),
            ("ferroccl sim --scenario job --set routing=6.6", "a number from 0 to 6"),
            (
                "ferroccl sim --scenario f8 --set hosts=1024",
                "streams between 1024 hosts would take",
            ),
            ("ferroccl sim --scenario f4 --set pairs=60000", "flows at once would take"),
            ("ferroccl sim --scenario f12 --set pairs=60000", "queues of"),
            ("ferroccl sim --scenario f12 --work 1", "queues of 3072 flows would take"),
            ("ferroccl sim --scenario straggler --set racks=192", "allow more (--work)"),
            ("ferroccl sim --scenario straggler --work 1", "6 runs of 64 ranks would take"),
            ("ferroccl sim --scenario job --set racks=64,mib=65536", "million steps"),
            ("ferroccl sim --scenario f14 --work 0", "streams would take"),
            ("ferroccl sim --replay x --on superpod-256 --hosts 2 --work 0", "million steps"),
            ("ferroccl sim --scenario f12 --on p5", "an experiment that runs on any network: job"),
            ("ferroccl sim --scenario schemes --on p5", "schemes needs at least 2; take another"),
            ("ferroccl sim --scenario job --on h100", "no switches between hosts"),
            ("ferroccl sim --scenario job --on p6", "there is no file p6"),
            ("ferroccl sim --scenario job --on p5 --set racks=2", "choose one of: failed"),
            ("ferroccl sim --scenario job --on p5 --set failed=1", "racks have no uplinks"),
            ("ferroccl sim --scenario straggler --on p5 --hosts 1", "give two hosts"),
            ("ferroccl sim --scenario incast --on p5 --hosts 1", "at least two groups"),
            ("ferroccl sim --scenario job --on p5 --hosts 17", "give 1 to 16"),
            ("ferroccl sim --scenario job --on meta-24576", "hashed or placed onto different"),
            ("ferroccl sim --scenario all --on p5", "name it with --scenario"),
            ("ferroccl sim --on p5", "names only the network"),
            ("ferroccl sim --replay x", "name one (--on)"),
            ("ferroccl sim --replay none --on p5", "no such file"),
            ("ferroccl sim --replay x --on p5 --hosts 1", "this one has 8"),
            ("ferroccl sim --routing te --scenario job", "--routing is for --replay"),
            ("ferroccl sim --replay x --on p5 --routing x", "choose one of: ecmp"),
            ("ferroccl sim --replay x --on p5 --set racks=3", "choose one of: pairs"),
        ] {
            let error = say(line).unwrap_err().to_string();
            assert!(error.contains(wanted), "{line}: {error}");
        }
        for line in ["--set x", "--hosts 2 --scenario job", "--replay x --scenario job --on p5"] {
            let arguments = ["sim"].into_iter().chain(line.split_whitespace());
            assert!(Arguments::try_parse_from(arguments).is_err(), "{line}");
        }
    }

    #[test]
    fn experiments_run_on_other_networks() {
        for (what, on) in [
            ("straggler --set mib=1", "superpod-256 --hosts 3"),
            ("incast --set senders=8,mib=2", "superpod-256 --hosts 4"),
            ("incast --set senders=8,mib=2", "p5 --hosts 2"),
            ("schemes --set trials=1,pairs=2", "superpod-1024 --hosts 34"),
            ("scale --set kib=4", "superpod-1024 --hosts 64"),
            ("job --set mib=4,algorithm=3", "p5 --hosts 2"),
            ("job --set mib=1,routing=3,failed=1", "superpod-1024 --hosts 33"),
        ] {
            let shown = say(&format!("ferroccl sim --scenario {what} --on {on}")).unwrap();
            let name = on.split(' ').next().unwrap();
            assert!(shown.contains(&format!("  on {name}: ")), "{shown}");
            assert!(!shown.contains("(!)") && !shown.contains("racks="), "{shown}");
        }
        // The named network is used: the report names its tiers. superpod-256 takes less time:
        // it has rails, so messages between hosts below one leaf never collide.
        let line = "ferroccl sim --scenario job --set mib=4 --json --on";
        let time = |on: &str| {
            let json: serde_json::Value =
                serde_json::from_str(&say(&format!("{line} {on}")).unwrap()).unwrap();
            assert_eq!(json[0]["findings"][0]["what"], "time");
            (json[0]["findings"][0]["measured"].as_f64().unwrap(), json.to_string())
        };
        let (pod, shown) = time("superpod-256 --hosts 8");
        assert!(shown.contains("links to a leaf") && shown.contains("links to a spine"));
        let (meta, shown) = time("meta-24576 --hosts 8");
        assert!(shown.contains("links to a ATSW"));
        assert!(pod > 0.0 && meta > pod, "the network with rails must be faster: {pod} {meta}");
    }
}
