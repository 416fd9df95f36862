//! Execution of a cell's job, with a fault in the middle.

use super::judge::{Expected, Failure, ended_ms, judge, ofi_ended_ms};
use super::rank::{PLAN, Plan, REPORT, Report, now_ms};
use super::{Cell, Fault, INCONCLUSIVE, PER_HOST, RANKS};
use ccl_core::types::{Collective, Rank};
use ccl_harness::netns::{Host, Network};
use ccl_harness::processes::{Ended, Processes, command, was_killed};
use ccl_harness::skip;
use ccl_harness::stranger;
use rustix::process::Signal;
use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

/// Time limit of each wait for a job: a job that takes longer counts as hanging.
pub(super) const LONG: Duration = Duration::from_secs(60);
const SECRET: &str = "00112233445566778899aabbccddeeff";
const PORT: u16 = 7200;
/// Silence after which a rank of the job counts as dead.
const DEAD_AFTER_MS: u64 = 2000;
/// Silence after which a rank counts as dead in a job with a short fault: a busy machine may
/// stretch [`MOMENT`] to seconds.
const PATIENT_DEAD_AFTER_MS: u64 = 20_000;
/// Duration of a short stop or a short cut; it is below [`DEAD_AFTER_MS`].
pub(super) const MOMENT: Duration = Duration::from_millis(500);
/// Sizes in bytes of socket buffers that fill quickly: minimum, default, maximum, as in `tcp_rmem`.
const SMALL_BUFFERS: &str = "4096 16384 16384";
/// Number of queued bytes at which a send queue counts as full with [`SMALL_BUFFERS`]. The number
/// is below the sizes of these buffers, because the kernel's own data fills some of their bytes.
const FULL_QUEUE_BYTES: u64 = 4000;
/// Number of transferred bytes that data connections reach, and control-plane connections do not.
const DATA_BYTES: u64 = 300_000;
/// Pause of a slow rank before each call.
const LATE_MS: u64 = 25;

/// Returns the arguments of `tc netem` for a fault that needs it, else `None`. Jobs with such a
/// fault use call sizes and timeouts for the guest (the virtual machine of `cargo xtask guest`).
pub(super) fn netem(fault: Fault) -> Option<&'static str> {
    match fault {
        Fault::Loss => Some("loss 1%"),
        Fault::Delay => Some("delay 50ms"),
        Fault::Reordering => Some("delay 10ms reorder 25%"),
        _ => None,
    }
}

/// Returns whether a rank of the job is slow.
fn is_slow(cell: &Cell) -> bool {
    matches!(cell.fault, Fault::FullSendBuffer | Fault::SlowReader)
}

/// Seed, and number of earlier runs of the cell.
pub(super) type Attempt = (u64, u32);

/// Random choices for a cell, determined by the seed.
pub(super) struct Draw {
    /// Delay of the fault after all ranks have completed their first round.
    pub(super) after: Duration,
    /// Rank that the fault hits.
    pub(super) victim: Rank,
    seed: u64,
    /// True if a reset of connections must find the job at work until ranks notice it.
    lasts: bool,
    /// Number of earlier inconclusive attempts; each makes the job last longer.
    before: u32,
}

impl Draw {
    pub(super) fn new(cell: &Cell, (seed, before): Attempt) -> Draw {
        let mut bits = seed;
        for byte in cell.name().bytes() {
            bits = (bits ^ u64::from(byte)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        }
        let after = Duration::from_millis(50 + (bits >> 8) % 350);
        let mut victim = (bits >> 40) as Rank % RANKS;
        if is_slow(cell) {
            // The first rank of a host: in a ring, it receives from the other host, thus over TCP.
            victim -= victim % PER_HOST;
        }
        Draw { after, victim, seed: bits >> 48, lasts: false, before }
    }

    fn victims_host(&self) -> usize {
        (self.victim / PER_HOST) as usize
    }
}

/// Transport of a job in network namespaces.
#[derive(Clone, Copy)]
pub(super) enum Over {
    /// Shared memory within a host, TCP between hosts.
    Tcp,
    /// A provider of libfabric.
    Libfabric(&'static str),
}

impl Over {
    /// Returns the longest time from a fault to the error of every survivor, in milliseconds.
    fn ended_ms(self, fault: Fault) -> u64 {
        match self {
            Over::Tcp => ended_ms(),
            Over::Libfabric(_) => ofi_ended_ms(fault),
        }
    }

