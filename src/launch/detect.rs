//! Detection of the launcher that started this process, by the variables that the launcher sets.

use super::pmi::PmiAddress;
use super::store::StoreAddress;
use super::variables::Variables;
use super::{Launch, LaunchError, Rendezvous, secret};
use crate::bootstrap::{Endpoint, UniqueId};
use sha2::{Digest, Sha256};
use std::fmt;

/// Origin of this process's rank: our own variables, or a launcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Launcher {
    /// `FERROCCL_RANK` and `FERROCCL_RANKS`.
    Variables,
    /// torchrun, or another launcher that sets torchrun's variables.
    Torchrun,
    /// Open MPI's mpirun.
    OpenMpi,
    /// A PMI-1 process manager: MPICH's mpiexec, Intel's mpirun, srun --mpi=pmi2.
    Pmi,
    /// Slurm's srun.
    Slurm,
}

impl fmt::Display for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Launcher::Variables => "FERROCCL_RANK and FERROCCL_RANKS",
            Launcher::Torchrun => "torchrun",
            Launcher::OpenMpi => "Open MPI's mpirun",
            Launcher::Pmi => "a PMI process manager",
            Launcher::Slurm => "Slurm's srun",
        })
    }
}

const COMM_ID: &str = "FERROCCL_COMM_ID";

/// Finds this process's rank: in our own variables, then torchrun's, Open MPI's, PMI's, Slurm's.
/// Returns `None` if no launcher is found: this process was started alone.
///
/// # Errors
/// A variable is malformed or missing, or the launcher offers no rendezvous.
pub fn from_environment() -> Result<Option<Launch>, LaunchError> {
    detect(&Variables::of_process())
}

/// A launcher that was detected: the properties in which the five launchers differ.
struct Found {
    launcher: Launcher,
    names: (&'static str, &'static str),
    local: (Option<u32>, Option<u32>),
    rendezvous: fn(&Variables, u32, Option<u32>) -> Result<Rendezvous, LaunchError>,
}

pub(super) fn detect(variables: &Variables) -> Result<Option<Launch>, LaunchError> {
    let Some(found) = find(variables)? else { return Ok(None) };
    let (rank_name, ranks_name) = found.names;
    let rank = variables.needed(rank_name, ranks_name)?;
    let ranks = variables.needed(ranks_name, rank_name)?;
    if rank >= ranks {
        return Err(LaunchError::RankOutOfRange { rank_name, rank, ranks_name, ranks });
    }
    let rendezvous = match known(variables, rank)? {
        _ if ranks == 1 => Rendezvous::Alone,
        Some(rendezvous) => rendezvous,
        None => (found.rendezvous)(variables, ranks, found.local.1)?,
    };
    Ok(Some(Launch {
        rank,
        ranks,
        local_rank: found.local.0,
        local_ranks: found.local.1,
        launcher: found.launcher,
        rendezvous,
        secret: secret::from_variables(variables)?,
        insecure: variables.flag("FERROCCL_INSECURE_JOIN")?,
        host: variables.text("FERROCCL_BOOTSTRAP_HOST")?,
    }))
}

fn find(variables: &Variables) -> Result<Option<Found>, LaunchError> {
    let local = |rank, ranks| -> Result<_, LaunchError> {
        Ok((variables.number(rank)?, variables.number(ranks)?))
    };
    let found = if variables.has("FERROCCL_RANK") || variables.has("FERROCCL_RANKS") {
        Found {
            launcher: Launcher::Variables,
            names: ("FERROCCL_RANK", "FERROCCL_RANKS"),
            local: local("FERROCCL_LOCAL_RANK", "FERROCCL_LOCAL_RANKS")?,
            rendezvous: |_, _, _| {
                let because =
                    "FERROCCL_RANK is set, and rank 0 listens at the HOST:PORT in FERROCCL_COMM_ID"
                        .to_owned();
                Err(LaunchError::Absent { name: COMM_ID, because })
            },
        }
    } else if variables.has("RANK") && variables.has("WORLD_SIZE") {
        Found {
            launcher: Launcher::Torchrun,
            names: ("RANK", "WORLD_SIZE"),
            local: local("LOCAL_RANK", "LOCAL_WORLD_SIZE")?,
            rendezvous: |variables, _, _| torchrun(variables),
        }
    } else if variables.has("OMPI_COMM_WORLD_RANK") {
        Found {
            launcher: Launcher::OpenMpi,
            names: ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
            local: local("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE")?,
            rendezvous: open_mpi,
        }
    } else if variables.has("PMI_RANK") {
        Found {
            launcher: Launcher::Pmi,
            names: ("PMI_RANK", "PMI_SIZE"),
            local: local("MPI_LOCALRANKID", "MPI_LOCALNRANKS")?,
            rendezvous: pmi,
        }
    } else if variables.has("SLURM_PROCID") && variables.has("SLURM_STEP_ID") {
        // A batch script has SLURM_PROCID too, but is one process whatever SLURM_NTASKS says.
        Found {
            launcher: Launcher::Slurm,
            names: ("SLURM_PROCID", "SLURM_NTASKS"),
            local: (variables.number("SLURM_LOCALID")?, None),
            rendezvous: |_, _, _| {
                let pass_on = "srun passes variables on by itself; with --mpi=pmi2, neither \
                               variable is needed";
                Err(LaunchError::NoRendezvousPoint { launcher: Launcher::Slurm, pass_on })
            },
        }
    } else {
        return Ok(None);
    };
    Ok(Some(found))
}

