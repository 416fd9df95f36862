//! Sums a vector over all ranks.
//!
//! `cargo run --example all_reduce` starts four ranks on this machine. Under torchrun, mpirun or
//! srun each process is one rank.

use std::process::ExitCode;

use ferroccl::{Error, Reduction};

fn main() -> ExitCode {
    ferroccl::run(4, |communicator| {
        let mut gradients = vec![communicator.rank() as f32; 1_000_000];
        communicator.all_reduce_in_place(&mut gradients, Reduction::Sum)?;
        if communicator.rank() == 0 {
            println!("{} ranks: every element is {}", communicator.ranks(), gradients[0]);
        }
        Ok::<(), Error>(())
    })
}
