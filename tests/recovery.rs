//! Recovery with threads as ranks: errors of calls after a failure, communicators of survivors and
//! of newcomers, and aborts during waits. `survivors.rs` tests recovery with processes that are
//! killed or stopped.

use crate::collectives::sweep;
use ccl_harness::stretched;
use ccl_harness::{config, config_with, joining, ranks, ranks_with};
use ferroccl::bootstrap::{GiveUp, Join, Listening, Reach, UniqueId};
use ferroccl::communicator::Invitation;
use ferroccl::{Communicator, Config, Error, Reduction};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(5);
/// Pause of a rank after a call, long enough for the other ranks to end the call, too.
const ALL_DONE: Duration = Duration::from_millis(600);

/// Expected transport, and the function that returns the host of a rank.
type Place = (&'static str, fn(u32) -> u32);

/// Placements in which all ranks, no ranks, or pairs of ranks share memory.
pub(crate) const PLACES: [Place; 3] =
    [("shm", |_| 0), ("tcp", |rank| rank), ("shm+tcp", |rank| rank / 2)];

fn on_host(host: u32) -> Config {
    config_with(|config| {
        config.host_id = format!("host {host}");
        config.socket_interfaces = "127.0.0.1".to_owned();
    })
}

fn placed<T: Send + 'static>(
    n: u32,
    host: fn(u32) -> u32,
    run: impl Fn(Communicator) -> T + Send + Sync + 'static,
) -> Vec<T> {
    joining(n, move |rank| on_host(host(rank)), move |joined| run(joined.unwrap()))
}

fn sum(communicator: &mut Communicator) -> Result<u32, Error> {
    let mut value = [communicator.rank() + 1];
    communicator.all_reduce_in_place(&mut value, Reduction::Sum).map(|()| value[0])
}

/// Returns the failed rank, the last completed operation and the reason that an error names.
fn fields(error: &Error) -> (Option<u32>, Option<u64>, String) {
    let reason = match error {
        Error::Broken { reason, .. } | Error::RankFailed { reason, .. } => reason.clone(),
        other => panic!("{other:?}"),
    };
    (error.failed_rank(), error.last_completed(), reason)
}

/// All calls after a failure have the same error, on all ranks.
#[test]
fn every_call_after_a_failure_returns_the_same_error() {
    let all = ranks(4, |c| {
        for _ in 0..3 {
            c.barrier().unwrap();
        }
        if c.rank() == 1 {
            thread::sleep(ALL_DONE);
            c.abort_handle().abort("disk full");
        }
        let small = || vec![1.0f32; 8];
        let mut borrowed = small();
        let mut more = [0u8; 4];
        let peer = (c.rank() + 1) % 4;
        let mut errors = vec![sum(c).unwrap_err()];
        errors.push(c.barrier().unwrap_err());
        errors.push(c.send(&more, peer).unwrap_err());
        errors.push(c.group().recv(&mut more, peer).run().unwrap_err());
        errors.push(c.start_all_reduce(small(), small(), Reduction::Sum).unwrap_err());
        errors.push(
            c.scope(|s| s.start_all_reduce_in_place(&mut borrowed, Reduction::Sum).map(drop))
                .unwrap()
                .unwrap_err(),
        );
        errors.push(c.split(0, 0).unwrap_err());
        errors.push(c.alloc::<u8>(1).unwrap_err());
        errors.push(c.invite(1).unwrap_err());
        errors.iter().map(fields).collect::<Vec<_>>()
    });
    for said in all.iter().flatten() {
        assert_eq!(*said, (Some(1), Some(3), "gave up: disk full".to_owned()));
    }
}

