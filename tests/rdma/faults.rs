//! Ranks that are killed, and a network link that loses packets or goes down.

use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::VERBS;
use super::{devices, over, sums_and_exchanges};
use crate::faults::{assert_named, working};
use ccl_harness::ranks_with;
use ferroccl::{Communicator, Error, Reduction};
use rustix::process::Signal;

/// Time limit for the survivors to end; processors may be emulated.
const ENDED: Duration = Duration::from_secs(30);
/// Time after which a rank gives up a port whose link is down: the default of
/// `FERROCCL_DEAD_AFTER`.
const AWAY: Duration = Duration::from_secs(3);
/// Minimum number of lost packets for a link to count as lossy.
const LOST: u64 = 5;

#[test]
fn ranks_over_rdma_name_a_killed_rank() {
    let Some((devices, _turn)) = devices() else { return };
    let names = format!("={}", devices.join(","));
    let variables = [
        ("FERROCCL_TRANSPORT", VERBS),
        ("FERROCCL_IB_HCA", names.as_str()),
        ("FERROCCL_IB_POLICY", "4"),
        ("FERROCCL_SOCKET_IFNAME", "lo"),
        // Closed connections reveal the killed rank. The limit is long so that slow ranks do not
        // count as dead.
        ("FERROCCL_DEAD_AFTER", "20s"),
    ];
    for (work, victim) in [("all_reduce 300000", 1), ("all_to_all 60000", 0), ("broadcast 8", 2)] {
        let ranks = working(3, work, &variables);
        ranks.signal(victim, Signal::KILL);
        assert_named(&ranks.end(ENDED), victim);
    }
}

/// Returns the network interface of a device.
fn interface(device: &str) -> String {
    let (device, port) = device.split_once(':').unwrap();
    let name = format!("/sys/class/infiniband/{device}/ports/{port}/gid_attrs/ndevs/0");
    std::fs::read_to_string(name).unwrap().trim().to_owned()
}

fn run(line: &str) {
    let mut words = line.split(' ');
    let output = Command::new(words.next().unwrap()).args(words).output().unwrap();
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Degradation of a link by `tc netem` at both ends. It ends when the value is dropped.
pub(crate) struct Netem(Vec<String>);

impl Netem {
    pub(crate) fn new(devices: &[String], how: &str) -> Netem {
        let netem = Netem(devices.iter().map(|device| interface(device)).collect());
        netem.set(how);
        netem
    }

    fn set(&self, how: &str) {
        let change = |name| run(&format!("tc qdisc change dev {name} root netem {how}limit 10000"));
        self.0.iter().for_each(change);
    }
}

impl Netem {
    /// Returns the number of packets lost since the link was made.
    pub(crate) fn lost(&self) -> u64 {
        let count = |name: &String| {
            let words = ["-s", "qdisc", "show", "dev", name.as_str()];
            let said = Command::new("tc").args(words).output().unwrap().stdout;
            let said = String::from_utf8_lossy(&said).into_owned();
            let rest = said.split_once("(dropped ").unwrap().1.to_owned();
            rest.split(',').next().unwrap().parse::<u64>().unwrap()
        };
        self.0.iter().map(count).sum()
    }
}

impl Drop for Netem {
    fn drop(&mut self) {
        self.set("");
    }
}

#[test]
fn lost_packets_are_sent_again() {
    let Some((devices, _turn)) = devices() else { return };
    for policy in ["qps=4 order=split chunk=4K", "qps=4"] {
        let config = over(&devices, |config| {
            config.ib_policy = policy.parse().unwrap();
            // A time-out of 67 ms.
            config.transport_settings.set("FERROCCL_IB_TIMEOUT", "14");
        });
        let lossy = Arc::new(Netem::new(&devices, "loss 1% "));
        let (watched, enough) = (Arc::clone(&lossy), lossy.lost() + LOST);
        ranks_with(2, config, move |communicator| {
            sums_and_exchanges(communicator);
            let start = Instant::now();
            let late = || start.elapsed() > ENDED;
            sums(communicator, || watched.lost() >= enough || late()).unwrap();
        });
        assert!(lossy.lost() >= enough, "fewer than {LOST} packets were lost");
    }
}

/// Interface of a device whose link is down until the value is dropped.
pub(crate) struct Down {
    interface: String,
    /// Routes of the interface in tables that the kernel does not fill by itself. They vanish when
    /// the link goes down; dropping the value restores the link and then the routes.
    routes: Vec<String>,
}

impl Down {
    pub(crate) fn new(device: &str) -> Down {
        let interface = interface(device);
        let routes = Command::new("ip").args(["route", "show", "table", "all"]).output().unwrap();
        let routes = String::from_utf8_lossy(&routes.stdout).into_owned();
        let device = format!(" dev {interface} ");
        let own = |route: &&str| {
            route.contains(&device) && route.contains(" table ") && !route.contains(" table local")
        };
        let routes = routes.lines().filter(own).map(|route| route.trim().to_owned()).collect();
        run(&format!("ip link set {interface} down"));
        Down { interface, routes }
    }
}

impl Drop for Down {
    fn drop(&mut self) {
        run(&format!("ip link set {} up", self.interface));
        for route in &self.routes {
            run(&format!("ip route replace {route}"));
        }
    }
}

/// Runs all_reduces until one fails or `end` returns true on rank 0. All ranks stop after the same
/// call.
pub(super) fn sums(communicator: &mut Communicator, end: impl Fn() -> bool) -> Result<u32, Error> {
    let mut turns = 0;
    loop {
        turns += 1;
        let stop = u32::from(communicator.rank() == 0 && end());
        let mut data = vec![stop; 20_000];
        communicator.all_reduce_in_place(&mut data, Reduction::Sum)?;
        assert!(data.iter().all(|value| *value == data[0]));
        if data[0] > 0 {
            return Ok(turns);
        }
    }
}

#[test]
fn ranks_wait_for_a_link_that_is_down_for_a_moment() {
    let Some((devices, _turn)) = devices() else { return };
    let config = over(&devices, |config| config.ib_policy = "2".parse().unwrap());
    let device = devices[1].clone();
    let results = ranks_with(2, config, move |communicator| {
        communicator.barrier().unwrap();
        if communicator.rank() == 1 {
            let _down = Down::new(&device);
            std::thread::sleep(Duration::from_millis(300));
        }
        let start = Instant::now();
        sums(communicator, || start.elapsed() > Duration::from_secs(3)).map_err(|e| e.to_string())
    });
    assert!(results.iter().all(Result::is_ok), "{results:?}");
}

#[test]
fn a_link_that_stays_down_is_named() {
    let Some((devices, _turn)) = devices() else { return };
    let config = over(&devices, |config| config.ib_policy = "2".parse().unwrap());
    let device = devices[1].clone();
    let results = ranks_with(2, config, move |communicator| {
        communicator.barrier().unwrap();
        let start = Instant::now();
        let down = (communicator.rank() == 1).then(|| Down::new(&device));
        let error = sums(communicator, || false).unwrap_err().to_string();
        let took = start.elapsed();
        // Rank 0's port has no link either. Rank 0 must detect the loss by itself, and not fail
        // because rank 1 has left. So rank 1 stays, with its link down, as long as a rank takes to
        // give up its port.
        if down.is_some() {
            std::thread::sleep(AWAY);
        }
        (error, took)
    });
    for (error, took) in &results {
        // The cause is the port's own event or the status of a write.
        let named = error.contains("lost its link") || error.contains("(status ");
        assert!(named && error.contains("failed: "), "{error}");
        assert!(*took < ENDED, "{took:?}");
    }
}
