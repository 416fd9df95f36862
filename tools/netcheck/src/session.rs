//! A session: the points (demands on a plugin) one after another, the output, and the exit status.

use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;

use crate::arguments::Arguments;
use crate::messages::Verdict;
use crate::points::{self, Kind, Point};
use crate::report::{self, Line, Summary};
use crate::{pair, part, performance};

/// Checks a plugin and prints the results. Each point runs in processes of its own, which are
/// further runs of this program. The command line of such a process begins with the arguments in
/// `again` (a subcommand, or none), before netcheck's own arguments.
#[must_use]
pub fn run(arguments: &Arguments, again: &[&str]) -> ExitCode {
    let chosen = match choose(arguments) {
        Ok(chosen) => chosen,
        Err(why) => {
            eprintln!("netcheck: {why}");
            return ExitCode::from(2);
        }
    };
    if let (Some(role), Some(point)) = (arguments.side, chosen.first()) {
        return part::run(point, role, arguments);
    }
    if arguments.list {
        print(&report::list(points::ALL));
        return ExitCode::SUCCESS;
    }
    let result = check(arguments, &chosen, again).and_then(|summary| {
        if let Some(path) = &arguments.json {
            let text = serde_json::to_string_pretty(&summary)? + "\n";
            match path.as_os_str() == "-" {
                true => print(&text),
                false => std::fs::write(path, text)?,
            }
        }
        Ok(summary)
    });
    match result {
        Ok(summary) if summary.has_failed() => ExitCode::FAILURE,
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("netcheck: {error}");
            ExitCode::from(2)
        }
    }
}

/// Returns the points to run.
fn choose(arguments: &Arguments) -> Result<Vec<&'static Point>, String> {
    let by_name = |name: &String| {
        let mut known = points::ALL.iter().chain([&performance::POINT]);
        known.find(|point| point.name == name).ok_or_else(|| {
            format!("there is no point \"{name}\"; netcheck --list prints all of them")
        })
    };
    if !arguments.only.is_empty() {
        return arguments.only.iter().map(by_name).collect();
    }
    let all = points::ALL.iter().filter(|_| !arguments.performance_only);
    Ok(all.filter(|point| !arguments.contract_only || point.kind == Kind::Contract).collect())
}

fn check(
    arguments: &Arguments,
    chosen: &[&Point],
    again: &[&str],
) -> Result<Summary, std::io::Error> {
    let is_quiet = arguments.json.as_ref().is_some_and(|path| path.as_os_str() == "-");
    let show = |text: &str| {
        if !is_quiet {
            print(text)
        }
    };
    let library = arguments.library().display().to_string();
    let mut summary = Summary { library, ..Summary::default() };
    for (at, point) in chosen.iter().enumerate() {
        let line = match Line::missing(point, &summary.points) {
            Some(base) => Line::not_tried(point, base),
            None => {
                progress(&format!("[{}/{}] {}", at + 1, chosen.len(), point.name));
                let report = pair::run(point, arguments, again)?;
                progress("");
                Line::of(point, &report)
            }
        };
        show(&line.text());
        summary.points.push(line);
    }
    if !summary.points.is_empty() {
        show(&summary.verdict());
    }
    let is_measured = !arguments.skip_performance && arguments.only.is_empty();
    if !is_measured {
        return Ok(summary);
    }
    if let Some(base) = Line::missing(&performance::POINT, &summary.points) {
        let why = base.as_reason();
        show(&format!("Nothing was measured: performance {why}\n"));
        match base.has_failed() {
            true => summary.performance_failed = Some(why),
            false => summary.performance_skipped = Some(why),
        }
    } else {
        progress("measuring");
        let report = pair::run(&performance::POINT, arguments, again)?;
        progress("");
        show(&format!("\n{}", report::columns()));
        report.rows.iter().for_each(|row| show(&report::row(row)));
        report.held.iter().for_each(|held| show(&report::held(*held)));
        match report.verdict {
            Verdict::Failed(why) => {
                show(&format!("The rest was not measured: {why}\n"));
                summary.performance_failed = Some(why);
            }
            Verdict::Skipped(why) => {
                show(&format!("Nothing was measured: {why}\n"));
                summary.performance_skipped = Some(why);
            }
            Verdict::Passed | Verdict::PeerEnded => {}
        }
        summary.performance = report.rows;
        summary.connection_bytes = report.held;
    }
    Ok(summary)
}

/// Prints text. Ignores errors: a reader such as `head` may have closed the pipe.
fn print(text: &str) {
    let mut out = std::io::stdout();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// Shows the current point, if standard error is a terminal.
fn progress(what: &str) {
    let mut err = std::io::stderr();
    if err.is_terminal() {
        let _ = write!(err, "\r\x1b[K{what}").and_then(|()| err.flush());
    }
}