/// Non-blocking calls count as operations. A request that is open when rank 0 aborts ends with an
/// error that names rank 0, the reason and the last completed operation.
#[test]
fn requests_count_as_operations_and_fail_after_an_abort() {
    let last = ranks(3, |c| {
        for _ in 0..5 {
            let request = c.start_all_reduce(vec![1u32], vec![0], Reduction::Sum).unwrap();
            assert_eq!(c.wait(request, stretched(SOON)).unwrap().1, [3]);
        }
        thread::sleep(ALL_DONE);
        let open = match c.rank() {
            0 => Vec::new(),
            _ => vec![c.start_all_reduce(vec![1u32], vec![0], Reduction::Sum).unwrap()],
        };
        if c.rank() == 0 {
            thread::sleep(ALL_DONE);
            c.abort_handle().abort("enough");
        }
        for request in open {
            let error = c.wait(request, stretched(SOON)).unwrap_err();
            assert_eq!(fields(&error), (Some(0), Some(5), "gave up: enough".to_owned()));
        }
        c.agree(stretched(SOON)).unwrap().last_completed
    });
    assert_eq!(last, [5, 5, 5]);
}

#[test]
fn shrink_is_refused_before_a_failure() {
    ranks(2, |c| {
        let error = c.shrink().unwrap_err();
        assert!(error.is_harmless() && error.to_string().contains("no rank has failed"), "{error}");
        assert_eq!(sum(c).unwrap(), 3);
    });
}

/// Ranks leave one by one, each with an abort, and the remaining ranks go on.
#[test]
fn survivors_go_on_again_and_again() {
    for (transport, host) in PLACES {
        placed(5, host, move |mut c| {
            let first = c.rank();
            assert_eq!(c.transport(), transport);
            for left in [5, 4, 3, 2] {
                assert_eq!(c.ranks(), left);
                assert_eq!(sum(&mut c).unwrap(), left * (left + 1) / 2);
                // The second rank leaves.
                if c.rank() == 1 {
                    thread::sleep(ALL_DONE);
                    return c.abort_handle().abort("called away");
                }
                let error = c.barrier().unwrap_err();
                assert_eq!(fields(&error), (Some(1), Some(1), "gave up: called away".to_owned()));
                c = c.shrink().unwrap();
            }
            assert_eq!((first, c.rank(), c.ranks()), (0, 0, 1));
            assert_eq!(sum(&mut c).unwrap(), 1);
        });
    }
}

/// A rank that aborts is not dead: all ranks, this one included, can go on after an abort.
#[test]
fn all_go_on_together_after_an_abort() {
    for (transport, host) in PLACES {
        placed(4, host, move |mut c| {
            for turn in 0..3 {
                if c.rank() == turn {
                    thread::sleep(ALL_DONE);
                    c.abort_handle().abort("once more");
                }
                assert_eq!(c.barrier().unwrap_err().failed_rank(), Some(turn));
                let next = c.shrink().unwrap();
                let again = c.shrink().unwrap_err().to_string();
                assert!(again.contains("was shrunk before"), "{again}");
                assert_eq!((c.rank(), c.ranks()), (next.rank(), next.ranks()));
                c = next;
                sweep(&mut c, &[0, 1, 1009]);
                assert_eq!(c.transport(), transport);
            }
        });
    }
}

#[test]
fn a_rank_alone_goes_on_after_its_own_abort() {
    let mut c = Communicator::alone(config()).unwrap();
    c.barrier().unwrap();
    c.abort_handle().abort("over");
    let error = c.barrier().unwrap_err();
    assert_eq!(fields(&error), (Some(0), Some(1), "gave up: over".to_owned()));
    assert_eq!(c.agree(stretched(SOON)).unwrap().survivors, [0]);
    assert_eq!(sum(&mut c.shrink().unwrap()).unwrap(), 1);
}

/// Starts a newcomer, which gets the invitation's id as text.
fn newcomer(
    text: String,
    rank: u32,
    ranks: u32,
    config: Config,
) -> thread::JoinHandle<Result<Communicator, Error>> {
    let id: UniqueId = text.parse().unwrap();
    thread::spawn(move || Communicator::join(rank, ranks, id, config))
}

