//! Joining over real sockets, and what ranks do after it: exchanges (an `all_gather` or a barrier
//! of the control plane), detection of failures, and agreement. Ranks are threads, or processes if
//! one of them must die.

use ccl_bootstrap::{
    Contact, Hello, JoinLimits, Member, MemberJoin, PROTOCOL_VERSION, RootAction, RootJoin,
};
use ccl_harness::{skip, stretched};
use ferroccl::bootstrap::{
    BootstrapError, ControlPlane, ControlTiming, Endpoint, Failure, FailureReason, Join,
    JoinFailure, Listening, MemberJoinError, Reach, Secret, UniqueId, Verdict, join,
};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(20);
const CHILD: &str = "FERROCCL_TEST_BOOTSTRAP_CHILD";

fn options(rank: u32, ranks: u32, id: &UniqueId) -> Join {
    let mut options = Join::new(rank, ranks, id.clone());
    options.limits.deadline = SOON;
    options
}

type Joined = Result<ControlPlane, BootstrapError>;

/// Joins `ranks` ranks, each on a thread. `change` can alter the options of a rank. If `change`
/// returns false, the rank does not join.
fn joined(ranks: u32, change: impl Fn(&mut Join) -> bool) -> Vec<Option<Joined>> {
    let Listening { id, listener } = Listening::new(&Reach::Loopback).unwrap();
    let mut listener = Some(listener);
    let threads: Vec<_> = (0..ranks)
        .map(|rank| {
            let mut options = options(rank, ranks, &id);
            if rank == 0 {
                options.listener = listener.take();
            }
            change(&mut options).then(|| thread::spawn(move || join(options)))
        })
        .collect();
    drop(listener);
    threads.into_iter().map(|thread| thread.map(|thread| thread.join().unwrap())).collect()
}

fn all(ranks: u32) -> Vec<ControlPlane> {
    joined(ranks, |_| true).into_iter().map(|plane| plane.unwrap().unwrap()).collect()
}

