//! Every algorithm, for 1 to 8 ranks (with `FERROCCL_TEST_FULL=1` for 1 to 17 and some larger
//! numbers up to 33), with all roots of interest, many lengths and few slots.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ccl_core::algorithm::{self, Algorithm};

use crate::full;
use crate::numbers::{Group, hosts, roots};

#[derive(Default)]
struct Tally {
    cases: u64,
    messages: u64,
    folds: u64,
    time: Duration,
    failures: Vec<String>,
}

/// Does `work` for every item on two threads, the last items first.
pub(crate) fn on_two_threads<T: Sync>(items: &[T], work: impl Fn(&T) + Sync) {
    let next = AtomicUsize::new(0);
    let take = || items.len().checked_sub(next.fetch_add(1, Ordering::Relaxed) + 1);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(index) = take() {
                    work(&items[index]);
                }
            });
        }
    });
}

fn check_all(algorithm: &'static Algorithm, ranks: u32) -> Tally {
    let begin = Instant::now();
    let mut tally = Tally::default();
    let placements = hosts(algorithm, ranks);
    // Of the trials of a placement, every fifth is run (all with `FERROCCL_TEST_FULL=1`, or if
    // there is only one placement). There are at most six placements, so together they cost little
    // more than one placement with all trials. Five has no common factor with the periods of the
    // trials' settings, so each placement meets every setting. Builds with debug assertions have a
    // sample of their own (`Group::trials`).
    let share = if placements.len() > 1 && !full() { 5 } else { 1 };
    let roots = || roots(algorithm.collective, ranks);
    for (hosts, root) in
        placements.iter().flat_map(|hosts| roots().into_iter().map(move |root| (hosts, root)))
    {
        let group = Group::new(algorithm, hosts, root).sparing(share);
        for trial in group.trials() {
            tally.cases += 1;
            match group.check(&trial) {
                Ok(report) => {
                    tally.messages += report.messages;
                    tally.folds += report.folds;
                }
                Err(violation) => tally.failures.push(format!(
                    "{}/{} among {ranks} ranks, {hosts:?}: {violation}\n    replay: {trial:?}",
                    algorithm.collective, algorithm.name
                )),
            }
        }
    }
    tally.time = begin.elapsed();
    tally
}

#[test]
fn every_algorithm_is_right() {
    let begin = Instant::now();
    let more: &[u32] = if full() { &[18, 19, 20, 23, 24, 25, 32, 33] } else { &[] };
    let items: Vec<(&Algorithm, u32)> = (1..=if full() { 17 } else { 8 })
        .chain(more.iter().copied())
        .flat_map(|ranks| algorithm::all().map(move |one| (one, ranks)))
        .collect();
    assert!(!items.is_empty());
    let tallies: Mutex<BTreeMap<(&str, &str), Tally>> = Mutex::new(BTreeMap::new());
    on_two_threads(&items, |&(algorithm, ranks)| {
        let mut tally = check_all(algorithm, ranks);
        let mut all = tallies.lock().unwrap();
        let sum = all.entry((algorithm.collective.name(), algorithm.name)).or_default();
        sum.cases += tally.cases;
        sum.messages += tally.messages;
        sum.folds += tally.folds;
        sum.time += tally.time;
        sum.failures.append(&mut tally.failures);
    });
    let tallies = tallies.into_inner().unwrap();
    print(&tallies, begin.elapsed());
    let wrong = tallies.values().filter(|tally| !tally.failures.is_empty()).count();
    assert_eq!(wrong, 0, "some algorithms have violations, which are printed above");
}

fn print(tallies: &BTreeMap<(&str, &str), Tally>, time: Duration) {
    let mut cases = 0;
    println!(
        "collective         algorithm               cases    messages       folds   wrong       s"
    );
    for ((collective, name), tally) in tallies {
        let Tally { messages, folds, failures, .. } = tally;
        println!(
            "{collective:<18} {name:<20} {:>8} {messages:>11} {folds:>11} {:>7} {:>7.2}",
            tally.cases,
            failures.len(),
            tally.time.as_secs_f64()
        );
        cases += tally.cases;
    }
    // Items with more ranks are checked first, so the last failures have the fewest ranks.
    tallies.values().flat_map(|tally| tally.failures.iter().rev().take(2)).for_each(|failure| {
        println!("{failure}");
    });
    println!("{cases} cases in {:.1} s", time.as_secs_f64());
}
