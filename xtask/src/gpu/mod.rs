//! `cargo xtask gpu`: builds a folder of checks that need a GPU, and records their results. The
//! checks run on any machine with one GPU and PyTorch, without Rust.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use clap::Args;
use serde::Deserialize;

use crate::dist::{self, PLUGIN, Zig};
use crate::process::End;
use crate::workspace::{root, target_dir};
use crate::{Outcome, machine, process, report};

const CHECKS: &str = include_str!("checks.py");
const SCRIPT: &str = "checks.py";
const COMMAND: &str = "ferroccl";
const RESULTS: &str = "results.json";
/// Path of the page that has the results, relative to the root.
const RECORD: &str = "docs/gpu-results.md";
const RUN_WITHIN: Duration = Duration::from_secs(600);

/// Flags of `cargo xtask gpu`.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Only make the folder, to be carried to a machine with a GPU
    #[arg(long)]
    bundle_only: bool,
    /// Only write docs/gpu-results.md, from results that the checks wrote elsewhere
    #[arg(long, value_name = "RESULTS.JSON", conflicts_with = "bundle_only")]
    record: Option<PathBuf>,
    /// Profile to build with
    #[arg(long, default_value = "dist")]
    profile: String,
}

/// Results that the checks write.
#[derive(Debug, Deserialize)]
struct Results {
    date: String,
    commit: String,
    backend: String,
    torch: String,
    nccl: Option<String>,
    gpu: Option<String>,
    cuda: Option<String>,
    /// False in the results of an interrupted run.
    complete: bool,
    passed: bool,
    rows: Vec<(String, String)>,
}

/// Makes the folder; if there is a GPU, runs the checks and records their results.
pub(crate) fn run(options: &Options) -> Outcome {
    if let Some(results) = &options.record {
        return record(results);
    }
    let bundle = bundle(&options.profile)?;
    let shown = bundle.display();
    if options.bundle_only || !process::is_installed("nvidia-smi") {
        println!(
            "{shown} is ready. Copy it to a machine with one GPU and PyTorch, and run `python3 \
             {SCRIPT} --out results.json` in the copy. Then bring results.json back, and run \
             `cargo xtask gpu --record results.json` here. Without a GPU, `python3 {SCRIPT} \
             --backend gloo` tests the checks themselves."
        );
        return Ok(());
    }
    let end = check(&bundle)?;
    record(&bundle.join(RESULTS)).map_err(|error| format!("{error}; {}", end.describe()))?;
    if end.success() { Ok(()) } else { Err(format!("a check failed: {}", end.describe())) }
}

/// Runs the checks, which write their results step by step. Results of an earlier run are removed
/// first, so that they are not mistaken for new ones.
fn check(bundle: &Path) -> Outcome<End> {
    let results = bundle.join(RESULTS);
    match fs::remove_file(&results) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            return Err(format!("cannot remove {}: {error}", results.display()));
        }
        _ => {}
    }
    let mut checks = Command::new("python3");
    checks.arg(bundle.join(SCRIPT)).arg("--out").arg(&results);
    process::run(&mut checks, RUN_WITHIN, |line| println!("{line}"))
}

/// Builds the plugin and the command, and copies them and the checks into one folder.
fn bundle(profile: &str) -> Outcome<PathBuf> {
    let built = Zig::install()?.build(profile, &dist::PACKED)?;
    for file in [dist::BUILT, COMMAND] {
        dist::portable(&built.join(file))?;
    }
    let bundle = target_dir()?.join("gpu");
    let failed = |error: std::io::Error| format!("cannot make {}: {error}", bundle.display());
    fs::create_dir_all(&bundle).map_err(failed)?;
    for (from, to) in [(dist::BUILT, PLUGIN), (COMMAND, COMMAND)] {
        fs::copy(built.join(from), bundle.join(to)).map_err(failed)?;
    }
    fs::write(bundle.join(SCRIPT), CHECKS).map_err(failed)?;
    fs::write(bundle.join("commit"), machine::commit()).map_err(failed)?;
    Ok(bundle)
}

fn record(results: &Path) -> Outcome {
    let named = |error: &dyn std::fmt::Display| format!("{}: {error}", results.display());
    let text = fs::read_to_string(results).map_err(|error| named(&error))?;
    let results: Results = serde_json::from_str(&text).map_err(|error| named(&error))?;
    fs::write(root().join(RECORD), page(&results)?)
        .map_err(|error| format!("cannot write {RECORD}: {error}"))?;
    println!("recorded in {RECORD}");
    Ok(())
}

