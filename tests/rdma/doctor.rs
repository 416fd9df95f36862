//! `ferroccl doctor` on a machine with RDMA ports: the files that it reads agree with libibverbs.

use std::process::Command;

use serde_json::Value;

use super::devices;
use super::faults::Down;

/// Returns the doctor's exit status, and the verdict and evidence of each finding of `check` whose
/// subject is one of these ports.
fn found(devices: &[String], check: &str) -> (i32, Vec<(String, String)>) {
    let mut command = Command::new(ccl_harness::command::program());
    command.args(["doctor", "--json"]).env("FERROCCL_IB_HCA", format!("={}", devices.join(",")));
    let output = command.output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let text = |finding: &Value, name: &str| finding[name].as_str().unwrap().to_owned();
    let findings = report["findings"].as_array().unwrap().iter();
    let of_ports = findings
        .filter(|finding| finding["check"] == check && devices.contains(&text(finding, "subject")));
    let found = of_ports.map(|finding| (text(finding, "verdict"), text(finding, "evidence")));
    (output.status.code().unwrap(), found.collect())
}

#[test]
fn the_doctor_reports_ports_and_warns_of_a_lost_link() {
    let Some((devices, _turn)) = devices() else {
        return;
    };
    // The exit status is ignored: it covers all checks, and other tests affect the counters of
    // these links.
    let (_, ports) = found(&devices, "rdma-ports");
    assert_eq!(ports.len(), 2, "{ports:?}");
    let (_, gids) = found(&devices, "gids");
    for ((verdict, port), (judged, gid)) in ports.iter().zip(&gids) {
        assert!(verdict == "ok" && judged == "ok", "{port} {gid}");
        // The check that opens the port by libibverbs names the same address as the check that
        // reads files.
        let address = gid.split(' ').nth(2).unwrap();
        assert!(port.contains(&format!("address {address} ")), "{port}: {gid}");
        assert!(port.contains("packets of 4096 bytes"), "{port}");
    }
    let (_, mtu) = found(&devices, "mtu");
    let full = |(verdict, said): &(String, String)| {
        verdict == "ok" && said.contains("an MTU of 4500: RoCE's packets carry 4096 bytes")
    };
    assert!(mtu.len() == 2 && mtu.iter().all(full), "{mtu:?}");
    let (_, counters) = found(&devices, "rdma-counters");
    assert!(counters.len() == 2 && counters.iter().all(|(verdict, _)| verdict != "unknown"));

    let _down = Down::new(&devices[1]);
    let (status, ports) = found(&devices, "rdma-ports");
    assert_eq!(status, 1);
    assert!(ports.iter().any(|(verdict, _)| verdict == "warning"), "{ports:?}");
}
