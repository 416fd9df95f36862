//! Workspace of the project, as `cargo metadata` and git describe it.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde::Deserialize;

use crate::{Outcome, process};

/// Returns the directory of the workspace: the one above this crate.
pub(crate) fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_path_buf()
}

/// Returns a `cargo` command that runs in the workspace's root, as if typed there. Variables that
/// cargo has set for xtask are removed. Otherwise cargo would rebuild some crates that have build
/// scripts, and every crate that depends on a rebuilt crate.
pub(crate) fn cargo(args: &[impl AsRef<OsStr>]) -> Command {
    let mut command = Command::new("cargo");
    command.current_dir(root()).args(args);
    for (name, _) in std::env::vars_os() {
        let known = name.to_string_lossy();
        if known.starts_with("CARGO_PKG_") || known.starts_with("CARGO_MANIFEST_") {
            command.env_remove(name);
        }
    }
    command
}

/// Returns cargo's target directory.
pub(crate) fn target_dir() -> Outcome<PathBuf> {
    Ok(metadata()?.target_directory)
}

/// Purpose of a dependency.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Build of the crate itself, or of its build script.
    Build,
    /// Build of the crate's tests, examples and benchmarks only.
    Dev,
}

/// Crate of the workspace. Directories are relative to the root, which itself is "".
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Crate {
    pub(crate) name: String,
    pub(crate) dir: String,
    /// Directories of the workspace crates that it depends on, with the purpose of each.
    pub(crate) dependencies: Vec<(String, Purpose)>,
    /// Names of its third-party dependencies, without dev-dependencies.
    pub(crate) others: Vec<String>,
    /// Names of its integration test binaries.
    pub(crate) tests: Vec<String>,
}

/// Returns the crates of the workspace, as `cargo metadata` lists them.
pub(crate) fn crates() -> Outcome<Vec<Crate>> {
    Ok(ours(&metadata()?))
}

/// Returns the output of `git status` for the working tree; empty if git fails, for example because
/// there is no repository. An error says why git cannot be started.
pub(crate) fn status() -> Outcome<String> {
    let mut command = Command::new("git");
    command.current_dir(root()).args(["status", "--porcelain"]);
    let mut lines = String::new();
    let end = process::run(&mut command, Duration::from_secs(60), |line| {
        lines.push_str(line);
        lines.push('\n');
    })?;
    Ok(if end.success() { lines } else { String::new() })
}

/// Returns the files that differ from the commit `base`, including uncommitted ones, relative to
/// the root.
pub(crate) fn changed_since(base: &str) -> Outcome<Vec<String>> {
    let git = |arguments: &[&str]| {
        let mut command = Command::new("git");
        process::capture(command.current_dir(root()).args(arguments), Duration::from_secs(60))
    };
    let changed = git(&["diff", "--name-only", base, "--"])?;
    let new = git(&["ls-files", "--others", "--exclude-standard"])?;
    Ok(changed.lines().chain(new.lines()).map(str::to_owned).collect())
}

fn metadata() -> Outcome<Metadata> {
    let mut command = cargo(&["metadata", "--no-deps", "--format-version", "1"]);
    parse(&process::capture(&mut command, Duration::from_secs(60))?)
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    workspace_root: PathBuf,
    target_directory: PathBuf,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    manifest_path: PathBuf,
    dependencies: Vec<Dependency>,
    targets: Vec<Target>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    kind: Option<String>,
    path: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
}

fn parse(json: &str) -> Outcome<Metadata> {
    serde_json::from_str(json)
        .map_err(|error| format!("cannot read the output of `cargo metadata`: {error}"))
}

fn ours(metadata: &Metadata) -> Vec<Crate> {
    let root = &metadata.workspace_root;
    let relative =
        |dir: &Path| dir.strip_prefix(root).unwrap_or(dir).to_string_lossy().into_owned();
    let crates = metadata.packages.iter().map(|package| Crate {
        name: package.name.clone(),
        dir: package.manifest_path.parent().map(relative).unwrap_or_default(),
        dependencies: package
            .dependencies
            .iter()
            .filter_map(|dependency| {
                let dev = dependency.kind.as_deref() == Some("dev");
                let purpose = if dev { Purpose::Dev } else { Purpose::Build };
                dependency.path.as_deref().map(|path| (relative(path), purpose))
            })
            .collect(),
        others: package
            .dependencies
            .iter()
            .filter(|other| other.path.is_none() && other.kind.as_deref() != Some("dev"))
            .map(|other| other.name.clone())
            .collect(),
        tests: package
            .targets
            .iter()
            .filter(|target| target.kind.iter().any(|kind| kind == "test"))
            .map(|target| target.name.clone())
            .collect(),
    });
    crates.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_is_reduced_to_our_crates_and_their_edges() {
        let json = r#"{"workspace_root": "/w", "target_directory": "/t",
            "packages": [{"name": "a",
            "manifest_path": "/w/rooms/a/Cargo.toml",
            "dependencies": [{"name": "b", "kind": null, "path": "/w/b"},
                {"name": "w", "kind": "dev", "path": "/w"},
                {"name": "c", "kind": "build", "path": "/w/c"}, {"name": "d", "kind": null},
                {"name": "e", "kind": "dev"}],
            "targets": [{"name": "a", "kind": ["lib"]}, {"name": "t", "kind": ["test"]}]}]}"#;
        let expected = Crate {
            name: "a".to_owned(),
            dir: "rooms/a".to_owned(),
            dependencies: vec![
                ("b".to_owned(), Purpose::Build),
                (String::new(), Purpose::Dev),
                ("c".to_owned(), Purpose::Build),
            ],
            others: vec!["d".to_owned()],
            tests: vec!["t".to_owned()],
        };
        assert_eq!(ours(&parse(json).unwrap()), [expected]);
        assert!(parse("no JSON").is_err_and(|error| error.contains("cargo metadata")));
    }

    #[test]
    fn the_crates_of_the_workspace_include_xtask() {
        let crates = crates().unwrap();
        assert!(crates.iter().any(|found| found.name == "xtask" && found.dir == "xtask"));
    }
}