fn each<T: Send>(planes: &[ControlPlane], run: impl Fn(&ControlPlane) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let threads: Vec<_> = planes.iter().map(|plane| scope.spawn(|| run(plane))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn awaited_failure(plane: &ControlPlane, within: Duration) -> (Failure, Duration) {
    let start = Instant::now();
    loop {
        if let Some(failure) = plane.failure() {
            assert!(plane.has_failed());
            return (failure, start.elapsed());
        }
        assert!(start.elapsed() < within, "rank {} noticed no failure", plane.rank());
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn ranks_join_exchange_and_leave() {
    for ranks in [1, 2, 8, 17] {
        let planes = all(ranks);
        let gathered = each(&planes, |plane| {
            assert_eq!(plane.roster().members.len(), ranks as usize);
            assert_eq!(plane.roster().hosts(), 1);
            plane.barrier(SOON).unwrap();
            let blob = vec![plane.rank() as u8; 1 + 1000 * plane.rank() as usize];
            let parts = plane.all_gather(blob, SOON).unwrap();
            plane.barrier(SOON).unwrap();
            parts
        });
        for parts in gathered {
            for (rank, part) in parts.iter().enumerate() {
                assert_eq!(part, &vec![rank as u8; 1 + 1000 * rank]);
            }
        }
        let start = Instant::now();
        for plane in planes {
            assert_eq!(plane.failure(), None);
            plane.close();
        }
        assert!(start.elapsed() < stretched(Duration::from_secs(2)), "{:?}", start.elapsed());
    }
}

#[test]
fn an_all_gather_of_large_blobs_works() {
    let planes = all(3);
    let blob = vec![7u8; 900_000];
    for parts in each(&planes, |plane| plane.all_gather(blob.clone(), SOON).unwrap()) {
        assert!(parts.iter().all(|part| part == &blob));
    }
    planes.into_iter().rev().for_each(ControlPlane::close);
}

#[test]
fn rank_0_may_come_late() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let endpoint = Endpoint::new("localhost", port);
    let id = UniqueId { endpoints: vec![endpoint], secret: Secret::from_bytes([3; 32]) };
    let member = options(1, 2, &id);
    let member = thread::spawn(move || join(member).map(drop));
    thread::sleep(Duration::from_millis(400));
    join(options(0, 2, &id)).unwrap();
    member.join().unwrap().unwrap();
}

#[test]
fn ipv6_works_where_the_host_has_it() {
    let Ok(listener) = TcpListener::bind("[::1]:0") else {
        skip("this host has no IPv6");
        return;
    };
    let endpoint = Endpoint::new("::1", listener.local_addr().unwrap().port());
    let id = UniqueId { endpoints: vec![endpoint], secret: Secret::from_bytes([3; 32]) };
    let member = options(1, 2, &id);
    let member = thread::spawn(move || join(member).map(drop));
    let mut root = options(0, 2, &id);
    root.listener = Some(listener);
    join(root).unwrap();
    member.join().unwrap().unwrap();
}

#[test]
fn a_missing_rank_is_named_everywhere() {
    let results = joined(4, |options| {
        options.limits.deadline = Duration::from_secs(2);
        options.rank != 2
    });
    for result in results.into_iter().flatten() {
        let text = result.unwrap_err().to_string();
        assert!(text.contains("rank 2 did not"), "{text}");
    }
}

#[test]
fn a_missing_rank_0_is_named() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let endpoint = Endpoint::new("127.0.0.1", port);
    let id = UniqueId { endpoints: vec![endpoint], secret: Secret::from_bytes([3; 32]) };
    let mut options = options(1, 2, &id);
    options.limits.deadline = Duration::from_millis(600);
    let start = Instant::now();
    let error = join(options).unwrap_err();
    assert!(matches!(error, BootstrapError::RootMissing { rank: 1, .. }), "{error}");
    assert!(start.elapsed() < stretched(Duration::from_secs(3)));
}

#[test]
fn a_wrong_secret_is_refused_and_the_others_name_the_missing_rank() {
    let results = joined(3, |options| {
        options.limits.deadline = Duration::from_secs(2);
        if options.rank == 1 {
            options.id.secret = Secret::from_bytes([9; 32]);
        }
        true
    });
    let texts: Vec<_> =
        results.into_iter().map(|result| result.unwrap().unwrap_err().to_string()).collect();
    assert!(texts[0].contains("rank 1 did not join"), "{}", texts[0]);
    assert!(texts[0].contains("1 with another secret"), "{}", texts[0]);
    assert!(texts[1].contains("different secrets"), "{}", texts[1]);
    assert!(texts[2].contains("rank 1 did not join"), "{}", texts[2]);
}

#[test]
fn a_duplicate_rank_or_a_different_configuration_fails_all_ranks() {
    // Once the join has failed, a rank that comes later finds no listener.
    let says = |results: Vec<Option<Joined>>, reason: &str| {
        for (rank, result) in results.into_iter().flatten().enumerate() {
            let text = result.unwrap_err().to_string();
            let is_late = rank > 0 && text.contains("could not reach rank 0");
            assert!(text.contains(reason) || is_late, "rank {rank}: {text}");
        }
    };
    let results = joined(4, |options| {
        options.rank = options.rank.min(2);
        true
    });
    says(results, "two processes joined as rank 2");
    let results = joined(3, |options| {
        options.configuration = [u8::from(options.rank == 1); 32];
        true
    });
    says(results, "configuration of rank 1 differs");
}

fn dial(address: std::net::SocketAddr) -> TcpStream {
    TcpStream::connect_timeout(&address, Duration::from_secs(5)).unwrap()
}

/// Strangers are connections that break the protocol.
#[test]
fn strangers_do_not_disturb_a_join() {
    let Listening { id, listener } = Listening::new(&Reach::Loopback).unwrap();
    let address = listener.local_addr().unwrap();
    let mut root = options(0, 2, &id);
    root.listener = Some(listener);
    let root = thread::spawn(move || join(root));
    let mut strangers: Vec<_> = (0..80).map(|_| dial(address)).collect();
    for (index, stranger) in strangers.iter_mut().enumerate() {
        let bytes: Vec<u8> = (0..index * 37).map(|i| (i * 31 + index) as u8).collect();
        let _ = stranger.write_all(&bytes);
    }
    // A stranger that sends the start of a valid message and then nothing.
    let mut slow = dial(address);
    slow.write_all(&[38, 0, 0, 0, 0]).unwrap();
    let member = join(options(1, 2, &id)).unwrap();
    let root = root.join().unwrap().unwrap();
    // None of the strangers received any bytes.
    for mut stranger in strangers {
        let mut heard = Vec::new();
        let _ = stranger.read_to_end(&mut heard);
        assert!(heard.is_empty(), "{heard:?}");
    }
    drop(member);
    drop(root);
}

#[test]
fn another_protocol_version_is_refused_and_the_answer_has_both_versions() {
    let Listening { id, listener } = Listening::new(&Reach::Loopback).unwrap();
    let address = listener.local_addr().unwrap();
    let mut root = options(0, 2, &id);
    root.listener = Some(listener);
    root.limits.deadline = Duration::from_secs(2);
    let root = thread::spawn(move || join(root));
    let mut stream = dial(address);
    stream.write_all(&[38, 0, 0, 0, 0]).unwrap();
    stream.write_all(b"FCCL\x63").unwrap();
    stream.write_all(&[0; 32]).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let own = u8::try_from(PROTOCOL_VERSION).unwrap();
    assert_eq!(answer, [4, 0, 0, 0, 6, 0, own, 99], "must refuse, with both versions");
    match root.join().unwrap().unwrap_err() {
        BootstrapError::Root { failure: JoinFailure::Missing { ranks, .. }, strays, .. } => {
            assert_eq!((ranks, strays.wrong_version), (vec![1], 1));
        }
        other => panic!("{other}"),
    }
}

/// Joins as `rank`, and vanishes once rank 0 has let it join. Nothing listens at the address in the
/// rank's hello.
fn vanish(rank: u32, ranks: u32, id: &UniqueId) {
    let unused = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let hello = hello(rank, ranks, Contact::new(Some(unused.ip()), unused.port()));
    let Endpoint { host, port } = &id.endpoints[0];
    let mut stream = dial(format!("{host}:{port}").parse().unwrap());
    let mut machine = MemberJoin::new(id.secret.clone(), hello, [7; 32]);
    let mut buffer = [0; 1024];
    while machine.outcome().is_none() {
        stream.write_all(&machine.take_outbox()).unwrap();
        let count = stream.read(&mut buffer).unwrap();
        machine.received(&mut &buffer[..count]);
    }
    assert!(machine.outcome().unwrap().is_ok());
}

/// Each rank other than 0 asks its parent in a binomial tree for the list of members. Rank 2, the
/// parent of rank 3, has vanished, so rank 3 asks rank 0. All ranks except rank 2 then fail with an
/// error that names rank 2.
#[test]
fn a_rank_that_cannot_reach_its_parent_asks_rank_0() {
    let ended = joined(4, |options| {
        let (rank, id) = (options.rank, options.id.clone());
        if rank == 2 {
            thread::spawn(move || vanish(2, 4, &id));
        }
        rank != 2
    });
    for joined in ended.into_iter().flatten() {
        match joined.unwrap_err() {
            BootstrapError::Linking { failure, .. } => {
                assert_eq!((failure.rank, failure.reason), (2, FailureReason::Refused));
            }
            other => panic!("{other}"),
        }
    }
}

fn hello(rank: u32, ranks: u32, contact: Contact) -> Hello {
    let member = Member { host: [1; 16], process: 1, contact };
    let library = env!("CARGO_PKG_VERSION").to_owned();
    Hello { rank, ranks, library, configuration: [0; 32], member }
}

/// Acts as rank 0: admits a member, and then vanishes.
fn refer(listener: TcpListener, secret: Secret) {
    let unused = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    let own = hello(0, 2, Contact::new(Some(unused.ip()), unused.port()));
    let start = ccl_core::time::Instant::ZERO;
    let mut machine = RootJoin::new(secret, own, JoinLimits::default(), start);
    machine.accepted(0, [5; 32], start);
    let (mut buffer, mut count) = ([0; 1024], 0);
    while machine.outcome().is_none() {
        machine.received(0, &buffer[..count]);
        while let Some(action) = machine.next_action() {
            let RootAction::Send(_, bytes) = action else { continue };
            stream.write_all(&bytes).unwrap();
        }
        count = stream.read(&mut buffer).unwrap();
    }
}

#[test]
fn a_rank_without_a_member_list_names_the_ranks_it_asked() {
    let Listening { id, listener } = Listening::new(&Reach::Loopback).unwrap();
    let secret = id.secret.clone();
    let root = thread::spawn(move || refer(listener, secret));
    let error = join(options(1, 2, &id)).unwrap_err().to_string();
    assert!(error.contains("was accepted, but no rank sent it"), "{error}");
    assert!(error.contains("the last request, to rank 0 at 127.0.0.1:"), "{error}");
    assert!(error.contains("refused"), "{error}");
    root.join().unwrap();
}

#[test]
fn another_program_at_the_address_is_reported() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = Endpoint::new("127.0.0.1", listener.local_addr().unwrap().port());
    let id = UniqueId { endpoints: vec![endpoint], secret: Secret::from_bytes([3; 32]) };
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.write_all(b"SSH-2.0-OpenSSH_9.2\r\n");
        let _ = stream.read(&mut [0; 100]);
    });
    let error = join(options(1, 2, &id)).unwrap_err();
    let alien = |error: &MemberJoinError| error.to_string().contains("no ferroccl rank");
    assert!(matches!(&error, BootstrapError::Member { error, .. } if alien(error)), "{error}");
    server.join().unwrap();
}

