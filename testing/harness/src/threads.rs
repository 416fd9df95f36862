//! Ranks as threads of this process.

use ferroccl::bootstrap::{Join, Listening, Reach};
use ferroccl::{Communicator, Config, Error};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

/// Longest time that a test's ranks may take: far more than they need on a busy machine. In the
/// deep tier they may take five times as long.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Returns a configuration whose timeout turns a hang into an error long before [`PATIENCE`].
pub fn config() -> Config {
    let mut config = Config::default();
    config.timeout = Duration::from_secs(60);
    config
}

/// Runs `run` on every rank of a communicator of `n` threads; returns the results by rank. The
/// ranks start `run` when all have joined: otherwise, if a rank failed in `run`, the ranks that
/// are still joining would fail, too.
pub fn ranks_with<T: Send + 'static>(
    n: u32,
    config: Config,
    run: impl Fn(&mut Communicator) -> T + Send + Sync + 'static,
) -> Vec<T> {
    let joined = AtomicU32::new(0);
    let run = move |communicator: Result<Communicator, Error>| {
        let mut communicator = communicator.unwrap();
        joined.fetch_add(1, Ordering::Relaxed);
        let deadline = Instant::now() + PATIENCE;
        while joined.load(Ordering::Relaxed) < n {
            assert!(Instant::now() < deadline, "not all of {n} ranks joined");
            thread::yield_now();
        }
        run(&mut communicator)
    };
    joining(n, move |_| config.clone(), run)
}

/// Starts `n` threads that join one communicator, each with its own configuration; returns the
/// results of `run` by rank.
pub fn joining<T: Send + 'static>(
    n: u32,
    config: impl Fn(u32) -> Config + Send + Sync + 'static,
    run: impl Fn(Result<Communicator, Error>) -> T + Send + Sync + 'static,
) -> Vec<T> {
    let Listening { id, listener } = Listening::new(&Reach::Loopback).unwrap();
    let mut listener = Some(listener);
    let shared = Arc::new((config, run));
    let (sender, receiver) = mpsc::channel();
    let threads: Vec<_> = (0..n)
        .map(|rank| {
            let mut how = Join::new(rank, n, id.clone());
            how.listener = listener.take();
            let (shared, sender) = (Arc::clone(&shared), sender.clone());
            let body = move || {
                let (config, run) = &*shared;
                let result = run(Communicator::join_with(how, config(rank)));
                // The receiver is gone if the test has failed already.
                let _ = sender.send((rank, result));
            };
            thread::Builder::new().name(format!("rank {rank}")).spawn(body).unwrap()
        })
        .collect();
    drop(sender);
    let mut results: Vec<Option<T>> = (0..n).map(|_| None).collect();
    // The deep tier has tests that take minutes.
    let patience =
        if std::env::var_os("FERROCCL_TEST_FULL").is_some() { 5 * PATIENCE } else { PATIENCE };
    let deadline = Instant::now() + patience;
    let left = || deadline.saturating_duration_since(Instant::now());
    // Ends when no sender is left, or at the deadline: a rank that panicked sends nothing.
    while let Ok((rank, result)) = receiver.recv_timeout(left()) {
        results[rank as usize] = Some(result);
    }
    for (rank, thread) in threads.into_iter().enumerate() {
        // A thread that panicked has dropped its sender, but may still be unwinding.
        while !thread.is_finished() {
            assert!(Instant::now() < deadline, "rank {rank} hangs");
            thread::sleep(Duration::from_millis(1));
        }
        if let Err(panic) = thread.join() {
            std::panic::resume_unwind(panic);
        }
    }
    results.into_iter().map(Option::unwrap).collect()
}
