//! Keeps a buffer registered between calls, so that RDMA sends from it and receives into it without
//! a copy or a registration per call. `cargo run --example registered_memory` starts four ranks.

use std::process::ExitCode;

use ferroccl::{Error, Reduction};

fn main() -> ExitCode {
    ferroccl::run(4, |communicator| {
        // `weights` owns the vector, and does not move the elements while they are registered.
        let mut weights = communicator.register(vec![1.0f32; 1_000_000])?;
        for _ in 0..3 {
            communicator.all_reduce_in_place(&mut weights, Reduction::Sum)?;
        }
        let weights = weights.into_inner();
        if communicator.rank() == 0 {
            println!("over {}: every element is {}", communicator.transport(), weights[0]);
        }
        Ok::<(), Error>(())
    })
}