#[test]
fn without_a_secret_only_loopback_is_joined() {
    let public =
        |host: &str| UniqueId { endpoints: vec![Endpoint::new(host, 1)], secret: Secret::PUBLIC };
    let error = join(options(1, 2, &public("192.0.2.1"))).unwrap_err();
    assert!(error.to_string().contains("FERROCCL_INSECURE_JOIN=1"), "{error}");
    let mut root = options(0, 2, &public("192.0.2.1"));
    root.listener = Some(TcpListener::bind("0.0.0.0:0").unwrap());
    assert!(matches!(join(root).unwrap_err(), BootstrapError::NoSecret { .. }));
    let mut root = options(0, 2, &public("192.0.2.1"));
    root.listener = Some(TcpListener::bind("0.0.0.0:0").unwrap());
    root.insecure = true;
    root.limits.deadline = Duration::from_millis(50);
    assert!(matches!(join(root).unwrap_err(), BootstrapError::Root { .. }));
    let planes = joined(2, |options| {
        options.id.secret = Secret::PUBLIC;
        true
    });
    planes.into_iter().rev().for_each(|plane| drop(plane.unwrap().unwrap()));
}

#[test]
fn leaving_early_is_no_death_and_ends_exchanges() {
    let mut planes = all(4);
    planes.remove(2).close();
    let errors = each(&planes, |plane| plane.barrier(SOON).unwrap_err().to_string());
    for error in errors {
        assert!(error.contains("rank 2 has left"), "{error}");
    }
    thread::sleep(Duration::from_millis(50));
    assert!(planes.iter().all(|plane| plane.failure().is_none() && plane.has_left(2)));
    // Rank 0 leaves before the others; they do not count it as dead.
    let root = planes.remove(0);
    let root = thread::spawn(move || root.close());
    thread::sleep(Duration::from_millis(50));
    assert!(planes.iter().all(|plane| plane.failure().is_none()));
    drop(planes);
    root.join().unwrap();
}

