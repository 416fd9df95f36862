//! Failures of ranks whose processes are killed or stopped. The survivors report the same failure,
//! shrink and go on. A rank that was declared dead does the survivors no harm when it wakes.

use crate::recovery::PLACES;
use ccl_harness::full;
use ccl_harness::netns::Network;
use ccl_harness::processes::{Case, Ended, Processes, command, say, was_killed};
use ccl_harness::stretched;
use ferroccl::{Communicator, Config, Error, Reduction};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, Signal, getpid, pidfd_getfd, pidfd_open};
use std::fs::{self, File};
use std::io::Write;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

pub(crate) const CASES: &[Case] = &[
    ("survive", survive),
    ("agree", agree),
    ("parts", parts),
    ("replace", replace),
    ("enter", enter),
];

const LONG: Duration = Duration::from_secs(100);
/// Promised limit: all other ranks end their calls within this time after a death.
const ENDED: Duration = Duration::from_secs(5);
/// Variable with the behaviour of a rank; see [`after_failure`] and [`agree`].
const ROLE: &str = "FERROCCL_TEST_ROLE";
/// Variable with the number of elements of a call and the number of calls after the last failure.
/// For [`enter`], it has the newcomer's rank, the number of ranks and the invitation's id instead.
const WORK: &str = "FERROCCL_TEST_WORK";
/// Variable with the number of failures; the survivors shrink after each.
const ROUNDS: &str = "FERROCCL_TEST_ROUNDS";
const SCRIBBLE: u8 = 0xee;

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_default()
}

/// Runs an all_reduce of numbers that depend on the rank, the turn and the index, and checks every
/// sum.
fn turn(c: &mut Communicator, buffer: &mut [u64], turn: u64) -> Result<(), Error> {
    let ranks = u64::from(c.ranks());
    for (at, value) in buffer.iter_mut().enumerate() {
        *value = u64::from(c.rank()) * 1000 + turn + at as u64;
    }
    c.all_reduce_in_place(buffer, Reduction::Sum)?;
    for (at, value) in buffer.iter().enumerate() {
        let wanted = ranks * (ranks - 1) / 2 * 1000 + ranks * (turn + at as u64);
        assert_eq!(*value, wanted, "element {at} in turn {turn}");
    }
    Ok(())
}

fn said(error: &Error) -> String {
    let (Error::RankFailed { reason, .. } | Error::Broken { reason, .. }) = error else {
        panic!("{error:?}");
    };
    let last = error.last_completed().map_or("none".to_owned(), |last| last.to_string());
    format!("rank {} last {last}: {reason}", error.failed_rank().unwrap())
}

/// Works until a rank fails, prints the failure, shrinks and goes on, for [`ROUNDS`] failures.
fn survive() -> Result<(), Error> {
    let mut c = Communicator::from_environment()?;
    let work = variable(WORK);
    let (count, turns) = work.split_once(' ').unwrap();
    let (count, turns): (usize, u64) = (count.parse().unwrap(), turns.parse().unwrap());
    let rounds: u32 = variable(ROUNDS).parse().unwrap_or(1);
    // Broken communicators, each with its round, this rank's shared memory and the calls' buffer.
    let mut old = Vec::new();
    for round in 0..rounds {
        let mut shared = c.alloc::<u8>(4096)?;
        shared.write(0, &[round as u8; 4096])?;
        let mut buffer = vec![0; count];
        let mut number = 0;
        let first = loop {
            match turn(&mut c, &mut buffer, number) {
                Ok(()) => number += 1,
                Err(error) => break error,
            }
            if number == 20 {
                say(&format!("working {round}"));
            }
        };
        say(&format!("first {round} {}", said(&first)));
        let (later, again) = (c.barrier().unwrap_err(), c.split(0, 0).unwrap_err());
        assert_eq!(later.to_string(), again.to_string());
        say(&format!("later {round} {}", said(&later)));
        if first.to_string().contains("declared dead") {
            scribble();
            say("scribbled");
            return Err(first);
        }
        after_failure(round, &c);
        buffer.fill(0x5a5a);
        let begun = Instant::now();
        let next = c.shrink()?;
        say(&format!(
            "shrunk {round} {} of {} in {:?}",
            next.rank(),
            next.ranks(),
            begun.elapsed()
        ));
        // Half of the ranks keep the broken communicator, the others drop it at once.
        if c.rank().is_multiple_of(2) {
            old.push((round, c, shared, buffer));
        }
        c = next;
    }
    let mut buffer = vec![0; count];
    for number in 0..turns {
        turn(&mut c, &mut buffer, number)?;
    }
    for (round, _, shared, buffer) in &old {
        assert!(buffer.iter().all(|value| *value == 0x5a5a), "a buffer was written after its call");
        let mut bytes = [0; 4096];
        shared.read(0, &mut bytes)?;
        let own = bytes.iter().all(|byte| *byte == *round as u8);
        assert!(own || bytes.iter().all(|byte| *byte == SCRIBBLE), "{:?}", &bytes[..8]);
    }
    say(&format!("survived as {} of {}", c.rank(), c.ranks()));
    c.barrier()
}

