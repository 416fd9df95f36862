//! Overlaps communication with computation: the gradients of one layer are averaged over the ranks
//! while the next layer is computed.
//!
//! `cargo run --example overlap` starts four ranks on this machine.

use std::process::ExitCode;
use std::time::Duration;

use ferroccl::{Error, Reduction};

const LAYERS: usize = 4;
const TIMEOUT: Duration = Duration::from_secs(60);

/// Simulates the backward pass of a layer.
fn backward(layer: usize, rank: u32) -> Vec<f32> {
    (0..100_000).map(|at| (at % 10) as f32 + layer as f32 + rank as f32).collect()
}

fn main() -> ExitCode {
    ferroccl::run(4, |communicator| {
        let mut requests = Vec::new();
        for layer in (0..LAYERS).rev() {
            let gradients = backward(layer, communicator.rank());
            let output = vec![0.0; gradients.len()];
            // The request owns both buffers until it is waited for.
            requests.push(communicator.start_all_reduce(gradients, output, Reduction::Avg)?);
        }
        for (layer, request) in (0..LAYERS).rev().zip(requests) {
            let (_, averaged) = communicator.wait(request, TIMEOUT)?;
            if communicator.rank() == 0 {
                println!("layer {layer}: the first average is {}", averaged[0]);
            }
        }
        Ok::<(), Error>(())
    })
}
