//! Test networks: hosts communicate, links can be taken down, the traffic of each link is counted,
//! strangers disturb services, and nothing is left behind.

use ccl_harness::netns::{Host, Network, Traffic};
use ccl_harness::processes::{Case, Processes, command, say};
use ccl_harness::skip;
use ccl_harness::{config_with, stranger};
use ferroccl::bootstrap::{Join, Listening, Reach};
use ferroccl::communicator::{Call, Explanation};
use ferroccl::{Collective, Communicator, DataType, Error, NetworkCheck, Reduction};
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

const ADDRESS: &str = "FERROCCL_TEST_ADDRESS";
/// Variable that makes a test fail, instead of being skipped, if `tc netem` does not work.
const NETEM: &str = "FERROCCL_TEST_NETEM";
const PORT: u16 = 7000;
const WITHIN: Duration = Duration::from_secs(60);
const PAYLOAD_BYTES: usize = 1 << 20;

/// Cases that processes of this module run.
pub(crate) const CASES: &[Case] = &[("echo", echo), ("talk", talk), ("keep network", keep_network)];

fn address_of_case() -> SocketAddr {
    std::env::var(ADDRESS).unwrap().parse().unwrap()
}

/// Accepts one connection and sends its bytes back.
fn echo() -> Result<(), Error> {
    let listener = TcpListener::bind(address_of_case()).unwrap();
    say("listening");
    serve(&listener.accept().unwrap().0);
    Ok(())
}

/// Sends received bytes back until the other side closes.
fn serve(mut stream: &TcpStream) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        stream.write_all(&buffer[..count]).unwrap();
    }
}