/// Dies or sleeps after the first failure, if the rank's [`ROLE`] is `die` or `slow`.
fn after_failure(round: u32, c: &Communicator) {
    match variable(ROLE).as_str() {
        _ if round > 0 => {}
        // Dies by SIGKILL before or while the others shrink.
        "die" => {
            c.agree(LONG).unwrap();
            rustix::process::kill_process(getpid(), Signal::KILL).unwrap();
        }
        "slow" => std::thread::sleep(Duration::from_secs(1)),
        _ => {}
    }
}

/// Overwrites everything that this process shares with others: mapped memory and sockets.
fn scribble() {
    let memory = File::options().write(true).open("/proc/self/mem").unwrap();
    let mut bytes = 0;
    for line in fs::read_to_string("/proc/self/maps").unwrap().lines() {
        let mut words = line.split_whitespace();
        let (range, rights) = (words.next().unwrap(), words.next().unwrap());
        // Spares the status memory: only `ferroccl status` reads it.
        if !line.contains("memfd:")
            || line.contains("ferroccl-status")
            || !rights.starts_with("rw-s")
        {
            continue;
        }
        let (start, end) = range.split_once('-').unwrap();
        let [start, end] = [start, end].map(|number| u64::from_str_radix(number, 16).unwrap());
        let filled = vec![SCRIBBLE; (end - start) as usize];
        memory.write_all_at(&filled, start).unwrap();
        bytes += filled.len();
    }
    let own = pidfd_open(getpid(), PidfdFlags::empty()).unwrap();
    let mut sockets = 0;
    for entry in fs::read_dir("/proc/self/fd").unwrap().flatten() {
        let target = fs::read_link(entry.path()).unwrap_or_default();
        if !target.to_string_lossy().starts_with("socket:") {
            continue;
        }
        let number = entry.file_name().to_string_lossy().parse().unwrap();
        let copy = pidfd_getfd(&own, number, PidfdGetfdFlags::empty()).unwrap();
        let mut stream = TcpStream::from(copy);
        sockets += usize::from(stream.write(&[SCRIBBLE; 300]).is_ok());
    }
    say(&format!("wrote {bytes} bytes of memory and to {sockets} sockets"));
}

/// Waits in a barrier until a failure, and then in an agreement until another thread aborts it.
fn agree() -> Result<(), Error> {
    let mut c = Communicator::from_environment()?;
    say("working 0");
    if variable(ROLE) == "abort" {
        std::thread::sleep(Duration::from_secs(1));
        c.abort_handle().abort("first");
    }
    let handle = c.abort_handle();
    let error = c.barrier().unwrap_err();
    say(&format!("first 0 {}", said(&error)));
    let aborter = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        handle.abort("the user pressed a key");
    });
    let begun = Instant::now();
    let error = c.agree(LONG).unwrap_err();
    aborter.join().unwrap();
    assert!(begun.elapsed() < stretched(Duration::from_secs(1)), "{:?}", begun.elapsed());
    Err(error)
}

