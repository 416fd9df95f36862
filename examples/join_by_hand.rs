//! Joins the ranks that any launcher has started, and prints the number of ranks and hosts.
//!
//! `cargo run --example join_by_hand -- 4` starts four ranks by itself. Under torchrun, mpirun,
//! mpiexec or srun each process is one rank.

use ferroccl::launch::{from_environment, spawn_local};
use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

fn main() -> ExitCode {
    match run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("join_by_hand: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<ExitCode, Box<dyn Error>> {
    let Some(launch) = from_environment()? else {
        let ranks = std::env::args().nth(1).map_or(Ok(2), |ranks| ranks.parse())?;
        let exit = spawn_local::<&str>(ranks, &std::env::current_exe()?, &[])?;
        return Ok(ExitCode::from(exit.code));
    };
    let patience = Duration::from_secs(60);
    let plane = launch.rendezvous(patience)?.join()?;
    plane.barrier(patience)?;
    if plane.rank() == 0 {
        let (ranks, hosts) = (plane.ranks(), plane.roster().hosts());
        println!("{ranks} ranks on {hosts} hosts, started by {}", launch.launcher);
    }
    Ok(ExitCode::SUCCESS)
}
