//! Tests that netcheck finds no fault in the reference plugin, and finds each planted fault.

#[cfg(test)]
mod faults {
    use std::io::Read as _;
    use std::path::{Path, PathBuf};
    use std::process::{Child, Command, Output, Stdio};
    use std::time::{Duration, Instant};

    // Nothing of this dev-dependency is used here: the tests load the plugin that cargo builds
    // from it.
    use nccl_net_reference as _;
    use rustix::process::{Pid, Signal, kill_process};
    use serde_json::Value;

    /// Environment variable that plants a fault in the reference plugin.
    const FAULT: &str = "REFERENCE_NET_FAULT";

    /// Returns the path of the reference plugin, which cargo puts beside the tests.
    fn plugin() -> PathBuf {
        let test = std::env::current_exe().unwrap();
        let plugin = test.parent().unwrap().join("libnccl_net_reference.so");
        assert!(plugin.exists(), "{} does not exist", plugin.display());
        plugin
    }

    fn netcheck(plugin: &Path, fault: &str, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_netcheck"));
        command.arg(plugin).args(arguments).env(FAULT, fault).output().unwrap()
    }

    fn text(bytes: &[u8]) -> String {
        String::from_utf8_lossy(bytes).into_owned()
    }

    /// Returns the points that failed, with the reasons. Asserts that the exit status agrees.
    fn failures(plugin: &Path, fault: &str, arguments: &[&str]) -> Vec<(String, String)> {
        let arguments = [arguments, &["--skip-performance", "--json", "-"]].concat();
        let output = netcheck(plugin, fault, &arguments);
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let field = |point: &Value, key: &str| point[key].as_str().unwrap_or_default().to_owned();
        let points = report["points"].as_array().unwrap().iter();
        let failed: Vec<(String, String)> = points
            .filter(|point| point["outcome"] == "failed")
            .map(|point| (field(point, "point"), field(point, "why")))
            .collect();
        let status = i32::from(!failed.is_empty());
        assert_eq!(output.status.code(), Some(status), "{}", text(&output.stderr));
        failed
    }

    /// Expects that `point` fails with this fault, for a reason that contains `words`.
    fn finds(fault: &str, point: &str, words: &str) {
        let failed = failures(&plugin(), fault, &["--only", point, "--timeout", "4"]);
        let [(_, why)] = failed.as_slice() else { panic!("{point} misses the fault {fault}") };
        assert!(why.contains(words), "{point} finds the fault {fault}, but reports: {why}");
    }

    #[test]
    fn the_reference_keeps_the_contract_in_all_versions() {
        assert_eq!(failures(&plugin(), "", &[]), []);
        assert_eq!(failures(&plugin(), "", &["--api", "v8"]), []);
        // The versions between v8 and the newest differ in only a few calls.
        let only = "properties,attributes_accepted,send_receive,grouped_receives,\
                    optional_completion,finalize_joins_threads,dlclose_is_harmless,device_handles,\
                    consumed_receives,flush,profiled_requests";
        for api in ["v11", "v10", "v9"] {
            assert_eq!(failures(&plugin(), "", &["--api", api, "--only", only]), [], "{api}");
        }
    }

    #[test]
    fn calls_that_block_are_found() {
        let point = "listen_connect_accept_never_block";
        finds("blocking_connect", point, "connect blocked for");
        finds("blocking_accept", point, "accept blocked for");
    }

    #[test]
    fn points_that_depend_on_a_failed_point_are_not_tried() {
        let arguments = ["--contract-only", "--timeout", "5", "--json", "-"];
        let output = netcheck(&plugin(), "never_connects", &arguments);
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let points = report["points"].as_array().unwrap();
        let with = |outcome: &str| -> Vec<&Value> {
            points.iter().filter(|point| point["outcome"] == outcome).collect()
        };
        let (failed, not_tried) = (with("failed"), with("not_tried"));
        let [failed] = failed.as_slice() else { panic!("{failed:?}") };
        assert_eq!(failed["point"], "connects");
        let reason = "depends on connects, which failed";
        assert!(not_tried.iter().all(|point| point["why"] == reason), "{not_tried:?}");
        // Points that need no connection are still tried.
        let tried = with("passed").len() + with("skipped").len();
        assert!(tried >= 7 && not_tried.len() + tried + 1 == points.len(), "{points:?}");
        assert!(not_tried.iter().any(|point| point["point"] == "in_order"));
        assert_eq!(report["performance_failed"], reason);
    }

    #[test]
    fn wrong_data_and_wrong_sizes_and_wrong_order_are_found() {
        finds("corrupt", "in_order", "other data");
        finds("wrong_size", "send_receive", "test reported 1 bytes received");
        finds("zero_hang", "zero_sizes", "message 0 of 14 (0 bytes)");
        finds("no_truncation", "truncation", "receiving 1000 bytes of 2000");
        finds("tag_order", "grouped_receives", "tag");
        finds("tag_order", "wrong_tag_waits", "tag");
        finds("double_completion", "thirty_two_in_flight", "nothing had arrived");
    }

    #[test]
    fn requests_that_are_not_served_are_found() {
        finds("few_requests", "thirty_two_in_flight", "irecv took 8 requests");
        finds("progress_only_in_test", "isend_progresses_without_test", "did not end");
        finds("registration_race", "registration_during_transfers", "returned nccl");
        finds("wrong_result_on_null", "null_arguments", "returned ncclSuccess");
        finds("refuses_events", "profiled_requests", "returned ncclInvalidArgument");
        finds("stray_events", "profiled_requests", "came with no request");
        finds("flush_hangs", "flush", "test to say that the flush is done");
        finds("consumed_frees", "consumed_receives", "test returned ncclInvalidArgument");
    }

