//! The command `ferroccl`, and checks of its help and its documentation pages.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Returns the path of the program, which the build puts one directory above the tests.
pub fn program() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let program = test.parent().and_then(|deps| deps.parent()).unwrap().join("ferroccl");
    assert!(
        program.exists(),
        "{} does not exist: run `cargo build -p ferroccl-cli`",
        program.display()
    );
    program
}

/// Returns the repository's root, to which paths on documentation pages are relative.
pub fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// Runs the program in the root with these arguments, separated by white space.
pub fn ferroccl(arguments: &str) -> Output {
    let mut command = Command::new(program());
    command.current_dir(root()).args(arguments.split_whitespace()).output().unwrap()
}

/// Returns the standard output of a run; panics if the run fails.
pub fn said(arguments: &str) -> String {
    let Output { status, stdout, stderr } = ferroccl(arguments);
    assert!(status.success(), "{arguments}: {}", String::from_utf8_lossy(&stderr));
    String::from_utf8(stdout).unwrap()
}

/// Returns the standard error of a run; panics unless the run fails with status `code`.
pub fn refused(arguments: &str, code: i32) -> String {
    let Output { status, stderr, .. } = ferroccl(arguments);
    assert_eq!(status.code(), Some(code), "{arguments}");
    String::from_utf8(stderr).unwrap()
}

/// Checks that a command's help has `count` examples and that each of them prints something.
pub fn examples_of_the_help_work(command: &str, count: usize) {
    let help = said(&format!("{command} --help"));
    let examples: Vec<_> =
        help.lines().filter_map(|line| line.strip_prefix("  ferroccl ")).collect();
    assert_eq!(examples.len(), count, "{help}");
    for example in examples {
        assert!(!said(example).is_empty(), "{example}");
    }
}

/// Returns the `ferroccl` commands in a page's `sh` blocks, without program name and comments.
pub fn commands_of(page: &str) -> Vec<&str> {
    let blocks = page.split("```sh\n").skip(1).filter_map(|rest| rest.split("```").next());
    let parts = blocks.flat_map(|block| block.lines().flat_map(|line| line.split("&&")));
    let bare = parts.filter_map(|part| part.split('#').next());
    bare.filter_map(|part| part.trim().strip_prefix("ferroccl ")).map(str::trim).collect()
}

/// Checks that each command on a page prints the text below it, and that the page has at least
/// `least` such examples.
pub fn page_shows_what_it_says(page: &str, least: usize) {
    let mut examples = 0;
    for part in page.split("```sh\nferroccl ").skip(1) {
        let (command, rest) = part.split_once("\n```\n\n```text\n").unwrap();
        let (shown, _) = rest.split_once("```").unwrap();
        assert_eq!(said(command), shown, "{command}");
        examples += 1;
    }
    assert!(examples >= least, "the page has only {examples} examples");
}