/// Invites `added` newcomers, which rank 0 starts on the hosts that `host` returns. Returns the
/// invitation and the threads of the newcomers.
fn invite(
    c: &mut Communicator,
    added: u32,
    host: fn(u32) -> u32,
) -> (Invitation, Vec<thread::JoinHandle<Result<Communicator, Error>>>) {
    let invitation = c.invite(added).unwrap();
    let (first, ranks) = (invitation.first, invitation.ranks);
    assert_eq!((first, ranks), (c.ranks(), c.ranks() + added));
    assert!(!format!("{invitation:?}").contains(&invitation.id.to_secret_string()[20..]));
    let come = |rank| newcomer(invitation.id.to_secret_string(), rank, ranks, on_host(host(rank)));
    let newcomers = if c.rank() == 0 { (first..ranks).map(come).collect() } else { Vec::new() };
    (invitation, newcomers)
}

#[test]
fn newcomers_enter_and_work() {
    for (_, host) in PLACES {
        for n in [1, 2, 3] {
            placed(n, host, move |mut c| {
                let (invitation, newcomers) = invite(&mut c, 2, host);
                let newcomers = newcomers.into_iter().map(|newcomer| {
                    thread::spawn(move || sweep(&mut newcomer.join().unwrap().unwrap(), &[1, 999]))
                });
                let newcomers = Vec::from_iter(newcomers);
                let mut grown = c.grow(invitation).unwrap();
                assert_eq!((grown.rank(), grown.ranks()), (c.rank(), n + 2));
                sweep(&mut grown, &[1, 999]);
                newcomers.into_iter().for_each(|newcomer| newcomer.join().unwrap());
                // The old communicator does not change.
                assert_eq!(sum(&mut c).unwrap(), n * (n + 1) / 2);
            });
        }
    }
}

/// Ranks shrink and grow again, as in a job that replaces its dead ranks.
#[test]
fn a_newcomer_replaces_a_failed_rank() {
    for (_, host) in PLACES {
        placed(3, host, move |mut c| {
            for turn in 0..2 {
                if c.rank() == 2 {
                    thread::sleep(ALL_DONE);
                    return c.abort_handle().abort("called away");
                }
                assert_eq!(c.barrier().unwrap_err().failed_rank(), Some(2));
                let mut shrunk = c.shrink().unwrap();
                let (invitation, newcomers) = invite(&mut shrunk, 1, host);
                for newcomer in newcomers {
                    thread::spawn(move || {
                        let mut c = newcomer.join().unwrap().unwrap();
                        assert_eq!(sum(&mut c).unwrap(), 6);
                        thread::sleep(ALL_DONE);
                        c.abort_handle().abort("called away");
                    });
                }
                c = shrunk.grow(invitation).unwrap();
                assert_eq!(sum(&mut c).unwrap(), 6, "turn {turn}");
            }
        });
    }
}

#[test]
fn a_newcomer_that_does_not_come_harms_nothing() {
    let hurried = config_with(|config| config.join_timeout = Duration::from_secs(1));
    ranks_with(2, hurried.clone(), move |c| {
        let invitation = c.invite(1).unwrap();
        let begun = Instant::now();
        let error = c.grow(invitation).unwrap_err();
        assert!(begun.elapsed() < stretched(SOON), "{:?}", begun.elapsed());
        assert!(error.is_harmless() && matches!(error, Error::Unmade { .. }), "{error:?}");
        let error = error.to_string();
        assert!(error.contains("grow: ") && error.contains("rank 2"), "{error}");
        assert!(error.contains("call invite() again"), "{error}");
        assert_eq!(sum(c).unwrap(), 3);
        // Now the newcomer does come.
        let invitation = c.invite(1).unwrap();
        let text = invitation.id.to_secret_string();
        let other = (c.rank() == 0).then(|| newcomer(text, 2, 3, hurried.clone()));
        let other = other.map(|o| thread::spawn(move || sum(&mut o.join().unwrap().unwrap())));
        assert_eq!(sum(&mut c.grow(invitation).unwrap()).unwrap(), 6);
        other.map(|o| o.join().unwrap().unwrap());
    });
}

