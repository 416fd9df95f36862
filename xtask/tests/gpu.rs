//! Dry runs, without a GPU, of the checks of `cargo xtask gpu`: everything except NCCL itself.

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};
    use std::process::Command;

    use serde_json::Value;

    /// Path of the Python that has Debian's PyTorch.
    const PYTHON: &str = "/usr/bin/python3";

    /// Makes the bundle (the folder with the checks, the plugin and the command); returns its path.
    fn bundle() -> PathBuf {
        let xtask = env!("CARGO_BIN_EXE_xtask");
        let made = Command::new(xtask).args(["gpu", "--bundle-only", "--profile", "dev"]).output();
        let made = made.unwrap();
        let said = String::from_utf8_lossy(&made.stdout);
        assert!(made.status.success(), "{said}{}", String::from_utf8_lossy(&made.stderr));
        let place = said.lines().find_map(|line| line.split_once(" is ready."));
        PathBuf::from(place.expect("the output must say where the bundle is").0)
    }

    /// Runs the checks; returns whether they passed, their results, and their output.
    fn check(bundle: &Path, more: &[&str]) -> (bool, Value, String) {
        let out = bundle.join("dry.json");
        let _ = fs::remove_file(&out);
        let mut command = Command::new(PYTHON);
        command.arg(bundle.join("checks.py")).args(["--backend", "gloo", "--out"]).arg(&out);
        let output = command.args(more).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr);
        let results = serde_json::from_str(&fs::read_to_string(&out).expect(&said)).unwrap();
        (output.status.success(), results, said)
    }

    #[test]
    fn the_checks_run_without_a_gpu_and_fail_if_a_result_is_spoiled() {
        let torch = Command::new(PYTHON).args(["-c", "import torch.distributed"]).output();
        if !torch.is_ok_and(|output| output.status.success()) {
            println!("\nSKIPPED: there is no PyTorch; `cargo xtask setup` installs it");
            return;
        }
        let bundle = bundle();
        let (fine, results, said) = check(&bundle, &[]);
        assert!(fine && results["passed"] == true, "{said}");
        assert_eq!(results["rows"].as_array().map(Vec::len), Some(7), "{said}");
        let (fine, results, said) = check(&bundle, &["--plant"]);
        assert!(!fine && results["passed"] == false, "{said}");
        assert!(said.contains("FAILED: other bits in"), "{said}");
        // The results are from no GPU, so they are not recorded.
        let mut record = Command::new(env!("CARGO_BIN_EXE_xtask"));
        let refused = record.args(["gpu", "--record"]).arg(bundle.join("dry.json")).output();
        assert!(!refused.unwrap().status.success());
    }
}
