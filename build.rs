//! Build script of the library: records the commit of the build, so that every measurement can name
//! it.

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

/// Returns the output of git; `None` if git fails or there is no repository.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = output.status.success().then(|| String::from_utf8(output.stdout).ok())??;
    Some(text.trim().to_owned())
}