/// Returns the text of docs/gpu-results.md; an error if the results are not from a GPU.
fn page(results: &Results) -> Outcome<String> {
    let Results { date, commit, torch, passed, .. } = results;
    let (Some(nccl), Some(gpu), Some(cuda)) = (&results.nccl, &results.gpu, &results.cuda) else {
        let backend = &results.backend;
        return Err(format!(
            "these results are from the backend {backend}: only results from a GPU are recorded"
        ));
    };
    let rows: Vec<Vec<String>> =
        results.rows.iter().map(|(check, result)| vec![check.clone(), oneline(result)]).collect();
    let ended = match (results.complete, passed) {
        (false, _) => "The run was cut short",
        (true, true) => "All checks passed",
        (true, false) => "A check failed",
    };
    Ok(format!(
        "# GPU results\n\nWritten by `cargo xtask gpu`: {date}, commit {commit}, {gpu}, PyTorch \
         {torch}, CUDA {cuda}, NCCL {nccl}. {ended}.\n\n{}",
        report::table(&["check", "result"], &rows)
    ))
}

/// Returns the text on one line, without bars, which would end a table cell.
fn oneline(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "/")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn results_of_a_gpu_make_a_page_but_other_results_make_an_error() {
        let seen = r#"{"date": "2026-11-22 10:00 UTC", "commit": "abc", "backend": "nccl",
            "torch": "2.11.0", "nccl": "2.28.9", "gpu": "H100", "cuda": "13.0",
            "complete": true, "passed": false,
            "rows": [["loads", "ok: v8"], ["same bits", "FAILED: a\nb | c"]]}"#;
        let mut results: Results = serde_json::from_str(seen).unwrap();
        let text = page(&results).unwrap();
        assert!(text.contains("H100, PyTorch 2.11.0, CUDA 13.0, NCCL 2.28.9. A check failed"));
        assert!(text.contains("| FAILED: a b / c |"), "{text}");
        results.complete = false;
        assert!(page(&results).unwrap().contains("The run was cut short"));
        results.gpu = None;
        assert!(page(&results).is_err());
    }

    /// Creates a folder with `script` as the checks, `torch` as a stand-in for PyTorch, and results
    /// of an earlier run.
    fn folder(name: &str, script: &str, torch: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("ferroccl-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(SCRIPT), script).unwrap();
        fs::write(folder.join("torch.py"), torch).unwrap();
        fs::write(folder.join("commit"), "abc").unwrap();
        fs::write(folder.join(RESULTS), "old").unwrap();
        folder
    }

    /// Runs the checks as a person would by hand, without a GPU.
    fn by_hand(folder: &Path) -> End {
        let mut checks = Command::new("python3");
        checks.current_dir(folder).args([SCRIPT, "--backend", "gloo", "--out", RESULTS]);
        process::run(&mut checks, Duration::from_secs(60), |line| println!("{line}")).unwrap()
    }

    fn has_python() -> bool {
        let has = process::is_installed("python3");
        if !has {
            println!("\nSKIPPED: there is no python3");
        }
        has
    }

    #[test]
    fn an_interrupted_run_leaves_the_results_that_it_has() {
        if !has_python() {
            return;
        }
        let folder = folder("gpu-cut", CHECKS, "__version__ = '0'");
        let command = folder.join(COMMAND);
        fs::write(&command, "#!/bin/sh\nkill -9 $PPID\n").unwrap();
        fs::set_permissions(&command, PermissionsExt::from_mode(0o755)).unwrap();
        assert!(!by_hand(&folder).success());
        let text = fs::read_to_string(folder.join(RESULTS)).unwrap();
        let left: Results = serde_json::from_str(&text).unwrap();
        assert!(!left.complete && !left.passed);
        // The first check fails, since the folder has no plugin. The second check starts the
        // command, which kills the run.
        let [(step, result)] = left.rows.as_slice() else { panic!("{:?}", left.rows) };
        assert_eq!(step, "the plugin loads");
        assert!(result.starts_with("FAILED: "), "{result}");
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn results_of_an_earlier_run_are_not_mistaken_for_those_of_this_run() {
        if !has_python() {
            return;
        }
        let broken = folder("gpu-broken", CHECKS, "raise SystemExit(3)");
        assert!(!by_hand(&broken).success());
        let mute = folder("gpu-mute", "raise SystemExit(3)", "");
        assert!(!check(&mute).unwrap().success());
        for folder in [broken, mute] {
            assert!(!folder.join(RESULTS).exists(), "{}", folder.display());
            fs::remove_dir_all(folder).unwrap();
        }
    }
}
