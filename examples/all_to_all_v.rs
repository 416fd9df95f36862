//! Sends blocks of different lengths between all ranks, as a mixture of experts does with tokens.
//! `cargo run --example all_to_all_v` starts four ranks on this machine.

use std::process::ExitCode;

use ferroccl::communicator::Blocks;
use ferroccl::{Error, Reduction};

/// Returns the index at which each block starts, for blocks that follow each other without gaps.
fn starts(counts: &[usize]) -> Vec<usize> {
    let add = |sum: &mut usize, count: &usize| Some(std::mem::replace(sum, *sum + count));
    counts.iter().scan(0, add).collect()
}

fn main() -> ExitCode {
    ferroccl::run(4, |communicator| {
        let (rank, ranks) = (communicator.rank() as usize, communicator.ranks() as usize);
        // Rank r sends r + p + 1 tokens to rank p, and receives as many tokens from rank p.
        let counts = Vec::from_iter((0..ranks).map(|peer| rank + peer + 1));
        let (total, starts) = (counts.iter().sum(), starts(&counts));
        let blocks = Blocks { counts: &counts, starts: &starts };
        let tokens = vec![rank as u64; total];
        let mut received = vec![0; total];
        communicator.all_to_all_v(&tokens, blocks, &mut received, blocks)?;
        for (peer, (count, start)) in counts.iter().zip(&starts).enumerate() {
            assert!(received[*start..start + count].iter().all(|token| *token == peer as u64));
        }
        let mut all = [total as u64];
        communicator.all_reduce_in_place(&mut all, Reduction::Sum)?;
        if rank == 0 {
            println!("{} tokens went to their ranks", all[0]);
        }
        Ok::<(), Error>(())
    })
}