#[test]
fn rank_0_and_others_may_leave_and_the_rest_still_reports_failures() {
    for leavers in [&[0][..], &[0, 1, 2, 4, 5, 6]] {
        let mut planes: Vec<_> = all(9).into_iter().map(Some).collect();
        let start = Instant::now();
        leavers.iter().for_each(|rank| drop(planes[*rank].take()));
        assert!(start.elapsed() < stretched(Duration::from_secs(2)), "{:?}", start.elapsed());
        let planes: Vec<_> = planes.into_iter().flatten().collect();
        while !planes.iter().all(|plane| leavers.iter().all(|rank| plane.has_left(*rank as u32))) {
            assert!(start.elapsed() < SOON, "not all ranks know who left");
            thread::sleep(Duration::from_millis(5));
        }
        assert!(planes.iter().all(|plane| plane.failure().is_none()));
        thread::sleep(Duration::from_secs(1));
        planes.last().unwrap().abort("disk full");
        for plane in &planes {
            let (failure, _) = awaited_failure(plane, stretched(Duration::from_secs(1)));
            assert_eq!(failure.to_string(), "rank 8 gave up: disk full");
        }
    }
}

#[test]
fn after_an_abort_all_ranks_agree_on_the_progress_and_join_again() {
    let planes = all(5);
    assert!(planes[0].verdict(Duration::from_millis(50)).is_err(), "a verdict without a failure");
    for plane in &planes {
        assert!(plane.completed().finish(40 + u64::from(plane.rank() % 3)));
    }
    planes[3].abort("disk full");
    let again = each(&planes, |plane| {
        let verdict = plane.verdict(SOON).unwrap();
        assert_eq!(verdict.cause.to_string(), "rank 3 gave up: disk full");
        assert_eq!((verdict.epoch, verdict.last_completed), (0, 40));
        assert_eq!((verdict.dead.as_slice(), verdict.survivors.len()), (&[][..], 5));
        assert!(!plane.completed().finish(50), "a call ended after the verdict");
        let plane = join(plane.regroup(&verdict).unwrap()).unwrap();
        plane.barrier(SOON).unwrap();
        plane
    });
    drop(planes);
    each(&again, |plane| plane.barrier(SOON).unwrap());
}

