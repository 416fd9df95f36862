//! Input of the doctor: a machine's files, and the job that is to run there.

use std::io;
use std::ops::Deref;
use std::path::Path;

use ccl_core::config::Config;

use ccl_machine::Files;
use ferroccl::bootstrap::Endpoint;
use ferroccl::launch;
use ferroccl::tools::setting;
use ferroccl::transports;

/// Environment that a rank would get if it were started from here, and the arguments of the doctor.
#[derive(Debug, Default)]
pub struct Job {
    /// The tunables; one that cannot be read has its default.
    pub config: Config,
    /// Error messages of the tunables that cannot be read.
    pub config_problems: Vec<String>,
    /// Value of `LD_LIBRARY_PATH`.
    pub library_path: String,
    /// Value of `NCCL_NET_PLUGIN`.
    pub net_plugin: String,
    /// Peer to reach.
    pub peer: Option<Endpoint>,
}

impl Job {
    /// Reads this process's environment.
    #[must_use]
    pub fn from_environment() -> Job {
        let variable = |name| launch::variable(name).ok().flatten().unwrap_or_default();
        let (config, config_problems) = readable();
        Job {
            config,
            config_problems,
            library_path: variable("LD_LIBRARY_PATH"),
            net_plugin: variable("NCCL_NET_PLUGIN"),
            peer: None,
        }
    }
}

/// Returns the tunables, with the errors of those that cannot be read.
fn readable() -> (Config, Vec<String>) {
    let (mut problems, mut wrong) = (Vec::new(), Vec::new());
    let tables = transports::tables();
    for tunable in Config::default().list(&tables).into_iter().flatten() {
        let names = [Some(tunable.variable), tunable.alias];
        for name in names.into_iter().flatten() {
            if let Err(error) = setting(name) {
                problems.push(error.to_string());
            }
        }
    }
    // Each round finds one wrong tunable, which later rounds leave out.
    loop {
        let lookup = |name: &str| match wrong.iter().any(|known| known == name) {
            true => None,
            false => setting(name).ok().flatten(),
        };
        match Config::read(&lookup, &tables) {
            Ok(config) => return (config, problems),
            Err(error) if wrong.contains(&error.variable) => return (Config::default(), problems),
            Err(error) => {
                problems.push(error.to_string());
                wrong.push(error.variable);
            }
        }
    }
}

/// A machine, and the job that is to run on it.
#[derive(Debug)]
pub struct Host {
    files: Files,
    /// Job that is to run on the machine.
    pub(super) job: Job,
}

impl Host {
    /// Opens the machine whose `/` is this directory.
    ///
    /// # Errors
    ///
    /// When `root` is no directory.
    pub fn new(root: &Path, job: Job) -> io::Result<Host> {
        Files::new(root).map(|files| Host { files, job })
    }
}

impl Deref for Host {
    type Target = Files;

    fn deref(&self) -> &Files {
        &self.files
    }
}
