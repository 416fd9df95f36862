//! libFuzzer on the targets in `fuzz/`, with the flags that cargo-fuzz would pass. The check needs
//! no cargo-fuzz, only the nightly toolchain and a C++ compiler.

use std::fs;
use std::process::Command;

use super::{Verdict, cargo, host, nightly_missing, show};
use crate::Outcome;
use crate::workspace::{root, target_dir};

/// Compiler flags for libFuzzer's coverage, and for AddressSanitizer, which reports memory faults.
const FLAGS: &str = "--cfg fuzzing -Zsanitizer=address -Cpasses=sancov-module \
    -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares";

/// Arguments of a short run: a fixed seed and number of inputs per target, so that luck does not
/// decide whether a change passes. A slow machine stops after 10 seconds with fewer inputs.
const SHORT: [&str; 3] = ["-seed=1", "-runs=20000", "-max_total_time=10"];
/// Arguments of a longer run, which looks for new inputs for 40 seconds.
const FULL: [&str; 1] = ["-max_total_time=40"];

/// Runs each target for a while, starting from its inputs in `fuzz/corpus`.
pub(super) fn run(full: bool) -> Outcome<Verdict> {
    println!("   needs the nightly toolchain and a C++ compiler; installs nothing");
    println!("   unit tests run the targets over fuzz/corpus, fuzz/crashes and mutations of both");
    if let Some(why) = nightly_missing() {
        return Ok(Verdict::Skipped(why));
    }
    if !crate::process::is_installed("c++") {
        let why = "there is no C++ compiler for libFuzzer; `apt-get install g++`";
        return Ok(Verdict::Skipped(why.to_owned()));
    }
    let mut build = cargo(Some("+nightly"), "fuzz", FLAGS, full)?;
    build.args([
        "build",
        "--release",
        "--locked",
        "--manifest-path",
        "fuzz/Cargo.toml",
        "--target",
        &host(),
    ]);
    show(&mut build)?;
    let mut failed = Vec::new();
    for target in targets()? {
        if let Err(error) = fuzz(&target, full) {
            println!("{error}");
            failed.push(target);
        }
    }
    if failed.is_empty() {
        return Ok(Verdict::Passed);
    }
    Err(format!(
        "fuzzing of {} failed; fix the code, and move the inputs in fuzz/artifacts to \
         fuzz/crashes/TARGET, where the unit tests run them",
        failed.join(", ")
    ))
}

fn fuzz(target: &str, full: bool) -> Outcome {
    let built = target_dir()?.join("fuzz").join(host()).join("release").join("any");
    // Only longer runs keep new inputs; the corpus in the tree changes only by hand.
    let (kept, how) = if full { ("corpus", &FULL[..]) } else { ("short", &SHORT[..]) };
    let found = target_dir()?.join("fuzz").join(kept).join(target);
    if !full {
        // The directory does not exist the first time.
        let _ = fs::remove_dir_all(&found);
    }
    let artifacts = root().join("fuzz/artifacts").join(target);
    for dir in [&found, &artifacts] {
        fs::create_dir_all(dir)
            .map_err(|error| format!("cannot make {}: {error}", dir.display()))?;
    }
    let mut command = Command::new(built);
    command.env("FERROCCL_FUZZ", target);
    command.arg(found).arg(root().join("fuzz/corpus").join(target));
    command.args(how).args(["-max_len=2048", "-timeout=10"]);
    command.arg(format!("-artifact_prefix={}/", artifacts.display()));
    command.args(["-verbosity=0", "-print_final_stats=1"]).current_dir(root());
    show(&mut command)
}

/// Returns the names of the targets in order; each target has a corpus.
fn targets() -> Outcome<Vec<String>> {
    let dir = root().join("fuzz/corpus");
    let entries =
        fs::read_dir(&dir).map_err(|error| format!("cannot list {}: {error}", dir.display()))?;
    let names = entries.flatten().map(|entry| entry.file_name());
    let mut names: Vec<String> = names.map(|name| name.to_string_lossy().into_owned()).collect();
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_target_is_built_and_has_a_corpus_and_a_unit_test() {
        let read = |path: &str| fs::read_to_string(root().join(path)).unwrap();
        let program = read("fuzz/fuzz_targets/any.rs");
        let mut built: Vec<_> = program
            .lines()
            .filter_map(|line| line.trim().strip_prefix("(\"")?.split_once("\", "))
            .map(|(name, rest)| {
                let function = rest.trim_end_matches("),").rsplit("::").next().unwrap();
                (name.to_owned(), function.to_owned())
            })
            .collect();
        built.sort();
        assert_eq!(targets().unwrap(), Vec::from_iter(built.iter().map(|(name, _)| name.clone())));
        let crates = [
            "ccl-core",
            "ccl-core/bootstrap",
            "",
            "transports/socket",
            "transports/shm",
            "transports/tcp",
            "plugins/nccl-net",
            "tools/model",
            "tools/traffic",
        ];
        let tests: String =
            crates.iter().map(|dir| read(&format!("./{dir}/src/fuzzing.rs"))).collect();
        assert!(!built.is_empty());
        for (target, function) in built {
            let replayed = format!("replay(\"{target}\", super::{function})");
            assert!(tests.contains(&replayed), "no unit test contains `{replayed}`");
            let corpus = root().join("fuzz/corpus").join(&target);
            assert!(fs::read_dir(corpus).unwrap().next().is_some(), "{target} has no corpus");
        }
    }
}