#[test]
fn an_abort_reaches_all_ranks_with_its_reason() {
    let planes = all(4);
    planes[3].abort("disk full");
    for plane in &planes {
        let (failure, _) = awaited_failure(plane, stretched(Duration::from_secs(1)));
        assert_eq!(failure.to_string(), "rank 3 gave up: disk full");
    }
    assert!(planes[1].barrier(SOON).unwrap_err().to_string().contains("disk full"));
}

#[test]
fn a_rank_that_takes_no_part_in_an_exchange_is_named_to_all() {
    let planes = all(3);
    let errors = each(&planes[..2], |plane| {
        let patience = if plane.rank() == 0 { Duration::from_secs(2) } else { SOON };
        plane.barrier(patience).unwrap_err().to_string()
    });
    assert!(errors[0].contains("rank 2 took no part"), "{}", errors[0]);
    assert!(errors[1].contains("rank 2 failed, says rank 0"), "{}", errors[1]);
}

/// Body of a child process: it joins, prints a line, and waits to die or to detect a death.
#[test]
fn child() {
    let Ok(task) = std::env::var(CHILD) else { return };
    let mut words = task.split(' ');
    let mut number = || words.next().unwrap().parse::<u32>().unwrap();
    let (rank, ranks) = (number(), number());
    let id = words.next().unwrap().parse::<UniqueId>().unwrap();
    let mut options = options(rank, ranks, &id);
    options.timing = ControlTiming::default();
    let plane = join(options).unwrap();
    plane.barrier(SOON).unwrap();
    assert!(plane.completed().finish(10 + u64::from(rank)));
    println!("\nready");
    if words.next() == Some("leaves") {
        return plane.close();
    }
    let (failure, _) = awaited_failure(&plane, SOON);
    println!("\nfailure {failure}");
    if task.ends_with("agrees") {
        agree(&plane);
    }
    // Ends like a program that exits at once: no destructor runs, and no farewell is sent.
    std::mem::forget(plane);
}

fn agree(plane: &ControlPlane) {
    for _ in 0..4 {
        let verdict = match plane.verdict(Duration::from_secs(6)) {
            Ok(verdict) => verdict,
            Err(error) => return println!("\nverdict none: {error}"),
        };
        let mut how = plane.regroup(&verdict).unwrap();
        how.limits.deadline = Duration::from_secs(3);
        // Another survivor may have died since. Then there is another verdict.
        let Ok(again) = join(how) else { continue };
        again.barrier(SOON).unwrap();
        let Verdict { dead, survivors, last_completed, .. } = &verdict;
        println!("\nverdict {dead:?} dead, {survivors:?} live, all did {last_completed}");
        println!("\nagain {} of {}", again.rank(), again.ranks());
        return;
    }
}

struct Ranks(Vec<(Child, BufReader<std::process::ChildStdout>)>);

impl Ranks {
    fn start(ranks: u32) -> Ranks {
        Ranks::doing(ranks, "waits")
    }

    fn doing(ranks: u32, what: &str) -> Ranks {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let endpoints = vec![Endpoint::new("127.0.0.1", port)];
        let id = UniqueId { endpoints, secret: Secret::from_bytes([3; 32]) };
        let children = (0..ranks).map(|rank| {
            let mut child = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "bootstrap::child", "--nocapture"])
                .env(CHILD, format!("{rank} {ranks} {} {what}", id.to_secret_string()))
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let output = BufReader::new(child.stdout.take().unwrap());
            (child, output)
        });
        let mut ranks = Ranks(children.collect());
        for index in 0..ranks.0.len() {
            assert_eq!(ranks.line(index, "ready"), "ready");
        }
        ranks
    }

    fn line(&mut self, index: usize, start: &str) -> String {
        let lines = self.0[index].1.by_ref().lines().map(Result::unwrap);
        let mut lines = lines.filter(|line| line.starts_with(start));
        lines.next().unwrap_or_else(|| panic!("rank {index} printed no {start:?}"))
    }

    fn signal(&self, index: usize, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.0[index].0);
        rustix::process::kill_process(pid, signal).unwrap();
    }
}