/// Splits the ranks by parity, so that each part spans hosts, and then splits each part again.
fn parts() -> Result<(), Error> {
    let mut c = Communicator::from_environment()?;
    let rank = c.rank();
    // The keys fall as the ranks rise, so the member with the highest rank becomes rank 0 of its
    // part. Rank 0 itself is in the part of the even ranks only.
    let mut part = c.split(i64::from(rank % 2), -i64::from(rank))?.unwrap();
    let mut members = vec![0; part.ranks() as usize];
    part.all_gather(&[rank], &mut members)?;
    say(&format!("part {members:?} over {}", part.transport()));
    let mut same = part.split(0, 0)?.unwrap();
    same.barrier()?;
    c.barrier()
}

/// Works until ranks fail, invites one newcomer per failed rank, and goes on with the newcomers.
fn replace() -> Result<(), Error> {
    let mut c = Communicator::from_environment()?;
    let mut buffer = vec![0; 5000];
    let mut number = 0;
    while turn(&mut c, &mut buffer, number).is_ok() {
        number += 1;
        if number == 20 {
            say("working 0");
        }
    }
    let mut rest = c.shrink()?;
    let invitation = rest.invite(c.ranks() - rest.ranks())?;
    if rest.rank() == 0 {
        say(&format!("invites {}", invitation.id.to_secret_string()));
    }
    work_on(rest.grow(invitation)?)
}

/// Joins as a newcomer, with rank, number of ranks and id from the environment.
fn enter() -> Result<(), Error> {
    let work = variable(WORK);
    let words: Vec<&str> = work.split(' ').collect();
    let [rank, ranks, id] = words[..] else { panic!("{work:?}") };
    let id = id.parse().unwrap();
    work_on(Communicator::join(
        rank.parse().unwrap(),
        ranks.parse().unwrap(),
        id,
        Config::default(),
    )?)
}

fn work_on(mut c: Communicator) -> Result<(), Error> {
    let mut buffer = vec![0; 5000];
    for number in 0..300 {
        turn(&mut c, &mut buffer, number)?;
    }
    say(&format!("survived as {} of {} over {}", c.rank(), c.ranks(), c.transport()));
    c.barrier()
}

struct Job {
    ranks: Processes,
    n: usize,
}

impl Job {
    fn start(
        n: u32,
        host: fn(u32) -> u32,
        more: impl Fn(u32) -> Vec<(&'static str, &'static str)>,
    ) -> Job {
        let ranks = Processes::ranks(n, "survive", |rank, command| {
            command
                .env("FERROCCL_HOSTID", format!("host {}", host(rank)))
                .env("FERROCCL_SOCKET_IFNAME", "127.0.0.1")
                .env(WORK, "5000 300")
                .envs(more(rank));
        });
        let job = Job { ranks, n: n as usize };
        job.all(0..job.n, "working 0", LONG);
        job
    }

    fn all(&self, of: impl IntoIterator<Item = usize>, text: &str, within: Duration) {
        of.into_iter().for_each(|rank| self.ranks.await_text(rank, text, within));
    }

    fn but(&self, gone: &[usize]) -> Vec<usize> {
        (0..self.n).filter(|rank| !gone.contains(rank)).collect()
    }
}

/// Returns the rest of the line that begins with `start`.
fn line<'a>(ended: &'a Ended, start: &str) -> &'a str {
    let found = ended.output.lines().find_map(|line| line.strip_prefix(start));
    found.unwrap_or_else(|| panic!("no line begins with {start:?}: {}", ended.output))
}

/// Checks that these ranks report the same failure, in their first failed call and in later calls.
fn say_the_same(ended: &[Ended], who: &[usize], round: u32, victim: usize) {
    let all: Vec<_> =
        who.iter().map(|rank| line(&ended[*rank], &format!("later {round} "))).collect();
    for (rank, later) in who.iter().zip(&all) {
        assert_eq!(*later, all[0]);
        assert_eq!(line(&ended[*rank], &format!("first {round} ")), *later);
        assert!(later.starts_with(&format!("rank {victim} last ")), "{later}");
        assert!(!later.contains("last none"), "{later}");
    }
}

