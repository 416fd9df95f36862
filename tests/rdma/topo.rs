//! `ferroccl topo` on a machine with RDMA ports.

use std::process::Command;

use serde_json::Value;

use super::devices;
use super::faults::Down;

/// Returns the bandwidth of each device's network in the topology of this machine; `None` for a
/// device without a network.
fn networks(devices: &[String]) -> Vec<Option<String>> {
    let mut command = Command::new(ccl_harness::command::program());
    let output = command.args(["topo", "--as", "json"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let topology: Value = serde_json::from_slice(&output.stdout).unwrap();
    let machines = topology["machine"].as_array().unwrap();
    let parts = machines.iter().flat_map(|machine| machine["parts"].as_array().unwrap());
    let parts: Vec<&Value> = parts.collect();
    let network = |device: &String| {
        let name = device.split(':').next().unwrap();
        let found: Vec<&&Value> = parts.iter().filter(|part| part["name"] == name).collect();
        assert_eq!(found.len(), 1, "{topology}");
        Some(found[0]["network"]["bandwidth"].as_str()?.to_owned())
    };
    devices.iter().map(network).collect()
}

#[test]
fn the_topology_has_the_bandwidth_of_each_port_that_is_up() {
    let Some((devices, _turn)) = devices() else {
        return;
    };
    let up = networks(&devices);
    println!("{devices:?}: {up:?}");
    assert!(up.iter().all(Option::is_some), "{up:?}");
    let _down = Down::new(&devices[1]);
    assert_eq!(networks(&devices)[1], None, "networks before the link went down: {up:?}");
}
