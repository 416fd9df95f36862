//! NCCL plugin over two ports as one device. One of the ports loses its link.

use std::ffi::c_int;
use std::process::Command;
use std::time::{Duration, Instant};

use nccl_net_abi::Parts;

use self::pair::{NET, Pair, both, init, ok};
use super::VERBS;
use super::faults::Down;
use super::rails;

#[path = "../../plugins/nccl-net/tests/abi/pair.rs"]
mod pair;

/// Time limit of [`exchange_over`]; processors may be emulated.
const PATIENCE: Duration = Duration::from_secs(60);
const BYTES: usize = 200_000;
/// Number of messages in flight at a time.
const AT_ONCE: usize = 6;

/// Variable that marks the test's own child process, which is configured by its environment.
const OWN: &str = "FERROCCL_TEST_OWN_PROCESS";

#[test]
fn nccl_goes_on_over_one_port_when_the_other_loses_its_link() {
    let test = "nccl_goes_on_over_one_port_when_the_other_loses_its_link";
    let Some((sides, _turn)) = rails() else { return };
    if std::env::var_os(OWN).is_some() {
        return on(&sides);
    }
    let mut own = Command::new(std::env::current_exe().unwrap());
    own.args(["--exact", &format!("rdma::nccl::{test}"), "--nocapture"]).env(OWN, "1");
    own.env("FERROCCL_TRANSPORT", VERBS).env("FERROCCL_SOCKET_IFNAME", "lo");
    own.env("FERROCCL_IB_HCA", format!("={},{}", sides[0].join(","), sides[1].join(",")));
    // A time-out of 67 ms.
    let output = own.env("FERROCCL_IB_TIMEOUT", "14").output().unwrap();
    println!("{}", String::from_utf8_lossy(&output.stdout));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Makes a virtual device of a side's devices, given by their names, and returns its number.
fn as_one(names: &[String]) -> c_int {
    // Each device has one port.
    let names: Vec<&str> = names.iter().map(|name| name.split_once(':').unwrap().0).collect();
    let number = |name: &&str| (0..).find(|device| pair::name(*device) == *name).unwrap();
    let mut parts = Parts::of(&names.iter().map(number).collect::<Vec<_>>());
    let mut made = -1;
    // SAFETY: both pointers lead to variables of this function.
    ok(unsafe { (NET.make_device.unwrap())(&mut made, &mut parts) });
    assert_eq!(pair::name(made), names.join("+"));
    made
}

/// Returns the number of packets that a port has sent.
fn packets(device: &str) -> u64 {
    let (device, port) = device.split_once(':').unwrap();
    let path = format!("/sys/class/infiniband/{device}/ports/{port}/hw_counters/sent_pkts");
    std::fs::read_to_string(path).unwrap().trim().parse().unwrap()
}

/// Exchanges some messages and checks that the receive buffer holds them and nothing else.
fn exchange(pair: &mut Pair) {
    pair.into.fill(0);
    let at = |index: usize| (index * BYTES, BYTES, index as c_int);
    let wanted: Vec<_> = (0..AT_ONCE).map(|index| pair.irecv(&[at(index)])).collect();
    let sent: Vec<_> =
        (0..AT_ONCE).map(|index| pair.isend(index * BYTES, BYTES, index as c_int)).collect();
    for (sent, wanted) in sent.into_iter().zip(wanted) {
        assert_eq!(both(sent, wanted), [BYTES]);
    }
    assert!(pair.into == pair.from, "the received data differs from the sent data");
}

/// Exchanges messages until the sender's data leaves through exactly the ports for which `wanted`
/// is true. Returns the duration.
fn exchange_over(pair: &mut Pair, ports: &[String], wanted: [bool; 2]) -> Duration {
    let start = Instant::now();
    loop {
        let before = [0, 1].map(|at| packets(&ports[at]));
        (0..3).for_each(|_| exchange(pair));
        let sent = [0, 1].map(|at| packets(&ports[at]) - before[at] > 20);
        if sent == wanted {
            return start.elapsed();
        }
        assert!(start.elapsed() < PATIENCE, "ports in use: {sent:?} instead of {wanted:?}");
    }
}

fn on([listening, connecting]: &[Vec<String>; 2]) {
    let context = init();
    let devices = [listening, connecting].map(|names| as_one(names));
    let mut pair = Pair::on(devices, AT_ONCE * BYTES);
    let both = exchange_over(&mut pair, connecting, [true, true]);
    let down = Down::new(&connecting[0]);
    let alone = exchange_over(&mut pair, connecting, [false, true]);
    // Another pair can connect meanwhile.
    let mut other = Pair::on(devices, AT_ONCE * BYTES);
    exchange(&mut other);
    other.close();
    drop(down);
    let again = exchange_over(&mut pair, connecting, [true, true]);
    println!("both ports used after {both:?}, one after {alone:?}, both again after {again:?}");
    pair.close();
    // SAFETY: the context is this test's.
    ok(unsafe { (NET.finalize.unwrap())(context) });
    // After another `init`, NCCL counts the devices and makes virtual devices again.
    let (context, mut count) = (init(), 0);
    // SAFETY: the pointer leads to a variable of this function.
    ok(unsafe { (NET.devices.unwrap())(&mut count) });
    assert_eq!(count, 4);
    assert_eq!(as_one(connecting), 4);
    // SAFETY: the context is this test's.
    ok(unsafe { (NET.finalize.unwrap())(context) });
}
