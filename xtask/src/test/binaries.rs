//! Test binaries of the workspace; one `cargo` call builds them all.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use serde::Deserialize;

use crate::workspace::{cargo, root};
use crate::{Outcome, process};

/// Arguments of the one call that compiles the test binaries and everything that they use:
/// libraries, programs and examples, with one profile and one set of features.
pub(crate) const BUILD: [&str; 4] = ["test", "--workspace", "--locked", "--no-run"];

/// Executable that holds tests of one cargo target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Binary {
    /// Target as cargo names it: `ccl_core` for a library, `verifier` for an integration test.
    pub(crate) target: String,
    /// True if the binary holds the unit tests of a library or a program.
    pub(crate) is_unit: bool,
    pub(crate) path: PathBuf,
    /// Directory of the package, in which cargo runs the tests.
    pub(crate) dir: PathBuf,
}

/// Builds every test binary and returns the binaries, sorted by directory and target.
pub(crate) fn build(within: Duration) -> Outcome<Vec<Binary>> {
    let mut command = cargo(&BUILD);
    command.args(["--message-format", "json-render-diagnostics"]);
    println!("   $ {}", process::typed(&command));
    Ok(parse(&process::capture(&mut command, within)?))
}

#[derive(Deserialize)]
struct Message {
    manifest_path: Option<PathBuf>,
    target: Option<Target>,
    profile: Option<Profile>,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

fn parse(messages: &str) -> Vec<Binary> {
    let messages = messages.lines().filter_map(|line| serde_json::from_str(line).ok());
    let binary = |message: Message| {
        let (target, path) = (message.target?, message.executable?);
        let is_test = message.profile.is_some_and(|profile| profile.test);
        let is_example = target.kind.iter().any(|kind| kind == "example");
        let dir = message.manifest_path?.parent().map_or_else(root, PathBuf::from);
        let is_unit = target.kind.iter().all(|kind| kind != "test");
        (is_test && !is_example).then_some(Binary { target: target.name, is_unit, path, dir })
    };
    let mut binaries: Vec<Binary> = messages.filter_map(binary).collect();
    binaries.sort_by(|a, b| (&a.dir, &a.target).cmp(&(&b.dir, &b.target)));
    binaries
}

impl Binary {
    /// Returns the names of the tests, without those that libtest ignores.
    pub(crate) fn tests(&self) -> Outcome<Vec<String>> {
        let all = self.list(&[])?;
        let ignored = self.list(&["--ignored"])?;
        Ok(all.into_iter().filter(|name| !ignored.contains(name)).collect())
    }

    fn list(&self, more: &[&str]) -> Outcome<Vec<String>> {
        let mut command = Command::new(&self.path);
        command.args(["--list", "--format", "terse"]).args(more).current_dir(&self.dir);
        let listed = process::capture(&mut command, Duration::from_secs(120))?;
        let names = listed.lines().filter_map(|line| line.strip_suffix(": test"));
        Ok(names.map(str::to_owned).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn binaries_are_found_among_cargos_messages() {
        let line = |name: &str, kind: &str, test: bool, executable: &str| {
            format!(
                r#"{{"manifest_path":"/w/p/Cargo.toml","profile":{{"test":{test}}},
                "target":{{"name":"{name}","kind":["{kind}"]}},"executable":{executable}}}"#
            )
            .replace('\n', "")
        };
        let messages = [
            line("dependency", "lib", false, "null"),
            line("ours", "lib", true, "\"/t/ours-1\""),
            line("program", "bin", false, "\"/t/program\""),
            line("shown", "example", true, "\"/t/shown\""),
            line("whole", "test", true, "\"/t/whole-1\""),
            r#"{"reason":"build-finished","success":true}"#.to_owned(),
        ];
        let found = parse(&messages.join("\n"));
        let names: Vec<_> = found.iter().map(|b| (b.target.as_str(), b.is_unit)).collect();
        assert_eq!(names, [("ours", true), ("whole", false)]);
        assert_eq!(found[0].dir, PathBuf::from("/w/p"));
    }
}
