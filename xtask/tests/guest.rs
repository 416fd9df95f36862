//! Tests of `cargo xtask guest` as a process: its input, its output and its exit status.

#[cfg(test)]
mod guest {
    use std::io::Write;
    use std::process::{Command, Output};
    use std::time::{Duration, Instant};

    /// Runs `cargo xtask guest` with these arguments. Returns `None` and prints the reason if this
    /// machine cannot run a guest (a virtual machine).
    fn guest(arguments: &[&str]) -> Option<Output> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
        command.arg("guest").args(arguments).env("FERROCCL_TEST_WORD", "it's\n\"this\"");
        let output = command.output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        let unavailable = "guest: this machine cannot run a guest: ";
        if let Some(reason) = stderr.lines().find_map(|line| line.strip_prefix(unavailable)) {
            // The test harness captures `eprintln!`, so this writes to stderr directly.
            std::io::stderr().write_all(format!("\nSKIPPED: {reason}\n").as_bytes()).unwrap();
            return None;
        }
        Some(output)
    }

    #[test]
    fn the_status_is_that_of_the_command() {
        for (script, status) in [("true", 0), ("exit 1", 1), ("exit 42", 42), ("kill -9 $$", 137)] {
            let Some(output) = guest(&["--", "sh", "-c", script]) else { return };
            assert_eq!(output.status.code(), Some(status), "{script}: {output:?}");
        }
    }

    #[test]
    fn output_and_errors_come_back_byte_for_byte() {
        // The data is larger than every buffer on its path, and contains every byte value.
        let bytes: Vec<u8> = (0..1_500_000u32).map(|i| (i ^ (i >> 8)) as u8).collect();
        let file = std::env::temp_dir().join(format!("ferroccl-bytes-{}", std::process::id()));
        std::fs::write(&file, &bytes).unwrap();
        let script = "cat \"$1\"; cat \"$1\" >/dev/stderr; printf end";
        let output = guest(&["--", "sh", "-c", script, "sh", file.to_str().unwrap()]);
        std::fs::remove_file(&file).unwrap();
        let Some(output) = output else { return };
        assert_eq!(output.status.code(), Some(0));
        let expected = [bytes.as_slice(), b"end"].concat();
        assert!(output.stdout == expected, "wrong stdout of {} bytes", output.stdout.len());
        // If the guest had to be installed first, a message about that precedes these bytes.
        assert!(output.stderr.ends_with(&bytes), "wrong stderr of {} bytes", output.stderr.len());
    }

    #[test]
    fn the_command_gets_its_arguments_its_directory_and_its_environment() {
        let script = "pwd; printf '<%s>' \"$@\" \"$FERROCCL_TEST_WORD\"; uname -r; nproc";
        let words = ["--smp", "1", "--", "sh", "-c", script, "sh", "a b", "", "c'd\ne"];
        let Some(output) = guest(&words) else { return };
        let text = String::from_utf8_lossy(&output.stdout);
        let here = std::env::current_dir().unwrap();
        let start = format!("{}\n<a b><><c'd\ne><it's\n\"this\">6.1.", here.display());
        assert!(text.starts_with(&start) && text.ends_with("\n1\n"), "{text}");
    }

    #[test]
    fn the_guest_changes_only_shared_directories_of_the_host() {
        let base = std::env::temp_dir().join(format!("ferroccl-shared-{}", std::process::id()));
        std::fs::create_dir_all(base.join("rw")).unwrap();
        let script = "echo kept >\"$1/rw/kept\" && echo lost >\"$1/lost\" && cat \"$1/lost\"";
        let (rw, path) = (base.join("rw"), base.to_str().unwrap());
        let output = guest(&["--rw", rw.to_str().unwrap(), "--", "sh", "-c", script, "sh", path]);
        let kept = std::fs::read_to_string(rw.join("kept"));
        let lost = base.join("lost").exists();
        std::fs::remove_dir_all(&base).unwrap();
        let Some(output) = output else { return };
        assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(0), &b"lost\n"[..]));
        assert_eq!((kept.unwrap().as_str(), lost), ("kept\n", false));
    }

    #[test]
    fn a_command_is_ended_at_its_time_limit() {
        let Some(_) = guest(&["--", "true"]) else { return };
        let start = Instant::now();
        let output = guest(&["--timeout", "10", "--", "sleep", "600"]).unwrap();
        assert_eq!(output.status.code(), Some(124), "{output:?}");
        let took = start.elapsed();
        assert!(took > Duration::from_secs(9) && took < Duration::from_secs(60), "{took:?}");
    }

    #[test]
    fn a_guest_that_dies_gives_status_125() {
        let crash = ["--", "sh", "-c", "echo c >/proc/sysrq-trigger"];
        let Some(output) = guest(&crash) else { return };
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(125), "{stderr}");
        assert!(stderr.contains("its console says:") && stderr.contains("sysrq"), "{stderr}");
    }
}
