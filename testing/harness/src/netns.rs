//! Test networks: hosts are network namespaces, joined by links that can be cut, and whose traffic
//! can be counted. The kernel of the guest (`cargo xtask guest`) can also make links lossy.
//!
//! A namespace has no name. A process in the namespace keeps it alive: the process reads a pipe
//! until end of file. The test holds the pipe's write end, so the network is gone when the test
//! ends, even if the test crashes.

use super::skip;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::{self, File};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd;
use std::process::{Child, Command, Output, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Network interface of every host.
const INTERFACE: &str = "net0";
const WITHIN: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(2);

/// Bytes that an interface has sent and received, including link-layer headers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Received bytes.
    pub received_bytes: u64,
    /// Sent bytes.
    pub sent_bytes: u64,
}

/// State of a listening socket, in the numbering of /proc/net/tcp.
const LISTEN: &str = "0A";

/// TCP socket, as listed by the system.
struct Socket {
    port: u16,
    state: String,
    send_queue_bytes: u64,
}

impl Socket {
    /// Parses a line such as `0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 ...`.
    fn parse(line: &str) -> Option<Socket> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (_, port) = words.get(1)?.rsplit_once(':')?;
        let (send_queue, _) = words.get(4)?.split_once(':')?;
        Some(Socket {
            port: u16::from_str_radix(port, 16).ok()?,
            state: (*words.get(3)?).to_owned(),
            send_queue_bytes: u64::from_str_radix(send_queue, 16).ok()?,
        })
    }
}

/// Network namespace that exists until this value is dropped.
#[derive(Debug)]
struct Namespace {
    keeper: Child,
}

impl Namespace {
    fn new() -> Namespace {
        let own = fs::read_link("/proc/self/ns/net").unwrap();
        let mut command = Command::new("unshare");
        command.args(["--net", "--", "cat"]).stdin(Stdio::piped()).stdout(Stdio::null());
        let mut namespace = Namespace { keeper: command.spawn().unwrap() };
        let start = Instant::now();
        while fs::read_link(namespace.path()).is_ok_and(|found| found == own) {
            assert!(start.elapsed() < WITHIN, "unshare hangs");
            thread::sleep(PAUSE);
        }
        let ended = namespace.keeper.try_wait().unwrap();
        assert!(ended.is_none(), "unshare ended: {ended:?}");
        namespace
    }

    fn path(&self) -> String {
        format!("/proc/{}/ns/net", self.keeper.id())
    }

    /// Returns a command that runs `command` in this namespace. The process dies with the thread
    /// that starts it. Redirections of `command` are not kept: the caller sets standard input,
    /// output and error of the result.
    fn enter(&self, command: &Command) -> Command {
        let mut inside = Command::new("setpriv");
        inside.args(["--pdeathsig", "KILL", "--", "nsenter"]);
        inside.arg(format!("--net={}", self.path())).arg("--");
        inside.arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => inside.env(name, value),
                None => inside.env_remove(name),
            };
        }
        if let Some(dir) = command.get_current_dir() {
            inside.current_dir(dir);
        }
        inside.stdin(Stdio::null());
        inside
    }

    fn ip(&self, arguments: &str) {
        self.run(&format!("ip {arguments}")).unwrap();
    }

    /// Runs a command line in this namespace.
    fn run(&self, line: &str) -> Result<String, String> {
        let mut words = line.split_whitespace();
        let mut command = Command::new(words.next().unwrap());
        let Output { status, stdout, stderr } =
            self.enter(command.args(words)).output().map_err(|error| error.to_string())?;
        if status.success() {
            Ok(String::from_utf8_lossy(&stdout).into_owned())
        } else {
            Err(format!("`{line}`: {status}: {}", String::from_utf8_lossy(&stderr).trim()))
        }
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = self.keeper.kill();
        let start = Instant::now();
        while matches!(self.keeper.try_wait(), Ok(None)) && start.elapsed() < WITHIN {
            thread::sleep(PAUSE);
        }
    }
}

/// Machine of a [`Network`].
#[derive(Debug)]
pub struct Host {
    namespace: Namespace,
    index: u8,
}

impl Host {
    fn new(index: u8) -> Host {
        let host = Host { namespace: Namespace::new(), index };
        host.ip("link set lo up");
        host
    }

    /// Returns the host's address on the network, in 10.77.0.0/24.
    pub fn ipv4(&self) -> IpAddr {
        Ipv4Addr::new(10, 77, 0, self.index + 1).into()
    }