#[test]
fn invitations_that_do_not_fit_are_refused() {
    ranks(2, |c| {
        let error = c.invite(0).unwrap_err().to_string();
        assert!(error.contains("at least one"), "{error}");
        let error = c.invite(1 + c.rank()).unwrap_err().to_string();
        assert!(error.contains("another number of newcomers"), "{error}");
        // The split makes a communicator of fewer ranks, and then one of the same ranks.
        for color in [i64::from(c.rank()), 0] {
            let invitation = c.invite(1).unwrap();
            let mut other = c.split(color, 0).unwrap().unwrap();
            let error = other.grow(invitation).unwrap_err().to_string();
            assert!(error.contains("another communicator made"), "{error}");
        }
        assert_eq!(sum(c).unwrap(), 3);
    });
}

/// Aborts on a thread of its own, after a delay.
fn abort_after(c: &Communicator, after: Duration) -> thread::JoinHandle<()> {
    let handle = c.abort_handle();
    thread::spawn(move || {
        thread::sleep(after);
        handle.abort("the user pressed a key");
    })
}

/// An abort by rank 3 ends calls that wait. In kinds 0 and 1, all ranks wait for each other; in
/// kinds 2 and 3, the other ranks wait for rank 3, which sleeps.
#[test]
fn an_abort_ends_calls_that_wait() {
    for (_, host) in PLACES {
        for kind in 0..4 {
            placed(4, host, move |mut c| {
                let aborter = (c.rank() == 3).then(|| abort_after(&c, Duration::from_millis(200)));
                let (begun, mut one) = (Instant::now(), [0u8]);
                let next = (c.rank() + 1) % 4;
                let error = match kind {
                    // Each rank waits for the next.
                    0 => c.recv(&mut one, next).unwrap_err(),
                    1 => match c.rank() {
                        0 => c.recv(&mut one, 3).unwrap_err(),
                        3 => c.recv(&mut one, 0).unwrap_err(),
                        _ => c.barrier().unwrap_err(),
                    },
                    2 | 3 if c.rank() == 3 => {
                        thread::sleep(Duration::from_secs(2));
                        c.barrier().unwrap_err()
                    }
                    2 => c
                        .scope(|s| s.start_all_reduce_in_place(&mut one, Reduction::Sum).map(drop))
                        .unwrap_err(),
                    // Ranks 0 to 2 make another communicator.
                    _ => c.split(0, 0).unwrap_err(),
                };
                assert!(begun.elapsed() < stretched(SOON), "{:?}", begun.elapsed());
                let reason = "gave up: the user pressed a key".to_owned();
                assert_eq!(fields(&error), (Some(3), Some(0), reason), "{kind}");
                if let Some(aborter) = aborter {
                    aborter.join().unwrap();
                }
            });
        }
    }
}

/// Ranks 0 and 1 shrink while rank 2 is late. An abort by rank 0 or 1 ends the waits of both.
#[test]
fn an_abort_ends_a_shrink() {
    for aborting in [0, 1] {
        ranks(3, move |c| {
            if c.rank() == 0 {
                thread::sleep(ALL_DONE);
                c.abort_handle().abort("first");
            }
            assert_eq!(c.barrier().unwrap_err().failed_rank(), Some(0));
            if c.rank() == 2 {
                return thread::sleep(Duration::from_millis(1500));
            }
            let aborter =
                (c.rank() == aborting).then(|| abort_after(c, Duration::from_millis(300)));
            let begun = Instant::now();
            for _ in 0..2 {
                let error = c.shrink().unwrap_err().to_string();
                let said = format!("rank {aborting} gave up after the failure: the user pressed");
                assert!(error.contains(&said), "{error}");
            }
            assert!(
                begun.elapsed() < stretched(Duration::from_millis(1400)),
                "{:?}",
                begun.elapsed()
            );
            if let Some(aborter) = aborter {
                aborter.join().unwrap();
            }
            // Stays until the other rank's waits have ended: if this rank left, the other rank's
            // shrink would go on without it.
            thread::sleep(Duration::from_millis(1500));
        });
    }
}