    fn configure(self, command: &mut Command) {
        if let Over::Libfabric(provider) = self {
            command.env("FERROCCL_TRANSPORT", "ofi").env("FERROCCL_OFI_PROVIDER", provider);
            // The default: long, so that ranks must notice lost messages by other means.
            command.env("FERROCCL_TIMEOUT", "600s");
        }
    }
}

/// Runs cells with the same fault in one job, one after the other. Returns a short description of
/// the result, or an error that says what is wrong.
pub(super) fn run(cells: &[Cell], attempt: Attempt, over: Over) -> Result<String, String> {
    let cell = cells[0];
    let lasts = matches!(over, Over::Libfabric(_));
    let draw = Draw { lasts, ..Draw::new(&cell, attempt) };
    let network = Network::switched(3).ok_or("cannot make the network")?;
    prepare(&cell, &network, &draw)?;
    let in_guest = netem(cell.fault).is_some();
    let address = SocketAddr::new(network.hosts[0].ipv4(), PORT);
    let commands = commands(cells, &draw, address, in_guest).map(|(rank, mut command)| {
        over.configure(&mut command);
        network.hosts[(rank / PER_HOST) as usize].enter(&command)
    });
    let job = Processes::start(commands);
    await_fault(&cell, &draw, &job)?;
    let expected = inject(&cell, &network, &draw, &job, over)?;
    let ended = job.end(LONG);
    if cell.fault == Fault::Loss {
        let statistics: Vec<String> =
            network.hosts[..2].iter().map(Host::netem_statistics).collect();
        if statistics.iter().all(|text| text.contains("dropped 0,")) {
            return Err(format!("no packet was lost: the cell is inconclusive: {statistics:?}"));
        }
    }
    verdict(&expected, &draw, &ended)
}

/// Waits until all ranks have completed their first round.
pub(super) fn await_work(job: &Processes) {
    for rank in 0..RANKS as usize {
        job.await_text(rank, "working", LONG);
    }
}

/// Waits until all ranks work and the drawn delay has passed. Returns an error if the job has
/// already ended, unless the fault is one of `tc netem`: such a fault acts from the job's start.
pub(super) fn await_fault(cell: &Cell, draw: &Draw, job: &Processes) -> Result<(), String> {
    await_work(job);
    thread::sleep(draw.after);
    if netem(cell.fault).is_none() && has_ended(job) {
        return Err("the job ended before the fault: the cell is inconclusive".to_owned());
    }
    Ok(())
}

/// Fails if a rank has crashed, even if it did so after its report.
fn no_crash(expected: &Expected, ended: &[Ended]) -> Result<(), String> {
    let is_to_die = |rank: Rank| match expected {
        Expected::Fails(Failure { dead, outcasts, .. }) => {
            dead.contains(&rank) && !outcasts.contains(&rank)
        }
        Expected::Completes => false,
    };
    let crashed = (0..).zip(ended).find(|(rank, one)| {
        let is_expected = is_to_die(*rank) && was_killed(one);
        !one.status.success() && !is_expected
    });
    crashed.map_or(Ok(()), |(rank, one)| Err(format!("rank {rank} ended with {}", one.status)))
}

/// Returns a short description of the result, or an error with the output of all ranks.
pub(super) fn verdict(expected: &Expected, draw: &Draw, ended: &[Ended]) -> Result<String, String> {
    let reports: Vec<Option<Report>> = ended.iter().map(report).collect();
    let judged = no_crash(expected, ended).and_then(|()| judge(expected, &reports));
    judged.map_err(|error| {
        let outputs = ended.iter().enumerate();
        let outputs: String =
            outputs.map(|(rank, ended)| format!("\n--- rank {rank}: {}", ended.output)).collect();
        format!("{error} (drawn: rank {}, fault after {:?}){outputs}", draw.victim, draw.after)
    })
}

fn report(ended: &Ended) -> Option<Report> {
    let line = ended.output.lines().find_map(|line| line.strip_prefix(REPORT))?;
    Some(serde_json::from_str(line).unwrap())
}

/// Prepares the network for faults that last as long as the job.
fn prepare(cell: &Cell, network: &Network, draw: &Draw) -> Result<(), String> {
    if let Some(how) = netem(cell.fault) {
        return network.hosts[..2].iter().try_for_each(|host| host.netem(how));
    }
    let shrink = |host: &Host, names: &[&str]| {
        names.iter().for_each(|name| host.tune(&format!("net/ipv4/{name}"), SMALL_BUFFERS));
    };
    match cell.fault {
        Fault::FullSendBuffer => {
            network.hosts.iter().for_each(|host| shrink(host, &["tcp_wmem", "tcp_rmem"]));
        }
        Fault::SlowReader => shrink(&network.hosts[draw.victims_host()], &["tcp_rmem"]),
        _ => {}
    }
    Ok(())
}

/// Returns the commands of the job's ranks. The guest is slower, so its ranks use fewer call sizes.
pub(super) fn commands(
    cells: &[Cell],
    draw: &Draw,
    address: SocketAddr,
    in_guest: bool,
) -> impl Iterator<Item = (Rank, Command)> {
    let cell = &cells[0];
    let slow = is_slow(cell);
    let sizes = match (in_guest, slow) {
        (true, _) => vec![8, 100_000, 4096],
        (_, true) => vec![400_000, 8, 800_000],
        _ => vec![8, 4_000_000, 40, 100_000, 1_000_000, 4096],
    };
    let step = |cell: &Cell| (cell.collective.to_string(), cell.algorithm().to_owned());
    let steps: Vec<(String, String)> = cells.iter().map(step).collect();
    let duration = match cell.fault {
        Fault::Kill | Fault::LongStop | Fault::LongCut => 2 * LONG,
        Fault::Broken if draw.lasts => 2 * LONG,
        // The job ends after one round of each step.
        Fault::Loss | Fault::Delay | Fault::Reordering => Duration::ZERO,
        _ => (draw.after + MOMENT + Duration::from_millis(700)) * (1 << draw.before),
    };
    // In the guest, a short cut takes an RDMA device down; `dead_after_ms` is then also the time
    // after which the links of the device end.
    let dead_after_ms = match cell.fault {
        Fault::ShortStop => PATIENT_DEAD_AFTER_MS,
        Fault::ShortCut if !in_guest => PATIENT_DEAD_AFTER_MS,
        _ => DEAD_AFTER_MS,
    };
    let (seed, victim) = (draw.seed, draw.victim);
    (0..RANKS).map(move |rank| {
        let plan = Plan {
            steps: steps.clone(),
            seed,
            duration_ms: duration.as_millis() as u64,
            sizes: sizes.clone(),
            late_ms: if slow && rank == victim { LATE_MS } else { 0 },
        };
        let mut command = command("matrix");
        command
            .env(PLAN, serde_json::to_string(&plan).unwrap())
            .env("FERROCCL_RANK", rank.to_string())
            .env("FERROCCL_RANKS", RANKS.to_string())
            .env("FERROCCL_COMM_ID", address.to_string())
            .env("FERROCCL_SECRET", SECRET)
            .env("FERROCCL_HEARTBEAT", "200ms")
            .env("FERROCCL_TIMEOUT", if in_guest { "30s" } else { "5s" })
            .env("FERROCCL_DEAD_AFTER", format!("{dead_after_ms}ms"));
        (rank, command)
    })
}

/// Returns whether a rank has ended its work.
fn has_ended(job: &Processes) -> bool {
    (0..RANKS as usize).any(|rank| job.output(rank).contains(REPORT))
}

/// Injects the fault and returns the expected end of the job.
fn inject(
    cell: &Cell,
    network: &Network,
    draw: &Draw,
    job: &Processes,
    over: Over,
) -> Result<Expected, String> {
    let victim = draw.victim as usize;
    let host = &network.hosts[draw.victims_host()];
    match cell.fault {
        Fault::Kill | Fault::LongStop | Fault::LongCut => {
            let hit = || match signal_of(cell.fault) {
                Some(signal) => job.signal(victim, signal),
                None => host.link_down(),
            };
            return Ok(Expected::Fails(lasting(cell, draw, job, over.ended_ms(cell.fault), hit)));
        }
        Fault::ShortStop => {
            job.signal(victim, Signal::STOP);
            thread::sleep(MOMENT);
            job.signal(victim, Signal::CONT);
        }
        Fault::ShortCut => {
            host.link_down();
            thread::sleep(MOMENT);
            host.link_up();
        }
        Fault::Broken => {
            let (start, at_ms) = (Instant::now(), now_ms());
            let is_reset = resets(network)?;
            if matches!(over, Over::Libfabric(_)) {
                assert!(is_reset, "the kernel resets no connections any more");
                // A provider of libfabric loses what is under way on a connection that is reset.
                // An idle connection loses nothing, and the provider makes it anew.
                let mut last = Duration::ZERO;
                while !has_ended(job) && start.elapsed() < LONG {
                    let round = start.elapsed();
                    // Once the ranks are stuck, no connection carries data.
                    if resets(network).is_ok() {
                        last = round;
                    }
                }
                let within_ms = over.ended_ms(cell.fault) + last.as_millis() as u64;
                return Ok(Expected::Fails(lost_connections(cell, at_ms, within_ms)));
            }
        }
        Fault::FullSendBuffer => full_buffers(network, job)?,
        Fault::Stranger => strangers(network, job, draw, random)?,
        Fault::HalfOpen => strangers(network, job, draw, half_open)?,
        Fault::SlowReader => strangers(network, job, draw, slow_readers)?,
        // These faults are there from the beginning.
        Fault::Loss | Fault::Delay | Fault::Reordering => {}
    }
    Ok(Expected::Completes)
}

/// Returns the signal of a lasting fault of a process; `None` for other faults.
pub(super) fn signal_of(fault: Fault) -> Option<Signal> {
    match fault {
        Fault::Kill => Some(Signal::KILL),
        Fault::LongStop => Some(Signal::STOP),
        _ => None,
    }
}

/// Returns how often a rank can complete a collective before the slowest rank does.
fn lead_max(cell: &Cell) -> u64 {
    if cell.collective == Collective::Broadcast { 8 } else { 1 }
}

/// Returns the failure that ranks must report if connections end while all ranks stay alive.
fn lost_connections(cell: &Cell, at_ms: u64, within_ms: u64) -> Failure {
    Failure {
        at_ms,
        within_ms,
        dead: Vec::new(),
        outcasts: Vec::new(),
        woken_ms: at_ms,
        lead_max: lead_max(cell),
    }
}

/// Injects a fault that ranks must notice, by calling `hit`, and returns the failure that they must
/// report.
pub(super) fn lasting(
    cell: &Cell,
    draw: &Draw,
    job: &Processes,
    within_ms: u64,
    hit: impl FnOnce(),
) -> Failure {
    let lost = lost_connections(cell, now_ms(), within_ms);
    let mut failure = Failure { dead: vec![draw.victim], ..lost };
    hit();
    match cell.fault {
        Fault::Kill => {}
        Fault::LongStop => {
            for rank in (0..RANKS).filter(|rank| *rank != draw.victim) {
                job.await_text(rank as usize, REPORT, LONG);
            }
            failure.outcasts = failure.dead.clone();
            failure.woken_ms = now_ms();
            job.signal(draw.victim as usize, Signal::CONT);
        }
        // A long cut: the half with the lowest rank goes on, no matter which host is cut off.
        _ => {
            failure.dead = (PER_HOST..RANKS).collect();
            failure.outcasts = failure.dead.clone();
        }
    }
    failure
}

/// Resets the data connections a few times, including those that a recovery has made. Returns
/// whether the kernel can do so.
fn resets(network: &Network) -> Result<bool, String> {
    let (mut found, mut reset) = (0, 0);
    for host in network.hosts[..2].iter().cycle().take(6) {
        let (there, gone) = host.reset_connections(DATA_BYTES);
        (found, reset) = (found + there, reset + gone);
        thread::sleep(MOMENT / 6);
    }
    if found == 0 {
        return Err("no connection carried data: the cell is inconclusive".to_owned());
    }
    if reset == 0 {
        skip("this kernel cannot reset another process's connections: it lacks INET_DIAG_DESTROY");
    }
    Ok(reset > 0)
}

/// Returns whether this kernel can reset the connections of another process.
pub(super) fn may_reset(network: &Network) -> bool {
    let host = &network.hosts[0];
    let address = SocketAddr::new(host.ipv4(), 0);
    let connect = move || {
        let listener = TcpListener::bind(address).unwrap();
        let address = listener.local_addr().unwrap();
        let mut stream = TcpStream::connect_timeout(&address, LONG).unwrap();
        stream.write_all(b"x").unwrap();
        (listener, stream)
    };
    let _connection = host.spawn(connect).join().unwrap();
    host.reset_connections(1).1 > 0
}

/// Waits until a send queue is full. Returns an error if the job ends first.
fn full_buffers(network: &Network, job: &Processes) -> Result<(), String> {
    let start = Instant::now();
    let mut most = 0;
    while start.elapsed() < LONG && !has_ended(job) {
        most = network.hosts.iter().map(Host::send_queue_bytes).max().unwrap_or(0).max(most);
        if most >= FULL_QUEUE_BYTES {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(2));
    }
    Err(format!("no send queue was longer than {most} bytes: the cell is inconclusive"))
}

/// Function that connects from a host to each of the addresses, as a stranger (a client that breaks
/// the protocol). The seed determines the stranger's choices. Returns the number of connections.
type Disturb = fn(&Host, Vec<SocketAddr>, u64) -> u32;

/// Disturbs all listeners of the first two hosts from the third host.
fn strangers(
    network: &Network,
    job: &Processes,
    draw: &Draw,
    disturb: Disturb,
) -> Result<(), String> {
    let hosts = network.hosts[..2].iter();
    let listens = |host: &Host| {
        let address = host.ipv4();
        host.listening().into_iter().map(move |port| SocketAddr::new(address, port))
    };
    let addresses: Vec<SocketAddr> = hosts.flat_map(listens).collect();
    let connected = disturb(&network.hosts[2], addresses.clone(), draw.seed);
    if connected < RANKS && has_ended(job) {
        return Err(format!("the job ended before the strangers came: {INCONCLUSIVE}"));
    }
    if connected < RANKS {
        return Err(format!("strangers got only {connected} connections to {addresses:?}"));
    }
    Ok(())
}

fn random(from: &Host, addresses: Vec<SocketAddr>, seed: u64) -> u32 {
    let noise = move || {
        let each = addresses.iter().map(|address| stranger::random(*address, 40, 400, seed));
        each.map(|noise| noise.connected).sum()
    };
    from.spawn(noise).join().unwrap()
}

/// Leaves connections half open until the job ends: the network interface of `from` stays down.
fn half_open(from: &Host, addresses: Vec<SocketAddr>, seed: u64) -> u32 {
    let says = seed.to_le_bytes();
    let says = &says[..(seed % 8) as usize];
    let streams: Vec<TcpStream> = stranger::half_open(from, &addresses, says);
    streams.len() as u32
}

fn slow_readers(from: &Host, addresses: Vec<SocketAddr>, seed: u64) -> u32 {
    let readers = addresses.into_iter().map(|address| {
        from.spawn(move || {
            let says = seed.to_le_bytes();
            stranger::slow_reader(address, &says, Duration::from_millis(20), MOMENT);
        })
    });
    let readers: Vec<_> = readers.collect();
    readers.into_iter().map(|reader| u32::from(reader.join().is_ok())).sum()
}

#[test]
fn a_rank_that_crashes_is_rejected() {
    let failure = Failure {
        at_ms: 0,
        within_ms: 0,
        dead: vec![1, 2],
        outcasts: vec![2],
        woken_ms: 0,
        lead_max: 0,
    };
    let end = |rank: usize, status: i32| {
        let statuses = (0..4).map(|of| if of == rank { status } else { 0 });
        let ended = statuses.map(ExitStatus::from_raw);
        ended.map(|status| Ended { status, output: String::new() }).collect::<Vec<Ended>>()
    };
    let fails = Expected::Fails(failure);
    // Statuses as `wait` reports them: signals, and the exit code 101 of a panic.
    let (killed, crashed, panicked) = (9, 11, 101 << 8);
    assert_eq!(no_crash(&fails, &end(1, killed)), Ok(()));
    for (rank, status) in [(0, killed), (2, killed), (1, crashed), (3, crashed), (0, panicked)] {
        let error = no_crash(&fails, &end(rank, status)).unwrap_err();
        assert!(error.starts_with(&format!("rank {rank} ended with ")), "{error}");
    }
    assert!(no_crash(&Expected::Completes, &end(1, killed)).is_err());
}
