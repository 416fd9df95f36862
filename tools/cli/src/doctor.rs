//! The `doctor` subcommand: faults of a machine.

mod ofi;

use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use ccl_doctor::{Host, Job, Report};
use crossbeam::channel;
use ferroccl::bootstrap::Endpoint;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The command changes nothing. Run it where the ranks run: in their container, by their launcher, with
their environment. Root can check more (ACS). docs/doctor.md lists the checks.
Verdicts: fault (something does not work), warning (something is slower or less safe than it could
be), advice (a setting that may be on purpose), unknown (cannot be determined from here), ok.
Exit status: 0 without faults and warnings, 1 with any of them, 2 if nothing was examined.
Examples:
  ferroccl doctor
  ferroccl doctor --quiet
  ferroccl doctor --json
  ferroccl doctor --peer localhost:22
  ferroccl doctor --ofi
  ferroccl doctor --root /")]
pub(crate) struct Doctor {
    /// Print only faults and warnings
    #[arg(long)]
    quiet: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Also try to reach this peer, at a port where something listens
    #[arg(long, value_name = "HOST:PORT", conflicts_with = "root")]
    peer: Option<Endpoint>,
    /// Directory to read instead of /: a mounted image, or a copy of /sys and /proc
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: PathBuf,
    /// List the providers of libfabric instead: their features, and whether a test of each passes
    #[arg(long, conflicts_with_all = ["quiet", "peer", "root"])]
    ofi: bool,
    /// Part of `--ofi` that this process runs for its parent process; see [`ofi`]
    #[arg(long, hide = true, requires = "ofi", value_name = "PART")]
    ofi_part: Option<String>,
    /// Examine the machine and report to the parent process; see [`watch`]
    #[arg(long, hide = true)]
    watched: bool,
}

/// Longest report, in bytes.
const REPORT_BYTES_MAX: usize = 64 << 20;

/// Time for the examining process to report: more than the deadline of the checks.
const PATIENCE: Duration = Duration::from_secs(20);

/// Examines the machine, prints the report, and returns the exit status for scripts.
///
/// A check that waits for a device may ignore signals, and its process then cannot end. So another
/// process examines the machine, and this one does not wait for that process to end.
pub(crate) fn examine(arguments: &Doctor) -> ExitCode {
    if let Some(part) = &arguments.ofi_part {
        return ofi::part(part);
    }
    if arguments.ofi {
        return ofi::examine(arguments.json);
    }
    let (status, text) = match arguments.watched {
        true => {
            let (status, text) = look(arguments);
            report(&mut std::io::stdout(), status, &text);
            return ExitCode::from(status);
        }
        false => match watch() {
            Ok(Some(report)) => report,
            Ok(None) => {
                eprintln!(
                    "ferroccl: the process that examines the machine has crashed, or has not \
                     reported within {PATIENCE:?}; `dmesg` may show the device at fault"
                );
                (2, String::new())
            }
            Err(_) => look(arguments),
        },
    };
    let _ = write!(std::io::stdout(), "{text}");
    ExitCode::from(status)
}

/// Starts an examining process and returns its report; fails if the process cannot start.
fn watch() -> io::Result<Option<(u8, String)>> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(std::env::args_os().skip(1)).arg("--watched");
    watched(command, PATIENCE)
}

/// Starts a process and returns its report; `None` if no whole report comes within `patience`. In
/// both cases, the process then has at most one second to end before it is killed.
fn watched(mut command: Command, patience: Duration) -> io::Result<Option<(u8, String)>> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    let (Some(mut out), Some(mut errors)) = (child.stdout.take(), child.stderr.take()) else {
        return Err(io::Error::other("the examining process has no output pipes"));
    };
    // Both pipes stay open if the process does not end, so both waits below have a limit.
    let (copied, all) = channel::bounded(1);
    std::thread::spawn(move || copied.send(io::copy(&mut errors, &mut io::stderr())));
    let (sender, answer) = channel::bounded(1);
    std::thread::spawn(move || sender.send(read_report(&mut out)));
    let report = answer.recv_timeout(patience).ok().flatten();
    // Waits for the rest of the standard error, until the process ends or the limit is over.
    let _ = all.recv_timeout(Duration::from_secs(1));
    let _ = child.kill();
    let _ = child.try_wait();
    Ok(report)
}

/// Writes a report for [`read_report`]: the exit status, the text's length, and the text.
fn report(to: &mut impl Write, status: u8, text: &str) {
    let _ = write!(to, "{status} {}\n{text}", text.len()).and_then(|()| to.flush());
}

fn read_report(from: &mut impl Read) -> Option<(u8, String)> {
    let mut from = BufReader::new(from);
    let mut head = String::new();
    from.read_line(&mut head).ok()?;
    let (status, bytes) = head.trim_end().split_once(' ')?;
    let mut text = vec![0; bytes.parse().ok().filter(|bytes| *bytes <= REPORT_BYTES_MAX)?];
    from.read_exact(&mut text).ok()?;
    Some((status.parse().ok()?, String::from_utf8(text).ok()?))
}

/// Examines the machine and returns the exit status and the text of the report.
fn look(arguments: &Doctor) -> (u8, String) {
    let report = match diagnose(arguments) {
        Ok(report) => report,
        Err(error) => {
            eprintln!("ferroccl: {error}");
            return (2, String::new());
        }
    };
    let status = u8::from(report.is_wrong());
    let report = if arguments.quiet { report.only_wrong() } else { report };
    let text = match arguments.json {
        true => serde_json::to_string_pretty(&report).map(|text| text + "\n"),
        false => Ok(report.to_string()),
    };
    match text {
        Ok(text) => (status, text),
        Err(error) => {
            eprintln!("ferroccl: {error}");
            (2, String::new())
        }
    }
}

fn diagnose(arguments: &Doctor) -> Result<Report, String> {
    let job = Job { peer: arguments.peer.clone(), ..Job::from_environment() };
    let root = &arguments.root;
    let host = Host::new(root, job)
        .map_err(|error| format!("--root {}: {error}; name a directory", root.display()))?;
    Ok(ccl_doctor::examine(host))
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    fn shell(line: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", line]);
        command
    }

    #[test]
    fn the_report_does_not_wait_for_processes_that_do_not_end() {
        let start = Instant::now();
        let long = Duration::from_secs(60);
        // The report is complete, and a child process holds the pipes open.
        let hangs = shell("printf '1 5\\nfound'; trap '' TERM; sleep 30 & sleep 30");
        assert_eq!(watched(hangs, long).unwrap(), Some((1, "found".to_owned())));
        let silent = watched(shell("sleep 30"), Duration::from_millis(50));
        assert_eq!(silent.unwrap(), None);
        assert!(start.elapsed() < Duration::from_secs(25));
        for broken in ["exit 3", "printf '0 9\\nshort'", "echo x", "printf '0 99999999999\\n'"] {
            assert_eq!(watched(shell(broken), long).unwrap(), None, "{broken}");
        }
    }

    #[test]
    fn written_reports_are_read_back_unchanged() {
        for (status, text) in [(0, ""), (1, "a\n\u{fc}\n"), (2, "2 3\nabc")] {
            let mut bytes = Vec::new();
            report(&mut bytes, status, text);
            assert_eq!(read_report(&mut bytes.as_slice()), Some((status, text.to_owned())));
        }
    }
}
