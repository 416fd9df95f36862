//! What the doctor looks at: a machine's files, and what is to run there.

use std::io;
use std::ops::Deref;
use std::path::Path;

use ccl_core::config::Config;

use ccl_machine::Files;
use ferroccl::bootstrap::Endpoint;
use ferroccl::launch;
use ferroccl::tools::setting;
use ferroccl::transports;

/// What ranks started from here would be told, and what was asked of the doctor.
#[derive(Debug, Default)]
pub struct Job {
    /// The tunables; the default of each that cannot be read.
    pub config: Config,
    /// What cannot be read of them.
    pub config_problems: Vec<String>,
    /// `LD_LIBRARY_PATH`.
    pub library_path: String,
    /// `NCCL_NET_PLUGIN`.
    pub net_plugin: String,
    /// Whom to reach.
    pub peer: Option<Endpoint>,
}

impl Job {
    /// What this process's environment says.
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

/// The tunables that can be read, and what is wrong with the others.
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
    // Each round finds one that is wrong, and leaves it out from then on.
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

/// A machine.
#[derive(Debug)]
pub struct Host {
    files: Files,
    /// What is to run on it.
    pub(super) job: Job,
}

impl Host {
    /// The machine whose `/` is this directory.
    ///
    /// # Errors
    ///
    /// When it is no directory.
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
