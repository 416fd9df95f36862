//! Two hosts for measurements: network namespaces of this machine, joined by a link.
//!
//! The namespaces have no names. Each is kept alive by a process that waits for the end of its
//! input. That input ends with this program, even if the program is killed, so nothing is left
//! behind.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::{Outcome, process};

/// Congestion control of both hosts, the same for all compared programs and independent of this
/// machine's default. bbr would pace packets and so slow down each program.
pub(super) const CONGESTION: &str = "reno";
/// Network interface of each host.
pub(super) const INTERFACE: &str = "net0";
const WITHIN: Duration = Duration::from_secs(20);

/// Host of a measurement: a network namespace.
#[derive(Debug)]
pub(super) struct Host {
    keeper: Child,
    /// IPv4 address of the host.
    pub(super) address: String,
}

impl Drop for Host {
    fn drop(&mut self) {
        // The keeper ends at the end of its input.
        drop(self.keeper.stdin.take());
        let _ = self.keeper.kill();
        let _ = self.keeper.try_wait();
    }
}

impl Host {
    fn new(number: usize) -> Outcome<Host> {
        let own = net_of("self")?;
        let keeper = Command::new("unshare")
            .args(["--net", "--", "cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .map_err(|error| format!("cannot start `unshare`: {error}"))?;
        let host = Host { keeper, address: format!("10.77.0.{}", number + 1) };
        let start = Instant::now();
        while net_of(&host.keeper.id().to_string()).is_ok_and(|net| net == own) {
            if start.elapsed() > WITHIN {
                return Err("`unshare --net` made no network namespace in time".to_owned());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(host)
    }

    /// Returns the start of a command line; the command that follows it runs on this host.
    pub(super) fn entrance(&self) -> Vec<String> {
        let net = format!("--net=/proc/{}/ns/net", self.keeper.id());
        vec!["nsenter".to_owned(), net]
    }

    /// Returns a command that runs a program on this host.
    pub(super) fn command(&self, program: &str) -> Command {
        let mut words = self.entrance().into_iter();
        let mut command = Command::new(words.next().unwrap_or_default());
        command.args(words).arg(program);
        command
    }
}

fn net_of(process: &str) -> Outcome<std::path::PathBuf> {
    let path = format!("/proc/{process}/ns/net");
    std::fs::read_link(&path).map_err(|error| format!("cannot read {path}: {error}"))
}

/// Returns two hosts that reach each other over a virtual Ethernet link.
pub(super) fn joined() -> Outcome<[Host; 2]> {
    if !rustix::process::geteuid().is_root() {
        return Err("only root may make network namespaces: run this command as root".to_owned());
    }
    for program in ["ip", "unshare", "nsenter"] {
        if !process::is_installed(program) {
            return Err(format!("`{program}` is missing: install iproute2 and util-linux"));
        }
    }
    let hosts = [Host::new(0)?, Host::new(1)?];
    let [one, other] = &hosts;
    let net = |host: &Host| host.keeper.id().to_string();
    let mut command = one.command("ip");
    command.args(["link", "add", INTERFACE, "type", "veth", "peer", "name", INTERFACE]);
    process::capture(command.args(["netns", &net(other)]), WITHIN)?;
    for host in &hosts {
        let address = format!("{}/24", host.address);
        for words in [
            &["addr", "add", &address, "dev", INTERFACE][..],
            &["link", "set", INTERFACE, "up"],
            &["link", "set", "lo", "up"],
        ] {
            process::capture(host.command("ip").args(words), WITHIN)?;
        }
        let set = format!("echo {CONGESTION} > /proc/sys/net/ipv4/tcp_congestion_control");
        process::capture(host.command("sh").args(["-c", &set]), WITHIN)?;
    }
    Ok(hosts)
}