    #[test]
    fn harm_by_a_close_or_a_reused_listener_or_a_stranger_is_found() {
        finds("reset_on_close", "close_in_flight", "after the sender has closed");
        finds("handle_reuse", "several_connections_from_one_listener", "accept");
        finds("stranger_kills", "stranger_on_port", "because a stranger connected");
    }

    #[test]
    fn leaked_resources_are_found() {
        finds("leak_descriptors", "listen_close_cycles", "file descriptors leak");
        finds("leak_threads", "finalize_joins_threads", "run on after finalize");
    }

    #[test]
    fn merged_devices_with_wrong_parts_are_found() {
        finds("forgets_parts", "several_devices_as_one", "is made of [0, 1]");
    }

    #[test]
    fn faults_of_dma_buf_registration_are_found() {
        finds("any_descriptor", "dma_buf_registration", "regMrDmaBuf accepted descriptor -1");
        finds("closes_descriptor", "dma_buf_registration", "regMrDmaBuf closed the descriptor");
    }

    #[test]
    fn a_pci_path_that_is_no_directory_is_found() {
        finds("bus_id_as_path", "properties", "pciPath is 0000:3b:00.0");
    }

    #[test]
    fn a_device_side_that_is_claimed_but_missing_is_found() {
        finds("device_handle", "device_handles", "connect gave a device handle");
        finds("claims_device", "device_registration", "getDeviceMr returned ncclSuccess but");
    }

    #[test]
    fn a_plugin_without_devices_is_skipped_with_a_reason() {
        for only in [&[][..], &["--performance-only"], &["--only", "in_order"]] {
            let output = netcheck(&plugin(), "no_devices", only);
            let said = text(&output.stdout);
            assert_eq!(output.status.code(), Some(0), "{only:?}: {said}");
            assert!(said.contains("reports 0 devices: "), "{only:?}: {said}");
            assert!(!said.contains(" passed\n"), "{only:?}: {said}");
        }
    }

    #[test]
    fn a_file_that_is_no_plugin_fails_at_once() {
        for (library, words) in [("/no/such.so", "No such file"), ("libc.so.6", "exports none")] {
            let failed = failures(Path::new(library), "", &[]);
            let [(point, why)] = failed.as_slice() else { panic!("{failed:?}") };
            assert_eq!(point, "loads_and_names");
            assert!(why.contains(words), "{why}");
        }
        let output = netcheck(&plugin(), "", &["--only", "no_such_point"]);
        assert_eq!(output.status.code(), Some(2));
        assert!(text(&output.stderr).contains("--list"));
    }

    /// A run of netcheck, in the middle of a point that has two processes.
    struct Running(Child);

    impl Running {
        fn start() -> Running {
            let mut command = Command::new(env!("CARGO_BIN_EXE_netcheck"));
            command.arg(plugin()).args(["--only", "idle_costs_nothing", "--json", "-"]);
            Running(command.stdout(Stdio::piped()).spawn().unwrap())
        }

        /// Returns the two processes of the point, once they have begun.
        fn processes(&self) -> Vec<Pid> {
            let path = format!("/proc/{0}/task/{0}/children", self.0.id());
            let start = Instant::now();
            loop {
                let ids = std::fs::read_to_string(&path).unwrap();
                let ids: Vec<&str> = ids.split_whitespace().filter(|id| has_begun(id)).collect();
                if ids.len() == 2 {
                    return ids.iter().filter_map(|id| Pid::from_raw(id.parse().ok()?)).collect();
                }
                assert!(start.elapsed() < Duration::from_secs(10), "{ids:?}");
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }

    impl Drop for Running {
        fn drop(&mut self) {
            let _ = self.0.kill();
        }
    }

    /// Returns whether a process is one of a point's two processes and has not ended.
    fn has_begun(id: &str) -> bool {
        let line = std::fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
        text(&line).contains("--side")
    }

    #[test]
    fn the_failure_of_a_process_that_dies_names_its_last_step() {
        let mut tester = Running::start();
        kill_process(tester.processes()[1], Signal::KILL).unwrap();
        let mut report = String::new();
        tester.0.stdout.take().unwrap().read_to_string(&mut report).unwrap();
        assert!(report.contains("\"sender: the process died of signal 9; last step: "), "{report}");
        assert!(!report.contains("; receiver: "), "{report}");
    }

    #[test]
    fn no_process_outlives_a_killed_netcheck() {
        let tester = Running::start();
        let processes = tester.processes();
        drop(tester);
        let start = Instant::now();
        while processes.iter().any(|id| has_begun(&id.to_string())) {
            assert!(start.elapsed() < Duration::from_secs(10), "{processes:?} still run");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn the_examples_of_the_help_work() {
        let help = Command::new(env!("CARGO_BIN_EXE_netcheck")).arg("--help").output().unwrap();
        let help = text(&help.stdout);
        let plugin = plugin();
        let examples = help.lines().filter_map(|line| line.strip_prefix("  ferroccl netcheck "));
        let mut count = 0;
        for example in examples {
            let arguments = example.replace("./libnccl-net-x.so", plugin.to_str().unwrap());
            let mut command = Command::new(env!("CARGO_BIN_EXE_netcheck"));
            let output = command.args(arguments.split(' ')).output().unwrap();
            assert!(output.status.success(), "{example}: {}", text(&output.stdout));
            count += 1;
        }
        assert_eq!(count, 6, "{help}");
    }
}
