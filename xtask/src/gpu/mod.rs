//! `cargo xtask gpu`: everything that needs a GPU, as a folder that runs anywhere with one GPU,
//! PyTorch and no Rust; and the record of what was seen there.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use clap::Args;
use serde::Deserialize;

use crate::dist::{self, PLUGIN, Zig};
use crate::workspace::{root, target_dir};
use crate::{Outcome, machine, process, report};

const CHECKS: &str = include_str!("checks.py");
const SCRIPT: &str = "checks.py";
const NETCHECK: &str = "netcheck";
/// Where results are recorded, relative to the root.
const RECORD: &str = "docs/gpu-results.md";
const RUN_WITHIN: Duration = Duration::from_secs(600);

/// Flags of `cargo xtask gpu`.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Only make the folder, to be carried to a machine with a GPU
    #[arg(long)]
    bundle_only: bool,
    /// Only write docs/gpu-results.md from what the checks wrote elsewhere
    #[arg(long, value_name = "RESULTS.JSON", conflicts_with = "bundle_only")]
    record: Option<PathBuf>,
    /// Take what was built with this profile, and build it so
    #[arg(long, default_value = "dist")]
    profile: String,
}

/// What the checks write.
#[derive(Debug, Deserialize)]
struct Results {
    date: String,
    commit: String,
    backend: String,
    torch: String,
    nccl: Option<String>,
    gpu: Option<String>,
    cuda: Option<String>,
    passed: bool,
    rows: Vec<(String, String)>,
}

/// Makes the folder, and runs and records what is in it where there is a GPU.
pub(crate) fn run(options: &Options) -> Outcome {
    if let Some(results) = &options.record {
        return record(results);
    }
    let bundle = bundle(&options.profile)?;
    let shown = bundle.display();
    if options.bundle_only || !process::is_installed("nvidia-smi") {
        println!(
            "{shown} is ready. On a machine with one GPU and PyTorch: `python3 {SCRIPT} --out \
             results.json` in it, then here `cargo xtask gpu --record results.json`. Without a \
             GPU, `python3 {SCRIPT} --backend gloo` checks the checks."
        );
        return Ok(());
    }
    let results = bundle.join("results.json");
    let mut checks = Command::new("python3");
    checks.arg(bundle.join(SCRIPT)).arg("--out").arg(&results);
    let end = process::run(&mut checks, RUN_WITHIN, |line| println!("{line}"))?;
    record(&results)?;
    if end.success() { Ok(()) } else { Err(format!("some check failed: {}", end.describe())) }
}

/// Builds everything and puts it side by side.
fn bundle(profile: &str) -> Outcome<PathBuf> {
    let packages = ["--package", "ccl-nccl-net", "--package", "ccl-netcheck"];
    let built = Zig::install()?.build(profile, &packages)?;
    for file in [dist::BUILT, NETCHECK] {
        dist::portable(&built.join(file))?;
    }
    let bundle = target_dir()?.join("gpu");
    let failed = |error: std::io::Error| format!("cannot make {}: {error}", bundle.display());
    fs::create_dir_all(&bundle).map_err(failed)?;
    for (from, to) in [(dist::BUILT, PLUGIN), (NETCHECK, NETCHECK)] {
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

/// What docs/gpu-results.md says. An error for results that no GPU gave.
fn page(results: &Results) -> Outcome<String> {
    let Results { date, commit, torch, passed, .. } = results;
    let (Some(nccl), Some(gpu), Some(cuda)) = (&results.nccl, &results.gpu, &results.cuda) else {
        let backend = &results.backend;
        return Err(format!("these are of the backend {backend}: only a GPU's are recorded"));
    };
    let rows: Vec<Vec<String>> =
        results.rows.iter().map(|(check, result)| vec![check.clone(), oneline(result)]).collect();
    let ended = if *passed { "All checks passed" } else { "Some check failed" };
    Ok(format!(
        "# Seen on a GPU\n\nWritten by `cargo xtask gpu`: {date}, commit {commit}, {gpu}, PyTorch \
         {torch}, CUDA {cuda}, NCCL {nccl}. {ended}.\n\n{}",
        report::table(&["check", "result"], &rows)
    ))
}

/// Without what would end a table's row.
fn oneline(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_gpu_gave_is_a_page_and_what_none_gave_is_none() {
        let seen = r#"{"date": "2026-11-22 10:00 UTC", "commit": "abc", "backend": "nccl",
            "torch": "2.11.0", "nccl": "2.28.9", "gpu": "H100", "cuda": "13.0", "passed": false,
            "rows": [["loads", "ok: v8"], ["same bits", "FAILED: a\nb | c"]]}"#;
        let mut results: Results = serde_json::from_str(seen).unwrap();
        let text = page(&results).unwrap();
        assert!(text.contains("H100, PyTorch 2.11.0, CUDA 13.0, NCCL 2.28.9. Some check failed"));
        assert!(text.contains("| FAILED: a b / c |"), "{text}");
        results.gpu = None;
        assert!(page(&results).is_err());
    }
}
