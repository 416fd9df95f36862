//! The tester finds nothing wrong with the reference plugin, and each fault that is planted in it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

// Named, so that cargo builds the plugin.
use nccl_net_reference as _;

/// The variable that plants a fault.
const FAULT: &str = "REFERENCE_NET_FAULT";

/// The reference plugin, which lies where cargo puts libraries: beside the tests.
fn plugin() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let plugin = test.parent().unwrap().join("libnccl_net_reference.so");
    assert!(plugin.exists(), "{} is not there", plugin.display());
    plugin
}

fn netcheck(plugin: &Path, fault: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_netcheck"));
    command.arg(plugin).args(arguments).env(FAULT, fault).output().unwrap()
}

/// What failed, with the reason; everything else passed or was skipped.
fn failures(fault: &str, arguments: &[&str]) -> Vec<(String, String)> {
    let arguments = [arguments, &["--skip-performance", "--json", "-"]].concat();
    let output = netcheck(&plugin(), fault, &arguments);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let points = report["points"].as_array().unwrap();
    let text = |point: &Value, key: &str| point[key].as_str().unwrap_or_default().to_owned();
    let failed: Vec<(String, String)> = points
        .iter()
        .filter(|point| point["outcome"] == "failed")
        .map(|point| (text(point, "point"), text(point, "why")))
        .collect();
    let status = i32::from(!failed.is_empty());
    assert_eq!(output.status.code(), Some(status), "{}", String::from_utf8_lossy(&output.stderr));
    failed
}

/// Expects that with this fault that point fails, with a reason that has these words.
fn finds(fault: &str, point: &str, words: &str) {
    let failed = failures(fault, &["--only", point, "--timeout", "5"]);
    let [(_, why)] = failed.as_slice() else { panic!("{fault} is not found by {point}") };
    assert!(why.contains(words), "{fault} is found by {point}, but it says: {why}");
}

#[test]
fn the_reference_keeps_the_contract() {
    assert_eq!(failures("", &[]), []);
}

#[test]
fn it_does_so_in_all_versions() {
    for api in ["v11", "v10", "v9", "v8"] {
        assert_eq!(failures("", &["--api", api]), [], "{api}");
    }
}