fn survived(ended: &[Ended], who: &[usize]) {
    for (place, rank) in who.iter().enumerate() {
        assert!(ended[*rank].status.success(), "rank {rank}: {}", ended[*rank].output);
        assert_eq!(line(&ended[*rank], "survived as "), format!("{place} of {}", who.len()));
    }
}

#[test]
fn survivors_of_a_killed_rank_go_on() {
    for (_, host) in PLACES {
        for victim in [0, 2] {
            let job = Job::start(4, host, |_| Vec::new());
            let others = job.but(&[victim]);
            job.ranks.signal(victim, Signal::KILL);
            job.all(others.clone(), "first 0", stretched(ENDED));
            let ended = job.ranks.end(LONG);
            assert!(was_killed(&ended[victim]));
            say_the_same(&ended, &others, 0, victim);
            survived(&ended, &others);
        }
    }
}

/// Rank 0 fails first. The second failure is that of rank 2, which is rank 1 after the shrink.
#[test]
fn survivors_of_two_failures_go_on() {
    for (_, host) in PLACES {
        let job = Job::start(4, host, |_| vec![(ROUNDS, "2")]);
        job.ranks.signal(0, Signal::KILL);
        job.all([1, 2, 3], "working 1", LONG);
        job.ranks.signal(2, Signal::KILL);
        let ended = job.ranks.end(LONG);
        say_the_same(&ended, &[1, 2, 3], 0, 0);
        say_the_same(&ended, &[1, 3], 1, 1);
        survived(&ended, &[1, 3]);
    }
}

/// A survivor dies before or while the others shrink. They go on without it, whatever its rank.
#[test]
fn a_survivor_that_dies_in_a_shrink_is_left_behind() {
    let places = if full() { PLACES.len() } else { 1 };
    for (_, host) in PLACES.into_iter().take(places) {
        for second in [0, 1, 3] {
            let roles = move |rank| match rank == second {
                true => vec![(ROLE, "die")],
                false if rank == 1 => vec![(ROLE, "slow")],
                false => Vec::new(),
            };
            let job = Job::start(4, host, roles);
            job.ranks.signal(2, Signal::KILL);
            let killed = Instant::now();
            let others = job.but(&[2, second as usize]);
            job.all(others.clone(), "shrunk 0", stretched(Duration::from_secs(10)));
            assert!(
                killed.elapsed() < stretched(Duration::from_secs(10)),
                "{:?}",
                killed.elapsed()
            );
            let ended = job.ranks.end(LONG);
            assert!(was_killed(&ended[second as usize]));
            survived(&ended, &others);
        }
    }
}

const SHORT_LIVES: [(&str, &str); 2] =
    [("FERROCCL_HEARTBEAT", "100ms"), ("FERROCCL_DEAD_AFTER", "1s")];

/// A stopped rank is declared dead. It wakes while the survivors work, goes on with its work, and
/// then overwrites everything that it shared with them.
#[test]
fn a_rank_that_wakes_harms_nobody() {
    let places = if full() { PLACES.len() } else { 1 };
    for ((transport, host), victim) in PLACES.into_iter().zip([0, 3, 0]).take(places) {
        let long = |_| [&SHORT_LIVES[..], &[(WORK, "50000 4000")]].concat();
        let job = Job::start(4, host, long);
        let others = job.but(&[victim]);
        job.ranks.signal(victim, Signal::STOP);
        job.all(others.clone(), "shrunk 0", stretched(Duration::from_secs(10)));
        job.ranks.signal(victim, Signal::CONT);
        job.ranks.await_text(victim, "scribbled", stretched(ENDED));
        let at_work = others.iter().filter(|o| !job.ranks.output(**o).contains("survived"));
        assert_eq!(at_work.count(), 3, "number of survivors at work when the rank wakes");
        let ended = job.ranks.end(LONG);
        say_the_same(&ended, &others, 0, victim);
        survived(&ended, &others);
        let error = ended[victim].error();
        assert!(error.contains("this rank was declared dead by the others"), "{error}");
        let later = line(&ended[victim], "later 0 ");
        assert!(later.contains("declared dead"), "{later}");
        let wrote = line(&ended[victim], "wrote ");
        assert_eq!(wrote.starts_with("0 "), transport == "tcp", "{wrote}");
        assert!(!wrote.contains("to 0 sockets"), "{wrote}");
    }
}