    /// Returns the host's address on the network, in fd77::/64.
    pub fn ipv6(&self) -> IpAddr {
        Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, u16::from(self.index) + 1).into()
    }

    /// Returns the identity of the namespace: the target of the symbolic link /proc/PID/ns/net.
    pub fn namespace(&self) -> String {
        fs::read_link(self.namespace.path()).unwrap().to_string_lossy().into_owned()
    }

    /// Returns a command that runs `command` on this host. The process dies with the thread that
    /// starts it. Redirections of `command` are not kept: the caller sets standard input, output
    /// and error of the result.
    pub fn enter(&self, command: &Command) -> Command {
        self.namespace.enter(command)
    }

    /// Runs `body` on a new thread of this process, in the host's namespace. Sockets that `body`
    /// makes belong to the host, also when other threads use them.
    pub fn spawn<T: Send + 'static>(
        &self,
        body: impl FnOnce() -> T + Send + 'static,
    ) -> JoinHandle<T> {
        let namespace = File::open(self.namespace.path()).unwrap();
        thread::spawn(move || {
            let kind = Some(LinkNameSpaceType::Network);
            move_into_link_name_space(namespace.as_fd(), kind).unwrap();
            body()
        })
    }

    /// Cuts the host's link: no packet passes, and both ends lose their carrier.
    pub fn link_down(&self) {
        self.ip(&format!("link set {INTERFACE} down"));
    }

    /// Restores the host's link and its addresses.
    pub fn link_up(&self) {
        self.ip(&format!("link set {INTERFACE} up"));
        // A link that goes down loses its IPv6 addresses.
        self.ip(&format!("addr replace {}/64 dev {INTERFACE} nodad", self.ipv6()));
    }

    /// Returns the traffic of the host's link so far.
    pub fn traffic(&self) -> Traffic {
        self.traffic_of(INTERFACE)
    }

    /// Returns the traffic of one of the host's interfaces so far.
    pub fn traffic_of(&self, interface: &str) -> Traffic {
        let path = format!("/proc/{}/net/dev", self.namespace.keeper.id());
        let table = fs::read_to_string(path).unwrap();
        let prefix = format!("{interface}:");
        let line = table.lines().find_map(|line| line.trim().strip_prefix(&prefix)).unwrap();
        let numbers: Vec<u64> = line.split_whitespace().map(|word| word.parse().unwrap()).collect();
        Traffic { received_bytes: numbers[0], sent_bytes: numbers[8] }
    }

    /// Degrades this host's outgoing traffic by options of `netem`, such as `delay 50ms loss 1%`.
    /// An empty text ends the degradation. Returns an error if this kernel has no `netem`; the
    /// guest's kernel has it.
    pub fn netem(&self, how: &str) -> Result<(), String> {
        // Without this, netem would lose up to 64 KiB at once, as one packet.
        self.ip(&format!("link set {INTERFACE} gso_max_segs 1"));
        let line = format!("tc qdisc replace dev {INTERFACE} root netem limit 100000 {how}");
        self.namespace.run(&line).map(|_| ())
    }

    /// Returns the statistics of `tc` for this host's outgoing traffic.
    pub fn netem_statistics(&self) -> String {
        self.namespace.run(&format!("tc -s qdisc show dev {INTERFACE}")).unwrap()
    }

    /// Sets a network tunable of the host by its path below /proc/sys.
    pub fn tune(&self, path: &str, value: &str) {
        let (path, value) = (format!("/proc/sys/{path}"), value.to_owned());
        self.spawn(move || fs::write(&path, value).unwrap()).join().unwrap();
    }

    /// Returns the TCP ports on which the host listens.
    pub fn listening(&self) -> Vec<u16> {
        let listens = |socket: &Socket| socket.state == LISTEN;
        let mut ports: Vec<u16> =
            self.sockets().iter().filter(|socket| listens(socket)).map(|s| s.port).collect();
        ports.sort_unstable();
        ports.dedup();
        ports
    }

    /// Returns the largest send queue of the host's TCP connections, in bytes.
    pub fn send_queue_bytes(&self) -> u64 {
        let connections = self.sockets().into_iter().filter(|socket| socket.state != LISTEN);
        connections.map(|socket| socket.send_queue_bytes).max().unwrap_or(0)
    }

    /// Resets the host's TCP connections that have sent or received at least `bytes_min` bytes.
    /// Returns the number of such connections, and how many of them were reset: none if the kernel
    /// lacks `INET_DIAG_DESTROY`.
    pub fn reset_connections(&self, bytes_min: u64) -> (usize, usize) {
        let carried = |word: &str| {
            let count = word.strip_prefix("bytes_sent:").or(word.strip_prefix("bytes_received:"));
            count.is_some_and(|count| count.parse::<u64>().is_ok_and(|count| count >= bytes_min))
        };
        let ends = |list: &str| -> Vec<(String, String)> {
            let lines = list.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
            let large = lines.filter(|words| words.iter().any(|word| carried(word)));
            large.map(|words| (words[2].to_owned(), words[3].to_owned())).collect()
        };
        let list = || ends(&self.namespace.run("ss -tinHO state established").unwrap());
        let before = list();
        for (own, peer) in &before {
            self.namespace.run(&format!("ss -K src {own} dst {peer}")).unwrap();
        }
        let after = list();
        let gone = before.iter().filter(|connection| !after.contains(connection)).count();
        (before.len(), gone)
    }

    fn sockets(&self) -> Vec<Socket> {
        let table = |name| {
            let path = format!("/proc/{}/net/{name}", self.namespace.keeper.id());
            fs::read_to_string(path).unwrap()
        };
        let tables = ["tcp", "tcp6"].map(table);
        tables.iter().flat_map(|table| table.lines().skip(1).filter_map(Socket::parse)).collect()
    }

    fn ip(&self, arguments: &str) {
        self.namespace.ip(arguments);
    }

    /// Assigns the interface its addresses and sets it up.
    fn address(&self) {
        self.ip(&format!("addr add {}/24 dev {INTERFACE}", self.ipv4()));
        self.link_up();
    }
}