impl Drop for Ranks {
    #[expect(clippy::disallowed_methods, reason = "it was killed: the wait ends at once")]
    fn drop(&mut self) {
        for (child, _) in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[test]
fn a_killed_rank_is_named_by_each_survivor_within_two_seconds() {
    for victim in [0, 2, 3] {
        let mut ranks = Ranks::start(4);
        ranks.signal(victim, rustix::process::Signal::KILL);
        let start = Instant::now();
        for rank in (0..4).filter(|rank| *rank != victim) {
            let line = ranks.line(rank, "failure");
            let text = |reason| format!("failure {}", Failure { rank: victim as u32, reason });
            // On a busy machine, a survivor can go without a message from the victim for a while
            // before the connection closes. The survivor then doubts the death.
            let expected = [FailureReason::HungUp, FailureReason::ClosedInDoubt].map(text);
            assert!(expected.contains(&line), "{line}");
        }
        assert!(start.elapsed() < stretched(Duration::from_secs(2)), "{:?}", start.elapsed());
    }
}

#[test]
fn a_stopped_rank_is_named_by_each_survivor_within_4500_ms() {
    for victim in [0, 1] {
        let mut ranks = Ranks::start(3);
        ranks.signal(victim, rustix::process::Signal::STOP);
        let start = Instant::now();
        for rank in (0..3).filter(|rank| *rank != victim) {
            let line = ranks.line(rank, "failure");
            assert!(line.starts_with(&format!("failure rank {victim} has been silent")), "{line}");
        }
        assert!(start.elapsed() > Duration::from_secs(2), "{:?}", start.elapsed());
        assert!(start.elapsed() < stretched(Duration::from_millis(4500)), "{:?}", start.elapsed());
    }
}

#[test]
fn sixty_four_processes_join_on_a_small_machine() {
    let start = Instant::now();
    let mut ranks = Ranks::doing(64, "leaves");
    println!("64 processes joined and met at a barrier in {:?}", start.elapsed());
    for (child, _) in &mut ranks.0 {
        let start = Instant::now();
        while child.try_wait().unwrap().is_none() {
            assert!(start.elapsed() < SOON, "a rank does not end");
            thread::sleep(Duration::from_millis(5));
        }
        assert!(child.try_wait().unwrap().unwrap().success());
    }
}

#[test]
fn survivors_agree_and_meet_again_without_the_dead() {
    for victims in [&[0][..], &[2], &[0, 1]] {
        let mut ranks = Ranks::doing(5, "agrees");
        victims.iter().for_each(|rank| ranks.signal(*rank, rustix::process::Signal::KILL));
        let survivors: Vec<_> = (0..5).filter(|rank| !victims.contains(rank)).collect();
        for (place, rank) in survivors.iter().enumerate() {
            // Rank r has completed 10 + r operations. With two victims, the line ends with 11 if
            // rank 1 took part in an agreement before it died, else with 12. So the test checks
            // only the first digit.
            let line = ranks.line(*rank, "verdict");
            let verdict = format!("verdict {victims:?} dead, {survivors:?} live, all did 1");
            assert!(line.starts_with(&verdict), "{line}");
            let again = ranks.line(*rank, "again");
            assert_eq!(again, format!("again {place} of {}", survivors.len()));
        }
    }
}

#[test]
fn a_rank_that_wakes_too_late_learns_that_it_counts_as_dead() {
    let mut ranks = Ranks::doing(5, "agrees");
    ranks.signal(1, rustix::process::Signal::STOP);
    for rank in [0, 2, 3, 4] {
        assert_eq!(ranks.line(rank, "verdict"), "verdict [1] dead, [0, 2, 3, 4] live, all did 10");
        assert!(ranks.line(rank, "again").ends_with(" of 4"));
    }
    ranks.signal(1, rustix::process::Signal::CONT);
    let line = ranks.line(1, "verdict");
    assert!(line.starts_with("verdict none: this rank was declared dead by the others"), "{line}");
}
