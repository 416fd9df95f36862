//! What machines lack.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use ferroccl::bootstrap::Endpoint;
use ferroccl::doctor::{self, Host, Job, Report};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
It only reads. Run it where the ranks run: in their container, by their launcher, with their
environment; as root it sees more (ACS). What it looks at is listed in docs/doctor.md.
Verdicts: fault (something does not work), warning (slower or less safe than it could be), advice
(may be on purpose), unknown (cannot be seen from here), ok.
Exit status: 0 if there is no fault and no warning, 1 if there is one, 2 if it cannot be run so.
Examples:
  ferroccl doctor
  ferroccl doctor --quiet
  ferroccl doctor --json
  ferroccl doctor --peer localhost:22
  ferroccl doctor --root /")]
pub(crate) struct Doctor {
    /// Only what is wrong: faults and warnings
    #[arg(long)]
    quiet: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Also try to reach this peer, at a port where something listens
    #[arg(long, value_name = "HOST:PORT", conflicts_with = "root")]
    peer: Option<Endpoint>,
    /// Look at the machine whose / is this directory: a mounted image, or a copy of /sys and /proc
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: PathBuf,
}

/// Its exit status is for scripts.
pub(crate) fn examine(arguments: &Doctor) -> ExitCode {
    let report = match diagnose(arguments) {
        Ok(report) => report,
        Err(error) => {
            eprintln!("ferroccl: {error}");
            return ExitCode::from(2);
        }
    };
    let status = ExitCode::from(u8::from(report.is_wrong()));
    let report = if arguments.quiet { report.only_wrong() } else { report };
    let text = match arguments.json {
        true => serde_json::to_string_pretty(&report).map(|text| text + "\n"),
        false => Ok(report.to_string()),
    };
    match text {
        Ok(text) => {
            let _ = write!(std::io::stdout(), "{text}");
            status
        }
        Err(error) => {
            eprintln!("ferroccl: {error}");
            ExitCode::from(2)
        }
    }
}

fn diagnose(arguments: &Doctor) -> Result<Report, String> {
    let job = Job { peer: arguments.peer.clone(), ..Job::from_environment() };
    let root = &arguments.root;
    let host = Host::new(root, job)
        .map_err(|error| format!("--root {}: {error}; name a directory", root.display()))?;
    Ok(doctor::examine(host))
}