/// Rank 2 is stopped, so that no agreement is possible before it is declared dead. An abort ends
/// the wait.
#[test]
fn an_abort_ends_an_agreement() {
    let ranks = Processes::ranks(3, "agree", |rank, command| {
        command.env(ROLE, if rank == 1 { "abort" } else { "" });
        // This time is far longer than the test takes: no rank is declared dead.
        command.env("FERROCCL_DEAD_AFTER", "60s");
    });
    (0..3).for_each(|rank| ranks.await_text(rank, "working 0", LONG));
    ranks.signal(2, Signal::STOP);
    for rank in [0, 1] {
        ranks.await_text(rank, "error: ", LONG);
        let error = ranks.output(rank);
        assert!(
            error.contains(&format!("rank {rank} gave up after the failure: the user")),
            "{error}"
        );
    }
    ranks.signal(2, Signal::KILL);
    ranks.end(LONG);
}

/// Starts `n` ranks of a case, two per host. They join at `ip`, an address of the first host.
fn on_hosts(network: &Network, n: u32, case: &str, ip: IpAddr) -> Processes {
    let address = SocketAddr::new(ip, 7100).to_string();
    Processes::ranks_at(&address, n, case, |rank, mut command| {
        command.env(WORK, "5000 300");
        network.hosts[rank as usize / 2].enter(&command)
    })
}

/// Parts of a communicator connect across hosts, whether or not they contain the communicator's
/// rank 0. Each part is led by its member with the highest rank in the communicator.
#[test]
fn parts_of_a_communicator_connect_across_hosts() {
    for ipv6 in [false, true] {
        let Some(network) = Network::switched(2) else { return };
        let first = &network.hosts[0];
        let ip = if ipv6 { first.ipv6() } else { first.ipv4() };
        let ranks = on_hosts(&network, 4, "parts", ip);
        for (rank, ended) in ranks.end(LONG).iter().enumerate() {
            assert!(ended.status.success(), "rank {rank}: {}", ended.output);
            let members = if rank % 2 == 0 { "[2, 0]" } else { "[3, 1]" };
            assert_eq!(line(ended, "part "), format!("{members} over tcp"));
        }
    }
}

/// Both ranks of a host die, and processes on a new host replace them.
#[test]
fn newcomers_of_another_host_replace_the_dead() {
    let Some(network) = Network::switched(3) else { return };
    let ranks = on_hosts(&network, 4, "replace", network.hosts[0].ipv4());
    (0..4).for_each(|rank| ranks.await_text(rank, "working 0", LONG));
    for victim in [2, 3] {
        ranks.signal(victim, Signal::KILL);
    }
    ranks.await_text(0, "invites ", LONG);
    let id =
        ranks.output(0).lines().find_map(|line| Some(line.strip_prefix("invites ")?.to_owned()));
    let id = id.unwrap();
    let newcomers = Processes::start((2..4).map(|rank| {
        let mut command = command("enter");
        command.env(WORK, format!("{rank} 4 {id}"));
        network.hosts[2].enter(&command)
    }));
    let (old, new) = (ranks.end(LONG), newcomers.end(LONG));
    let now = old[..2].iter().chain(&new);
    for (rank, ended) in now.enumerate() {
        assert!(ended.status.success(), "rank {rank}: {}", ended.output);
        assert_eq!(line(ended, "survived as "), format!("{rank} of 4 over shm+tcp"));
    }
}

/// Survivors go on over two hosts of a network after the death of all ranks on rank 0's host.
#[test]
fn survivors_go_on_between_hosts() {
    let Some(network) = Network::switched(3) else { return };
    let ranks = on_hosts(&network, 6, "survive", network.hosts[0].ipv4());
    (0..6).for_each(|rank| ranks.await_text(rank, "working 0", LONG));
    for victim in [0, 1] {
        ranks.signal(victim, Signal::KILL);
    }
    survived(&ranks.end(LONG), &[2, 3, 4, 5]);
}