/// Sends the payload to [`echo`] and checks that it comes back unchanged.
fn talk() -> Result<(), Error> {
    let mut stream = connect(address_of_case());
    exchange(&mut stream, PAYLOAD_BYTES);
    Ok(())
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect_timeout(&address, WITHIN).unwrap();
    stream.set_read_timeout(Some(WITHIN)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

fn exchange(stream: &mut TcpStream, bytes: usize) {
    let payload: Vec<u8> = (0..bytes).map(|i| (i ^ (i >> 8) ^ (i >> 16)) as u8).collect();
    let mut writer = stream.try_clone().unwrap();
    let sent = payload.clone();
    let writing = thread::spawn(move || writer.write_all(&sent).unwrap());
    let mut back = vec![0; bytes];
    stream.read_exact(&mut back).unwrap();
    writing.join().unwrap();
    assert!(back == payload, "the payload that came back differs from the one that was sent");
}

/// Makes a network with a process in it, prints the ids of its namespaces and of the process, and
/// waits to be killed.
fn keep_network() -> Result<(), Error> {
    let Some(network) = Network::switched(2) else { return Ok(()) };
    let mut sleep = std::process::Command::new("sleep");
    let inside = Processes::start([network.hosts[0].enter(sleep.arg("600"))]);
    for host in &network.hosts {
        say(&format!("namespace {}", host.namespace()));
    }
    say(&format!("process {}", inside.id(0)));
    say("network made");
    thread::sleep(WITHIN);
    Ok(())
}

fn there(to: IpAddr) -> SocketAddr {
    SocketAddr::new(to, PORT)
}

/// Runs two processes, which exchange the payload. Returns the traffic of each host's link.
fn processes_talk(first: &Host, second: &Host, address: IpAddr) -> [Traffic; 2] {
    let before = [first, second].map(Host::traffic);
    let on = |host: &Host, case: &str| {
        let mut command = host.enter(&command(case));
        command.env(ADDRESS, there(address).to_string());
        Processes::start([command])
    };
    let server = on(first, "echo");
    server.await_text(0, "listening", WITHIN);
    let client = on(second, "talk");
    for ended in [client.end(WITHIN).remove(0), server.end(WITHIN).remove(0)] {
        assert!(ended.status.success() && ended.output.contains("\nwell"), "{}", ended.output);
    }
    let after = [first, second].map(Host::traffic);
    [0, 1].map(|i| Traffic {
        received_bytes: after[i].received_bytes - before[i].received_bytes,
        sent_bytes: after[i].sent_bytes - before[i].sent_bytes,
    })
}

/// Checks that the traffic is the payload and its headers, and not much more.
fn assert_counted(traffic: Traffic) {
    for bytes in [traffic.received_bytes, traffic.sent_bytes] {
        let payload = PAYLOAD_BYTES as u64;
        assert!(bytes > payload && bytes < payload + payload / 4, "{traffic:?}");
    }
}

#[test]
fn two_processes_on_two_hosts_talk_and_every_byte_is_counted() {
    let Some(network) = Network::back_to_back() else { return };
    let [a, b] = network.hosts.as_slice() else { unreachable!() };
    for address in [a.ipv4(), a.ipv6()] {
        processes_talk(a, b, address).into_iter().for_each(assert_counted);
    }
}

#[test]
fn a_switch_sends_traffic_only_to_its_destination() {
    let Some(network) = Network::switched(3) else { return };
    let bystander = network.hosts[1].traffic();
    for address in [network.hosts[2].ipv4(), network.hosts[2].ipv6()] {
        processes_talk(&network.hosts[2], &network.hosts[0], address)
            .into_iter()
            .for_each(assert_counted);
    }
    let others = network.hosts[1].traffic().received_bytes - bystander.received_bytes;
    assert!(others < 64 << 10, "{others} bytes reached a host that nobody talked to");
}

/// Two networks with equal addresses are separate.
#[test]
fn networks_with_equal_addresses_are_separate() {
    let Some(one) = Network::back_to_back() else { return };
    let Some(two) = Network::back_to_back() else { return };
    let target = there(one.hosts[0].ipv4());
    let _server = echoing(&one.hosts[0], target);
    let reaches = move || TcpStream::connect_timeout(&target, Duration::from_secs(2)).is_ok();
    assert!(one.hosts[1].spawn(reaches).join().unwrap());
    assert!(!two.hosts[1].spawn(reaches).join().unwrap());
}

/// Starts a thread on `host` that accepts one connection and sends its bytes back. The thread
/// listens before this function returns.
fn echoing(host: &Host, address: SocketAddr) -> JoinHandle<()> {
    let (sender, listening) = mpsc::channel();
    let thread = host.spawn(move || {
        let listener = TcpListener::bind(address).unwrap();
        sender.send(()).unwrap();
        serve(&listener.accept().unwrap().0);
    });
    listening.recv_timeout(WITHIN).unwrap();
    thread
}

fn connected(from: &Host, to: &Host, address: IpAddr) -> (JoinHandle<()>, TcpStream) {
    let server = echoing(to, there(address));
    let client = from.spawn(move || connect(there(address)));
    (server, client.join().unwrap())
}

#[test]
fn traffic_stops_while_a_link_is_down_and_then_goes_on() {
    let Some(network) = Network::switched(3) else { return };
    let [a, b, c] = network.hosts.as_slice() else { unreachable!() };
    for address in [a.ipv4(), a.ipv6()] {
        let (server, mut stream) = connected(b, a, address);
        exchange(&mut stream, 1000);
        a.link_down();
        let before = a.traffic();
        stream.write_all(b"ping").unwrap();
        stream.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
        let mut answer = [0; 4];
        assert!(stream.read_exact(&mut answer).is_err(), "an answer came over a link that is down");
        assert_eq!(a.traffic(), before);
        // The other links are not affected.
        let (others, mut other) = connected(c, b, b.ipv4());
        exchange(&mut other, 1000);
        drop(other);
        others.join().unwrap();
        a.link_up();
        stream.set_read_timeout(Some(WITHIN)).unwrap();
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"ping");
        assert!(a.traffic().received_bytes > before.received_bytes);
        drop(stream);
        server.join().unwrap();
    }
}

/// Returns the namespaces of all processes.
fn namespaces() -> BTreeSet<String> {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let links = processes.filter_map(|entry| fs::read_link(entry.path().join("ns/net")).ok());
    links.map(|link| link.to_string_lossy().into_owned()).collect()
}

/// Waits until no process is in one of these namespaces.
fn assert_gone(mine: &BTreeSet<String>) {
    assert!(!mine.is_empty());
    let start = Instant::now();
    loop {
        let all = namespaces();
        let left: Vec<_> = mine.intersection(&all).collect();
        if left.is_empty() {
            return;
        }
        assert!(start.elapsed() < WITHIN / 4, "processes are left in the namespaces {left:?}");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_dropped_network_leaves_nothing_behind() {
    let interfaces = || fs::read_to_string("/proc/net/dev").unwrap().lines().count();
    let before = interfaces();
    let Some(network) = Network::switched(2) else { return };
    assert_eq!(interfaces(), before, "the machine's own interfaces have changed");
    let mine: BTreeSet<String> = network.hosts.iter().map(Host::namespace).collect();
    assert_eq!(mine.intersection(&namespaces()).count(), 2);
    drop(network);
    assert_gone(&mine);
    assert_eq!(interfaces(), before);
}

#[test]
fn nothing_is_left_when_a_test_is_killed() {
    if Network::back_to_back().is_none() {
        return;
    }
    let test = Processes::start([command("keep network")]);
    test.await_text(0, "network made", WITHIN);
    let output = test.output(0);
    let said = |what: &'static str| output.lines().filter_map(move |line| line.strip_prefix(what));
    let mine: BTreeSet<String> = said("namespace ").map(str::to_owned).collect();
    let process = format!("/proc/{}", said("process ").next().unwrap());
    assert!(mine.is_subset(&namespaces()) && fs::exists(&process).unwrap(), "{output}");
    test.signal(0, Signal::KILL);
    drop(test.end(WITHIN));
    assert_gone(&mine);
}

#[test]
fn random_connections_are_made_and_each_ends() {
    let Some(network) = Network::back_to_back() else { return };
    let target = there(network.hosts[0].ipv4());
    let (sender, listening) = mpsc::channel();
    let service = network.hosts[0].spawn(move || {
        let listener = TcpListener::bind(target).unwrap();
        sender.send(()).unwrap();
        let mut received_bytes = 0;
        for _ in 0..200 {
            let (mut stream, _) = listener.accept().unwrap();
            stream.set_read_timeout(Some(WITHIN)).unwrap();
            let mut bytes = Vec::new();
            let _ = stream.read_to_end(&mut bytes);
            received_bytes += bytes.len() as u64;
        }
        received_bytes
    });
    listening.recv_timeout(WITHIN).unwrap();
    let noise = network.hosts[1].spawn(move || stranger::random(target, 200, 3000, 7));
    let noise = noise.join().unwrap();
    let received_bytes = service.join().unwrap();
    assert_eq!((noise.connected, noise.refused), (200, 0));
    // A reset may discard bytes of its connection.
    assert!(received_bytes > 0 && received_bytes <= noise.sent_bytes, "{noise:?}");
    assert!(noise.sent_bytes > 100_000, "{noise:?}");
    let refused = network.hosts[1].spawn(move || stranger::random(target, 3, 10, 7));
    assert_eq!(
        refused.join().unwrap().refused,
        3,
        "number of connections refused while nobody listens"
    );
}

/// Accepts one connection; returns it and the result of `connect`.
fn accepted<T>(host: &Host, address: SocketAddr, connect: impl FnOnce() -> T) -> (TcpStream, T) {
    let (sender, listening) = mpsc::channel();
    let accepting = host.spawn(move || {
        let listener = TcpListener::bind(address).unwrap();
        sender.send(()).unwrap();
        listener.accept().unwrap().0
    });
    listening.recv_timeout(WITHIN).unwrap();
    let theirs = connect();
    (accepting.join().unwrap(), theirs)
}

#[test]
fn a_half_open_connection_sends_neither_an_end_nor_a_reset() {
    let Some(network) = Network::switched(2) else { return };
    let target = there(network.hosts[0].ipv4());
    let far = || stranger::half_open(&network.hosts[1], &[target], b"hello");
    let (mut stream, far) = accepted(&network.hosts[0], target, far);
    let mut hello = [0; 5];
    stream.set_read_timeout(Some(WITHIN)).unwrap();
    stream.read_exact(&mut hello).unwrap();
    assert_eq!(&hello, b"hello");
    drop(far);
    stream.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    stream.write_all(b"are you there?").unwrap();
    let error = stream.read(&mut hello).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock, "the peer sent an end or a reset");
}

#[test]
fn a_slow_reader_blocks_its_writer() {
    let Some(network) = Network::back_to_back() else { return };
    let target = there(network.hosts[0].ipv4());
    let read_slowly = move || {
        let (pause, duration) = (Duration::from_millis(20), Duration::from_secs(2));
        stranger::slow_reader(target, b"give", pause, duration)
    };
    let reader = || network.hosts[1].spawn(read_slowly);
    let (mut stream, reader) = accepted(&network.hosts[0], target, reader);
    stream.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
    let block = vec![0; 1 << 20];
    let stopped = (0..64).any(|_| stream.write_all(&block).is_err());
    assert!(stopped, "64 MiB were sent to a reader that takes 50 bytes per second");
    let read_bytes = reader.join().unwrap();
    assert!((1..=100).contains(&read_bytes), "{read_bytes}");
}

/// Ranks on a link with a long round trip allow more bytes in flight, unless the user has set a
/// limit. Their plans show more slots, with a note. The test prints the effect on time but does not
/// judge it.
#[test]
fn netns_netem_long_round_trips_lead_to_more_slots() {
    let Some(network) = Network::back_to_back() else { return };
    let [a, b] = network.hosts.as_slice() else { unreachable!() };
    if let Err(reason) = a.netem("delay 5ms") {
        assert!(std::env::var_os(NETEM).is_none(), "{NETEM} is set, but netem fails: {reason}");
        return skip(&format!("this kernel has no netem ({reason}); use `cargo xtask guest`"));
    }
    b.netem("delay 5ms").unwrap();
    let (near, near_took) = far_apart([a, b], NetworkCheck::Off);
    let (far, far_took) = far_apart([a, b], NetworkCheck::Assumed);
    say(&format!(
        "64 MiB over a round trip of 10 ms: {near_took:?} unadjusted, {far_took:?} adjusted"
    ));
    assert!(near.iter().all(|plan| (plan.slots, &plan.note) == (8, &None)), "{near:?}");
    for plan in far {
        let note = plan.note.unwrap();
        assert!(plan.slots > 8 && note.contains("a round trip between hosts takes 1"), "{note}");
    }
}

/// Four hosts in two halves, with one link between the halves: all ranks detect and report that the
/// link is shared.
#[test]
fn an_oversubscribed_network_is_reported_by_all_ranks() {
    let Some(network) = Network::tapered(4, 100) else { return };
    let hosts: Vec<&Host> = network.hosts.iter().collect();
    let start = Instant::now();
    let plans = planned(&hosts, NetworkCheck::Measure, |communicator| {
        let mut data = vec![1_f32; 1 << 16];
        communicator.all_reduce_in_place(&mut data, Reduction::Sum).unwrap();
        assert!(data.iter().all(|value| *value == 4.0));
    });
    let notes: Vec<String> = plans.into_iter().map(|plan| plan.note.unwrap()).collect();
    say(&format!("after {:?}: {}", start.elapsed(), notes[0]));
    assert!(notes.iter().all(|note| *note == notes[0]), "{notes:?}");
    assert!(notes[0].contains("with all 2 at once") && notes[0].contains("oversubscribed 1:"));
    assert!(notes[0].contains("; with FERROCCL_SOCKETS=4, all"));
}

/// Runs two all_reduces on two ranks, one per host. Returns the ranks' plans, and the time of the
/// second all_reduce on the slower rank.
fn far_apart(hosts: [&Host; 2], check_network: NetworkCheck) -> (Vec<Explanation>, Duration) {
    let took = Arc::new(Mutex::new(Duration::ZERO));
    let longest = Arc::clone(&took);
    let plans = planned(&hosts, check_network, move |communicator| {
        let mut data = vec![1_f32; 16 << 20];
        communicator.all_reduce_in_place(&mut data, Reduction::Sum).unwrap();
        let start = Instant::now();
        communicator.all_reduce_in_place(&mut data, Reduction::Sum).unwrap();
        let mut longest = longest.lock().unwrap();
        *longest = longest.max(start.elapsed());
        assert!(data.iter().all(|value| *value == 4.0));
    });
    let took = *took.lock().unwrap();
    (plans, took)
}

/// Runs `body` on one rank per host. Returns each rank's plan for an all_reduce of 64 MiB.
fn planned(
    hosts: &[&Host],
    check_network: NetworkCheck,
    body: impl Fn(&mut Communicator) + Clone + Send + 'static,
) -> Vec<Explanation> {
    let root = hosts[0].ipv4().to_string();
    let listening = hosts[0].spawn(move || Listening::new(&Reach::Host(root)).unwrap());
    let Listening { id, listener } = listening.join().unwrap();
    let mut listener = Some(listener);
    let start = |(rank, host): (u32, &&Host)| {
        let mut how = Join::new(rank, hosts.len() as u32, id.clone());
        how.listener = listener.take();
        let body = body.clone();
        host.spawn(move || {
            let host_id = format!("host {rank}");
            let config = config_with(|config| {
                (config.host_id, config.check_network) = (host_id.clone(), check_network);
            });
            let mut communicator = Communicator::join_with(how, config).unwrap();
            body(&mut communicator);
            let call = Call::even(Collective::AllReduce, DataType::Float32, 16 << 20);
            communicator.explain(&call).unwrap()
        })
    };
    let ranks: Vec<_> = (0..).zip(hosts).map(start).collect();
    ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
}

/// Delay, loss and reordering of the packets of both hosts. The test is skipped if the kernel lacks
/// `tc netem`.
#[test]
fn netns_netem_delays_and_loses_packets() {
    let Some(network) = Network::back_to_back() else { return };
    let [a, b] = network.hosts.as_slice() else { unreachable!() };
    if let Err(reason) = a.netem("delay 25ms") {
        assert!(std::env::var_os(NETEM).is_none(), "{NETEM} is set, but netem fails: {reason}");
        return skip(&format!("this kernel has no netem ({reason}); use `cargo xtask guest`"));
    }
    b.netem("delay 25ms").unwrap();
    let (server, mut stream) = connected(b, a, a.ipv4());
    let start = Instant::now();
    exchange(&mut stream, 8);
    let round = start.elapsed();
    assert!(round > Duration::from_millis(49), "the round trip takes only {round:?}");
    for host in [a, b] {
        host.netem("delay 50ms loss 1% reorder 5%").unwrap();
    }
    let start = Instant::now();
    exchange(&mut stream, PAYLOAD_BYTES);
    let took = start.elapsed();
    drop(stream);
    server.join().unwrap();
    let statistics = [a, b].map(Host::netem_statistics);
    say(&format!("1 MiB there and back took {took:?}: {statistics:?}"));
    let lost = statistics.iter().any(|text| !text.contains("dropped 0,"));
    assert!(lost, "none of about 1,500 packets was lost: {statistics:?}");
    assert!(took > Duration::from_millis(100), "{took:?}");
}