/// Hosts that reach each other and nothing else; dropping the network removes all of them.
#[derive(Debug)]
pub struct Network {
    /// Hosts of the network.
    pub hosts: Vec<Host>,
    /// Namespace of the bridge, if the network has one.
    switch: Option<Namespace>,
}

impl Network {
    /// Returns two hosts with one link between them. Returns `None` and prints the reason where
    /// networks cannot be made; the test then has to return.
    pub fn back_to_back() -> Option<Network> {
        if !possible() {
            return None;
        }
        let hosts = vec![Host::new(0), Host::new(1)];
        join(&hosts[1].namespace, INTERFACE, &hosts[0]);
        hosts.iter().for_each(Host::address);
        Some(Network { hosts, switch: None })
    }

    /// Gives two back-to-back hosts a second link, with addresses in 10.78.0.0/24 (`fast0`), and
    /// gives each an interface that leads nowhere, in 10.79.0.0/24 (`dead0`).
    pub fn add_interfaces(&self) {
        let [one, other] = &self.hosts[..] else { panic!("the network must have two hosts") };
        let there = other.namespace.keeper.id();
        one.ip(&format!("link add fast0 type veth peer name fast0 netns {there}"));
        for host in [one, other] {
            host.ip("link add dead0 type veth peer name dead1");
            host.ip("link set dead1 up");
            for (network, name) in [(78, "fast0"), (79, "dead0")] {
                let number = host.index + 1;
                host.ip(&format!("addr add 10.{network}.0.{number}/24 dev {name}"));
                host.ip(&format!("link set {name} up"));
            }
        }
    }

    /// Returns `n` hosts in two halves, each with its own switch. One link with `mbit_per_s` Mbit/s
    /// in each direction joins the two switches. Returns `None` where networks cannot be made, or
    /// if this kernel has no `tc tbf`.
    pub fn tapered(n: u8, mbit_per_s: u32) -> Option<Network> {
        let network = Network::switched(n)?;
        let switch = network.switch.as_ref()?;
        switch.ip("link add bridge2 type bridge stp_state 0 mcast_snooping 0");
        switch.ip("link set bridge2 up");
        switch.ip("link add up1 type veth peer name up2");
        for (end, bridge) in [("up1", "bridge"), ("up2", "bridge2")] {
            // Without this, one packet could fill the whole bucket.
            switch.ip(&format!("link set {end} gso_max_segs 1"));
            switch.ip(&format!("link set {end} master {bridge} up"));
            let how = format!("rate {mbit_per_s}mbit burst 64k latency 20ms");
            let slow = switch.run(&format!("tc qdisc replace dev {end} root tbf {how}"));
            if let Err(reason) = slow {
                skip(&format!("this kernel cannot make a link slow: {reason}"));
                return None;
            }
        }
        for host in n / 2..n {
            switch.ip(&format!("link set port{host} master bridge2"));
        }
        Some(network)
    }

    /// Returns `n` hosts, at most 250, all linked to one bridge in a namespace of its own. Cutting
    /// a host's link takes the carrier from that host only. Returns `None` where networks cannot be
    /// made.
    pub fn switched(n: u8) -> Option<Network> {
        if !possible() {
            return None;
        }
        let switch = Namespace::new();
        switch.ip("link add bridge type bridge stp_state 0 mcast_snooping 0");
        switch.ip("link set bridge up");
        let hosts: Vec<Host> = (0..n).map(Host::new).collect();
        for host in &hosts {
            let port = format!("port{}", host.index);
            join(&switch, &port, host);
            switch.ip(&format!("link set {port} master bridge up"));
            host.address();
        }
        Some(Network { hosts, switch: Some(switch) })
    }
}

/// Creates a link from an interface `name` of namespace `from` to the interface of host `to`.
fn join(from: &Namespace, name: &str, to: &Host) {
    let there = to.namespace.keeper.id();
    from.ip(&format!("link add {name} type veth peer name {INTERFACE} netns {there}"));
}

/// Returns whether networks can be made here; prints the reason if not. Any later failure is a
/// defect, except where the kernel lacks `tbf` or `netem`.
fn possible() -> bool {
    let try_out = |program: &str, arguments: &[&str]| match Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
    {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        Err(error) => Err(format!("`{program}`: {error}")),
    };
    let outcome = try_out("unshare", &["--net", "true"]).and_then(|()| try_out("ip", &["-V"]));
    if let Err(reason) = &outcome {
        skip(&format!("cannot make network namespaces, which need root and iproute2: {reason}"));
    }
    outcome.is_ok()
}