/// A survivor leaves instead of going on: the others do not wait for it.
#[test]
fn survivors_go_on_without_a_survivor_that_leaves() {
    for leaver in [0, 1] {
        ranks(4, move |c| {
            if c.rank() == 3 {
                thread::sleep(ALL_DONE);
                c.abort_handle().abort("first");
            }
            assert_eq!(c.barrier().unwrap_err().failed_rank(), Some(3));
            if c.rank() == leaver {
                // This rank knows that it is a survivor, and leaves.
                assert_eq!(c.agree(stretched(SOON)).unwrap().survivors, [0, 1, 2, 3]);
                return thread::sleep(Duration::from_millis(300));
            }
            let begun = Instant::now();
            let mut shrunk = c.shrink().unwrap();
            assert_eq!((shrunk.ranks(), sum(&mut shrunk).unwrap()), (3, 6));
            assert!(begun.elapsed() < stretched(SOON), "{:?}", begun.elapsed());
            // The earlier agreement still holds.
            let verdict = c.agree(stretched(SOON)).unwrap();
            assert_eq!((verdict.cause.rank, verdict.last_completed), (3, 0));
        });
    }
}

/// An abort ends the wait of members for a newcomer that does not come.
#[test]
fn an_abort_ends_growing() {
    ranks(2, |c| {
        let invitation = c.invite(1).unwrap();
        let aborter = (c.rank() == 1).then(|| abort_after(c, Duration::from_millis(300)));
        let begun = Instant::now();
        let error = c.grow(invitation).unwrap_err();
        assert_eq!(error.failed_rank(), Some(1), "{error}");
        assert!(begun.elapsed() < stretched(SOON), "{:?}", begun.elapsed());
        if let Some(aborter) = aborter {
            aborter.join().unwrap();
        }
    });
}

/// A rank stops waiting when the condition of its [`GiveUp`] becomes true, in each of three joins:
/// a rank 0 that no other rank joins, a rank 1 whose rank 0 never answers, and a rank 1 that has
/// met rank 0 and waits for rank 2. In the third join, rank 0 has no condition, and its error says
/// that rank 1 hung up.
#[test]
fn a_give_up_condition_ends_joining() {
    let called_off = Arc::new(AtomicBool::new(false));
    let listening = [(); 3].map(|()| Listening::new(&Reach::Loopback).unwrap());
    let [lonely, nowhere, pair] = listening;
    let joining = [
        (0, lonely.id, Some(lonely.listener), true),
        (1, nowhere.id, None, true),
        (1, pair.id.clone(), None, true),
        (0, pair.id, Some(pair.listener), false),
    ];
    let joining = joining.map(|(rank, id, listener, can_be_called_off)| {
        let mut how = Join::new(rank, 3, id);
        how.listener = listener;
        let called_off = Arc::clone(&called_off);
        let reason = || "called off".to_owned();
        if can_be_called_off {
            how.give_up = GiveUp::when(move || called_off.load(Ordering::SeqCst).then(reason));
        }
        thread::spawn(move || Communicator::join_with(how, config()).unwrap_err().to_string())
    });
    thread::sleep(Duration::from_secs(2));
    let begun = Instant::now();
    called_off.store(true, Ordering::SeqCst);
    let errors = joining.map(|joining| joining.join().unwrap());
    for error in &errors[..3] {
        assert!(error.contains("stopped waiting for the others: called off"), "{error}");
    }
    assert!(errors[3].contains("rank 1 hung up"), "{}", errors[3]);
    assert!(begun.elapsed() < stretched(SOON), "{:?}", begun.elapsed());
}