/// Returns the rendezvous that `FERROCCL_COMM_ID` names, for any launcher.
fn known(variables: &Variables, rank: u32) -> Result<Option<Rendezvous>, LaunchError> {
    let Some(text) = variables.text(COMM_ID)? else { return Ok(None) };
    if text.starts_with("ferroccl1:") {
        // The error does not repeat the text: it may hold a secret.
        let id: UniqueId =
            text.parse().map_err(|error| LaunchError::Secret(format!("{COMM_ID}: {error}")))?;
        return Ok(Some(Rendezvous::Id(id)));
    }
    let expected = "HOST:PORT (an IPv6 address in brackets) or a unique id";
    let endpoint = variables.parsed::<Endpoint>(COMM_ID, expected)?;
    let listener = variables.number("FERROCCL_LISTEN_FD")?.and_then(|fd| i32::try_from(fd).ok());
    Ok(endpoint.map(|endpoint| match listener {
        Some(fd) if rank == 0 => Rendezvous::Inherited(endpoint, fd),
        _ => Rendezvous::Known(vec![endpoint]),
    }))
}

fn torchrun(variables: &Variables) -> Result<Rendezvous, LaunchError> {
    let because = || "RANK and WORLD_SIZE are set".to_owned();
    let absent = |name| LaunchError::Absent { name, because: because() };
    let host = variables.text("MASTER_ADDR")?.ok_or_else(|| absent("MASTER_ADDR"))?;
    let port = variables
        .parsed::<u16>("MASTER_PORT", "a port number")?
        .ok_or_else(|| absent("MASTER_PORT"))?;
    let address = Endpoint::new(host, port);
    if variables.text("TORCHELASTIC_USE_AGENT_STORE")?.as_deref() != Some("True") {
        return Ok(Rendezvous::Known(vec![address]));
    }
    let run = variables.text("TORCHELASTIC_RUN_ID")?.unwrap_or_default();
    let restart = variables.text("TORCHELASTIC_RESTART_COUNT")?.unwrap_or_default();
    Ok(Rendezvous::Store(StoreAddress {
        address,
        key: format!("ferroccl/{run}/{restart}"),
        // The agents of PyTorch 2.2 and later, whose stores all speak the recent dialect, set this
        // variable.
        is_recent: variables.has("TORCH_NCCL_ASYNC_ERROR_HANDLING"),
    }))
}

fn open_mpi(
    variables: &Variables,
    ranks: u32,
    local_ranks: Option<u32>,
) -> Result<Rendezvous, LaunchError> {
    let mut job = Sha256::new();
    let mut known = 0;
    for name in ["PMIX_NAMESPACE", "PMIX_SERVER_TMPDIR", "OMPI_MCA_ess_base_jobid"] {
        if let Some(value) = variables.text(name)? {
            known += 1;
            job.update(format!("{name}={value}\n"));
        }
    }
    if known == 0 || local_ranks != Some(ranks) {
        let pass_on = "mpirun -x FERROCCL_COMM_ID -x FERROCCL_SECRET ...";
        return Err(LaunchError::NoRendezvousPoint { launcher: Launcher::OpenMpi, pass_on });
    }
    let user = rustix::process::geteuid().as_raw();
    let job: String = job.finalize().iter().take(12).map(|byte| format!("{byte:02x}")).collect();
    Ok(Rendezvous::SameHost(format!("ferroccl-{user}-{job}")))
}

fn pmi(
    variables: &Variables,
    ranks: u32,
    local_ranks: Option<u32>,
) -> Result<Rendezvous, LaunchError> {
    let is_local = local_ranks == Some(ranks);
    if let Some(fd) = variables.number("PMI_FD")? {
        let fd = i32::try_from(fd).unwrap_or(i32::MAX);
        return Ok(Rendezvous::Pmi(PmiAddress::Inherited { fd, is_local }));
    }
    if let Some(address) = variables.parsed::<Endpoint>("PMI_PORT", "HOST:PORT")? {
        let id = variables.needed("PMI_ID", "PMI_PORT")?;
        return Ok(Rendezvous::Pmi(PmiAddress::Port { address, id, is_local }));
    }
    let pass_on = "mpiexec -genvlist FERROCCL_COMM_ID,FERROCCL_SECRET ...";
    Err(LaunchError::NoRendezvousPoint { launcher: Launcher::Pmi, pass_on })
}

#[cfg(test)]
#[path = "detect_tests.rs"]
mod tests;
