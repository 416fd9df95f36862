//! `ferroccl doctor --ofi`, with the installed libfabric.

use std::process::Command;

use serde_json::Value;

fn ferroccl(arguments: &[&str]) -> (i32, String, String) {
    let mut command = Command::new(ccl_harness::command::program());
    let output = command.args(["doctor", "--ofi"]).args(arguments).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

/// Checks that the providers shm and tcp are listed with the results of their tests, or that a
/// missing libfabric is an error.
#[test]
fn providers_are_listed_and_tried() {
    let (status, out, errors) = ferroccl(&["--json"]);
    if status == 2 {
        assert!(std::env::var_os("FERROCCL_TEST_OFI").is_none(), "{errors}");
        assert!(errors.contains("libfabric.so.1 cannot be opened (") && out.is_empty(), "{errors}");
        assert!(errors.contains("install it"), "{errors}");
        println!("\nSKIPPED: libfabric is not installed (Debian: libfabric1)");
        return;
    }
    let rows: Value = serde_json::from_str(&out).unwrap();
    let rows = rows.as_array().unwrap();
    let found = |name: &str| rows.iter().find(|row| row["name"] == name);
    let shm = found("shm").unwrap();
    // libfabric can register DMA-bufs from version 1.20 on. `shm` registers any DMA-buf: it copies
    // with the CPU and ignores the DMA-buf's file descriptor.
    let major = shm["version"].as_str().and_then(|version| version.split('.').next());
    let is_old = major.and_then(|major| major.parse::<u32>().ok()).is_some_and(|v| v < 120);
    let test = if is_old { "passed" } else { "passed; it registers DMA-bufs" };
    assert_eq!((&shm["passed"], &shm["test"]), (&true.into(), &test.into()), "{out}");
    let tcp = found("tcp").or(found("tcp;ofi_rxm")).unwrap();
    assert_eq!((&tcp["test"], &tcp["device_memory"]), (&"passed".into(), &false.into()), "{out}");
    let without = tcp["without"].to_string();
    assert!(without.contains("no memory of accelerators"), "{without}");
    let (_, out, _) = ferroccl(&[]);
    assert!(out.starts_with("provider ") && out.contains("\nshm "), "{out}");
}

#[test]
fn the_test_of_a_missing_provider_fails_with_the_reason() {
    let (status, out, _) = ferroccl(&["--ofi-part", "carrier-pigeon"]);
    assert_eq!(status, 1, "{out}");
    let reasons = ["there is no provider carrier-pigeon", "libfabric.so.1"];
    assert!(reasons.iter().any(|reason| out.contains(reason)), "{out}");
}

#[test]
fn options_that_conflict_with_ofi_are_refused() {
    for arguments in [&["--quiet"][..], &["--peer", "localhost:1"], &["--root", "/"]] {
        let (status, _, errors) = ferroccl(arguments);
        assert!(status == 2 && errors.contains("cannot be used with"), "{errors}");
    }
}
