//! Continues after a rank has died: the survivors agree on the last completed step, and form a new
//! communicator. `cargo run --example survive_a_failure` starts four ranks; one of them dies.

use std::process::ExitCode;
use std::time::Duration;

use ferroccl::{Communicator, Error, Reduction};

const STEPS: u64 = 10;
const TIMEOUT: Duration = Duration::from_secs(30);

/// Runs one training step, which sums the gradients over the ranks.
fn step(communicator: &mut Communicator) -> Result<f32, Error> {
    let mut gradients = [1.0f32; 1000];
    communicator.all_reduce_in_place(&mut gradients, Reduction::Sum)?;
    Ok(gradients[0])
}

fn main() -> ExitCode {
    ferroccl::run(4, |communicator| {
        let mut failure = None;
        for number in 0..STEPS {
            if let Err(error) = step(communicator) {
                failure = Some(error);
                break;
            }
            if number == 3 && communicator.rank() == 2 {
                // The rank dies as if killed: it closes nothing and sends nothing.
                std::process::abort();
            }
        }
        let failure = failure.ok_or("no step failed")?;
        // Training goes on after the last step that all survivors completed.
        let done = communicator.agree(TIMEOUT)?.last_completed;
        let mut survivors = communicator.shrink()?;
        let mut sum = 0.0;
        for _ in done..STEPS {
            sum = step(&mut survivors)?;
        }
        if survivors.rank() == 0 {
            println!("{failure}");
            println!("{} ranks completed {STEPS} steps: the sum is {sum}", survivors.ranks());
        }
        Ok::<(), Box<dyn std::error::Error>>(())
    })
}
