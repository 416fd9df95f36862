//! The only build script of our own. It records which commit the binaries were made from, so that
//! every measurement can say so; device code (kernels/cuda) will be embedded here.

use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // The log of HEAD grows with every commit; HEAD itself names a branch and stays the same.
    if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"]) {
        println!("cargo:rerun-if-changed={log}");
    }
    let commit = git(&["rev-parse", "--short=12", "HEAD"]);
    println!("cargo:rustc-env=FERROCCL_COMMIT={}", commit.as_deref().unwrap_or("unknown"));
}

/// Returns what git prints; none without git or without a repository.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = output.status.success().then(|| String::from_utf8(output.stdout).ok())??;
    Some(text.trim().to_owned())
}
